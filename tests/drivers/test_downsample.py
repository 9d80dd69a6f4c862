"""The downsample driver, with TensorStore as oracle."""

import json
import pickle

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.backends.downsampling import METHODS, Downsampling
from gpustore.backends.host.downsample import downsample
from gpustore.drivers import _blocks as module
from tests.drivers.parity import LIBRARIES, agree, check, outcome
from tests.emulator.queue import ORDERS
from tests.matrix import each
from tests.on_device import emulated, on_host

DTYPES = (
    *("bool", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


def opened(library, folder=None):
    """An array with chunks, labels, units and a fill value, whose first row is not stored."""
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://a/" if folder is None else f"file://{folder}/a/",
        "schema": {
            "domain": {"shape": [9, 20], "labels": ["y", "x"]},
            "dtype": "uint16",
            "dimension_units": ["4 nm", None],
            "fill_value": 7,
            "chunk_layout": {"read_chunk": {"shape": [3, 4]}, "write_chunk": {"shape": [3, 8]}},
        },
    }
    store = library.open(spec, create=True, open=True).result()
    store[3:] = np.arange(120, dtype="uint16").reshape(6, 20) ** 2
    return store


CELLS = {
    "all": lambda view: view,
    "a range": lambda view: view[1:3, 2:5],
    "a row": lambda view: view[2],
    "a row of another factor": lambda view: view[:, 6],
    "indices": lambda view: view[[1, 2, 1]],
    "a stride": lambda view: view[:4:2],
    "another origin": lambda view: view.translate_to[10, 20],
    "no cells": lambda view: view[1:1],
    "transposed": lambda view: view.T,
    "indices that are outside": lambda view: view[[1, 9]],
    "of a crop": lambda view: view[1:2, 1],
}


@each("name", CELLS)
def test_base_is_the_elements_of_the_cells(name, tmp_path):
    def of_store(library, folder):
        del folder
        store = opened(library)[1:8]
        shown = []
        for method in ("mean", "stride"):
            cells = CELLS[name](library.downsample(store, [2, 3], method))
            shown += [cells.base.domain, cells.base.read().result().tolist(), cells.base.spec()]
            shown.append(cells.spec().base)
        return shown

    def of_spec(library, folder):
        del folder
        base = {"driver": "zarr3", "kvstore": "memory://a/"}
        shown = []
        for domain in ({"shape": [9, 20]}, {"rank": 2}):
            spec = library.Spec({**base, "schema": {"domain": domain}})
            view = library.downsample(spec, [2, 3], "mean")
            if "shape" in domain or name in ("all", "a range", "a row", "transposed"):
                shown.append(CELLS[name](view).base)
        return shown

    check(of_store, tmp_path)
    check(of_spec, tmp_path)


PARTS = {
    "dtype": lambda store: store.dtype.name,
    "fill value": lambda store: store.fill_value.tolist(),
    "codec": lambda store: store.codec,
    "layout": lambda store: store.chunk_layout,
    "units": lambda store: [str(unit) for unit in store.dimension_units],
    "schema": lambda store: store.schema,
    "domain": lambda store: store.domain,
    "mode": lambda store: store.mode,
    "kvstore": lambda store: store.kvstore.url,
    "url": lambda store: store.url,
    "spec": lambda store: store.spec(),
    "minimal spec": lambda store: store.spec(minimal_spec=True),
    "spec of a part": lambda store: store[1:3, 2].spec(minimal_spec=True),
    "values": lambda store: store.read().result().tolist(),
    "values of a row": lambda store: store[1].read().result().tolist(),
    "values of index arrays": lambda store: store.vindex[[2, 1], [2, 2]].read().result().tolist(),
    "indices outside": lambda store: store.vindex[[99, 2], [2, 2]].read().result(),
    "resolved": lambda store: store.resolve().result().domain,
    "resized": lambda store: store.resize(exclusive_max=[5, 6]).result(),
    "written": lambda store: store.write(1).result(),
    "outside": lambda store: store[2, 99].read().result(),
    "layout of a read": lambda store: store.read(order="F").result().flags.f_contiguous,
}
VIEWS = {
    "whole": lambda store, lib: store,
    "part": lambda store, lib: store[1:8, 3:19],
    "steps": lambda store, lib: store[::2, ::-3],
    }  # fmt: skip


# Blocks far beyond the domain give TensorStore 0.1.86 elements that are not there.
@pytest.mark.matrix("costly")
@each("factors", [(1, 1), (2, 3), (4, 4)])
@each("view", ["whole", "part", "steps"])
@each("method", METHODS)
def test_views_have_the_properties_of_tensorstore(method, view, factors):
    stores = [lib.downsample(VIEWS[view](opened(lib), lib), factors, method) for lib in LIBRARIES]
    for part, what in PARTS.items():
        if part in ("resolved", "spec of a part") and view == "steps":
            continue  # The bounds of a view with steps may be of another sign.
        results = [outcome(lambda store=store, f=what: f(store)) for store in stores]
        assert agree(*results), (part, results)


def test_views_of_views_and_casts():
    for lib in LIBRARIES:
        once = lib.downsample(opened(lib), [2, 2], "mean")
        twice = lib.downsample(once, [1, 2], "max")
        cast = lib.cast(twice, "float32")
        of_cast = lib.downsample(lib.cast(opened(lib), "float32"), [2, 4], "mean")
        found = [twice.read().result(), cast.read().result(), of_cast.read().result()]
        specs = [store.spec(minimal_spec=True).to_json() for store in (twice, cast, of_cast)]
        texts = [json.dumps(spec, sort_keys=True) for spec in specs]
        if lib is gpustore:
            ours = found, texts
    assert all(np.array_equal(a, b) for a, b in zip(ours[0], found, strict=True))
    assert ours[1] == texts


SPEC = {"driver": "downsample", "base": {"driver": "zarr3", "kvstore": "memory://a/"}}
GOOD = {"downsample_factors": [2, 2], "downsample_method": "mean"}


@pytest.mark.parametrize(
    "members",
    [
        GOOD,
        {**GOOD, "dtype": "uint16"},
        {**GOOD, "rank": 2},
        {**GOOD, "transform": {"input_inclusive_min": [0, 0], "input_shape": [3, 4]}},
        {"downsample_factors": [2, 2]},
        {"downsample_method": "mean"},
        {"downsample_factors": [2, 2], "downsample_method": "x"},
        {"downsample_factors": [2, -2], "downsample_method": "mean"},
        {"downsample_factors": [2, "2"], "downsample_method": "mean"},
        {"downsample_factors": 2, "downsample_method": "mean"},
        {**GOOD, "rank": 3},
        {**GOOD, "more": 3},
    ],
)
def test_specs_parse_as_those_of_tensorstore(members):
    results = [
        outcome(lambda lib=lib: lib.Spec({**SPEC, **members}).to_json()) for lib in LIBRARIES
    ]
    assert agree(*results), results


def test_specs_of_specs():
    for view in ("zarr3", {"driver": "zarr3", "kvstore": "memory://a/",
                           "schema": {"domain": {"shape": [10, 20]}}}):  # fmt: skip
        base = {"driver": "zarr3", "kvstore": "memory://a/"} if view == "zarr3" else view
        specs = [lib.downsample(lib.Spec(base), [2, 3], "mode") for lib in LIBRARIES]
        # The base keeps its implicit bounds, unlike TensorStore's.
        for what in (str, lambda s: s.rank, lambda s: s.domain):
            results = [outcome(lambda spec=spec, what=what: what(spec)) for spec in specs]
            assert agree(*results), results


@pytest.mark.parametrize(
    ("factors", "method"),
    [([2], "mean"), ([0, 1], "mean"), ([2, 2], "foo"), ([2, 2, 2], "max"), ([2, -1], "stride")],
)
def test_wrong_arguments(factors, method, tmp_path):
    check(lambda lib, root: lib.downsample(opened(lib, root), factors, method), tmp_path)


@each("dtype", ["complex64", "string", "json"])
@each("method", METHODS)
def test_methods_a_data_type_does_not_have(dtype, method):
    def tried(lib):
        if dtype == "complex64":
            store = lib.array(np.array([[1, 2j], [2, 2j]], dtype))
        else:
            array = [["c", "b", "a"], ["c", "a", "a"]]
            if dtype == "json":
                array = [[None, 1, "a"], [{"a": 1}, [2], "a"]]
            store = lib.open({"driver": "array", "array": array, "dtype": dtype}).result()
        return lib.downsample(store, [2, 1], method).read().result().tolist()

    results = [outcome(lambda lib=lib: tried(lib)) for lib in LIBRARIES]
    assert agree(*results), results


@pytest.mark.parametrize("method", METHODS)
def test_blocks_of_no_elements_are_none(method):
    def tried(lib):
        store = lib.array(np.arange(9))[2:8][3:3]
        view = lib.downsample(store, [2], method)
        return str(view.domain), view.read().result().tolist()

    results = [outcome(lambda lib=lib: tried(lib)) for lib in LIBRARIES]
    assert agree(*results), results
    assert tried(gpustore)[1] == []


def test_the_data_type_of_a_spec_is_that_of_its_base():
    view = gpustore.downsample(gpustore.array(np.arange(4, dtype="int16")), [2], "max")
    json = view.spec().to_json()
    assert "dtype" not in json["base"]
    for lib in LIBRARIES:
        assert lib.open(json).result().read().result().tolist() == [1, 3]
    with pytest.raises(gpustore.MetadataError, match="dtype"):
        gpustore.Spec({**json, "base": {**json["base"], "dtype": "int8"}})


def test_blocks_longer_than_the_base_are_read_together():
    store = gpustore.array(np.arange(2000).reshape(4, 50, 10))
    view = gpustore.downsample(store, [1, 1, 10**12], "max")
    assert len(list(view._driver.blocks.parts(((0, 4), (0, 50), (0, 1)), 8))) == 1
    assert view.read().result()[3, 49, 0] == 1999


def test_factors_beyond_64_bits_are_refused():
    with pytest.raises(gpustore.MetadataError, match="not all 64-bit signed integers"):
        gpustore.downsample(gpustore.array(np.arange(4)), [2**63], "mean")


def test_info_counts_no_chunks_of_the_base(tmp_path):
    store = opened(gpustore, tmp_path)
    assert gpustore.downsample(store, [2, 2], "mean").info.values_stored is None


@pytest.mark.parametrize("method", METHODS)
def test_texts_of_fixed_length_have_no_mean(method):
    base = gpustore.open("memory://t/|zarr3:", create=True, shape=[4], dtype=np.dtype("<U2"),
                         context=gpustore.Context()).result()  # fmt: skip
    if method == "stride":
        assert gpustore.downsample(base, [2], method).read().result().tolist() == ["", ""]
        return
    with pytest.raises(gpustore.MetadataError, match="does not support data type"):
        gpustore.downsample(base, [2], method)


def test_a_spec_opens_what_was_stored(tmp_path):
    store = gpustore.downsample(opened(gpustore, tmp_path)[1:], [2, 3], "mean")
    for again in (
        gpustore.open(store.spec()).result(),
        gpustore.open(store[1:3].spec()).result(),
        pickle.loads(pickle.dumps(store)),
    ):
        expected = store if again.shape == store.shape else store[1:3]
        assert np.array_equal(again.read().result(), expected.read().result())
    with pytest.raises(gpustore.MetadataError, match="only reading is supported"):
        gpustore.open(store.spec(), write=True).result()
    with pytest.raises(gpustore.UnsupportedError, match='"domain" is not a constraint'):
        gpustore.open(store.spec(), shape=[5, 5])


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 7), min_size=0, max_size=3))
    kind = ts.dtype(dtype).numpy_dtype
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        values = rng.integers(0, 2, shape).astype(bool)
    elif "int" in dtype:
        bits = 4 if dtype == "int4" else 8 * kind.itemsize
        signed = not dtype.startswith("u")
        low, high = (-(2 ** (bits - 1)) if signed else 0), 2 ** (bits - signed) - 1
        if draw(st.booleans()):
            low, high = max(low, -2), min(high, 2)
        values = rng.integers(low, high, shape, "int64" if signed else "uint64", endpoint=True)
        values = values.astype(kind)
    else:
        values = rng.normal(size=shape).round(draw(st.integers(0, 8))) * 10.0 ** draw(
            st.integers(-3, 3)
        )
        values = values.astype(kind)
        if kind.kind == "f" and values.size and draw(st.booleans()):
            values.flat[draw(st.integers(0, values.size - 1))] = np.nan
    # Blocks beyond the domain give TensorStore 0.1.86 elements that are not there.
    factors = draw(st.tuples(*[st.integers(1, min(4, n)) for n in shape]))
    origin = draw(st.tuples(*[st.integers(-7, 7)] * len(shape)))
    return dtype, values, factors, origin


