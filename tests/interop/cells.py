"""The matrix of what is exchanged with other libraries: an explicit list of cells.

Groups of cells each run through one axis for every format, peer and direction, and take the values
of the other axes in turn, so that neighbours differ in as much as possible.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tests.interop.arrays import DTYPES

FORMATS = ("zarr2", "zarr3")
PEERS = ("zarr-python", "tensorstore")
DIRECTIONS = ("from peer", "to peer")


def _blosc(cname, shuffle, clevel=5):
    return {"id": "blosc", "cname": cname, "clevel": clevel, "shuffle": shuffle, "blocksize": 0}


def _blosc_v3(cname, shuffle, clevel=5):
    options = {"cname": cname, "clevel": clevel, "shuffle": shuffle, "blocksize": 0}
    return {"name": "blosc", "configuration": options}


_ZSTD = {"name": "zstd", "configuration": {"level": 3}}
_CRC32C = {"name": "crc32c"}

CODECS = {
    "zarr2": {
        "none": None,
        "zlib": {"id": "zlib", "level": 4},
        "gzip": {"id": "gzip", "level": 6},
        "zstd": {"id": "zstd", "level": 3},
        "blosc-lz4-shuffle": _blosc("lz4", 1),
        "blosc-lz4hc-none": _blosc("lz4hc", 0),
        "blosc-zstd-bitshuffle": _blosc("zstd", 2),
        "blosc-blosclz-auto": _blosc("blosclz", -1),
        "blosc-zlib-shuffle": _blosc("zlib", 1, 1),
        "blosc-stored": _blosc("lz4", 2, 0),
    },
    "zarr3": {
        "bytes": [],
        "gzip": [{"name": "gzip", "configuration": {"level": 6}}],
        "zstd": [_ZSTD],
        "zstd-negative": [{"name": "zstd", "configuration": {"level": -5}}],
        "zstd-checksum": [{"name": "zstd", "configuration": {"level": 1, "checksum": True}}],
        "crc32c": [_CRC32C],
        "zstd+crc32c": [_ZSTD, _CRC32C],
        "blosc-lz4-shuffle": [_blosc_v3("lz4", "shuffle")],
        "blosc-zstd-bitshuffle": [_blosc_v3("zstd", "bitshuffle")],
        "blosc-blosclz-none": [_blosc_v3("blosclz", "noshuffle")],
        "blosc-zlib-shuffle": [_blosc_v3("zlib", "shuffle", 1)],
    },
}
"""Zarr v2: the compressor. Zarr v3: what follows the codec `bytes`."""

KEYS = {
    "zarr2": {"v2.": ".", "v2/": "/"},
    "zarr3": {
        f"{name}{separator}": {"name": name, "configuration": {"separator": separator}}
        for name in ("default", "v2")
        for separator in "/."
    },
}
"""Zarr v2: `dimension_separator`. Zarr v3: `chunk_key_encoding`."""

SELECTIONS = {
    "full": np.s_[...],
    "range": np.s_[3:17, 5:],
    "step": np.s_[1:20:3, ::2],
    "negative": np.s_[20:2:-3, ::-1],
    "reversed": np.s_[::-1, ::-1, ::-1],
    "integer": np.s_[13],
    "integers": np.s_[14, 19, 2],
    "ellipsis": np.s_[..., 1],
    "newaxis": np.s_[np.newaxis, 4:15, np.newaxis, ..., np.newaxis],
    "mixed": np.s_[15:1:-2, np.newaxis, 12, ..., ::-1],
    "empty": np.s_[7:7],
}
"""What gpustore reads, or writes into an array that was empty."""

FILLS = {
    "zero": 0,
    "one": 1,
    "largest": None,
    "nan": np.nan,
    "negative zero": -0.0,
    "infinity": np.inf,
    "nan bits": None,
    "null": None,
}
"""`largest` depends on the data type, `nan bits` on how a format spells it, `null` is undefined."""


@dataclass(frozen=True)
class Cell:
    """One array that one library writes and another reads."""

    format: str
    peer: str
    direction: str
    codec: str
    dtype: str
    endian: str
    selection: str
    fill: str = "zero"
    keys: str = ""
    order: str = "C"
    source: str = "mri"
    written: str = "all"
    """What a peer writes: `all`, or `part`: not the first row of chunks nor all of the second."""

    @property
    def id(self) -> str:
        values = (getattr(self, field.name) for field in fields(self))
        return "-".join(str(value).replace(" ", "_") for value in values)


def _partners() -> Iterator[dict[str, str]]:
    for direction, peer in itertools.product(DIRECTIONS, PEERS):
        yield {"direction": direction, "peer": peer}


class _Turns:
    """Values of the axes a group does not run through."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, ...], int] = {}

    def _next(self, axis: str, values: Sequence[str], *scope: str) -> str:
        # Each starts elsewhere, or else axes of equal length would be paired in one way only.
        position = self._positions.setdefault((axis, *scope), 5 * len(self._positions))
        self._positions[axis, *scope] = position + 1
        return values[position % len(values)]

    def cell(self, format: str, *, direction: str, peer: str, **given: str) -> Cell:
        scope = (format, direction, peer)
        axes = {
            "dtype": [name for name in DTYPES if name != "bfloat16"],
            "codec": list(CODECS[format]),
            "selection": list(SELECTIONS),
            "keys": list(KEYS[format]),
            "source": ["mri", "mri", "ihc"],
            "written": ["all", "part"] if direction == "from peer" else ["all"],
        }
        values = {
            axis: given.pop(axis) if axis in given else self._next(axis, choice, *scope)
            for axis, choice in axes.items()
        }
        if "endian" not in given:
            given["endian"] = self._next("endian", ("big", "little"), values["dtype"], *scope)
        if DTYPES[values["dtype"]].itemsize == 1:
            given["endian"] = "little"
        return Cell(format=format, direction=direction, peer=peer, **given, **values)


