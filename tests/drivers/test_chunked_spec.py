"""Modes and options of opening an array of chunks, compared with TensorStore."""

import contextlib
import os
import pickle
import threading
import time
from asyncio import CancelledError

import numpy as np
import pytest

import gpustore
from gpustore import registry
from gpustore.backends.native.short_files import store_short_file
from gpustore.codec_chain.chain import CodecChain
from gpustore.drivers import _metadata_file, _remembered
from gpustore.errors import AlreadyExistsError
from tests.drivers import parity
from tests.drivers.parity import (
    LIBRARIES,
    agree,
    both,
    check,
    description,
    files,
    outcome,
)
from tests.matrix import each

KEYS = {"zarr3": "zarr.json", "zarr2": ".zarray"}
MODES = ("assume_metadata", "assume_cached_metadata")


def opened(library, root, driver, **keywords):
    return library.open(f"file://{root}/a/|{driver}:", **keywords).result()


def created(library, root, driver, **keywords):
    store = opened(library, root, driver, create=True, dtype="uint8", shape=[6], **keywords)
    store[...] = np.arange(1, 7, dtype=np.uint8)
    return store


# ---- assumed metadata

ASSUMED = {
    "whole": {"dtype": "uint8", "shape": [6]},
    "no dtype": {"shape": [6]},
    "no domain": {"dtype": "uint8"},
    "nothing": {},
    "rank only": {"dtype": "uint8", "rank": 2},
    "create": {"dtype": "uint8", "shape": [6], "create": True},
    "open, create": {"dtype": "uint8", "shape": [6], "open": True, "create": True},
    "open, create, read": {
        **{"dtype": "uint8", "shape": [6], "open": True, "create": True, "read": True},
    },
    "read": {"dtype": "uint8", "shape": [6], "read": True},
    "not open": {"dtype": "uint8", "shape": [6], "open": False},
    "delete": {"dtype": "uint8", "shape": [6], "create": True, "delete_existing": True},
    "fill value": {"dtype": "int16", "shape": [2, 3], "fill_value": 7},
    "recheck": {"dtype": "uint8", "shape": [6], "recheck_cached_metadata": False},
}


@each("driver", KEYS)
@each("mode", [*MODES, "both"])
@each("name", ASSUMED)
def test_opening_with_assumed_metadata(name, mode, driver, tmp_path):
    modes = dict.fromkeys(MODES if mode == "both" else [mode], True)

    def run(library, root):
        store = opened(library, root, driver, **modes, **ASSUMED[name])
        assert not files(root)
        return [
            description(store),
            repr(store.spec(minimal_spec=True).to_json()),
            repr(store.spec().open_mode),
            # Of the other mode TensorStore trusts its cache, where we read.
            [
                store.resolve(fix_resizable_bounds=fix).result().domain.to_json()
                for fix in (False, True)
                if "assume_metadata" in modes
            ],
        ]

    check(run, tmp_path)


@pytest.mark.parametrize("driver", KEYS)
@pytest.mark.parametrize("mode", MODES)
def test_chunks_of_an_array_without_metadata(mode, driver, tmp_path):
    """Reads and writes work; only the chunks are stored, the same bytes in both libraries."""
    found = []
    for library in LIBRARIES:
        root = tmp_path / library.__name__
        keywords = {mode: True, "dtype": "uint16", "shape": [5], "fill_value": 9}
        store = opened(library, root, driver, **keywords)
        empty = store.read().result().tolist()
        store[1:3] = [1, 2]
        again = opened(library, root, driver, **keywords)
        found.append((empty, again.read().result().tolist(), files(root)))
    assert found[0] == found[1]
    assert len(found[0][2]) == 1


@pytest.mark.parametrize("driver", KEYS)
@pytest.mark.parametrize("mode", MODES)
def test_stored_metadata_are_not_looked_at(mode, driver, tmp_path):
    def run(library, root):
        created(library, root, driver)
        chunks = library.ChunkLayout(chunk_shape=[6])
        store = opened(
            library,
            *(root, driver),
            **{mode: True, "dtype": "uint8", "shape": [4], "chunk_layout": chunks},
        )
        return store.domain, store.read().result()

    check(run, tmp_path)


RESIZES = {
    "larger": {"exclusive_max": [9]},
    "same": {"exclusive_max": [6]},
    "nothing": {},
    "lower bound": {"inclusive_min": [1]},
}


