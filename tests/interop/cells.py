"""The matrix of what is exchanged with other libraries: an explicit list of cells.

Groups of cells each run through one axis for every format, peer and direction, and take the values
of the other axes in turn, so that neighbours differ in as much as possible. What a peer cannot do
is no gap in that list: it stands in :data:`IMPOSSIBLE`, with the peer's own words.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tests.interop.arrays import CHUNKS, DTYPES, EXTENDED, NUMBERS, RECORDS, STRINGS

FORMATS = ("zarr2", "zarr3")
PEERS = ("zarr-python", "tensorstore")
DIRECTIONS = ("from peer", "to peer")

CNAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
SHUFFLES = {"zarr2": (-1, 0, 1, 2), "zarr3": ("noshuffle", "shuffle", "bitshuffle")}


def _blosc(cname, shuffle, clevel=5, blocksize=0):
    return {"cname": cname, "clevel": clevel, "shuffle": shuffle, "blocksize": blocksize}


def _named(name, **configuration):
    return {"name": name, "configuration": configuration}


_ZSTD = _named("zstd", level=3)
_CRC32C = {"name": "crc32c"}

CODECS = {
    "zarr2": {
        "none": None,
        "zlib": {"id": "zlib", "level": 4},
        "gzip": {"id": "gzip", "level": 6},
        "bz2": {"id": "bz2", "level": 3},
        "zstd": {"id": "zstd", "level": 3},
        "zstd-negative": {"id": "zstd", "level": -5},
        "lz4": {"id": "lz4", "acceleration": 2},
        "lzma": {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": None},
        "blosc-stored": {"id": "blosc", **_blosc("lz4", 2, 0)},
        "blosc-blocks": {"id": "blosc", **_blosc("lz4", 1, 5, 512)},
    }
    | {
        f"blosc-{cname}{shuffle}": {"id": "blosc", **_blosc(cname, shuffle, 1 + 2 * i % 9)}
        for i, (cname, shuffle) in enumerate(itertools.product(CNAMES, SHUFFLES["zarr2"]))
    },
    "zarr3": {
        "bytes": [],
        "gzip": [_named("gzip", level=6)],
        "zstd": [_ZSTD],
        "zstd-negative": [_named("zstd", level=-5)],
        "zstd-checksum": [_named("zstd", level=1, checksum=True)],
        "crc32c": [_CRC32C],
        "zstd+crc32c": [_ZSTD, _CRC32C],
        "gzip+zstd": [_named("gzip", level=1), _ZSTD],
        "blosc-blocks": [_named("blosc", **_blosc("zstd", "shuffle", 5, 512))],
    }
    | {
        f"blosc-{cname}-{shuffle}": [_named("blosc", **_blosc(cname, shuffle, 1 + 2 * i % 9))]
        for i, (cname, shuffle) in enumerate(itertools.product(CNAMES, SHUFFLES["zarr3"]))
    },
}
"""Zarr v2: the compressor. Zarr v3: what follows the codec `bytes`."""

KEYS = {
    "zarr2": {"v2.": ".", "v2/": "/"},
    "zarr3": {
        f"{name}{separator}": _named(name, separator=separator)
        for name in ("default", "v2")
        for separator in "/."
    },
}
"""Zarr v2: `dimension_separator`. Zarr v3: `chunk_key_encoding`."""

LAYOUTS = {
    "zarr2": ("C", "F"),
    "zarr3": (
        *("C", "F", "rotated", "shards", "shards at start", "shards in shards", "F in shards"),
        "shards in F",
    ),
}
"""Orders of the dimensions, and chunks within chunks: see :func:`tests.interop.peers.codecs_of`."""

SELECTIONS = {
    "full": np.s_[...],
    "empty": np.s_[7:7],
    "integer": np.s_[13],
    "range": np.s_[3:17, 5:],
    "step": np.s_[1:20:3, ::2],
    "negative": np.s_[20:2:-3, ::-1],
    "ellipsis": np.s_[..., 1],
    "newaxis": np.s_[np.newaxis, 4:15, np.newaxis, ..., np.newaxis],
    "reversed": np.s_[::-1, ::-1, ::-1],
    "integers": np.s_[14, 19, 2],
    "mixed": np.s_[15:1:-2, np.newaxis, 12, ..., ::-1],
}
"""What gpustore reads, or writes into an array that was empty."""

FILLS = {
    "zero": 0,
    "one": 1,
    "largest": None,
    "nan": np.nan,
    "negative zero": -0.0,
    "infinity": np.inf,
    "negative infinity": -np.inf,
    "nan bits": None,
    "sample": None,
    "null": None,
}
"""`largest` and `sample` (of the data) depend on the type, `nan bits` on the format; `null` is
undefined."""


_ALL_ROWS = ("full", "ellipsis", "reversed")
"""Those that see the rows a peer writes as a part, whatever the shape of chunks."""


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
    layout: str = "C"
    source: str = "mri"
    written: str = "all"
    """What a peer writes: `all`, `nothing`, or `part`: not the first row of chunks nor all of the
    second."""

    @property
    def id(self) -> str:
        values = (getattr(self, field.name) for field in fields(self))
        return "-".join(str(value).replace(" ", "_") for value in values)


def partners() -> Iterator[dict[str, str]]:
    """Every peer in every direction."""
    for direction, peer in itertools.product(DIRECTIONS, PEERS):
        yield {"direction": direction, "peer": peer}


def dtypes_of(format: str) -> list[str]:
    """The data types a format has in gpustore."""
    more = ("record", "subarrays", "S5", "V3") if format == "zarr2" else ("struct", "V3")
    return [*NUMBERS, *EXTENDED, *more]


def byte_orders(format: str, dtype: str) -> tuple[str, ...]:
    """Byte orders a type is stored in."""
    # Zarr v2 has no byte order for types it names in words: they are little endian.
    words = dtype in EXTENDED and format == "zarr2"
    if DTYPES[dtype].itemsize == 1 or words or dtype in ("record", "subarrays", *STRINGS):
        return ("little",)
    return ("big", "little")


def _selections(source: str, dtype: str) -> list[str]:
    """Selections of the dimensions an array has. Those of its elements stay whole."""
    names = list(SELECTIONS)
    rank = len(CHUNKS[source])
    if dtype in (*RECORDS, *STRINGS):
        return names[: names.index("range" if rank < 2 else "ellipsis")]
    return names[: names.index("range")] if rank < 2 else names[: None if rank > 2 else -3]


# --------------------------------------------------------------------------- what cannot be


@dataclass(frozen=True)
class Impossible:
    """What a peer cannot write or read, for which gpustore is not asked in the matrix."""

    peer: str
    values: dict[str, tuple[str, ...]]
    """Some values of each of some axes."""

    message: str
    """A regular expression for what the peer says, or for the difference it makes."""

    formats: tuple[str, ...] = FORMATS
    directions: tuple[str, ...] = DIRECTIONS

    def covers(self, cell: Cell) -> bool:
        return (
            cell.peer == self.peer
            and cell.format in self.formats
            and cell.direction in self.directions
            and all(getattr(cell, axis) in values for axis, values in self.values.items())
        )


_SHARDS = ("shards", "shards at start", "shards in shards")
_SNAPPY = tuple(name for format in FORMATS for name in CODECS[format] if "snappy" in name)

IMPOSSIBLE = (
    Impossible(
        "tensorstore",
        {"codec": ("lz4", "lzma")},
        '"lz(4|ma)" is not registered',
        formats=("zarr2",),
    ),
    # It makes order C of it and then refuses that.
    Impossible(
        "tensorstore",
        {"layout": ("F",), "source": ("row", "voxel")},
        'Expected "order" of "F" but received: "C"',
        formats=("zarr2",),
        directions=("from peer",),
    ),
    # The Blosc of numcodecs is built without it.
    Impossible(
        "zarr-python",
        {"codec": _SNAPPY},
        "compressor not supported: 'snappy'|error during blosc decompression",
    ),
    Impossible("zarr-python", {"dtype": tuple(EXTENDED)}, "No Zarr data type found that matches"),
    # It makes bytes of them.
    Impossible(
        "zarr-python",
        {"dtype": ("subarrays",)},
        r'No Zarr data type found that matches|dtype\("byte"\) == dtype\("uint16"\)',
        formats=("zarr2",),
    ),
    # It knows only the older name of the one, and another of the other.
    Impossible(
        "zarr-python",
        {"dtype": ("struct", "V3")},
        "No Zarr data type found that matches ({.*'struct'|'r24')",
        formats=("zarr3",),
        directions=("to peer",),
    ),
    # It caches by the fill value, which has no hash.
    Impossible(
        "zarr-python",
        {"dtype": ("struct", "V3"), "layout": tuple(n for n in LAYOUTS["zarr3"] if "shard" in n)},
        "unhashable type: 'writeable void-scalar'",
        formats=("zarr3",),
        directions=("from peer",),
    ),
    # It looks for two dimensions in the index of the shard.
    Impossible(
        "zarr-python",
        {"source": ("voxel",), "layout": (*_SHARDS, "F in shards")},
        "too many indices for array: array is 1-dimensional, but 2 were indexed",
        formats=("zarr3",),
        directions=("from peer",),
    ),
    # It compares the inner chunks with the shard before the transpose.
    Impossible("zarr-python", {"layout": ("shards in F",)}, "needs to be divisible by the shard's"),
    # It stores "NaN" for all of them.
    Impossible(
        "zarr-python",
        {"fill": ("nan bits",)},
        r"assert b'\\x00\\x00\\xc0\\x7f' == ",
        formats=("zarr3",),
        directions=("from peer",),
    ),
)
"""What the peers cannot do, for each a reason the test finds in their error."""


def is_impossible(cell: Cell) -> bool:
    return any(one.covers(cell) for one in IMPOSSIBLE)


# --------------------------------------------------------------------------- the cells


class _Turns:
    """Values of the axes a group does not run through."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, ...], int] = {}

    def next(self, axis: str, values: Sequence[str], *scope: str) -> str:
        # Each starts elsewhere, or else axes of equal length would be paired in one way only.
        position = self._positions.setdefault((axis, *scope), 5 * len(self._positions))
        self._positions[axis, *scope] = position + 1
        return values[position % len(values)]

    def cell(self, format: str, *, direction: str, peer: str, **given: str) -> Cell:
        scope = (format, direction, peer)
        values = dict(given)

        def choose(axis: str, choice: Sequence[str], *more: str) -> None:
            if axis not in values:
                values[axis] = self.next(axis, choice, *more, *scope)

        def possible(axis: str, choice: Sequence[str]) -> list[str]:
            for dtype in (values["dtype"], ""):
                plain = Cell(format, peer, direction, "", dtype, "", "", source=values["source"])
                cells = {name: replace(plain, **{axis: name}) for name in choice}
                found = [name for name, cell in cells.items() if not is_impossible(cell)]
                if found:
                    return found
            raise AssertionError((axis, values))

        choose("dtype", list(NUMBERS))
        choose("source", ["mri", "ihc", "slice", "mri", "blocks", "row"])
        choose("keys", list(KEYS[format]))
        choose("codec", possible("codec", list(CODECS[format])))
        choose("layout", possible("layout", LAYOUTS[format]))
        if is_impossible(Cell(format, peer, direction, values["codec"], "", "", "")):
            # It shows only where there is something to compress.
            values |= {"written": "all", "selection": "full", "layout": "C", "source": "mri"}
        choose("written", ["all", "part"])
        selections = _selections(values["source"], values["dtype"])
        if "fill" not in values:
            # The cell is about what is stored, so that has to be selected.
            part = values["written"] == "part" and direction == "from peer"
            telling = _ALL_ROWS if part else set(selections) - {"empty"}
            selections = [name for name in selections if name in telling]
        choose("selection", selections, values["source"])
        choose("endian", byte_orders(format, values["dtype"]), values["dtype"])
        if direction == "to peer":
            values["written"] = "all"
        return Cell(format=format, direction=direction, peer=peer, **values)


