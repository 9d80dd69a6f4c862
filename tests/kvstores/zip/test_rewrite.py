"""Layout of rewritten zip archives."""

import io
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.zip.directory import Directory
from gpustore.kvstores.zip.end import End
from gpustore.kvstores.zip.rewrite import NewMember, Rewrite
from tests.kvstores.zip.archive import made, opened
from tests.kvstores.zip.test_directory import directory, zip64_record

NAMES = ["a", "b/c", "é", "d/"]


@pytest.mark.long
@given(data=st.data())
def test_rewritten_archives_are_those_that_zipfile_reads(data):
    drawn = data.draw
    first = {
        name: b"" if name.endswith("/") else drawn(st.binary(max_size=50))
        for name in drawn(st.lists(st.sampled_from(NAMES), unique=True))
    }
    methods = st.sampled_from([0, 8, 12, 14])
    comment = drawn(st.binary(max_size=20))
    archive = made([(n, v, drawn(methods)) for n, v in first.items()], comment=comment)
    old = directory(archive)
    changes = drawn(st.dictionaries(st.sampled_from(NAMES[:3]), st.none() | st.binary(max_size=50)))
    members = {
        key: None if value is None else NewMember.of(key, value, "deflate")
        for key, value in changes.items()
    }
    rewrite = Rewrite(old, members)
    made_anew = b"".join(rewrite.pieces(lambda start, stop: archive[start:stop]))
    assert len(made_anew) == rewrite.nbytes
    expected = {**first, **changes}
    with zipfile.ZipFile(io.BytesIO(made_anew)) as found:
        assert found.testzip() is None
        assert found.comment == comment
        assert {name: found.read(name) for name in found.namelist()} == {
            name: value for name, value in expected.items() if value is not None
        }
    again = directory(made_anew, generation=b"\0new")
    kept = [key for key in old.rows if key not in changes]
    for key in kept:
        assert again.generation_of(again.rows[key]) == old.generation_of(old.rows[key])
    known = rewrite.directory(b"\0new", last=False)
    assert known.rows == again.rows
    for key, member in members.items():
        if member is not None:
            assert again.generation_of(again.rows[key]) == member.generation
            row = known.rows[key]
            start = int(known.data_start[row])
            assert made_anew[start : start + len(member.encoded)] == bytes(member.encoded)


def test_bytes_before_and_between_members_stay():
    """An archive behind a program that unpacks it, with offsets that are right."""
    plain = made([("a", b"1"), ("b", b"2")])
    end = directory(plain).end
    stub = b"#!/bin/sh\n" + bytes(100)
    shifted = bytearray(stub + plain)
    for row in range(2):
        at = len(stub) + end.start + [0, 46 + 1][row] + 42
        struct.pack_into("<I", shifted, at, struct.unpack_from("<I", shifted, at)[0] + len(stub))
    struct.pack_into("<I", shifted, len(shifted) - 6, end.start + len(stub))
    store = opened(bytes(shifted))
    store["c"] = b"3"
    del store["a"]
    assert store.base[""].startswith(stub)
    assert zipfile.ZipFile(io.BytesIO(store.base[""])).namelist() == ["b", "c"]


def test_offsets_beyond_4_gib_are_zip64():
    blob = zip64_record(b"a", [5 << 32, 5 << 32, 0]) + zip64_record(b"b", [3, 3, 6 << 32])
    old = Directory(blob, End(2, 7 << 32, (7 << 32) + len(blob), b"comment"), b"\0old")
    rewrite = Rewrite(old, {"c": NewMember.of("c", b"new", "store")})
    new = rewrite.directory(b"\0new", last=False)
    assert new.keys == ["a", "b", "c"]
    assert new.offset.tolist() == [0, 6 << 32, 7 << 32]
    assert new.decoded_nbytes.tolist() == [5 << 32, 3, 3]
    assert [new.generation_of(row) for row in (0, 1)] == [old.generation_of(r) for r in (0, 1)]
    assert new.is_stamped.all()
    assert new.end.comment == b"comment"
    assert rewrite.nbytes > 7 << 32
    smaller = Rewrite(new, {"a": None}).directory(b"\0newer", last=False)
    assert smaller.keys == ["b", "c"]
    assert smaller.offset.tolist() == [0, 1 << 32]


def test_members_larger_than_4_gib_are_read_in_parts(tmp_path):
    """The member lies in a file with a hole."""
    path = tmp_path / "a.zip"
    nbytes = 5 << 30
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, 0, 2**32 - 1, 2**32 - 1, 1, 20)
    local += b"a" + struct.pack("<2H2Q", 1, 16, nbytes, nbytes)
    with path.open("wb") as file:
        file.write(local)
        file.seek(len(local) + nbytes - 3)
        file.write(b"end")
        start = file.tell()
        record = zip64_record(b"a", [nbytes, nbytes, 0])
        file.write(record)
        stop = file.tell()
        file.write(
            struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, stop - start, start)
        )
        file.write(struct.pack("<4sLQL", b"PK\6\7", 0, stop, 1))
        most = 2**32 - 1
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, most, most, 0))
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("a").file_size == nbytes
    store = KvStore.open(f"file://{path}|zip:").result()
    assert store.read("a", byte_range=slice(-5, None)).result().value == b"\0\0end"
    assert store.read("a", byte_range=slice(1 << 32, (1 << 32) + 2)).result().value == bytes(2)


@pytest.mark.long
def test_archives_of_more_than_65535_members(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(65_600):
            archive.writestr(zipfile.ZipInfo(f"{i}"), b"x")
    store = KvStore.open(f"file://{path}|zip:").result()
    store["new"] = b"1"
    assert len(store.list().result()) == 65_601
    assert store["65599"] == b"x"
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 65_601
    store.driver.delete_range("1", "7")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == len(store.list().result())
