"""`gpustore.copy` from Python: sources, properties, progress, what it returns and says."""

import json
import signal
import threading

import numpy as np
import pytest
import zarr

import gpustore
from gpustore.sources.base import Source

VALUES = np.arange(64 * 32, dtype="u2").reshape(64, 32)


@pytest.fixture
def context():
    return gpustore.Context()


def test_a_zarr_array_keeps_its_properties(tmp_path):
    gpustore.save(
        f"{tmp_path}/a.zarr",
        VALUES,
        chunks=(8, 32),
        codec="gzip",
        dims=("y", "x"),
        units=["4nm", 1],
    ).attrs["n"] = 1
    copied = gpustore.copy(tmp_path / "a.zarr", tmp_path / "b.zarr")
    before = gpustore.open(tmp_path / "a.zarr").result()
    assert copied.spec().to_json()["metadata"] == before.spec().to_json()["metadata"]
    np.testing.assert_array_equal(copied.read().result(), VALUES)


def test_properties_are_chosen(tmp_path):
    gpustore.save(f"{tmp_path}/a.zarr", VALUES, dims=("y", "x")).attrs.update(
        {"n": 1, "m": 2}
    ).result()
    copied = gpustore.copy(
        f"{tmp_path}/a.zarr",
        f"{tmp_path}/b.zarr",
        chunks=8,
        shards=(16, 32),
        codec=["blosc-zstd:2", {"name": "crc32c"}],
        dims=("row", None),
        units=("2um", None),
        attributes={"m": 3},
    )
    assert (copied.chunks, copied.shards) == ((8, 8), (16, 32))
    assert copied.domain.labels == ("row", "")
    assert str(copied.dimension_units[0]) == "2 um"
    assert {name: copied.attrs[name] for name in "nm"} == {"n": 1, "m": 3}
    document = copied.spec().to_json()["metadata"]
    inner = document["codecs"][0]["configuration"]["codecs"]
    assert [codec["name"] for codec in inner] == ["bytes", "blosc", "crc32c"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_other_arrays_get_chunks_and_zstd(tmp_path, zarr_format):
    values = np.zeros((1024, 2048), "u2")
    values[0] = 1
    copied = gpustore.copy(
        values, tmp_path / "a", zarr_format=zarr_format, dims=("y", "x"), attributes={"n": 1}
    )
    np.testing.assert_array_equal(copied.read().result(), values)
    assert 1 << 19 <= np.prod(copied.chunks) * 2 <= 1 << 20
    assert "zstd" in str(copied.codec.to_json())
    assert copied.attrs["n"] == 1
    theirs = zarr.open_array(str(tmp_path / "a"), mode="r")
    np.testing.assert_array_equal(theirs[...], values)
    if zarr_format == 2:
        assert copied.attrs["_ARRAY_DIMENSIONS"] == ["y", "x"]
    else:
        assert theirs.metadata.dimension_names == ("y", "x")


def test_views_and_opened_stores_are_sources(context):
    store = gpustore.save(
        "memory://a/", VALUES, chunks=(8, 8), dims=("y", "x"), attributes={"n": 1}, context=context
    )
    view = gpustore.copy(store[10:20, ::2], "memory://b/", context=context)
    np.testing.assert_array_equal(view.read().result(), VALUES[10:20, ::2])
    assert (view.origin, view.domain.labels, dict(view.attrs)) == ((0, 0), ("y", "x"), {"n": 1})
    whole = gpustore.copy(store, "memory://c/", context=context)
    assert whole.spec().to_json()["metadata"] == store.spec().to_json()["metadata"]


@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize("before", [2, 3])
def test_groups_of_consolidated_metadata_only_are_groups(tmp_path, before, after):
    group = gpustore.open_group(tmp_path / "a", create=True, zarr_format=before).result()
    group.create_group("x", attributes={"n": 1}).result().create_group("y").result()
    group.consolidate().result()
    for path in sorted((tmp_path / "a" / "x").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    group = gpustore.open_group(tmp_path / "a", use_consolidated=True).result()
    for source, names in ((group, ["x", "x/y"]), (group["x"], ["", "y"])):
        copied = gpustore.copy(source, tmp_path / "b", zarr_format=after, overwrite=True)
        assert dict(copied[names[0]].attrs if names[0] else copied.attrs) == {"n": 1}
        assert dict(copied[names[1]].attrs) == {}
        for name in names:
            document = tmp_path / "b" / name / ("zarr.json" if after == 3 else ".zgroup")
            assert json.loads(document.read_text())["zarr_format"] == after


@pytest.mark.parametrize("form", ["spec", "json"])
def test_specs_of_views_are_sources(tmp_path, form):
    view = gpustore.save(tmp_path / "a", VALUES, chunks=(8, 8))[1:3, 2:5]
    given = view.spec() if form == "spec" else view.spec().to_json()
    copied = gpustore.copy(given, tmp_path / "b")
    assert copied.shape == (2, 3)
    np.testing.assert_array_equal(copied.read().result(), VALUES[1:3, 2:5])


@pytest.mark.parametrize(
    "member",
    [
        {"metadata": {"attributes": {"a": 1}}},
        {"dtype": "uint16"},
        {"schema": {"fill_value": 1}},
        {"delete_existing": True},
        {"context": {"data_copy_concurrency": {"limit": 1}}},
    ],
)
@pytest.mark.parametrize("kind", ["array", "group", "list"])
def test_properties_in_a_target_are_refused(tmp_path, member, kind):
    sources = {"array": gpustore.save("memory://a/", VALUES), "list": [1, 2]}
    sources["group"] = gpustore.open_group("memory://g/", create=True).result()
    target = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/b/", "create": True}
    with pytest.raises(gpustore.CopyError, match=f"names {next(iter(member))}.* as arguments"):
        gpustore.copy(sources[kind], target | member)
    assert [*tmp_path.iterdir()] == []
    gpustore.copy(sources[kind], target)


def test_a_target_without_a_place_is_refused():
    with pytest.raises(gpustore.MetadataError, match='names no "kvstore"'):
        gpustore.copy(VALUES, {"driver": "zarr3"})
    with pytest.raises(gpustore.CopyError, match="format is json: only Zarr"):
        gpustore.copy(VALUES, {"driver": "json"})


@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize("before", [2, 3])
def test_new_names_of_dimensions_are_kept(before, after):
    context = gpustore.Context()
    store = gpustore.save(
        "memory://a/", VALUES, dims=("y", "x"), zarr_format=before, context=context
    )

    def names(source, **options):
        copied = gpustore.copy(
            source, "memory://b/", zarr_format=after, overwrite=True, context=context, **options
        )
        return copied.attrs["_ARRAY_DIMENSIONS"] if after == 2 else [*copied.domain.labels]

    assert names(store) == ["y", "x"]
    assert names(store.label["p", "q"]) == ["p", "q"]
    assert names(store.label["p", "q"].spec()) == ["p", "q"]
    assert names(store.label["p", "q"], dims=("r", "s")) == ["r", "s"]
    if after == 3:
        assert names(store.label["p", ""]) == ["p", ""]


@pytest.mark.parametrize("value", [None, np.array(["a", 1], object), {1, 2}], ids=repr)
def test_python_objects_are_no_source(tmp_path, value):
    with pytest.raises(gpustore.CopyError, match="elements are Python objects: convert"):
        gpustore.copy(value, tmp_path / "b")
    assert [*tmp_path.iterdir()] == []


def test_a_group_is_returned(tmp_path):
    group = gpustore.open_group(tmp_path / "a", create=True, attributes={"n": 1}).result()
    group.create_array("x/y", data=VALUES).result()
    copied = gpustore.copy(group, tmp_path / "b", codec="zstd")
    assert dict(copied.attrs) == {"n": 1}
    np.testing.assert_array_equal(copied["x/y"].read().result(), VALUES)


def test_fields_of_other_sources(tmp_path):
    records = np.zeros(5, [("a", "i4"), ("b", "f8")])
    records["b"] = range(5)
    np.save(tmp_path / "a.npy", records)
    copied = gpustore.copy(tmp_path / "a.npy", tmp_path / "b", field="b")
    assert copied.read().result().tolist() == [0, 1, 2, 3, 4]
    for field in (None, "c"):
        with pytest.raises(gpustore.CopyError, match=r"name a field with `field` \(a, b\)"):
            gpustore.copy(tmp_path / "a.npy", tmp_path / "c", field=field)
    with pytest.raises(gpustore.CopyError, match="elements are not records"):
        gpustore.copy(VALUES, tmp_path / "c", field="a")


# --------------------------------------------------------------------------- progress


def test_progress_grows_from_zero_to_all(tmp_path):
    gpustore.save(f"{tmp_path}/a", VALUES, chunks=(8, 32))
    calls = []
    gpustore.copy(
        tmp_path / "a",
        tmp_path / "b",
        progress=lambda *call: calls.append((*call, threading.current_thread())),
    )
    done = [call[0] for call in calls]
    assert (done[0], done[-1]) == (0, VALUES.nbytes)
    assert done == sorted(done)
    assert {call[1:] for call in calls} == {(VALUES.nbytes, threading.current_thread())}


def test_progress_never_goes_back(tmp_path):
    """Also when the first of several regions under way is stored."""
    gpustore.save(f"{tmp_path}/a", VALUES, chunks=(2, 32))
    done = []
    gpustore.copy(
        tmp_path / "a",
        tmp_path / "b",
        memory=4 * VALUES[:2].nbytes,
        progress=lambda nbytes, total: done.append(nbytes),
    )
    assert len({*done}) > 4
    assert done == sorted(done)


def test_progress_moves_within_a_region(tmp_path):
    """All chunks are one region, which is half done when it is read."""
    gpustore.save(f"{tmp_path}/a", VALUES, chunks=(8, 32))
    done = []
    gpustore.copy(
        tmp_path / "a", tmp_path / "b", progress=lambda nbytes, total: done.append(nbytes)
    )
    assert any(0 < nbytes < VALUES.nbytes for nbytes in done)


def test_progress_of_a_group_is_that_of_all_arrays(tmp_path):
    group = gpustore.open_group(tmp_path / "a", create=True).result()
    for name in "xy":
        group.create_array(name, data=VALUES).result()
    calls = []
    gpustore.copy(group, tmp_path / "b", progress=lambda *call: calls.append(call))
    assert calls == sorted(calls)
    assert (calls[0], calls[-1]) == ((0, 2 * VALUES.nbytes), (2 * VALUES.nbytes,) * 2)


def test_an_error_in_progress_ends_the_copy_which_goes_on(tmp_path):
    gpustore.save(f"{tmp_path}/a", VALUES, chunks=(8, 32))

    def fail(done, total):
        if done:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gpustore.copy(tmp_path / "a", tmp_path / "b", progress=fail)
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b")
    np.testing.assert_array_equal(copied.read().result(), VALUES)


# --------------------------------------------------------------------------- places and errors


def test_the_place_is_free_or_overwritten(tmp_path):
    gpustore.copy(VALUES, tmp_path / "a")
    with pytest.raises(gpustore.AlreadyExistsError, match=r"add `overwrite=True`"):
        gpustore.copy(VALUES, tmp_path / "a")
    copied = gpustore.copy(VALUES[:4], tmp_path / "a", overwrite=True)
    assert copied.shape == (4, 32)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("mine")
    with pytest.raises(gpustore.CopyError, match="holds other things than an array"):
        gpustore.copy(VALUES, tmp_path / "b", overwrite=True)


def test_a_file_inside_its_own_target_is_safe(tmp_path):
    gpustore.copy(VALUES, tmp_path / "a")
    np.save(tmp_path / "a" / "x.npy", VALUES)
    with pytest.raises(gpustore.CopyError, match="overlaps the source"):
        gpustore.copy(tmp_path / "a" / "x.npy", tmp_path / "a", overwrite=True)
    assert (tmp_path / "a" / "x.npy").exists()


def test_every_file_of_a_stack_is_safe(tmp_path):
    gpustore.copy(VALUES, tmp_path / "b")
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "z0.npy", VALUES)
    np.save(tmp_path / "b" / "z1.npy", VALUES)
    with pytest.raises(gpustore.CopyError, match="overlaps the source"):
        gpustore.copy(tmp_path / "[ab]" / "z*.npy", tmp_path / "b", overwrite=True)
    assert (tmp_path / "b" / "z1.npy").exists()


@pytest.mark.parametrize("place", ["file", "memory"])
def test_a_place_with_only_a_journal_is_overwritten(tmp_path, context, place):
    target = f"{tmp_path}/b/" if place == "file" else "memory://b/"
    store = gpustore.KvStore.open(target, context=context).result()
    store[".gpustore-copy.json"] = b"{}"
    with pytest.raises(gpustore.CopyError, match="the beginning of another copy"):
        gpustore.copy(VALUES, target, context=context)
    copied = gpustore.copy(VALUES, target, context=context, overwrite=True)
    np.testing.assert_array_equal(copied.read().result(), VALUES)
    assert ".gpustore-copy.json" not in store


def test_an_interrupt_ends_a_copy_of_nothing(tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    def progress(done, total):
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, stop)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"all of .* was copied"):
            gpustore.copy(np.zeros((0, 3)), tmp_path / "b", progress=progress)
    finally:
        signal.signal(signal.SIGINT, before)


