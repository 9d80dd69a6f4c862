"""The stack driver and the views made with it, with TensorStore as oracle."""

import itertools
import pickle
import re

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from tests.drivers.parity import LIBRARIES, agree, check, outcome
from tests.emulator.queue import ORDERS
from tests.matrix import each
from tests.on_device import emulated, on_host

A = {"driver": "array", "array": [1, 2, 3], "dtype": "int32"}
B = {
    **{"driver": "array", "array": [4, 5, 6], "dtype": "int32"},
    "transform": {
        "input_inclusive_min": [3],
        "input_exclusive_max": [6],
        "output": [{"input_dimension": 0, "offset": -3}],
    },
}
Z = {"driver": "zarr3", "kvstore": "memory://a/", "dtype": "int32"}
BOUNDED = {**Z, "transform": {"input_shape": [3]}}


def arrays(lib, shapes=((4,), (4,)), dtype="int32"):
    """Arrays with all elements different."""
    return [
        lib.array(np.arange(np.prod(shape), dtype=dtype).reshape(shape) + 100 * number)
        for number, shape in enumerate(shapes)
    ]


PARTS = {
    "dtype": lambda store: store.dtype.name,
    "fill value": lambda store: store.fill_value,
    "codec": lambda store: store.codec,
    "layout": lambda store: store.chunk_layout,
    "units": lambda store: [str(unit) for unit in store.dimension_units],
    "schema": lambda store: store.schema,
    "domain": lambda store: store.domain,
    "mode": lambda store: store.mode,
    "base": lambda store: store.base,
    "kvstore": lambda store: store.kvstore,
    "url": lambda store: store.url,
    "spec": lambda store: store.spec(),
    "spec's mode": lambda store: repr(store.spec().open_mode),
    "minimal spec": lambda store: store.spec(minimal_spec=True),
    "values": lambda store: store.read().result().tolist(),
    "order": lambda store: store.read(order="F").result().flags.f_contiguous,
    "resolved": lambda store: store.resolve().result().domain,
    "resized": lambda store: store.resize(exclusive_max=[9] * store.rank).result(),
    "cast": lambda store: store.astype("float64").read().result().tolist(),
    "spec of a cast": lambda store: store.astype("float64").spec(),
}
VIEWS = {
    "stack": lambda lib: lib.stack(arrays(lib)),
    "stack behind": lambda lib: lib.stack(arrays(lib), axis=-1),
    "stack of views": lambda lib: lib.stack([a[1:4:2][::-1] for a in arrays(lib)]),
    "stack of labels": lambda lib: lib.stack([arrays(lib)[0].label["x"], arrays(lib)[1]], 1),
    "stack of stacks": lambda lib: lib.stack([lib.stack(arrays(lib))] * 2, axis=1),
    "stack of casts": lambda lib: lib.stack([lib.cast(a, "int64") for a in arrays(lib)]),
    "stack of index arrays": lambda lib: lib.stack([a[[3, 1, 1]] for a in arrays(lib)]),
    "stack with a gap": lambda lib: lib.stack(arrays(lib, [(4,), (3,)])),
    "stack of pairs": lambda lib: lib.stack(
        [lib.downsample(a, [2], "max") for a in arrays(lib)]
    ),
    "concat": lambda lib: lib.concat(arrays(lib, [(2, 3), (1, 3)]), axis=0),
    "concat by label": lambda lib: lib.concat([a.label["x"] for a in arrays(lib)], axis="x"),
    "concat from 5": lambda lib: lib.concat([a.translate_to[5] for a in arrays(lib)], axis=-1),
    "overlay": lambda lib: lib.overlay([arrays(lib)[0], arrays(lib)[1].translate_to[2]]),
    "overlay below": lambda lib: lib.overlay([arrays(lib)[1], arrays(lib)[0].translate_to[-2]]),
    "overlay of scalars": lambda lib: lib.overlay(arrays(lib, [(), ()])),
    "overlay with units": lambda lib: lib.overlay(arrays(lib), dimension_units=["4nm"]),
    "overlay of units": lambda lib: lib.overlay(
        [
            lib.open({**A, "schema": {"dimension_units": [unit]}}).result()[::2]
            for unit in ("2nm", None, "2nm")
        ]
    ),
    "overlay of other units": lambda lib: lib.overlay(
        [lib.open({**A, "schema": {"dimension_units": [u]}}).result() for u in ("2nm", "3nm")]
    ),
    "larger overlay": lambda lib: lib.overlay(arrays(lib), shape=[9]),
    "smaller overlay": lambda lib: lib.overlay(
        arrays(lib), domain=lib.IndexDomain(inclusive_min=[1], exclusive_max=[3])
    ),
    "labelled overlay": lambda lib: lib.overlay(arrays(lib), domain=lib.IndexDomain(labels=["x"])),
    "overlay for reads": lambda lib: lib.overlay(arrays(lib), read=True),
    "overlay for writes": lambda lib: lib.overlay(arrays(lib), write=True),
    "overlay of read-only ones": lambda lib: lib.overlay([lib.array([1, 2], write=False)] * 2),
    "specs": lambda lib: lib.concat([lib.Spec(A), lib.Spec(A)[1:], arrays(lib)[0]], axis=0),
    "opened": lambda lib: lib.open({"driver": "stack", "layers": [A, B]}).result(),
    "opened part": lambda lib: lib.open(
        {
            **{"driver": "stack", "layers": [A, B]},
            "transform": {"input_shape": [2], "output": [{"input_dimension": 0, "offset": 2}]},
        }
    ).result(),
    "opened with units": lambda lib: lib.open(
        {"driver": "stack", "layers": [A, B], "schema": {"dimension_units": ["4nm"]}}
    ).result(),
    "for reads": lambda lib: lib.open({"driver": "stack", "layers": [A]}, read=True).result(),
}  # fmt: skip


