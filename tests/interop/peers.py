"""How a cell's array is made and read by gpustore, TensorStore and zarr-python."""

import base64

import numcodecs
import numpy as np
import tensorstore
import zarr

import gpustore
from gpustore.metadata.data_type import v2_dtype_to_json
from tests.interop.arrays import (
    CHUNKS,
    DTYPES,
    EXTENDED,
    RECORDS,
    STRINGS,
    fields_of,
    make_array,
    shown,
)
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
    if cell.written == "nothing":
        return np.s_[:0]
    if cell.written == "all" or not data_of(cell).ndim:
        return np.s_[...]
    return np.s_[_grid(cell)[0][0] + 2 :]


def fill_of(cell: Cell) -> np.ndarray | None:
    """The fill value, of shape (), or None if it is undefined."""
    dtype = DTYPES[cell.dtype]
    if cell.fill == "null":
        return None
    if cell.fill == "largest":
        return np.array(np.iinfo(dtype).max, dtype)
    if cell.fill == "nan bits":
        return np.array(_NAN_BITS, np.uint32).view(dtype)
    if cell.fill == "sample":
        return make_array("voxel", cell.dtype)
    if cell.fill == "zero":
        return np.zeros((), dtype)
    fill = np.array(FILLS[cell.fill], dtype)
    if dtype.kind == "c" and cell.fill == "nan":
        fill.imag = -0.0
    return fill


def blank(cell: Cell) -> np.ndarray:
    """What an array holds that nobody has written to; undefined elements are zero."""
    array = np.zeros(data_of(cell).shape, DTYPES[cell.dtype])
    fill = fill_of(cell)
    if fill is not None:
        array[...] = fill
    return array


