"""Predictions of overlapping patches, put together to one array."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore.loader.grid_patches import GridPatches
from gpustore.loader.space import PatchSpace

Integers = NDArray[np.int64]
Weights = NDArray[np.float32]

_MOST_WRITES: Final = 8
"""Regions that are written at one time."""

_TYPES: Final = (
    *("float16", "bfloat16", "float32", "float64"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32"),
)

_SIGMA: Final = 1 / 8
"""Width of Gaussian weights for a patch of 1. Source: Isensee et al., nnU-Net (2021), inference."""


class stitch:
    """Context manager that writes the weighted mean of overlapping patches to an array.

    Patches may come in any order; those of a ``PatchLoader`` with the same sampler come so that few
    chunks are unfinished at a time. A chunk (or shard) is written once, as soon as it has all its
    patches, and only unfinished ones take memory.

    Parameters
    ----------
    store : TensorStore
        Array to write, of floating-point numbers, or of integers of at most 32 bits, to which means
        are rounded; those beyond its type become its nearest number. Its last dimensions are those
        of the patch; others, such as classes, are whole in each patch.
    sampler : GridPatches
        The sampler of the loader from which the patches came, whose arrays have one resolution.
    weights : {"gaussian", "uniform"} or array of the shape of a patch
        Weight of each element of a patch, above 0.

    Raises
    ------
    MismatchError, ValueError
        If store, sampler and weights do not fit together.

    Examples
    --------
    >>> import gpustore
    >>> from gpustore.loader import GridPatches, PatchLoader, stitch
    >>> store = gpustore.array([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    >>> result = gpustore.create_array(
    ...     "memory://stitched/", shape=(3, 3), dtype="float32", chunks=(2, 2)
    ... ).result()
    >>> grid = GridPatches((2, 2), overlap=1)
    >>> with stitch(result, grid) as stitched:
    ...     for batch in PatchLoader(store, sampler=grid, batch_size=2):
    ...         stitched.add(batch["origin"], 10 * batch["image"])
    >>> result.read().result().tolist()
    [[0.0, 10.0, 20.0], [30.0, 40.0, 50.0], [60.0, 70.0, 80.0]]
    """

    def __init__(
        self, store: gpustore.TensorStore, sampler: GridPatches, *, weights: Any = "gaussian"
    ) -> None:
        if not isinstance(store, gpustore.TensorStore):
            raise TypeError(f"store: expected a TensorStore, got {type(store).__name__}")
        if not isinstance(sampler, GridPatches):
            raise TypeError(f"sampler: expected GridPatches, got {sampler!r}")
        patch = tuple(sampler.shape)
        rank = len(patch)
        lead = store.rank - rank
        if lead < 0:
            raise gpustore.MismatchError(
                f"the store has {store.rank} dimensions, patches have {rank}"
            )
        shape = tuple(store.shape)[lead:]
        if any(p > n for p, n in zip(patch, shape, strict=True)):
            raise gpustore.MismatchError(
                f"the store of shape {tuple(store.shape)} is smaller than a patch of shape {patch}"
            )
        self._dtype = store.dtype.array_dtype
        if store.dtype.name not in _TYPES:
            raise gpustore.MismatchError(
                f"means are not stored as {store.dtype.name}: choose one of {', '.join(_TYPES)}"
            )
        # Sums of float32 do not hold all numbers of these.
        self._exact: Any = np.float64 if self._dtype.itemsize >= 4 else np.float32
        if store.dtype.name == "float32":
            self._exact = np.float32
        self._store, self._patch, self._shape = store, patch, shape
        self._leading = tuple(store.shape)[:lead]
        self._origin = np.array(store.domain.origin[lead:])
        self._weights = _weights(weights, patch)
        unit = store.shards or store.chunks or store.shape
        self._unit = tuple(unit)[lead:]
        space = PatchSpace.of(shape, self._unit, patch, (1,) * rank, 1, inside=True)
        order = sampler.order([space])
        self._left = len(order)
        self._seen: set[tuple[int, ...]] = set()
        # The origins are a grid: patches of a chunk are counted along each dimension alone.
        along = order.origins()
        self._known = [set(one.tolist()) for one in along]
        self._counts = [
            _touching(origins, p, c, n)
            for origins, p, c, n in zip(along, patch, self._unit, shape, strict=True)
        ]
        self._sums: dict[tuple[int, ...], _Sum] = {}
        self._writes: deque[gpustore.WriteFutures] = deque()
        self._is_abandoned = False

    def add(self, origins: Any, patches: Any) -> None:
        """Add patches, each of which comes once.

        Parameters
        ----------
        origins : array of integers, shape (n, rank of the patch)
            ``batch["origin"]``: first element of each, in the coordinates of the store's domain.
        patches : array, shape (n, *leading, *patch)
            Array of NumPy, or one that NumPy takes. Host memory.

        Raises
        ------
        MismatchError
            If they have another shape or are no numbers, or none of the patches of the sampler.
        RuntimeError
            If a ``with`` block has ended with an error, which has dropped unfinished chunks.
        """
        if self._is_abandoned:
            raise RuntimeError(
                "the with block has ended with an error: begin anew with another stitch()"
            )
        values, places = np.asarray(patches), np.asarray(origins)
        wanted = (len(places), *self._leading, *self._patch)
        if values.shape != wanted:
            raise gpustore.MismatchError(f"patches: expected shape {wanted}, got {values.shape}")
        if places.shape != (len(places), len(self._patch)) or places.dtype.kind not in "iu":
            raise gpustore.MismatchError(
                f"origins: expected integers of shape {len(places), len(self._patch)}, got "
                f"{places.dtype} of shape {places.shape}"
            )
        if not np.can_cast(values.dtype, self._exact, "same_kind"):
            raise gpustore.MismatchError(f"patches: expected real numbers, got {values.dtype}")
        found = places.astype(np.int64) - self._origin
        for origin, one in zip(found.tolist(), values, strict=True):
            self._add(origin, one)

    def _add(self, origin: Sequence[int], values: NDArray[Any]) -> None:
        numbers = [
            range(o // c, (o + p - 1) // c + 1)
            for o, p, c in zip(origin, self._patch, self._unit, strict=True)
        ]
        if not all(o in known for o, known in zip(origin, self._known, strict=True)):
            raise gpustore.MismatchError(f"no patch of the sampler has its origin at {origin}")
        if tuple(origin) in self._seen:
            raise gpustore.MismatchError(f"the patch with its origin at {origin} came before")
        self._seen.add(tuple(origin))
        weighted: NDArray[Any] = np.multiply(values, self._weights, dtype=self._exact)
        for chunk in itertools.product(*numbers):
            some = self._sums.get(chunk)
            if some is None:
                some = self._sums[chunk] = self._begun(chunk)
            into: list[Any] = [...]
            outof: list[Any] = [...]
            for o, p, lo, n in zip(origin, self._patch, some.low, some.extent, strict=True):
                begin, end = max(o, lo), min(o + p, lo + n)
                into.append(slice(begin - lo, end - lo))
                outof.append(slice(begin - o, end - o))
            some.values[tuple(into)] += weighted[tuple(outof)]
            some.weights[tuple(into)] += self._weights[tuple(outof)]
            some.left -= 1
            if not some.left:
                self._finish(self._sums.pop(chunk))
        self._left -= 1

    def _begun(self, chunk: tuple[int, ...]) -> _Sum:
        left = math.prod(
            int(counts[number]) for counts, number in zip(self._counts, chunk, strict=True)
        )
        low = [number * c for number, c in zip(chunk, self._unit, strict=True)]
        extent = [min(c, n - lo) for c, n, lo in zip(self._unit, self._shape, low, strict=True)]
        return _Sum(low, extent, self._leading, left, self._exact)

    def _finish(self, some: _Sum) -> None:
        """Write a chunk that has all its patches."""
        some.values /= some.weights
        if self._dtype.kind in "iu":
            if np.isnan(some.values).any():
                raise gpustore.MismatchError(f"means that are NaN are not stored as {self._dtype}")
            limits = np.iinfo(self._dtype)
            np.clip(np.rint(some.values), limits.min, limits.max, out=some.values)
        low = self._origin + some.low
        index = tuple(slice(lo, lo + n) for lo, n in zip(low.tolist(), some.extent, strict=True))
        while len(self._writes) >= _MOST_WRITES:
            self._writes.popleft().result()
        self._writes.append(self._store[(..., *index)].write(some.values.astype(self._dtype)))

    def close(self) -> None:
        """Wait until all is written.

        Raises
        ------
        MismatchError
            If patches are missing; what is finished is written.
        """
        errors = self._wait()
        if errors:
            raise errors[0]
        if self._left:
            raise gpustore.MismatchError(
                f"{self._left} patches are missing: {len(self._sums)} chunks are begun, not written"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.close()
            return
        self._is_abandoned = True
        self._sums.clear()
        self._wait()

    def _wait(self) -> list[BaseException]:
        """Wait until nothing is written behind the caller's back any more; return what failed."""
        errors = [one.exception() for one in self._writes]
        self._writes.clear()
        return [one for one in errors if one is not None]


class _Sum:
    """Sums of a chunk's elements and of their weights."""

    def __init__(
        self, low: list[int], extent: list[int], leading: tuple[int, ...], left: int, exact: Any
    ) -> None:
        self.low, self.extent, self.left = low, extent, left
        self.values = np.zeros((*leading, *extent), exact)
        self.weights = np.zeros(extent, exact)


def _touching(origins: Integers, patch: int, unit: int, extent: int) -> Integers:
    """Return how many patches along one dimension touch each chunk."""
    counts = np.zeros(-(-extent // unit) + 1, np.int64)
    np.add.at(counts, origins // unit, 1)
    np.add.at(counts, (origins + patch - 1) // unit + 1, -1)
    return np.cumsum(counts)[:-1]


def _weights(weights: Any, patch: tuple[int, ...]) -> Weights:
    if isinstance(weights, str):
        if weights == "uniform":
            return np.ones(patch, np.float32)
        if weights != "gaussian":
            raise ValueError(
                f'weights: expected "gaussian", "uniform" or an array, got {weights!r}'
            )
        found = np.ones(())
        for n in patch:
            at = (np.arange(n) - (n - 1) / 2) / (n * _SIGMA)
            found = np.multiply.outer(found, np.exp(-0.5 * at**2))
        return found.astype(np.float32)
    array = np.asarray(weights, np.float32)
    if array.shape != patch or not (np.isfinite(array).all() and (array > 0).all()):
        raise ValueError(f"weights: expected finite numbers above 0 of shape {patch}")
    return array