OF_PARTS = (
    *("stack of views", "stack of index arrays", "concat", "overlay of units", "specs"),
    "stack of pairs",
)
"""Views whose specs TensorStore makes of copies of the elements that are used."""


@each("view", list(VIEWS))
def test_views_have_the_properties_of_tensorstore(view):
    stores = [VIEWS[view](lib) for lib in LIBRARIES]
    for part, what in PARTS.items():
        if "spec" in part and view in OF_PARTS:
            continue
        results = [outcome(lambda store=store, f=what: f(store)) for store in stores]
        assert agree(*map(without_infinity, results)), (part, results)


def without_infinity(found):
    """An outcome without the cell of TensorStore that begins beyond all layers: ours is finite."""
    if isinstance(found, str):
        return found
    text = re.sub(r"origin={-?\d+(, -?\d+)*}", "origin", found[1])
    return found[0], text.partition(" [left_transform=")[0]


WRONG = {
    "no layers": lambda lib: lib.stack([]),
    "nothing to concatenate": lambda lib: lib.concat([], axis=0),
    "no data type": lambda lib: lib.overlay([]),
    "data types": lambda lib: lib.stack([*arrays(lib), lib.array([1.5])]),
    "ranks": lambda lib: lib.stack(arrays(lib, [(4,), (2, 2)])),
    "labels": lambda lib: lib.stack([a.label[x] for a, x in zip(arrays(lib), "xy", strict=True)]),
    "labels of concat": lambda lib: lib.concat(
        [a.label[x] for a, x in zip(arrays(lib), "xy", strict=True)], axis="x"
    ),
    "no such label": lambda lib: lib.concat([arrays(lib)[0].label["x"]], axis="y"),
    "axis of stack": lambda lib: lib.stack(arrays(lib), axis=2),
    "axis of concat": lambda lib: lib.concat(arrays(lib), axis=-2),
    "float axis": lambda lib: lib.stack(arrays(lib), axis=1.5),
    "text axis": lambda lib: lib.stack(arrays(lib), axis="x"),
    "float axis of concat": lambda lib: lib.concat(arrays(lib), axis=1.5),
    "data type": lambda lib: lib.stack(arrays(lib), dtype="float32"),
    "codec": lambda lib: lib.stack(
        arrays(lib), schema=lib.Schema(codec=lib.CodecSpec({"driver": "zarr3"}))
    ),
    "fill value": lambda lib: lib.stack(
        arrays(lib), schema=lib.Schema(dtype="int32", fill_value=1)
    ),
    "chunks": lambda lib: lib.overlay(
        arrays(lib), schema=lib.Schema(chunk_layout=lib.ChunkLayout(chunk_shape=[2]))
    ),
    "domain of another rank": lambda lib: lib.overlay(arrays(lib), shape=[2, 2]),
    "one store": lambda lib: lib.stack(arrays(lib)[0]),
    "numbers": lambda lib: lib.stack([1, 2]),
    "JSON": lambda lib: lib.stack([A]),
    "unknown keyword": lambda lib: lib.stack(arrays(lib), foo=1),
    "None": lambda lib: lib.stack(None),
    "spec without a domain": lambda lib: lib.stack([lib.Spec(Z)]),
    "read-only layers": lambda lib: lib.stack([lib.array([1], write=False)], write=True),
    "missing": lambda lib: lib.stack([lib.Spec(BOUNDED)]).read().result(),
    "write through read-only layers": lambda lib: lib.stack(
        [lib.array([1]), lib.array([1], write=False)]
    ).write(1).result(),
    "write of a gap": lambda lib: lib.overlay([lib.array([1])], shape=[3]).write(1).result(),
    "gap of a plane": lambda lib: lib.overlay(
        [lib.array(np.zeros((3, 3))), lib.array(np.ones((2, 2))).translate_to[2, 2]]
    ).vindex[[0, 3, 0], [0, 3, 3]].read().result(),
}  # fmt: skip


