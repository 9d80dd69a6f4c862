"""transpose against TensorStore and zarr-python: layouts, metadata, merging and inner orders."""

import itertools
import json
import random

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.codec_chain.chain_spec import parse_v3
from gpustore.codec_chain.merge import complete_v3, inner_order_v3, merge_v3
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.data_types.dtype import DTYPES, uint8, uint16
from gpustore.errors import MetadataError, MismatchError
from gpustore.metadata.component import select
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.strict_json.parsing import text
from tests.codec_chain.test_chain import Oracle, decoded_array, encoded_array
from tests.codec_chain.test_merge import attempt, codec, created_v3, named, to_json
from tests.matrix import each


def whole(dtype):
    """The component of stored elements that are numbers."""
    return select(dtype, "", as_void=False)


def transpose(order):
    return codec("transpose", order=order)


BYTES = codec("bytes", endian="little")
PERMUTATIONS = [list(order) for order in itertools.permutations(range(3))]


def resolved(orders, shape, data_type=uint16):
    codecs = complete_v3(named([*map(transpose, orders), "bytes"]), data_type, len(shape))
    return resolve_v3(codecs, data_type, shape)


def numbers(shape, dtype="<u2"):
    return (np.arange(np.prod(shape, dtype=int)) % 251).astype(dtype).reshape(shape)


@given(st.data())
def test_layouts_are_those_of_numpy(data):
    shape = data.draw(st.lists(st.integers(1, 4), max_size=5))
    dims = list(range(len(shape)))
    permutation = st.one_of(st.permutations(dims), st.sampled_from(["C", "F"]))
    orders = data.draw(st.lists(permutation, max_size=4))
    chain = resolved(orders, shape)
    array = stored = numbers(shape)
    inner_order = np.array(dims, int)
    for order in orders:
        axes = {"C": dims, "F": dims[::-1]}.get(order, order) if isinstance(order, str) else order
        stored, inner_order = stored.transpose(axes), inner_order[axes]
    assert chain.is_raw
    assert encoded_array(chain, array) == stored.tobytes()
    assert (decoded_array(chain, stored.tobytes()) == array).all()
    assert chain.inner_order == tuple(inner_order)
    assert chain.layout.shape == tuple(shape)


@each("first", PERMUTATIONS)
@each("second", [None, *PERMUTATIONS[1:4], "F"])
@each("name", ["uint8", "float32"])
def test_chunks_are_those_of_tensorstore(first, second, name):
    data_type, shape = DTYPES[name], (2, 3, 4)
    codecs = [transpose(order) for order in (first, second) if order is not None]
    metadata = {"shape": shape, "data_type": name, "codecs": [*codecs, "bytes"]}
    oracle = Oracle({"driver": "zarr3", "metadata": metadata}, "c/0/0/0")
    completed = complete_v3(named(metadata["codecs"]), data_type, 3)
    chain = resolve_v3(completed, data_type, shape)
    array = numbers(shape, data_type.numpy_dtype)
    encoded = oracle.write(array)
    assert encoded_array(chain, array) == encoded
    assert (decoded_array(chain, encoded) == array).all()
    assert chain.inner_order == oracle.store.chunk_layout.inner_order
    assert chain.to_json() == {"codecs": oracle.store.codec.to_json()["codecs"]}


@pytest.mark.parametrize("order", PERMUTATIONS, ids=str)
def test_chunks_of_zarr_python_are_read(order):
    store = {}
    written = zarr.create_array(
        zarr.storage.MemoryStore(store),
        shape=(2, 3, 4),
        chunks=(2, 3, 4),
        dtype="uint16",
        filters=[zarr.codecs.TransposeCodec(order=order)],
        compressors=[zarr.codecs.GzipCodec(level=1)],
    )
    array = numbers((2, 3, 4))
    written[:] = array
    chain = resolve_v3(named(written.metadata.to_dict()["codecs"]), uint16, (2, 3, 4))
    assert (decoded_array(chain, store["c/0/0/0"].to_bytes()) == array).all()


def test_the_inner_order_of_flat_chunks_is_that_of_the_codecs():
    chain = resolved(["F"], (1, 1))
    assert chain.layout == resolved([], (1, 1)).layout
    assert chain.inner_order == (1, 0)
    assert resolve_v2(None, None, whole(np.dtype("u1")), (1, 1), "F").inner_order == (1, 0)
    assert resolve_v2(None, None, whole(np.dtype("u1")), (1, 1), "C").inner_order == (0, 1)


# --------------------------------------------------------------------------- validation

