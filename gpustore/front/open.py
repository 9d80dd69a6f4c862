"""Opening of arrays: :func:`open`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpustore.drivers.base import OpenMode
from gpustore.errors import GpustoreError, MetadataError, TransactionError
from gpustore.front.array_words import (
    DIMENSIONS_V2,
    array_of,
    check_data,
    with_shape_of,
    write_all,
)
from gpustore.front.spec import Spec, SpecLike
from gpustore.front.store import TensorStore
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.batch import Batch, check_batch
from gpustore.runtime.context import Context
from gpustore.runtime.future import Future, failed
from gpustore.runtime.statistics import OpenOperation, operation
from gpustore.runtime.transaction import Transaction, check_transaction


def open(
    spec: SpecLike,
    *,
    device: str | None = None,
    read: bool | None = None,
    write: bool | None = None,
    open_mode: OpenMode | None = None,
    open: bool | None = None,
    create: bool | None = None,
    delete_existing: bool | None = None,
    assume_metadata: bool | None = None,
    assume_cached_metadata: bool | None = None,
    context: Context | Mapping[str, Any] | None = None,
    batch: Batch | None = None,
    transaction: Transaction | None = None,
    kvstore: KvStore.Spec | KvStore | None = None,
    recheck_cached_metadata: Any = None,
    recheck_cached_data: Any = None,
    recheck_cached: Any = None,
    rank: int | None = None,
    dtype: Any = None,
    domain: Any = None,
    shape: Any = None,
    chunk_layout: Any = None,
    codec: Any = None,
    fill_value: Any = None,
    dimension_units: Any = None,
    schema: Any = None,
    chunks: Any = None,
    shards: Any = None,
    dims: Any = None,
    units: Any = None,
    attributes: Mapping[str, Any] | None = None,
    data: Any = None,
) -> Future[TensorStore]:
    """Open or create an array.

    Parameters
    ----------
    spec : Spec, dict, str, os.PathLike or KvStore
        A spec, a URL (``"file:///data/x.zarr|zarr3:"``), a path in the notation of a shell
        (``"x.zarr"``) or an opened folder. Without a driver the format is detected.
    device : str, optional
        Device of the arrays that :meth:`TensorStore.read` returns: ``"cpu"`` (NumPy), ``"cuda"`` or
        ``"cuda:N"`` (CuPy), or ``"auto"`` (the default: CUDA where available, else the host).
    read, write : bool, optional
        Required access. By default both, as far as the store allows; ``read=True`` alone, or
        ``write=False``, is read-only.
    open, create, delete_existing, assume_metadata, assume_cached_metadata, open_mode
        Whether to open an existing array (the default), to create one, or both; each of them
        replaces the spec's open mode. The last two open without I/O: the metadata are those that
        creating the array would write. With `assume_metadata` they are never read, and resizing is
        not possible.
    context : Context or dict, optional
        Shared caches, thread pools and limits, or the JSON of such a context. By default each call
        makes its own.
    transaction : Transaction, optional
        Transaction to which opening, creating, and all operations of the store belong.
    batch : Batch, optional
        Opening begins when the batch is submitted.
    kvstore : KvStore.Spec or KvStore, optional
        Kvstore of the array, if the spec has none.
    recheck_cached_metadata, recheck_cached_data, recheck_cached : bool, "open" or float, optional
        Condition for checking cached values again: True, in each operation; False, never;
        ``"open"``, if they are older than this call; a number, if they are older than that time, in
        seconds since the Unix epoch. Metadata: the default is ``"open"``; after a check, a read or
        write uses the bounds stored at that time, and fails if the metadata no longer exist. Data
        are cached only if the context's ``cache_pool`` has a limit; the default is True, which
        costs a look at each stored chunk.
    rank, dtype, domain, shape, chunk_layout, codec, fill_value, dimension_units, schema
        Constraints that an existing array must fulfil, and properties of a new one. `codec` may be
        a word such as ``"zstd:5"``, ``"blosc-lz4:3"`` or ``"none"``, a list of words, or JSON;
        `chunk_layout` the shape of the chunks, or JSON.
    chunks, shards : int or sequence of int, optional
        Shape of the chunks that are encoded one by one, and of the shards that hold them.
    dims : sequence of str or None, optional
        Names of the dimensions. Zarr v2 keeps them as xarray does, in ``_ARRAY_DIMENSIONS``.
    units : sequence or mapping of dimension names, optional
        Physical size of a step along each dimension, such as ``"4nm"``; as `dimension_units`.
    attributes : mapping, optional
        User attributes of a new array, JSON values.
    data : array-like, optional
        Elements of a new array, written before the Future is ready; `shape` and `dtype` are theirs
        unless they are given.

    Returns
    -------
    Future of TensorStore
        The opened array; call ``.result()`` or use ``await``.

    Raises
    ------
    MetadataError, TypeError
        Immediately, if the arguments are invalid.
    NotFoundError, AlreadyExistsError, MismatchError, MetadataError, StoreIOError, DeviceError
        Through the Future.

    Examples
    --------
    >>> store = open("memory://a|zarr3:", create=True, dtype="uint16", shape=[4, 4]).result()
    >>> store[1, :] = 7
    >>> store[:2, :2].read().result()
    array([[0, 0],
           [7, 7]], dtype=uint16)
    """
    if not isinstance(context, Context) and isinstance(context, Mapping):
        context = Context(context)
    if context is not None and not isinstance(context, Context):
        raise TypeError(f"Invalid context: expected a Context, but received: {context!r:.200}")
    if transaction is not None:
        check_transaction(transaction)
    if batch is not None:
        check_batch(batch, open=False)
    if isinstance(spec, KvStore):
        spec, kvstore = {"driver": "auto"}, spec
    if isinstance(kvstore, KvStore) and kvstore.transaction is not None:
        if transaction not in (None, kvstore.transaction):
            raise TransactionError("Invalid kvstore: Inconsistent transactions specified")
        transaction = kvstore.transaction
    if hasattr(spec, "__array__"):
        raise TypeError(
            f"expected a path, a URL or a spec, but received {spec!r:.200}: gpustore.array makes a "
            "store of an array in memory, and an opened store has a spec()"
        )
    opened = Spec(spec)
    given = {
        "open_mode": open_mode,
        "open": open,
        "create": create,
        "delete_existing": delete_existing,
        "assume_metadata": assume_metadata,
        "assume_cached_metadata": assume_cached_metadata,
        "kvstore": kvstore,
        "recheck_cached_metadata": recheck_cached_metadata,
        "recheck_cached_data": recheck_cached_data,
        "recheck_cached": recheck_cached,
        "rank": rank,
        "dtype": dtype,
        "domain": domain,
        "shape": shape,
        "chunk_layout": chunk_layout,
        "codec": codec,
        "fill_value": fill_value,
        "dimension_units": dimension_units,
        "schema": schema,
        "chunks": chunks,
        "shards": shards,
        "dims": dims,
        "units": units,
        "device": device,
    }
    if data is not None:
        data = array_of(data, dtype)
        given = with_shape_of(data, given)
    given = {name: value for name, value in given.items() if value is not None}
    if given:
        opened.update(**given)
    if data is not None:
        check_data(data, opened.dtype, opened.domain)
    if attributes is not None and not isinstance(attributes, Mapping):
        raise TypeError(f"Invalid attributes: expected a mapping, got {attributes!r:.200}")
    fill: Callable[[TensorStore], None] = _nothing
    if not (data is attributes is None and (dims is None or opened._driver.id == "zarr3")):
        opened, fill = _filled(opened, data, attributes, dims)
    try:
        opening = opened._opening(context, read, write, transaction)
    except GpustoreError as error:
        return failed(error)

    def run() -> TensorStore:
        store = TensorStore._of(*opening.run())
        fill(store)
        return store

    if batch is not None and not batch._submitted:
        return batch._later(lambda: opening.executor.submit(run, drain=True))
    if opening.may_defer:
        return operation(lambda: Future.deferred(run, opening.executor), OpenOperation)
    return operation(lambda: opening.executor.submit(run, drain=True), OpenOperation)


def _nothing(store: TensorStore) -> None:
    """Leave a new array as it is."""


def _filled(
    spec: Spec, data: Any, attributes: Mapping[str, Any] | None, dims: Any
) -> tuple[Spec, Callable[[TensorStore], None]]:
    """Return the spec of a new array, and what is to be stored in it once it is made.

    Raises
    ------
    MetadataError
        If the array may exist: its attributes and elements are its own.
    """
    mode = spec.open_mode
    attributes = dict(attributes or {})
    if spec._driver.id == "zarr" and dims is not None and mode.create:
        attributes = {DIMENSIONS_V2: list(dims), **attributes}
    if (data is not None or attributes) and (mode.open or not mode.create):
        raise MetadataError(
            "`data` and `attributes` are those of a new array: give create=True without open=True, "
            "and write() or attrs.update() to change an array that exists"
        )
    made = spec._with_attributes(attributes) if attributes else spec

    def fill(store: TensorStore) -> None:
        if attributes and spec._driver.id != "zarr3":
            store.attrs.update(attributes).result()
        if data is not None:
            write_all(store, data)

    return made, fill
