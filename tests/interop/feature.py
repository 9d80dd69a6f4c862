"""One feature of the Zarr specifications, as files that show it and what they hold.

The files are made here by NumPy, numcodecs and the standard library, by nobody whose ability is
asked for. Every array is small, and has chunks at its edges unless it says otherwise.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np

__all__ = [
    "CHUNKS",
    "LIBRARY_OPTIONS",
    "LIBRARY_VALUES",
    "SHAPE",
    "Feature",
    "any_length",
    "chunk_files",
    "codec",
    "node",
    "numbers",
    "stored_bytes",
    "zarr2",
    "zarr3",
]

SHAPE, CHUNKS = (4, 5), (2, 3)

DESCRIBED = ("plain", "must_refuse", "is_written", "case")
"""What :class:`Feature` has that does not follow from an array."""

LIBRARY_OPTIONS: dict[str, dict[str, Any]] = {
    "zfpy": {"id": "zfpy", "mode": 4, "tolerance": -1, "rate": -1, "precision": -1},
    "pcodec": {
        **{"id": "pcodec", "level": 8, "mode_spec": "auto", "delta_spec": "auto"},
        **{"paging_spec": "equal_pages_up_to", "delta_encoding_order": None},
        "equal_pages_up_to": 262144,
    },
}
"""Of codecs whose libraries need not be installed, in Zarr v2."""

_CHUNKS = (
    [1, 2, 3, 6, 7, 8],
    [4, 5, 0, 9, 10, 0],
    [11, 12, 13, 16, 17, 18],
    [14, 15, 0, 19, 20, 0],
)
_ENCODED = {
    "zfp": (
        "1f000000828924104e02000000000000",
        "1f000080002080141ca08e0097306b01",
        "1f0000001ba692423809000000000000",
        "1f00004080208622526001b24218c2ac0500000000000000",
    ),
    "zfpy": (
        "7a66700524000010000000881f000000828924104e020000",
        "7a66700524000010000000881f000080002080141ca08e0097306b0100000000",
        "7a66700524000010000000881f0000001ba6924238090000",
        "7a66700524000010000000881f00004080208622526001b24218c2ac05000000",
    ),
    "pcodec": (
        "70636f2103008201040103050000001000080000001c0088ea0300",
        "70636f210300820104010305000000100000000000240054900a00",
        "70636f2103008201040103050000001000580000001c0088ea0300",
        "70636f2103008201040103050000001000000000002c00ee81490100",
    ),
}

LIBRARY_VALUES = {
    name: {np.array(chunk, "<i4").tobytes(): data for chunk, data in zip(_CHUNKS, encoded)}
    for name, encoded in _ENCODED.items()
}
"""Chunks of ``numbers("<i4")`` as zfpy 1.0.1 and pcodec 1.1.0 encode them, by their bytes."""


@dataclass(frozen=True)
class Feature:
    """What one row of docs/compatibility.md tries.

    Attributes
    ----------
    section, name : str
        Where the row stands, and what it says.
    case : str
        Which of several of one row this is; Markdown.
    files : mapping of str to bytes
        By key.
    values : numpy.ndarray or JSON
        What they hold; of a hierarchy what `program` says of it.
    program : str
        What is run: ``array``, or a method of the libraries in :mod:`tests.interop.libraries`.
    plain : callable
        What of a stored chunk must come out the same whoever encodes it.
    must_refuse : bool
        Whether the specification forbids to read it.
    is_written : bool
        Whether writing is tried too.
    """

    section: str
    name: str
    files: Mapping[str, bytes]
    values: Any
    program: str = "array"
    plain: Callable[[bytes], bytes] = bytes
    must_refuse: bool = False
    is_written: bool = True
    case: str = ""

    @property
    def id(self) -> str:
        return ": ".join(filter(None, (self.section, self.name, self.case)))


def numbers(dtype: Any = "<i2", shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Elements that differ from each other, and from fill values."""
    count = int(np.prod(shape, dtype=int))
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return (np.arange(count) % 3 != 1).reshape(shape)
    found = np.arange(1, count + 1).astype(dtype)
    if dtype.kind == "c":
        found = found - 1j * found
    elif dtype.kind == "f":
        found = found / 2 - 3
    return found.astype(dtype).reshape(shape)


def stored_bytes(order: str = "C", dtype: Any = None) -> Callable[[np.ndarray], bytes]:
    """An encoder that only lays out elements."""

    def encode(chunk: np.ndarray) -> bytes:
        return (chunk if dtype is None else chunk.astype(dtype)).tobytes(order)

    return encode


