"""Arrays whose chunks differ in shape, against NumPy. More: tests/backends."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.errors import GpustoreError

CODECS = {
    "raw": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "transposed": [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "crc32c"},
    ],
    "zstd": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}],
}


def sharded(inner, codecs):
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    options = {"chunk_shape": inner, "codecs": codecs, "index_codecs": index}
    return [{"name": "sharding_indexed", "configuration": options}]


def spec(kvstore, shape, edges, codecs, **members):
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": edges}}
    metadata = {
        "shape": shape,
        "data_type": "uint16",
        "chunk_grid": grid,
        "codecs": codecs,
        "fill_value": 7,
        **members,
    }
    return {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}


@st.composite
def grids(draw, inner=(1, 1)):
    """Shape and edges of an array of rank 2; edges are multiples of `inner`."""
    shape, edges = [], []
    for unit in inner:
        sizes = draw(
            st.lists(st.integers(1, 4).map(lambda n, u=unit: n * u), min_size=1, max_size=6)
        )
        if draw(st.integers(0, 4)) == 0:
            shape.append(draw(st.integers(0, 20)))
            edges.append(sizes[0])
            continue
        beyond = draw(st.integers(0, 3))
        shape.append(max(0, sum(sizes) - beyond))
        edges.append([[size, 1] if draw(st.booleans()) else size for size in sizes])
    return tuple(shape), edges


@st.composite
def stored(draw):
    """Shape, edges and codecs, in shards or not."""
    codecs = CODECS[draw(st.sampled_from(sorted(CODECS)))]
    kind = draw(st.sampled_from(["plain", "shards", "nested"]))
    if kind == "plain":
        return (*draw(grids()), codecs)
    inner = draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
    if kind == "shards":
        return (*draw(grids(inner)), sharded(list(inner), codecs))
    outer = (2 * inner[0], inner[1])
    return (*draw(grids(outer)), sharded(list(outer), sharded(list(inner), codecs)))


@st.composite
def selections(draw, shape):
    """An index of NumPy with slices, integers and an index array."""
    index = []
    for size in shape:
        kind = draw(st.sampled_from(["slice", "integer", "list", "all"]))
        if kind == "integer" and size:
            index.append(draw(st.integers(0, size - 1)))
        elif kind == "list" and size and not any(isinstance(i, list) for i in index):
            index.append(draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8)))
        elif kind == "slice" and size:
            low, high = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
            step = draw(st.integers(1, 3))
            index.append(slice(low, high, step))
        else:
            index.append(slice(None))
    return tuple(index)


def view(store, index):
    """The store indexed as NumPy does, with origin 0."""
    return store.oindex[index]


def of(array, index):
    """NumPy's outer indexing."""
    for d in reversed(range(len(index))):
        array = array[(slice(None),) * d + (index[d],)]
    return array


@st.composite
def views(draw, shape):
    """A view of an array of that shape, as a function of stores and of NumPy's arrays alike."""
    index = []
    for size in shape:
        step = draw(st.sampled_from([1, 1, 2, 3, 5, -1, -2, -4]))
        whole = slice(None, None, step)
        number = draw(st.integers(0, size - 1)) if size and draw(st.integers(0, 5)) == 0 else None
        index.append(whole if number is None else number)
    kind = draw(st.sampled_from(["as it is", "transposed", "added"]))

    def view(array):
        array = array[tuple(index)]
        if kind == "transposed":
            return array.T
        return array[np.newaxis] if kind == "added" else array

    return view


def check_crops(data, store, model):
    """Crops of a view are those of NumPy."""
    view = data.draw(views(model.shape))
    store, model = view(store), view(model)
    extent = tuple(data.draw(st.integers(0, min(n, 9))) for n in model.shape)
    start = st.tuples(*(st.integers(0, n - m) for n, m in zip(model.shape, extent, strict=True)))
    starts = data.draw(st.lists(start, max_size=5))
    indices = np.array(starts, np.int64).reshape(len(starts), model.ndim)
    crops = store.read_many(indices + np.array(store.domain.origin, np.int64), extent).result()
    assert crops.shape == (len(starts), *extent)
    for crop, first in zip(crops, starts, strict=True):
        cut = tuple(slice(at, at + n) for at, n in zip(first, extent, strict=True))
        np.testing.assert_array_equal(crop, model[cut])


@given(stored(), st.data())
def test_what_is_written_is_read_as_numpy_has_it(array, data):
    shape, edges, codecs = array
    store = gpustore.open(spec("memory://", list(shape), edges, codecs), create=True).result()
    model = np.full(shape, 7, "u2")
    index = data.draw(selections(shape))
    rows, columns = (np.arange(n)[i].ravel() for n, i in zip(shape, index, strict=True))
    # Of elements written twice any may stay: they are the same.
    values = (100 * rows[:, None] + columns).astype("u2")
    model[np.ix_(rows, columns)] = values
    view(store, index).write(values.reshape(of(model, index).shape)).result()
    np.testing.assert_array_equal(store.read(order="F").result(), model)
    check_crops(data, store, model)
    if codecs is CODECS["raw"]:
        check_sizes(store, shape, edges)


