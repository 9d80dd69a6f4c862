"""Copies and facts of arrays whose elements are records, strings, raw bytes or small numbers."""

import itertools
import json
import math

import numpy as np
import pytest
import tensorstore
import zarr

import gpustore

SHAPE, CHUNK = (7, 10), (3, 4)
FIELDS2 = [["x", ">u2"], ["y", "|S3"], ["z", "<f4", [2, 3]]]
RECORDS2 = np.dtype([("x", ">u2"), ("y", "S3"), ("z", "<f4", (2, 3))])
FIELDS3 = [{"name": "x", "data_type": "int16"}, {"name": "y", "data_type": "float32"}]
STRUCT = {"name": "struct", "configuration": {"fields": FIELDS3}}
RECORDS3 = np.dtype([("x", "<i2"), ("y", "<f4")])
NUMBERS = [
    *("bool", "int8", "uint64", "float16", "bfloat16", "complex64"),
    *("int4", "float8_e4m3fn", "float4_e2m1fn"),
]
OPTIONS = {2: ["", "--chunks=4,10 --codec=zstd"], 3: ["", "--chunks=2,5 --shards=4,5 --codec=gzip"]}


def metadata(version, data_type):
    if version == 2:
        compressor = {"id": "zlib", "level": 1}
        return {"shape": SHAPE, "chunks": CHUNK, "dtype": data_type, "compressor": compressor}
    grid = {"name": "regular", "configuration": {"chunk_shape": CHUNK}}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return {"shape": SHAPE, "data_type": data_type, "chunk_grid": grid, "codecs": codecs}


def make(path, version, data_type, **members):
    """An array of random bytes, as those of its elements."""
    spec = {"driver": f"zarr{version}", "kvstore": f"file://{path}/", **members}
    spec["metadata"] = metadata(version, data_type)
    store = gpustore.open(spec, create=True).result()
    rng = np.random.default_rng(0)
    dtype = store.dtype.array_dtype
    values = rng.integers(0, 256, (*store.shape, dtype.itemsize), np.uint8)
    if dtype == np.bool_ or dtype.name in ("int4", "float4_e2m1fn"):
        values &= 1
    elements = np.ascontiguousarray(values).view(dtype)[..., 0]
    elements[:3, :4] = np.zeros((), dtype)
    store.write(elements).result()
    return elements


def bytes_of(path, **members):
    version = 2 if (path / ".zarray").exists() else 3
    spec = {"driver": f"zarr{version}", "kvstore": f"file://{path}/", "open_as_void": True}
    return gpustore.open({**spec, **members}).result().read().result().tobytes()


@pytest.mark.parametrize(
    ("version", "data_type", "option"),
    [
        (version, json.dumps(data_type), option)
        for version, types in {2: [FIELDS2, "|S5", "|V5"], 3: [STRUCT, "r24"]}.items()
        for data_type, option in itertools.product(types, OPTIONS[version])
    ],
)
def test_whole_elements_keep_their_bytes(version, data_type, option, tmp_path, gpustore_command):
    data_type = json.loads(data_type)
    records = not isinstance(data_type, str)
    make(tmp_path / "a", version, data_type, **({"open_as_void": True} if records else {}))
    code, out, err = gpustore_command(
        "copy", tmp_path / "a", tmp_path / "b", *option.split(), "--memory=1"
    )
    assert (code, err) == (0, "")
    assert ("record of" in out) == records
    assert bytes_of(tmp_path / "b") == bytes_of(tmp_path / "a")
    if version == 2 and not records:  # zarr-python has no subarrays, nor Zarr v3's records
        found = zarr.open_array(str(tmp_path / "b"), mode="r")
        assert found[...].tobytes() == bytes_of(tmp_path / "a")
        assert found.chunks == ((4, 10) if option else CHUNK)
    if records:
        name = "x"
        spec = {"driver": f"zarr{version}", "kvstore": f"file://{tmp_path}/b/", "field": name}
        theirs = tensorstore.open(spec).result().read().result()
        dtype = RECORDS2 if version == 2 else RECORDS3
        whole = np.frombuffer(bytes_of(tmp_path / "a"), dtype).reshape(SHAPE)
        assert np.array_equal(theirs, whole[name])


