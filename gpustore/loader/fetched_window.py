"""Windows whose arrays are read: all chunks of their patches are decoded once.

If a chunk is damaged, the region of a window is read again, chunk by chunk, and the patches that
touch a damaged one are *suspect*: their elements in the region are not to be used.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore import registry
from gpustore.loader.element_conversion import ElementConversion
from gpustore.loader.order import Window
from gpustore.loader.residents import Resident, Residents
from gpustore.loader.volume import PairedArray, Volume
from gpustore.loader.window_memory import WindowMemory

Integers = NDArray[np.int64]

REFLECT: Final = "reflect"

DAMAGE: Final = (gpustore.CorruptChunkError, gpustore.NotFoundError)
"""Errors of a chunk that is stored wrongly, or missing though the array may lack none."""


class FetchedArray:
    """One array of a window: the region that has all patches, or the patches one by one.

    A region costs its bytes whatever the number of patches; few patches of a large region are read
    alone. Of an array that stays in memory only chunks of the region are read that no window before
    has asked for.

    Parameters
    ----------
    array : PairedArray
    origins : ndarray of int64, shape (n, rank)
        Origins of the patches in the first array of the volume.
    edge : {"shift", "reflect", "fill"}
    resident : Resident, optional
        The array, if it stays in memory.

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
        Bytes that the elements take beside those that stay in memory.
    """

    def __init__(
        self, array: PairedArray, origins: Integers, edge: str, resident: Resident | None = None
    ) -> None:
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
        inside = (self.origins >= 0) & (self.origins + np.array(array.patch) <= extent)
        self._is_inside: NDArray[np.bool_] = inside.all(axis=1)
        self.is_box = not self._is_inside.all() or alone > box
        self._resident = resident if self.is_box else None
        self._boxes = [(self.low, self.high)]
        self.nbytes = 0 if self._resident else box if self.is_box else alone
        self._futures: list[gpustore.Future[Any]] | None = None
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

    def claim(self) -> None:
        """Read, of an array that stays, what no window has claimed before."""
        if self._resident is not None:
            self._boxes = self._resident.missing(self.low, self.high)

    def explain(self) -> list[gpustore.Explanation] | None:
        """Estimate the reads; None for an array without chunks, in memory."""
        try:
            if not self.is_box:
                return [self.array.store.explain_many(*self.array.crops(self.origins))]
            return [
                self.array.box(low.tolist(), high.tolist()).explain() for low, high in self._boxes
            ]
        except gpustore.UnsupportedError:
            return None

    def begin(self, stream: Any, memory: WindowMemory | None) -> list[gpustore.Future[Any]]:
        """Begin to read.

        Parameters
        ----------
        stream : object
            Stream of a device, in whose order memory is that is allocated there.
        memory : WindowMemory or None
            Memory to read into; None for new memory, and on a device.
        """
        if self._resident is not None:
            assert memory is not None
            self._out = self._resident.elements(memory)
            self._futures = []
            for low, high in self._boxes:
                at: Any = (..., *map(slice, low.tolist(), high.tolist()))
                box = self.array.box(low.tolist(), high.tolist())
                self._futures.append(box.read(out=self._out[at]))
                self._resident.note(self._futures[-1])
            return self._futures
        if memory is not None:
            self._out = memory.take(self._shape, self.array.dtype)
        if self.is_box:
            box = self.array.box(self.low.tolist(), self.high.tolist())
            self._futures = [box.read(out=self._out, stream=stream)]
        else:
            crops = self.array.crops(self.origins)
            self._futures = [self.array.reader.read_many(*crops, out=self._out, stream=stream)]
        return self._futures

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the array that is read."""
        if self.is_box:
            return *self.array.leading, *(self.high - self.low).tolist()
        return len(self.origins), *self.array.patch_shape

    def give(self, memory: WindowMemory) -> None:
        """Give memory back, once nobody uses the array any more; that of all of it stays."""
        out, self._out, self._futures = self._out, None, None
        if out is not None and self._resident is None:
            memory.give(out)

    @property
    def is_read(self) -> bool:
        """Whether the array is read, or has failed."""
        return self._futures is not None and all(one.done() for one in self._futures)

    def wait(self) -> None:
        """Wait until the array is read, or has failed."""
        assert self._futures is not None
        for box, read in zip(self._boxes, self._futures, strict=True):
            read.exception()
            if self._resident is not None:
                self._resident.note_end(box, read)

    def result(self) -> Any:
        """Return the array that is read.

        Raises
        ------
        GpustoreError
            As the read does; the message names the array and the region.
        """
        if self._sound is not None:
            return self._sound
        assert self._futures is not None
        try:
            if self._resident is not None:
                self._resident.check(self.low, self.high)
                return self._out
            return self._futures[0].result()
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
        for one in self._futures or ():
            found.update(one.statistics.snapshot())
        return found

    def cut(
        self, first: int, until: int, convert: ElementConversion, out: NDArray[Any], rows: Integers
    ) -> None:
        """Write patches from number `first` up to `until`, converted, to rows of `out`."""
        region = self.result()
        numbers = np.arange(first, until)
        if self.is_box and convert.is_copy(region.dtype):
            is_inside = self._is_inside[first:until]
            inside = numbers[is_inside]
            starts = np.zeros((len(inside), region.ndim), np.int64)
            starts[:, len(self.array.leading) :] = self.origins[inside] - self._begin
            copy = registry.public("front.patch_copies", "copy_patches")
            copy(self.array.store, region, starts, out, rows[is_inside])
            numbers, rows = numbers[~is_inside], rows[~is_inside]
        for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
            convert(self._patch(region, number), out[row])

    @property
    def _begin(self) -> Integers:
        """First element, along the dimensions of a patch, of the region in memory."""
        is_whole = self._resident is not None and self._sound is None
        return np.zeros_like(self.low) if is_whole else self.low

    def _patch(self, region: NDArray[Any], number: int) -> NDArray[Any]:
        """Return a patch; a view where possible."""
        if not self.is_box:
            patch: NDArray[Any] = region[number]
            return patch
        leading = (slice(None),) * len(self.array.leading)
        extent, begin = self.array.extent(), self._begin.tolist()
        origin = self.origins[number].tolist()
        ends = [o + p for o, p in zip(origin, self.array.patch, strict=True)]
        if self._is_inside[number]:
            some = [slice(o - b, e - b) for o, e, b in zip(origin, ends, begin, strict=True)]
            patch = region[(*leading, *some)]
        elif self._edge == REFLECT:
            at = [
                _mirrored(o, e, n) - b
                for o, e, n, b in zip(origin, ends, extent, begin, strict=True)
            ]
            patch = region[np.ix_(*(np.arange(n) for n in self.array.leading), *at)]
        else:
            patch = np.full(self.array.patch_shape, self.array.store.fill_value or 0, region.dtype)
            inside = [(max(o, 0), min(e, n)) for o, e, n in zip(origin, ends, extent, strict=True)]
            src = [slice(a - b, z - b) for (a, z), b in zip(inside, begin, strict=True)]
            dst = [slice(a - o, z - o) for (a, z), o in zip(inside, origin, strict=True)]
            patch[(*leading, *dst)] = region[(*leading, *src)]
        return patch


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
    residents : Residents
        Arrays that stay in memory.

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
        self,
        window: Window,
        volume: Volume,
        chosen: Integers,
        rows: Integers,
        edge: str,
        residents: Residents,
    ) -> None:
        origins = window.origins[chosen]
        self.volume = window.volume
        self.first = window.first
        self.numbers = window.first + chosen
        self.rows = rows
        self.origins = origins + np.array(volume.origin)
        self.arrays = [
            FetchedArray(one, origins, edge, residents.get(window.volume, one))
            for one in volume.arrays
        ]
        self.nbytes = sum(one.nbytes for one in self.arrays)

    def claim(self) -> None:
        """Read, of arrays that stay, what no window has claimed before."""
        for one in self.arrays:
            one.claim()

    def begin(self, stream: Any, memory: WindowMemory | None) -> list[gpustore.Future[Any]]:
        """Begin to read all arrays, together; see :meth:`FetchedArray.begin`."""
        return [read for one in self.arrays for read in one.begin(stream, memory)]

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
