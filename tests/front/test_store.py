"""Opened arrays, compared with TensorStore: views, elements, writes, specs and pickles."""

import copy
import json
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest
import tensorstore

import gpustore
from tests.drivers.parity import (
    LIBRARIES,
    agree,
    both,
    check,
    description,
    outcome,
    without_context,
)
from tests.matrix import each

DRIVERS = ("zarr3", "zarr2")


def filled(library, driver="zarr3", shape=(6, 5), dtype="uint16", **keywords):
    """An array in memory, chunks of four, elements 0, 1, 2, ..."""
    store = library.open(
        f"memory://a|{driver}:",
        create=True,
        dtype=dtype,
        shape=list(shape),
        chunk_layout=library.ChunkLayout(chunk_shape=[4] * len(shape)),
        **keywords,
    ).result()
    store[...] = np.arange(store.size).reshape(shape).astype(store.dtype.numpy_dtype)
    return store


def diagonal(library):
    return library.IndexTransform(
        input_shape=[3], output=[library.OutputIndexMap(input_dimension=0)] * 2
    )


def constant_row(library):
    maps = [library.OutputIndexMap(offset=1), library.OutputIndexMap(input_dimension=0)]
    return library.IndexTransform(input_shape=[3], output=maps)


VIEWS = {
    "whole": lambda s, lib: s,
    "slice": lambda s, lib: s[1:3],
    "slice to the end": lambda s, lib: s[3:],
    "negative slice": lambda s, lib: s[-2:],
    "empty": lambda s, lib: s[2:2],
    "backwards": lambda s, lib: s[4:1],
    "integer": lambda s, lib: s[2],
    "integer of NumPy": lambda s, lib: s[np.int64(1)],
    "negative integer": lambda s, lib: s[-1],
    "integer outside": lambda s, lib: s[10],
    "slice outside": lambda s, lib: s[4:9],
    "strided": lambda s, lib: s[::2, ::-1],
    "strided outside": lambda s, lib: s[0:12:3],
    "reversed outside": lambda s, lib: s[9:3:-1],
    "translated outside": lambda s, lib: s[4:9].translate_to[100, 0],
    "new dimension outside": lambda s, lib: s[None, 4:9],
    "diagonal outside": lambda s, lib: s[
        lib.IndexTransform(input_shape=[7], output=[lib.OutputIndexMap(input_dimension=0)] * 2)
    ],
    "step 0": lambda s, lib: s[::0],
    "new dimensions": lambda s, lib: s[None, ..., None],
    "None": lambda s, lib: s[None],
    "transposed": lambda s, lib: s.T,
    "transpose": lambda s, lib: s.transpose([1, 0]),
    "transpose twice": lambda s, lib: s.transpose([0, 0]),
    "transpose negative": lambda s, lib: s.transpose((-1, 0)),
    "transpose labels": lambda s, lib: s.label["x", "y"].transpose(["y", "x"]),
    "label": lambda s, lib: s.label["x", "y"],
    "label twice": lambda s, lib: s.label["x", "x"],
    "one label": lambda s, lib: s.label["x"],
    "label, strided": lambda s, lib: s.label["x", "y"][2:5:2],
    "translate_to": lambda s, lib: s.translate_to[10, 20],
    "translate_to one": lambda s, lib: s.translate_to[10],
    "translate_to negative": lambda s, lib: s.translate_to[-3, -4],
    "translate_by": lambda s, lib: s.translate_by[1, 2],
    "translate_backward_by": lambda s, lib: s.translate_backward_by[1, 2],
    "explicit": lambda s, lib: s.mark_bounds_implicit[False],
    "ellipsis": lambda s, lib: s[...],
    "ellipsis, integer": lambda s, lib: s[..., 2],
    "two ellipses": lambda s, lib: s[..., ...],
    "too many": lambda s, lib: s[1, 2, 3],
    "float": lambda s, lib: s[1.5],
    "text": lambda s, lib: s["x"],
    "bool": lambda s, lib: s[True],
    "domain": lambda s, lib: s[lib.IndexDomain(shape=[2, 3])],
    "domain with labels": lambda s, lib: s.label["x", "y"][
        lib.IndexDomain(labels=["y"], shape=[3])
    ],
    "constant row": lambda s, lib: s[constant_row(lib)],
    "diagonal": lambda s, lib: s[diagonal(lib)],
    "oindex": lambda s, lib: s.oindex[1:3, 2],
    "vindex": lambda s, lib: s.vindex[1:3, 2],
    "view of a view": lambda s, lib: s[1:5].translate_to[0, 0][1:3],
}


