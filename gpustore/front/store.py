"""The opened array that users hold: :class:`TensorStore`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gpustore import registry
from gpustore.backends.base import NEW, Output
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.drivers.base import Driver, OpenMode
from gpustore.errors import MetadataError, OutOfBoundsError, TransactionError, UnsupportedError
from gpustore.front.explained_array import ORDERS
from gpustore.front.numpy_view import NumpyView
from gpustore.front.opened_spec import opened_spec, pickled_resources
from gpustore.front.shown_array import ShownArray
from gpustore.front.spec import Spec
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.accessor import Accessor
from gpustore.index_space.alignment import arrangement
from gpustore.index_space.resize import ResizeRequest
from gpustore.planning.crop_plan import crop_shape
from gpustore.runtime.batch import Batch, check_batch
from gpustore.runtime.future import Future
from gpustore.runtime.progress import Progress
from gpustore.runtime.statistics import CURRENT, ReadOperation, WriteOperation, operation
from gpustore.runtime.write_futures import WriteFutures, write_after

_S = TypeVar("_S", bound="TensorStore")
_Library = Literal["numpy", "cupy", "torch", "jax"]

_new = object.__new__


class TensorStore(ShownArray):
    """Array that is read and written through an index transform.

    :func:`gpustore.open` makes it. Indexing does no I/O: it returns another TensorStore for that
    part, and the domain keeps its origin (``store[10:20]`` starts at 10).

    Examples
    --------
    >>> import numpy as np
    >>> import gpustore
    >>> store = gpustore.array(np.arange(6).reshape(2, 3))
    >>> store[1, ::-1].read().result()
    array([5, 4, 3])
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError("use gpustore.open(...).result() to get a TensorStore")

    # ---- parts of it

    def __getitem__(self, index: Any) -> TensorStore:
        """Return the part an index or a dimension expression selects; no I/O.

        Raises
        ------
        OutOfBoundsError
            If an index is outside explicit bounds; implicit ones are checked on reading.
        """
        transform = self._transform._index_inside(index)
        try:
            if transform is None:
                transform = self._transform[index]
        except OutOfBoundsError as error:
            if not error.status:
                raise  # What does not fit is the expression, whichever way indices count.
            raise self._about_bounds(error, self.domain) from None
        store = _new(TensorStore)  # As `_of`, which takes 0.1 us longer.
        store._driver = self._driver
        store._transform = transform
        return store

    def _about_bounds(self, error: OutOfBoundsError, domain: IndexDomain) -> OutOfBoundsError:
        """Return the error with how indices count here, for users of NumPy."""
        return error.suffixed(
            f"; the domain is {domain}, and indices are its coordinates: use store.numpy[...] "
            "for negative and clipped indices as in NumPy, or store.translate_to[0] to count from 0"
        )

    def __setitem__(self, index: Any, source: Any) -> None:
        """Write `source` to a part and wait until it is stored."""
        self[index].write(source).result()

    def _accessor(self, name: str) -> Accessor[Self]:
        return _WritableAccessor(self, name, super()._accessor(name).__getitem__)

    def astype(self, dtype: Any) -> TensorStore:
        """Return a view with another data type, as :func:`gpustore.cast` does; nothing is read.

        >>> import gpustore
        >>> gpustore.array([1.5, 2.5]).astype("int8").read().result()
        array([1, 2], dtype=int8)
        """
        target = dtype_(dtype)
        if target == self.dtype:
            return self
        driver = registry.find("drivers", "cast").of_driver(self._driver, target)
        return TensorStore._of(driver, self._transform)

    # ---- elements

    def read(
        self,
        *,
        order: str = "C",
        batch: Batch | None = None,
        out: Any = None,
        stream: Any = None,
        to: _Library | None = None,
    ) -> Future[Any]:
        """Read the elements of the domain.

        Parameters
        ----------
        order : {"C", "F"}
            Memory order of the returned array.
        batch : Batch, optional
            The read begins when the batch is submitted, together with the other reads; the Future
            is not ready before.
        out : array, optional
            Array to fill and return in place of a new one: NumPy, or any object with the buffer
            protocol, ``__array_interface__`` or DLPack; for a store on a GPU, an array there with
            ``__cuda_array_interface__`` or DLPack. Shape and data type must be those of the store.
            The array must stay alive until the Future is ready.
        stream : object, optional
            CUDA stream that used `out` last (of CuPy or PyTorch, an object with
            ``__cuda_stream__``, or its address), by default CuPy's current one. Work that the
            stream received before this call is done first. Stores in host memory ignore it, so
            that one program runs with ``device="auto"`` anywhere.
        to : {"numpy", "cupy", "torch", "jax"}, optional
            Library of the array; by default NumPy, or CuPy for a store on a GPU. Arrays of PyTorch
            and JAX are in the memory that the store reads into and have its data type exactly;
            JAX copies what is not aligned to 64 bytes. ``"numpy"`` copies from a GPU to the host.

        Returns
        -------
        Future of ndarray
            Array in native byte order with the shape of the domain, in host memory or in that of
            the GPU which is the store's ``device``. Every stream may use the array once the Future
            is ready. :attr:`~gpustore.Future.statistics` count the work of the read.

        Raises
        ------
        OutOfBoundsError, LimitError, MismatchError, TypeError
            Immediately.
        UnsupportedError, ModuleNotFoundError
            Immediately, if the library `to` lacks the data type or the memory, or is not installed.
        CorruptChunkError, StoreIOError
            Through the Future; the message names the key.
        """
        if order not in ORDERS or not self._driver.readable:
            self._check_readable(order)
        if batch is not None:
            check_batch(batch)
        # As `operation` does, which would take 1 us of the 40 that a small read takes.
        outer = CURRENT.operation
        if outer is None:
            CURRENT.operation = ReadOperation
        try:
            plain = out is None and stream is None and order == "C"
            output = NEW if plain else Output(out, order, stream)
            if to is None:
                return self._driver.read(self._transform, output, batch)
            given_to = registry.public("front.array_library", "given_to")
            output, hand_over = given_to(to, self._driver, output, self.shape)
            return cast(Future[Any], hand_over(self._driver.read(self._transform, output, batch)))
        except OutOfBoundsError as error:
            # Of an index beyond an implicit bound, which the array may have grown past meanwhile.
            raise self._about_bounds(error, self._driver.domain) from None
        finally:
            if outer is None:
                CURRENT.operation = None

    def read_many(
        self,
        starts: Any,
        shape: Sequence[int],
        *,
        order: str = "C",
        out: Any = None,
        stream: Any = None,
        to: _Library | None = None,
    ) -> Future[Any]:
        """Read many crops of one shape; a chunk that several crops touch is decoded once.

        The result equals stacked reads of ``store[tuple(slice(s, s + n) for s, n in zip(start,
        shape))]`` for each `start`, but is far faster where crops share chunks. The crops may
        overlap, repeat, and come in any order.

        Parameters
        ----------
        starts : array-like of integers, shape (n, rank)
            First index of each crop, in the coordinates of :attr:`domain`, which may have an origin
            other than zero.
        shape : sequence of int, length rank
            Elements of a crop along each dimension.
        order : {"C", "F"}
            Memory order of the returned array.
        out : array, optional
            Array to fill and return in place of a new one; see :meth:`read`.
        stream : object, optional
            CUDA stream that used `out` last; see :meth:`read`.
        to : {"numpy", "cupy", "torch", "jax"}, optional
            Library of the array; see :meth:`read`.

        Returns
        -------
        Future of ndarray
            Array of shape ``(n, *shape)`` in native byte order, in the memory that :meth:`read`
            uses.

        Raises
        ------
        OutOfBoundsError
            Immediately, if a crop is not inside the domain; the message names the row of `starts`.
        UnsupportedError
            Immediately, if the store is indexed by an index array, or for `to` as in :meth:`read`.
        LimitError, MismatchError, TypeError
            At once.
        CorruptChunkError, StoreIOError
            Through the Future; the message names the key.

        Examples
        --------
        >>> import gpustore
        >>> store = gpustore.array([[0, 1, 2], [3, 4, 5]])
        >>> store.read_many([[0, 1], [1, 0]], [1, 2]).result()
        array([[[1, 2]],
        <BLANKLINE>
               [[3, 4]]])
        """
        self._check_readable(order)
        extent = crop_shape(shape, self.rank)
        output = Output(out, order, stream)
        read = partial(self._driver.read_many, self._transform, starts, extent)
        if to is None:
            return operation(lambda: read(output))
        shape = (*np.shape(starts)[:1], *extent)
        given_to = registry.public("front.array_library", "given_to")
        output, hand_over = given_to(to, self._driver, output, shape)
        return operation(lambda: hand_over(read(output)))

    def preload(self, *, progress: Callable[[int, int], object] | None = None) -> Future[None]:
        """Bring the chunks of the domain into the memory of the GPU, where reads find them.

        The context's ``device_cache_pool`` bounds their bytes; chunks that do not fit are fetched
        by reads as ever. Index first to preload a part: ``store[10:20].preload()``.

        Parameters
        ----------
        progress : callable, optional
            ``progress(done, total)`` in decoded bytes of the chunks, as for :func:`gpustore.copy`;
            called at the beginning, and by threads of the pool, one at a time. Of a stack `total`
            grows while the layers begin.

        Returns
        -------
        Future of None
            Resolves when the chunks are there. Its :attr:`~gpustore.Future.statistics` tell more
            meanwhile: of ``chunks_planned`` chunks so many are ``device_cache_hits``, and
            ``device_cache_bytes`` of others are there to stay.

        Raises
        ------
        UnsupportedError
            If the store has no chunks, is in host memory, or has no ``device_cache_pool``.
        OutOfBoundsError, LimitError
            The errors of :meth:`read` before any I/O.
        CorruptChunkError, StoreIOError
            Through the Future; the message names the key.
        """
        self._check_readable("C")
        return operation(lambda: self._driver.preload(self._transform, Progress(progress)))

    def write(
        self,
        source: Any,
        *,
        batch: Batch | None = None,
        can_reference_source_data_indefinitely: bool | None = None,
    ) -> WriteFutures:
        """Write the elements of the domain.

        Parameters
        ----------
        source : array-like or TensorStore
            Values, broadcast to the shape of the domain. The data type must cast to the store's
            under NumPy's rule "safe"; Python numbers convert by value. Dimensions of a TensorStore
            go to those with the same labels.
        batch : Batch, optional
            Batch in which a TensorStore as `source` is read.
        can_reference_source_data_indefinitely : bool, optional
            Accepted for compatibility with TensorStore, without effect: no reference is kept beyond
            ``copy``.

        Returns
        -------
        WriteFutures
            ``copy`` is ready when `source` may be changed again, ``commit`` (and the object itself)
            when all elements are stored. Chunks are replaced one by one, each as a whole.

        Raises
        ------
        OutOfBoundsError, LimitError, MismatchError, TypeError
            Immediately.
        """
        del can_reference_source_data_indefinitely
        if not self.writable:
            raise MetadataError("Destination does not support writing.")
        check_batch(batch, open=False)
        try:
            return operation(lambda: self._write(source, batch), WriteOperation)
        except OutOfBoundsError as error:
            raise self._about_bounds(error, self._driver.domain) from None

    def _write(self, source: Any, batch: Batch | None) -> WriteFutures:
        if isinstance(source, TensorStore):
            if not np.can_cast(source.dtype.array_dtype, self.dtype.array_dtype, "safe"):
                raise MetadataError(
                    f"Explicit data type conversion required to convert {source.dtype.name} -> "
                    f"{self.dtype.name}"
                )
            arrange = arrangement(source.domain, self.domain)
            if batch is not None and not batch._submitted:
                return write_after(
                    source.read(batch=batch),
                    lambda elements: self._driver.write(self._transform, arrange(elements)),
                )
            source = arrange(source.read().result())
        elif batch is not None:
            raise MetadataError(
                "Invalid batch: batch can only be specified when copying from a TensorStore source"
            )
        return self._driver.write(self._transform, source)

    def __array__(
        self, dtype: Any = None, copy: bool | None = None, context: object = None
    ) -> NDArray[Any]:
        """Read it whole into a NumPy array; only for stores in host memory."""
        del context  # Says for which function NumPy needs the array.
        if copy is False:
            raise ValueError("a TensorStore cannot be viewed as a NumPy array without a copy")
        if self.device != "cpu":
            raise TypeError(
                f"the elements of this store are read to device {self.device}, not to a NumPy "
                f'array; call read().result(), or open the store with device="cpu"'
            )
        array: NDArray[Any] = self.read().result()
        return array if dtype is None else array.astype(dtype, copy=False)

    @property
    def numpy(self) -> NumpyView:
        """View that is indexed as a NumPy array: from zero, negative, clipped, read at once.

        >>> import gpustore
        >>> gpustore.array([3, 4, 5])[1:].numpy[-1]
        np.int64(5)
        """
        return NumpyView(self)

    @property
    def nchunks(self) -> int:
        """Number of chunks that hold elements of the domain, stored or not; 1 without chunks."""
        try:
            return self.explain().chunks
        except UnsupportedError:
            return 1

    def __len__(self) -> int:
        if self.rank == 0:
            raise TypeError(
                "a store without dimensions has no len(): read().result() gives its element, and "
                "of a store with dimensions an array"
            )
        return self.shape[0]

    def __iter__(self) -> Iterator[TensorStore]:
        """Iterate over the parts along the first dimension, which are views: nothing is read."""
        start = self.domain.origin[0] if self.rank else 0
        return (self[index] for index in range(start, start + len(self)))

    # It would compare views by identity, never elements.
    __contains__ = None

    def __bool__(self) -> bool:
        return bool(self._scalar()) if self.rank == 0 else self.size > 0

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __index__(self) -> int:
        return operator.index(self._scalar())

    def _scalar(self) -> Any:
        """Read the only element."""
        if self.rank:
            raise TypeError(
                f"only a store without dimensions converts to a Python number, but this one has "
                f"the domain {self.domain}; index all dimensions first, as store[0, 0]"
            )
        return self.read().result()[()]

    # ---- bounds

    def resolve(
        self, fix_resizable_bounds: bool = False, batch: Batch | None = None
    ) -> Future[TensorStore]:
        """Return the store with its currently stored bounds.

        The bounds are read regardless of ``recheck_cached_metadata``, which TensorStore applies
        here too.

        Parameters
        ----------
        fix_resizable_bounds : bool
            Make the bounds explicit, so that they are checked when indexing.
        batch : Batch, optional
            Reading begins when the batch is submitted.

        Raises
        ------
        OutOfBoundsError
            Through the Future, if bounds to be fixed are outside those stored.
        """

        def run() -> TensorStore:
            driver = self._driver.resolve()
            domain = driver.domain
            if fix_resizable_bounds:
                domain = domain.mark_bounds_implicit[False]
            return TensorStore._of(driver, IndexTransform(domain)[self._transform])

        check_batch(batch)
        if batch is not None:
            return batch._later(lambda: self._driver.executor.submit(run))
        return self._driver.executor.submit(run)

    def resize(
        self,
        inclusive_min: Sequence[int | None] | None = None,
        exclusive_max: Sequence[int | None] | None = None,
        resize_metadata_only: bool = False,
        resize_tied_bounds: bool = False,
        expand_only: bool = False,
        shrink_only: bool = False,
    ) -> Future[TensorStore]:
        """Change the bounds and delete the chunks outside of them.

        Parameters
        ----------
        inclusive_min : sequence of int or None, length rank
            New lower bounds; None keeps one. Zarr arrays start at zero, so lower bounds change in
            reversed domains only.
        exclusive_max : sequence of int or None, length rank
            New upper bounds; None keeps one.
        resize_metadata_only : bool
            Keep the chunks outside of the new bounds.
        resize_tied_bounds : bool
            Allow resizing through a view of a part of the array, which also resizes the rest.
        expand_only, shrink_only : bool
            Raise an error for a change in the other direction.

        Returns
        -------
        Future of TensorStore
            The resized store. This one keeps its domain; its reads and writes, and those of
            others of the same context, resolve implicit bounds to the new ones.

        Raises
        ------
        MetadataError, MismatchError, UnsupportedError, StoreIOError
            Through the Future. Nothing is changed if the bounds are not resizable.
        """
        request = ResizeRequest(
            inclusive_min,
            exclusive_max,
            resize_metadata_only=resize_metadata_only,
            resize_tied_bounds=resize_tied_bounds,
            expand_only=expand_only,
            shrink_only=shrink_only,
        )

        def run() -> TensorStore:
            driver = self._driver.resize(self._transform, request)
            return TensorStore._of(driver, IndexTransform(driver.domain)[self._transform])

        return self._driver.executor.submit(run, drain=True)

    # ---- as data

    def spec(
        self,
        *,
        open_mode: OpenMode | None = None,
        open: bool | None = None,
        create: bool | None = None,
        delete_existing: bool | None = None,
        assume_metadata: bool | None = None,
        assume_cached_metadata: bool | None = None,
        minimal_spec: bool | None = None,
        retain_context: bool | None = None,
        unbind_context: bool | None = None,
        recheck_cached_metadata: Any = None,
        recheck_cached_data: Any = None,
        recheck_cached: Any = None,
    ) -> Spec:
        """Return a spec that opens the store again.

        Parameters
        ----------
        open_mode, open, create, delete_existing, assume_metadata, assume_cached_metadata
            Open mode of the spec.
        minimal_spec : bool
            Leave out the metadata, which are necessary to create the array again.
        retain_context : bool
            Use the same kvstore, also one in memory, and the same resources when the spec is
            opened.
        unbind_context : bool
            Include the definitions of the context resources, so that opening the spec makes equal
            ones.
        recheck_cached_metadata, recheck_cached_data, recheck_cached
            Conditions for checking cached values again; see :func:`gpustore.open`.
        """
        spec = opened_spec(
            self._driver,
            self._transform,
            minimal=bool(minimal_spec),
            retain_context=bool(retain_context),
            unbind_context=bool(unbind_context),
        )
        spec.update(
            open_mode=open_mode,
            open=open,
            create=create,
            delete_existing=delete_existing,
            assume_metadata=assume_metadata,
            assume_cached_metadata=assume_cached_metadata,
            recheck_cached_metadata=recheck_cached_metadata,
            recheck_cached_data=recheck_cached_data,
            recheck_cached=recheck_cached,
        )
        return spec

    def __copy__(self) -> Self:
        return self  # It does not change.

    def __reduce__(self) -> tuple[Any, ...]:
        if self.transaction is not None:
            raise TransactionError("Cannot serialize TensorStore with bound transaction")
        if _is_in_memory(self._driver):
            raise UnsupportedError("a store in memory cannot be pickled: its bytes would be lost")
        spec = self.spec(unbind_context=True)
        shared = pickled_resources(self._driver, spec)
        return _reopen, (spec, shared, self.readable, self.writable)


def _is_in_memory(driver: Driver) -> bool:
    """Whether a driver, or a layer of it, has its bytes in a kvstore of this process."""
    kvstore, base = driver.kvstore, driver.base
    if kvstore is not None:
        return kvstore.driver.id == "memory"
    if base is not None:
        return _is_in_memory(base)
    opened = [layer.driver for layer in getattr(driver, "layers", ())]
    return any(_is_in_memory(one) for one in opened if one is not None)


def _reopen(spec: Spec, *options: Any) -> TensorStore:
    return TensorStore._of(*spec._reopening(*options).run())


class _WritableAccessor(Accessor[_S]):
    """``store.oindex[...] = source`` writes."""

    __slots__ = ()

    def __setitem__(self, index: Any, source: Any) -> None:
        self[index].write(source).result()
