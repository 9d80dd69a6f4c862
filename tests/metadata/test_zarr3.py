"""Zarr v3 metadata and constraints, also against the installed tensorstore and zarr-python."""

import json

import numpy as np
import pytest
import tensorstore as ts
import zarr

from gpustore.data_types.dtype import DTYPES
from gpustore.data_types.unit import Unit
from gpustore.errors import MetadataError, MismatchError
from gpustore.metadata.chunk_key_encoding import ChunkKeyEncoding
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.metadata.zarr3 import Zarr3Constraints, Zarr3Metadata, validate
from gpustore.runtime.limits import Limits
from tests.matrix import each

DOCUMENT = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 6],
    "data_type": "uint16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "attributes": {"a": 1, "dimension_units": ["4 nm", None]},
    "dimension_names": ["x", None],
    "foo": {"must_understand": False, "v": 1},
}


def stored(**members):
    return Zarr3Metadata.decode(json.dumps(DOCUMENT | members).encode())


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
    ts.KvStore.open(kvstore, context=context).result()["zarr.json"] = json.dumps(document)
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": constraints}
    return ts.open(spec, context=context).result()


# --------------------------------------------------------------------------- stored metadata


def test_members_are_parsed():
    metadata = stored()
    assert metadata.shape == (4, 6)
    assert metadata.rank == 2
    assert metadata.data_type is DTYPES["uint16"]
    assert metadata.chunk_shape == (2, 3)
    assert metadata.chunk_key_encoding == ChunkKeyEncoding("default", "/")
    assert metadata.fill_value.dtype == np.uint16
    assert metadata.fill_value.shape == ()
    assert metadata.codecs == (NamedConfiguration("bytes", {"endian": "little"}),)
    assert metadata.dimension_names == ("x", None)
    assert metadata.labels == ("x", "")
    assert metadata.dimension_units == (Unit("4 nm"), None)
    assert metadata.extensions == {"foo": {"must_understand": False, "v": 1}}
    assert metadata.to_json() == DOCUMENT


def test_resize_keeps_everything_else():
    metadata = stored().with_shape((7, 1))
    assert metadata.to_json() == DOCUMENT | {"shape": [7, 1]}
    with pytest.raises(MetadataError, match="should have length 1"):
        metadata.with_shape((7,))


def test_labels_are_empty_without_names_and_with_repeated_ones():
    assert stored(dimension_names=["x", "x"]).labels == ("", "")
    assert stored(dimension_names=["x", "x"]).dimension_names == ("x", "x")
    assert stored(dimension_names=["", None]).labels == ("", "")
    document = {n: v for n, v in DOCUMENT.items() if n != "dimension_names"}
    assert Zarr3Metadata.from_json(document).labels == ("", "")


def test_short_hand_is_read_but_not_written():
    metadata = stored(data_type="uint8", codecs=["bytes", "crc32c"], chunk_key_encoding="v2")
    written = metadata.to_json()
    assert written["codecs"] == [{"name": "bytes"}, {"name": "crc32c"}]
    assert written["chunk_key_encoding"] == {"name": "v2"}


def test_equality_is_of_bits():
    nan = stored(data_type="float32", fill_value="NaN")
    assert nan == stored(data_type="float32", fill_value="NaN")
    assert nan != stored(data_type="float32", fill_value="0x7fc00001")
    zero = stored(data_type="float32", fill_value=0.0)
    assert zero != stored(data_type="float32", fill_value=-0.0)
    assert zero != "zero"


def test_fill_value_is_converted_to_data_type():
    metadata = Zarr3Metadata(
        shape=(3,),
        data_type=DTYPES["bfloat16"],
        chunk_shape=(3,),
        fill_value=1.5,
        codecs=(NamedConfiguration("bytes", {"endian": "little"}),),
    )
    assert metadata.fill_value.dtype == DTYPES["bfloat16"].numpy_dtype
    assert metadata.to_json()["fill_value"] == 1.5


def test_lower_limits_are_kept():
    data = json.dumps(DOCUMENT).encode()
    limits = {"chunk_nbytes": 11, "rank": 1, "metadata_nbytes": 100, "metadata_depth": 2}
    for name, limit in limits.items():
        with pytest.raises(ValueError, match="Error reading x: "):
            Zarr3Metadata.decode(data, where="x", limits=Limits(**{name: limit}))
    assert Zarr3Metadata.decode(data, limits=Limits(chunk_nbytes=12)) == stored()