@pytest.mark.matrix("costly")
@each("driver", DRIVERS)
@each("name", VIEWS)
def test_view(name, driver, tmp_path):
    """All properties of it, and its elements."""
    view = VIEWS[name]
    check(lambda library, root: description(view(filled(library, driver), library)), tmp_path)

    def read(library, root):
        return view(filled(library, driver), library).read().result()

    check(read, tmp_path)


@each("name", VIEWS)
def test_reading_in_another_order(name, tmp_path):
    def strides(library, root):
        array = VIEWS[name](filled(library), library).read(order="F").result()
        # Of an array without elements they mean nothing.
        return array.strides if array.size else None

    check(strides, tmp_path)


@pytest.mark.parametrize("order", ["Q", 5, None])
def test_unknown_order(order, tmp_path):
    check(lambda library, root: library.array([1, 2]).read(order=order).result(), tmp_path)


@pytest.mark.matrix("costly")
@each("driver", DRIVERS)
@each("name", VIEWS)
def test_writing_a_view(name, driver, tmp_path):
    def write(library, root):
        store = filled(library, driver)
        view = VIEWS[name](store, library)
        before = view.read().result()
        view[...] = 7
        one = store.read().result().tolist()
        view.write(np.arange(view.size, dtype=np.uint16).reshape(view.shape) + 100).result()
        return [one, store.read().result().tolist(), before.shape]

    check(write, tmp_path)


def test_implicit_bounds_stay_as_shown():
    """TensorStore resolves them at every read: this view would be the whole array again."""
    store = filled(gpustore)[2:].mark_bounds_implicit[True]
    assert repr(store.domain) == "{ [2*, 6*), [0*, 5*) }"
    assert store.read().result().shape == (4, 5)


# ---- what is written

SOURCES = {
    "int": 5,
    "negative": -1,
    "too large": 256,
    "huge": 2**70,
    "float": 3.5,
    "nan": float("nan"),
    "complex": 1j,
    "bool": True,
    "None": None,
    "text": "x",
    "bytes": b"x",
    "object": object(),
    "int64 of rank 0": np.array(5),
    "list": [1, 2, 3, 4],
    "list, too large": [1, 2, 3, 400],
    "list of float": [1.5, 2, 3, 4],
    "nested list": [[1], [2], [3]],
    "tuple": (1, 2, 3, 4),
    "range": range(4),
    "int64": np.arange(4),
    "uint8": np.arange(4, dtype=np.uint8),
    "big endian": np.arange(4, dtype=">u2"),
    "bool array": np.ones(4, bool),
    "another size": np.zeros(3, np.uint8),
    "broadcast": np.zeros((3, 1), np.uint8),
    "another shape": np.zeros((4, 4), np.uint8),
    "other sizes": np.zeros((2, 2), np.uint8),
    "empty": np.zeros((0, 4), np.uint8),
}

FLOATS = {"float", "nan", "list of float"}
"""Sources whose fraction TensorStore drops in stores of integers, where gpustore refuses them."""


@pytest.mark.matrix("costly")
@each("dtype", ["uint8", "bool", "int4", "int64", "float32", "bfloat16", "complex64"])
@each("name", SOURCES)
def test_write(name, dtype, tmp_path):
    """Casting under the rule "safe", Python numbers by value; broadcasting."""

    def write(library, root):
        store = filled(library, shape=(3, 4), dtype=dtype)
        store.write(SOURCES[name]).result()
        return store.read().result()

    if name in FLOATS and dtype in ("uint8", "bool", "int4", "int64"):
        with pytest.raises(TypeError, match=r"Cannot cast .*'safe'; convert it first"):
            write(gpustore, tmp_path)
        return
    check(write, tmp_path)


