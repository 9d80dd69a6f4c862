"""Reads and writes of the parts of layers: each element in its place of one array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gpustore import registry
from gpustore.backends.base import NEW, Backend, Memory, Output
from gpustore.drivers.array import ArrayDriver
from gpustore.drivers.base import Driver
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.index_space import IndexTransform
from gpustore.planning.layer_plan import LayerPart, part_transform, place_of
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future, failed, ready
from gpustore.runtime.gather import gather
from gpustore.runtime.then import then
from gpustore.runtime.write_futures import WriteFutures

Opened = Mapping[int, tuple[Driver, IndexTransform]]
"""Drivers of layers by their numbers, and the transforms from the domain of the stack."""


class Request(NamedTuple):
    """Elements of a stack that are read, and their place in the array that is filled.

    Attributes
    ----------
    transform : IndexTransform
        To the domain of the stack.
    parts : sequence of LayerPart
        Plan of the request.
    start : int
        Bytes from the first element of the array to that of the request.
    strides : tuple of int
        Bytes between neighbours.
    """

    transform: IndexTransform
    parts: Sequence[LayerPart]
    start: int
    strides: tuple[int, ...]


def read_parts(
    requests: Sequence[Request],
    layers: Opened,
    memory: Any,
    output: Output,
    backend: Backend,
    executor: Executor,
    batch: Batch | None,
) -> Future[Any]:
    """Read each part into its region; what cannot be, into an array of its own that is copied.

    Parameters
    ----------
    memory : Memory
        Array of `backend` that the requests fill.
    output : Output
        From which `memory` was made.
    batch : Batch or None
        Batch in which the layers are read.

    Returns
    -------
    Future
        Result of the read.
    """
    for number, (driver, _) in layers.items():
        if not driver.readable:
            return failed(MetadataError(f"Layer {number}: Read mode not supported"))
    if backend.device != "cpu" and any(part.points is not None for part in requests[0].parts):
        return _read_through_host(requests[0], layers, memory, output, backend, executor, batch)
    own = None
    if batch is None and sum([len(request.parts) for request in requests]) > len(layers):
        batch = own = Batch()  # Parts of one layer share chunks.
    futures: list[Future[Any]] = []
    apart: list[tuple[Request, LayerPart, Backend, Future[Any]]] = []
    for request in requests:
        for part in request.parts:
            driver, to_driver = layers[part.layer]
            wanted = to_driver[part_transform(request.transform, part)]
            if part.points is None and shares_memory(driver.backend, backend):
                region = _region(request, part, memory, backend)
                futures.append(driver.read(wanted, Output(region, "C", output.stream), batch))
            else:
                futures.append(driver.read(wanted, NEW, batch))
                apart.append((request, part, driver.backend, futures[-1]))
    if own is not None:
        own.submit()

    def finish() -> Any:
        for request, part, source, future in apart:
            _place(request, part, source.to_host(future.result()), memory, backend)
        return output.filled(memory)

    return gather(futures, finish, executor)


def _read_through_host(
    request: Request,
    layers: Opened,
    memory: Any,
    output: Output,
    backend: Backend,
    executor: Executor,
    batch: Batch | None,
) -> Future[Any]:
    """Read into host memory, then copy all elements to the device at once: no kernel scatters."""
    host: Backend = registry.find("backends", "host")
    dtype = next(iter(layers.values()))[0].dtype.array_dtype
    inside = host.empty(request.transform.domain.shape, dtype, "C")
    whole = request._replace(start=0, strides=inside.strides)

    def place(elements: NDArray[Any]) -> Any:
        backend.place(elements, memory)
        return output.filled(memory)

    return then(read_parts([whole], layers, inside, NEW, host, executor, batch), place, executor)


def shares_memory(one: Backend, other: Backend) -> bool:
    """Whether arrays of one backend are arrays of the other."""
    return one is other or one.device == other.device == "cpu"


def _region(request: Request, part: LayerPart, memory: Any, backend: Backend) -> Memory:
    """Return the region of the array that a part fills."""
    at = request.start
    origin = request.transform.domain.inclusive_min
    for first, low, step in zip(part.start, origin, request.strides):
        at += (first - low) * step
    shape = tuple([stop - start for start, stop in zip(part.start, part.stop)])
    return backend.region(memory, at, shape, request.strides)


def _place(
    request: Request, part: LayerPart, elements: NDArray[Any], memory: Any, backend: Backend
) -> None:
    """Copy the elements of a part, which are in host memory, to their place."""
    if part.points is None:
        backend.place(elements, _region(request, part, memory, backend))
        return
    shape = request.transform.domain.shape
    array = backend.region(memory, request.start, shape, request.strides).array
    axes, index = place_of(part, request.transform)
    array.transpose(axes)[index] = elements


def write_parts(
    transform: IndexTransform,
    parts: Sequence[LayerPart],
    elements: NDArray[Any],
    layers: Opened,
    executor: Executor,
) -> WriteFutures:
    """Write the elements of the domain of a transform, each to the layer of its part."""
    for number, (driver, _) in layers.items():
        if not driver.writable:
            error = MetadataError(f"Layer {number}: Write mode not supported")
            return WriteFutures(failed(error), failed(error))
    origin = transform.domain.inclusive_min
    writes = []
    for part in parts:
        driver, to_driver = layers[part.layer]
        if part.points is None:
            box = zip(part.start, part.stop, origin, strict=True)
            some = elements[tuple([slice(start - low, stop - low) for start, stop, low in box])]
        else:
            axes, index = place_of(part, transform)
            some = elements.transpose(axes)[index]
        writes.append(driver.write(to_driver[part_transform(transform, part)], some))
    if not writes:
        return WriteFutures(ready(None), ready(None))
    copied = gather([one.copy for one in writes], nothing, executor)
    return WriteFutures(copied, gather([one.commit for one in writes], nothing, executor))


def stored_parts(
    parts: Sequence[tuple[Driver, IndexTransform]], executor: Executor
) -> Future[StoredChunks]:
    """Look up which chunks of parts are stored."""
    futures = [driver.stored_chunks(transform) for driver, transform in parts]

    def together() -> StoredChunks:
        found = [future.result() for future in futures]
        return StoredChunks(all(one.none for one in found), all(one.every for one in found))

    return gather(futures, together, executor)


def explained_parts(
    parts: Sequence[tuple[Driver, IndexTransform]], *, write: bool = False, **whole: Any
) -> Any:
    """Return the explanation of reads or writes of parts, of which some may be in memory.

    `whole` are attributes of all together.
    """
    stored = [part for part in parts if not isinstance(part[0], ArrayDriver)]
    found = [one.explain_write(at) if write else one.explain(at) for one, at in stored]
    if not found:
        raise UnsupportedError("explain is not supported where no layer has chunks")
    combined: Callable[..., Any] = registry.find("explain", "combined")
    return combined(found, others=len(parts) - len(found), **whole)


def nothing() -> None:
    """Return the result of an operation that has none."""