def check_sizes(store, shape, edges):
    """Chunks are stored with all their elements, as large as their edges say."""
    sizes = [
        [e] * -(-n // e) if isinstance(e, int) else [i[0] if isinstance(i, list) else i for i in e]
        for n, e in zip(shape, edges, strict=True)
    ]
    for key in store.kvstore.list().result():
        if key.startswith(b"c/"):
            i, j = map(int, key[2:].split(b"/"))
            value = store.kvstore.read(key.decode()).result().value
            assert len(value) == 2 * sizes[0][i] * sizes[1][j]


def filled(kvstore, shape, edges, codecs, **options):
    store = gpustore.open(
        spec(kvstore, list(shape), edges, codecs), create=True, open=True, **options
    ).result()
    values = np.arange(np.prod(shape), dtype="u2").reshape(shape)
    store.write(values).result()
    return store, values


KINDS = {
    **CODECS,
    "shards": sharded([1, 2], CODECS["zstd"]),
    "nested": sharded([2, 2], sharded([1, 2], CODECS["raw"])),
}


@pytest.mark.parametrize("limit", [0, 1 << 20])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_crops_batches_views_and_the_cache(kind, limit):
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": limit}})
    edges = [[2, [4, 2], 6], [6, 2, [4, 2]]]
    store, values = filled("memory://", (15, 14), edges, KINDS[kind], context=context)
    for _ in range(2):
        crops = store.read_many([[0, 0], [9, 1], [3, 4], [3, 4]], (6, 9)).result()
        for crop, (y, x) in zip(crops, [(0, 0), (9, 1), (3, 4), (3, 4)], strict=True):
            np.testing.assert_array_equal(crop, values[y : y + 6, x : x + 9])
        few = store[::2].read_many([[0, 13], [7, 0]], (1, 1)).result()
        assert few.ravel().tolist() == [values[0, 13], values[14, 0]]
        with gpustore.Batch() as batch:
            reads = [
                store[3:9].read(batch=batch),
                store[:, 5].read(batch=batch),
                store.oindex[[14, 0, 3], 2:9].read(batch=batch),
                store[4, 4].read(batch=batch),
            ]
        expected = [values[3:9], values[:, 5], values[[14, 0, 3], 2:9], values[4, 4]]
        for read, wanted in zip(reads, expected, strict=True):
            np.testing.assert_array_equal(read.result(), wanted)
        np.testing.assert_array_equal(store.T[::-1, 3:].read().result(), values.T[::-1, 3:])
    again = gpustore.open(store.spec(), context=context).result()
    assert again.chunk_layout == store.chunk_layout
    again[5:7, 5:7].write(0).result()
    values[5:7, 5:7] = 0
    np.testing.assert_array_equal(store.read().result(), values)


def test_diagonals_and_long_strides():
    edges = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]
    store, values = filled("memory://", (15, 15), edges, CODECS["raw"])
    transform = {"input_inclusive_min": [0], "input_exclusive_max": [15]}
    for offset, stride in [(0, 1), (14, -1), (0, 7), (14, -5)]:
        maps = [{"input_dimension": 0}, {"offset": offset, "stride": stride, "input_dimension": 0}]
        size = 15 if abs(stride) == 1 else 15 // abs(stride)
        transform["input_exclusive_max"] = [size]
        view_ = store[gpustore.IndexTransform(json={**transform, "output": maps})]
        i = np.arange(size)
        expected = values[i, offset + stride * i]
        np.testing.assert_array_equal(view_.read().result(), expected)
        crops = view_.read_many([[0], [size - 2], [0]], (2,)).result()
        np.testing.assert_array_equal(crops, [expected[:2], expected[-2:], expected[:2]])


def test_each_chunk_is_read_once_and_in_few_plans():
    """Months: four sizes, however many chunks."""
    months = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] * 10
    store, values = filled("memory://", (sum(months), 4), [months, 2], CODECS["raw"])
    assert len(store._driver.array.plans(store._transform, (8, 2))) == 3
    read = store.read()
    np.testing.assert_array_equal(read.result(), values)
    assert read.statistics["key_reads"] == 2 * len(months)