@pytest.mark.matrix("costly")
@each("driver", KEYS)
@each("access", [{}, {"read": True}])
@each("stored", [False, True])
@each("mode", MODES)
@each("name", RESIZES)
def test_resize_with_assumed_metadata(name, mode, stored, access, driver, tmp_path):
    stored = stored or name == "nothing"  # Without any bounds we do not look at metadata.

    def run(library, root):
        if stored:
            created(library, root, driver)
        store = opened(library, root, driver, dtype="uint8", shape=[6], **{mode: True}, **access)
        return store.resize(**RESIZES[name]).result().domain

    check(run, tmp_path)


SPECS = {
    "default": {},
    "minimal": {"minimal_spec": True},
    "open": {"open": True},
    "create": {"create": True},
    "recheck": {"recheck_cached_metadata": True},
    "assume_metadata": {"assume_metadata": True},
}


@each("driver", KEYS)
@each("mode", MODES)
@each("name", SPECS)
def test_spec_of_assumed_metadata(name, mode, driver, tmp_path):
    def run(library, root):
        store = opened(library, root, driver, dtype="uint8", shape=[6], **{mode: True})
        spec = store.spec(**SPECS[name])
        return [spec.to_json(), repr(spec.open_mode)]

    check(run, tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_no_format_is_detected_with_assumed_metadata(mode, tmp_path):
    def run(library, root):
        created(library, root, "zarr3")
        return library.open(f"file://{root}/a/", **{mode: True}).result()

    check(run, tmp_path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("driver", ["json", "array"])
def test_drivers_without_metadata_have_no_such_mode(driver, mode, tmp_path):
    spec = {"driver": driver}
    if driver == "json":
        spec["kvstore"] = "memory://x"
    else:
        spec |= {"array": [1, 2], "dtype": "uint8"}

    def run(library, root):
        return library.Spec({**spec, mode: True}).to_json()

    def keyword(library, root):
        found = library.Spec(spec)
        found.update(**{mode: True})
        return found.to_json()

    check(run, tmp_path)
    check(keyword, tmp_path)


# ---- when metadata are checked again

TIMES = {
    "default": {},
    "true": {"recheck_cached_metadata": True},
    "false": {"recheck_cached_metadata": False},
    "open": {"recheck_cached_metadata": "open"},
    "zero": {"recheck_cached_metadata": 0},
    "one": {"recheck_cached_metadata": 1},
    "past": {"recheck_cached_metadata": 1.5},
    "future": {"recheck_cached_metadata": 1e12},
    "both": {"recheck_cached": True},
}

VIEWS = {
    "whole": lambda store: store,
    "open slice": lambda store: store[1:],
    "slice inside": lambda store: store[1:3],
    "slice outside": lambda store: store[3:6],
    "reversed": lambda store: store[::-1],
}

OPERATIONS = {
    "read": lambda view: view.read().result(),
    "write": lambda view: view.write(5).result(),
    "write of the old shape": lambda view: view.write(np.zeros(view.shape, np.uint8)).result(),
}


def shrunk(library, root, driver, view, operation, times):
    store = created(library, root, driver, **times)
    opened(library, root, driver).resize(exclusive_max=[4]).result()
    view = VIEWS[view](store)
    try:
        result = OPERATIONS[operation](view)
    finally:
        assert store.shape == (6,)
    return result, opened(library, root, driver).read().result()


@pytest.mark.matrix
@each("driver", KEYS)
@each("times", TIMES)
@each("view", VIEWS)
@each("operation", OPERATIONS)
def test_operation_after_a_resize_by_another(operation, view, times, driver, tmp_path):
    """Bounds are those stored now if they are to be checked again, else those of the handle."""
    check(
        lambda library, root: shrunk(library, root, driver, view, operation, TIMES[times]),
        tmp_path,
    )


def removed(path):
    path.unlink()


def not_json(path):
    path.write_text("{")


def another(path):
    path.write_text(path.read_text().replace("uint8", "int8").replace("|u1", "|i1"))


def as_it_was(path):
    path.write_bytes(path.read_bytes())


DAMAGES = {damage.__name__: damage for damage in (removed, not_json, another, as_it_was)}


@pytest.mark.matrix("costly")
@each("driver", KEYS)
@each("damage", DAMAGES)
@each(
    ("operation", "times"),
    [
        *((operation, "true") for operation in ("read", "write", "resolve", "read in a batch")),
        # Without a recheck TensorStore's `resolve` trusts its cache, where we read.
        *((operation, "default") for operation in ("read", "write", "read in a batch")),
    ],
)
def test_metadata_that_went_wrong(operation, times, damage, driver, tmp_path):
    def run(library, root):
        store = created(library, root, driver, **TIMES[times])
        DAMAGES[damage](root / "a" / KEYS[driver])
        if operation == "read":
            return store.read().result()
        if operation == "write":
            return store.write(3).result()
        if operation == "resolve":
            return store.resolve().result().domain
        with library.Batch() as batch:
            futures = [store[i:].read(batch=batch) for i in range(3)]
        return [future.result() for future in futures]

    ours, theirs = both(run, tmp_path)
    if damage == "another" and times == "true":  # The documents are printed differently.
        ours, theirs = ([kinds, text[:44]] for kinds, text in (ours, theirs))
        assert "Updated zarr metadata" in ours[1]
    if damage == "not_json" and times == "true":
        ours, theirs = ([kinds, text.partition(":")[0]] for kinds, text in (ours, theirs))
    assert agree(ours, theirs), f"ours: {ours}\ntheirs: {theirs}"


@pytest.mark.parametrize("times", ["true", "future"])
def test_read_many_and_batches_follow_the_bounds(times, tmp_path):
    store = created(gpustore, tmp_path, "zarr3", **TIMES[times])
    opened(gpustore, tmp_path, "zarr3").resize(exclusive_max=[8]).result()
    assert store.read_many([[0], [6]], [2]).result().tolist() == [[1, 2], [0, 0]]
    with gpustore.Batch() as batch:
        first, second = store.read(batch=batch), store[2:].read(batch=batch)
    assert first.result().tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
    assert second.result().tolist() == [3, 4, 5, 6, 0, 0]
    opened(gpustore, tmp_path, "zarr3").resize(exclusive_max=[4]).result()
    with pytest.raises(gpustore.OutOfBoundsError):
        store.read_many([[0], [4]], [2]).result()


def test_a_batch_checks_again_when_it_is_submitted(tmp_path):
    store = created(gpustore, tmp_path, "zarr3", recheck_cached_metadata=True)
    with gpustore.Batch() as batch:
        future = store.read(batch=batch)
        opened(gpustore, tmp_path, "zarr3").resize(exclusive_max=[2]).result()
        assert not future.done()
    assert future.result().tolist() == [1, 2]


def test_a_time_that_has_passed_when_the_array_is_opened(tmp_path):
    created(gpustore, tmp_path, "zarr3")
    before = time.time() - 1
    store = opened(gpustore, tmp_path, "zarr3", recheck_cached_metadata=before)
    later = opened(gpustore, tmp_path, "zarr3", recheck_cached_metadata=time.time() + 1000)
    opened(gpustore, tmp_path, "zarr3").resize(exclusive_max=[2]).result()
    assert store.read().result().shape == (6,)
    assert later.read().result().shape == (2,)


def test_cancelled_write_lets_its_source_go(tmp_path):
    """Whatever it has come to, `copy` gets ready and the stored values are old or new."""
    store = created(gpustore, tmp_path, "zarr3", recheck_cached_metadata=True)
    for value in range(20):
        futures = store.write(np.full(6, value, np.uint8))
        futures.cancel()
        try:
            futures.copy.result(timeout=60)
        except CancelledError:
            pass
    assert set(store.read().result().tolist()) <= set(range(20))


# ---- how times are written

VALUES = [False, True, 0, 1, 1.5, -3, "open", 1e300, float("inf"), float("-inf"), "x", None, []]


@each("name", ["recheck_cached_data", "recheck_cached_metadata"])
@each("value", VALUES)
@each("driver", KEYS)
def test_time_in_a_spec(driver, value, name, tmp_path):
    def run(library, root):
        spec = library.Spec({"driver": driver, "kvstore": "memory://", name: value})
        return [spec.to_json(), spec.to_json(include_defaults=True)[name]]

    check(run, tmp_path)


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_time_beyond_all_numbers_is_always_or_never(value):
    spec = gpustore.Spec({"driver": "zarr3", "recheck_cached_metadata": value})
    assert spec.to_json()["recheck_cached_metadata"] is (value > 0)


def test_a_keyword_replaces_a_time(tmp_path):
    def run(library, root):
        spec = library.Spec({"driver": "zarr3", "recheck_cached_data": False})
        found = []
        for value in (1, True, 0, "open", False):
            spec.update(recheck_cached_data=value)
            found.append(outcome(spec.to_json))
        return found

    check(run, tmp_path)


# ---- caches

POOLS = {"none": 0, "large": 10**7}
RECHECKS = [True, False, "open", 1.0, 1e12]


@pytest.mark.matrix
@pytest.mark.parametrize("driver", KEYS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("recheck", RECHECKS)
def test_data_changed_by_another(recheck, pool, driver, tmp_path):
    """Readers see writes through another context as in TensorStore."""

    def run(library, root):
        keywords = {
            "context": library.Context({"cache_pool": {"total_bytes_limit": POOLS[pool]}}),
            "recheck_cached_data": recheck,
        }
        store = created(library, root, driver, **keywords)
        seen = [store.read().result()]
        opened(library, root, driver).write(2).result()
        seen.append(store.read().result())
        again = opened(library, root, driver, **keywords)
        seen += [again.read().result(), store.read().result()]
        opened(library, root, driver)[2:4].write(3).result()
        store[:2].write(7).result()
        seen += [store.read().result(), again.read().result()]
        return [found.tolist() for found in seen]

    check(run, tmp_path)


@pytest.mark.matrix("costly")
@each("driver", KEYS)
@each("own", [False, True])
@each("pool", POOLS)
@each("recheck", RECHECKS)
def test_metadata_changed_by_another(recheck, pool, own, driver, tmp_path):
    """Opening again finds changes as in TensorStore, with a pool for metadata or for data."""

    def run(library, root):
        limit = {"total_bytes_limit": POOLS[pool]}
        json = {"cache_pool#mine": limit} if own else {"cache_pool": limit}
        context = library.Context(json)
        spec = {"driver": driver, "kvstore": f"file://{root}/a/"}
        if own:
            spec["metadata_cache_pool"] = "cache_pool#mine"

        def open(**keywords):
            options = {"context": context, "recheck_cached_metadata": recheck}
            return library.open(spec, **options, **keywords).result()

        open(create=True, dtype="uint8", shape=[6])
        open()
        opened(library, root, driver).resize(exclusive_max=[9]).result()
        seen = [open().shape]
        open().resize(exclusive_max=[4]).result()
        seen.append(open().shape)
        opened(library, root, driver, create=True, delete_existing=True, dtype="uint8", shape=[2])
        return [*seen, open().shape]

    # TensorStore gives up an entry of its cache a moment after the last array that used it, on a
    # thread of its own: an opening that comes before that shows the older metadata.
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        ours, theirs = both(run, folder)
        if agree(ours, theirs):
            break
    assert agree(ours, theirs), f"ours: {ours}\ntheirs: {theirs}"


POOL_JSON = [
    *({}, {"total_bytes_limit": 5}, {"total_bytes_limit": 5.0}, {"total_bytes_limit": -1}),
    *("cache_pool", "cache_pool#a", "metadata_cache_pool", {"x": 1}, 3),
]


@each("name", ["cache_pool", "metadata_cache_pool"])
@each("value", POOL_JSON)
def test_pool_in_a_spec(value, name, tmp_path):
    def run(library, root):
        spec = library.Spec({"driver": "zarr3", "kvstore": "memory://", name: value})
        json = spec.to_json()
        context = library.Context({"cache_pool#a": {"total_bytes_limit": 77}})
        store = library.open(spec, context=context, create=True, dtype="uint8", shape=[3]).result()
        return [json, store.spec().to_json()]

    ours, theirs = both(run, tmp_path)
    if isinstance(theirs, str):
        assert ours == theirs
    else:
        assert ours[0] == theirs[0]


@pytest.mark.parametrize("recheck", [True, False])
def test_metadata_cache_follows_own_changes(recheck, tmp_path):
    """Created, resized and made anew through one context: what is opened is what is stored."""
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**6}})
    keywords = {"context": context, "recheck_cached_metadata": recheck}
    store = opened(gpustore, tmp_path, "zarr3", create=True, dtype="uint8", shape=[6], **keywords)
    assert opened(gpustore, tmp_path, "zarr3", **keywords).shape == (6,)
    store.resize(exclusive_max=[4]).result()
    assert opened(gpustore, tmp_path, "zarr3", **keywords).shape == (4,)
    new = {"create": True, "delete_existing": True, "dtype": "int8", "shape": [2]}
    opened(gpustore, tmp_path, "zarr3", **new, **keywords)
    assert opened(gpustore, tmp_path, "zarr3", **keywords).dtype.name == "int8"