WRONG = [
    ["transpose"],
    [transpose([0, 0, 1])],
    [transpose([0, 1, 3])],
    [transpose([0, -1, 2])],
    [transpose([0, 32])],
    [transpose([True, 1])],
    [transpose([0.5])],
    [transpose("x")],
    [transpose("c")],
    [transpose(5)],
    [transpose(None)],
    [transpose({})],
    [transpose(list(range(33)))],
    [codec("transpose", order=[0], x=1)],
    ["bytes", transpose("C")],
    ["gzip", transpose([0])],
    ["gzip", transpose("F"), "bytes"],
    [transpose("F"), "gzip", "bytes"],
    [transpose("F"), "bytes", "bytes"],
    [transpose("F"), "bytes", transpose("F"), "gzip"],
]


@each("codecs", WRONG)
def test_refuses_wrong_codecs_in_tensorstores_words(codecs):
    with pytest.raises(ValueError, match="Error parsing") as theirs:
        created_v3(codecs, "uint16")
    with pytest.raises(MetadataError) as ours:
        parse_v3(named(codecs), stored=False)
    assert (
        str(theirs.value)
        .removeprefix('Error parsing object member "metadata": ')
        .startswith(str(ours.value))
    )


@pytest.mark.parametrize(
    ("codecs", "reason"),
    [
        ([transpose([0])], "array -> bytes codec must be specified"),
        ([codec("gzip", level=1), transpose([0]), BYTES], "array -> bytes codec must be specified"),
        ([BYTES, transpose([0])], "Expected bytes -> bytes codec, but received: "),
        ([{"name": "transpose"}, BYTES], "No matching value binder: Expected array, but member"),
    ],
    ids=text,
)
def test_refuses_stored_codecs_out_of_order(codecs, reason):
    with pytest.raises(MetadataError, match=r'^Error parsing object member "codecs": ') as caught:
        parse_v3(named(codecs), stored=True)
    assert reason in str(caught.value)


def test_refuses_an_order_for_another_rank():
    codecs = named([transpose([1, 0]), BYTES])
    through = 'through codec {"configuration":{"order":[1,0]},"name":"transpose"}: '
    rank = "{1, 0} is not a valid dimension permutation for a rank 3 array"
    for function in (
        lambda: resolve_v3(codecs, uint16, (1, 2, 3)),
        lambda: complete_v3(codecs, uint16, 3),
    ):
        with pytest.raises(MetadataError) as caught:
            function()
        assert str(caught.value) == f"Error resolving codec spec {through}{rank}"
    with pytest.raises(MetadataError) as caught:
        inner_order_v3(codecs, 3)
    assert str(caught.value) == f"Error propagating data type and shape {through}{rank}"


def test_words_are_read_and_stored_as_permutations():
    stored = named([transpose("F"), BYTES])
    assert parse_v3(stored, stored=True) == stored
    assert resolve_v3(stored, uint8, (2, 3)).inner_order == (1, 0)
    assert to_json(complete_v3(stored, uint16, 3))[0] == transpose([2, 1, 0])
    assert to_json(complete_v3(named([transpose("C")]), uint16, 3))[0] == transpose([0, 1, 2])
    assert to_json(complete_v3(named([transpose([1.0, 0.0])]), uint16, 2))[0] == transpose([1, 0])


# --------------------------------------------------------------------------- merging

SPECS = [
    [],
    ["bytes"],
    ["gzip"],
    [transpose("C")],
    [transpose("F")],
    [transpose([1, 0])],
    [transpose([0, 1, 2])],
    [transpose([2, 1, 0])],
    [transpose("F"), transpose("C")],
    [transpose([2, 1, 0]), transpose([2, 0, 1]), "bytes"],
    [transpose("F"), transpose("F"), transpose("F"), "bytes"],
    [transpose([2, 1, 0]), "bytes", "gzip"],
]


@each(("a", "b"), [*itertools.product(SPECS, repeat=2)])
def test_merges_as_tensorstore_does(a, b):
    def theirs():
        schema = tensorstore.Schema(codec=tensorstore.CodecSpec({"driver": "zarr3", "codecs": a}))
        schema.update(codec=tensorstore.CodecSpec({"driver": "zarr3", "codecs": b}))
        return schema.codec.to_json()["codecs"]

    expected, message = attempt(theirs)
    if message is None:
        assert to_json(merge_v3(named(a), named(b))) == expected
        return
    with pytest.raises(MismatchError) as ours:
        merge_v3(named(a), named(b))
    assert message.split(" [source", 1)[0].endswith(f": {ours.value.text}")


def test_a_strict_merge_tolerates_no_transpose():
    a, b = named([transpose([1, 0]), "bytes"]), named(["bytes"])
    assert merge_v3(a, b) == merge_v3(b, a) == a
    assert merge_v3(a, named([transpose("F")]), strict=True) == a
    for pair, numbers in (((a, b), "1 vs 0"), ((b, a), "0 vs 1")):
        with pytest.raises(MismatchError, match="Mismatch in number of array -> array codecs") as c:
            merge_v3(*pair, strict=True)
        assert str(c.value).endswith(f"({numbers})")


# --------------------------------------------------------------------------- inner orders


