"""Shard indices: round trips, and every way an entry can be wrong."""

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import uint64
from gpustore.errors import CorruptChunkError
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.sharding.shard_index import ShardIndex, ShardIndexFormat
from tests.matrix import each


def index_format(chunks=(2, 3), *, at_end=True, crc=True, endian="little"):
    codecs = [NamedConfiguration("bytes", {"endian": endian})]
    if crc:
        codecs.append(NamedConfiguration("crc32c"))
    return ShardIndexFormat(chunks, resolve_v3(codecs, uint64, (*chunks, 2)), at_end)


@given(
    st.lists(st.integers(1, 4), max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["little", "big"]),
    st.data(),
)
def test_round_trip(chunks, at_end, crc, endian, data):
    form = index_format(tuple(chunks), at_end=at_end, crc=crc, endian=endian)
    low = 0 if at_end else form.nbytes
    entries = data.draw(
        st.lists(
            st.none() | st.tuples(st.integers(low, low + 1000), st.integers(1, 1000)),
            min_size=form.count,
            max_size=form.count,
        )
    )
    offset = np.array([-1 if e is None else e[0] for e in entries], np.int64)
    nbytes = np.array([-1 if e is None else e[1] for e in entries], np.int64)
    encoded = form.encode(ShardIndex(offset, nbytes))
    assert len(encoded) == form.nbytes == 16 * form.count + 4 * crc
    for total in (-1, low + 2000 + form.nbytes):
        decoded = form.decode(encoded, total=total)
        assert decoded.offset.tolist() == offset.tolist()
        assert decoded.nbytes.tolist() == nbytes.tolist()


def test_bytes_are_those_of_the_specification():
    form = index_format((2,))
    raw = np.array([5, 7, 2**64 - 1, 2**64 - 1], "<u8").tobytes()
    encoded = raw + google_crc32c.value(raw).to_bytes(4, "little")
    index = form.decode(encoded, total=5 + 7 + len(encoded))
    assert index.offset.tolist() == [5, -1]
    assert index.nbytes.tolist() == [7, -1]
    assert bytes(form.encode(index)) == encoded
    assert form.byte_range == (-36, None)
    assert index_format((2,), at_end=False).byte_range == (0, 36)


BAD = {
    "beyond the end": (0, 101),
    "begins beyond the end": (200, 1),
    "no bytes": (3, 0),
    "overflow": (2**64 - 8, 16),
    "huge": (1, 2**64 - 2),
    "half missing": (2**64 - 1, 5),
    "length missing": (5, 2**64 - 1),
}


@each("at_end", [True, False])
@each("name", BAD)
def test_impossible_entries_are_corrupt(name, at_end):
    form = index_format((1, 2), at_end=at_end, crc=False)
    low = 0 if at_end else form.nbytes
    offset, nbytes = BAD[name]
    raw = np.array([2**64 - 1] * 2 + [min(offset + low, 2**64 - 1), nbytes], np.uint64)
    total = 100 + form.nbytes
    with pytest.raises(CorruptChunkError, match=r"inner chunk \{0, 1\}") as caught:
        form.decode(raw.astype("<u8").tobytes(), total=total)
    assert caught.value.codec == "sharding_indexed"


def test_an_entry_must_not_overlap_the_index():
    end, start = index_format((1,), crc=False), index_format((1,), at_end=False, crc=False)
    for form, entry in ((end, (90, 11)), (start, (15, 5))):
        raw = np.array(entry, "<u8").tobytes()
        with pytest.raises(CorruptChunkError, match="expected a range inside"):
            form.decode(raw, total=116)


def test_damage_and_wrong_length_are_corrupt():
    form = index_format((2,))
    encoded = bytes(form.encode(ShardIndex.empty(2)))
    for damaged in (encoded[:-1], encoded + b"\0", b"", bytes([encoded[0] ^ 1]) + encoded[1:]):
        with pytest.raises(CorruptChunkError):
            form.decode(damaged, total=1000)
