"""A copy that was stopped goes on: what is copied is neither read nor written again."""

import json

import numpy as np
import pytest

import gpustore
from gpustore.copying import array, zarr_source
from gpustore.transfer import regions
from gpustore.transfer.journal import Journal
from gpustore.transfer.plan import Plan

NAME = ".gpustore-copy.json"
VALUES = np.arange(1, 1 + 64 * 32, dtype=np.uint16).reshape(64, 32)
# Regions of 8 x 32 elements: --memory counts whole mebibytes, and a region is one chunk at least.
CHUNK = (8, 32)


def make(url, values=VALUES, **keywords):
    layout = gpustore.ChunkLayout(chunk_shape=CHUNK)
    store = gpustore.open(
        url, create=True, dtype="uint16", shape=values.shape, chunk_layout=layout, **keywords
    ).result()
    store[...] = values
    return store


@pytest.fixture
def small_regions(monkeypatch):
    """Regions are single chunks, one at a time."""
    plan = array.plan_regions

    def small(shape, itemsize, **keywords):
        return plan(shape, itemsize, **{**keywords, "memory_nbytes": 1})

    monkeypatch.setattr("gpustore.copying.array.plan_regions", small)


class Stopped:
    """A copy whose writes fail from some region on, and which counts what it reads and writes."""

    def __init__(self, monkeypatch):
        self.left = None
        self.read, self.written = [], []
        part = regions._part
        outer = self

        def counted(store, place):
            outer.written.append(place)
            if outer.left is not None:
                if outer.left == 0:
                    raise gpustore.StoreIOError("the disk is full")
                outer.left -= 1
            return part(store, place)

        reader = zarr_source.store_reader

        def counting(store):
            read = reader(store)
            return lambda place: outer.read.append(place) or read(place)

        monkeypatch.setattr(regions, "_part", counted)
        monkeypatch.setattr(zarr_source, "store_reader", counting)


@pytest.fixture
def stopped(monkeypatch, small_regions):
    return Stopped(monkeypatch)


TARGETS = ["b.zarr", "b.zarr|zarr2:", "b.zip|zip:|zarr3:", "b|ocdbt:in/it|zarr3:"]


@pytest.mark.matrix
@pytest.mark.parametrize("target", TARGETS)
def test_a_second_run_goes_on(gpustore_command, tmp_path, stopped, target):
    make(f"{tmp_path}/a.zarr|zarr3:")
    arguments = ("copy", f"{tmp_path}/a.zarr", f"{tmp_path}/{target}")
    stopped.left = 3
    code, _, err = gpustore_command(*arguments)
    assert code == 1
    assert "the disk is full" in err
    assert "1.54 kB of 4.10 kB were copied: the same command goes on from there" in err
    journal = gpustore.open(f"{tmp_path}/{target}").result().kvstore
    assert NAME.encode() in journal.list().result()
    document = json.loads(journal[NAME])
    assert document["arrays"] == {"": {"region": [8, 32], "done": 3}}
    stopped.left = None
    stopped.read.clear()
    stopped.written.clear()
    code, out, err = gpustore_command(*arguments)
    assert (code, err) == (0, "")
    assert "note: 1.54 kB were copied before" in out
    rows = [place[0].start for place in stopped.read]
    assert rows == [place[0].start for place in stopped.written] == [24, 32, 40, 48, 56]
    found = gpustore.open(f"{tmp_path}/{target}").result()
    assert np.array_equal(found.read().result(), VALUES)
    assert NAME.encode() not in found.kvstore.list().result()


def test_chunks_of_fill_values_are_not_looked_at_again(gpustore_command, tmp_path, stopped):
    make(f"{tmp_path}/a.zarr|zarr3:", np.zeros((64, 32), np.uint16))
    arguments = ("copy", f"{tmp_path}/a.zarr", f"{tmp_path}/b.zarr", "--quiet")
    stopped.left = 7
    assert gpustore_command(*arguments)[0] == 1
    assert not (tmp_path / "b.zarr/c").exists()
    stopped.left = None
    stopped.read.clear()
    assert gpustore_command(*arguments) == (0, "", "")
    assert len(stopped.read) == 1


