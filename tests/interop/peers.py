"""How a cell's array is made and read by gpustore, TensorStore and zarr-python."""

import numcodecs
import numpy as np
import tensorstore
import zarr

import gpustore
from tests.interop.arrays import CHUNKS, DTYPES, make_array
from tests.interop.cells import CODECS, FILLS, KEYS, SELECTIONS, Cell

_NAN_BITS = 0x7FC12345
_NO_SYNC = {"file_io_sync": False}
"""Nothing here has to survive a power failure, and waiting for the disk takes most of the time."""


def data_of(cell: Cell) -> np.ndarray:
    return make_array(cell.source, cell.dtype)


def selection_of(cell: Cell):
    return SELECTIONS[cell.selection] if data_of(cell).ndim else np.s_[...]


def written_part(cell: Cell):
    """What the peer writes of an array that gpustore reads."""
    if cell.written == "all" or not data_of(cell).ndim:
        return np.s_[...]
    return np.s_[CHUNKS[cell.source][0] + 2 :]


def fill_of(cell: Cell) -> np.ndarray | None:
    """The fill value, of shape (), or None if it is undefined."""
    dtype = DTYPES[cell.dtype]
    if cell.fill == "null":
        return None
    if cell.fill == "largest":
        return np.array(np.iinfo(dtype).max, dtype)
    if cell.fill == "nan bits":
        return np.array(_NAN_BITS, np.uint32).view(dtype)
    fill = np.array(FILLS[cell.fill], dtype)
    if dtype.kind == "c" and cell.fill == "nan":
        fill.imag = -0.0
    return fill


def blank(cell: Cell) -> np.ndarray:
    """What an array holds that nobody has written to; undefined elements are zero."""
    fill = fill_of(cell)
    return np.full(data_of(cell).shape, 0 if fill is None else fill, DTYPES[cell.dtype])


def spec_of(cell: Cell, path) -> dict:
    """A spec that creates the array, in gpustore as in TensorStore."""
    data, chunks = data_of(cell), list(CHUNKS[cell.source])
    endian = {"little": "<", "big": ">"}[cell.endian]
    dtype = DTYPES[cell.dtype]
    if cell.format == "zarr2":
        metadata = {
            "shape": list(data.shape),
            "chunks": chunks,
            "dtype": "bfloat16" if cell.dtype == "bfloat16" else dtype.newbyteorder(endian).str,
            "order": cell.order,
            "compressor": CODECS["zarr2"][cell.codec],
            "filters": None,
            "dimension_separator": KEYS["zarr2"][cell.keys],
            "fill_value": _fill_json(cell),
        }
    else:
        options = {} if dtype.itemsize == 1 else {"configuration": {"endian": cell.endian}}
        metadata = {
            "shape": list(data.shape),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "data_type": cell.dtype,
            "codecs": [{"name": "bytes", **options}, *CODECS["zarr3"][cell.codec]],
            "chunk_key_encoding": KEYS["zarr3"][cell.keys],
            "fill_value": _fill_json(cell),
        }
    return {
        "driver": {"zarr2": "zarr", "zarr3": "zarr3"}[cell.format],
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": metadata,
        "create": True,
    }


def _fill_json(cell: Cell):
    fill = fill_of(cell)
    if fill is None:
        return None
    if cell.fill == "nan bits":
        return f"{_NAN_BITS:#x}"
    if fill.dtype.kind == "c":
        return [_number_json(fill.real.item()), _number_json(fill.imag.item())]
    return _number_json(fill.item())


def _number_json(number):
    if number != number:
        return "NaN"
    return "Infinity" if number == np.inf else number


# --------------------------------------------------------------------------- making


def make_with_gpustore(cell: Cell, path) -> gpustore.TensorStore:
    return gpustore.open(spec_of(cell, path), context=gpustore.Context(_NO_SYNC)).result()


def _make_with_tensorstore(cell: Cell, path) -> tensorstore.TensorStore:
    return tensorstore.open(spec_of(cell, path), context=tensorstore.Context(_NO_SYNC)).result()


def _make_with_zarr_python(cell: Cell, path) -> zarr.Array:
    data, dtype = data_of(cell), DTYPES[cell.dtype]
    stored = dtype.newbyteorder({"little": "<", "big": ">"}[cell.endian])
    common = {"shape": data.shape, "chunks": CHUNKS[cell.source], "fill_value": fill_of(cell)}
    if cell.format == "zarr2":
        compressor = CODECS["zarr2"][cell.codec]
        return zarr.create_array(
            str(path),
            zarr_format=2,
            dtype=stored,
            order=cell.order,
            filters=None,
            compressors=None if compressor is None else numcodecs.get_codec(compressor),
            chunk_key_encoding={"name": "v2", "separator": KEYS["zarr2"][cell.keys]},
            **common,
        )
    return zarr.create_array(
        str(path),
        zarr_format=3,
        dtype=dtype,
        serializer="auto" if dtype.itemsize == 1 else zarr.codecs.BytesCodec(endian=cell.endian),
        compressors=CODECS["zarr3"][cell.codec] or None,
        chunk_key_encoding=KEYS["zarr3"][cell.keys],
        **common,
    )


def write_with_peer(cell: Cell, path) -> None:
    """Have the peer make the array and write its part of the data."""
    part = written_part(cell)
    if cell.peer == "zarr-python":
        _make_with_zarr_python(cell, path)[part] = data_of(cell)[part]
    else:
        _make_with_tensorstore(cell, path)[part] = data_of(cell)[part]


# --------------------------------------------------------------------------- reading


def read_with_peer(cell: Cell, path) -> np.ndarray:
    """The whole array as the peer reads it, without being told anything but where it is."""
    if cell.peer == "zarr-python":
        array = np.asarray(zarr.open_array(str(path), mode="r")[...])
        return array.astype(array.dtype.newbyteorder("="))
    spec = spec_of(cell, path)
    found = {"driver": spec["driver"], "kvstore": spec["kvstore"]}
    return tensorstore.open(found, open=True, read=True).result().read().result()
