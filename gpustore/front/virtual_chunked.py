"""Arrays whose chunks functions compute: :func:`virtual_chunked`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpustore.drivers.chunk_functions import (
    ChunkFunctions,
    ReadFunction,
    WriteFunction,
    running_loop,
)
from gpustore.drivers.virtual_chunked import virtual_driver
from gpustore.errors import MetadataError
from gpustore.front.store import TensorStore
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.runtime.context import Context
from gpustore.runtime.transaction import Transaction, check_transaction
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout

if TYPE_CHECKING:
    import asyncio


def virtual_chunked(
    read_function: ReadFunction | None = None,
    write_function: WriteFunction | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    rank: int | None = None,
    dtype: Any = None,
    domain: IndexDomain | None = None,
    shape: Iterable[int] | None = None,
    chunk_layout: ChunkLayout | None = None,
    dimension_units: Iterable[Any] | None = None,
    schema: Schema | None = None,
    context: Context | None = None,
    transaction: Transaction | None = None,
) -> TensorStore:
    """Make an array whose chunks functions compute and store; nothing is called yet.

    Parameters
    ----------
    read_function : callable, optional
        ``read_function(domain, array, parameters)`` fills `array`, a NumPy array of zeros (or empty
        objects) in host memory, with the elements of `domain`, a chunk as far as it is inside the
        array. `parameters` are a :class:`VirtualChunkedReadParameters`. It returns None for
        elements that never change, or a :class:`KvStore.TimestampedStorageGeneration` of their
        version; or a Future or a coroutine of either. Without it the array cannot be read.
    write_function : callable, optional
        ``write_function(domain, array, parameters)`` stores the elements of a chunk, of a read-only
        `array`; `parameters` are a :class:`VirtualChunkedWriteParameters`. It returns None or the
        new version as `read_function` does. Without it the array cannot be written.
    loop : asyncio.AbstractEventLoop, optional
        Event loop in which coroutines run; by default the one that runs now, if any. The thread of
        the loop must not wait for reads and writes of the array, but await them.
    rank, dtype, domain, shape, chunk_layout, dimension_units, schema
        Properties of the array; rank and data type must be known. Without a shape of chunks there
        one is chosen as for a new array; the grid of chunks begins where the domain does.
    context : Context, optional
        Resources. Threads of ``data_copy_concurrency`` call the functions, several at a time; with
        a ``cache_pool`` that has a limit, what they have computed is kept.
    transaction : Transaction, optional
        Transaction to which all reads and writes belong; a commit calls `write_function`.

    Returns
    -------
    TensorStore
        Array that reads call `read_function` for, once a chunk; it pickles as its functions do.

    Raises
    ------
    MetadataError
        If no function is given, or the properties contradict each other. Errors of the functions
        are those of the reads and writes.

    Examples
    --------
    >>> import gpustore
    >>> def squares(domain, array, parameters):
    ...     array[...] = [index**2 for index in domain[0]]
    >>> virtual_chunked(squares, dtype="int64", shape=[1000])[10:13].read().result()
    array([100, 121, 144])
    """
    if read_function is None and write_function is None:
        raise MetadataError("Must specify `read_function`, `write_function`, or both")
    for name, function in (("read_function", read_function), ("write_function", write_function)):
        if function is not None and not callable(function):
            raise TypeError(f"{name}: expected a function, but received: {function!r:.200}")
    if loop is None and "asyncio" in sys.modules:
        loop = running_loop()
    keywords = {
        "rank": rank,
        "dtype": dtype,
        "domain": domain,
        "shape": shape,
        "chunk_layout": chunk_layout,
        "dimension_units": dimension_units,
        "schema": schema,
    }
    said = Schema()
    said.update(**{name: value for name, value in keywords.items() if value is not None})
    driver = virtual_driver(
        ChunkFunctions(read_function, write_function, loop),
        said,
        context or Context(),
        {},
        readable=read_function is not None,
        writable=write_function is not None,
    )
    check_transaction(transaction)
    if transaction is not None:
        driver = driver.in_transaction(transaction)
    return TensorStore._of(driver, IndexTransform(driver.domain))
