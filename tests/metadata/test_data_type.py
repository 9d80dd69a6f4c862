"""Names of data types."""

import ml_dtypes
import numpy as np
import pytest

from gpustore.data_types.dtype import DTYPES
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.metadata.data_type import (
    V3_DATA_TYPES,
    data_type_to_json,
    parse_v2_dtype,
    parse_v3_data_type,
    v2_dtype_to_json,
)
from tests.matrix import each


@each("name", V3_DATA_TYPES)
def test_v3_name_is_that_of_tensorstore(name):
    assert parse_v3_data_type(name) is DTYPES[name]
    assert parse_v3_data_type({"name": name, "configuration": {}}) is DTYPES[name]
    assert data_type_to_json(DTYPES[name]) == name


@pytest.mark.parametrize("name", ["json", "char", "byte"])
def test_data_type_without_v3_name_is_refused(name):
    with pytest.raises(MetadataError, match=f"{name} data type is not one of the supported"):
        data_type_to_json(DTYPES[name])


@each("order", "<>")
@each("code", ["i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_v2_typestr_keeps_byte_order(order, code):
    stored = parse_v2_dtype(order + code)
    assert stored == np.dtype(order + code)
    assert v2_dtype_to_json(stored) == order + code


@each("order", "<>|")
@each("code", ["b1", "i1", "u1"])
def test_v2_byte_has_no_order(order, code):
    assert v2_dtype_to_json(parse_v2_dtype(order + code)) == "|" + code


@pytest.mark.parametrize("name", ["bfloat16", "int2", "int4", "float8_e4m3fn", "float4_e2m1fn"])
def test_v2_bare_name(name):
    stored = parse_v2_dtype(name)
    assert stored == DTYPES[name].numpy_dtype
    assert v2_dtype_to_json(stored) == name


@pytest.mark.parametrize("stored", ["O", "float128", ml_dtypes.uint4])
def test_v2_type_that_is_not_built_is_not_written(stored):
    with pytest.raises(UnsupportedError, match="Unsupported zarr dtype"):
        v2_dtype_to_json(np.dtype(stored))


@pytest.mark.parametrize(
    "value",
    ["|S3", "|V2", [["x", "<u2"]], [["x", ">f4", [2, 3]], ["é", "|S5"], ["b", "bfloat16", [1]]]],
)
def test_v2_opaque_type(value):
    assert v2_dtype_to_json(parse_v2_dtype(value)) == value