def test_an_array_of_another_kind_does_not_use_the_chunks(tmp_path):
    """The same key, decoded in another way."""
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**6}})
    store = created(gpustore, tmp_path, "zarr3", context=context, recheck_cached_data=False)
    assert store.read().result().tolist() == [1, 2, 3, 4, 5, 6]
    other = opened(
        gpustore,
        *(tmp_path, "zarr3"),
        assume_metadata=True,
        dtype="int16",
        shape=[3],
        context=context,
        recheck_cached_data=False,
    )
    expected = np.array([1, 2, 3, 4, 5, 6], np.uint8).view("<i2")
    assert other.read().result().tolist() == expected.tolist()


@pytest.mark.parametrize("keywords", [{}, {"retain_context": True}, {"unbind_context": True}])
def test_spec_with_a_pool_for_metadata(keywords, tmp_path):
    def run(library, root):
        spec = {
            "driver": "zarr3",
            "kvstore": f"file://{root}/a/",
            "metadata_cache_pool": {"total_bytes_limit": 5},
        }
        store = library.open(spec, create=True, dtype="uint8", shape=[3]).result()
        json = store.spec(**keywords).to_json()
        return [json.get("metadata_cache_pool"), json.get("context", {}).get("cache_pool")]

    check(run, tmp_path)