@pytest.mark.parametrize("what", list(WRONG))
def test_errors_are_those_of_tensorstore(what):
    results = [outcome(lambda lib=lib: WRONG[what](lib)) for lib in LIBRARIES]
    assert not isinstance(results[1], str), results
    assert agree(*map(without_infinity, results)), results


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"layers": {}},
        {"layers": [A, 3]},
        {"layers": [A, {"driver": "x"}]},
        {"layers": [A, B]},
        {"layers": [A, B], "foo": 1},
        {"layers": [A, B], "open": True},
        {"layers": [A, B], "kvstore": "memory://"},
        {"layers": [A, B], "dtype": "int32", "rank": 1},
        {"layers": [A, B], "dtype": "float32"},
        {"layers": [A, B], "rank": 2},
        {"layers": [A, B], "data_copy_concurrency": {"limit": 2}},
        {"layers": [A, B], "context": {"cache_pool": {"total_bytes_limit": 5}}},
        {"layers": [A, B], "schema": {"domain": {"shape": [7]}}},
        {"layers": [A, B], "schema": {"fill_value": 3}},
        {"layers": [A, B], "schema": {"codec": {"driver": "zarr3"}}},
        {"layers": [A, B], "schema": {"chunk_layout": {"chunk": {"shape": [3]}}}},
        {"layers": [A, B], "schema": {"chunk_layout": {"chunk": {"elements": 3}}}},
        {"layers": [A, {**A, "array": [[1]]}]},
        {"layers": [A, {**A, "dtype": "int8"}]},
        {"layers": [{**BOUNDED, "context": {"cache_pool": {"total_bytes_limit": 5}}}]},
        {"layers": [{**BOUNDED, "create": True, "open": True}]},
        {"layers": [BOUNDED, A], "transform": {"input_shape": [2]}},
        {"layers": [Z]},
        {"layers": [Z], "rank": 1},
        {"layers": ["memory://a/|zarr3:"]},
        {"layers": [{"driver": "stack", "layers": [A, B]}]},
    ],
)
def test_specs_parse_as_those_of_tensorstore(members):
    spec = {"driver": "stack", **members}
    for what in (lambda s: s, lambda s: s.schema, lambda s: s.domain, lambda s: repr(s.open_mode)):
        results = [outcome(lambda lib=lib, f=what: f(lib.Spec(spec))) for lib in LIBRARIES]
        assert agree(*results), results


UPDATES = [
    {"open": True}, {"create": True}, {"recheck_cached_data": False}, {"recheck_cached": "open"},
    {"minimal_spec": True}, {"shape": [3]}, {"dimension_units": ["3nm"]}, {"dtype": "int32"},
    {"fill_value": 1},
]  # fmt: skip