@pytest.mark.parametrize("options", [["--codec", "zstd"], ["--zarr-format", "2"]])
def test_other_options_do_not_go_on(gpustore_command, tmp_path, stopped, options):
    make(f"{tmp_path}/a.zarr|zarr3:")
    arguments = ("copy", f"{tmp_path}/a.zarr", f"{tmp_path}/b.zarr", "--quiet")
    stopped.left = 3
    assert gpustore_command(*arguments)[0] == 1
    stopped.left = None
    code, _, err = gpustore_command(*arguments, *options)
    assert code == 1
    assert "holds the beginning of another copy, or of this one with other options" in err
    assert gpustore_command(*arguments, *options, "--overwrite")[0] == 0
    found = gpustore.open(f"{tmp_path}/b.zarr").result()
    assert np.array_equal(found.read().result(), VALUES)
    assert not (tmp_path / "b.zarr" / NAME).exists()


def test_another_source_does_not_go_on(gpustore_command, tmp_path, stopped):
    make(f"{tmp_path}/a.zarr|zarr3:")
    make(f"{tmp_path}/c.zarr|zarr3:")
    stopped.left = 3
    assert gpustore_command("copy", f"{tmp_path}/a.zarr", f"{tmp_path}/b.zarr")[0] == 1
    stopped.left = None
    code, _, err = gpustore_command("copy", f"{tmp_path}/c.zarr", f"{tmp_path}/b.zarr")
    assert code == 1
    assert "holds the beginning of another copy" in err
    # So does one whose metadata have changed meanwhile.
    source = gpustore.open(f"{tmp_path}/a.zarr").result()
    source.resize(exclusive_max=[72, 32]).result()
    code, _, err = gpustore_command("copy", f"{tmp_path}/a.zarr", f"{tmp_path}/b.zarr")
    assert "holds the beginning of another copy" in err


DAMAGED = (
    *(b"", b"{", b"[]", b"null", b'{"digest": 1}', b"\xff"),
    b'{"arrays": {"": {"done": -1, "region": [1]}}}',
    b'{"arrays": {"": {"done": 1, "region": [0]}}}',
)


def test_a_damaged_journal_is_another_copy(gpustore_command, tmp_path, stopped):
    make(f"{tmp_path}/a.zarr|zarr3:")
    arguments = ("copy", f"{tmp_path}/a.zarr", f"{tmp_path}/b.zarr", "--quiet")
    stopped.left = 3
    assert gpustore_command(*arguments)[0] == 1
    stopped.left = None
    for document in DAMAGED:
        (tmp_path / "b.zarr" / NAME).write_bytes(document)
        code, _, err = gpustore_command(*arguments)
        assert (code, "add --overwrite" in err) == (1, True), document
    assert gpustore_command(*arguments, "--overwrite") == (0, "", "")


def test_a_complete_copy_is_not_continued(gpustore_command, tmp_path):
    make(f"{tmp_path}/a.zarr|zarr3:")
    arguments = ("copy", f"{tmp_path}/a.zarr", f"{tmp_path}/b.zarr", "--quiet")
    assert gpustore_command(*arguments) == (0, "", "")
    code, _, err = gpustore_command(*arguments)
    assert (code, "exists already: add --overwrite" in err) == (1, True)


def test_overwrite_begins_anew(gpustore_command, tmp_path, stopped):
    make(f"{tmp_path}/a.zarr|zarr3:")
    arguments = ("copy", f"{tmp_path}/a.zarr", f"{tmp_path}/b.zarr", "--quiet")
    stopped.left = 3
    assert gpustore_command(*arguments)[0] == 1
    stopped.left = None
    stopped.read.clear()
    assert gpustore_command(*arguments, "--overwrite") == (0, "", "")
    assert len(stopped.read) == 8