def chunk_files(
    values: np.ndarray,
    encode: Callable[[np.ndarray], bytes],
    *,
    chunks: tuple[int, ...] = CHUNKS,
    fill: Any = 0,
    rank: int | None = None,
    prefix: str = "",
    separator: str = ".",
    scalar: str = "0",
    missing: Iterable[tuple[int, ...]] = (),
) -> dict[str, bytes]:
    """The stored chunks of an array, those at its edges filled up."""
    rank = len(chunks) if rank is None else rank
    counts = [-(-size // max(chunk, 1)) for size, chunk in zip(values.shape, chunks)]
    files = {}
    for cell in itertools.product(*map(range, counts)):
        if cell in missing:
            continue
        chunk = np.empty((*chunks, *values.shape[rank:]), values.dtype)
        chunk[...] = fill
        begin = [i * size for i, size in zip(cell, chunks)]
        cut = values[tuple(slice(b, b + size) for b, size in zip(begin, chunks))]
        chunk[tuple(slice(0, size) for size in cut.shape)] = cut
        key = prefix + separator.join(map(str, cell)) if cell else scalar
        files[key] = encode(chunk)
    return files


def any_length(code: str) -> tuple[np.ndarray, Callable[[np.ndarray], bytes]]:
    """Strings or bytes of any length, and their encoder, ``vlen-utf8`` or ``vlen-bytes``."""
    values = np.array(["x" * (i % 4) + "é" * (i % 3) + str(i) for i in range(20)], object)
    library: Any = numcodecs.VLenUTF8()
    if code == "vlen-bytes":
        values = np.array([one.encode() for one in values], object)
        library = numcodecs.VLenBytes()
    return values.reshape(SHAPE), lambda chunk: bytes(library.encode(chunk.reshape(-1)))


def node(document: Mapping[str, Any]) -> bytes:
    """A document as it is stored."""
    return json.dumps(document).encode()


def codec(name: str, **configuration: Any) -> dict[str, Any]:
    """A codec of Zarr v3."""
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


def zarr2(
    section: str,
    name: str,
    values: np.ndarray | None = None,
    encode: Callable[[np.ndarray], bytes] | None = None,
    *,
    fill: Any = 0,
    missing: Iterable[tuple[int, ...]] = (),
    chunks: tuple[int, ...] = CHUNKS,
    separator: str = ".",
    files: Mapping[str, bytes] | None = None,
    absent: Iterable[str] = (),
    **members: Any,
) -> Feature:
    """An array of Zarr v2; `members` of the feature, or of its metadata other than the plainest."""
    values = numbers() if values is None else values
    described = {name: members.pop(name) for name in DESCRIBED if name in members}
    rank = len(chunks)
    document = {
        **{"zarr_format": 2, "shape": list(values.shape[:rank]), "chunks": list(chunks)},
        **{"dtype": values.dtype.str, "compressor": None, "filters": None, "order": "C"},
        **{"fill_value": 0, "dimension_separator": separator, **members},
    }
    for member in absent:
        del document[member]
    stored = chunk_files(
        values,
        encode or stored_bytes(document["order"]),
        **{"chunks": chunks, "fill": fill, "missing": missing, "separator": separator},
        rank=rank,
    )
    found = {".zarray": node(document), **stored, **(files or {})}
    return Feature(section, name, found, values, **described)


def zarr3(
    section: str,
    name: str,
    values: np.ndarray | None = None,
    encode: Callable[[np.ndarray], bytes] | None = None,
    *,
    fill: Any = 0,
    missing: Iterable[tuple[int, ...]] = (),
    chunks: tuple[int, ...] = CHUNKS,
    rank: int | None = None,
    data_type: Any = None,
    codecs: Any = None,
    prefix: str = "c.",
    separator: str = ".",
    scalar: str = "c",
    stored: Mapping[str, bytes] | None = None,
    **members: Any,
) -> Feature:
    """An array of Zarr v3; `members` of the feature, or of its metadata other than the plainest."""
    values = numbers() if values is None else values
    described = {name: members.pop(name) for name in DESCRIBED if name in members}
    rank = len(chunks) if rank is None else rank
    data_type = values.dtype.name if data_type is None else data_type
    document = {
        **{"zarr_format": 3, "node_type": "array", "shape": list(values.shape[:rank])},
        "data_type": data_type,
        "chunk_grid": codec("regular", chunk_shape=list(chunks)),
        # Without folders, which take most of the time.
        "chunk_key_encoding": codec("default", separator="."),
        "fill_value": 0,
        "codecs": [codec("bytes", endian="little")] if codecs is None else codecs,
        **{"attributes": {}, **members},
    }
    if stored is None:
        stored = chunk_files(
            values,
            encode or stored_bytes(),
            **{"chunks": chunks, "fill": fill, "missing": missing, "separator": separator},
            **{"prefix": prefix, "scalar": scalar, "rank": rank},
        )
    return Feature(section, name, {"zarr.json": node(document), **stored}, values, **described)