def test_few_elements_of_astronomic_grids():
    shape, edges = (2**61, 2**60), [[[2, 2**59], [1, 2**60]], 3]
    store = gpustore.open(
        spec("memory://", list(shape), edges, CODECS["raw"]), create=True
    ).result()
    at = np.array([0, 2**60 - 1, 2**60, 2**61 - 1])
    store.vindex[at, at // 2].write(np.arange(4, dtype="u2")).result()
    assert store.vindex[at, at // 2].read().result().tolist() == [0, 1, 2, 3]
    assert store[:: 2**58, 0].read().result().tolist()[1:] == [7] * 7
    with pytest.raises(gpustore.LimitError):
        store[:, 0].read().result()


def test_chunk_layout_says_only_what_is_so():
    def layout(shape, edges, codecs=CODECS["raw"]):
        store = gpustore.open(spec("memory://", shape, edges, codecs), create=True).result()
        found = store.chunk_layout
        return found.read_chunk.shape, found.write_chunk.shape

    assert layout([10, 12], [4, [6, 6]]) == ((4, 6), (4, 6))
    assert layout([10, 12], [4, [5, 5, 2]]) == ((4, None), (4, None))
    # The last size reaches beyond the array, as that of a regular grid would.
    assert layout([10, 12], [4, [[5, 3]]]) == ((4, 5), (4, 5))
    # What is beyond the array does not count.
    assert layout([10, 12], [4, [[6, 2], 1]]) == ((4, 6), (4, 6))
    assert layout([4, 12], [4, [6, 2, 4]], sharded([2, 2], CODECS["raw"])) == ((2, 2), (4, None))


def test_schema_constraints_on_chunks_that_differ_are_a_mismatch():
    given_ = spec("memory://", [6], [[1, 2, 3]], CODECS["raw"])
    context = gpustore.Context()
    gpustore.open(given_, create=True, context=context).result()
    given_.pop("metadata")
    for name in ("read_chunk_shape", "write_chunk_shape", "chunk_shape"):
        layout = gpustore.ChunkLayout(**{name: [2]})
        with pytest.raises(gpustore.MismatchError, match="differ in size"):
            gpustore.open(given_, chunk_layout=layout, context=context).result()
    soft = gpustore.ChunkLayout(chunk_shape_soft_constraint=[2])
    assert gpustore.open(given_, chunk_layout=soft, context=context).result().shape == (6,)
    new = spec("memory://", [6], [[1, 2, 3]], CODECS["raw"])
    with pytest.raises(gpustore.MismatchError, match="differ in size"):
        gpustore.open(new, create=True, chunk_layout=gpustore.ChunkLayout(chunk_shape=[2])).result()


def test_metadata_that_differ_are_a_mismatch():
    context = gpustore.Context()
    made = spec("memory://", [6], [[1, 2, 3]], CODECS["raw"])
    gpustore.open(made, create=True, context=context).result()
    for edges in ([[1, 2, 4]], [3]):
        with pytest.raises(gpustore.MismatchError, match='"chunk_grid"'):
            gpustore.open(spec("memory://", [6], edges, CODECS["raw"]), context=context).result()
    regular = {"name": "regular", "configuration": {"chunk_shape": [3]}}
    other = {"driver": "zarr3", "kvstore": "memory://", "metadata": {"chunk_grid": regular}}
    with pytest.raises(gpustore.MismatchError, match='"chunk_grid"'):
        gpustore.open(other, context=context).result()


def test_arrays_grow_as_far_as_their_edges_and_shrink_by_whole_chunks():
    store, values = filled("memory://", (6, 5), [[1, 2, 3, 4], 2], CODECS["raw"])
    grown = store.resize(exclusive_max=[9, 100]).result()
    assert grown.shape == (9, 100)
    np.testing.assert_array_equal(grown[:6, :5].read().result(), values)
    assert (grown[6:].read().result() == 7).all()
    with pytest.raises(gpustore.MetadataError, match="add up to 10, less than its extent of 11"):
        grown.resize(exclusive_max=[11, 100]).result()
    # Chunk 2 holds elements 3 to 5, so it stays; chunk columns 1 and 2 go.
    small = grown.resize(exclusive_max=[4, 2]).result()
    keys = {key.decode() for key in store.kvstore.list().result()}
    assert keys == {"zarr.json", "c/0/0", "c/1/0", "c/2/0"}
    np.testing.assert_array_equal(small.read().result(), values[:4, :2])
    stored_ = json.loads(store.kvstore.read("zarr.json").result().value)
    assert stored_["chunk_grid"]["configuration"]["chunk_shapes"] == [[1, 2, 3, 4], 2]


@pytest.mark.parametrize(
    ("edges", "codecs", "message"),
    [
        ([[2, 2]], CODECS["raw"], "Chunk edges of dimension 0 add up to 4, less than its extent"),
        ([[]], CODECS["raw"], "add up to 0"),
        ([3, 3], CODECS["raw"], "Array has length 2 but should have length 1"),
        ([[4, 3]], sharded([2], CODECS["raw"]), "does not evenly divide the chunk edge 3"),
        ([[2**40, 2**40]], CODECS["raw"], "chunk_nbytes"),
        ([[2, "2"]], CODECS["raw"], "position 1"),
    ],
)
def test_grids_that_do_not_fit_are_refused(edges, codecs, message):
    with pytest.raises(GpustoreError) as caught:
        gpustore.open(spec("memory://", [6], edges, codecs), create=True).result()
    assert message in str(caught.value)


def reshape(*shape):
    return {"name": "reshape", "configuration": {"shape": list(shape)}}


def test_a_reshape_must_fit_every_chunk():
    edges = [[2, 4], [3, [6, 2]]]
    for fits in ([reshape([0, 1])], [reshape(-1, 3)], [reshape([0], -1, 3), reshape(2, -1)]):
        store = gpustore.open(
            spec("memory://", [6, 15], edges, [*fits, *CODECS["raw"]]), create=True
        ).result()
        values = np.arange(90, dtype=store.dtype.array_dtype).reshape(6, 15)
        store[1:, 2:14] = values[1:, 2:14]
        np.testing.assert_array_equal(store[1:, 2:14].read().result(), values[1:, 2:14])
    # It fits the largest chunk, of shape (4, 6), alone; or all but one.
    for wrong, chunk in (([reshape(24)], "[2,3]"), ([reshape(4, -1)], "[2,3]")):
        made = spec("memory://", [6, 15], edges, [*wrong, *CODECS["raw"]])
        context = gpustore.Context()
        with pytest.raises(gpustore.MetadataError, match="is no shape of chunks") as caught:
            gpustore.open(made, create=True, context=context).result()
        assert '"reshape"' in str(caught.value)
        assert chunk in str(caught.value)
        # Somebody else's.
        stored = gpustore.open(
            spec("memory://", [6, 15], edges, CODECS["raw"]), create=True, context=context
        ).result()
        document = json.loads(stored.kvstore.read("zarr.json").result().value)
        document["codecs"] = made["metadata"]["codecs"]
        stored.kvstore.write("zarr.json", json.dumps(document).encode()).result()
        with pytest.raises(gpustore.MetadataError, match="is no shape of chunks"):
            gpustore.open("memory://|zarr3:", context=context).result()
    many = [list(range(1, 66))] * 2
    made = spec("memory://", [6, 15], many, [reshape([0, 1]), *CODECS["raw"]])
    with pytest.raises(gpustore.UnsupportedError, match="4096 chunk shapes, not 4225"):
        gpustore.open(made, create=True).result()


def test_fields_of_records_and_damaged_chunks():
    fields = [{"name": "x", "data_type": "uint8"}, {"name": "y", "data_type": "int32"}]
    struct = {"name": "struct", "configuration": {"fields": fields}}
    members = {"data_type": struct, "fill_value": {"x": 1, "y": 2}}
    made = spec("memory://", [6], [[1, 3, 2]], CODECS["raw"], **members)
    context = gpustore.Context()
    made["field"] = "y"
    store = gpustore.open(made, create=True, context=context).result()
    store[2:5].write([5, 6, 7]).result()
    assert store.read().result().tolist() == [2, 2, 5, 6, 7, 2]
    other = gpustore.open({**made, "field": "x"}, context=context).result()
    assert other.read().result().tolist() == [1] * 6
    store.kvstore.write("c/1", bytes(14)).result()
    with pytest.raises(gpustore.CorruptChunkError, match="c/1"):
        store.read().result()


def test_strings():
    made = spec("memory://", [5, 4], [[1, 2, 3], [2, [1, 2]]], [{"name": "vlen-utf8"}])
    made["metadata"] |= {"data_type": "string", "fill_value": "none"}
    store = gpustore.open(made, create=True).result()
    values = np.array([str(i) for i in range(20)], object).reshape(5, 4)
    store[1:].write(values[1:]).result()
    assert store[:, 1].read().result().tolist() == ["none", "5", "9", "13", "17"]
    assert store.read_many([[3, 2]], (2, 2)).result().tolist() == values[None, 3:, 2:].tolist()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_explained_beforehand_is_counted(kind):
    store, values = filled("memory://", (15, 14), [[2, [4, 2], 6], [6, 2, [4, 2]]], KINDS[kind])
    explained, crops = store[1:].explain(), store.explain_many([[0, 0], [5, 3]], (7, 6))
    read, many = store[1:].read(), store.read_many([[0, 0], [5, 3]], (7, 6))
    np.testing.assert_array_equal(read.result(), values[1:])
    np.testing.assert_array_equal(many.result(), [values[:7, :6], values[5:12, 3:9]])
    for one, found in ((explained, read.statistics), (crops, many.statistics)):
        assert all(least <= found[name] <= most for name, (least, most) in one.counts.items())
        assert one.chunks == found["chunks_planned"]
    assert explained.chunk_shape == ((6, 6) if kind in CODECS else (1, 2))
