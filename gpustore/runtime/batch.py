"""``Batch``: reads that are started together and share their work.

A batch collects reads in groups; :meth:`Batch.submit` starts each group with one call. Reads of one
array share the fetching and decoding of their chunks, reads of keys of one kvstore are one request.

Source: the semantics of TensorStore's ``Batch`` (``tensorstore/batch.h``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gpustore.errors import MetadataError
from gpustore.runtime.epoch import epoch
from gpustore.runtime.future import Future
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import attributed, operation_of

T = TypeVar("T")


@dataclass(slots=True)
class _Group(Generic[T]):
    """Reads that one call starts."""

    run: Callable[[list[T]], None]
    explain: Callable[[list[T]], list[Any]] | None
    items: list[T] = field(default_factory=list)
    futures: list[Future[Any]] = field(default_factory=list)

    def start(self) -> None:
        for future in self.futures:
            future._epoch = epoch()
        try:
            self.run(self.items)
        except Exception as error:
            for future in self.futures:
                future._finish(None, error)


class Batch:
    """Collects reads and starts them together.

    Use it as a context manager, which submits it at the end, or call :meth:`submit`. A batch that
    is dropped is submitted as well. Until then no read of it begins: waiting for its Future inside
    the ``with`` block waits for ever.

    Examples
    --------
    >>> import gpustore
    >>> store = gpustore.open(
    ...     "memory://batch/|zarr3:", create=True, dtype="uint8", shape=[4]
    ... ).result()
    >>> with gpustore.Batch() as batch:
    ...     first, second = store[:3].read(batch=batch), store[1:].read(batch=batch)
    >>> first.result(), second.result()
    (array([0, 0, 0], dtype=uint8), array([0, 0, 0], dtype=uint8))
    """

    __slots__ = ("__weakref__", "_groups", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[Hashable, _Group[Any]] | None = {}

    def submit(self) -> None:
        """Start all reads of the batch; does nothing the second time.

        A read that names the batch afterwards raises MetadataError.
        """
        groups: dict[Hashable, _Group[Any]] | None = None
        begun = 0
        try:
            with self._lock:
                groups, self._groups = self._groups, None
            for group in (groups or {}).values():
                group.start()
                begun += 1
        except BaseException:  # Ctrl-C: nobody else would finish the others.
            for group in [*(groups or {}).values()][begun:]:
                for future in group.futures:
                    future.cancel()
            raise

    def explain(self) -> list[Any]:
        """Estimate the work of the reads of arrays that the batch holds.

        Returns
        -------
        list of Explanation
            One :class:`gpustore.Explanation` for all reads of an array that share its chunks, one
            for each read of its own. Reads of keys and of arrays without chunks have none.

        Raises
        ------
        MetadataError
            If the batch was submitted.
        OutOfBoundsError, LimitError
            As the reads.

        Examples
        --------
        >>> import gpustore
        >>> store = gpustore.open(
        ...     "memory://be/|zarr3:", create=True, device="cpu", dtype="uint8", shape=[4]
        ... ).result()
        >>> with gpustore.Batch() as batch:
        ...     first, second = store[:3].read(batch=batch), store[1:].read(batch=batch)
        ...     explanation, = batch.explain()
        >>> explanation.together, explanation.chunks, explanation.bytes_returned
        (2, 1, 6)
        """
        with self._lock:
            if self._groups is None:
                raise already_submitted()
            groups = [(group.explain, list(group.items)) for group in self._groups.values()]
        return [one for explain, items in groups if explain for one in explain(items)]

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.submit()

    def __del__(self) -> None:
        if hasattr(self, "_groups"):
            self.submit()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'gpustore.Batch' object")

    @property
    def _submitted(self) -> bool:
        return self._groups is None

    def _join(
        self,
        key: Hashable,
        run: Callable[[list[T]], None],
        item: T,
        future: Future[Any],
        explain: Callable[[list[T]], list[Any]] | None = None,
    ) -> None:
        """Add a read to the group of `key`.

        Parameters
        ----------
        key : hashable
            Reads with the same key are one group.
        run : callable
            Called once with all items of the group, in order; it must finish their Futures. If it
            raises, they fail with that error.
        item : object
        future : Future
            Of `item`.
        explain : callable, optional
            Says what `run` would do with the items.

        Raises
        ------
        MetadataError
            If the batch was submitted.
        """
        with self._lock:
            if self._groups is not None:
                group = self._groups.get(key)
                if group is None:
                    group = self._groups[key] = _Group(run, explain)
                group.items.append(item)
                group.futures.append(future)
                return
        raise already_submitted()

    def _later(
        self, start: Callable[[], Future[T]], explain: Callable[[], Any] | None = None
    ) -> Future[T]:
        """Return a Future of the operation that `start` begins when the batch is submitted."""
        promise: Promise[T]
        promise, future = Promise.new()

        def run(_: object) -> None:
            promise.follow(attributed(operation_of(future), start))

        explained = None if explain is None else lambda _: [explain()]
        self._join(object(), run, None, future, explained)
        return future


def already_submitted() -> MetadataError:
    """Return the error for a read that names a batch which was submitted."""
    return MetadataError("batch was already submitted")


def check_batch(batch: object, *, open: bool = True) -> None:
    """Raise unless `batch` is a Batch or None; with `open`, also if it was submitted.

    Raises
    ------
    TypeError
        If it is neither a Batch nor None.
    MetadataError
        If it must be `open` but was submitted.
    """
    if batch is None:
        return
    if not isinstance(batch, Batch):
        raise TypeError(f"Invalid batch: expected a Batch, but received: {batch!r:.200}")
    if open and batch._submitted:
        raise already_submitted()
