"""Copies and facts of arrays whose elements are records, strings, raw bytes or small numbers."""

import base64
import itertools
import json
import math

import numpy as np
import pytest
import tensorstore
import zarr

import gpustore
from gpustore.copying import elements

SHAPE, CHUNK = (7, 10), (3, 4)
FIELDS2 = [["x", ">u2"], ["y", "|S3"], ["z", "<f4", [2, 3]]]
RECORDS2 = np.dtype([("x", ">u2"), ("y", "S3"), ("z", "<f4", (2, 3))])
FIELDS3 = [{"name": "x", "data_type": "int16"}, {"name": "y", "data_type": "float32"}]
STRUCT = {"name": "struct", "configuration": {"fields": FIELDS3}}
RECORDS3 = np.dtype([("x", "<i2"), ("y", "<f4")])
NUMBERS = [
    *("bool", "int8", "uint64", "float16", "bfloat16", "float64", "complex64", "complex128"),
    *("int2", "int4", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
]
OPTIONS = {2: ["", "--chunks=4,10 --codec=zstd"], 3: ["", "--chunks=2,5 --shards=4,5 --codec=gzip"]}


def metadata(version, data_type):
    if version == 2:
        compressor = {"id": "zlib", "level": 1}
        return {"shape": SHAPE, "chunks": CHUNK, "dtype": data_type, "compressor": compressor}
    grid = {"name": "regular", "configuration": {"chunk_shape": CHUNK}}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return {"shape": SHAPE, "data_type": data_type, "chunk_grid": grid, "codecs": codecs}


def make(path, version, data_type, *, more=None, **members):
    """An array of random bytes, as those of its elements."""
    spec = {"driver": f"zarr{version}", "kvstore": f"file://{path}/", **members}
    spec["metadata"] = metadata(version, data_type) | (more or {})
    store = gpustore.open(spec, create=True).result()
    rng = np.random.default_rng(0)
    dtype = store.dtype.array_dtype
    values = rng.integers(0, 256, (*store.shape, dtype.itemsize), np.uint8)
    if dtype == np.bool_ or dtype.name in ("int2", "int4", "float4_e2m1fn"):
        values &= 1
    elements = np.ascontiguousarray(values).view(dtype)[..., 0]
    elements[:3, :4] = np.zeros((), dtype)
    store.write(elements).result()
    return elements


def bytes_of(path, **members):
    version = 2 if (path / ".zarray").exists() else 3
    spec = {"driver": f"zarr{version}", "kvstore": f"file://{path}/", "open_as_void": True}
    return gpustore.open({**spec, **members}).result().read().result().tobytes()


@pytest.mark.matrix
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


@pytest.mark.matrix
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
    found = zarr.open_array(str(tmp_path / "b"), mode="r")
    assert found.chunks == CHUNK + whole[name].shape[2:]
    native = whole[name].dtype.newbyteorder("=")
    assert found[...].astype(native).tobytes() == whole[name].astype(native).tobytes()


def test_a_field_of_bytes_becomes_an_array_of_them(tmp_path, gpustore_command):
    more = [("w", "|V2"), ("s", "|V2", (2,))]
    make(tmp_path / "a", 2, [*FIELDS2, *map(list, more)], open_as_void=True)
    whole = np.frombuffer(bytes_of(tmp_path / "a"), [*RECORDS2.descr, *more])
    for name, after in (("y", 2), ("w", 2), ("w", 3), ("s", 2), ("s", 3)):
        path = tmp_path / f"{name}{after}"
        code, _, err = gpustore_command(
            *("copy", tmp_path / "a", path, f"--field={name}", f"--zarr-format={after}")
        )
        assert (code, err) == (0, "")
        assert bytes_of(path) == whole[name].tobytes()
    code, _, err = gpustore_command(
        *("copy", tmp_path / "a", tmp_path / "b", "--field=y", "--zarr-format=3")
    )
    assert (code, "|S3, which Zarr v3 does not have; copy to Zarr v2" in err) == (1, True)


def test_a_field_keeps_its_fill_value_unless_places_of_a_subarray_differ(
    tmp_path, gpustore_command
):
    fill = np.zeros((), RECORDS2)
    fill["x"], fill["y"], fill["z"] = 7, b"hi", np.arange(6).reshape(2, 3)
    described = metadata(2, FIELDS2) | {"fill_value": base64.b64encode(fill.tobytes()).decode()}
    spec = {"driver": "zarr2", "kvstore": f"file://{tmp_path}/a/", "open_as_void": True}
    gpustore.open({**spec, "metadata": described}, create=True).result()
    for name, after in itertools.product("xz", (2, 3)):
        path = tmp_path / f"{name}{after}"
        code, out, _ = gpustore_command(
            *("copy", tmp_path / "a", path, f"--field={name}", f"--zarr-format={after}")
        )
        assert code == 0
        assert ("note: the subarray has no single fill value" in out) == (name == "z")
        found = zarr.open_array(str(path), mode="r")
        assert np.array_equal(found[...], np.broadcast_to(fill[name], found.shape))
        if name == "x":
            assert found.fill_value == 7
            assert found.nchunks_initialized == 0


def test_a_field_of_zarr3_keeps_names_and_attributes(tmp_path, gpustore_command):
    make(
        tmp_path / "a",
        3,
        STRUCT,
        open_as_void=True,
        more={"dimension_names": ["t", None], "attributes": {"author": "A"}},
    )
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--field=y")
    assert (code, err) == (0, "")
    before, after = (json.loads((tmp_path / p / "zarr.json").read_text()) for p in "ab")
    different = {"data_type", "fill_value"}
    assert {k for k in before if before[k] != after[k]} == different
    whole = np.frombuffer(bytes_of(tmp_path / "a"), RECORDS3).reshape(SHAPE)
    found = zarr.open_array(str(tmp_path / "b"), mode="r")
    assert found[...].tobytes() == whole["y"].tobytes()


def test_records_of_one_field_stay_records(tmp_path, gpustore_command):
    make(tmp_path / "a", 2, [["x", ">u2"]], open_as_void=True)
    code, out, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--chunks=2,2")
    assert (code, err) == (0, "")
    assert "x: >u2" in out
    assert json.loads((tmp_path / "b" / ".zarray").read_text())["dtype"] == [["x", ">u2"]]
    assert bytes_of(tmp_path / "b") == bytes_of(tmp_path / "a")


BOTH = {  # Zarr v2's fields, Zarr v3's data type, fill value as bytes of Zarr v2
    "big": (
        [["x", ">u2"], ["y", ">f8"], ["q", "|b1"], ["r", "|V3"]],
        [("x", "uint16"), ("y", "float64"), ("q", "bool"), ("r", "r24")],
        b"\1\2" + np.array(-1.5, ">f8").tobytes() + b"\1ccc",
    ),
    "little": (
        [["x", "<i4"], ["b", "bfloat16"], ["c", "<c8"], ["i", "int4"]],
        [("x", "int32"), ("b", "bfloat16"), ("c", "complex64"), ("i", "int4")],
        np.array([5], "<i4").tobytes() + b"\x80\x3f" + np.array(2j, "<c8").tobytes() + b"\3",
    ),
    "one byte": ([["x", "|u1"], ["y", "|i1"]], [("x", "uint8"), ("y", "int8")], b"\7\xff"),
    "raw": ("|V5", "r40", b"abcde"),
}


@pytest.mark.parametrize("options", ["", "--chunks=2,5 --shards=4,5 --codec=zstd"])
@pytest.mark.parametrize("case", BOTH)
def test_records_that_both_formats_hold_go_there_and_back(
    case, options, tmp_path, gpustore_command
):
    type2, type3, fill = BOTH[case]
    encoded = base64.b64encode(fill).decode()
    raw = isinstance(type2, str)
    make(tmp_path / "a", 2, type2, open_as_void=True, more={"fill_value": encoded})
    (tmp_path / "a" / "1.1").unlink()  # So that its fill value is read.
    code, _, err = gpustore_command(
        "copy", tmp_path / "a", tmp_path / "b", "--zarr-format=3", *options.split()
    )
    assert (code, err) == (0, "")
    made = json.loads((tmp_path / "b" / "zarr.json").read_text())
    if raw:
        assert made["data_type"] == type3
    else:
        fields = made["data_type"]["configuration"]["fields"]
        assert [(one["name"], one["data_type"]) for one in fields] == type3
        for name, _ in type3:
            if name not in "qri":  # Bytes that are no bool, raw ones, unused bits of int4.
                both = [
                    gpustore.open(
                        {"driver": driver, "kvstore": f"file://{tmp_path}/{p}/", "field": name}
                    ).result()
                    for driver, p in (("zarr2", "a"), ("zarr3", "b"))
                ]
                values = [store.read().result().tobytes() for store in both]
                assert values[0] == values[1]
                assert both[0].fill_value.tobytes() == both[1].fill_value.tobytes()
                spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/b/", "field": name}
                theirs = tensorstore.open(spec).result().read().result()
                assert theirs.tobytes() == values[0]
    assert bytes_of(tmp_path / "b") == bytes_of(tmp_path / "a")
    code, _, err = gpustore_command("copy", tmp_path / "b", tmp_path / "c", "--zarr-format=2")
    assert (code, err) == (0, "")
    back = json.loads((tmp_path / "c" / ".zarray").read_text())
    assert (back["dtype"], back["fill_value"]) == (type2, encoded)
    assert bytes_of(tmp_path / "c") == bytes_of(tmp_path / "a")


@pytest.mark.parametrize(
    ("data_type", "text"),
    [
        (FIELDS2, 'field "y" is a string, |S3, which Zarr v3 does not have'),
        ([["x", ">u2"], ["y", "<u2"]], "fields have different byte orders"),
        ([["x", "|u1"], ["y", "|u1", [2]]], 'field "y" is a subarray'),
        ("|S5", "an element is a string, |S5, which Zarr v3 does not have"),
    ],
    ids=str,
)
def test_elements_that_zarr3_cannot_hold_are_refused(data_type, text, tmp_path, gpustore_command):
    records = not isinstance(data_type, str)
    make(tmp_path / "a", 2, data_type, **({"open_as_void": True} if records else {}))
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--zarr-format=3")
    assert code == 1
    assert f"cannot be copied from Zarr v2 to v3: {text}" in err
    assert ("--field (x, y" in err) == records
    assert not (tmp_path / "b").exists()


def test_big_bfloat16_in_records_is_refused_by_zarr2(tmp_path, gpustore_command):
    fields = [{"name": "x", "data_type": "bfloat16"}]
    struct = {"name": "struct", "configuration": {"fields": fields}}
    codecs = [{"name": "bytes", "configuration": {"endian": "big"}}]
    make(tmp_path / "a", 3, struct, open_as_void=True, more={"codecs": codecs})
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--zarr-format=2")
    assert code == 1
    assert 'field "x" is bfloat16, which Zarr v2 has in little endian only' in err


def test_options_are_about_the_chunked_dimensions(tmp_path, gpustore_command):
    make(tmp_path / "a", 2, FIELDS2, open_as_void=True)
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--field=q")
    assert code == 1
    assert 'Requested field "q" is not one of: ["x","y","z"]' in err
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--chunks=3,3,3")
    assert code == 1
    assert "--chunks has 3 extents, but the array has 2 dimensions" in err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("version", "data_type"), [(2, "|S5"), (2, "|V5"), (3, "r40")])