@given(case=arrays(), method=st.sampled_from(METHODS))
def test_elements_are_those_of_tensorstore(case, method):
    dtype, values, factors, origin = case
    if dtype.startswith("complex") and method in ("min", "max", "median"):
        return
    if method in ("median", "mode") and (values != values).any():
        return  # TensorStore sorts NaN somewhere.
    theirs = ts.array(values)
    ours = gpustore.array(values)
    if origin:
        theirs, ours = theirs[ts.d[:].translate_to[origin]], ours.translate_to[origin]
    theirs = ts.downsample(theirs, factors, method)
    ours = gpustore.downsample(ours, factors, method)
    assert str(ours.domain) == str(theirs.domain)
    expected, found = theirs.read().result(), ours.read().result()
    assert found.dtype == expected.dtype
    is_nan = np.asarray(found != found)
    same = np.asarray(found == expected) | (is_nan & (expected != expected))
    if method in ("min", "max"):  # TensorStore has an infinity for a block of NaN alone.
        same |= is_nan & np.isinf(np.asarray(expected, "float64"))
    assert same.all(), (found, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_is_left_out_where_there_is_a_number(dtype):
    nan = float("nan")
    store = gpustore.array(np.array([nan, nan, nan, 2, 1, nan], dtype))
    for method, number in (("min", [nan, 2, 1]), ("max", [nan, 2, 1])):
        found = gpustore.downsample(store, [2], method).read().result()
        assert np.array_equal(found, np.array(number, dtype), equal_nan=True)


@given(data=st.data(), case=arrays(), method=st.sampled_from(METHODS))
def test_parts_are_those_of_the_whole(data, case, method):
    # TensorStore 0.1.86 has other elements where a read with steps ends in a cut block.
    dtype, values, factors, _ = case
    if dtype.startswith("complex") and method in ("min", "max", "median"):
        return
    store = gpustore.downsample(gpustore.array(values), factors, method)
    whole = store.read().result()
    index = tuple(
        data.draw(
            st.one_of(
                st.integers(0, n - 1),
                st.slices(n).filter(lambda s: s.step is None or s.step > 0),
                st.lists(st.integers(0, n - 1), min_size=1, max_size=4),
            )
        )
        for n in whole.shape
    )
    index = tuple(slice(*i.indices(n)) if isinstance(i, slice) else i
                  for i, n in zip(index, whole.shape, strict=True))  # fmt: skip
    if any(isinstance(i, slice) and i.start >= i.stop for i in index):
        return
    expected = whole
    for axis, i in reversed(list(enumerate(index))):
        expected = np.take(expected, i, axis) if not isinstance(i, slice) else expected[
            (slice(None),) * axis + (i,)
        ]  # fmt: skip
    found = store.oindex[index].read().result()
    assert np.array_equal(found, expected, equal_nan=found.dtype.kind in "fc")


@each("method", ["mean", "median", "mode", "min", "max"])
def test_large_blocks_are_reduced_one_by_one(method):
    values = np.random.default_rng(3).integers(-9, 9, (90, 150)).astype("int16")
    for dtype in ("int16", "float32", "int64"):
        of = values.astype(dtype)
        expected = ts.downsample(ts.array(of), [80, 70], method).read().result()
        found = gpustore.downsample(gpustore.array(of), [80, 70], method).read().result()
        assert np.array_equal(found, expected)


@each("method", ["mean", "max", "mode"])
def test_reads_of_many_parts(method, monkeypatch):
    monkeypatch.setattr(module, "_PART_NBYTES", 100)
    store = gpustore.downsample(opened(gpustore), [2, 3], method)
    expected = ts.downsample(opened(ts), [2, 3], method).read().result()
    assert np.array_equal(store.read().result(), expected)
    assert np.array_equal(store[1:4, 2].read().result(), expected[1:4, 2])
    out = np.zeros(expected.shape, "uint16")
    assert store.read(out=out).result() is out
    assert np.array_equal(out, expected)


def test_crops():
    for method in ("stride", "mean"):
        store = gpustore.downsample(opened(gpustore)[1:], [2, 3], method)
        whole, origin = store.read().result(), store.origin
        starts = np.array([[0, 0], [1, 2], [2, 3]]) + origin
        crops = store.read_many(starts, (2, 3)).result()
        for crop, (y, x) in zip(crops, starts - origin, strict=True):
            assert np.array_equal(crop, whole[y : y + 2, x : x + 3])
        with pytest.raises(gpustore.OutOfBoundsError):
            store.read_many([[99, 0]], (2, 3)).result()


def test_a_resized_base_is_seen_when_it_is_resolved():
    base = opened(gpustore)
    store = gpustore.downsample(base, [2, 2], "mean")
    base.resize(exclusive_max=[3, 20]).result()
    assert store.resolve().result().shape == (2, 10)


DEVICE_VIEWS = {
    "whole": lambda view: view,
    "part": lambda view: view[2:9, 1:6],
    "steps": lambda view: view[2:9:3, 1],
    "back": lambda view: view[::-2, ::-1],
    "turned": lambda view: view.T,
    "new axis": lambda view: view[3, gpustore.newaxis],
    "one": lambda view: view[1, 2],
}
BY_HOST = {
    "listed": lambda view: view.vindex[[1, 2], [2, 3]],
    "diagonal": lambda view: view.vindex[[1, 2], 1:3],
}


@each("method", [*METHODS, "gaussian"])
@pytest.mark.parametrize("parts", [False, True])
def test_elements_on_a_device_are_those_on_the_host(method, parts, monkeypatch):
    if parts:
        monkeypatch.setattr(module, "_PART_NBYTES", 300)
    factors = [2, 2] if method == "gaussian" else [2, 4]
    with emulated([*ORDERS][len(method) % 3]) as device:
        context = gpustore.Context()
        base = gpustore.open(
            "memory://a/|zarr3:", create=True, dtype="uint16", shape=[20, 30], context=context
        ).result()
        base[...] = np.random.default_rng(0).integers(0, 9, (20, 30)).astype("uint16")
        on_device = gpustore.open("memory://a/|zarr3:", device=device.name, context=context)
        view = gpustore.downsample(on_device.result()[1:], factors, method)
        expected = gpustore.downsample(base[1:], factors, method)
        assert view.device == device.name
        for views, by_host in ((DEVICE_VIEWS, 0), (BY_HOST, int(method != "stride"))):
            for name, chosen in views.items():
                future = chosen(view).read()
                found = on_host(device, future.result())
                assert np.array_equal(found, chosen(expected).read().result()), name
                assert future.statistics["host_conversions"] == by_host, name
                del future
        start = view.origin[0]
        crops = on_host(device, view.read_many([[start + 1, 2]], (2, 2)).result())
        assert np.array_equal(crops[0], expected[start + 1 : start + 3, 2:4].read().result())
        del view, crops


def test_gaussian_is_a_method_of_our_own():
    values = np.array([[0, 0, 8, 8, 0]], "float32")
    view = gpustore.downsample(gpustore.array(values), [1, 2], "gaussian")
    assert view.read().result().tolist() == [[1, 6, 1]]
    again = gpustore.open(view.spec()).result()
    assert again[0, 1:].read().result().tolist() == [6, 1]
    for factors, base, text in (
        ([1, 4], values, r'"gaussian" halves dimensions: expected 1 or 2, got \{1, 4\}'),
        ([1, 2], values.astype("int64"), 'method "gaussian" does not support data type "int64"'),
        ([1, 2], values > 0, 'method "gaussian" does not support data type "bool"'),
    ):
        with pytest.raises(gpustore.MetadataError, match=text):
            gpustore.downsample(gpustore.array(base), factors, "gaussian")


def test_integers_of_64_bits_are_summed_exactly():
    for dtype in ("int64", "uint64"):
        info = np.iinfo(dtype)
        values = np.array([info.max, info.max, info.max - 1, info.min, info.min, info.max], dtype)
        for count in (1, 2, 3, 4, 6):
            cells = -(-6 // count)
            out = np.empty(cells, dtype)
            downsample(values, Downsampling("mean", (count,), (0,)), out)
            for cell in range(cells):
                block = [int(v) for v in values[cell * count : (cell + 1) * count]]
                assert int(out[cell]) == round_half_even(sum(block), len(block))


def round_half_even(total, count):
    quotient, rest = divmod(total, count)
    return quotient + (2 * rest > count or (2 * rest == count and quotient % 2 == 1))


NESTED = {
    "stack": lambda lib, store: lib.stack([store]),
    "stack of a stack": lambda lib, store: lib.stack([lib.stack([store])]),
    "stack of a cast": lambda lib, store: lib.stack([lib.cast(store, lib.float32)]),
    "stack of a downsample": lambda lib, store: lib.stack([lib.downsample(store, [2], "max")]),
    "cast of a stack": lambda lib, store: lib.cast(lib.stack([store]), lib.float32),
}


@each("name", NESTED)
def test_specs_over_stacks_tell_the_data_type_once(name):
    found = []
    for lib in LIBRARIES:
        spec = {"driver": "zarr3", "kvstore": "memory://a/"}
        metadata = {"shape": [4], "data_type": "int32"}
        context = lib.Context()
        store = lib.open(spec | {"metadata": metadata}, create=True, context=context).result()
        base = NESTED[name](lib, store)
        view = lib.downsample(base, [1] * (base.rank - 1) + [2], "min")
        found.append(view.spec().to_json())
        if lib is gpustore:  # TensorStore does not pass it on to a cast in a stack.
            assert lib.open(found[-1], context=context).result().dtype.name == view.dtype.name
    assert found[0] == found[1]