def test_status_is_that_of_tensorstore():
    with pytest.raises(MetadataError) as caught:
        Zarr3Metadata.decode(b"{", where='"zarr.json"')
    assert str(caught.value).startswith('DATA_LOSS: Error reading "zarr.json": Invalid JSON')
    with pytest.raises(MetadataError) as caught:
        Zarr3Metadata.decode(b"[]", where='"zarr.json"')
    assert str(caught.value) == (
        'FAILED_PRECONDITION: Error reading "zarr.json": Expected object, but received: []'
    )


def test_written_bytes_are_those_of_tensorstore():
    context = ts.Context()
    store = ts.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "memory", "path": "a/"},
            "metadata": {n: v for n, v in DOCUMENT.items() if n != "foo"},
        },
        create=True,
        context=context,
    ).result()
    written = store.kvstore["zarr.json"]
    assert Zarr3Metadata.decode(written).encode() == written


@pytest.mark.parametrize(
    ("data_type", "fill_value"),
    [("uint16", 7), ("float32", "NaN"), ("float64", -0.0), ("complex64", [1.0, "-Infinity"])],
)
def test_zarr_python_reads_what_is_written_and_back(data_type, fill_value):
    document = DOCUMENT | {"data_type": data_type, "fill_value": fill_value}
    del document["foo"]
    metadata = Zarr3Metadata.from_json(document)
    store = zarr.storage.MemoryStore(
        {"zarr.json": zarr.core.buffer.cpu.Buffer.from_bytes(metadata.encode())}
    )
    array = zarr.open_array(store, mode="r+")
    assert array.shape == metadata.shape
    assert array.chunks == metadata.chunk_shape
    assert np.asarray(array.fill_value, array.dtype).tobytes() == metadata.fill_value.tobytes()
    array.attrs["b"] = 2
    again = Zarr3Metadata.decode(store._store_dict["zarr.json"].to_bytes())
    assert again.attributes == {**metadata.attributes, "b": 2}
    assert again.with_shape(metadata.shape).fill_value.tobytes() == metadata.fill_value.tobytes()


# --------------------------------------------------------------------------- constraints

CONSTRAINTS = [
    {},
    {"zarr_format": 3},
    {"zarr_format": 3.0, "node_type": "array"},
    {"shape": [4, 6]},
    {"shape": [4, 7]},
    {"shape": [4]},
    {"shape": []},
    {"shape": [4.0, 6]},
    {"data_type": "uint16"},
    {"data_type": {"name": "uint16", "configuration": {}}, "fill_value": 0},
    {"data_type": "uint16", "fill_value": 1},
    {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}},
    {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}}},
    {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}},
    {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
    {"chunk_key_encoding": {"name": "v2"}},
    {"attributes": {}},
    {"attributes": {"a": 1}},
    {"attributes": {"a": 2}},
    {"attributes": {"dimension_units": ["4nm", None]}},
    {"attributes": {"dimension_units": [None, None]}},
    {"attributes": {"dimension_units": ["5nm", None]}},
    {"attributes": {"a": 1, "dimension_units": [None, "s"]}},
    {"dimension_names": ["x", None]},
    {"dimension_names": ["x", "y"]},
    {"storage_transformers": []},
    {"codecs": ["bytes"]},
    {"codecs": [{"name": "bytes", "configuration": {}}]},
    {"codecs": []},
    {"foo": {"must_understand": False, "v": 1}},
    {"foo": {"must_understand": False, "v": 2}},
]

REFUSED_CONSTRAINTS = [
    {"zarr_format": 2},
    {"node_type": "group"},
    {"shape": [-1]},
    {"shape": [4, None]},
    {"shape": [1] * 33},
    {"fill_value": 0},
    {"data_type": "uint8", "fill_value": None},
    {"data_type": "foo"},
    {"chunk_grid": {"name": "regular"}},
    {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}},
    {"chunk_key_encoding": {"name": "foo"}},
    {"codecs": "gzip"},
    {"codecs": [{"configuration": {}}]},
    {"attributes": []},
    {"attributes": {"dimension_units": ["nm"]}, "shape": [1, 2]},
    {"shape": [1, 2], "dimension_names": ["x"]},
    {"storage_transformers": [1]},
    {"foo": 1},
    {"foo": {"must_understand": True}},
    {"chunk_shape": [1, 1]},
]


@each("value", CONSTRAINTS)
def test_constraints_are_printed_as_tensorstore_does(value):
    constraints = Zarr3Constraints.from_json(value)
    spec = ts.Spec({"driver": "zarr3", "metadata": value})
    expected = spec.to_json().get("metadata", {})
    if constraints.to_json() == {"node_type": "array"}:
        expected = {"node_type": "array"}
    assert constraints.to_json() == expected
    assert Zarr3Constraints.from_json(constraints.to_json()) == constraints


