"""Streams that are expected of frames are those of the frames that Blosc makes."""

import numcodecs.blosc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codecs.blosc.block import streams_of
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
