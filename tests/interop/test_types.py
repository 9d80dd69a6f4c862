"""Data types that TensorStore lacks: exchanged with zarr-python, and with bytes that NumPy made.

Every type is a cell for each format that has it, each of its byte orders, each peer and direction;
the peer ``numpy`` is a file written or read by hand. What zarr-python cannot do stands in the cell,
with its own words, and so does what TensorStore says of the type.
"""

import base64
import itertools
import json
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr

import gpustore
from tests.matrix import each

_NO_SYNC = {"file_io_sync": False}
SHAPE, CHUNKS = (5, 7), (2, 3)


def _times(kind, unit, factor):
    configuration = {"unit": unit, "scale_factor": factor}
    return {"name": f"numpy.{kind}64", "configuration": configuration}


def _sized(name, nbytes):
    return {"name": name, "configuration": {"length_bytes": nbytes}}


def _struct(**fields):
    members = [{"name": name, "data_type": kind} for name, kind in fields.items()]
    return {"name": "struct", "configuration": {"fields": members}}


_POINT = [("b", "?"), ("y", "f8")]
_NESTED = [("id", "u2"), ("p", _POINT), ("t", "M8[25s]"), ("u", "U2")]
_SUBARRAYS = [("id", "u2"), ("p", [("b", "?"), ("y", "f8", (2,))], (2, 3)), ("t", "m8[D]", (2,))]

_NO_TYPE = "No Zarr data type found that matches"


@dataclass(frozen=True)
class Type:
    """A data type.

    Attributes
    ----------
    numpy : numpy.dtype
        Of an element, native byte order.
    v2, v3 : JSON
        Its name in the metadata, None where a format lacks it. ``{}`` in that of v2 is the order.
    zarr2, zarr3 : str
        What zarr-python says if it cannot read it; empty if it can.
    zarr2_writes, zarr3_writes : bool
        Whether zarr-python can write it.
    tensorstore : str
        What TensorStore says; empty if it can read it.
    """

    numpy: np.dtype
    v2: object = None
    v3: object = None
    zarr2: str = ""
    zarr3: str = ""
    zarr2_writes: bool = True
    zarr3_writes: bool = True
    tensorstore: str = "is not one of the supported data types|Unsupported zarr dtype"


def _ml(name):
    return Type(np.dtype(getattr(ml_dtypes, name)), v3=name, zarr3=_NO_TYPE, zarr3_writes=False)


def _pair(part):
    found = np.dtype(getattr(ml_dtypes, part, part))
    return Type(np.dtype((found, (2,))), v3=f"complex_{part}", zarr3=_NO_TYPE, zarr3_writes=False)


TYPES = {
    **{
        f"{name}64[{factor}{unit}]": Type(
            np.dtype(f"{code}8[{factor}{unit}]"),
            v2=f"{{}}{code}8[{factor if factor > 1 else ''}{unit}]",
            v3=_times(name, unit, factor),
        )
        for name, code, unit, factor in (
            *(("datetime", "M", "Y", 1), ("datetime", "M", "s", 25), ("datetime", "M", "ns", 1)),
            *(("timedelta", "m", "M", 2**31 - 1), ("timedelta", "m", "us", 1)),
        )
    },
    "datetime64": Type(
        np.dtype("M8"),
        v2="{}M8",
        v3=_times("datetime", "generic", 1),
        zarr2="requires a specified unit",
        zarr3="Invalid fill_value",
    ),
    "timedelta64": Type(np.dtype("m8"), v2="{}m8", v3=_times("timedelta", "generic", 1)),
    "U1": Type(np.dtype("U1"), v2="{}U1", v3=_sized("fixed_length_utf32", 4)),
    "U3": Type(np.dtype("U3"), v2="{}U3", v3=_sized("fixed_length_utf32", 12)),
    "S3": Type(np.dtype("S3"), v3=_sized("null_terminated_bytes", 3)),
    "V3": Type(np.dtype("V3"), v3=_sized("raw_bytes", 3), zarr3=_NO_TYPE, tensorstore=""),
    **{name: _ml(name) for name in ("uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn")},
    "float8_e4m3": _ml("float8_e4m3"),
    **{
        f"complex_{part}": _pair(part)
        for part in (
            *("float16", "bfloat16", "float4_e2m1fn", "float6_e2m3fn", "float8_e4m3"),
            "float8_e8m0fnu",
        )
    },
    "nested": Type(
        np.dtype(_NESTED),
        v2=[
            *(["id", "{}u2"], ["p", [["b", "|b1"], ["y", "{}f8"]]]),
            *(["t", "{}M8[25s]"], ["u", "{}U2"]),
        ],
        v3=_struct(
            id="uint16",
            p=_struct(b="bool", y="float64"),
            t=_times("datetime", "s", 25),
            u=_sized("fixed_length_utf32", 8),
        ),
        zarr2=_NO_TYPE,
        zarr3=_NO_TYPE,
        tensorstore="Expected string, but received|Nested struct types",
    ),
    "subarrays": Type(
        np.dtype(_SUBARRAYS),
        v2=[
            ["id", "{}u2"],
            ["p", [["b", "|b1"], ["y", "{}f8", [2]]], [2, 3]],
            ["t", "{}m8[D]", [2]],
        ],
        zarr2=_NO_TYPE,
        zarr2_writes=False,
        tensorstore="Expected string, but received",
    ),
    "pairs in records": Type(
        np.dtype([("c", "f2", (2,)), ("n", ml_dtypes.uint4), ("s", "S2")]),
        v3=_struct(c="complex_float16", n="uint4", s=_sized("null_terminated_bytes", 2)),
        zarr3=_NO_TYPE,
        zarr3_writes=False,
    ),
}


