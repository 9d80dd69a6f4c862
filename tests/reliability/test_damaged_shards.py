"""Damaged shards: an error that names the key, or what was written.

Each kind of damage is done to shards of every form and then read in every way. Where the index has
a checksum and the inner chunks have one, nothing else may come of it; where they have not, no more
can be asked for than elements of the right shape.
"""

import tracemalloc

import google_crc32c
import numpy as np
import pytest

import gpustore
from gpustore.errors import CorruptChunkError
from gpustore.sharding.shard_codec import unpack
from tests.reliability.array_on_disk import values

pytestmark = pytest.mark.matrix

SHAPE = (32, 32)
INNER = 16
"""Inner chunks of a shard; 8 x 8 elements each."""

MISSING = 2**64 - 1
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CRC32C = {"name": "crc32c"}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}


def sharding(chunk, codecs, *, location="end", checksum=True):
    index_codecs = [LITTLE, CRC32C] if checksum else [LITTLE]
    configuration = {"chunk_shape": chunk, "codecs": codecs, "index_codecs": index_codecs}
    configuration["index_location"] = location
    return {"name": "sharding_indexed", "configuration": configuration}


FORMS = {
    "raw": [sharding([8, 8], [LITTLE])],
    "gzip": [sharding([8, 8], [LITTLE, GZIP])],
    "crc32c": [sharding([8, 8], [LITTLE, CRC32C])],
    "gzip, start": [sharding([8, 8], [LITTLE, GZIP], location="start")],
    "gzip, unchecked": [sharding([8, 8], [LITTLE, GZIP], checksum=False)],
    "raw, unchecked, start": [sharding([8, 8], [LITTLE], location="start", checksum=False)],
    "blosc, unchecked": [
        sharding([8, 8], [LITTLE, {"name": "blosc", "configuration": BLOSC}], checksum=False)
    ],
    "transposed": [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        sharding([8, 8], [LITTLE, GZIP]),
    ],
    "nested": [sharding([16, 16], [sharding([8, 8], [LITTLE, GZIP])])],
    "nested, unchecked, start": [
        sharding(
            [16, 16],
            [sharding([8, 8], [LITTLE, GZIP], location="start", checksum=False)],
            location="start",
            checksum=False,
        )
    ],
}
"""The codecs of arrays that are one shard."""

CHECKED = ("gzip", "crc32c", "gzip, start", "transposed", "nested")
"""Forms in which no damage may go unnoticed."""


def read_whole(store):
    return [(np.s_[...], store.read())]


def read_part(store):
    parts = (np.s_[9, 3], np.s_[7:9, ::5], np.s_[:, 30], np.s_[8:16, 8:16])
    return [(part, store[part].read()) for part in parts]


def read_crops(store):
    starts = [[0, 0], [7, 7], [22, 3], [20, 20], [7, 7]]
    crops = store.read_many(starts, [10, 12])
    parts = [np.s_[y : y + 10, x : x + 12] for y, x in starts]
    return [(parts, crops)]


def read_batch(store):
    parts = (np.s_[:20], np.s_[5:, 5:], np.s_[9, 3], np.s_[::3, ::7])
    with gpustore.Batch() as batch:
        return [(part, store[part].read(batch=batch)) for part in parts]


WAYS = {"whole": read_whole, "part": read_part, "crops": read_crops, "batch": read_batch}


def expected(written, part):
    return np.stack([written[one] for one in part]) if isinstance(part, list) else written[part]


