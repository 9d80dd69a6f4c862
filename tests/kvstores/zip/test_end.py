"""End records of zip archives."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import CorruptChunkError, UnsupportedError
from gpustore.kvstores.zip.end import TAIL_NBYTES, End, find_end, pack_end
from tests.kvstores.zip.archive import made, patched
from tests.matrix import each

GOOD = made([("a", b"1"), ("b/c", b"22" * 50)])
END = len(GOOD) - 22


def found(data):
    return find_end(lambda start, stop: data[start:stop], len(data))


def test_end_is_that_of_zipfile():
    end = found(GOOD)
    assert end.count == 2
    assert GOOD[end.start : end.start + 4] == b"PK\1\2"
    assert end.stop == END
    assert found(made([])) == End(0, 0, 0)


@pytest.mark.parametrize("nbytes", [1, 1000, 65535])
def test_comment_may_be_long(nbytes):
    data = made([("a", b"1")], comment=b"c" * nbytes)
    assert found(data).comment == b"c" * nbytes
    assert found(data).count == 1


@pytest.mark.parametrize(
    "false",
    [
        b"PK\5\6" + bytes(18),
        b"PK\5\6" + bytes(30),
        b"PK\5\6" * 1000,
        b"PK\5\6" + bytes(16) + b"\x00\x00" + b"PK\5\6" + bytes(18),
        struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 9, 9, 9, 9, 0),
        b"PK\6\7" + bytes(16) + b"PK\5\6" + bytes(12) + b"\xff" * 4 + bytes(2),
    ],
    ids=range(6),
)
def test_false_end_records_in_a_comment_are_passed_over(false):
    data = made([("a", b"1")], comment=false)
    end = found(data)
    assert (end.count, end.comment) == (1, false)


def test_two_valid_end_records_are_refused():
    data = made([("a", b"1")], comment=b"PK\5\6" + bytes(18))
    at = len(data) - 22
    data = patched(data, at + 16, "I", at)  # An empty directory that ends where it begins.
    with pytest.raises(CorruptChunkError, match="2 end records are valid"):
        found(data)


@each(
    ("damage", "text"),
    [
        (lambda d: b"", "Failed to find valid ZIP EOCD: no end record"),
        (lambda d: b"x" * 100_000, "no end record"),
        (lambda d: d[:-1], "no end record"),
        (lambda d: d + b"\0", "no end record"),
        (lambda d: d[:30], "no end record"),
        (lambda d: b"junk" + d, "4 bytes were put before the archive"),
        (lambda d: patched(d, END + 12, "I", 2**31), "the directory ends at byte"),
        (lambda d: patched(d, END + 16, "I", 0), "the directory ends at byte"),
        (lambda d: patched(d, END + 16, "I", 2**32 - 1), "there is none"),
        (lambda d: patched(d, END + 12, "I", 2**32 - 1), "there is none"),
    ],
    ids=range(10),
)
def test_wrong_ends_are_errors(damage, text):
    with pytest.raises(CorruptChunkError, match=text) as caught:
        found(damage(GOOD))
    assert caught.value.codec == "zip"


@pytest.mark.parametrize("at", [4, 6, 8])
def test_archives_on_several_disks_are_unsupported(at):
    with pytest.raises(UnsupportedError, match="several files"):
        found(patched(GOOD, END + at, "H", 1))


def with_zip64(data, **changes):
    """The same archive with a zip64 record, of which some numbers are changed."""
    end = found(data)
    numbers = {
        **dict(size=44, made=45, needed=45, disk=0, first=0, here=end.count, count=end.count),
        **dict(nbytes=end.stop - end.start, start=end.start),
        **dict(place=end.stop, disks=1, small_count=0xFFFF, small=0xFFFFFFFF),
        **changes,
    }
    n = type("Numbers", (), numbers)
    return (
        data[: end.stop]
        + struct.pack(
            *("<4sQ2H2L4Q", b"PK\6\6", n.size, n.made, n.needed, n.disk, n.first),
            *(n.here, n.count, n.nbytes, n.start),
        )
        + struct.pack("<4sLQL", b"PK\6\7", 0, n.place, n.disks)
        + struct.pack(
            "<4s4H2LH", b"PK\5\6", 0, 0, n.small_count, n.small_count, n.small, n.small, 0
        )
    )


def test_zip64_records_are_read():
    assert found(with_zip64(GOOD)) == found(GOOD)
    small = with_zip64(GOOD, small_count=2)
    assert found(small) == found(GOOD)


@each(
    ("changes", "error", "text"),
    [
        ({"size": 45}, CorruptChunkError, "no zip64 record there"),
        ({"place": 0}, CorruptChunkError, "Inconsistent ZIP64 EOCD locator|no zip64 record"),
        ({"place": 2**63}, CorruptChunkError, "Inconsistent ZIP64 EOCD locator"),
        ({"start": 2**63}, CorruptChunkError, "the directory ends at byte"),
        ({"nbytes": 2**64 - 1}, CorruptChunkError, "the directory ends at byte"),
        ({"small_count": 3}, CorruptChunkError, "says 3 where the zip64 record says 2"),
        ({"small": 7}, CorruptChunkError, "says 7 where the zip64 record says"),
        ({"disk": 1}, UnsupportedError, "several files"),
        ({"disks": 2}, UnsupportedError, "several files"),
        ({"here": 1}, UnsupportedError, "several files"),
    ],
)
def test_zip64_lies_are_errors(changes, error, text):
    with pytest.raises(error, match=text):
        found(with_zip64(GOOD, **changes))


@given(
    count=st.sampled_from([0, 1, 65534, 65535, 65536, 2**40]),
    nbytes=st.sampled_from([0, 46, 2**32 - 2, 2**32 - 1, 2**32, 2**40]),
    start=st.sampled_from([0, 1000, 2**32 - 2, 2**32 - 1, 2**32, 2**40]),
    comment=st.binary(max_size=100),
)
def test_packed_ends_are_found(count, nbytes, start, comment):
    end = End(count, start, start + nbytes, comment)
    packed = pack_end(end)
    total = end.stop + len(packed)

    def read(low, high):
        assert low >= max(0, total - TAIL_NBYTES)
        return bytes(max(0, end.stop - low)) + packed[max(0, low - end.stop) : high - end.stop]

    assert find_end(read, total) == end