def _all_cells() -> Iterator[Cell]:
    turns = _Turns()
    for format, partner in itertools.product(FORMATS, partners()):
        for codec in CODECS[format]:
            yield turns.cell(format, **partner, codec=codec)
        for dtype in dtypes_of(format):
            orders = byte_orders(format, dtype) if dtype in EXTENDED else [None]
            for endian in orders:
                given = {} if endian is None else {"endian": endian}
                yield turns.cell(format, **partner, dtype=dtype, written="all", **given)
        for layout in LAYOUTS[format]:
            sources = ["row", "mri", "ihc"] if layout == "F" else ["slice", "mri"]
            for source in sources:
                yield turns.cell(format, **partner, layout=layout, source=source)
        if format == "zarr3":
            for dtype, layout in (("struct", "shards"), ("V3", "F in shards")):
                yield turns.cell(format, **partner, dtype=dtype, layout=layout, written="all")
        yield from _fill_cells(turns, format, partner)
        for keys in KEYS[format]:
            given = {"keys": keys, "selection": "full", "source": "voxel"}
            yield turns.cell(format, **partner, **given, written="all")
        if format == "zarr3":
            given = {"source": "voxel", "layout": "shards", "selection": "full"}
            yield turns.cell(format, **partner, **given, written="all")
        given = {"source": "ihc whole", "dtype": "uint8", "layout": "C", "written": "all"}
        if format == "zarr2":
            given |= {"source": "mri whole", "dtype": "int16"}
        yield turns.cell(format, **partner, selection="reversed", **given)