@pytest.mark.parametrize("keywords", UPDATES, ids=str)
def test_updates_go_to_the_layers(keywords):
    def updated(lib):
        spec = lib.Spec(
            {"driver": "stack", "layers": [{**BOUNDED, "metadata": {"fill_value": 3}}, A]}
        )
        spec.update(**keywords)
        return str(spec), repr(spec.open_mode)

    results = [outcome(lambda lib=lib: updated(lib)) for lib in LIBRARIES]
    assert agree(*results), results


def test_layers_are_opened_by_each_operation(tmp_path):
    def tried(lib, root):
        spec = {**BOUNDED, "kvstore": f"file://{root}/a/", "create": True, "open": True}
        spec["schema"] = {"domain": {"shape": [3]}}
        view = lib.open({"driver": "stack", "layers": [spec, B]}).result()
        found = [outcome(lambda: view.read().result(), root=root)]
        view[1:5].write([7, 8, 9, 10]).result()
        lib.open({**spec, "create": False}).result()[0] = 5
        again = lib.stack([lib.Spec({**spec, "create": False})] * 2)
        found.append(again.read().result().tolist())
        lib.open({**spec, "open": False, "delete_existing": True}).result()
        return str([*found, again.read().result().tolist()]).replace(" ", "")

    check(lambda lib, root: tried(lib, root), tmp_path)


def placed(lib, boxes):
    """Arrays at places of a plane, and their overlay."""
    layers = [
        lib.array(np.full([high - low for low, high in box], number, "int32")).translate_to[
            tuple(low for low, _ in box)
        ]
        for number, box in enumerate(boxes, 1)
    ]
    return layers, lib.overlay(layers)


intervals = st.tuples(st.integers(-3, 6), st.integers(1, 5)).map(lambda x: (x[0], x[0] + x[1]))
boxes = st.lists(st.tuples(intervals, intervals), min_size=1, max_size=5)
along = st.one_of(
    st.integers(-3, 8),
    st.tuples(st.integers(-3, 8), st.integers(-3, 9), st.sampled_from([1, 1, 2, -1, -3])).map(
        lambda x: slice(*x) if (x[1] - x[0]) * x[2] > 0 else slice(x[0], x[0] + 1)
    ),
    st.lists(st.integers(-3, 8), min_size=1, max_size=4),
    st.just(slice(None)),
)
kinds = st.sampled_from(["plain", "oindex", "vindex", "transpose", "diagonal"])


def indexed(lib, store, kind, index):
    if kind == "diagonal":
        low = max(store.domain.inclusive_min)
        high = min(store.domain.exclusive_max)
        domain = lib.IndexDomain(inclusive_min=[low], exclusive_max=[max(low, high)])
        both = [lib.OutputIndexMap(input_dimension=0)] * 2
        return store[lib.IndexTransform(domain, output=both)]
    if kind == "transpose":
        store, kind = store.T, "plain"
    return (store if kind == "plain" else getattr(store, kind))[index]


VALUES = np.arange(100, 200, dtype="int32")


@given(boxes, st.tuples(along, along), kinds)
def test_reads_and_writes_are_those_of_tensorstore(boxes, index, kind):
    results, written = [], []
    for lib in LIBRARIES:
        layers, store = placed(lib, boxes)

        def part(lib=lib, store=store):
            return indexed(lib, store, kind, index)

        found = [outcome(lambda: (str(part().domain), part().read().result().tolist()))]
        # Elements that are chosen twice may be written in any order.
        if not any(isinstance(one, list) and len({*one}) < len(one) for one in index):
            found.append(
                outcome(lambda: part().write(VALUES[: part().size].reshape(part().shape)).result())
            )
        results.append(found)
        written.append([layer.read().result().tolist() for layer in layers])
    for ours, theirs in zip(*results, strict=True):
        assert agree(without_infinity(ours), without_infinity(theirs)), results
    # TensorStore has written some parts when it meets a gap.
    if isinstance(results[1][-1], str) and len(results[1]) > 1:
        assert written[0] == written[1]


