"""Encodes and writes the rows of one window by the native core."""

from __future__ import annotations

import ctypes
import itertools
import os
from array import array as numbers
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.base import Layer
from gpustore.backends.native.encoding import NativeEncoding
from gpustore.backends.native.job import address_of
from gpustore.backends.native.library import library
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelToken

UNTOUCHED: Final = 0
DONE: Final = 1
MISSING: Final = 2
"""Status of a row: not decided yet, written, and equal to the fill value."""

_SLICE_NS: Final = 10_000_000
_SYNCED_SLICE_NS: Final = 80_000_000
"""Nanoseconds after which the thread hears Ctrl-C; with fsync enough for files to share one."""

_NEXT: Final = -2  # next and end are the last members


@cache
def _core() -> Any:
    core = library()
    assert core is not None
    names = "find_fill", "write", "encode"
    for function in [getattr(core, f"gpustore_core_{name}") for name in names]:
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        function.restype = ctypes.c_int64
    return core


NOTHING: Final = 0
STORED: Final = 1
"""What lies under the regions of a row: nothing, or the file that it replaces."""


class WrittenRows(NamedTuple):
    """Rows of a :class:`WriteJob`, and the arrays whose elements they get.

    Attributes
    ----------
    regions : sequence of int
        Edges of the rows in the regions; empty if each row is one region.
    source : sequence of int
        Number of the array of each region; empty if there is one.
    columns : sequence
        Columns ``src_start`` and ``dst_start``, then the counts of each dimension.
    strides : sequence of int
        Of each array ``src_stride`` and ``dst_stride``, both as long as there are dimensions.
    rank : int
    layers : sequence of Layer
        Layer of each array.
    """

    regions: Sequence[int]
    source: Sequence[int]
    columns: Sequence[Any]
    strides: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
    rank: int
    layers: Sequence[Layer]

    @classmethod
    def of_window(cls, layer: Layer) -> WrittenRows:
        """Return the rows of a layer without index arrays."""
        rows = layer.rows
        columns = rows.src_start, rows.dst_start, *rows.count
        strides = [(rows.src_stride, rows.dst_stride)]
        return cls((), (), columns, strides, len(rows.count), [layer])

    @classmethod
    def of_chunks(cls, chunks: Sequence[tuple[Sequence[Layer], int]]) -> WrittenRows:
        """Return a row for each chunk: a row of layers, which have no index arrays."""
        layers = list({id(layer): layer for some, _ in chunks for layer in some}.values())
        if len(layers) == 1 and len(chunks[0][0]) == 1:
            rows = layers[0].rows
            if len(chunks) < len(rows):
                rows = rows.take([row for _, row in chunks])
            return cls.of_window(layers[0]._replace(rows=rows))
        rank = max([len(layer.rows.src_stride) for layer in layers], default=0)
        number = {id(layer): i for i, layer in enumerate(layers)}
        edges, source, regions = [0], [], []
        ones, zeros = [(1,) * n for n in range(rank + 1)], [(0,) * n for n in range(rank + 1)]
        for some, row in chunks:
            for layer in some:
                rows = layer.rows
                more = ones[rank - len(rows.count)]
                counts = [column[row] for column in rows.count]
                regions.append((rows.src_start[row], rows.dst_start[row], *counts, *more))
                source.append(number[id(layer)])
            edges.append(len(regions))
        strides = []
        for layer in layers:
            src, dst = layer.rows.src_stride, layer.rows.dst_stride
            more = zeros[rank - len(src)]
            strides.append((src + more, dst + more))
        return cls(edges, source, list(zip(*regions)), strides, rank, layers)