def _make_cells() -> Iterator[Cell]:
    turns = _Turns()
    for format, partner in itertools.product(FORMATS, _partners()):
        for codec in CODECS[format]:
            yield turns.cell(format, **partner, codec=codec)
        for dtype in DTYPES:
            if dtype != "bfloat16":
                yield turns.cell(format, **partner, dtype=dtype)
            elif partner["peer"] == "tensorstore":  # zarr-python has no such type.
                # Zarr v2 has no byte order for types it names in words: they are little endian.
                for endian in ("little",) if format == "zarr2" else ("little", "big"):
                    yield turns.cell(format, **partner, dtype=dtype, endian=endian)
        yield from _fill_cells(turns, format, partner)
        for keys in KEYS[format]:
            common = {"keys": keys, "selection": "full"}
            yield turns.cell(format, **partner, **common, source="voxel", written="all")
    for partner in _partners():
        for source in ("mri", "ihc"):
            yield turns.cell("zarr2", **partner, order="F", source=source)
        for format, source, dtype in (
            ("zarr2", "mri whole", "int16"),
            ("zarr3", "ihc whole", "uint8"),
        ):
            yield turns.cell(format, **partner, source=source, dtype=dtype, selection="reversed")


def _fill_cells(turns: _Turns, format: str, partner: dict[str, str]) -> Iterator[Cell]:
    fills = [
        ("one", "bool"),
        ("largest", "uint64"),
        ("nan", "float32"),
        ("nan", "complex64"),
        ("negative zero", "float64"),
        ("infinity", "float16"),
    ]
    if format == "zarr2":
        fills += [("null", "uint16"), ("null", "float32")]
    elif partner != {"peer": "zarr-python", "direction": "from peer"}:  # It writes "NaN" for all.
        fills.append(("nan bits", "float32"))
    for fill, dtype in fills:
        written = "part" if partner["direction"] == "from peer" else "all"
        cell = turns.cell(format, **partner, fill=fill, dtype=dtype, written=written)
        yield replace(cell, selection="range" if cell.selection == "full" else cell.selection)


CELLS = tuple(_make_cells())
