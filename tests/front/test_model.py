"""Random arrays, read and written through random selections, against a NumPy array."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpustore

V3_CODECS = [
    None,
    ["gzip"],
    [{"name": "zstd", "configuration": {"level": 1, "checksum": True}}, "crc32c"],
    ["crc32c"],
    [{"name": "blosc", "configuration": {"cname": "zstd", "clevel": 1}}],
]
V2_COMPRESSORS = [
    None,
    {"id": "zlib"},
    {"id": "zstd"},
    {"id": "blosc", "cname": "lz4", "shuffle": 2},
    {"id": "gzip", "level": 1},
]
V2_TYPES = ["|b1", "|i1", "<u2", ">u2", "<i4", ">i4", "<f4", ">f8", "<c8", ">c16", "bfloat16"]
V3_TYPES = ["bool", "uint8", "int16", "uint32", "int64", "float16", "float32", "complex64", "int4"]


@st.composite
def specs(draw, shape):
    """The JSON of an array to be created: format, type, chunks, codec, fill, byte order, keys."""
    chunks = [draw(st.integers(1, max(1, size) + 1)) for size in shape]
    separator = draw(st.sampled_from("./"))
    if draw(st.booleans()):
        metadata = {
            "shape": list(shape),
            "chunks": chunks,
            "dtype": draw(st.sampled_from(V2_TYPES)),
            "compressor": draw(st.sampled_from(V2_COMPRESSORS)),
            "order": draw(st.sampled_from("CF")),
            "dimension_separator": separator,
            "fill_value": None,
        }
        return {"driver": "zarr2", "metadata": metadata}
    data_type = draw(st.sampled_from(V3_TYPES))
    bytes_codec = {"name": "bytes"}
    if data_type not in ("bool", "uint8", "int4"):
        bytes_codec["configuration"] = {"endian": draw(st.sampled_from(["little", "big"]))}
    codecs = [bytes_codec, *(draw(st.sampled_from(V3_CODECS)) or [])]
    if shape and draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
    if draw(st.booleans()):
        # Shards: the chunks so far are the inner ones.
        inner, chunks = chunks, [size * draw(st.integers(1, 3)) for size in chunks]
        location = draw(st.sampled_from(["start", "end"]))
        options = {"chunk_shape": inner, "codecs": codecs, "index_location": location}
        codecs = [{"name": "sharding_indexed", "configuration": options}]
    metadata = {
        "shape": list(shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "data_type": data_type,
        "codecs": codecs,
        "chunk_key_encoding": {
            "name": draw(st.sampled_from(["default", "v2"])),
            "configuration": {"separator": separator},
        },
    }
    if data_type in ("uint8", "int16", "float32"):
        metadata["fill_value"] = draw(st.sampled_from([0, 7]))
    return {"driver": "zarr3", "metadata": metadata}


@st.composite
def selections(draw, shape):
    """A gpustore index and the NumPy index that selects the same elements."""
    ours, theirs = [], []
    for size in shape:
        kind = draw(st.sampled_from(["all", "all", "integer", "slice", "reverse", "newaxis"]))
        if kind == "newaxis":
            ours.append(None)
            theirs.append(None)
            kind = "all"
        if kind == "integer" and size:
            ours.append(draw(st.integers(0, size - 1)))
            theirs.append(ours[-1])
        elif kind == "slice":
            start = draw(st.integers(0, size))
            stop = draw(st.integers(start, size))
            step = draw(st.integers(1, 3))
            ours.append(slice(start, stop, step))
            theirs.append(ours[-1])
        elif kind == "reverse" and size:
            first = draw(st.integers(0, size - 1))
            step = draw(st.integers(1, 3))
            ours.append(slice(first, None, -step))
            theirs.append(slice(first, None, -step))
        else:
            ours.append(slice(None))
            theirs.append(slice(None))
    if draw(st.booleans()):
        while ours and ours[-1] == slice(None):
            ours.pop()
        ours.append(Ellipsis)
    return tuple(ours), tuple(theirs)


def values(rng, shape, dtype):
    """Elements of any value: NaN, infinities and -0.0 among the floats."""
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.name == "int4":
        return rng.integers(-8, 8, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    special = np.array([0.0, -0.0, 1.5, -2.25, np.nan, np.inf, -np.inf, 1e-3])
    return special[rng.integers(0, len(special), shape)].astype(dtype)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.matrix
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_reads_and_writes_are_those_of_numpy(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    spec = data.draw(specs(shape))
    context = gpustore.Context()
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    spec["kvstore"] = "memory://a"
    transaction = gpustore.Transaction() if data.draw(st.booleans()) else None
    options = {"context": context, "transaction": transaction}
    store = gpustore.open(spec, create=True, **options).result()
    dtype = store.dtype.array_dtype
    fill = np.zeros((), dtype) if store.fill_value is None else store.fill_value
    model = np.full(shape, fill, dtype)
    for _ in range(data.draw(st.integers(1, 5))):
        ours, theirs = data.draw(selections(model.shape))
        action = data.draw(
            st.sampled_from(["write", "write", "broadcast", "read", "resize", "open"])
        )
        if action == "write":
            source = values(rng, model[theirs].shape, dtype)
            store[ours].write(source).result()
            model[theirs] = source
        elif action == "broadcast":
            source = values(rng, model[theirs].shape[-1:], dtype)
            store[ours] = source
            model[theirs] = source
        elif action == "read":
            order = data.draw(st.sampled_from("CF"))
            found = store[ours].read(order=order).result()
            assert same_bits(found, np.asarray(model[theirs]))
        elif action == "resize":
            new = [data.draw(st.integers(0, 9)) for _ in model.shape]
            # An inner chunk beyond the old edge is missing, or was inside and is in a kept shard.
            chunks = store.chunk_layout.write_chunk.shape or ()
            store = store.resize(exclusive_max=new).result()
            model = resized(model, new, chunks, fill, context, store)
        else:
            store = gpustore.open(store.url, **options).result()
        assert store.shape == model.shape
    assert same_bits(store.read().result(), model)
    if transaction is not None:
        transaction.commit_sync()
    again = gpustore.open(store.url, context=context).result()
    assert same_bits(again.read().result(), model)


def resized(model, new, chunks, fill, context, store):
    """The model of a resized array: what a kept chunk held beyond the edge reappears."""
    result = np.full(new, fill, model.dtype)
    kept = tuple(slice(0, min(a, b)) for a, b in zip(model.shape, new, strict=True))
    result[kept] = model[kept]
    # Cells of kept edge chunks beyond the old edge may hold anything written there earlier; the
    # model takes them from the store and checks only that the kept part is unharmed.
    found = store.read().result()
    assert same_bits(np.ascontiguousarray(found[kept]), np.ascontiguousarray(model[kept]))
    grown = np.ones(new, np.bool_)
    grown[kept] = False
    inside = tuple(
        slice(0, -(-old // chunk) * chunk) for old, chunk in zip(model.shape, chunks, strict=True)
    )
    beyond = grown.copy()
    beyond[inside] = False
    assert same_bits(found[beyond], result[beyond])
    return found


@pytest.mark.matrix("costly")
def test_every_kind_of_array_occurs():
    """The strategies reach each type and codec; a list that ran empty would hide that."""
    seen = set()

    @settings(max_examples=600)
    @given(specs((4, 5)))
    def collect(spec):
        metadata = spec["metadata"]
        seen.add(metadata.get("dtype", metadata.get("data_type")))
        seen.add(str(metadata.get("compressor", metadata.get("codecs", [])[1:])))

    collect()
    assert set(V2_TYPES) | set(V3_TYPES) <= seen
    assert {str(c) for c in V2_COMPRESSORS} | {str(c or []) for c in V3_CODECS} <= seen


@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
def test_rank_32_is_read_and_written(driver):
    shape = [1] * 30 + [3, 4]
    store = gpustore.open(
        f"memory://a|{driver}:",
        create=True,
        dtype="uint8",
        shape=shape,
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[1] * 30 + [2, 3]),
    ).result()
    values_ = np.arange(12, dtype=np.uint8).reshape(shape)
    store.write(values_).result()
    assert np.array_equal(store.read().result(), values_)
    assert store[(0,) * 30].read().result().tolist() == values_.reshape(3, 4).tolist()
