"""Streams that are expected of frames are those of the frames that Blosc makes."""

import numcodecs.blosc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codecs.blosc.block import blocksize_of, is_split, streams_of
from gpustore.codecs.blosc.columns import read_columns
from gpustore.device.encoded_columns import EncodedColumns

DATA = (np.arange(1 << 18, dtype="u4") // 7).tobytes()


@pytest.mark.parametrize("cname", ["blosclz", "lz4", "lz4hc", "zlib", "zstd"])
@given(
    nbytes=st.one_of(st.integers(1, 70_000), st.integers(1, 1 << 20)),
    clevel=st.integers(1, 9),
    typesize=st.sampled_from([1, 2, 3, 4, 8, 16, 17, 255]),
    blocksize=st.one_of(st.just(0), st.integers(1, 300_000)),
)
def test_streams_are_those_of_frames(cname, nbytes, clevel, typesize, blocksize):
    frame = numcodecs.blosc.compress(DATA[:nbytes], cname.encode(), clevel, 1, blocksize, typesize)
    columns, reasons = read_columns(EncodedColumns.joined([frame]), nbytes, exact=True)
    assert not reasons
    streams = columns.streams
    expected = streams_of(
        nbytes, cname=cname, clevel=clevel, typesize=typesize, blocksize=blocksize
    )
    if not columns.is_stored.any():
        assert expected == (len(streams.frame), int(streams.dst_nbytes.max(initial=0)))


@given(
    st.sampled_from(["blosclz", "lz4", "lz4hc", "zlib", "zstd"]),
    st.integers(0, 9),
    st.sampled_from([1, 2, 3, 4, 8, 12, 16, 17, 255]),
    st.one_of(st.integers(1, 3000), st.integers(1, 2**22)),
    st.sampled_from([0, 1, 128, 1000, 70_000]),
)
def test_blocks_have_the_size_that_c_blosc_chooses(cname, clevel, typesize, nbytes, wanted):
    data = np.zeros(nbytes, np.uint8)
    frame = numcodecs.blosc.compress(data, cname.encode(), clevel, 1, wanted, typesize)
    blocksize = blocksize_of(cname, clevel, typesize, nbytes, wanted)
    assert int.from_bytes(frame[8:12], "little") == blocksize
    assert bool(frame[2] & 0x10) != is_split(cname, typesize, blocksize)