def test_info_of_strings_and_raw_bytes(version, data_type, tmp_path, gpustore_command):
    make(tmp_path / "a", version, data_type)
    code, out, _ = gpustore_command("info", tmp_path / "a")
    kind = "char" if "S" in data_type else "byte"
    assert code == 0
    assert {f"type {kind} (5)", "shape 7 x 10", "chunk 3 x 4"} <= {
        " ".join(line.split()) for line in out.splitlines()
    }
    facts = json.loads(gpustore_command("info", "--json", tmp_path / "a")[1])
    assert facts["dtype"] == kind
    assert (facts["shape"], facts["inner_shape"]) == (list(SHAPE), [5])
    assert (facts["nbytes"], facts["values_possible"]) == (350, 9)


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


NESTED2 = [
    ["id", ">u2"],
    ["p", [["b", "|b1"], ["t", ">M8[25s]"]]],
    ["u", ">U2"],
    ["d", ">m8[D]"],
]
NESTED3 = (
    '[{"name":"id","data_type":"uint16"},{"name":"p","data_type":{"name":"struct","configuration":'
    '{"fields":[{"name":"b","data_type":"bool"},{"name":"t","data_type":{"name":"numpy.datetime64",'
    '"configuration":{"unit":"s","scale_factor":25}}}]}}},{"name":"u","data_type":{"name":'
    '"fixed_length_utf32","configuration":{"length_bytes":8}}},{"name":"d","data_type":{"name":'
    '"numpy.timedelta64","configuration":{"unit":"D","scale_factor":1}}}]'
)


