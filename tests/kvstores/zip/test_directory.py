"""Directories of zip archives."""

import io
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import CorruptChunkError, GpustoreError, InvalidKeyError, UnsupportedError
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.zip.directory import Directory, check_name, read_directory
from gpustore.kvstores.zip.end import End
from gpustore.runtime.limits import Limits
from tests.kvstores.zip.archive import central, made, opened, patched
from tests.matrix import each

GOOD = made(
    [
        ("zarr.json", b"{}" * 20),
        ("c/0/0", b"0123456789" * 30, 8),
        ("c/0/1", b"abc" * 100, 12),
        ("d/", b""),
        ("c/1/é", b"plain"),
        ("lz", b"lz" * 50, 14),
    ],
    comment=b"comment",
)


def directory(data, *, generation=b"\0g", last=False, limits=None):
    return read_directory(
        lambda start, stop: data[start:stop],
        len(data),
        generation,
        limits=limits or Limits(),
        where="archive",
        key="a.zip",
        last=last,
    )


def test_columns_are_those_of_zipfile():
    found = directory(GOOD)
    infos = zipfile.ZipFile(io.BytesIO(GOOD)).infolist()
    assert found.rows == {i.filename: n for n, i in enumerate(infos) if i.filename[-1] != "/"}
    assert found.offset.tolist() == [i.header_offset for i in infos]
    assert found.encoded_nbytes.tolist() == [i.compress_size for i in infos]
    assert found.decoded_nbytes.tolist() == [i.file_size for i in infos]
    assert found.record["crc32"].tolist() == [i.CRC for i in infos]
    assert found.bound.tolist() == [*found.offset.tolist()[1:], found.end.start]
    assert found.keys == sorted(found.rows)
    assert found.is_sound


def test_records_that_contain_the_signature_are_walked():
    tricky = "PK\1\2" * 20
    data = made([(f"a{tricky}", b"1"), (tricky, b"2"), ("b", b"3")])
    assert list(directory(data).rows) == [f"a{tricky}", tricky, "b"]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda d, e: patched(d, e + 8, "2H", 7, 7), "insufficient data available|signature"),
        (lambda d, e: patched(d, e + 8, "2H", 5, 5), "ZIP num_entries mismatch: 5 members end at"),
        (lambda d, e: patched(d, e + 8, "2H", 65535, 65535), "65535 members in"),
        (lambda d, e: patched(d, central(d, 2), "I", 0), "Entry signature of member 2 of 6"),
        (lambda d, e: patched(d, central(d, 5) + 28, "H", 999), "insufficient data available"),
        (lambda d, e: patched(d, central(d, 1) + 30, "H", 3), "signature of member 2"),
    ],
    ids=range(6),
)
def test_damaged_directories_are_errors_that_name_the_archive(damage, text):
    with pytest.raises(CorruptChunkError, match=text) as caught:
        directory(damage(GOOD, GOOD.rindex(b"PK\5\6")))
    assert str(caught.value).startswith("FAILED_PRECONDITION: Error reading archive: ")


def zip64_record(name, numbers, extra_ids=(1,)):
    """A record whose sizes and offset are in a zip64 field; `numbers` are what stands there."""
    payload = struct.pack(f"<{len(numbers)}Q", *numbers)
    extra = b"".join(struct.pack("<2H", id, len(payload)) + payload for id in extra_ids)
    most = 2**32 - 1
    return (
        struct.pack(
            *("<4s6H3L5H2L", b"PK\1\2", 45, 45, 0, 0, 0, 0, 0),
            *(most, most, len(name), len(extra), 0, 0, 0, 0, most),
        )
        + name
        + extra
    )


def test_zip64_numbers_are_read():
    blob = zip64_record(b"a", [5 << 32, 5 << 32, 6 << 32]) + zip64_record(b"b", [7, 7, 0], (9, 1))
    found = Directory(blob, End(2, 12 << 32, (12 << 32) + len(blob)), b"\0g")
    assert found.decoded_nbytes.tolist() == [5 << 32, 7]
    assert found.offset.tolist() == [6 << 32, 0]
    assert found.is_sound


@pytest.mark.parametrize("numbers", [[], [5], [5, 5], [2**63, 5, 0], [5, 2**64 - 1, 0]], ids=repr)
def test_zip64_lies_are_faults_of_the_member(numbers):
    blob = zip64_record(b"a", numbers) + zip64_record(b"b", [7, 7, 100])
    found = Directory(blob, End(2, 1000, 1000 + len(blob)), b"\0g")
    with pytest.raises(CorruptChunkError, match="ZIP64 extra field"):
        found.check(0)
    found.check(1)