@pytest.mark.parametrize(
    ("data_type", "before", "after"), list(itertools.product(NUMBERS, (2, 3), (2, 3)))
)
def test_numbers_go_from_each_format_to_each(data_type, before, after, tmp_path, gpustore_command):
    stored = data_type
    if before == 2:
        dtype = gpustore.dtype(data_type).numpy_dtype
        stored = data_type if dtype.isbuiltin == 2 else dtype.str
    values = make(tmp_path / "a", before, stored)
    for n, option in enumerate(OPTIONS[after]):
        code, _, err = gpustore_command(
            *("copy", tmp_path / "a", tmp_path / f"b{n}", f"--zarr-format={after}"),
            *option.split(),
        )
        assert (code, err) == (0, "")
        copied = gpustore.open(str(tmp_path / f"b{n}")).result()
        assert copied.dtype == gpustore.dtype(data_type)
        assert copied.read().result().tobytes() == values.tobytes()
        spec = {"driver": "zarr" if after == 2 else "zarr3"}
        spec["kvstore"] = f"file://{tmp_path}/b{n}/"
        theirs = tensorstore.open(spec).result().read().result()
        assert theirs.tobytes() == values.tobytes()


@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize("name", ["x", "z"])
def test_a_field_becomes_an_array(name, after, tmp_path, gpustore_command):
    make(tmp_path / "a", 2, FIELDS2, open_as_void=True)
    code, _, err = gpustore_command(
        *("copy", tmp_path / "a", tmp_path / "b", f"--field={name}", f"--zarr-format={after}")
    )
    assert (code, err) == (0, "")
    whole = np.frombuffer(bytes_of(tmp_path / "a"), RECORDS2).reshape(SHAPE)
    assert zarr.open_array(str(tmp_path / "b"), mode="r")[...].tobytes() == (
        whole[name].astype(whole[name].dtype.newbyteorder("=")).tobytes()
    )


def test_records_and_strings_stay_in_their_format(tmp_path, gpustore_command):
    make(tmp_path / "a", 2, FIELDS2, open_as_void=True)
    make(tmp_path / "s", 2, "|S5")
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--zarr-format=3")
    assert code == 1
    assert "records cannot be copied from Zarr v2 to v3" in err
    assert "--field (x, y, z)" in err
    code, _, err = gpustore_command("copy", tmp_path / "s", tmp_path / "b", "--zarr-format=3")
    assert code == 1
    assert "elements of 5 chars cannot be copied" in err
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--field=q")
    assert code == 1
    assert 'Requested field "q" is not one of: ["x","y","z"]' in err
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--chunks=3,3,3")
    assert code == 1
    assert "--chunks has 3 extents, but the array has 2 dimensions" in err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("version", [2, 3])
def test_info_lists_the_fields(version, tmp_path, gpustore_command):
    make(tmp_path / "a", version, FIELDS2 if version == 2 else STRUCT, open_as_void=True)
    code, out, _ = gpustore_command("info", tmp_path / "a")
    assert code == 0
    assert "z: <f4 (2 x 3)" in out if version == 2 else "y: float32" in out
    code, out, _ = gpustore_command("info", "--json", tmp_path / "a")
    facts = json.loads(out)
    itemsize = RECORDS2.itemsize if version == 2 else RECORDS3.itemsize
    assert facts["shape"] == list(SHAPE)
    assert facts["chunk"] == list(CHUNK)
    assert facts["nbytes"] == math.prod(SHAPE) * itemsize
    assert facts["dtype"] == f"record of {itemsize} bytes"
    assert [field["name"] for field in facts["fields"]] == (
        ["x", "y", "z"] if version == 2 else ["x", "y"]
    )
    assert facts["values_possible"] == 9
