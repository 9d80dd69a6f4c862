"""Staged writes that are merged, against NumPy: boxes, steps, points; read and committed."""

import gc
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.backends.native.library import library
from tests.matrix import each
from tests.on_device import emulated, on_host

SHAPE, CHUNK = (7, 6), (4, 4)
GRID = {"kind": "inline", "chunk_shapes": [[3, 4], [2, 4]]}
FORMS = {
    "plain": {},
    "big endian": {"codec": [{"name": "bytes", "configuration": {"endian": "big"}}]},
    "F order": {
        "codec": [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}]
    },
    "compressed": {"codec": "zstd:1"},
    "shards": {"chunks": (2, 2), "shards": CHUNK},
    "fill value": {"fill_value": 3},
    "strings": {"dtype": "ustring", "codec": "zstd:1"},
    "strings in shards": {"dtype": "ustring", "chunks": (2, 2), "shards": CHUNK},
}


def array_of(form, device):
    """The fields of an empty array, of rank 2, opened twice, and the fill value."""
    context = gpustore.Context()
    if form == "records":
        dtype = [["x", "<i2"], ["y", ">i4"], ["z", "<f8"]]
        metadata = {"dtype": dtype, "shape": SHAPE, "chunks": CHUNK, "compressor": None}
        spec = {"driver": "zarr", "kvstore": "memory://s/", "metadata": metadata}
        options = {"create": True, "open": True, "context": context}
        specs = [{**spec, "field": name} for name in "xyz"]
        return [[gpustore.open(one, **options).result() for one in specs] for _ in range(2)], 0
    if form == "shards in shards":
        plain = codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
        for shape in ([1, 2], [2, 2]):
            shards = {"chunk_shape": shape, "codecs": codecs, "index_codecs": plain}
            codecs = [{"name": "sharding_indexed", "configuration": shards}]
        grid = {"name": "regular", "configuration": {"chunk_shape": CHUNK}}
        metadata = {"shape": SHAPE, "data_type": "int16", "chunk_grid": grid, "codecs": codecs}
        spec = {"driver": "zarr3", "kvstore": "memory://s/", "metadata": metadata}
    elif form == "chunks of several shapes":
        metadata = {"chunk_grid": {"name": "rectilinear", "configuration": GRID}}
        metadata |= {"shape": SHAPE, "data_type": "int16"}
        spec = {"driver": "zarr3", "kvstore": "memory://s/", "metadata": metadata}
    elif form == "precomputed shards":
        sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity"}
        sharding |= {"preshift_bits": 1, "minishard_bits": 1, "shard_bits": 1}
        scale = {"size": [*SHAPE, 1], "chunk_size": [*CHUNK, 1], "encoding": "raw"}
        spec = {
            "driver": "neuroglancer_precomputed",
            "kvstore": "memory://s/",
            "multiscale_metadata": {"type": "image", "data_type": "int16", "num_channels": 1},
            "scale_metadata": {**scale, "resolution": [1, 1, 1], "sharding": sharding},
        }
    else:
        options = {"shape": SHAPE, "chunks": CHUNK, "dtype": "int16", **FORMS[form]}
        store = gpustore.create_array("memory://s", device=device, context=context, **options)
        fill = "" if "string" in str(options["dtype"]) else options.get("fill_value", 0)
        return [[store.result()]] * 2, fill
    store = gpustore.open(spec, create=True, context=context).result()
    again = gpustore.open(spec, context=context).result()
    return [[one[..., 0, 0] if one.rank == 4 else one] for one in (store, again)], 0


def interval(a, b, step):
    low, high = min(a, b), max(a, b)
    if low == high:
        return slice(low, low)
    return slice(low, high, step) if step > 0 else slice(high - 1, low - 1 if low else None, step)


def along(size):
    box = st.tuples(st.integers(0, size), st.integers(0, size), st.sampled_from([1, 1, 1, 2, -1]))
    return st.one_of(
        box.map(lambda x: interval(*x)),
        st.integers(0, size - 1),
        st.lists(st.integers(0, size - 1), min_size=1, max_size=3),
    )