@pytest.mark.matrix
@pytest.mark.parametrize("left", [0, 11])
def test_a_group_goes_on(gpustore_command, tmp_path, stopped, left):
    group = gpustore.open_group(f"{tmp_path}/a", create=True, attributes={"n": 1}).result()
    layout = gpustore.ChunkLayout(chunk_shape=CHUNK)
    for number, path in enumerate(("x", "y/z")):
        store = group.create_array(path, dtype="uint16", shape=[64, 32], chunk_layout=layout)
        store.result()[...] = VALUES + np.uint16(number)
    arguments = ("copy", f"{tmp_path}/a", f"{tmp_path}/b", "--quiet")
    stopped.left = left
    assert gpustore_command(*arguments)[0] == 1
    stopped.left = None
    stopped.read.clear()
    assert gpustore_command(*arguments) == (0, "", "")
    assert len(stopped.read) == 16 - left
    found = gpustore.open_group(f"{tmp_path}/b").result()
    assert dict(found.attrs) == {"n": 1}
    for number, path in enumerate(("x", "y/z")):
        assert np.array_equal(found[path].read().result(), VALUES + np.uint16(number))
    assert not (tmp_path / "b" / NAME).exists()


def test_the_journal_is_never_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr("gpustore.transfer.journal._EVERY_S", float("inf"))
    store = gpustore.KvStore.open(f"{tmp_path}/").result()
    journal = Journal(store, "digest")
    assert not journal.found
    assert not journal.other
    plan = Plan((4,), (1,), itemsize=1, in_flight=1, reads_per_chunk=1.0)
    journal.begin({"a": plan})
    journal.advance("a")  # Not written again so soon.
    assert Journal(store, "digest").done("a") == 0
    journal.write()
    again = Journal(store, "digest")
    assert (again.found, again.done("a"), again.region("a")) == (True, 1, (1,))
    assert Journal(store, "other").other
    monkeypatch.setattr("gpustore.transfer.journal._EVERY_S", 0.0)
    again.advance("a")
    assert Journal(store, "digest").done("a") == 2
    again.remove()
    assert store.list().result() == []


def test_a_group_without_interruption_has_its_journal_written_twice(
    gpustore_command, tmp_path, monkeypatch
):
    """In an archive each time is a copy of all of it: of nothing at first, then of no chunks."""
    monkeypatch.setattr("gpustore.transfer.journal._EVERY_S", 1e9)
    written = []
    write = Journal.write
    monkeypatch.setattr(Journal, "write", lambda self: written.append(self) or write(self))
    gpustore.open_group(f"{tmp_path}/g", create=True).result()
    for i in range(5):
        make(f"{tmp_path}/g/{i}|zarr3:")
    assert gpustore_command("copy", tmp_path / "g", f"{tmp_path}/h.zip|zip:")[0] == 0
    assert len(written) == 2
    copied = gpustore.open(f"{tmp_path}/h.zip|zip:4").result()
    np.testing.assert_array_equal(copied.read().result(), VALUES)


@pytest.mark.matrix
@pytest.mark.parametrize("number", range(8))
def test_a_run_that_is_killed_while_it_makes_arrays_is_gone_on_with(
    gpustore_command, tmp_path, monkeypatch, number
):
    """After some write no other one happens, as if the process had been killed."""
    group = gpustore.open_group(f"{tmp_path}/a|zarr2:", create=True, attributes={"n": 1}).result()
    group.create_group("below").result()
    for name in ("x", "y"):
        make(f"{tmp_path}/a/below/{name}|zarr2:").attrs["m"] = 2
    group.consolidate().result()
    driver = gpustore.KvStore.open(f"file://{tmp_path}/b").result().driver
    write_many, count = type(driver).write_many, 0

    def killed(self, request):
        nonlocal count
        count += 1
        if count > number:
            raise gpustore.StoreIOError("killed")
        return write_many(self, request)

    arguments = ("copy", f"{tmp_path}/a|zarr2:", f"{tmp_path}/b|zarr2:", "--quiet")
    monkeypatch.setattr(type(driver), "write_many", killed)
    assert gpustore_command(*arguments)[0] == 1
    monkeypatch.setattr(type(driver), "write_many", write_many)
    assert gpustore_command(*arguments) == (0, "", "")
    copy = gpustore.open_group(f"{tmp_path}/b|zarr2:").result()
    assert copy.is_consolidated
    assert dict(copy.attrs) == {"n": 1}
    for name in ("x", "y"):
        assert np.array_equal(copy[f"below/{name}"].read().result(), VALUES)
        assert dict(copy[f"below/{name}"].attrs) == {"m": 2}
    assert NAME.encode() not in copy.kvstore.list().result()