@dataclass(frozen=True)
class Cell:
    """One array, written by one library and read by another."""

    name: str
    format: str
    endian: str
    peer: str
    direction: str

    @property
    def type(self) -> Type:
        return TYPES[self.name]

    @property
    def order(self) -> str:
        return {"little": "<", "big": ">"}[self.endian]

    @property
    def json(self):
        """The name of the type in the metadata."""
        if self.format == "zarr3":
            return self.type.v3
        return json.loads(json.dumps(self.type.v2).replace("{}", self.order))

    @property
    def stored(self) -> np.dtype:
        return self.type.numpy.newbyteorder(self.order)

    @property
    def refusal(self) -> str:
        """What zarr-python says; empty if it takes part."""
        if self.peer != "zarr-python":
            return ""
        if self.direction == "from peer":
            writes = {"zarr2": self.type.zarr2_writes, "zarr3": self.type.zarr3_writes}
            return "" if writes[self.format] else f"{_NO_TYPE}|Cannot (convert|cast)"
        return {"zarr2": self.type.zarr2, "zarr3": self.type.zarr3}[self.format]


def _cells():
    for name, found in TYPES.items():
        for format_ in ("zarr2", "zarr3"):
            if {"zarr2": found.v2, "zarr3": found.v3}[format_] is None:
                continue
            wide = found.numpy.kind in "MmU" or found.numpy.names or found.numpy.base.itemsize == 2
            for endian in ("little", "big") if wide else ("little",):
                # NumPy does not swap the bytes of times without a unit, so nor does zarr-python.
                unswapped = name in ("datetime64", "timedelta64") and endian == "big"
                peers = ("numpy",) if unswapped else ("zarr-python", "numpy")
                for peer, direction in itertools.product(peers, ("from peer", "to peer")):
                    yield Cell(name, format_, endian, peer, direction)


ALL = tuple(_cells())
CELLS = tuple(cell for cell in ALL if not cell.refusal)
REFUSED = tuple(cell for cell in ALL if cell.refusal)


def _id(cell):
    return "-".join((cell.name, cell.format, cell.endian, cell.direction, cell.peer))