class Shard:
    """An array of one shard that is replaced again and again."""

    def __init__(self, form, url="memory://a/", kvstore=None):
        self.form = form
        self.store = gpustore.open(
            {
                "driver": "zarr3",
                **({"kvstore": url} if kvstore is None else {}),
                "metadata": {
                    "shape": list(SHAPE),
                    "data_type": "uint16",
                    "chunk_grid": {
                        "name": "regular",
                        "configuration": {"chunk_shape": list(SHAPE)},
                    },
                    "codecs": FORMS[form],
                },
            },
            create=True,
            kvstore=kvstore,
            context=gpustore.Context({"file_io_sync": False}),
        ).result()
        self.written = values(SHAPE)
        self.store[...] = self.written
        self.key = self.store.kvstore.path + "c/0/0"
        self.encoded = bytes(self.store.kvstore["c/0/0"])
        self.index = self.store._driver.array.levels[0].index

    @property
    def table_at(self):
        """Where the entries of the outer index stand, and where they end."""
        low, _ = self.index.byte_range
        start = len(self.encoded) + low if low < 0 else low
        return start, start + 16 * self.index.count

    def entries(self):
        start, stop = self.table_at
        return np.frombuffer(self.encoded[start:stop], "<u8").reshape(-1, 2).copy()

    def with_entries(self, entries, *, sign):
        """The shard with another index; `sign` corrects its checksum too, if it has one."""
        start, stop = self.table_at
        table = np.asarray(entries, "<u8").tobytes()
        checksum = self.encoded[stop : stop + self.index.nbytes - len(table)]
        if sign and checksum:
            checksum = google_crc32c.value(table).to_bytes(4, "little")
        end = stop + len(checksum)
        return self.encoded[:start] + table + checksum + self.encoded[end:]

    def with_entry(self, row, offset, nbytes, *, sign):
        entries = self.entries()
        entries[row] = offset % 2**64, nbytes % 2**64
        return self.with_entries(entries, sign=sign)

    def put(self, encoded):
        self.store.kvstore["c/0/0"] = encoded

    def read(self, encoded):
        """For each read, ``"error"``, ``"same"`` or ``"wrong"``."""
        self.put(encoded)
        outcomes = []
        for read in WAYS.values():
            for part, reading in read(self.store):
                error = reading.exception()
                if error is not None:
                    self.check(error)
                    outcomes.append("error")
                    continue
                found, right = reading.result(), expected(self.written, part)
                assert (found.shape, found.dtype) == (right.shape, right.dtype)
                outcomes.append("same" if np.array_equal(found, right) else "wrong")
        return outcomes

    def check(self, error):
        assert isinstance(error, CorruptChunkError), repr(error)
        assert error.key == self.key
        assert self.key in str(error)

    def must_fail(self, encoded):
        """A shard of which nothing can be read, nor changed in part."""
        assert set(self.read(encoded)) == {"error"}
        with pytest.raises(CorruptChunkError) as caught:
            self.store[9, 3:5] = 1
        self.check(caught.value)
        assert bytes(self.store.kvstore["c/0/0"]) == encoded

    def must_not_deceive(self, encoded):
        outcomes = self.read(encoded)
        if encoded != self.encoded and self.form in CHECKED:
            assert "wrong" not in outcomes
        return outcomes


@pytest.fixture(params=FORMS)
def shard(request):
    return Shard(request.param)


# --------------------------------------------------------------------------- the index

ENTRIES = {
    "offset beyond the end": lambda size: (size + 5, 10),
    "offset at the end": lambda size: (size, 1),
    "length beyond the end": lambda size: (40, size),
    "huge length": lambda size: (40, 2**63 - 1),
    "length of the sentinel": lambda size: (40, MISSING),
    "offset of the sentinel": lambda size: (MISSING, 40),
    "sum wraps around": lambda size: (2**64 - 8, 48),
    "no bytes": lambda size: (40, 0),
    "all of the shard": lambda size: (0, size),
}