def test_a_pickled_store_keeps_its_pools(tmp_path):
    limits = {"cache_pool": 7, "metadata_cache_pool": 5}
    pools = {name: {"total_bytes_limit": limit} for name, limit in limits.items()}
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/", **pools}
    store = gpustore.open(spec, create=True, dtype="uint8", shape=[3]).result()
    resources = pickle.loads(pickle.dumps(store))._driver.resources
    assert {name: resources[name].value.total_bytes_limit for name in pools} == limits


# The native core does not have this codec.
IN_PYTHON = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "numcodecs.crc32"}]


@pytest.mark.parametrize(
    ("data_copy", "file_io"), [(1, 4), (4, 1), (2, 4), (4, 2), (3, 3)], ids=str
)
def test_the_smaller_limit_bounds_the_threads(data_copy, file_io, tmp_path, monkeypatch):
    limits = {"data_copy_concurrency": data_copy, "file_io_concurrency": file_io}
    store = gpustore.open(
        {"driver": "zarr3", "kvstore": f"file://{tmp_path}/"},
        create=True,
        dtype="uint8",
        shape=[64, 1 << 18],
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[1, 1 << 18]),
        codec=gpustore.CodecSpec({"driver": "zarr3", "codecs": IN_PYTHON}),
        context=gpustore.Context({name: {"limit": limit} for name, limit in limits.items()}),
    ).result()
    at_once, most = [0], [0]
    changed = threading.Condition()

    def counted(call):
        def wrapped(*arguments, **keywords):
            with changed:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
                changed.notify_all()
                changed.wait_for(lambda: most[0] >= min(data_copy, file_io), timeout=30)
            time.sleep(0.001)  # Time for a thread too many, which nothing would announce.
            with changed:
                at_once[0] -= 1
            return call(*arguments, **keywords)

        return wrapped

    monkeypatch.setattr(CodecChain, "decode", counted(CodecChain.decode))
    monkeypatch.setattr(os, "write", counted(os.write))
    store.write(np.ones((64, 1 << 18), "u1")).result()
    assert most == [min(data_copy, file_io)]
    most[0] = 0
    assert (store.read().result() == 1).all()
    assert most == [min(data_copy, file_io)]