def _leaf(dtype, shape, rng):
    if dtype.names is not None:
        found = np.zeros(shape, dtype)
        for name in dtype.names:
            part = dtype[name]
            found[name] = _leaf(part.base, (*shape, *part.shape), rng)
        return found
    if dtype.kind == "U":
        letters = np.array(["a", "\0", "é", "\ud7ff", "€", "𝄞", "\U0010ffff", "z"])
        codes = letters[rng.integers(0, len(letters), (*shape, dtype.itemsize // 4))]
        return np.ascontiguousarray(codes).view(dtype)[..., 0]
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.isbuiltin == 2:
        name = dtype.name
        bits &= 3 if name == "uint2" else 15 if "4" in name[:6] else 63 if "6" in name[:6] else 255
        bits = (
            rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8) if "bfloat" in name else bits
        )
    elif dtype.kind == "b":
        bits &= 1
    found = bits.view(dtype)[..., 0]
    if dtype.kind in "Mm" and found.size > 1:
        found.reshape(-1)[1] = "NaT"
    return found


def data_of(cell) -> np.ndarray:
    """Elements with any bits that are legal; native byte order."""
    rng = np.random.default_rng(len(cell.name))
    part = cell.type.numpy
    return _leaf(part.base, (*SHAPE, *part.shape), rng)


def fill_of(cell):
    """One element; JSON, as its specification has it, in the metadata of files written by hand."""
    element = data_of(cell)[3, 3]
    if cell.format == "zarr2" and cell.type.numpy.names:
        return base64.b64encode(np.asarray(element).astype(cell.stored).tobytes()).decode()
    return _fill_json(np.asarray(element))


def _fill_json(element):
    if element.dtype.names is not None:
        return {name: _fill_json(element[name]) for name in element.dtype.names}
    if element.ndim:
        return [_fill_json(one) for one in element]
    if element.dtype.kind in "Mm":
        return int(element.view(np.int64))
    if element.dtype.kind == "U":
        return str(element)
    if element.dtype.kind in "SV" and element.dtype.isbuiltin != 2:
        return base64.b64encode(element.tobytes()).decode()
    if element.dtype.kind in "bu" or element.dtype.name.startswith("uint"):
        return element.item() if element.dtype.kind == "b" else int(element)
    bits = int.from_bytes(element.tobytes(), "little")
    return f"0x{bits:0{2 * element.itemsize}x}"


def metadata_of(cell):
    if cell.format == "zarr2":
        return {
            **{"zarr_format": 2, "shape": [*SHAPE], "chunks": [*CHUNKS], "dtype": cell.json},
            **{"compressor": None, "filters": None, "order": "C", "fill_value": fill_of(cell)},
            "dimension_separator": ".",
        }
    codec = {"name": "bytes", "configuration": {"endian": cell.endian}}
    return {
        **{"zarr_format": 3, "node_type": "array", "shape": [*SHAPE], "data_type": cell.json},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*CHUNKS]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        **{"codecs": [codec], "fill_value": fill_of(cell)},
    }


def chunks_of(cell):
    """The files of the chunks, those of fill values left out; edges are filled."""
    data = data_of(cell)
    fill = data[3, 3]
    prefix = "" if cell.format == "zarr2" else "c."
    files = {}
    for i, j in itertools.product(range(3), range(3)):
        chunk = np.empty((*CHUNKS, *np.shape(fill)), data.dtype)
        chunk[...] = fill
        cut = data[2 * i : 2 * i + 2, 3 * j : 3 * j + 3]
        chunk[: cut.shape[0], : cut.shape[1]] = cut
        if chunk.tobytes() != np.broadcast_to(fill, chunk.shape).astype(data.dtype).tobytes():
            if chunk.dtype.kind in "Mm":
                files[f"{prefix}{i}.{j}"] = chunk.view("i8").astype(f"{cell.order}i8").tobytes()
            else:
                files[f"{prefix}{i}.{j}"] = chunk.astype(cell.stored.base).tobytes()
    return files


KEYS = {"zarr2": ".zarray", "zarr3": "zarr.json"}


def fields_of(cell):
    return cell.type.numpy.names or ("",)


def opened(cell, path, field, **options):
    spec = {"driver": cell.format, "kvstore": f"file://{path}/"}
    options |= {"context": gpustore.Context(_NO_SYNC)}
    return gpustore.open(spec | ({"field": field} if field else {}), **options).result()


def shown(array, field):
    """A field as gpustore shows it: bytes in an inner dimension."""
    values = np.array(array[field] if field else array, order="C")
    if values.dtype.names is None and values.dtype.type in (np.void, np.bytes_):
        return values.reshape(*values.shape, 1).view(f"{values.dtype.kind}1")
    return values


def assert_same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def check_from_peer(cell, path):
    data = data_of(cell)
    data[2:4, 3:6] = data[3, 3]  # A chunk of fill values.
    if cell.peer == "numpy":
        path.mkdir()
        (path / KEYS[cell.format]).write_text(json.dumps(metadata_of(cell)))
        files = chunks_of(cell)
        files.pop("1.1" if cell.format == "zarr2" else "c.1.1")
        for name, chunk in files.items():
            (path / name).write_bytes(chunk)
    else:
        _write_with_zarr_python(cell, path, data)
    for field in fields_of(cell):
        store = opened(cell, path, field)
        expected = shown(data, field)
        assert store.dtype.numpy_dtype == expected.dtype or store.dtype.name in ("char", "byte")
        assert_same(np.asarray(store.fill_value), shown(data[3, 3], field))
        assert_same(store.read().result(), expected)
        assert_same(store[1:4, ::-2].read().result(), expected[1:4, ::-2])


def _write_with_zarr_python(cell, path, data):
    options = {"serializer": {"name": "bytes", "configuration": {"endian": cell.endian}}}
    array = zarr.create_array(
        str(path),
        shape=SHAPE,
        chunks=CHUNKS,
        dtype=cell.stored if cell.format == "zarr2" else cell.type.numpy,
        fill_value=data[3, 3],
        zarr_format=int(cell.format[-1]),
        compressors=None,
        filters=None,
        **(options if cell.format == "zarr3" else {}),
    )
    array[...] = data


def check_to_peer(cell, path):
    data = data_of(cell)
    spec = {"driver": cell.format, "kvstore": f"file://{path}/", "metadata": metadata_of(cell)}
    for name in ("zarr_format", "node_type"):
        spec["metadata"].pop(name, None)
    for field in fields_of(cell):
        more = {"field": field, "context": _NO_SYNC} if field else {"context": _NO_SYNC}
        store = gpustore.open(spec | more, create=True, open=True).result()
        store[...] = shown(data, field)
    if cell.peer == "zarr-python":
        array = zarr.open_array(str(path), mode="r")
        assert_same(np.asarray(array[...]).astype(data.dtype), data)
        assert_same(np.asarray(array.fill_value, data.dtype), np.asarray(data[3, 3]))
        return
    found = {path.name: path.read_bytes() for path in path.iterdir()}
    document = json.loads(found.pop(KEYS[cell.format]))
    name = document["dtype" if cell.format == "zarr2" else "data_type"]
    assert name == ("r24" if cell.name == "V3" else cell.json)
    assert found == chunks_of(cell)


CHECKS = {"from peer": check_from_peer, "to peer": check_to_peer}
_IGNORED = pytest.mark.filterwarnings(
    "ignore::zarr.errors.UnstableSpecificationWarning", "ignore:invalid value encountered"
)


@_IGNORED
@pytest.mark.matrix
@each("cell", CELLS)
def test_types_are_exchanged_bit_for_bit(cell, tmp_path):
    CHECKS[cell.direction](cell, tmp_path / "array")


@_IGNORED
@pytest.mark.matrix
@each("cell", REFUSED)
def test_what_zarr_python_cannot_do_is_what_it_says(cell, tmp_path):
    """This fails on the day it can: then the cell belongs to those that hold."""
    with pytest.raises(Exception, match=cell.refusal) as caught:
        CHECKS[cell.direction](cell, tmp_path / "array")
    assert not isinstance(caught.value, gpustore.GpustoreError)


_UNKNOWN = [
    cell
    for cell in CELLS
    if (cell.peer, cell.endian, cell.direction) == ("numpy", "little", "to peer")
    and cell.type.tensorstore
]


@each("cell", _UNKNOWN)
def test_tensorstore_has_none_of_them(cell, tmp_path):
    check_to_peer(cell, tmp_path / "a")
    driver = {"zarr2": "zarr"}.get(cell.format, cell.format)
    with pytest.raises((ValueError, NotImplementedError), match=cell.type.tensorstore):
        tensorstore.open({"driver": driver, "kvstore": f"file://{tmp_path}/a/"}).result()


@pytest.mark.parametrize(("peer", "least", "refused"), [("zarr-python", 60, 25), ("numpy", 100, 0)])
def test_number_of_cells(peer, least, refused):
    assert len([cell for cell in CELLS if cell.peer == peer]) >= least
    assert len([cell for cell in REFUSED if cell.peer == peer]) >= refused
    assert len({_id(cell) for cell in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("name", "nbits"),
    [
        *(("uint2", 2), ("uint4", 4), ("float6_e2m3fn", 6), ("float6_e3m2fn", 6)),
        *(("float8_e4m3", 8), ("datetime64[25s]", 64), ("timedelta64[1us]", 64)),
    ],
)
def test_packed_bits_are_the_lowest_of_each_element_lowest_first(name, nbits, tmp_path):
    """As the registry has them; no peer knows these types, so NumPy packs them."""
    data = data_of(Cell(name, "zarr3", "little", "numpy", "to peer"))
    metadata = {"shape": SHAPE, "data_type": TYPES[name].v3, "codecs": ["packbits"]}
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    store = gpustore.open(spec, create=True, context=gpustore.Context(_NO_SYNC)).result()
    store[...] = data
    every = np.unpackbits(data.reshape(-1, 1).view(np.uint8), axis=1, bitorder="little")
    assert (tmp_path / "c/0/0").read_bytes() == np.packbits(
        every[:, :nbits], bitorder="little"
    ).tobytes()
    assert_same(store.read().result(), data)
