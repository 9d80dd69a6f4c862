"""Arrays that zarr-python and TensorStore wrote are read, and the other way round.

The data are real images; every array is compared bit for bit.
"""

import itertools
import json

import numpy as np
import pytest
import tensorstore
import zarr

import gpustore
from tests.interop.arrays import DTYPES, make_array
from tests.interop.cells import (
    CELLS,
    CODECS,
    DIRECTIONS,
    FILLS,
    FORMATS,
    KEYS,
    PEERS,
    SELECTIONS,
    Cell,
)
from tests.interop.peers import (
    blank,
    data_of,
    fill_of,
    make_with_gpustore,
    read_with_peer,
    selection_of,
    write_with_peer,
    written_part,
)


def _cells(direction):
    return pytest.mark.parametrize(
        "cell",
        [pytest.param(cell, id=cell.id) for cell in CELLS if cell.direction == direction],
    )


def assert_same(found, expected):
    """The same type, shape and bits: NaN equals NaN, 0.0 does not equal -0.0."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@_cells("from peer")
def test_gpustore_reads_what_a_peer_wrote(cell: Cell, tmp_path):
    write_with_peer(cell, tmp_path / "array")
    expected, part = blank(cell), written_part(cell)
    expected[part] = data_of(cell)[part]

    store = gpustore.open(tmp_path / "array", device="cpu").result()

    assert store.spec().to_json()["driver"] == {"zarr2": "zarr", "zarr3": "zarr3"}[cell.format]
    assert store.dtype == gpustore.dtype(cell.dtype)
    if cell.fill == "null":
        assert store.fill_value is None
    else:
        assert_same(store.fill_value, fill_of(cell))
    selection = selection_of(cell)
    assert_same(store[selection].read().result(), expected[selection])


@_cells("to peer")
def test_peer_reads_what_gpustore_wrote(cell: Cell, tmp_path):
    data, selection = data_of(cell), selection_of(cell)
    expected = blank(cell)
    expected[selection] = data[selection]

    make_with_gpustore(cell, tmp_path / "array")[selection] = data[selection]

    assert_same(read_with_peer(cell, tmp_path / "array"), expected)


# --------------------------------------------------------------------------- the matrix itself


def _parametrised(test) -> list[Cell]:
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    return [parameters.values[0] for parameters in mark.args[1]]


def test_every_cell_of_the_matrix_is_run():
    run = [
        *_parametrised(test_gpustore_reads_what_a_peer_wrote),
        *_parametrised(test_peer_reads_what_gpustore_wrote),
    ]
    assert len(run) >= 150
    assert len(set(run)) == len(run)
    assert set(run) == set(CELLS)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_declared_value_occurs(format, direction, peer):
    cells = [c for c in CELLS if (c.format, c.direction, c.peer) == (format, direction, peer)]
    types = set(DTYPES) - ({"bfloat16"} if peer == "zarr-python" else set())
    fills = set(FILLS) - ({"nan bits"} if format == "zarr2" else {"null"})
    if (peer, direction) == ("zarr-python", "from peer"):
        fills -= {"nan bits"}
    assert {cell.codec for cell in cells} == set(CODECS[format])
    assert {cell.dtype for cell in cells} == types
    assert {cell.endian for cell in cells} == {"little", "big"}
    assert {cell.selection for cell in cells} == set(SELECTIONS)
    assert {cell.fill for cell in cells} == fills
    assert {cell.keys for cell in cells} == set(KEYS[format])
    assert {cell.order for cell in cells} == ({"C", "F"} if format == "zarr2" else {"C"})
    assert {cell.written for cell in cells} == {"all", *["part"] * (direction == "from peer")}
    whole = "mri whole" if format == "zarr2" else "ihc whole"
    assert {cell.source for cell in cells} == {"mri", "ihc", "voxel", whole}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_type_occurs_in_both_byte_orders(format, direction):
    cells = [cell for cell in CELLS if (cell.format, cell.direction) == (format, direction)]
    found = {(cell.dtype, cell.endian) for cell in cells}
    expected = {(name, "little") for name in DTYPES}
    expected |= {(name, "big") for name, dtype in DTYPES.items() if dtype.itemsize > 1}
    assert found == expected - ({("bfloat16", "big")} if format == "zarr2" else set())


def test_floating_point_data_hold_the_values_that_compare_oddly():
    for dtype, source in itertools.product(("float16", "bfloat16", "float32"), ("mri", "ihc")):
        data = make_array(source, dtype).astype("float32")
        assert np.isnan(data).any()
        assert np.isinf(data).any()
        assert np.signbit(data[data == 0]).any()
        assert not np.signbit(data[data == 0]).all()


# --------------------------------------------------------------------------- besides elements


@pytest.mark.parametrize(
    ("zarr_format", "compressor"),
    [
        (2, {"id": "zstd", "level": 0}),
        (3, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}),
    ],
)
def test_defaults_of_zarr_python_are_read(tmp_path, zarr_format, compressor):
    data = make_array("mri", "int16")
    array = zarr.create_array(
        str(tmp_path / "a"), shape=data.shape, dtype=data.dtype, zarr_format=zarr_format
    )
    array[...] = data

    store = gpustore.open(tmp_path / "a").result()

    codec = store.codec.to_json()
    found = codec["compressor"] if zarr_format == 2 else codec["codecs"][-1]
    assert found == compressor
    assert_same(store.read().result(), data)


@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
def test_defaults_of_gpustore_are_read_by_both_peers(tmp_path, driver):
    data = make_array("ihc", "uint8")
    store = gpustore.open(
        {"driver": driver, "kvstore": f"file://{tmp_path}/a/"},
        create=True,
        dtype="uint8",
        shape=data.shape,
    ).result()
    store[...] = data

    kvstore = {"driver": "file", "path": f"{tmp_path}/a/"}
    other = tensorstore.open({"driver": driver, "kvstore": kvstore}).result()
    assert_same(other.read().result(), data)
    assert_same(zarr.open_array(str(tmp_path / "a"), mode="r")[...], data)


def test_dimension_names_of_zarr_python_are_labels(tmp_path):
    zarr.create_array(
        str(tmp_path / "a"), shape=(4, 5, 6), dtype="uint8", dimension_names=["x", None, "time"]
    )

    store = gpustore.open(tmp_path / "a").result()

    assert tuple(store.domain.labels) == ("x", "", "time")


def test_labels_are_dimension_names_for_both_peers(tmp_path):
    gpustore.open(
        {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"},
        create=True,
        dtype="int16",
        domain=gpustore.IndexDomain(labels=["x", "", "time"], shape=[4, 5, 6]),
    ).result()

    assert zarr.open_array(str(tmp_path / "a"), mode="r").metadata.dimension_names == (
        "x",
        None,
        "time",
    )
    kvstore = {"driver": "file", "path": f"{tmp_path}/a/"}
    other = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
    assert other.domain.labels == ("x", "", "time")


def test_dimension_units_of_tensorstore_are_kept(tmp_path):
    kvstore = {"driver": "file", "path": f"{tmp_path}/a/"}
    tensorstore.open(
        {"driver": "zarr3", "kvstore": kvstore},
        create=True,
        dtype=tensorstore.int16,
        shape=[4, 5],
        dimension_units=["2.5 mm", None],
    ).result()

    store = gpustore.open(tmp_path / "a").result()

    assert store.dimension_units == (gpustore.Unit(2.5, "mm"), None)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes_and_data_survive_a_resize_by_gpustore(tmp_path, zarr_format):
    data = make_array("mri", "int16")
    attributes = {"subject": "example4d", "affine": [[1.5, 0], [0, -2]], "note": {"é": None}}
    names = None if zarr_format == 2 else ("x", "y", None, "t")
    array = zarr.create_array(
        str(tmp_path / "a"),
        shape=data.shape,
        chunks=(13, 11, 4, 2),
        dtype=data.dtype,
        zarr_format=zarr_format,
        attributes=attributes,
        fill_value=-3,
        dimension_names=names,
    )
    array[...] = data

    gpustore.open(tmp_path / "a").result().resize(exclusive_max=[30, 15, 7, 2]).result()

    resized = zarr.open_array(str(tmp_path / "a"), mode="r")
    expected = np.full((30, 15, 7, 2), -3, np.int16)
    expected[:24] = data[:, :15]
    assert resized.attrs.asdict() == attributes
    assert getattr(resized.metadata, "dimension_names", None) == names
    assert_same(resized[...], expected)


def test_attributes_given_to_gpustore_are_read_by_zarr_python(tmp_path):
    attributes = {"subject": "example4d", "voxel": [2, 2, 2.2]}
    gpustore.open(
        {
            "driver": "zarr3",
            "kvstore": f"file://{tmp_path}/a/",
            "metadata": {"attributes": attributes, "shape": [3], "data_type": "uint8"},
        },
        create=True,
    ).result()

    assert zarr.open_array(str(tmp_path / "a"), mode="r").attrs.asdict() == attributes


_COMPARED = [cell for cell in CELLS if (cell.peer, cell.direction) == ("tensorstore", "from peer")]
_INCOMPRESSIBLE = ("none", "bytes", "crc32c")


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.id) for cell in _COMPARED])
def test_gpustore_writes_the_files_that_tensorstore_writes(cell: Cell, tmp_path):
    part = written_part(cell)
    write_with_peer(cell, tmp_path / "theirs")
    make_with_gpustore(cell, tmp_path / "ours")[part] = data_of(cell)[part]

    theirs, ours = _files(tmp_path / "theirs"), _files(tmp_path / "ours")

    metadata = {"zarr2": ".zarray", "zarr3": "zarr.json"}[cell.format]
    assert sorted(ours) == sorted(theirs)
    assert json.loads(ours.pop(metadata)) == json.loads(theirs.pop(metadata))
    if cell.codec in _INCOMPRESSIBLE:
        assert ours == theirs


def test_files_are_compared_in_both_formats_and_without_compression():
    assert {cell.format for cell in _COMPARED} == set(FORMATS)
    assert {cell.codec for cell in _COMPARED} >= set(_INCOMPRESSIBLE)


@pytest.mark.parametrize("chunk", [8, 256])
@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
def test_writing_nothing_leaves_an_array_as_it_was(tmp_path, driver, chunk):
    store = gpustore.open(
        {"driver": driver, "kvstore": f"file://{tmp_path}/a/"},
        create=True,
        dtype="uint8",
        shape=[300, 300],
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[chunk, chunk]),
    ).result()
    before = _files(tmp_path)

    store[7:7] = np.empty((0, 300), np.uint8)

    assert _files(tmp_path) == before
    assert store[7:7].read().result().shape == (0, 300)


def _files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