@given(boxes, st.lists(st.tuples(st.integers(-3, 8), st.integers(-3, 8)), max_size=5))
def test_crops_are_reads(boxes, starts):
    _, store = placed(gpustore, boxes)
    domain = store.domain
    starts = [
        start for start in starts
        if all(low <= at and at + 2 <= high for at, low, high in
               zip(start, domain.inclusive_min, domain.exclusive_max, strict=True))
    ]  # fmt: skip
    results = []
    for read in (
        lambda: store.read_many(np.array(starts).reshape(-1, 2), [2, 2]).result(),
        lambda: [store[y : y + 2, x : x + 2].read().result() for y, x in starts],
    ):
        results.append(outcome(lambda read=read: np.array(read()).reshape(-1, 2, 2).tolist()))
    assert results[0] == results[1] or not isinstance(results[0], str) > isinstance(results[1], str)


def planes(device, number=5):
    return [
        gpustore.open(
            f"memory://{i}/|zarr3:", create=True, chunks=[4, 4], device=device,
            data=(np.arange(48).reshape(6, 8) + 100 * i).astype("uint16"),
        ).result()
        for i in range(number)
    ]  # fmt: skip


def test_overlapping_layers_share_chunks():
    (layer,) = planes("cpu", 1)
    view = gpustore.overlay(
        [layer, gpustore.array(np.full((2, 2), 9, "uint16")).translate_to[2, 2]]
    )
    future = view.read()
    expected = np.arange(48).reshape(6, 8)
    expected[2:4, 2:4] = 9
    assert (future.result() == expected).all()
    assert future.statistics["chunks_planned"] == 4


def test_a_batch_reads_all_layers():
    view = gpustore.stack(planes("cpu"))
    with gpustore.Batch() as batch:
        first, second = view[1:4].read(batch=batch), view[2, 3].read(batch=batch)
        assert not first.done()
    assert (first.result()[1] == 200 + np.arange(48).reshape(6, 8)).all()
    assert second.result().tolist() == list(range(224, 232))


@pytest.mark.parametrize("out", ["C", "F", "view"])
def test_layers_are_read_into_the_array_given(out):
    view = gpustore.stack(planes("cpu"), axis=1)
    array = np.zeros((6, 5, 8), "uint16", order="F" if out == "F" else "C")
    if out == "view":
        array = np.zeros((8, 10, 9), "uint16")[1:7, ::2, :0:-1]
    assert view.read(out=array).result() is array
    assert (array == view.read().result()).all()


@each("order", list(ORDERS))
def test_layers_on_a_device_are_read_into_one_array(order):
    with emulated(order) as device:
        view = gpustore.stack(planes(device.name))
        assert view.device == device.name
        expected = np.arange(48).reshape(6, 8) + 100 * np.arange(5)[:, None, None]
        future = view[1:, :, ::-2].read()
        found = on_host(device, future.result())
        assert (found == expected[1:, :, ::-2]).all()
        assert future.statistics["host_conversions"] == 0
        mixed = gpustore.stack([*planes(device.name, 1), gpustore.array(np.ones((6, 8), "uint16"))])
        future = mixed.read()
        assert (on_host(device, future.result())[1] == 1).all()
        assert future.statistics["host_conversions"] == 1
        points = view.vindex[[1, 3, 1], [2, 0, 5], [7, 1, 0]].read()
        assert on_host(device, points.result()).tolist() == [123, 301, 140]
        del future, points


def test_a_cancelled_read_cancels_its_parts():
    called = gpustore.stack(planes("cpu")).read()
    assert called.cancel()
    assert called.cancelled()


def test_pickles_keep_layers(tmp_path):
    spec = {**Z, "kvstore": f"file://{tmp_path}/a/", "schema": {"domain": {"shape": [3]}}}
    store = gpustore.open(spec, create=True).result()
    store.write([1, 2, 3]).result()
    for view in (gpustore.stack([store, store[::-1].translate_to[0]]), gpustore.cast(
        gpustore.stack([gpustore.Spec(spec), gpustore.array([7, 8, 9], "int32")]), "int8"
    )):  # fmt: skip
        again = pickle.loads(pickle.dumps(view))
        assert again.read().result().tolist() == view.read().result().tolist()
        assert again.mode == view.mode
    with pytest.raises(gpustore.UnsupportedError, match="in memory cannot be pickled"):
        pickle.dumps(gpustore.stack(planes("cpu")))