def _grid(cell: Cell) -> list[list[int]]:
    """The shapes of the chunks, and of those within them and within these again."""
    chunks = list(CHUNKS[cell.source])
    if "shards" not in cell.layout:
        return [chunks]
    factors = ([4, 2, 1, 1, 1][: len(chunks)], [2, 1, 1, 1, 1][: len(chunks)])
    inner = [max(1, n // factor) for n, factor in zip(chunks, factors[0], strict=True)]
    outer, middle = ([n * m for n, m in zip(inner, each, strict=True)] for each in factors)
    return [outer, middle, inner] if cell.layout == "shards in shards" else [outer, inner]


def codecs_of(cell: Cell) -> list[dict]:
    """The codecs of Zarr v3, fully specified."""
    bytewise = cell.dtype == "V3" or DTYPES[cell.dtype].itemsize == 1
    options = {} if bytewise else {"configuration": {"endian": cell.endian}}
    chain = [{"name": "bytes", **options}, *CODECS["zarr3"][cell.codec]]
    _, *inner = _grid(cell)
    rank = len(CHUNKS[cell.source])
    order = [*range(1, rank), 0][:rank] if cell.layout == "rotated" else [*range(rank)][::-1]
    transpose = {"name": "transpose", "configuration": {"order": order}}
    if cell.layout in ("F", "rotated", "F in shards"):
        chain.insert(0, transpose)
    if cell.layout == "shards in F":
        inner = [[shape[i] for i in order] for shape in inner]
    for shape in reversed(inner):
        index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        configuration = {"chunk_shape": shape, "codecs": chain, "index_codecs": index}
        if cell.layout == "shards at start":
            configuration["index_location"] = "start"
        chain = [{"name": "sharding_indexed", "configuration": configuration}]
    return [transpose, *chain] if cell.layout == "shards in F" else chain


def spec_of(cell: Cell, path, field: str = "") -> dict:
    """A spec that creates the array, in gpustore as in TensorStore."""
    shape, (chunks, *_) = list(data_of(cell).shape), _grid(cell)
    if cell.format == "zarr2":
        words = cell.dtype in EXTENDED
        metadata = {
            "shape": shape,
            "chunks": chunks,
            "dtype": cell.dtype if words else v2_dtype_to_json(_stored(cell)),
            "order": cell.layout,
            "compressor": CODECS["zarr2"][cell.codec],
            "filters": None,
            "dimension_separator": KEYS["zarr2"][cell.keys],
            "fill_value": _fill_json(cell),
        }
    else:
        metadata = {
            "shape": shape,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "data_type": _data_type_json(cell.dtype),
            "codecs": codecs_of(cell),
            "chunk_key_encoding": KEYS["zarr3"][cell.keys],
            "fill_value": _fill_json(cell),
        }
    return {
        "driver": {"zarr2": "zarr", "zarr3": "zarr3"}[cell.format],
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": metadata,
        "open": True,
        "create": True,
        **({"field": field} if field else {}),
    }


def _stored(cell: Cell) -> np.dtype:
    """The type with the byte order it is stored in."""
    dtype = DTYPES[cell.dtype]
    if cell.dtype in RECORDS:
        return dtype
    return dtype.newbyteorder({"little": "<", "big": ">"}[cell.endian])


def _data_type_json(dtype: str):
    """In Zarr v3."""
    if dtype == "V3":
        return "r24"
    if dtype not in RECORDS:
        return dtype
    record = DTYPES[dtype]
    fields = [{"name": name, "data_type": record[name].name} for name in record.names]
    return {"name": "struct", "configuration": {"fields": fields}}


def _fill_json(cell: Cell):
    fill = fill_of(cell)
    if fill is None:
        return None
    if cell.fill == "nan bits":
        return f"{_NAN_BITS:#x}"
    if cell.dtype == "struct":
        return {name: _value_json(fill[name]) for name in fill.dtype.names}
    if cell.dtype in (*RECORDS, *STRINGS) or (cell.format, cell.dtype) == _FLOAT4:
        return base64.b64encode(fill.tobytes()).decode()
    return _value_json(fill)


def _value_json(value):
    if value.dtype.kind == "c":
        return [_number_json(value.real.item()), _number_json(value.imag.item())]
    return _number_json(value.item())


_FLOAT4 = ("zarr2", "float4_e2m1fn")
"""Of this type TensorStore takes nothing but the bits."""


def _number_json(number):
    if isinstance(number, bool | int):
        return number
    number = float(number)
    if number != number:
        return "NaN"
    return {np.inf: "Infinity", -np.inf: "-Infinity"}.get(number, number)


# --------------------------------------------------------------------------- making


def make_with_gpustore(cell: Cell, path, field: str = "") -> gpustore.TensorStore:
    context = gpustore.Context(_NO_SYNC)
    return gpustore.open(spec_of(cell, path, field), context=context).result()


def _make_with_tensorstore(cell: Cell, path, field: str) -> tensorstore.TensorStore:
    spec = spec_of(cell, path, field)
    if (cell.format, cell.dtype) == ("zarr3", "V3"):
        # It would abort the process: see test_raw_bits_end_tensorstore.
        make_with_gpustore(cell, path)
        del spec["metadata"], spec["create"]
    return tensorstore.open(spec, context=tensorstore.Context(_NO_SYNC)).result()


def _make_with_zarr_python(cell: Cell, path) -> zarr.Array:
    data, fill, (chunks, *_) = data_of(cell), fill_of(cell), _grid(cell)
    if fill is not None and fill.dtype.kind in "SV":
        fill = fill[()]
    common = {"shape": data.shape, "chunks": chunks, "fill_value": fill}
    if cell.format == "zarr2":
        compressor = CODECS["zarr2"][cell.codec]
        return zarr.create_array(
            str(path),
            zarr_format=2,
            dtype=_stored(cell),
            order=cell.layout,
            filters=None,
            compressors=None if compressor is None else numcodecs.get_codec(dict(compressor)),
            chunk_key_encoding={"name": "v2", "separator": KEYS["zarr2"][cell.keys]},
            **common,
        )
    codecs = codecs_of(cell)
    filters = [codec for codec in codecs if codec["name"] == "transpose"]
    serializer, *compressors = codecs[len(filters) :]
    return zarr.create_array(
        str(path),
        zarr_format=3,
        dtype=DTYPES[cell.dtype],
        filters=filters or None,
        serializer=serializer,
        compressors=compressors or None,
        chunk_key_encoding=KEYS["zarr3"][cell.keys],
        **common,
    )


def write_with_peer(cell: Cell, path) -> None:
    """Have the peer make the array and write its part of the data."""
    part, data = written_part(cell), data_of(cell)
    if cell.peer == "zarr-python":
        array = _make_with_zarr_python(cell, path)
        if cell.written != "nothing":
            array[part] = data[part]
        return
    for field in fields_of(cell.dtype):
        store = _make_with_tensorstore(cell, path, field)
        if cell.written != "nothing":
            store[part] = shown(data, field)[part]


# --------------------------------------------------------------------------- reading


def read_with_peer(cell: Cell, path) -> dict[str, np.ndarray]:
    """Each field, whole, as the peer reads it without being told anything but where it is."""
    if cell.peer == "zarr-python":
        array = np.asarray(zarr.open_array(str(path), mode="r")[...])
        return {field: shown(array, field) for field in fields_of(cell.dtype)}
    return {field: _read_with_tensorstore(cell, path, field) for field in fields_of(cell.dtype)}


def _read_with_tensorstore(cell: Cell, path, field: str) -> np.ndarray:
    members = ("driver", "kvstore", "field")
    spec = {name: value for name, value in spec_of(cell, path, field).items() if name in members}
    store = tensorstore.open(spec, open=True, read=True).result()
    if store.dtype.name not in ("char", "byte"):
        return store.read().result()
    # What its `read` returns for strings has elements without bytes.
    array = np.zeros(store.shape, {"char": "S1", "byte": "V1"}[store.dtype.name])
    tensorstore.array(array).write(store).result()
    return array