@pytest.mark.parametrize("disk", [0, 1, 2, 0x10000])
def test_the_disk_of_a_member_may_be_in_zip64(disk):
    blob = zip64_record(b"a", [7, 7, 100]) + disk.to_bytes(4, "little")
    blob = patched(blob, 30, "3H", 4 + 28, 0, 0xFFFF)  # Length of the extra fields, and the disk.
    blob = patched(blob, 46 + 1 + 2, "H", 28)
    found = Directory(blob, End(1, 1000, 1000 + len(blob)), b"\0g")
    if disk:
        with pytest.raises(UnsupportedError, match="several files"):
            found.check(0)
    else:
        found.check(0)


def test_sums_do_not_overflow():
    blob = b"".join(
        zip64_record(b"%d" % n, [2**63 - 1, 2**63 - 1, offset])
        for n, offset in enumerate([0, 2**63 - 1, 2**62])
    )
    found = Directory(blob, End(3, 1000, 1000 + len(blob)), b"\0g")
    for row in range(3):
        with pytest.raises(CorruptChunkError, match="outside of the 1000 bytes"):
            found.check(row)


def test_overlapping_members_are_all_faulty():
    """The trick of bombs that expand quadratically: each member contains the next one."""
    data = made([(f"{i}", b"x" * 1000) for i in range(5)])
    for row in range(4):
        data = patched(data, central(data, row) + 20, "2I", 1200, 1200)
    found = directory(data)
    for row in range(5):
        with pytest.raises(CorruptChunkError, match="together with another member"):
            found.check(row)


def test_stamps_of_foreign_members_depend_on_archive_and_place():
    one, other = directory(GOOD, generation=b"\0a"), directory(GOOD, generation=b"\0b")
    stamps = {d.stamp(row) for d in (one, other) for row in range(len(d))}
    assert len(stamps) == 2 * len(one)
    unknown = directory(GOOD, generation=b"")
    assert unknown.stamp(0) == unknown.generation_of(0) == b""


@each("name", ["a", "a/b", "a.b", ".zarray", "...", "a/.b", "日本", "x:y", " "])
def test_legal_names(name):
    check_name(name)


@each(
    ("name", "reason"),
    [
        ("", "is empty"),
        ("/a", "is absolute"),
        ("a/", "is the name of a directory"),
        ("a//b", "has an empty part"),
        ("..", '".."'),
        ("a/../b", '".."'),
        ("a/.", '"."'),
        ("a\\b", "backslash"),
        ("a\0", "null byte"),
        ("é" * 32768, "has 65536 bytes, the most are 65535"),
        ("\ud800", "not Unicode"),
    ],
)
def test_illegal_names(name, reason):
    with pytest.raises(InvalidKeyError, match=reason):
        check_name(name)


@given(data=st.data())
def test_mutated_archives_give_typed_errors_or_right_values(data):
    """Nothing crashes, hangs or makes values up, whatever bytes are changed."""
    archive = bytearray(GOOD)
    regions = [
        st.integers(0, len(archive) - 1),
        st.integers(GOOD.index(b"PK\1\2"), len(archive) - 1),
    ]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(regions))
        value = data.draw(
            st.sampled_from([b"\0", b"\xff", b"\1", b"\x7f", b"P", b"\xff" * 4, b"\0" * 8])
        )
        archive[at : at + len(value)] = value
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 22, 60]))
    store = opened(bytes(archive[: len(archive) - cut]), limits={"zip_entry_nbytes": 1 << 20})
    good = opened(GOOD)
    try:
        keys = [key.decode("utf-8", "surrogateescape") for key in store.list().result()]
    except GpustoreError:
        return
    columns = store.read_many(ReadRequest(keys))
    for row in range(len(keys)):
        if row in columns.error:
            assert isinstance(columns.error[row], GpustoreError)
            assert columns.value[row] is None
        else:
            # Its name may have been changed, its contents are compared with their checksum.
            assert bytes(columns.value[row]) in [
                good[k] for k in good.list().result() if k != b"lz"
            ]
    try:
        store["new"] = b"1"
    except (CorruptChunkError, UnsupportedError):
        return
    assert store["new"] == b"1"
    assert {k.encode("utf-8", "surrogateescape") for k in keys} <= set(store.list().result())


def test_many_false_end_records_take_no_time():
    with pytest.raises(CorruptChunkError):
        directory(b"PK\5\6" * 30_000)
    blob = b"PK\1\2" * 100_000
    with pytest.raises(CorruptChunkError):
        Directory(blob, End(8000, 10, 10 + len(blob)), b"")
