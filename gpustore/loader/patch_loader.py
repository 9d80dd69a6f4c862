"""The loader: batches of patches, in an order that can be resumed anywhere."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import gpustore
from gpustore.display.nbytes import nbytes_of
from gpustore.loader.batches import Batch, BatchesAhead
from gpustore.loader.division import Division
from gpustore.loader.element_conversion import ElementConversion
from gpustore.loader.grid_patches import GridPatches
from gpustore.loader.host_batches import HostBatches
from gpustore.loader.random_patches import RandomPatches
from gpustore.loader.ranks import Ranks, ranks_of, worker_of
from gpustore.loader.volume import Volume
from gpustore.loader.window_reads import WindowReads

Arrays = gpustore.TensorStore | Mapping[str, gpustore.TensorStore]

_VERSION: Final = 2
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
        is_list = not isinstance(arrays, (gpustore.TensorStore, Mapping))
        some: list[Any] = list(arrays) if is_list else [arrays]
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
        self._division = Division.of(
            len(self._order), batch_size, *ranks_of(dist), drop_last=drop_last
        )
        self._transform, self._prefetch = transform, prefetch
        first = self._volumes[0].arrays
        conversions = {one.name: ElementConversion.of(one, dtype, normalize) for one in first}
        self._batches = HostBatches(first, conversions, to, numbers_volumes=is_list)
        batch_nbytes = batch_size * sum(
            math.prod(one.patch_shape) * conversions[one.name].dtype.itemsize for one in first
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
        return self._division.batches

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
        numbers = range(first, self._division.batches, workers)
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
        """Leave out what runs: another process begins anew."""
        return self.__dict__ | {"_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._register()

    def _end(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def _register(self) -> None:
        """Let PyTorch's DataLoader, if the program may use it, know what this is."""
        if "torch" in sys.modules:
            sys.modules["torch"].utils.data.IterableDataset.register(type(self))

    def _fingerprint(self) -> dict[str, Any]:
        return {
            "arrays": [one.state() for one in self._volumes],
            "sampler": self._sampler.state(),
            "global batch": self._division.size,
        }

    def _made(self, epoch: int, numbers: range) -> Iterator[Batch]:
        """Make some batches of an epoch."""
        reads = WindowReads(
            self._order,
            self._division,
            self._volumes,
            edge=self._edge,
            nbytes=self._window_nbytes,
            counts=self._counts,
            epoch=epoch,
            batches=numbers,
        )
        try:
            for number in numbers:
                count = self._division.part_size(number)
                batch = self._batches.made(count, reads.take(count))
                self._counts.update(batches=1, patches=count)
                yield batch
                del batch
        finally:
            reads.close()


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