@pytest.mark.parametrize(
    ("type2", "type3"),
    [
        (NESTED2, {"name": "struct", "configuration": {"fields": json.loads(NESTED3)}}),
        (
            "<M8[ns]",
            {"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 1}},
        ),
        ("<U3", {"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}}),
    ],
    ids=["nested", "dates", "strings"],
)
def test_types_that_numpy_has_go_there_and_back(type2, type3, tmp_path, gpustore_command):
    metadata = {"shape": [3], "chunks": [2], "dtype": type2, "compressor": None}
    spec = {"driver": "zarr2", "kvstore": f"file://{tmp_path}/a/", "metadata": metadata}
    void = {"open_as_void": True} if isinstance(type2, list) else {}
    store = gpustore.open(spec | void, create=True).result()
    values = np.zeros(store.shape, store.dtype.array_dtype)
    values[1:] = b"\1" if void else values.dtype.type("2020-01-01")
    store[...] = values
    assert gpustore_command("copy", tmp_path / "a", f"{tmp_path}/b|zarr3:")[0] == 0
    assert json.loads((tmp_path / "b/zarr.json").read_text())["data_type"] == type3
    assert gpustore_command("copy", tmp_path / "b", f"{tmp_path}/c|zarr2:")[0] == 0
    assert json.loads((tmp_path / "c/.zarray").read_text())["dtype"] == type2
    again = gpustore.open({"driver": "zarr2", "kvstore": f"file://{tmp_path}/c/", **void}).result()
    assert again.read().result().tobytes() == values.tobytes()
    code, out, _ = gpustore_command("info", tmp_path / "c")
    assert code == 0
    assert "chunks stored" in out


@pytest.mark.parametrize(
    ("data_type", "said"),
    [
        ("complex_float16", "complex_float16"),
        ("uint4", "uint4"),
        (
            {
                "name": "struct",
                "configuration": {
                    "fields": [
                        {
                            "name": "p",
                            "data_type": {
                                "name": "struct",
                                "configuration": {"fields": [{"name": "x", "data_type": "uint2"}]},
                            },
                        },
                        {"name": "q", "data_type": "float64"},
                    ]
                },
            },
            'field "p.x" is uint2',
        ),
    ],
    ids=["pair", "uint4", "nested"],
)
def test_types_that_zarr2_lacks_are_said(data_type, said, tmp_path, gpustore_command):
    metadata = {"shape": [3], "data_type": data_type}
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/", "metadata": metadata}
    void = {"open_as_void": True} if isinstance(data_type, dict) else {}
    gpustore.open(spec | void, create=True).result()
    code, _, err = gpustore_command("copy", tmp_path / "a", f"{tmp_path}/b|zarr2:")
    assert code == 1
    assert said in err
    assert gpustore_command("copy", tmp_path / "a", f"{tmp_path}/c|zarr3:")[0] == 0


@pytest.mark.parametrize("status", ["ABORTED", "DEADLINE_EXCEEDED"])
def test_a_server_without_an_answer_is_not_asked_for_a_group(status):
    failure = gpustore.StoreIOError("no answer", status=status)
    with pytest.raises(gpustore.StoreIOError) as caught:
        elements.find_group("memory://nothing/", failure)
    assert caught.value is failure