def test_an_inner_order_adds_a_transpose_before_the_bytes():
    found = complete_v3(named(["gzip"]), uint8, 3, inner_order=(2, 0, 1))
    assert [one.name for one in found] == ["transpose", "bytes", "gzip"]
    assert resolve_v3(found, uint8, (2, 3, 4)).inner_order == (2, 0, 1)
    codecs = named([transpose("F")])
    assert len(complete_v3(codecs, uint8, 3, inner_order=(2, 1, 0))) == 2
    assert inner_order_v3(codecs, 3) is None
    assert inner_order_v3(named([transpose("F"), "bytes"]), 3) == (2, 1, 0)


def _created(library, metadata, keywords, writes):
    """Everything a new array stores, and its layout and codecs; or the text of the error."""
    context = library.Context()
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    store = library.open(spec, create=True, context=context, **keywords).result()
    for selection, values in writes:
        store[selection] = values
    kvstore = library.KvStore.open("memory://", context=context).result()
    files = {str(key): kvstore.read(key).result().value for key in kvstore.list().result()}
    described = store.chunk_layout.to_json(), store.codec.to_json()
    return _readable(files), described, store.read().result().tolist()


def _readable(files):
    return {
        name: json.loads(value) if "zarr.json" in name else bytes(value)
        for name, value in files.items()
    }


def _random_case(rng):
    rank = rng.randint(0, 4)
    dims = list(range(rank))

    def order():
        return rng.choice(["C", "F", rng.sample(dims, rank), rng.sample(dims, rank)])

    def codecs():
        chain = [transpose(order()) for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))]
        chain += rng.choice([[], ["bytes"], [codec("bytes", endian="big")]])
        return chain + rng.choice([[], [], ["crc32c"]])

    shape = [rng.choice([1, 2, 3, 5]) for _ in dims]
    metadata = {"shape": shape, "data_type": rng.choice(["uint8", "uint16", "float32"])}
    layout = {"chunk_shape": [rng.choice([1, 2, 3]) for _ in dims]}
    if rng.random() < 0.6:
        layout[rng.choice(["inner_order", "inner_order_soft_constraint"])] = rng.sample(dims, rank)
    given = {name: codecs() for name in ("metadata", "schema") if rng.random() < 0.4}
    if "metadata" in given:
        metadata["codecs"] = given["metadata"]
    values = numbers(shape, metadata["data_type"])
    part = tuple(slice(0, size - 1, 2) for size in shape)
    more = np.asarray(values[part] + 1, values.dtype)
    return metadata, layout, given.get("schema"), [(..., values), (part, more)]


@pytest.mark.matrix("costly")
@each("seed", range(150))
def test_new_arrays_are_those_of_tensorstore(seed):
    metadata, layout, schema, writes = _random_case(random.Random(seed))

    def outcome(library):
        keywords = {"chunk_layout": library.ChunkLayout(**layout)}
        if schema is not None:
            keywords["codec"] = library.CodecSpec({"driver": "zarr3", "codecs": schema})
        return _created(library, metadata, keywords, writes)

    expected, message = attempt(outcome, tensorstore)
    if message is None:
        assert outcome(gpustore) == expected
        return
    with pytest.raises((MetadataError, MismatchError)):
        outcome(gpustore)


@each("order", PERMUTATIONS)
@each("hard", [True, False])
def test_opening_compares_the_inner_order(order, hard, tmp_path):
    base = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}
    metadata = {"shape": [2, 3, 4], "data_type": "uint8", "codecs": [transpose([2, 0, 1]), "bytes"]}
    tensorstore.open({**base, "metadata": metadata}, create=True).result()
    name = "inner_order" if hard else "inner_order_soft_constraint"

    def opened(library):
        layout = library.ChunkLayout(**{name: order})
        return library.open(base, chunk_layout=layout).result().chunk_layout.to_json()

    expected, message = attempt(opened, tensorstore)
    assert (message is None) == (not hard or order == [2, 0, 1])
    if message is None:
        assert opened(gpustore) == expected
        return
    with pytest.raises(MetadataError, match="inner_order"):
        opened(gpustore)


@pytest.mark.parametrize("codecs", [["gzip"], [transpose("F")], ["bytes"]], ids=text)
def test_codecs_of_the_metadata_leave_no_room_for_an_inner_order(codecs, tmp_path):
    metadata = {"shape": [2, 3, 4], "data_type": "uint8", "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/", "metadata": metadata}
    with pytest.raises((MetadataError, MismatchError), match=r"Mismatch in|inner_order"):
        gpustore.open(
            spec, create=True, chunk_layout=gpustore.ChunkLayout(inner_order=[2, 0, 1])
        ).result()
    assert not list(tmp_path.rglob("zarr.json"))


def test_codecs_are_equal_however_the_numbers_are_written():
    assert NamedConfiguration("transpose", {"order": [1, 0]}) == NamedConfiguration(
        "transpose", {"order": [1.0, 0.0]}
    )