def test_an_array_that_does_not_cast_safely_names_the_conversion():
    store = gpustore.array(np.zeros(3, "uint16"))
    for values in (np.arange(3), np.ones(3)):
        with pytest.raises(TypeError, match=r"'safe'; convert it .* by astype\('uint16'\)$"):
            store.write(values).result()
        with pytest.raises(TypeError, match=r"'safe'; convert it .* by astype\('uint16'\)$"):
            gpustore.array(values, "uint16")


@pytest.mark.parametrize("source", [np.zeros((2, 3, 4), "u1"), np.zeros((5, 3, 4), "u1")])
def test_source_of_larger_rank_must_have_size_one_there(source):
    """TensorStore refuses all sources of larger rank: "object too deep"."""
    store = filled(gpustore, shape=(3, 4))
    with pytest.raises(ValueError, match="Error aligning dimensions"):
        store.write(source)
    store.write(source[:1]).result()
    assert store.read().result().tolist() == np.zeros((3, 4)).tolist()


def views_of_source(library, dtype=np.uint16):
    def array(*shape):
        return library.array(np.arange(np.prod(shape), dtype=dtype).reshape(shape))

    return {
        "same": array(3, 4),
        "broadcast": array(4),
        "translated": array(3, 4).translate_to[5, 6],
        "labels": array(3, 4).label["x", "y"],
        "labels swapped": array(4, 3).label["y", "x"],
        "labels swapped, square": array(4, 3)[:3].label["y", "x"],
        "one label": array(3, 1).label["x", ""],
        "another label": array(1, 4).label["z", "y"],
        "another label, larger": array(3, 4).label["z", "y"],
        "another shape": array(4, 3),
        "larger rank": array(1, 3, 4),
        "larger rank, larger": array(2, 3, 4),
        "transposed": array(4, 3).T,
        "strided": array(6, 4)[::2],
        "scalar": array(3, 4)[1, 2],
    }


TARGETS = {
    "plain": lambda s: s,
    "labels": lambda s: s.label["x", "y"],
    "one label": lambda s: s.label["", "y"],
    "labels, translated": lambda s: s.label["x", "y"].translate_to[10, 10],
    "square": lambda s: s[:, :3].label["x", "y"],
}


@pytest.mark.matrix("costly")
@each("target", TARGETS)
@each("name", views_of_source(gpustore))
def test_writing_a_store_to_a_store(name, target, tmp_path):
    """Dimensions with the same label belong together."""

    def write(library, root):
        store = filled(library, shape=(3, 4))
        TARGETS[target](store).write(views_of_source(library)[name]).result()
        return store.read().result()

    check(write, tmp_path)


@pytest.mark.parametrize(
    ("source", "target"),
    [("uint8", "uint16"), ("int64", "uint16"), ("uint8", "bool"), ("uint8", "float32")],
)
def test_writing_a_store_of_another_data_type(source, target, tmp_path):
    def write(library, root):
        store = filled(library, shape=(3, 4), dtype=target)
        store.write(views_of_source(library, source)["same"]).result()
        return store.read().result()

    check(write, tmp_path)


def test_access(tmp_path):
    def run(library, root):
        url = f"file://{root}/a|zarr3:"
        library.open(url, create=True, dtype="uint8", shape=[3]).result()
        r = library.open(url, read=True).result()
        w = library.open(url, write=True).result()
        calls = {
            "write": lambda: r.write(1).result(),
            "set": lambda: r.__setitem__(0, 1),
            "read": lambda: w.read().result(),
            "array": lambda: np.asarray(w),
            "copy": lambda: library.open(url).result().write(w).result(),
            "write to array": lambda: library.array([1, 2], write=False).write(1).result(),
        }
        modes = [r.mode, w.mode, r.readable, r.writable, w.readable, w.writable]
        return [modes, {name: list(outcome(call)) for name, call in calls.items()}]

    ours, theirs = (json.loads(text) for text in both(run, tmp_path))
    assert ours == theirs