def _fill_cells(turns: _Turns, format: str, partner: dict[str, str]) -> Iterator[Cell]:
    fills = [
        *(("one", "bool"), ("largest", "uint64"), ("largest", "int64"), ("sample", "int8")),
        *(("nan", "float16"), ("nan", "float32"), ("nan", "complex64"), ("nan", "complex128")),
        *(("negative zero", "float64"), ("negative zero", "float32")),
        *(("infinity", "float16"), ("negative infinity", "float32")),
        *(("sample", "bfloat16"), ("sample", "float8_e5m2"), ("sample", "int4")),
    ]
    if format == "zarr2":
        fills += [("null", dtype) for dtype in ("uint16", "float32", "S5", "V3")]
        fills += [("sample", dtype) for dtype in ("record", "subarrays", "S5", "V3")]
    else:
        fills += [("nan bits", "float32"), ("sample", "struct"), ("sample", "V3")]
    for i, (fill, dtype) in enumerate(fills):
        written = "nothing" if i % 4 == 3 else "part"
        cell = turns.cell(format, **partner, fill=fill, dtype=dtype, written=written)
        # What is not written has to be read.
        yield replace(cell, selection="integer" if cell.selection == "full" else cell.selection)


_MADE = tuple(_all_cells())

CELLS = tuple(cell for cell in _MADE if not is_impossible(cell))
"""The cells that hold."""

IMPOSSIBLE_CELLS = tuple(cell for cell in _MADE if is_impossible(cell))
"""The cells a peer cannot do."""
