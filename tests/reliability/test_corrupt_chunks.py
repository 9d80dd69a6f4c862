"""Damaged chunks: every read either raises an error that names the key or returns what was written.

Only where the stored format has no checksum can a changed bit give wrong elements; there the
tests ask for no more than an orderly end.
"""

import collections
import os
import random
from pathlib import Path

import numpy as np
import pytest

import gpustore
from gpustore import registry
from gpustore.errors import CorruptChunkError
from tests.matrix import each
from tests.reliability.array_on_disk import (
    CHECKSUMMED,
    CHUNK,
    FORMATS,
    RAW,
    chunk_key,
    create,
    values,
)

pytestmark = pytest.mark.matrix

KVSTORES = ("file", "memory")
CELL = (1, 0)

CODEC_TESTS = Path(__file__).parents[1] / "codecs"

PARTS = {
    "element": np.s_[17, 3],
    "part": np.s_[18:20, 2:9:3],
    "chunk": np.s_[16:32, 0:16],
    "column": np.s_[:, 5],
    "array": np.s_[...],
}
"""Selections that touch the damaged chunk, by narrower and wider ways of reading it."""


class Damaged:
    """An array one chunk of which is replaced again and again."""

    def __init__(self, name, kvstore, tmp_path):
        url = "memory://a/" if kvstore == "memory" else f"file://{tmp_path}/a/"
        context = gpustore.Context({"file_io_sync": False})
        self.name = name
        self.store = create(name, url, context=context)
        self.written = values()
        self.store[...] = self.written
        self.relative = chunk_key(name, *CELL)
        self.key = self.store.kvstore.path + self.relative
        self.encoded = bytes(self.store.kvstore[self.relative])
        self.outcomes = collections.Counter()

    def put(self, encoded):
        self.store.kvstore[self.relative] = encoded

    def read(self, part):
        """``"error"``, ``"same"`` or ``"wrong"``."""
        reading = self.store[PARTS[part]].read()
        error = reading.exception()
        if error is not None:
            assert isinstance(error, CorruptChunkError), repr(error)
            assert error.key == self.key
            assert self.key in str(error)
            return "error"
        found = reading.result()
        assert found.shape == self.written[PARTS[part]].shape
        return "same" if np.array_equal(found, self.written[PARTS[part]]) else "wrong"

    def try_out(self, kind, encoded, parts=PARTS):
        """Read a damaged value and count what came of it."""
        if encoded == self.encoded:
            return
        self.put(encoded)
        for part in parts:
            self.outcomes[kind, self.read(part)] += 1

    def must_fail(self, kind, encoded):
        """A damaged value that cannot be read at all, nor be changed in part."""
        self.put(encoded)
        for part in PARTS:
            assert self.read(part) == "error", (kind, part)
        with pytest.raises(CorruptChunkError) as caught:
            self.store[17, 3:9] = 5
        assert caught.value.key == self.key
        assert self.key in str(caught.value)
        assert self.store.kvstore[self.relative] == encoded
        self.outcomes[kind, "error"] += 1


@pytest.fixture(params=[(name, kvstore) for name in FORMATS for kvstore in KVSTORES], ids=" ".join)
def damaged(request, tmp_path):
    return Damaged(*request.param, tmp_path)


@pytest.fixture(params=FORMATS)
def in_memory(request, tmp_path):
    """For damage that only a decoder can see; a tenth of the time of a file."""
    return Damaged(request.param, "memory", tmp_path)


def test_matrix_is_whole():
    """Every codec that turns bytes into bytes is in it or has tests of damage of its own."""
    # Shards have tests of their own; so have strings (test_damaged_strings), made by categorize.
    elsewhere = {"sharding_indexed", "categorize", "vlen-bytes", "vlen-utf8"}
    # "Any bytes are elements or damage" is a test of each of these among those of the codecs.
    elsewhere |= {"n5_default", "pcodec", "zfp", "zfpy"}
    text = repr(FORMATS)
    left_out = {name for name in registry.ids("codecs") if f"'{name}'" not in text}
    assert left_out >= elsewhere
    for name in left_out - elsewhere:
        assert "check_damage(" in (CODEC_TESTS / f"test_{name}.py").read_text(encoding="utf-8")
    assert len(FORMATS) == 23
    assert set(FORMATS) > CHECKSUMMED | RAW
    assert len(CHECKSUMMED) == 11


def test_truncated_chunk(damaged):
    """Zero bytes are no chunk either: only a missing key reads as the fill value."""
    nbytes = len(damaged.encoded)
    for length in sorted({*range(0, nbytes, 23), 1, 2, 3, 4, 15, 16, 17, nbytes - 4, nbytes - 1}):
        damaged.must_fail("truncated", damaged.encoded[:length])
    assert damaged.outcomes["truncated", "error"] > 20


def test_chunk_with_something_after_its_end(damaged):
    encoded = damaged.encoded
    for tail in (b"\0", b"\xff", bytes(100), encoded, encoded[:100], bytes(4 << 20)):
        damaged.must_fail("longer", encoded + tail)
    assert damaged.outcomes["longer", "error"] == 6