def test_futures_of_a_write():
    store = filled(gpustore)
    source = np.full((6, 5), 3, np.uint16)
    futures = store.write(source)
    futures.copy.result()
    source[...] = 4
    futures.commit.result()
    assert futures.result() is None
    assert (store.read().result() == 3).all()


# ---- as a Python object

PYTHON = {
    "hash": lambda s: isinstance(hash(s), int),
    "equal": lambda s: (s == s[...], s != s[...]),
    "bool": bool,
    "array": np.array,
    "array of float32": lambda s: np.array(s, dtype="float32"),
    "array of int8": lambda s: np.array(s, dtype="int8"),
    "add": lambda s: np.add(s, 1),
    "new": lambda s: type(s)(),
    "no such keyword": lambda s: s.spec(foo=1),
}


@each("name", PYTHON)
def test_python(name, tmp_path):
    check(lambda library, root: PYTHON[name](library.array([1, 2])), tmp_path)


def test_a_numpy_array_without_a_copy_is_refused():
    with pytest.raises(ValueError, match="copy"):
        np.array(gpustore.array([1, 2]), copy=False)


# ---- specs

SPECS = {
    "default": {},
    "retain_context": {"retain_context": True},
    "unbind_context": {"unbind_context": True},
    "minimal_spec": {"minimal_spec": True},
    "not minimal_spec": {"minimal_spec": False},
    "open": {"open": True},
    "create": {"create": True},
    "open, create": {"open": True, "create": True},
    "delete_existing": {"delete_existing": True, "create": True},
    "assume_metadata": {"assume_metadata": True},
    "assume_cached_metadata": {"assume_cached_metadata": True},
    "recheck_cached_data": {"recheck_cached_data": False},
    "recheck_cached": {"recheck_cached": "open"},
    "minimal, create": {"minimal_spec": True, "create": True},
    "open_mode": {"open_mode": {"create": True}},
}


@each("driver", DRIVERS)
@each("base", ["memory://a", "file://<root>/a"])
@each("name", SPECS)
def test_spec(name, base, driver, tmp_path):
    def run(library, root):
        context = library.Context({"cache_pool": {"total_bytes_limit": 1000}})
        keywords = dict(SPECS[name])
        if "open_mode" in keywords:
            keywords["open_mode"] = library.OpenMode(**keywords["open_mode"])
        store = library.open(
            base.replace("<root>", str(root)) + f"|{driver}:",
            context=context,
            create=True,
            open=True,
            dtype="uint16",
            shape=[3],
        ).result()
        spec = store.spec(**keywords)
        part = store[1:].spec(**keywords)
        jsons = [without_context(found.to_json()) for found in (spec, part)]
        return [*jsons, repr(spec.open_mode), repr(spec.schema)]

    check(run, tmp_path)


@pytest.mark.parametrize("driver", DRIVERS)
def test_unbound_spec(driver, tmp_path):
    check(lambda library, root: filled(library, driver)[1:, ::2], tmp_path)
    store = gpustore.open(
        f"file://{tmp_path}/a|{driver}:", create=True, dtype="uint16", shape=[3]
    ).result()
    unbound = store.spec(unbind_context=True)
    assert str(unbound).startswith("Spec({\n  'context': {\n    'cache_pool': {},\n")
    assert "device" not in str(unbound)


def test_spec_opens_the_same_elements(tmp_path):
    def run(library, root):
        store = filled(library, shape=[3])
        same = library.open(store.spec(retain_context=True)).result()
        part = library.open(store[1:].spec(retain_context=True)).result()
        same[0] = 9
        others = [
            outcome(lambda spec=spec: library.open(spec).result())[1]
            for spec in (store.spec(), store.spec(unbind_context=True))
        ]
        created = library.open(store.spec(create=True)).result()
        return [
            store.read().result().tolist(),
            part.read().result().tolist(),
            repr(part.domain),
            others,
            description(created),
        ]

    check(run, tmp_path)