@pytest.mark.parametrize("sign", [True, False], ids=["signed", "not signed"])
@pytest.mark.parametrize("kind", ENTRIES)
def test_impossible_entry(shard, kind, sign):
    """One such entry shows that the index is not to be trusted: nothing is read."""
    entry = ENTRIES[kind](len(shard.encoded))
    for row in (shard.index.count // 2, shard.index.count - 1):
        shard.must_fail(shard.with_entry(row, *entry, sign=sign))


def test_swapped_entries(shard):
    """Whoever signs the index may say what he likes; damage is found where there is a checksum."""
    entries = shard.entries()
    entries[[0, -1]] = entries[[-1, 0]]
    outcomes = shard.read(shard.with_entries(entries, sign=True))
    assert len(outcomes) > 8
    if shard.form.startswith("raw"):
        assert "wrong" in outcomes
    outcomes = set(shard.read(shard.with_entries(entries, sign=False)))
    assert (outcomes == {"error"}) == ("unchecked" not in shard.form)


def test_overlapping_entries(shard):
    """They are legal: all inner chunks may share bytes that are equal."""
    entries = shard.entries()
    entries[:] = entries[0]
    shard.put(shard.with_entries(entries, sign=True))
    if shard.form.startswith("nested"):
        first, size = shard.written[:16, :16], 16
    else:
        first, size = shard.written[:8, :8], 8
    assert np.array_equal(shard.store.read().result(), np.tile(first, (32 // size, 32 // size)))
    changed = np.tile(first, (32 // size, 32 // size))
    changed[9, 3:5] = 1
    shard.store[9, 3:5] = 1
    assert np.array_equal(shard.store.read().result(), changed)


def test_entry_shifted_by_a_byte(shard):
    entries = shard.entries()
    offset, nbytes = (int(value) for value in entries[0])
    for entry in ((offset + 1, nbytes), (offset, nbytes - 1), (offset, 1)):
        shard.must_not_deceive(shard.with_entry(0, *entry, sign=True))
        if not shard.form.startswith("raw"):
            assert "error" in shard.read(shard.with_entry(0, *entry, sign=True))


def test_entry_that_lies_in_the_index(shard):
    start, _ = shard.table_at
    shard.must_fail(shard.with_entry(0, start, 16, sign=True))
    shard.must_fail(shard.with_entry(0, start + shard.index.nbytes - 1, 1, sign=True))


def test_flipped_bits_of_the_index(shard):
    start, stop = shard.table_at
    outcomes = set()
    for at in range(start, stop + shard.index.nbytes - (stop - start), 3):
        changed = bytearray(shard.encoded)
        changed[at] ^= 1 << at % 8
        shard.put(bytes(changed))
        error = shard.store[9, 3].read().exception()
        outcomes.add("no error" if error is None else "error")
        if error is not None:
            shard.check(error)
    if "unchecked" not in shard.form:
        assert outcomes == {"error"}


# --------------------------------------------------------------------------- the shard


def test_truncated_shard(shard):
    nbytes = len(shard.encoded)
    for length in sorted({0, 1, 4, 16, shard.index.nbytes - 1, nbytes // 2, nbytes - 1}):
        shard.must_fail(shard.encoded[:length])


def test_shard_with_something_after_its_end(shard):
    """An index at the start says where the inner chunks are; gaps are legal."""
    for tail in (b"\0", shard.encoded[-40:-1], bytes(3000)):
        if "start" in shard.form:
            assert set(shard.read(shard.encoded + tail)) == {"same"}
        else:
            outcomes = shard.must_not_deceive(shard.encoded + tail)
            if "unchecked" not in shard.form:
                assert set(outcomes) == {"error"}


def test_shard_that_begins_with_something_else(shard):
    for encoded in (shard.encoded[1:], b"\0" + shard.encoded, shard.encoded[:100] * 2):
        outcomes = shard.must_not_deceive(encoded)
        if shard.form in CHECKED:
            assert "error" in outcomes


def test_junk(shard):
    generator = np.random.default_rng(5)
    nbytes = len(shard.encoded)
    for length in (nbytes, 400, 16, 3 * nbytes):
        shard.must_not_deceive(generator.bytes(length))
    for _ in range(10):
        at = int(generator.integers(0, nbytes - 40))
        for middle in (generator.bytes(40), bytes(40), b"\xff" * 40):
            shard.must_not_deceive(shard.encoded[:at] + middle + shard.encoded[at + 40 :])


def test_zeros_and_ones(shard):
    """An index of zeros has no inner chunk of any bytes; one of ones has none at all."""
    nbytes = len(shard.encoded)
    shard.must_fail(bytes(nbytes))
    outcomes = shard.read(b"\xff" * nbytes)
    assert set(outcomes) == ({"wrong"} if "unchecked" in shard.form else {"error"})


@pytest.mark.parametrize("form", FORMS)
def test_shard_of_another_form(form):
    shard = Shard(form)
    transposed = {"gzip": "transposed", "transposed": "gzip"}
    for other in FORMS.keys() - {transposed.get(form)}:  # Which is legal, and other elements.
        encoded = Shard(other, "memory://other/").encoded
        shard.must_not_deceive(encoded)


def test_sparse_file_in_place_of_a_shard(tmp_path):
    shard = Shard("gzip", f"file://{tmp_path}/a/")
    for nbytes in (1 << 31, 1 << 40):
        with open(shard.key, "r+b") as file:
            file.truncate(nbytes)
        for read in WAYS.values():
            for _, reading in read(shard.store):
                shard.check(reading.exception())
        with pytest.raises(CorruptChunkError) as caught:
            shard.store[9, 3] = 1
        shard.check(caught.value)


def test_undamaged_inner_chunks_beside_a_damaged_one_are_read(shard):
    if "nested" in shard.form or "raw" in shard.form:
        return  # A shard in a shard has 2 x 2 of them; raw bytes are never wrong.
    offset, nbytes = (int(value) for value in shard.entries()[-1])
    shard.put(shard.encoded[:offset] + b"\x7f" * nbytes + shard.encoded[offset + nbytes :])
    written, store = shard.written, shard.store
    assert np.array_equal(store[:24].read().result(), written[:24])
    assert np.array_equal(store.read_many([[0, 0]], [24, 32]).result()[0], written[:24])
    shard.check(store[24:, 24:].read().exception())
    # It stays as it is when others are written, and goes when it is written whole.
    store[0, 0] = 9
    shard.check(store[31, 31].read().exception())
    store[24:, 24:] = 5
    assert store[31, 31].read().result() == 5
    assert store[0, 0].read().result() == 9


def test_entries_that_share_a_long_chunk_are_no_bomb():
    """A partial write stores all inner chunks anew: each counts, however many share its bytes."""
    shard = Shard("gzip")
    form, bound = shard.index, shard.store._driver.array.inner_bound(1)
    nbytes = 60 * bound
    entries = np.tile(np.array([0, nbytes], np.uint64), (INNER, 1))
    table = entries.tobytes()
    encoded = bytes(nbytes) + table + google_crc32c.value(table).to_bytes(4, "little")
    shard.put(encoded)
    tracemalloc.start()
    with pytest.raises(CorruptChunkError, match="no legal encoding") as caught:
        shard.store[9, 3] = 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    shard.check(caught.value)
    assert peak < 3 * nbytes
    with pytest.raises(CorruptChunkError, match="no legal encoding"):
        unpack(encoded, form, bound)
    assert len(unpack(encoded, form, nbytes)) == INNER


def test_inner_shard_longer_than_any_is_refused():
    shard = Shard("nested")
    array = shard.store._driver.array
    assert array.inner_bound(2) == array.chain.encoded_bound
    assert array.object_bound > array.inner_bound(0) > array.inner_bound(1) > array.inner_bound(2)
    nbytes = array.inner_bound(1) + 1
    entries = np.tile(np.array([0, nbytes], np.uint64), (4, 1))
    table = entries.tobytes()
    shard.put(bytes(nbytes) + table + google_crc32c.value(table).to_bytes(4, "little"))
    with pytest.raises(CorruptChunkError, match="no legal encoding") as caught:
        shard.store[9, 3] = 1
    shard.check(caught.value)


def test_forms_are_what_they_say():
    assert len(FORMS) >= 10
    assert set(CHECKED) < set(FORMS)
    for form in FORMS:
        shard = Shard(form)
        assert shard.index.at_end == ("start" not in form)
        assert (shard.index.nbytes % 16 == 0) == ("unchecked" in form)
        assert len(shard.store._driver.array.levels) == 1 + ("nested" in form)
        assert set(shard.read(shard.encoded)) == {"same"}