class WriteJob:
    """Struct ``WriteJob`` of ``kernels/host/write_job.h``, and the memory it refers to.

    For one thread, which calls its methods until they return False: they return after a slice of
    time, so that it hears Ctrl-C, and after the row at hand once `wanted` says that the write was
    cancelled. What is written by then stays.

    Parameters
    ----------
    encoding : NativeEncoding
    rows : WrittenRows
    under : sequence of int or buffer or None, optional
        What lies under each row: ``NOTHING``, ``STORED`` or an encoded value; None for nothing.
    drops_fill : bool
        Whether chunks that equal the blank one are not stored.
    keys : sequence of str, optional
        Keys of the rows, for :meth:`write`: each another one.
    syncs : bool
        Whether the bytes of a file must reach the disk before it gets its name.
    encoded : uint8 array, optional
        Memory for encoded values, for :meth:`encode`.

    Attributes
    ----------
    status : array of int
        Of each row: ``UNTOUCHED``, ``DONE``, ``MISSING``, or another number if Python must write.
    directory : array of int
        Descriptor of each row's directory, to be set before :meth:`write`.
    stored : array of int
        Bytes of the file or the encoded value of each row that is ``DONE``.
    at : array of int
        First byte of each encoded value in `encoded`.
    """

    __slots__ = ("_kept", "_slice_ns", "_struct", "at", "directory", "status", "stored")

    def __init__(
        self,
        encoding: NativeEncoding,
        rows: WrittenRows,
        under: Sequence[int | Buffer | None] = (),
        *,
        drops_fill: bool = True,
        keys: Sequence[str] = (),
        syncs: bool = False,
        encoded: NDArray[np.uint8] | None = None,
    ) -> None:
        self._slice_ns = _SYNCED_SLICE_NS if syncs else _SLICE_NS
        regions = len(rows.columns[0])
        n = len(rows.regions) - 1 if rows.regions else regions
        self.status = numbers("B", bytes(n))
        self.directory = numbers("q", (-1,)) * n
        self.stored = numbers("q", (0,)) * n
        self.at = numbers("q", (0,)) * n
        encoded = np.empty(0, np.uint8) if encoded is None else encoded
        words = numbers("q")
        for column in (*rows.columns, rows.regions, rows.source):
            if isinstance(column, np.ndarray):
                words.frombytes(column.astype(np.int64).tobytes())
            else:
                words.extend(column)
        for along, _ in rows.strides:
            words.extend(along)
        for _, along in rows.strides:
            words.extend(along)
        kept: list[Any] = [encoding, words, encoded]
        memories: dict[int, tuple[int, int, int]] = {}
        for layer in rows.layers:
            source, mask = layer.source, layer.mask
            if id(source) not in memories:
                memories[id(source)] = address_of(source.flat), source.offset, source.flat.size
            words.extend(memories[id(source)])
            words.append(0 if mask is None else address_of(mask))
        kept.append(rows.layers)
        text = b"\0"
        below: list[Any] = []
        if keys:
            names: list[Any] = [key[key.rfind("/") + 1 :] for key in keys]
            text = os.fsencode("\0".join(names)) + b"\0"
            if not text.isascii():
                names = [os.fsencode(name) for name in names]
            words.extend(itertools.accumulate([len(name) + 1 for name in names[:-1]], initial=0))
        if under:
            below = [_bytes_of(one) for one in under]
            kept.append(below)
            words.extend([one if isinstance(one, int) else address_of(one) for one in below])
            words.extend([0 if isinstance(one, int) else one.size for one in below])
        kept.append(text)
        self._kept = kept
        here = words.buffer_info()[0]
        ends = itertools.accumulate(
            (
                *(regions, regions, rows.rank * regions, len(rows.regions), len(rows.source)),
                *(rows.rank * len(rows.strides), rows.rank * len(rows.strides)),
                *(4 * len(rows.layers), len(keys), len(below)),
            ),
            initial=0,
        )
        src, dst, count, first, source, src_stride, dst_stride, sources, name, address, nbytes = [
            here + 8 * at for at in ends
        ]
        self._struct = numbers(
            "q",
            (
                *(encoding.address, n, regions, rows.rank),
                *(first if rows.regions else 0, source if rows.source else 0, sources),
                *(src, dst, count, src_stride, dst_stride),
                *((address, nbytes) if below else (0, 0)),
                *(drops_fill, self.directory.buffer_info()[0], name),
                *(address_of(np.frombuffer(text, np.uint8)), syncs, self.status.buffer_info()[0]),
                *(self.stored.buffer_info()[0], address_of(encoded), encoded.size),
                *(0, self.at.buffer_info()[0], 0, 0, 0, n),
            ),
        )

    @property
    def fetched(self) -> tuple[int, int]:
        """Number of files that were read to be changed, and their bytes."""
        return self._struct[_NEXT - 2], self._struct[_NEXT - 1]

    def find_fill(self, wanted: CancelToken) -> bool:
        """Find rows that equal the fill value; return whether some have not been looked at."""
        return self._call(_core().gpustore_core_find_fill, wanted)

    def write(self, wanted: CancelToken) -> bool:
        """Write rows that are ``UNTOUCHED``; return whether some have not been looked at."""
        return self._call(_core().gpustore_core_write, wanted)

    def encode(self, wanted: CancelToken) -> bool:
        """Encode rows that are ``UNTOUCHED``; return whether some have not been looked at."""
        return self._call(_core().gpustore_core_encode, wanted)

    def take(self, begin: int, end: int) -> None:
        """Set the rows that the methods work on."""
        self._struct[_NEXT], self._struct[_NEXT + 1] = begin, end

    def done(self) -> int:
        """Return the number of rows that are ``DONE``."""
        return self.status.tobytes().count(DONE)

    def _call(self, function: Callable[[int, int, int], int], wanted: CancelToken) -> bool:
        return bool(function(self._struct.buffer_info()[0], self._slice_ns, wanted.address))


def _bytes_of(under: int | Buffer | None) -> Any:
    """Return what lies under a row, a value as an array of its bytes."""
    if under is None:
        return NOTHING
    return under if isinstance(under, int) else np.frombuffer(under, np.uint8)
