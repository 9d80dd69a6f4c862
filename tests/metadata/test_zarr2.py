"""Zarr v2 metadata and constraints, also against the installed tensorstore and zarr-python."""

import json

import numpy as np
import pytest
import tensorstore as ts
import zarr

from gpustore.drivers.zarr2 import Zarr2Format
from gpustore.errors import MetadataError, MismatchError
from gpustore.metadata.zarr2 import Zarr2Constraints, Zarr2Metadata, validate
from gpustore.metadata.zarr2_member import UNSET
from gpustore.runtime.limits import Limits
from tests.matrix import each

DOCUMENT = {
    "zarr_format": 2,
    "shape": [4, 6],
    "chunks": [2, 3],
    "dtype": "<u2",
    "compressor": {"id": "zlib", "level": 1},
    "fill_value": 0,
    "order": "C",
    "filters": None,
    "foo": [1],
}


def stored(**members):
    return Zarr2Metadata.decode(json.dumps(DOCUMENT | members).encode())


def tensorstore_text(function):
    """The text with which tensorstore refuses, or None."""
    try:
        function()
    except (ValueError, NotImplementedError) as error:
        return str(error).split(" [tensorstore_spec")[0]
    return None


def open_in_tensorstore(document, constraints):
    context = ts.Context()
    kvstore = {"driver": "memory", "path": "a/"}
    ts.KvStore.open(kvstore, context=context).result()[".zarray"] = json.dumps(document)
    spec = {"driver": "zarr", "kvstore": kvstore, "metadata": constraints}
    return ts.open(spec, context=context).result()


# --------------------------------------------------------------------------- stored metadata


def test_members_are_parsed():
    metadata = stored(dtype=">f4", fill_value="1.5", order="F", filters=[{"id": "delta"}])
    assert metadata.shape == (4, 6)
    assert metadata.rank == 2
    assert metadata.chunks == metadata.chunk_shape == (2, 3)
    assert metadata.dtype == np.dtype(">f4")
    assert metadata.dtype == np.dtype(">f4")
    assert metadata.fill_value.dtype == np.dtype("=f4")
    assert metadata.fill_value == 1.5
    assert metadata.compressor == {"id": "zlib", "level": 1}
    assert metadata.order == "F"
    assert metadata.filters == ({"id": "delta"},)
    assert metadata.extra == {"foo": [1]}
    assert metadata.dimension_separator is None
    assert metadata.chunk_key_encoding.key((1, 2)) == "1.2"


def test_resize_keeps_everything_else():
    assert stored().with_shape((7, 1)).to_json() == DOCUMENT | {"shape": [7, 1]}
    with pytest.raises(MetadataError, match="should have length 1"):
        stored().with_shape((7,))


def test_no_fill_value_and_no_filters():
    metadata = stored(fill_value=None, filters=[])
    assert metadata.fill_value is None
    assert metadata.filters is None
    assert metadata.to_json()["fill_value"] is None
    assert metadata.to_json()["filters"] is None


def test_separator_of_spec_holds_where_document_has_none():
    slash = Zarr2Constraints(dimension_separator="/")
    validate(slash, stored())
    nested = stored(dimension_separator="/")
    for constraints, metadata, key in [
        (slash, stored(), "1/2"),
        (Zarr2Constraints(dimension_separator="."), stored(), "1.2"),
        (Zarr2Constraints(), stored(), "1.2"),
        (Zarr2Constraints(), nested, "1/2"),
    ]:
        found = Zarr2Format().completed(constraints, metadata)
        assert found.chunk_key_encoding.key((1, 2)) == key
    with pytest.raises(MismatchError, match='Expected "dimension_separator" of '):
        validate(Zarr2Constraints(dimension_separator="."), nested)


def test_every_nan_is_the_one_that_is_written():
    odd = np.array(0x7FC00001, dtype=np.uint32).view(np.float32)
    metadata = Zarr2Metadata(shape=(3,), chunks=(3,), dtype=np.dtype("<f4"), fill_value=odd)
    assert metadata.fill_value.tobytes() == np.float32("nan").tobytes()
    assert Zarr2Metadata.decode(metadata.encode()) == metadata


def test_chunk_limit_holds():
    data = json.dumps(DOCUMENT).encode()
    with pytest.raises(ValueError, match=r'Error reading x: .* "chunks": Chunk of shape \[2,3\]'):
        Zarr2Metadata.decode(data, where="x", limits=Limits(chunk_nbytes=11))
    assert Zarr2Metadata.decode(data, limits=Limits(chunk_nbytes=12)) == stored()


def test_status_is_that_of_tensorstore():
    for data in (b"{", b"[]"):
        with pytest.raises(
            MetadataError, match=r'^FAILED_PRECONDITION: Error reading "\.zarray": '
        ):
            Zarr2Metadata.decode(data)


def test_written_bytes_are_those_of_tensorstore():
    context = ts.Context()
    store = ts.open(
        {
            "driver": "zarr",
            "kvstore": {"driver": "memory", "path": "a/"},
            "metadata": {n: v for n, v in DOCUMENT.items() if n != "foo"},
        },
        create=True,
        context=context,
    ).result()
    written = store.kvstore[".zarray"]
    assert Zarr2Metadata.decode(written).encode() == written