class Failing:
    """An array that fails after some reads."""

    shape, dtype, chunks = VALUES.shape, VALUES.dtype, (8, 32)
    left = 3

    def __getitem__(self, region):
        self.left -= 1
        if self.left < 0:
            raise OSError("the disk is gone")
        return VALUES[region]


@pytest.mark.filterwarnings("ignore::gpustore.CopyWarning")
def test_an_array_of_this_process_is_not_gone_on_with(tmp_path):
    with pytest.raises(gpustore.CopyError, match="the disk is gone") as info:
        gpustore.copy(Failing(), tmp_path / "a", chunks=(8, 32), memory=1)
    assert "were copied: with `overwrite=True` it begins anew" in str(info.value)
    assert not (tmp_path / "a" / ".gpustore-copy.json").exists()
    with pytest.raises(gpustore.AlreadyExistsError):
        gpustore.copy(VALUES, tmp_path / "a")


def test_a_file_is_gone_on_with(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", VALUES)
    from gpustore.transfer import regions

    part, calls = regions._part, []

    def failing(store, place):
        calls.append(place)
        if len(calls) == 4:
            raise gpustore.StoreIOError("the disk is full")
        return part(store, place)

    monkeypatch.setattr(regions, "_part", failing)
    options = {"chunks": (8, 32), "memory": 1}
    with (
        pytest.warns(gpustore.CopyWarning, match="more than `memory` allows"),
        pytest.raises(gpustore.StoreIOError, match="the same call goes on from there"),
    ):
        gpustore.copy(tmp_path / "a.npy", tmp_path / "b", **options)
    done = []
    with pytest.warns(gpustore.CopyWarning):
        copied = gpustore.copy(
            tmp_path / "a.npy",
            tmp_path / "b",
            progress=lambda nbytes, total: done.append(nbytes),
            **options,
        )
    assert done[0] == 3 * 8 * 32 * 2
    assert len(calls) == 4 + 5
    np.testing.assert_array_equal(copied.read().result(), VALUES)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chunks": (4, 4, 4)}, r"`chunks` has 3 extents, but the array has 2 dimensions"),
        ({"dims": ("y",)}, r"`dims` has 1 extents"),
        ({"shards": 8, "zarr_format": 2}, "Zarr v2 has no shards: leave out `shards`"),
        ({"units": ["m", "m"], "zarr_format": 2}, "Zarr v2 has no units of dimensions"),
        ({"codec": "lzma"}, "expected none, zstd"),
        ({"zarr_format": 4}, "zarr_format"),
    ],
)
@pytest.mark.parametrize("source", ["zarr", "numpy"])
def test_wrong_arguments_change_nothing(tmp_path, source, options, text):
    given = VALUES
    if source == "zarr":
        given = gpustore.save(f"{tmp_path}/a", VALUES)
    with pytest.raises(gpustore.GpustoreError, match=text):
        gpustore.copy(given, tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


def test_wrong_arguments_close_the_source(tmp_path):
    closed = []
    source = Source(VALUES.shape, VALUES.dtype, VALUES.__getitem__, close=lambda: closed.append(1))
    for options in ({"chunks": (4, 4, 4)}, {"field": "a"}):
        with pytest.raises(gpustore.CopyError):
            gpustore.copy(source, tmp_path / "b", **options)
    assert closed == [1, 1]


def test_progress_moves_while_chunks_of_a_region_are_stored(monkeypatch):
    """A write of chunks waits for the next call."""
    context = gpustore.Context()
    values = np.ones((8, 1024, 1024), "u1")
    driver = type(gpustore.KvStore.open("memory://").result().driver)
    write_many, seen = driver.write_many, threading.Semaphore(0)

    def waiting(self, request):
        if any(value is not None and len(value) > 1000 for value in request.values):
            assert seen.acquire(timeout=60)
        return write_many(self, request)

    monkeypatch.setattr(driver, "write_many", waiting)
    done = []

    def progress(nbytes, total):
        done.append(nbytes)
        seen.release()

    gpustore.copy(
        values,
        "memory://a/",
        chunks=(1, 1024, 1024),
        codec="none",
        context=context,
        progress=progress,
    )
    shares = {nbytes / values.nbytes for nbytes in done}
    assert len([share for share in shares if 0.5 < share < 1]) > 1
