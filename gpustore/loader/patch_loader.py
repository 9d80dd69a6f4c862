"""The loader: batches of patches, in an order that can be resumed anywhere."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

import gpustore
from gpustore.display.nbytes import nbytes_of
from gpustore.loader.batches import Batch, BatchesAhead
from gpustore.loader.device_batches import DeviceBatches
from gpustore.loader.division import Division
from gpustore.loader.element_conversion import ElementConversion
from gpustore.loader.epochs import Epochs
from gpustore.loader.explanation import LoaderExplanation, explained
from gpustore.loader.fetched_window import FetchedWindow
from gpustore.loader.grid_patches import GridPatches
from gpustore.loader.host_batches import HostBatches
from gpustore.loader.layout import Layout
from gpustore.loader.order import PatchOrder
from gpustore.loader.parameters import check_names, difference, listed, whole_number
from gpustore.loader.random_patches import RandomPatches
from gpustore.loader.ranks import Ranks, check_alike, ranks_of, worker_of
from gpustore.loader.replacements import Replacements
from gpustore.loader.residents import Residents
from gpustore.loader.statistics import LoaderStatistics
from gpustore.loader.stored_metadata import StoredMetadata
from gpustore.loader.volumes import Arrays, volumes_of
from gpustore.loader.window_reads import WindowReads, windows_of

_VERSION: Final = 3
"""Version of states, which changes when the same seed gives other patches."""

_LIBRARIES: Final = ("numpy", "cupy", "torch", "jax")


class PatchLoader:
    """Batches of patches of Zarr arrays.

    A batch is a dict: for each name an array of shape ``(batch, *leading, *patch)``, and
    ``"origin"``, int64 of shape ``(batch, rank of the patch)``, in the coordinates of the first
    array's domain. A single store is named ``"image"``. With several volumes, ``"volume"`` has the
    number of each patch's volume, int64 of shape ``(batch,)``.

    Which patches a batch has depends on the sampler and the epoch alone. Chunks are decoded about
    once an epoch: a window of neighbouring patches is read at once, and the next one while batches
    of the last are used. Arrays that are read to host memory and take at most half of `memory`
    stay there for the epoch, so that each chunk is decoded once, but for patches that are so few in
    a window that they are read alone. A thread makes batches ahead; no worker process is needed.

    Of arrays that are read to a GPU, batches are made there by one launch each, on the stream that
    is current when a batch is asked for: later work of that stream runs behind it, and the host
    does not wait. Memory of a batch is free, in the order of that stream, once nobody refers to it.

    PyTorch's ``DataLoader(loader, batch_size=None)`` gives the same batches, also with workers,
    each of which makes some of them, and so reads most windows. Epochs go on with workers, too.

    Parameters
    ----------
    arrays : TensorStore, dict of str to TensorStore, or sequence of such dicts
        Arrays whose patches belong together; each dict of a sequence is a volume. Arrays with fewer
        elements than the first one, or more, by a whole factor along a dimension have patches that
        are smaller or larger by it. Leading dimensions, such as channels, are taken whole.
    sampler : RandomPatches or GridPatches
    batch_size : int
        Patches of a batch of one rank.
    to : {"numpy", "cupy", "torch", "jax"}
        Library of the arrays. Those of PyTorch share NumPy's memory or, as those of JAX, CuPy's.
        Of arrays that are read to a GPU ``"numpy"`` copies the batches to the host.
    dtype : data type or dict, optional
        Data type that elements are converted to: of all arrays, or by name. By default that of the
        store, float32 for arrays that are normalised.
    normalize : (low, high) or dict, optional
        Values that become 0 and 1: of all arrays, or by name. Computed in float64.
    layout : str, sequence of (str, int or None), or dict, optional
        Order of the dimensions of a patch in batches, behind that of the batch: of all arrays, or
        by name; by default that of the store. Each is named by its label in the store's domain, of
        any case, or by its number; ``"zyxc"`` is ``("z", "y", "x", "c")``. The dimensions of
        stores without labels are the last ones of t, c, z, y, x. A dimension with one element may
        be left out. None, and ``"c"`` where there is none, is a new one of length 1, so that
        ``"czyx"`` gives the channel dimension that PyTorch and MONAI expect.
    prefetch : int
        Most batches made before they are asked for; 0 makes each when it is asked for, as on a GPU,
        where that takes one launch and no waiting.
    memory : int or str
        Bytes that windows and batches may take together, such as ``"1 GiB"``: of the device's
        memory if arrays are read to one.
    dist : {"auto", "torch", "jax"}, (rank, world), callable or None
        Which process this is of how many; each takes other patches of every global batch.
    drop_last : bool
        Leave out the last batch of an epoch if it would be smaller.
    on_damage : {"raise", "replace"}
        What becomes of a patch with a chunk that does not decode: an error that names its array and
        origin and the chunk's key, or another patch of the epoch in its place, the same one for any
        number of ranks; :meth:`stats` counts these. Errors of the storage are always raised.
    on_change : {"raise", "ignore"}
        What becomes of a chunk that was written, replaced or deleted since this loader first read
        it, in any epoch: an error, or elements as they are when they are read. Chunks are compared
        by their generations, which come with them; of stores without any, nothing is noticed.
        Arrays whose metadata have changed are always an error.
    transform : callable, optional
        Called with each batch, of whose arrays it may make others; its result is the batch.

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
        layout: Any = None,
        prefetch: int = 2,
        memory: int | str = "1 GiB",
        dist: str | Ranks | Callable[[], Ranks] | None = None,
        drop_last: bool = False,
        on_damage: str = "raise",
        on_change: str = "raise",
        transform: Callable[[Batch], Any] | None = None,
    ) -> None:
        batch_size = whole_number(batch_size, "batch_size", 1)
        prefetch = whole_number(prefetch, "prefetch", 0)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform: expected a function, got {transform!r}")
        if to not in _LIBRARIES:
            raise ValueError(f"to: expected one of {', '.join(_LIBRARIES)}, got {to!r}")
        if not isinstance(sampler, (RandomPatches, GridPatches)):
            raise TypeError(f"sampler: expected RandomPatches or GridPatches, got {sampler!r}")
        if on_change not in ("raise", "ignore"):
            raise ValueError(f'on_change: expected "raise" or "ignore", got {on_change!r}')
        patch = tuple(sampler.shape)
        self._volumes, is_list = volumes_of(arrays, patch, watches=on_change == "raise")
        self._sampler = sampler
        self._edge = getattr(sampler, "edge", "shift")
        self._spaces = [one.space(patch, inside=sampler.is_inside) for one in self._volumes]
        self._order = sampler.order(self._spaces)
        self._division = Division.of(
            len(self._order), batch_size, *ranks_of(dist), drop_last=drop_last
        )
        if on_damage not in ("raise", "replace"):
            raise ValueError(f'on_damage: expected "raise" or "replace", got {on_damage!r}')
        if on_damage == "replace" and isinstance(sampler, GridPatches):
            raise ValueError('on_damage="replace": each patch of GridPatches comes once')
        self._on_damage = on_damage
        is_on_host = self._volumes[0].device == "cpu"
        if to == "cupy" and is_on_host:
            raise gpustore.UnsupportedError(
                'to="cupy": the arrays are read to host memory; open them with device="cuda"'
            )
        ahead = prefetch if is_on_host else 0
        self._transform, self._prefetch = transform, ahead
        first = self._volumes[0].arrays
        for parameter, by_name in ("dtype", dtype), ("normalize", normalize), ("layout", layout):
            check_names(by_name, [one.name for one in first], parameter)
        conversions = {one.name: ElementConversion.of(one, dtype, normalize) for one in first}
        layouts = {one.name: Layout.of(one, layout) for one in first}
        self._statistics = LoaderStatistics()
        self._metadata = StoredMetadata()
        self._batches: HostBatches | DeviceBatches
        plan = first, conversions, layouts, to, self._statistics
        if is_on_host:
            self._batches = HostBatches(*plan, numbers_volumes=is_list)
        else:
            self._batches = DeviceBatches(*plan, edge=self._edge, numbers_volumes=is_list)
        batch_nbytes = batch_size * sum(
            math.prod(one.patch_shape) * conversions[one.name].dtype.itemsize for one in first
        )
        self._memory = limit = nbytes_of(memory, "memory")
        left = limit - (ahead + 2) * batch_nbytes
        # On a device a window that a batch ends with is kept until the batch is cut.
        self._window_nbytes = left if is_on_host else 2 * left // 3
        if self._window_nbytes <= 0:
            raise gpustore.LimitError(
                f"memory: {ahead + 2} batches of {batch_nbytes} bytes each do not fit in "
                f"{limit}; choose more memory, or a smaller batch_size or prefetch"
            )
        check_alike(dist, self._fingerprint())
        self._register()
        self._epochs = Epochs()
        self._position = 0
        self._first: tuple[int, int] | None = None
        """Epoch and position of a state that was loaded."""
        self._worker: Ranks | None = None
        self._iterator: Generator[Batch] | BatchesAhead | None = None

    def __len__(self) -> int:
        """Number of batches of an epoch, the same on all ranks."""
        return self._division.batches

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of :attr:`epoch`, from where a loaded state stopped.

        With the last batch, whether or not more are asked for, the epoch is the next one.
        """
        self._end()
        self._statistics.begin()
        place = worker_of()
        if place is not None and self._volumes[0].device != "cpu":
            raise gpustore.UnsupportedError(
                "Workers of a DataLoader make no batches on a device: use num_workers=0"
            )
        numbers = self._numbers(place)
        workers = numbers.step
        batches: Generator[Batch] | BatchesAhead = self._made(self.epoch, numbers)
        if self._prefetch:
            batches = BatchesAhead(batches, self._prefetch)
        self._iterator = batches
        try:
            for number in numbers:
                with self._statistics.spending("waited_s"):
                    batch = next(batches, None)
                if batch is None or self._iterator is not batches:
                    raise RuntimeError("the loader was closed, or has begun another iteration")
                with self._statistics.spending("used_s"):
                    given = [batch if self._transform is None else self._transform(batch)]
                    del batch
                    # Behind `transform`: a batch that it fails on comes again.
                    self._position = number + workers
                    if place is None and number == numbers[-1]:
                        self._begin_next_epoch()
                    yield given.pop()  # Only the program keeps it.
            # Other workers may not be that far: their states have the epoch and their last batch.
            if place is not None:
                self._epochs.end(place)
            elif not numbers:
                self._begin_next_epoch()
        finally:
            batches.close()

    def _numbers(self, place: Ranks | None) -> range:
        """Begin an iteration; return the numbers of the batches of this process."""
        worker, workers = place or (0, 1)
        epoch = self.epoch if place is None else self._epochs.begin(place)
        first, self._first = self._first, None
        if first is None or first[0] != epoch:  # Epochs of workers may have gone by since.
            position = worker
        elif self._worker is None:
            position = first[1] + worker
        elif self._worker == (worker, workers):
            position = first[1]
            is_ended = position >= len(self)
            if is_ended and place is not None and self._epochs.shared > epoch:  # For all workers.
                self._epochs.begin(place)
                position -= len(self)  # The DataLoader asks workers in turn, as it did before.
        else:
            raise gpustore.ConflictError(
                f"The state is that of worker {self._worker[0]} of {self._worker[1]}, and this is "
                f"worker {worker} of {workers}: go on with as many workers"
            )
        self._position, self._worker = position, (worker, workers) if workers > 1 else None
        return range(position, len(self), workers)

    def _begin_next_epoch(self) -> None:
        self._epochs.choose(self.epoch + 1)
        self._position, self._worker = 0, None

    @property
    def epoch(self) -> int:
        """Epoch that the next iteration gives, also of worker processes of a DataLoader."""
        return self._epochs.now

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with an epoch; its own one goes on where it was loaded.

        Another epoch ends an iteration that is under way.
        """
        epoch = whole_number(epoch, "epoch", 0)
        if epoch != self.epoch:
            self._end()
            self._epochs.choose(epoch)
            self._position, self._first = 0, None

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is: behind the last batch that the program got, as JSON.

        The fingerprint is what the order of the patches depends on besides the seed.
        """
        fingerprint = self._fingerprint()
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "position": self._position,
            "worker": None if self._worker is None else list(self._worker),
            "seed": fingerprint.pop("seed"),
            "fingerprint": fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a loader was; ranks may be others if the global batch is as large.

        Raises
        ------
        ConflictError
            If arrays, sampler or global batch are others; the message says which.
        ValueError
            If it is no state of a loader.
        """
        if (
            not isinstance(state, Mapping)
            or not self.state_dict().keys() <= state.keys()
            or not isinstance(state["fingerprint"], Mapping)
        ):
            raise ValueError(f"state: expected what state_dict() returns, got {state!r}")
        found = self._fingerprint()
        then = {"seed": state["seed"], **state["fingerprint"]}
        if state["version"] != _VERSION:
            raise gpustore.ConflictError(
                f"The state has version {state['version']}, this loader {_VERSION}: the same seed "
                "gives other patches"
            )
        other = difference(then, found)
        if other is not None:
            raise gpustore.ConflictError(
                f"The state was made with another {other[0]}: {other[1]}, now {other[2]}"
            )
        epoch = whole_number(state["epoch"], "epoch", 0)
        position = whole_number(state["position"], "position", 0)
        worker = state["worker"]
        if worker is not None:
            number, workers = listed(worker, "worker", "its number and that of all", 2)
            worker = number, workers
        self._end()
        if worker is None and position >= len(self):  # As the only worker leaves it.
            epoch, position = epoch + 1, 0
        place = worker_of()
        if place is None:
            self._epochs.choose(epoch)
        else:
            self._epochs.load(epoch, place)
            if worker is not None and position >= len(self):
                self._epochs.end(place)
        self._position, self._first, self._worker = position, (epoch, position), worker

    def explain(self) -> LoaderExplanation:
        """Estimate what :attr:`epoch` will read; no stored value is read.

        The windows of the epoch are drawn and planned, which takes about a millisecond each. Ranks
        are estimated one by one; worker processes of a DataLoader are not.

        Returns
        -------
        LoaderExplanation
            Windows, chunks, decodes, bytes and memory, and advice. ``print`` shows it.

        Examples
        --------
        >>> import gpustore
        >>> from gpustore.loader import PatchLoader, RandomPatches
        >>> store = gpustore.open(
        ...     "memory://l/|zarr3:", create=True, dtype="uint8", shape=[64, 64], chunks=(8, 8)
        ... ).result()
        >>> sampler = RandomPatches((16, 16), per_epoch=100, window=1024)
        >>> explanation = PatchLoader(store, sampler=sampler, batch_size=10).explain()
        >>> explanation.windows, explanation.chunks, explanation.limited_by
        (4, 64, 'window')
        """

        def windows(window: int, room: int, residents: Residents) -> Iterator[FetchedWindow]:
            sampler = replace(self._sampler, window=window)
            order = sampler.order(self._spaces)
            return self._windows(order, self.epoch, range(len(self)), room, residents)

        part_sizes = map(self._division.part_size, range(len(self)))
        return explained(
            windows,
            epoch=self.epoch,
            batches=len(self),
            patches=sum(part_sizes),
            volumes=self._volumes,
            window=int(self._sampler.window),
            memory=self._memory,
            batches_nbytes=self._memory - self._window_nbytes,
        )

    def stats(self) -> dict[str, Any]:
        """Return what was done so far, in all iterations of this process, as JSON.

        Counts of windows are added when all of their patches are in batches. A DataLoader's worker
        processes count in loaders of their own. Time costs little: it is taken a few times a batch.

        Returns
        -------
        dict
            ``batches`` : int
                Batches made, also those that the program has not asked for yet.
            ``patches`` : int
                Patches in them.
            ``patches_replaced`` : int
                Damaged patches in whose place others came.
            ``windows`` : int
                Windows read, also of one patch whose chunks may be damaged.
            ``bytes_read`` : int
                Encoded bytes that came from storage.
            ``bytes_decoded`` : int
                Decoded bytes of the chunks that were read.
            ``chunks_decoded`` : int
                Chunks decoded, each as often as a window needs it; two windows that are read at the
                same time may share it.
            ``chunks_missing`` : int
                Chunks that are not stored, and were read as the fill value.
            ``chunks_cached`` : int
                Chunks found in a cache of the context, and not decoded.
            ``decodes_per_chunk`` : float
                How often an iteration reads each chunk that its patches touch, on average: stored,
                missing and cached ones alike. 0 for arrays without chunks.
            ``waited_s`` : float
                Seconds that the program waited for batches.
            ``used_s`` : float
                Seconds from a batch until the program asked for the next one; `transform` included.
            ``read_s`` : float
                Seconds in which windows were being read, that is fetched and decoded.
            ``stalled_s`` : float
                Seconds in which no patch could be cut, as its window was not read yet.
            ``stalled_cpu_s`` : float
                Seconds of CPU time of the process meanwhile: few where storage is slow, and up to
                one a second and thread where decoding is.
            ``plan_s`` : float
                Seconds of drawing the patches of windows and beginning to read them.
            ``plan_cpu_s`` : float
                Seconds of CPU time of that: in the others metadata are asked for that may have
                changed.
            ``cut_s`` : float
                Seconds of cutting patches out of windows and converting their elements, in one
                step.
            ``convert_s`` : float
                Seconds of making arrays of another library of batches.
            ``limited_by`` : {"storage", "decode", "cut", "consumer"} or None
                The stage that was busy longest: reading, with waits for metadata; planning, cutting
                and converting; or the program. They work at the same time, so that an epoch takes
                about as long as this one. Reading is ``"decode"`` if chunks are compressed and the
                CPU was busy while no patch could be cut, else ``"storage"``. This is an estimate: a
                device decodes without the CPU, and counts as storage. None before the first batch.
        """
        return self._statistics.snapshot()

    def close(self) -> None:
        """End the thread and drop all batches and memory; a later iteration begins anew."""
        self._end()
        self._batches.close()

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
        if isinstance(iterator, BatchesAhead):
            iterator.close()
        elif iterator is not None and inspect.getgeneratorstate(iterator) != inspect.GEN_RUNNING:
            iterator.close()  # One that another thread runs ends with the batch that it makes.

    def _register(self) -> None:
        """Let PyTorch's DataLoader, if the program may use it, know what this is."""
        if "torch" in sys.modules:
            sys.modules["torch"].utils.data.IterableDataset.register(type(self))

    def _fingerprint(self) -> dict[str, Any]:
        sampler = self._sampler.state()
        return {
            "seed": sampler.pop("seed", None),
            "arrays": [one.state() for one in self._volumes],
            "sampler": sampler,
            "global batch": self._division.size,
        }

    def _windows(
        self, order: PatchOrder, epoch: int, batches: range, room: int, residents: Residents
    ) -> Generator[FetchedWindow]:
        """Yield the windows of some batches, none of which takes more than `room` bytes."""
        return windows_of(
            order,
            self._division,
            self._volumes,
            residents,
            edge=self._edge,
            nbytes=room,
            epoch=epoch,
            batches=batches,
        )

    def _check_unchanged(self, window: FetchedWindow) -> None:
        """Check that the arrays of a window are those that were opened."""
        self._metadata.check(window.volume, self._volumes[window.volume])

    def _made(self, epoch: int, numbers: range) -> Generator[Batch]:
        """Make some batches of an epoch."""
        room = self._window_nbytes
        residents = Residents.of(self._volumes, room)
        windows = self._windows(self._order, epoch, numbers, room, residents)
        replacements = Replacements(
            self._order,
            self._volumes,
            epoch=epoch,
            edge=self._edge,
            replaces=self._on_damage == "replace",
            statistics=self._statistics,
        )
        with self._batches.iteration(room) as memory:
            reads = WindowReads(
                windows,
                residents,
                room,
                self._statistics,
                replacements,
                self._check_unchanged,
                self._batches.source_stream,
                memory,
            )
            try:
                for number in numbers:
                    count = self._division.part_size(number)
                    yield self._batches.made(count, reads.take(count))
            finally:
                reads.close()