@pytest.mark.parametrize(
    ("dtype", "fill_value"),
    [("<u2", 7), (">f4", "NaN"), ("<f8", -0.0), ("|b1", True), (">i8", -(2**63)), ("<u2", None)],
)
def test_zarr_python_reads_what_is_written_and_back(dtype, fill_value):
    metadata = stored(dtype=dtype, fill_value=fill_value, order="F")
    store = zarr.storage.MemoryStore(
        {".zarray": zarr.core.buffer.cpu.Buffer.from_bytes(metadata.encode())}
    )
    array = zarr.open_array(store, mode="r+")
    assert array.shape == metadata.shape
    assert array.chunks == metadata.chunks
    assert array.dtype == metadata.dtype
    if fill_value is not None:
        found = np.asarray(array.metadata.fill_value, metadata.dtype.newbyteorder("="))
        assert found.tobytes() == metadata.fill_value.tobytes()
    array.resize((8, 8))
    again = Zarr2Metadata.decode(store._store_dict[".zarray"].to_bytes())
    assert again.shape == (8, 8)
    assert again.dtype == metadata.dtype
    assert again.order == "F"
    assert again.to_json()["fill_value"] == metadata.to_json()["fill_value"]


# --------------------------------------------------------------------------- constraints

CONSTRAINTS = [
    {},
    {"zarr_format": 2},
    {"zarr_format": 2.0},
    {"shape": [4, 6]},
    {"shape": [4, 7]},
    {"shape": [4]},
    {"shape": [4.0, 6]},
    {"chunks": [2, 3]},
    {"chunks": [1, 1]},
    {"chunks": [1]},
    {"dtype": "<u2"},
    {"dtype": ">u2"},
    {"dtype": "bfloat16"},
    {"dtype": "<u2", "fill_value": 0},
    {"dtype": "<u2", "fill_value": 1},
    {"dtype": "<u2", "fill_value": None},
    {"order": "C"},
    {"order": "F"},
    {"compressor": None},
    {"compressor": {"id": "zlib", "level": 1}},
    {"compressor": {"id": "zlib", "level": 2}},
    {"filters": None},
    {"filters": []},
    {"dimension_separator": "/"},
    {"dimension_separator": "."},
]

REFUSED_CONSTRAINTS = [
    {"zarr_format": 3},
    {"shape": [-1]},
    {"shape": [1] * 33},
    {"chunks": [0]},
    {"shape": [1], "chunks": [1, 2]},
    {"fill_value": 0},
    {"fill_value": None},
    {"dtype": "u2"},
    {"dtype": "<u2", "fill_value": "x"},
    {"dtype": "<f4", "fill_value": "x"},
    {"dtype": "<c8", "fill_value": 1},
    {"order": None},
    {"order": "A"},
    {"compressor": "zlib"},
    {"compressor": {}},
    {"dimension_separator": "-"},
    {"foo": 1},
]


@each("value", CONSTRAINTS)
def test_constraints_are_printed_as_tensorstore_does(value):
    constraints = Zarr2Constraints.from_json(value)
    spec = ts.Spec({"driver": "zarr", "metadata": value})
    assert constraints.to_json() == spec.to_json().get("metadata", {})
    assert Zarr2Constraints.from_json(constraints.to_json()) == constraints


@each("value", REFUSED_CONSTRAINTS)
def test_refused_constraints_read_as_in_tensorstore(value):
    expected = tensorstore_text(lambda: ts.Spec({"driver": "zarr", "metadata": value}))
    with pytest.raises(MetadataError) as caught:
        Zarr2Constraints.from_json(value, "/metadata")
    assert str(caught.value).startswith(expected)


@each("value", CONSTRAINTS)
@each("members", [{}, {"dimension_separator": "."}], ids=["-", "separator"])
def test_validation_agrees_with_tensorstore(value, members):
    expected = tensorstore_text(lambda: open_in_tensorstore(DOCUMENT | members, value))
    constraints = Zarr2Constraints.from_json(value)
    if expected is None:
        validate(constraints, stored(**members))
        return
    with pytest.raises(MismatchError) as caught:
        validate(constraints, stored(**members))
    assert str(caught.value) == expected.replace('Error opening "zarr" driver: ', "")


def test_compressors_are_compared_with_their_defaults():
    constraints = Zarr2Constraints(compressor={"id": "zlib"})
    with pytest.raises(MismatchError, match='"id":"zlib"} but'):
        validate(constraints, stored())
    validate(constraints, stored(), complete_compressor=lambda codec: {"level": 1, **codec})
    with pytest.raises(MismatchError, match='"id":"zlib","level":1} but received: null'):
        validate(
            constraints,
            stored(compressor=None),
            complete_compressor=lambda codec: {"level": 1, **codec},
        )


def test_merge_is_union():
    a = {"shape": [4], "dtype": "<f4", "fill_value": "NaN", "compressor": None}
    b = {"chunks": [2], "dtype": "<f4", "filters": None, "order": "F"}
    first, second = Zarr2Constraints.from_json(a), Zarr2Constraints.from_json(b)
    merged = first.merge(second)
    assert merged.to_json() == a | b
    assert second.merge(first) == merged
    assert merged.merge(merged) == merged
    assert Zarr2Constraints().merge(merged) == merged
    assert hash(second.merge(first)) == hash(merged)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"shape": [1]}, {"shape": [2]}),
        ({"shape": [1]}, {"chunks": [1, 2]}),
        ({"dtype": "<u2"}, {"dtype": ">u2"}),
        ({"dtype": "<u2", "fill_value": 1}, {"dtype": "<u2", "fill_value": None}),
        ({"compressor": None}, {"compressor": {"id": "zlib"}}),
        ({"dimension_separator": "."}, {"dimension_separator": "/"}),
    ],
    ids=json.dumps,
)
def test_contradictory_constraints_do_not_merge(a, b):
    with pytest.raises((MismatchError, MetadataError)):
        Zarr2Constraints.from_json(a).merge(Zarr2Constraints.from_json(b))


def test_rank_and_data_type_of_constraints():
    assert Zarr2Constraints(shape=(1, 2)).rank == Zarr2Constraints(chunks=(1, 2)).rank == 2
    assert Zarr2Constraints().rank is None
    assert Zarr2Constraints().fill_value is UNSET
