"""Windows whose arrays are read: all chunks of their patches are decoded once.

If a chunk is damaged, the region of a window is read again, chunk by chunk, and the patches that
touch a damaged one are *suspect*: their elements in the region are not to be used.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore.loader.order import Window
from gpustore.loader.volume import PairedArray, Volume
from gpustore.loader.window_memory import WindowMemory

Integers = NDArray[np.int64]

REFLECT: Final = "reflect"

DAMAGE: Final = (gpustore.CorruptChunkError, gpustore.NotFoundError)
"""Errors of a chunk that is stored wrongly, or missing though the array may lack none."""


class FetchedArray:
    """One array of a window: the region that has all patches, or the patches one by one.

    A region costs its bytes whatever the number of patches; few patches of a large region are read
    alone.

    Attributes
    ----------
    array : PairedArray
    origins : ndarray of int64, shape (n, rank)
        Origins of the patches, counted from the first element.
    low, high : ndarray of int64, shape (rank,)
        First element of the region, and the one behind the last.
    is_box : bool
        Whether the region is read.
    nbytes : int
        Bytes that are read.
    """

    def __init__(self, array: PairedArray, origins: Integers, edge: str) -> None:
        self.array = array
        self.origins = array.at(origins)
        self._edge = edge
        extent = np.array(array.extent())
        self.low = np.clip(self.origins.min(axis=0), 0, extent)
        self.high = np.clip(self.origins.max(axis=0) + np.array(array.patch), 0, extent)
        if edge == REFLECT:
            self._reach_mirrored(extent)
        box = math.prod((self.high - self.low).tolist()) * math.prod(array.leading)
        box *= array.dtype.itemsize
        alone = len(origins) * array.patch_nbytes
        is_inside = bool((self.origins >= 0).all()) and bool(
            (self.origins + np.array(array.patch) <= extent).all()
        )
        self.is_box = not is_inside or alone > box
        self.nbytes = box if self.is_box else alone
        self._future: gpustore.Future[Any] | None = None
        self._out: Any = None
        self._sound: Any = None
        """Elements that were read again, without damaged chunks."""
        self._counts: Counter[str] = Counter()

    def _reach_mirrored(self, extent: Integers) -> None:
        """Extend the region by the elements that stand for those outside."""
        for d, n in enumerate(extent.tolist()):
            for origin in np.unique(self.origins[:, d]).tolist():
                end = origin + self.array.patch[d]
                if origin < 0 or end > n:
                    found = _mirrored(origin, end, n)
                    self.low[d] = min(self.low[d], found.min())
                    self.high[d] = max(self.high[d], found.max() + 1)

    def explain(self) -> gpustore.Explanation | None:
        """Estimate the read; None for an array without chunks, in memory."""
        try:
            if self.is_box:
                return self.array.box(self.low.tolist(), self.high.tolist()).explain()
            return self.array.store.explain_many(*self.array.crops(self.origins))
        except gpustore.UnsupportedError:
            return None

    def begin(self, stream: Any, memory: WindowMemory | None) -> gpustore.Future[Any]:
        """Begin to read.

        Parameters
        ----------
        stream : object
            Stream of a device, in whose order memory is that is allocated there.
        memory : WindowMemory or None
            Memory to read into; None for new memory, and on a device.
        """
        if memory is not None:
            self._out = memory.take(self._shape, self.array.dtype)
        if self.is_box:
            box = self.array.box(self.low.tolist(), self.high.tolist())
            self._future = box.read(out=self._out, stream=stream)
        else:
            crops = self.array.crops(self.origins)
            self._future = self.array.reader.read_many(*crops, out=self._out, stream=stream)
        return self._future

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the array that is read."""
        if self.is_box:
            return *self.array.leading, *(self.high - self.low).tolist()
        return len(self.origins), *self.array.patch_shape

    def give(self, memory: WindowMemory) -> None:
        """Give memory back, once nobody uses the array any more."""
        out, self._out, self._future = self._out, None, None
        if out is not None:
            memory.give(out)

    @property
    def is_read(self) -> bool:
        """Whether the array is read, or has failed."""
        return self._future is not None and self._future.done()

    def wait(self) -> None:
        """Wait until the array is read, or has failed."""
        assert self._future is not None
        self._future.exception()

    def result(self) -> Any:
        """Return the array that is read.

        Raises
        ------
        GpustoreError
            As the read does; the message names the array and the region.
        """
        if self._sound is not None:
            return self._sound
        assert self._future is not None
        try:
            return self._future.result()
        except gpustore.GpustoreError as error:
            origin = np.array(self.array.store.domain.origin)[len(self.array.leading) :]
            name, low, high = self.array.name, self.low + origin, self.high + origin
            where = f"patches of array {name!r} from {low.tolist()} up to {high.tolist()}"
            if len(self.origins) == 1:
                where = f"the patch of array {name!r} at {(self.origins[0] + origin).tolist()}"
            raise error.prefixed(f"Error reading {where}") from error

    def suspects(self) -> NDArray[np.bool_]:
        """Wait until the array is read, and return which patches may be damaged; shape (n,).

        On a device these are all that are read together with a damaged chunk.
        """
        try:
            self.result()
        except DAMAGE:
            if self.array.store.device != "cpu":
                return np.ones(len(self.origins), bool)
            self._sound, suspect = self._read_box() if self.is_box else self._read_alone()
            return suspect
        return np.zeros(len(self.origins), bool)

    def _read_box(self) -> tuple[Any, NDArray[np.bool_]]:
        array, patch = self.array, np.array(self.array.patch)
        found = np.empty(self._shape, array.dtype)
        # Those whose elements may be mirrored ones are read alone to know.
        suspect = (self.origins < 0).any(axis=1)
        suspect |= (self.origins + patch > np.array(array.extent())).any(axis=1)
        edges = [
            [int(lo), *range((lo // c + 1) * c, hi, c), int(hi)]
            for lo, hi, c in zip(self.low.tolist(), self.high.tolist(), array.chunks, strict=True)
        ]
        for cell in itertools.product(*(itertools.pairwise(one) for one in edges)):
            low, high = map(np.array, zip(*cell, strict=True))
            at: Any = (..., *map(slice, low - self.low, high - self.low))
            if not self._reads(array.box(low.tolist(), high.tolist()).read(), found[at]):
                touching = (self.origins < high) & (self.origins + patch > low)
                suspect |= touching.all(axis=1)
        return found, suspect

    def _read_alone(self) -> tuple[Any, NDArray[np.bool_]]:
        found = np.empty(self._shape, self.array.dtype)
        suspect = np.zeros(len(found), bool)
        for i in range(len(found)):
            future = self.array.reader.read_many(*self.array.crops(self.origins[i : i + 1]))
            suspect[i] = not self._reads(future, found[i : i + 1])
        return found, suspect

    def _reads(self, future: gpustore.Future[Any], out: Any) -> bool:
        """Read elements to `out`, and return whether no chunk is damaged."""
        try:
            out[...] = future.result()
        except DAMAGE:
            return False
        finally:
            self._counts.update(future.statistics.snapshot())
        return True

    def statistics(self) -> dict[str, int]:
        """Return what the reads have counted so far."""
        found = Counter(self._counts)
        if self._future is not None:
            found.update(self._future.statistics.snapshot())
        return found

    def patches(self, first: int, until: int) -> Iterator[NDArray[Any]]:
        """Yield patches from number `first` up to `until`; views where possible, to be copied."""
        region = self.result()
        if not self.is_box:
            yield from region[first:until]
            return
        leading = (slice(None),) * len(self.array.leading)
        patch, extent, low = self.array.patch, self.array.extent(), self.low.tolist()
        for origin in self.origins[first:until].tolist():
            ends = [o + p for o, p in zip(origin, patch, strict=True)]
            if min(origin) >= 0 and all(e <= n for e, n in zip(ends, extent, strict=True)):
                some = [slice(o - lo, e - lo) for o, e, lo in zip(origin, ends, low, strict=True)]
                yield region[(*leading, *some)]
            elif self._edge == REFLECT:
                at = [_mirrored(o, e, n) - lo for o, e, n, lo in
                      zip(origin, ends, extent, low, strict=True)]  # fmt: skip
                yield region[np.ix_(*(np.arange(n) for n in self.array.leading), *at)]
            else:
                found = np.full(
                    self.array.patch_shape, self.array.store.fill_value or 0, region.dtype
                )
                inside = [(max(o, 0), min(e, n)) for o, e, n in
                          zip(origin, ends, extent, strict=True)]  # fmt: skip
                src = [slice(a - lo, b - lo) for (a, b), lo in
                       zip(inside, low, strict=True)]  # fmt: skip
                dst = [slice(a - o, b - o) for (a, b), o in zip(inside, origin, strict=True)]
                found[(*leading, *dst)] = region[(*leading, *src)]
                yield found


class FetchedWindow:
    """Patches of a window that one rank takes, and their arrays.

    Parameters
    ----------
    window : Window
    volume : Volume
    chosen : ndarray of int64, shape (n,)
        Numbers, within the window, of the patches to read; ascending.
    rows : ndarray of int64, shape (n,)
        Row of each patch in its batch.
    edge : {"shift", "reflect", "fill"}

    Attributes
    ----------
    first : int
        Number of the window's first patch in the epoch.
    numbers : ndarray of int64, shape (n,)
        Numbers of these patches in the epoch.
    rows : ndarray of int64, shape (n,)
        The parameter.
    origins : ndarray of int64, shape (n, rank)
        Their origins, in the coordinates of the first array's domain.
    nbytes : int
        Bytes that the arrays take.
    """

    def __init__(
        self, window: Window, volume: Volume, chosen: Integers, rows: Integers, edge: str
    ) -> None:
        origins = window.origins[chosen]
        self.volume = window.volume
        self.first = window.first
        self.numbers = window.first + chosen
        self.rows = rows
        self.origins = origins + np.array(volume.origin)
        self.arrays = [FetchedArray(one, origins, edge) for one in volume.arrays]
        self.nbytes = sum(one.nbytes for one in self.arrays)

    def begin(self, stream: Any, memory: WindowMemory | None) -> list[gpustore.Future[Any]]:
        """Begin to read all arrays, together; see :meth:`FetchedArray.begin`."""
        return [one.begin(stream, memory) for one in self.arrays]

    def give(self, memory: WindowMemory) -> None:
        """Give memory back, once nobody uses the arrays any more."""
        for one in self.arrays:
            one.give(memory)

    @property
    def is_read(self) -> bool:
        """Whether nothing is read into the memory of the arrays any more."""
        return all(one.is_read for one in self.arrays)

    def wait(self) -> None:
        """Wait until all arrays are read, or have failed."""
        for one in self.arrays:
            one.wait()

    @cached_property
    def suspects(self) -> NDArray[np.bool_]:
        """Mask of patches that may be damaged in an array, once all are read; shape (n,)."""
        found: NDArray[np.bool_] = np.any([one.suspects() for one in self.arrays], axis=0)
        return found


def _mirrored(begin: int, end: int, extent: int) -> Integers:
    """Return the indices of elements, of which those outside are mirrored at the last one inside.

    >>> _mirrored(-2, 5, 4).tolist()
    [2, 1, 0, 1, 2, 3, 2]
    """
    period = max(1, 2 * (extent - 1))
    found = np.arange(begin, end) % period
    return np.minimum(found, period - found) if extent > 1 else found
