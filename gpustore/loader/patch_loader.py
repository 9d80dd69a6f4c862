"""The loader: batches of patches, in an order that can be resumed anywhere."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore import registry
from gpustore.display.nbytes import nbytes_of
from gpustore.loader.batches import Batch, BatchesAhead
from gpustore.loader.fetched_window import FetchedWindow
from gpustore.loader.grid_patches import GridPatches
from gpustore.loader.order import Window
from gpustore.loader.random_patches import RandomPatches
from gpustore.loader.ranks import Ranks, ranks_of, worker_of
from gpustore.loader.volume import PairedArray, Volume

Arrays = gpustore.TensorStore | Mapping[str, gpustore.TensorStore]

_VERSION: Final = 1
"""Of states: changes when the same seed gives other patches."""

_LIBRARIES: Final = ("numpy", "torch", "jax")

_RESERVED: Final = {"origin", "volume"}


class PatchLoader:
    """Batches of patches of Zarr arrays.

    A batch is a dict: for each name an array of shape ``(batch, *leading, *patch)``, and
    ``"origin"``, int64 of shape ``(batch, rank of the patch)``, in the coordinates of the first
    array's domain. A single store is named ``"image"``. With several volumes, ``"volume"`` has the
    number of each patch's volume, int64 of shape ``(batch,)``.

    Which patches a batch has depends on the sampler and the epoch alone. Chunks are decoded about
    once an epoch: a window of neighbouring patches is read at once, and the next one while batches
    of the last are used. A thread makes batches ahead; no worker process is needed.

    PyTorch's ``DataLoader(loader, batch_size=None)`` gives the same batches, also with workers,
    each of which makes some of them, and so reads most windows. Workers begin each epoch with a
    copy of this loader: call :meth:`set_epoch` before, as for PyTorch's ``DistributedSampler``.

    Parameters
    ----------
    arrays : TensorStore, dict of str to TensorStore, or sequence of such dicts
        Arrays whose patches belong together; each dict of a sequence is a volume. Arrays with fewer
        elements than the first one, or more, by a whole factor along a dimension have patches that
        are smaller or larger by it. Leading dimensions, such as channels, are taken whole.
    sampler : RandomPatches or GridPatches
    batch_size : int
        Patches of a batch of one rank.
    to : {"numpy", "torch", "jax"}
        Library of the arrays; those of PyTorch share NumPy's memory.
    dtype : data type or dict, optional
        Data type that elements are converted to: of all arrays, or by name. By default that of the
        store, float32 for arrays that are normalised.
    normalize : (low, high) or dict, optional
        Values that become 0 and 1: of all arrays, or by name.
    prefetch : int
        Most batches made before they are asked for; 0 makes each when it is asked for.
    memory : int or str
        Bytes that windows and batches may take together, such as ``"1 GiB"``.
    dist : {"auto", "torch", "jax"}, (rank, world), callable or None
        Which process this is of how many; each takes other patches of every global batch.
    drop_last : bool
        Leave out the last batch of an epoch if it would be smaller.
    transform : callable, optional
        Called with each batch, of whose arrays it may make others; its result is the batch.

    Attributes
    ----------
    epoch : int
        Epoch that the next iteration gives.

    Raises
    ------
    MismatchError, UnsupportedError, ValueError, LimitError
        At once, if arrays, patches and memory do not fit together.

    Examples
    --------
    >>> import gpustore
    >>> from gpustore.loader import PatchLoader, RandomPatches
    >>> store = gpustore.array([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    >>> loader = PatchLoader(store, sampler=RandomPatches((2, 2), per_epoch=4), batch_size=2)
    >>> len(loader)
    2
    >>> for batch in loader:
    ...     assert (batch["image"][:, 0, 0] == batch["origin"] @ [3, 1]).all()
    """

    def __init__(
        self,
        arrays: Arrays | Sequence[Arrays],
        *,
        sampler: RandomPatches | GridPatches,
        batch_size: int,
        to: str = "numpy",
        dtype: Any = None,
        normalize: Any = None,
        prefetch: int = 2,
        memory: int | str = "1 GiB",
        dist: str | Ranks | Callable[[], Ranks] | None = None,
        drop_last: bool = False,
        transform: Callable[[Batch], Any] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        if prefetch < 0:
            raise ValueError(f"prefetch: expected at least 0, got {prefetch}")
        if to not in _LIBRARIES:
            raise ValueError(f"to: expected one of {', '.join(_LIBRARIES)}, got {to!r}")
        self._is_list = not isinstance(arrays, (gpustore.TensorStore, Mapping))
        some: list[Any] = list(arrays) if self._is_list else [arrays]
        if not some:
            raise gpustore.MismatchError("arrays: expected at least one volume, got none")
        patch = tuple(sampler.shape)
        self._volumes = [Volume(_named(one), patch) for one in some]
        _check_alike(self._volumes)
        self._sampler = sampler
        self._edge = getattr(sampler, "edge", "shift")
        self._order = sampler.order(
            [one.space(patch, inside=sampler.is_inside) for one in self._volumes]
        )
        self._rank, self._world = ranks_of(dist)
        self._batch_size, self._global = batch_size, batch_size * self._world
        left = len(self._order) % self._global
        if left and left < self._world and not drop_last:
            raise ValueError(
                f"The last of the batches of {self._global} patches on {self._world} ranks has "
                f"{left}, so that some ranks have none; choose drop_last=True or other sizes"
            )
        self._batches = len(self._order) // self._global + (bool(left) and not drop_last)
        if not self._batches:
            raise ValueError(
                f"An epoch of {len(self._order)} patches has no batch of {self._global}; choose "
                "drop_last=False or other sizes"
            )
        self._transform, self._prefetch = transform, prefetch
        first = self._volumes[0].arrays
        self._cast = {one.name: _Cast.of(one, dtype, normalize) for one in first}
        self._to = to
        self._given = self._conversions()
        batch_nbytes = batch_size * sum(
            math.prod(one.patch_shape) * self._cast[one.name].dtype.itemsize for one in first
        )
        limit = nbytes_of(memory, "memory")
        self._window_nbytes = limit - (prefetch + 2) * batch_nbytes
        if self._window_nbytes <= 0:
            raise gpustore.LimitError(
                f"memory: {prefetch + 2} batches of {batch_nbytes} bytes each do not fit in "
                f"{limit}; choose more memory, or a smaller batch_size or prefetch"
            )
        self._register()
        self.epoch = 0
        self._position = 0
        self._first: int | None = None
        self._worker: Ranks | None = None
        self._counts: Counter[str] = Counter()
        self._waited_s = 0.0
        self._iterator: BatchesAhead | None = None

    def __len__(self) -> int:
        """Number of batches of an epoch, the same on all ranks."""
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of :attr:`epoch`, from where a loaded state stopped.

        Behind the last batch the epoch is the next one.
        """
        self._end()
        worker, workers = worker_of()
        first, self._first = self._first, None
        if first is None or self._worker is None:
            first = (first or 0) + worker
        elif self._worker != (worker, workers):
            raise gpustore.ConflictError(
                f"The state is that of worker {self._worker[0]} of {self._worker[1]}, and this is "
                f"worker {worker} of {workers}: go on with as many workers"
            )
        self._position, self._worker = first, (worker, workers) if workers > 1 else None
        numbers = range(first, self._batches, workers)
        ahead = None
        batches: Iterator[Batch] = self._made(self.epoch, numbers)
        if self._prefetch:
            batches = ahead = self._iterator = BatchesAhead(batches, self._prefetch)
        try:
            for number in numbers:
                begin = time.perf_counter()
                batch = next(batches, None)
                if batch is None:
                    raise RuntimeError("the loader was closed, or has begun another iteration")
                self._waited_s += time.perf_counter() - begin
                self._position = number + workers
                yield batch if self._transform is None else self._transform(batch)
                del batch
            self.epoch, self._position = self.epoch + 1, 0
            self._worker = None
        finally:
            if ahead is not None:
                ahead.close()

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with an epoch; its own one goes on where it was loaded."""
        if epoch < 0:
            raise ValueError(f"epoch: expected at least 0, got {epoch}")
        if epoch != self.epoch:
            self.epoch, self._position, self._first = epoch, 0, None

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is: behind the last batch that the program got, as JSON."""
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "position": self._position,
            "worker": None if self._worker is None else list(self._worker),
            "fingerprint": self._fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a loader was; ranks may be others if the global batch is as large.

        Raises
        ------
        ConflictError
            If arrays, sampler or global batch are others; the message says which.
        """
        found = self._fingerprint()
        then = state["fingerprint"]
        if state["version"] != _VERSION:
            raise gpustore.ConflictError(
                f"The state has version {state['version']}, this loader {_VERSION}: the same seed "
                "gives other patches"
            )
        for name, now in found.items():
            if then.get(name) != now:
                raise gpustore.ConflictError(
                    f"The state was made with another {name}: {then.get(name)}, now {now}"
                )
        self._end()
        self.epoch = int(state["epoch"])
        self._position = self._first = int(state["position"])
        worker = state["worker"]
        self._worker = None if worker is None else (worker[0], worker[1])

    def stats(self) -> dict[str, Any]:
        """Return what was done so far.

        Returns
        -------
        dict
            ``batches``, ``patches`` and ``windows`` that were made; ``chunks_decoded``;
            ``bytes_read``, encoded; ``waited_s``, seconds that the program waited for batches.
        """
        names = "batches", "patches", "windows", "chunks_decoded", "bytes_read"
        return {name: self._counts[name] for name in names} | {"waited_s": self._waited_s}

    def close(self) -> None:
        """End the thread and drop all batches; a later iteration begins anew."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what runs, and functions: another process makes its own."""
        return self.__dict__ | {"_iterator": None, "_given": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._given = self._conversions()
        self._register()

    def _end(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def _conversions(self) -> dict[str, Callable[[NDArray[Any]], Any]]:
        """Return functions that make arrays of the library that was asked for, by name."""
        return {name: _given_to(self._to, one.dtype) for name, one in self._cast.items()}

    def _register(self) -> None:
        """Let PyTorch's DataLoader, if the program may use it, know what this is."""
        if "torch" in sys.modules:
            sys.modules["torch"].utils.data.IterableDataset.register(type(self))

    def _fingerprint(self) -> dict[str, Any]:
        return {
            "arrays": [one.state() for one in self._volumes],
            "sampler": self._sampler.state(),
            "global batch": self._global,
        }

    def _numbers(self, batch: int) -> tuple[int, int]:
        """Return the first patch of a batch of this rank, and the one behind the last."""
        first = batch * self._global
        count = min(self._global, len(self._order) - first)
        return first + count * self._rank // self._world, first + count * (
            self._rank + 1
        ) // self._world

    def _made(self, epoch: int, numbers: range) -> Iterator[Batch]:
        """Make some batches of an epoch."""
        windows = _Windows(self, epoch, numbers)
        try:
            for number in numbers:
                begin, end = self._numbers(number)
                parts = []
                while begin < end:
                    window = windows.at(begin)
                    at, until = np.searchsorted(window.numbers, (begin, end)).tolist()
                    parts.append((window, at, until))
                    begin = int(window.numbers[until - 1]) + 1
                    del window
                batch = self._joined(parts)
                del parts  # And with them windows that have no more patches.
                yield batch
                del batch
        finally:
            windows.close()

    def _joined(self, parts: Sequence[tuple[FetchedWindow, int, int]]) -> Batch:
        """Make a batch of some patches of each of some windows."""
        count = sum(until - at for _, at, until in parts)
        batch: Batch = {}
        for i, one in enumerate(self._volumes[0].arrays):
            cast = self._cast[one.name]
            pieces = []
            for window, at, until in parts:
                array = window.arrays[i]
                if array.is_box:
                    room = np.empty((until - at, *one.patch_shape), array.array.dtype)
                    array.cut(at, room, array.array.store.fill_value or 0)
                else:
                    # A view would keep the memory of the whole window.
                    room = np.array(array.result()[at:until])
                pieces.append(cast(room))
            found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            batch[one.name] = self._given[one.name](found)
        batch["origin"] = np.concatenate([w.origins[at:until] for w, at, until in parts])
        if self._is_list:
            batch["volume"] = np.repeat([w.volume for w, *_ in parts], [b - a for _, a, b in parts])
        self._counts.update(batches=1, patches=count)
        return batch


class _Windows:
    """Windows of an epoch that one rank needs, of which the next is read ahead."""

    def __init__(self, loader: PatchLoader, epoch: int, batches: range) -> None:
        self._loader = loader
        self._left = self._wanted(epoch, batches)
        self._following: FetchedWindow | None = None
        self._begun: deque[FetchedWindow] = deque()

    def at(self, number: int) -> FetchedWindow:
        """Return the window of a patch; earlier ones are dropped, and the next one begun."""
        while not self._begun or self._begun[0].numbers[-1] < number:
            if self._begun:
                self._done(self._begun.popleft())
            if not self._begun:
                self._begin(next(self._left) if self._following is None else self._following)
        if len(self._begun) == 1:
            if self._following is None:
                self._following = next(self._left, None)
            following, room = self._following, self._loader._window_nbytes
            if following is not None and following.nbytes + self._begun[0].nbytes <= room:
                self._begin(following)
        return self._begun[0]

    def close(self) -> None:
        """Drop all windows."""
        self._left.close()
        self._following = None
        while self._begun:
            self._done(self._begun.popleft())

    def _begin(self, window: FetchedWindow) -> None:
        self._following = None
        window.begin()
        self._begun.append(window)

    def _done(self, window: FetchedWindow) -> None:
        counts = self._loader._counts
        counts["windows"] += 1
        for one in window.arrays:
            found = one.statistics()
            counts["chunks_decoded"] += found.get("chunks_planned", 0)
            counts["chunks_decoded"] -= found.get("chunks_missing", 0)
            counts["bytes_read"] += found.get("bytes_fetched", 0)

    def _wanted(self, epoch: int, batches: range) -> Generator[FetchedWindow]:
        """Yield all windows that have patches of some batches of this rank."""
        loader = self._loader
        total, size = len(loader._order), loader._global
        for window in loader._order.windows(epoch, batches.start * size):
            number = window.first + np.arange(len(window))
            of = number // size
            count = np.minimum(size, total - of * size)
            begin = of * size + count * loader._rank // loader._world
            end = of * size + count * (loader._rank + 1) // loader._world
            mine = (begin <= number) & (number < end) & (of >= batches.start) & (of < len(loader))
            mine &= (of - batches.start) % batches.step == 0
            (chosen,) = mine.nonzero()
            if len(chosen):
                yield from self._fitting(window, chosen)

    def _fitting(self, window: Window, chosen: NDArray[np.int64]) -> Iterator[FetchedWindow]:
        """Yield a window, or parts of it one after the other if it takes too much memory."""
        loader = self._loader
        found = FetchedWindow(window, loader._volumes[window.volume], chosen, loader._edge)
        if found.nbytes <= loader._window_nbytes:
            yield found
        elif len(chosen) > 1:
            for half in np.array_split(chosen, 2):
                yield from self._fitting(window, half)
        else:
            raise gpustore.LimitError(
                f"memory: a patch takes {found.nbytes} bytes, and {loader._window_nbytes} are left "
                "beside the batches; choose more memory, or smaller patches"
            )


class _Cast:
    """Conversion of the elements of one array."""

    def __init__(self, dtype: np.dtype[Any], scale: tuple[float, float] | None) -> None:
        self.dtype = dtype
        self._scale = scale

    @classmethod
    def of(cls, array: PairedArray, dtype: Any, normalize: Any) -> _Cast:
        """Return the conversion of an array, from parameters of the loader."""
        if isinstance(dtype, Mapping):
            dtype = dtype.get(array.name)
        if isinstance(normalize, Mapping):
            normalize = normalize.get(array.name)
        scale = None
        if normalize is not None:
            low, high = (float(n) for n in normalize)
            if not low < high:
                raise ValueError(f"normalize: expected low < high, got {low} and {high}")
            scale = low, high
        found = np.dtype(dtype) if dtype is not None else array.dtype
        if scale is not None and dtype is None:
            found = np.dtype(np.float32)
        if scale is not None and found.kind not in "fcV":
            raise ValueError(
                f"normalize: array {array.name!r} becomes {found}, which has no fractions; choose "
                "a dtype of floating-point numbers"
            )
        return cls(found, scale)

    def __call__(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return converted values, those given if there is nothing to do."""
        if self._scale is None:
            return values.astype(self.dtype, copy=False)
        low, high = self._scale
        exact: Any = self.dtype if self.dtype.itemsize >= 4 else np.float32
        found: NDArray[Any] = np.subtract(values, low, dtype=exact)
        found *= found.dtype.type(1 / (high - low))
        return found.astype(self.dtype, copy=False)


def _given_to(library: str, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Any]:
    """Return a function that makes arrays of a library from those of NumPy."""
    if library == "numpy":
        return lambda array: array
    convert: Callable[[NDArray[Any]], Any] = registry.guest(library).conversion(
        gpustore.dtype(dtype)
    )
    return convert


def _named(arrays: Arrays) -> Mapping[str, gpustore.TensorStore]:
    """Return arrays by name."""
    if isinstance(arrays, gpustore.TensorStore):
        return {"image": arrays}
    wrong = _RESERVED.intersection(arrays)
    if wrong:
        raise ValueError(f"arrays: {', '.join(sorted(wrong))}: batches have another array so named")
    return arrays


def _check_alike(volumes: Sequence[Volume]) -> None:
    """Check that patches of all volumes make one batch."""
    kinds = [
        {one.name: (one.patch_shape, one.dtype.str) for one in volume.arrays} for volume in volumes
    ]
    for number, kind in enumerate(kinds[1:], 1):
        if kind != kinds[0]:
            raise gpustore.MismatchError(
                f"arrays: volume {number} has patches {kind}, volume 0 has {kinds[0]}"
            )