steps = st.one_of(
    st.tuples(st.just("write"), along(7), along(6), st.sampled_from(["full", "row", "scalar"])),
    st.tuples(st.just("write"), st.integers(0, 6), st.integers(0, 5), st.just("scalar")),
    st.tuples(st.just("transposed"), along(7), along(6), st.just("full")),
    st.just(("read",)),
    st.tuples(st.just("part"), along(7), along(6)),
    st.tuples(st.just("outside"), st.integers(0, 6), st.integers(0, 5)),
    st.just(("all",)),
)


def chosen(index):
    """The index of NumPy for one of a store's ``oindex``."""
    axes = [np.arange(n)[i] for i, n in zip(index, SHAPE, strict=True)]
    return np.ix_(*[np.atleast_1d(axis) for axis in axes]), [np.ndim(axis) for axis in axes]


OTHERS = ["records", "shards in shards", "chunks of several shapes", "precomputed shards", "device"]


@given(st.sampled_from([*FORMS, *OTHERS]), st.lists(steps, min_size=4, max_size=25))
def test_elements_are_those_written_last(form, program):
    if form != "device":
        run(form, program, "cpu", np.asarray)
        return
    with emulated() as device:
        run("shards", program, device.name, lambda array: on_host(device, array))


def run(form, program, device, on_host):
    (fields, again), fill = array_of(form, device)
    dtype = object if fill == "" else "int16"
    stored = [np.full(SHAPE, fill, dtype) for _ in fields]
    written = [np.zeros(SHAPE, bool) for _ in fields]
    inside = [one.copy() for one in stored]
    number = 100

    def check(stores):
        for i, store in enumerate(stores):
            found = on_host(store.read().result())
            assert (found == np.where(written[i], inside[i], stored[i])).all()

    def elements(numbers):
        return np.vectorize(str, "O")(numbers) if fill == "" else numbers.astype("int16")

    with gpustore.Transaction() as transaction:
        staged = [[one.with_transaction(transaction) for one in some] for some in (fields, again)]
        for kind, *arguments in program:
            number += 50
            at = number // 50 % len(fields)
            store = staged[number // 50 % 2][at]
            if kind == "read":
                check(staged[0])
            elif kind == "part":
                places, ranks = chosen(arguments)
                found = on_host(store.oindex[tuple(arguments)].read().result())
                whole = np.where(written[at], inside[at], stored[at])[places]
                shape = [axis.size for axis, rank in zip(places, ranks, strict=True) if rank]
                assert (found == whole.reshape(shape)).all()
            elif kind == "outside":
                value = elements(np.array([number]))[0]
                fields[at][tuple(arguments)] = stored[at][tuple(arguments)] = value
            elif kind == "all":
                value = elements(np.array([number]))[0]
                store[...] = value
                inside[at][...] = value
                written[at][...] = True
            else:
                *index, what = arguments
                places, ranks = chosen(index)
                extents = [axis.size for axis, rank in zip(places, ranks, strict=True) if rank]
                shape = extents[-1:] if what == "row" else [] if what == "scalar" else extents
                values = elements(number + np.arange(np.prod(shape, dtype=int)).reshape(shape))
                part = store.oindex[tuple(index)]
                if kind == "transposed":
                    part, values = part.T, values.T
                part.write(values).result()
                whole = np.broadcast_to(values.T if kind == "transposed" else values, extents)
                inside[at][places] = whole.reshape([axis.size for axis in places])
                written[at][places] = True
    check(fields)


KINDS = ["plain", "shards", "shards in shards", "strings", "records", "precomputed shards"]


@pytest.mark.matrix("costly")
@each("form", KINDS)
def test_writes_of_the_same_elements_take_no_more_memory(form):
    (fields, _), fill = array_of(form, "cpu")
    transaction = gpustore.Transaction()
    staged = [store.with_transaction(transaction) for store in fields]
    source = np.full((2, 2), "a" if fill == "" else 1, object if fill == "" else "int16")

    def write(count):
        for _ in range(count):
            for store in staged:
                store[2:4, 2:4] = source
                store[:3, 1] = source[0, 0]

    def kept():
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    write(60)  # Until layers are merged.
    tracemalloc.start()
    try:
        write(10)  # Until Python keeps what it uses again.
        grown = []
        for _ in range(3):
            before = kept()
            write(10)
            grown.append(kept() - before)
    finally:
        tracemalloc.stop()
    # A layer would take more than 500 bytes, each time; a table of the process grows but once.
    assert min(grown) < 100 * 2 * 10 * len(staged)
    transaction.abort()


@each("form", KINDS)
def test_many_small_writes_of_a_key_cost_one_encoding_and_one_write(form):
    (fields, _), fill = array_of(form, "cpu")
    before = gpustore.statistics.snapshot()
    with gpustore.Transaction() as transaction:
        for number in range(20):
            for store in fields:
                store.with_transaction(transaction)[number % 2, number % 2] = (
                    str(number) if fill == "" else number
                )
    after = gpustore.statistics.snapshot()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    chunks = 2 if form == "shards in shards" else 1
    itemsize = sum([store.dtype.itemsize or 8 for store in fields])  # of strings references
    extents = fields[0].chunk_layout.read_chunk.shape
    assert grown["writes"] == 20 * len(fields)
    assert grown["bytes_encoded"] == chunks * itemsize * math.prod(extents)
    assert (grown["values_stored"], grown["key_reads"]) == (1, 1)


def test_reads_of_shards_encode_what_was_changed_since_the_last_one():
    store = gpustore.create_array(
        "memory://s", shape=(64,), chunks=(8,), shards=(64,), dtype="uint8", device="cpu"
    ).result()
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        expected = np.zeros(64, "uint8")
        for number in range(64):
            staged[number] = expected[number] = number
        assert (staged.read().result() == expected).all()
        for number in (3, 40):
            before = gpustore.statistics["bytes_encoded"]
            staged[number] = expected[number] = 99
            assert (staged.read().result() == expected).all()
            assert gpustore.statistics["bytes_encoded"] - before == 8
    assert (store.read().result() == expected).all()


@pytest.mark.skipif(library() is None, reason="no native core")
@each("form", ["plain", "shards", "compressed"])
def test_reads_of_what_is_staged_need_no_codec(form):
    ((store,), _), _ = array_of(form, "cpu")
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        for number in range(8):
            staged[:2, 1:4] = number
        before = gpustore.statistics.snapshot()
        out = np.zeros((2, 2), "int16")
        assert staged[:2, 2:4].read(out=out[:, ::-1]).result().tolist() == [[7, 7], [7, 7]]
        assert (out == 7).all()
        assert int(staged[1, 1].read().result()) == 7
        after = gpustore.statistics.snapshot()
        assert after["reads"] - before.get("reads", 0) == 2
        for name in ("bytes_encoded", "bytes_decoded", "key_reads"):
            assert after.get(name, 0) == before.get(name, 0)
        staged.read().result()
        assert staged[0, 0].read().result() == 0
    with pytest.raises(gpustore.TransactionError):
        staged[1, 1].read().result()


def test_elements_beside_a_staged_part_of_a_wider_chunk_stay():
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[3, 3, 4]]}}
    metadata = {"shape": [10], "data_type": "uint8", "chunk_grid": grid}
    spec = {"driver": "zarr3", "kvstore": "memory://g/", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    store[...] = 9
    with gpustore.Transaction() as transaction:
        for number in range(20):
            store.with_transaction(transaction)[6:8] = number
    assert store.read().result().tolist() == [9] * 6 + [19, 19, 9, 9]


def test_chunk_that_is_written_whole_is_not_read():
    store = gpustore.create_array(
        "memory://w", shape=(4, 6), chunks=(4, 4), dtype="uint8", device="cpu", codec="zstd"
    ).result()
    store.kvstore["c/0/0"] = store.kvstore["c/0/1"] = b"damaged"
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        for y in range(4):
            for x in range(6):
                staged[y, x] = 6 * y + x
        assert staged.read().result().ravel().tolist() == list(range(24))
    assert store.read().result().ravel().tolist() == list(range(24))


def test_sources_that_do_not_fit_stage_nothing():
    store = gpustore.create_array(
        "memory://n", shape=(4,), chunks=(4,), dtype="uint8", device="cpu"
    ).result()
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        for number in range(6):
            staged[number % 2] = number
        with pytest.raises(gpustore.MismatchError):
            staged[:2].write(np.zeros(3, "uint8"))
        with pytest.raises(TypeError):
            staged[:2].write(np.zeros(2, "float64"))
        with pytest.raises(gpustore.OutOfBoundsError):
            staged[4] = 1
        assert staged.read().result().tolist() == [4, 5, 0, 0]
    with pytest.raises(gpustore.TransactionError):
        staged[0] = 1