def test_chunk_that_begins_with_something_else(damaged):
    encoded = damaged.encoded
    damaged.must_fail("shifted", encoded[1:])
    damaged.must_fail("shifted", encoded[-1:] + encoded)
    damaged.must_fail("shifted", encoded[:200] + encoded[201:])


@each("name", FORMATS)
def test_sparse_file_of_a_tebibyte(name, tmp_path):
    damaged = Damaged(name, "file", tmp_path)
    for nbytes in (len(damaged.encoded) + 1, 1 << 31, 1 << 40):
        os.truncate(damaged.key, nbytes)
        for part in PARTS:
            assert damaged.read(part) == "error"
        with pytest.raises(CorruptChunkError) as caught:
            damaged.store[17, 3:9] = 5
        assert caught.value.key == damaged.key
        assert os.stat(damaged.key).st_size == nbytes


def test_flipped_bits(in_memory):
    """Every byte once, and every bit where the codecs keep their headers and trailers."""
    encoded = in_memory.encoded
    nbytes = len(encoded)
    flips = {(at, at % 8) for at in range(nbytes)}
    flips |= {(at, bit) for at in [*range(24), *range(nbytes - 8, nbytes)] for bit in range(8)}
    for at, bit in sorted(flips):
        changed = bytearray(encoded)
        changed[at] ^= 1 << bit
        in_memory.try_out("flip", bytes(changed), ("chunk",))
    _check_outcomes(in_memory, trials=len(flips))


def test_junk(in_memory):
    generator = random.Random(2)
    encoded, nbytes = in_memory.encoded, len(in_memory.encoded)
    for _ in range(40):
        in_memory.try_out("junk", generator.randbytes(generator.choice([nbytes, 64, 512])))
        start = generator.randrange(nbytes - 8)
        stop = start + generator.randrange(4, nbytes - start)
        for middle in (generator.randbytes(stop - start), bytes(stop - start)):
            in_memory.try_out("overwritten", encoded[:start] + middle + encoded[stop:], ("part",))
    in_memory.try_out("zeros", bytes(nbytes))
    in_memory.try_out("ones", b"\xff" * nbytes)
    _check_outcomes(in_memory, trials=100)


def _check_outcomes(damaged, *, trials):
    """Counts, so that a test which damages nothing fails."""
    count = collections.Counter()
    for (_, outcome), times in damaged.outcomes.items():
        count[outcome] += times
    assert count.total() >= trials
    if damaged.name in CHECKSUMMED:
        assert count["wrong"] == 0
        assert count["error"] > 0.9 * count.total()
    elif damaged.name not in RAW:
        assert count["error"] > 0


def test_chunk_of_another_codec(in_memory):
    """A codec reads what another wrote only if that is the same elements."""
    for other in FORMATS:
        source = create(other, "memory://other/")
        source[...] = in_memory.written
        encoded = bytes(source.kvstore[chunk_key(other, *CELL)])
        in_memory.try_out(f"from {other}", encoded)
    outcomes = collections.Counter()
    for (_, outcome), times in in_memory.outcomes.items():
        outcomes[outcome] += times
    assert outcomes["wrong"] == 0
    assert outcomes["error"] >= 8 * len(PARTS)


@pytest.mark.parametrize("name", FORMATS)
def test_chunk_of_another_size(name, tmp_path):
    """Written with twice as many, half as many, or one row more elements in a chunk."""
    damaged = Damaged(name, "file", tmp_path)
    for chunk in ((32, 16), (8, 16), (17, 16), (1, 1)):
        source = create(name, "memory://other/", chunk=chunk)
        source[...] = damaged.written
        encoded = bytes(source.kvstore[chunk_key(name, 0, 0)])
        damaged.must_fail(f"{chunk}", encoded)


def test_undamaged_chunks_beside_a_damaged_one_are_read(damaged):
    damaged.put(b"junk")
    assert np.array_equal(damaged.store[:16].read().result(), damaged.written[:16])
    assert np.array_equal(damaged.store[:, 16:].read().result(), damaged.written[:, 16:])
    assert damaged.read("column") == "error"


def test_damaged_chunk_can_be_replaced_whole(damaged):
    """That is the way to repair it; a write of a part has to read it first."""
    damaged.put(b"junk")
    damaged.store[16:32, 0:16] = damaged.written[CHUNK[0] :, : CHUNK[1]]
    assert damaged.read("array") == "same"


def test_bool_other_than_zero_and_one_is_an_error():
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://a/",
        "metadata": {"shape": [64], "data_type": "bool", "codecs": [{"name": "bytes"}]},
    }
    store = gpustore.open(spec, create=True).result()
    store.kvstore["c/0"] = bytes(30) + b"\x02" + bytes(33)
    for part in (np.s_[...], np.s_[28:34], np.s_[30]):
        with pytest.raises(CorruptChunkError) as caught:
            store[part].read().result()
        assert caught.value.key == "a/c/0"
        assert "a/c/0" in str(caught.value)
    assert not store[:8].read().result().any()
