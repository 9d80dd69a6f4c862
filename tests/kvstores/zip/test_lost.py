"""Names that are damaged in the directory of an archive hide no members."""

import zipfile

import numpy as np
import pytest

import gpustore
from gpustore.errors import CorruptChunkError, GpustoreError, InvalidKeyError
from gpustore.kvstores.base import Base
from gpustore.kvstores.columns import ReadRequest, ReadState
from gpustore.kvstores.zip import lost
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.kvstores.zip.archive import central, made, opened

MEMBERS = {f"c/{i}": bytes([i]) * 3 for i in range(5)} | {"zarr.json": b"{}", "é": b"4"}


def renamed(data, row, at, byte):
    """The same archive with another byte in the name of a member in the directory."""
    changed = bytearray(data)
    changed[central(data, row) + 46 + at] = byte
    return bytes(changed)


@pytest.mark.parametrize("xor", [1, 0x80, 0xFF])
def test_no_member_with_a_damaged_name_is_missing(xor):
    data = made(list(MEMBERS.items()))
    for row, key in enumerate(MEMBERS):
        name = key.encode()
        for at in range(len(name)):
            store = opened(renamed(data, row, at, name[at] ^ xor))
            with pytest.raises((CorruptChunkError, InvalidKeyError)) as caught:
                store[key]
            assert caught.value.key in (key, "a.zip")
            if "Duplicate" not in str(caught.value):
                assert all(store[other] == MEMBERS[other] for other in MEMBERS if other != key)


def test_the_error_names_the_byte_and_the_damaged_name():
    store = opened(renamed(made(list(MEMBERS.items())), 3, 2, ord("q")))
    for _ in range(2):
        with pytest.raises(CorruptChunkError, match=r'at byte \d+ .* says "c/q"') as caught:
            store["c/3"]
        assert caught.value.key == "c/3"
    assert store.read("c/7").result().state == "missing"
    columns = store.read_many(ReadRequest(["c/2", "c/3", "c/9"]))
    assert columns.value[0] == MEMBERS["c/2"]
    assert list(columns.error) == [1]
    assert columns.state[2] is ReadState.MISSING
    store["new"] = b"5"  # The new archive has the same names.
    with pytest.raises(CorruptChunkError, match="has this name"):
        store["c/3"]


def test_no_fill_value_takes_the_place_of_a_chunk(tmp_path):
    path = tmp_path / "a.zip"
    layout = gpustore.ChunkLayout(chunk_shape=[2])
    array = gpustore.open(
        f"{path}|zip:|zarr3:", create=True, dtype="int16", shape=[8], chunk_layout=layout
    ).result()
    array[...] = np.arange(1, 9, dtype="int16")
    data = path.read_bytes()
    row = zipfile.ZipFile(path).namelist().index("c/2")
    path.write_bytes(renamed(data, row, 2, ord("r")))
    with pytest.raises(CorruptChunkError, match="c/2"):
        gpustore.open(f"{path}|zip:|zarr3:").result().read().result()
    located = gpustore.KvStore.open(f"file://{path}|zip:").result().locate_many(["c/1", "c/2"])
    assert list(located.error) == [1]


def test_of_many_members_those_with_similar_names_are_looked_at(monkeypatch):
    monkeypatch.setattr(lost, "_MOST_HERE", 64)
    monkeypatch.setattr(lost, "_COMPARED", 1000)
    data = renamed(made([(f"c/{i:03d}", b"x") for i in range(300)]), 123, 3, ord("~"))
    store = opened(data)
    for key in ("c/999", "c/1234", "c/99", "d/999", "c/998"):
        assert store.read(key).result().state == "missing"
    # So many were compared that it is given up.
    assert store.read("c/123").result().state == "missing"
    store = opened(data)
    with pytest.raises(CorruptChunkError, match="c/123"):
        store["c/123"]
    for key in ("c/999", "d/999", "c/998", "c/997"):
        assert store.read(key).result().state == "missing"
    # What was found once is not forgotten.
    with pytest.raises(CorruptChunkError, match="c/123"):
        store["c/123"]


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SHORT_READ])
def test_a_base_that_fails_makes_no_key_missing(fault):
    store = opened(made([(f"c/{i}", bytes(100_000)) for i in range(5)]))
    assert len(store.list().result()) == 5
    driver = store.driver
    rules = [Rule(fault)]
    driver._archive._base = Base(FaultyKvStore(driver.base.driver, rules), driver.base.path)
    with pytest.raises(GpustoreError):
        store.driver.read_many(ReadRequest(["c/7"], staleness_bound=0)).raise_first()
    assert rules[0].injected
    assert store.read("c/7").result().state == "missing"
