"""Arrays that zarr-python and TensorStore wrote are read, and the other way round.

The data are real images; every array is compared bit for bit.
"""

import itertools
import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorstore
import zarr

import gpustore
from tests.interop.arrays import CHUNKS, fields_of, make_array, shown
from tests.interop.cells import (
    CELLS,
    CODECS,
    DIRECTIONS,
    FILLS,
    FORMATS,
    IMPOSSIBLE,
    IMPOSSIBLE_CELLS,
    KEYS,
    LAYOUTS,
    PEERS,
    SELECTIONS,
    Cell,
    byte_orders,
    dtypes_of,
    is_impossible,
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
from tests.matrix import each


def _each(cells):
    return each("cell", cells, ids=(cell.id for cell in cells))


def _cells(direction):
    return _each([cell for cell in CELLS if cell.direction == direction])


def assert_same(found, expected):
    """The same type, shape and bits: NaN equals NaN, 0.0 does not equal -0.0."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def _opened(cell: Cell, path, field):
    if not field:
        return gpustore.open(path, device="cpu").result()
    spec = {"driver": cell.format, "kvstore": f"file://{path}/", "field": field}
    return gpustore.open(spec, device="cpu").result()


def check_that_gpustore_reads(cell: Cell, path):
    write_with_peer(cell, path)
    expected, part, selection = blank(cell), written_part(cell), selection_of(cell)
    expected[part] = data_of(cell)[part]
    for field in fields_of(cell.dtype):
        store = _opened(cell, path, field)
        values = shown(expected, field)
        assert store.spec().to_json()["driver"] == {"zarr2": "zarr"}.get(cell.format, cell.format)
        assert store.dtype == gpustore.dtype(values.dtype)
        if cell.fill == "null":
            assert store.fill_value is None
        else:
            assert_same(store.fill_value, shown(fill_of(cell), field))
        assert_same(store[selection].read().result(), values[selection])


def check_that_a_peer_reads(cell: Cell, path):
    data, selection, expected = data_of(cell), selection_of(cell), blank(cell)
    expected[selection] = data[selection]
    for field in fields_of(cell.dtype):
        make_with_gpustore(cell, path, field)[selection] = shown(data, field)[selection]
    for field, found in read_with_peer(cell, path).items():
        assert_same(found, shown(expected, field))


_IGNORED = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


@_IGNORED
@pytest.mark.matrix
@_cells("from peer")
def test_gpustore_reads_what_a_peer_wrote(cell: Cell, tmp_path):
    check_that_gpustore_reads(cell, tmp_path / "array")


@pytest.mark.matrix
@_cells("to peer")
def test_peer_reads_what_gpustore_wrote(cell: Cell, tmp_path):
    check_that_a_peer_reads(cell, tmp_path / "array")


def test_raw_bits_end_tensorstore():
    """So it cannot create such arrays in the matrix, where it writes into one of gpustore."""
    program = """
import tensorstore
metadata = {"shape": [4], "data_type": "r24"}
spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata, "create": True}
tensorstore.Spec(spec)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert b"range size mismatch" in done.stderr


@_IGNORED
@pytest.mark.matrix
@_each(IMPOSSIBLE_CELLS)
def test_a_peer_cannot_do_what_is_said_to_be_impossible(cell: Cell, tmp_path):
    """This fails on the day a peer can: then the cell belongs to those that hold."""
    (why,) = (one for one in IMPOSSIBLE if one.covers(cell))
    check = {"from peer": check_that_gpustore_reads, "to peer": check_that_a_peer_reads}
    with pytest.raises(Exception, match=why.message) as caught:
        check[cell.direction](cell, tmp_path / "array")
    assert not isinstance(caught.value, gpustore.GpustoreError)


# --------------------------------------------------------------------------- the matrix itself


def _cells_of(test) -> list[Cell]:
    (axis,) = test.axes
    return [case.values["cell"] for case in axis]