def test_contexts_of_layers_are_made_once():
    spec = {**Z, "schema": {"domain": {"shape": [2]}}, "create": True}
    spec["context"] = {"memory_key_value_store": {}}
    view = gpustore.stack([gpustore.Spec(spec)])
    view.write([[1, 2]]).result()
    with pytest.raises(gpustore.AlreadyExistsError, match="While opening layer 0"):
        view.write([[3, 4]]).result()


def test_arrays_in_a_spec_have_the_elements_of_the_view_alone():
    ours, theirs = (lib.stack([lib.array([[1, 2, 3]])[:, 1:]] * 2).spec() for lib in LIBRARIES)
    assert ours.to_json() == theirs.to_json()
    assert ours.to_json()["layers"][0]["array"] == [2, 3]


def test_an_overlay_of_nothing_has_gaps_only():
    # The other properties abort TensorStore 0.1.86.
    for what in (
        lambda store: (store.domain, store.dtype.name, store.mode),
        lambda store: store.spec(),
        lambda store: store[1:].read().result(),
    ):
        views = [lib.overlay([], dtype="int8", shape=[2]) for lib in LIBRARIES]
        results = [outcome(lambda view=view, what=what: what(view)) for view in views]
        assert agree(*results), results


def test_empty_requests_read_nothing():
    for lib in (gpustore, ts):
        assert lib.overlay(arrays(lib), shape=[9])[5:5].read().result().shape == (0,)


@each("library", LIBRARIES)
@each(("name", "options"), [("stack", {}), ("concat", {"axis": 0}), ("overlay", {})])
def test_views_in_a_transaction_write_when_it_is_committed(library, name, options):
    context = library.Context()
    layers = [
        library.open(
            {"driver": "zarr3", "kvstore": f"memory://{key}/"},
            create=True,
            dtype="uint8",
            shape=[4],
            context=context,
        ).result()
        for key in "ab"
    ]
    transaction = library.Transaction()
    view = getattr(library, name)(layers, transaction=transaction, **options)
    assert view.transaction is transaction
    view[...] = 5
    assert layers[1].read().result().tolist() == [0] * 4
    assert np.all(view.read().result() == 5)
    transaction.commit_sync()
    assert layers[1].read().result().tolist() == [5] * 4


@each("library", LIBRARIES)
def test_views_are_in_one_transaction(library):
    layer = library.open(
        {"driver": "zarr3", "kvstore": "memory://"}, create=True, dtype="uint8", shape=[4]
    ).result()
    inside = layer.with_transaction(library.Transaction())
    with pytest.raises(ValueError, match="Transaction mismatch"):
        library.stack([inside, layer], transaction=library.Transaction())
    with pytest.raises(TypeError, match="Invalid transaction"):
        library.stack([layer], transaction=3)
    with pytest.raises(NotImplementedError, match="does not support transactions"):
        library.stack([library.array([1])], transaction=library.Transaction())[0].write(3).result()


def test_reads_of_opened_layers_beside_layers_that_they_open():
    context = gpustore.Context()
    spec = {"driver": "zarr3", "kvstore": "memory://a/"}
    metadata = {"shape": [4], "data_type": "uint8"}
    options = {"create": True, "context": context}
    store = gpustore.open(spec | {"metadata": metadata}, **options).result()
    store.write(np.arange(4, dtype="uint8")).result()
    rows = [store[i : i + 2] for i in (2, 0, 1, 2)]
    for opened in itertools.product([False, True], repeat=4):
        layers = [one if some else one.spec() for one, some in zip(rows, opened, strict=True)]
        layers = [one.translate_to[0] for one in layers]
        view = gpustore.stack(layers, context=context)
        assert view.read().result().tolist() == [[2, 3], [0, 1], [1, 2], [2, 3]]


def test_layers_without_elements_have_no_part_in_the_domain():
    """The last of them has, where there are no others."""
    found = []
    for lib in LIBRARIES:
        store = lib.array([1, 2, 3, 4])
        parts = [store[3:3], store[1:3], store[2:4], store[1:1].translate_by[5]]
        chosen = [some for n in (1, 2, 3) for some in itertools.product(parts, repeat=n)]
        found.append([str(lib.overlay(some).domain) for some in chosen])
    assert found[0] == found[1]