@each("value", REFUSED_CONSTRAINTS)
def test_refused_constraints_read_as_in_tensorstore(value):
    expected = tensorstore_text(lambda: ts.Spec({"driver": "zarr3", "metadata": value}))
    with pytest.raises(MetadataError) as caught:
        Zarr3Constraints.from_json(value, "/metadata")
    expected = expected.replace("<discarded>", "member is missing")
    found = str(caught.value)
    assert found.startswith(expected) or found.split(" (")[0] == expected.split(", r<N>")[0]


@each("value", CONSTRAINTS)
def test_validation_agrees_with_tensorstore(value):
    expected = tensorstore_text(lambda: open_in_tensorstore(DOCUMENT, value))
    constraints = Zarr3Constraints.from_json(value)
    if expected is None:
        validate(constraints, stored())
        return
    with pytest.raises(MismatchError) as caught:
        validate(constraints, stored())
    text = expected.replace('Error opening "zarr3" driver: ', "").replace("<discarded>", "null")
    assert str(caught.value) == text


def test_missing_attribute_and_extension_mismatch():
    with pytest.raises(MismatchError, match='Mismatch in "attributes": Expected "b" of 2'):
        validate(Zarr3Constraints(attributes={"b": 2}), stored())
    with pytest.raises(MismatchError, match='Expected "bar" of '):
        validate(Zarr3Constraints(extensions={"bar": {}}), stored())


def test_data_type_mismatch_names_both():
    with pytest.raises(MismatchError) as caught:
        validate(Zarr3Constraints(data_type=DTYPES["uint8"]), stored())
    assert caught.value.text == 'Expected "data_type" of "uint8" but received: "uint16"'


def test_codecs_are_compared_by_the_given_function():
    def refuse(found, asked):
        assert found == stored().codecs
        assert asked == (NamedConfiguration("gzip"),)
        raise MismatchError("Cannot merge")

    constraints = Zarr3Constraints(codecs=(NamedConfiguration("gzip"),))
    with pytest.raises(MismatchError, match='FAILED_PRECONDITION: Mismatch in "codecs": Cannot'):
        validate(constraints, stored(), merge_codecs=refuse)
    validate(constraints, stored(), merge_codecs=lambda found, asked: found)


def test_merge_is_union():
    a = {
        "shape": [4, 6],
        "data_type": "float32",
        "fill_value": "0x7fc00001",
        "attributes": {"a": 1},
        "codecs": ["gzip"],
    }
    b = {
        "zarr_format": 3,
        "data_type": "float32",
        "attributes": {"b": [1]},
        "dimension_names": ["x", None],
        "codecs": ["gzip"],
        "foo": {"must_understand": False},
    }
    first, second = Zarr3Constraints.from_json(a), Zarr3Constraints.from_json(b)
    merged = first.merge(second)
    expected = a | b | {"node_type": "array", "attributes": {"a": 1, "b": [1]}}
    assert merged.to_json() == expected | {"codecs": [{"name": "gzip"}]}
    assert second.merge(first) == merged
    assert merged.merge(merged) == merged
    assert Zarr3Constraints().merge(merged) == merged


@each(
    ("a", "b"),
    [
        ({"shape": [1]}, {"shape": [2]}),
        ({"shape": [1]}, {"dimension_names": ["x", "y"]}),
        ({"data_type": "int8"}, {"data_type": "uint8"}),
        ({"data_type": "int8", "fill_value": 1}, {"data_type": "int8", "fill_value": 2}),
        ({"codecs": ["gzip"]}, {"codecs": ["zstd"]}),
        ({"attributes": {"a": 1}}, {"attributes": {"a": 2}}),
        ({"dimension_names": ["x"]}, {"dimension_names": ["y"]}),
        ({"chunk_key_encoding": {"name": "v2"}}, {"chunk_key_encoding": {"name": "default"}}),
    ],
)
def test_contradictory_constraints_do_not_merge(a, b):
    with pytest.raises((MismatchError, MetadataError)):
        Zarr3Constraints.from_json(a).merge(Zarr3Constraints.from_json(b))


def test_partial_codecs_merge_by_the_given_function():
    a = Zarr3Constraints(codecs=(NamedConfiguration("gzip"),))
    b = Zarr3Constraints(codecs=(NamedConfiguration("gzip", {"level": 3}),))
    assert a.merge(b, merge_codecs=lambda first, second: second).codecs == b.codecs


def test_rank_of_constraints_is_that_of_any_member():
    for value in (
        {"shape": [1, 2]},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}}},
        {"dimension_names": [None, "x"]},
        {"attributes": {"dimension_units": [None, "s"]}},
    ):
        assert Zarr3Constraints.from_json(value).rank == 2
    assert Zarr3Constraints().rank is None