# ---- what is written, byte for byte what TensorStore writes


LAYOUTS = {
    "chunk_shape": {"chunk_shape": [2, 2]},
    "open dimension": {"chunk_shape": [2, 0]},
    "full extent": {"chunk_shape": [-1, 2]},
    "elements": {"chunk_elements": 4},
    "aspect ratio": {"chunk_aspect_ratio": [1, 2]},
    "larger than the array": {"chunk_shape": [7, 7]},
    "of another rank": {"chunk_shape": [2]},
    "read and write": {"read_chunk_shape": [2, 2], "write_chunk_shape": [2, 2]},
    "read and write elements": {"write_chunk_elements": 4, "read_chunk_elements": 4},
    "grid_origin": {"grid_origin": [0, 0]},
    "soft": {"chunk_shape_soft_constraint": [2, 2]},
    "inner_order": {"inner_order": [0, 1]},
}


@pytest.mark.matrix("costly")
@each("name", LAYOUTS)
@each("driver", parity.RAW)
def test_chunk_layout(driver, name, tmp_path):
    keywords = {
        "dtype": "uint16",
        "shape": [5, 3],
        "chunk_layout": lambda library: library.ChunkLayout(**LAYOUTS[name]),
    }
    check(parity.created(driver, parity.RAW[driver], keywords), tmp_path)