def test_every_cell_of_the_matrix_is_run():
    run = [
        *_cells_of(test_gpustore_reads_what_a_peer_wrote),
        *_cells_of(test_peer_reads_what_gpustore_wrote),
    ]
    assert len(run) >= 400
    assert len(set(run)) == len(run)
    assert set(run) == set(CELLS)
    tried = _cells_of(test_a_peer_cannot_do_what_is_said_to_be_impossible)
    assert set(tried).isdisjoint(run)
    assert all(any(map(one.covers, tried)) for one in IMPOSSIBLE)


@pytest.mark.parametrize(
    ("peer", "direction", "least"),
    [
        ("tensorstore", "from peer", 180),
        ("tensorstore", "to peer", 180),
        ("zarr-python", "from peer", 140),
        ("zarr-python", "to peer", 140),
    ],
)
def test_number_of_cells_that_hold(peer, direction, least):
    cells = [cell for cell in CELLS if (cell.peer, cell.direction) == (peer, direction)]
    assert len(cells) >= least


@each("peer", PEERS)
@each("direction", DIRECTIONS)
@each("format", FORMATS)
def test_every_value_occurs_or_is_impossible(format, direction, peer):
    scope = (format, direction, peer)
    cells = [c for c in CELLS if (c.format, c.direction, c.peer) == scope]
    axes = {
        "codec": set(CODECS[format]),
        "dtype": set(dtypes_of(format)),
        "endian": {"little", "big"},
        "selection": set(SELECTIONS),
        "fill": set(FILLS) - ({"nan bits"} if format == "zarr2" else {"null"}),
        "keys": set(KEYS[format]),
        "layout": set(LAYOUTS[format]),
        "source": set(CHUNKS) - {"ihc whole" if format == "zarr2" else "mri whole"},
        "written": {"all", "part", "nothing"} if direction == "from peer" else {"all"},
    }
    for axis, values in axes.items():
        plain = replace(cells[0], source="mri", layout="C")
        possible = {v for v in values if not is_impossible(replace(plain, **{axis: v}))}
        assert {getattr(cell, axis) for cell in cells} == possible, axis


def _moves_data(cell: Cell) -> bool:
    """Whether stored chunks decide what is compared, not the fill value."""
    selection, expected = selection_of(cell), blank(cell)
    part = written_part(cell) if cell.direction == "from peer" else selection
    expected[part] = data_of(cell)[part]
    return expected[selection].tobytes() != blank(cell)[selection].tobytes()


@each("peer", PEERS)
@each("direction", DIRECTIONS)
@each("format", FORMATS)
def test_every_way_to_store_data_occurs_with_data(format, direction, peer):
    scope = (format, direction, peer)
    cells = [c for c in CELLS if (c.format, c.direction, c.peer) == scope]
    telling = [cell for cell in cells if _moves_data(cell)]
    for axis in ("codec", "dtype", "endian", "keys", "layout", "source"):
        found = {getattr(cell, axis) for cell in telling}
        assert found == {getattr(cell, axis) for cell in cells}, axis


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_type_occurs_in_all_its_byte_orders(format, direction):
    cells = [cell for cell in CELLS if (cell.format, cell.direction) == (format, direction)]
    found = {(cell.dtype, cell.endian) for cell in cells}
    assert found == {(d, endian) for d in dtypes_of(format) for endian in byte_orders(format, d)}


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


@pytest.mark.matrix
@_each(_COMPARED)
def test_gpustore_writes_the_files_that_tensorstore_writes(cell: Cell, tmp_path):
    part = written_part(cell)
    write_with_peer(cell, tmp_path / "theirs")
    for field in fields_of(cell.dtype):
        store = make_with_gpustore(cell, tmp_path / "ours", field)
        store[part] = shown(data_of(cell), field)[part]

    theirs, ours = _files(tmp_path / "theirs"), _files(tmp_path / "ours")

    key = {"zarr2": ".zarray", "zarr3": "zarr.json"}[cell.format]
    assert sorted(ours) == sorted(theirs)
    metadata = [json.loads(files.pop(key)) for files in (ours, theirs)]
    if cell.dtype == "float8_e8m0fnu":
        # TensorStore writes another number than its bits are.
        assert [document.pop("fill_value") for document in metadata][1] == 0
    assert metadata[0] == metadata[1]
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