def test_spec_does_not_refer_to_resources_of_another_context():
    context = gpustore.Context({"cache_pool#a": {"total_bytes_limit": 1000}})
    spec = {"driver": "zarr3", "kvstore": "memory://", "cache_pool": "cache_pool#a"}
    store = gpustore.open(spec, context=context, create=True, dtype="int8", shape=[2]).result()
    assert "cache_pool" not in store.spec().to_json()
    unbound = store.spec(unbind_context=True, create=True)
    assert unbound.to_json()["context"]["cache_pool"] == {"total_bytes_limit": 1000}
    assert gpustore.open(unbound).result().shape == (2,)


# ---- pickles


@pytest.mark.parametrize("driver", DRIVERS)
def test_pickle(driver, tmp_path):
    def run(library, root):
        url = f"file://{root}/a|{driver}:"
        store = library.open(url, create=True, dtype="uint8", shape=[3]).result()
        store[...] = [1, 2, 3]
        view = library.open(url, read=True).result()[1:].label["x"]
        loaded = pickle.loads(pickle.dumps(view))
        return [description(loaded), loaded.read().result().tolist()]

    check(run, tmp_path)


@pytest.mark.matrix("costly")
def test_another_process_reads_the_pickle(tmp_path):
    url = f"file://{tmp_path}/a|zarr3:"
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 1000}})
    store = gpustore.open(url, create=True, dtype="uint8", shape=[3], context=context).result()
    store[...] = [1, 2, 3]
    (tmp_path / "pickle").write_bytes(pickle.dumps(store[::-1]))
    code = (
        "import pickle, sys; store = pickle.load(open(sys.argv[1], 'rb'));"
        "print(store.read().result().tolist(), store.domain)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "pickle")]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[3, 2, 1] { [-2*, 1) }"


def test_stores_and_specs_can_be_referred_to_weakly():
    store = gpustore.array([1, 2])
    spec = store.spec()
    refs = [weakref.ref(store), weakref.ref(spec)]
    del store, spec
    assert [ref() for ref in refs] == [None, None]


def test_a_copy_is_the_store_itself():
    for library in LIBRARIES:
        store = library.array(np.zeros(3))[1:]
        assert copy.copy(store) is store


def test_store_in_memory_refuses_to_be_pickled():
    with pytest.raises(gpustore.UnsupportedError, match="store in memory cannot be pickled"):
        pickle.dumps(filled(gpustore))


def test_array_pickles_with_its_elements():
    loaded = pickle.loads(pickle.dumps(gpustore.array([[1, 2], [3, 4]], dtype="int8").T))
    assert loaded.read().result().tolist() == [[1, 3], [2, 4]]


def test_outcomes_differ_if_the_libraries_do(tmp_path):
    """The comparison itself must be able to fail."""
    assert len(LIBRARIES) == 2
    assert not agree(*both(lambda library, root: library.__name__, tmp_path))


def test_what_is_wrong_with_an_index_is_not_about_bounds():
    with pytest.raises(IndexError, match="single ellipsis") as error:
        gpustore.array([[1, 2], [3, 4]])[..., 1, ...]
    assert "store.numpy" not in str(error.value)


@pytest.mark.parametrize("shape", [(2, 2), (3, 7, 4)])
def test_dimensions_that_do_not_fit_are_told_as_by_tensorstore(shape):
    found = []
    for library in (gpustore, tensorstore):
        domain = library.IndexDomain(labels=["", "y", "x"], shape=[3, 7, 5])
        store = library.open(
            {"driver": "zarr3", "kvstore": "memory://"}, create=True, dtype="uint8", domain=domain
        ).result()
        with pytest.raises(ValueError, match="Error aligning dimensions") as error:
            store[:, 1:].write(np.zeros(shape, "uint8")).result()
        found.append(str(error.value).partition(" [tensorstore")[0])
    assert found[0] == found[1]