@pytest.mark.parametrize("driver", parity.RAW)
def test_codec_chunk(driver, tmp_path):
    keywords = {
        "dtype": "uint16",
        "shape": [5, 3],
        "chunk_layout": lambda library: library.ChunkLayout(
            codec_chunk=library.ChunkLayout.Grid(shape=[1, 1])
        ),
    }
    check(parity.created(driver, parity.RAW[driver], keywords), tmp_path)


@each("shape", [[], [0], [0, 3], [1], [5, 0, 3], [1] * 5])
@each("driver", parity.RAW)
def test_shape(driver, shape, tmp_path):
    ones = lambda store: np.ones(store.shape, store.dtype.numpy_dtype)  # noqa: E731
    keywords = {"dtype": "uint16", "shape": shape}
    check(parity.created(driver, parity.RAW[driver], keywords, elements=ones), tmp_path)


# ---- steps of creating an array


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("driver", KEYS)
def test_creating_anew_syncs_the_metadata_and_their_directory_once(
    tmp_path, monkeypatch, driver, native
):
    created(gpustore, tmp_path, driver)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))

    def store(directory, key, *value, syncs):
        stored = native and store_short_file(directory, key, *value, syncs=syncs)
        if stored and syncs:
            synced.append(f"{key}.")
        return stored

    monkeypatch.setattr(_metadata_file, "store_short_file", store)
    opened(gpustore, tmp_path, driver, create=True, delete_existing=True, dtype="uint8", shape=[6])
    metadata, directory = synced
    assert metadata.startswith(f"{tmp_path}/a/{KEYS[driver]}.")
    assert directory == f"{tmp_path}/a"
    assert [*files(tmp_path)] == [f"a/{KEYS[driver]}"]


@pytest.mark.parametrize("rival", ["creates", "deletes"])
@pytest.mark.parametrize("driver", KEYS)
def test_creating_anew_replaces_only_the_metadata_that_it_found(
    tmp_path, monkeypatch, driver, rival
):
    """Another process is faster: it comes after the look at the directory."""
    opened(gpustore, tmp_path, driver, create=True, dtype="uint8", shape=[4])
    scandir = os.scandir

    @contextlib.contextmanager
    def before_the_rival(path):
        monkeypatch.setattr(os, "scandir", scandir)
        with scandir(path) as entries:
            yield entries
        if rival == "creates":
            created(gpustore, tmp_path, driver, context=gpustore.Context(), delete_existing=True)
        else:
            os.unlink(tmp_path / "a" / KEYS[driver])

    def create_anew():
        keywords = {"create": True, "delete_existing": True, "dtype": "uint8", "shape": [5]}
        return opened(gpustore, tmp_path, driver, **keywords)

    monkeypatch.setattr(os, "scandir", before_the_rival)
    if rival == "deletes":
        assert create_anew().shape == (5,)
        return
    with pytest.raises(AlreadyExistsError, match="it exists"):
        create_anew()
    assert opened(gpustore, tmp_path, driver).read().result().tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("driver", KEYS)
def test_constraints_of_schema_and_metadata_are_merged_once(tmp_path, monkeypatch, driver):
    _remembered._merged.cache_clear()
    format_ = registry.find("drivers", driver).format
    calls = []
    merge = type(format_).constrained

    def constrained(self, *arguments):
        calls.append(arguments)
        return merge(self, *arguments)

    monkeypatch.setattr(type(format_), "constrained", constrained)
    gpustore.open(
        {"driver": driver, "kvstore": f"file://{tmp_path}/", "metadata": {"shape": [6]}},
        create=True,
    ).exception()
    assert len(calls) == 1
