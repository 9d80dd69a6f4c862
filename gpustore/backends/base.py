"""Protocols of backends, the interface between pipelines and memory.

A backend owns arrays in one memory space. A :class:`Sink` decodes the values of a read and places
their elements in arrays; :meth:`Backend.gather` does the reverse. Both work on many chunks at once,
so that a device can launch one kernel for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.downsampling import Cells, Downsampling
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.decoder_choice import Choice
from gpustore.data_types.conversion import Converter
from gpustore.device.kernels.box import Box
from gpustore.errors import GpustoreError
from gpustore.index_space import IndexDomain
from gpustore.kvstores.arena import Arena
from gpustore.kvstores.base import KeyDirectory
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.copy_plan import CopyWindow
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow
from gpustore.resources.device_cache_pool import DeviceCachePool
from gpustore.resources.gpu_decode_choice import AUTO, DecodeRule
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.limits import Limits

if TYPE_CHECKING:
    from gpustore.backends.native.array import NativeArray


class Memory(Protocol):
    """Array that a backend reads from or writes to.

    Attributes
    ----------
    array : object
        Array of the user, which must stay alive as long as this object.
    strides : tuple of int, one a dimension
        Bytes between neighbours.
    """

    @property
    def array(self) -> Any: ...

    @property
    def strides(self) -> tuple[int, ...]: ...


class Output(NamedTuple):
    """Array that a read fills and returns: one of the caller's, or a new one.

    Attributes
    ----------
    array : array, optional
        Array of the caller, in memory of the backend; None for a new one.
    order : {"C", "F"}
        Memory order of a new array.
    stream : object, optional
        Stream of the caller that used `array` last; see :meth:`Backend.caller_stream`.
    """

    array: Any = None
    order: str = "C"
    stream: Any = None

    def memory(self, backend: Backend, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return the array as memory of `backend`; a new array is uninitialised."""
        if self.array is None:
            return backend.empty(shape, dtype, self.order, self.stream)
        return backend.destination(self.array, shape, dtype, self.stream)

    def filled(self, memory: Memory) -> Any:
        """Return the result of the read: the object of the caller, or the array of `memory`."""
        return memory.array if self.array is None else self.array


NEW = Output()
"""A new array in C order."""


class Layer(NamedTuple):
    """Rows of chunks, and the memory of the array whose elements a write lays over them.

    Attributes
    ----------
    rows : PlanWindow
    source : Memory
    mask : 1-D array of bool, optional
        Which elements of the source are written, in the order of its bytes; None for all. Elements
        of a row lie one behind the other then, in the chunk and in the source, in host memory.
    """

    rows: PlanWindow
    source: Any
    mask: NDArray[np.bool_] | None = None


class Overlay(NamedTuple):
    """Layers over the same chunks, and what is stored of these.

    Attributes
    ----------
    layers : sequence of Layer
        Each has one row for each chunk; a later one is laid over those before it.
    stored : sequence of buffer or None
        Present, encoded contents of each chunk that is not covered whole, in host memory.
    """

    layers: Sequence[Layer]
    stored: Sequence[Buffer | None]


Check = Callable[[Sequence[str], int, Mapping[int, GpustoreError]], None]
"""Function of the keys of some rows, the number of missing ones, and the errors of failed rows."""


FETCHED, CACHED, IN_PLACE = "fetched", "cached", "in place"
"""Sources of the chunks of a read: their values are fetched; or a cache of the device has all of
them, some of which are uploaded or decoded again; or all are copied from where they lie."""


class Chunks(NamedTuple):
    """Chunks of one codec chain that a read needs.

    Attributes
    ----------
    chain : CodecChain
    rows, regions : int
        Number of chunks, and of regions copied from them.
    source : str
        :data:`FETCHED`, :data:`CACHED` or :data:`IN_PLACE`.
    """

    chain: CodecChain
    rows: int
    regions: int
    source: str = FETCHED


class SinkPart(Protocol):
    """Part of a read for one task: takes values, and places their elements in the arrays.

    The host places values before a method returns; a device may do so later.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def arena(self) -> Arena:
        """Return the arena, in host memory, for the next values; earlier ones may lose theirs."""

    def scatter(
        self,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        cached: Any = None,
        *,
        target: int = 0,
    ) -> None:
        """Decode `values`, one a row and None for a missing chunk, into the array `target`.

        `cached` are the chunks of the rows as the backend's :meth:`Backend.chunk_cache` knows them;
        those that are there have no value.
        """

    def copy_regions(
        self,
        regions: CopyWindow,
        first: int,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        cached: Any = None,
    ) -> None:
        """Decode chunks and copy all their regions into the arrays.

        Parameters
        ----------
        regions : CopyWindow
        first : int
            Number of the chunk of the first value among ``regions.chunks``.
        rows : PlanWindow
            The chunks of `values`, refined.
        values : sequence of buffer or None
            Encoded chunks; None is a missing one.
        cached : object, optional
            As for :meth:`scatter`.
        """


Strides = tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]
"""For each array that is filled, the bytes between neighbours in a decoded chunk and in the array,
along each input dimension."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a row table, and where their elements go.

    Attributes
    ----------
    table : RowTable
    strides : Strides
    keys : sequence of str, one a row
    by_element : bool
        Whether elements of regions are gathered one by one.
    box : Box or None
        All rows as a box of chunks that lie on the device, in another order.
    """

    table: RowTable
    strides: Strides
    keys: Sequence[str]
    by_element: bool
    box: Box | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOfTable(TableRows):
    """Values of the rows of a row table, in files that the native core reads.

    Attributes
    ----------
    array : NativeArray
        Made by :func:`~gpustore.backends.native.array.native_files`.
    directory : KeyDirectory
        Directory of the keys.
    fill_missing : bool
        Whether missing chunks are the fill value; otherwise their rows are left.
    is_sharded : bool
        Whether a file has several chunks.
    whole : bool array, one entry a row, or None
        Rows of which the whole value is fetched, the others are left; None for all.
    """

    array: NativeArray
    directory: KeyDirectory
    fill_missing: bool
    is_sharded: bool
    whole: NDArray[np.bool_] | None = None


class StagingPart(SinkPart, Protocol):
    """Part of a read into memory that the native core fills with encoded values."""

    def fill(
        self,
        files: FilesOfTable,
        lo: int,
        hi: int,
        cached: Any = None,
        old: Sequence[int] | Integers = (),
    ) -> list[int]:
        """Fetch the values of rows `lo` to `hi` and take them.

        Parameters
        ----------
        cached : object, optional
            Chunks of the rows as for :meth:`scatter`; those that are there are not fetched.
        old : sequence of int, optional
            Numbers from `lo` on of rows whose cached chunks may not be the stored ones. They are
            left.

        Returns
        -------
        list of int
            Rows that are left: for which the core has no plain answer.
        """


class Sink(Protocol):
    """Decodes the values of one read and places their elements in arrays.

    Attributes
    ----------
    nbytes : int or None
        Most decoded bytes that are given together; None for as many as the kvstore likes.
    """

    @property
    def nbytes(self) -> int | None: ...

    def part(
        self,
        chain: CodecChain,
        *,
        rows: int,
        blocks: tuple[int, ...] = (),
        native: NativeArray | None = None,
    ) -> SinkPart:
        """Make the part of one task.

        Parameters
        ----------
        chain : CodecChain
            Decodes the values.
        rows : int
            Approximate number of values.
        blocks : tuple of int, optional
            Shape of the memory for blocks from which regions are copied, in elements, if
            :attr:`Backend.buffers_blocks`.
        native : NativeArray, optional
            Constants with which the native core decodes values for host memory.
        """

    def staging_parts(
        self,
        chain: CodecChain,
        file_system: Callable[[], int | None],
        file_nbytes: int | None,
    ) -> tuple[Callable[[int], StagingPart], int] | None:
        """Return what makes the part of one task, as :meth:`part`, from its number of values.

        The number beside it is that of the values which have room in staging memory together. None
        if the native core must not fill the parts with values of files of at most `file_nbytes`
        bytes, of the file system whose number `file_system` returns. Both are None if they are not
        known.
        """

    def run(
        self,
        executor: Executor,
        tasks: Sequence[Callable[[], object]],
        result: Callable[[], Any],
        *,
        helped: bool = False,
    ) -> Future[Any]:
        """Run the tasks of the read, which use its parts, then `result`.

        Returns
        -------
        Future
            Resolves with the value of `result`, or that of a Future it returns, when all values are
            in place.
        """

    def defer(
        self,
        executor: Executor,
        tasks: Callable[[], Iterable[Callable[[], object]]],
        result: Callable[[], Any],
    ) -> Future[Any]:
        """Return the Future of a small read, done whole by the thread that asks for the result.

        `tasks` makes the tasks when it is done.
        """


class Backend(Protocol):
    """Moves the elements of chunks between stored bytes and arrays of one memory space."""

    name: str

    device: str
    """Memory space of the arrays: ``"cpu"``, or ``"cuda:N"``."""

    buffers_blocks: bool
    """Value of :attr:`gpustore.planning.block.Block.buffered` for its reads."""

    def part_nbytes(self) -> int | None:
        """Return the least decoded bytes of a task that fetches alone; None for few."""

    def unsupported_reason(self, chain: CodecChain) -> str | None:
        """Return why the host decodes chunks of `chain`, None if a device decodes them."""

    def choose_decoder(
        self, chunks: Sequence[tuple[CodecChain, int]], rule: DecodeRule
    ) -> Choice | None:
        """Choose who decodes a read; None if only one side can, or nothing is to be decoded.

        Parameters
        ----------
        chunks : sequence of (CodecChain, int)
            Number of chunks of the read by their chain, one entry a chunk shape.
        rule : DecodeRule
            Value of the context resource ``gpu_decode_choice``.
        """

    def sink(
        self,
        chunks: Sequence[Chunks],
        fill_value: Any,
        out: Sequence[Memory],
        limits: Limits,
        check: Check,
    ) -> Sink:
        """Make the sink of one read.

        Parameters
        ----------
        chunks : sequence of Chunks
            All chunks of the read.
        fill_value : ndarray
            Value of the elements of missing chunks, or the bytes of a stored record.
        out : sequence of Memory
            Arrays that are filled.
        check : callable
            Called with keys, missing rows and errors of finished work: rows with an error have
            failed, the others are in place. Its exceptions are passed on.
        """

    def chunk_cache(self, pool: DeviceCachePool) -> Any:
        """Return the cache of a pool on this device; None for host memory."""

    def caller_stream(self, stream: Any) -> Any:
        """Return the stream of the caller: `stream`, or the calling thread's if that is None.

        The result names the same stream on any thread; None for host memory, which has none.
        """

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str, stream: Any = None
    ) -> Memory:
        """Allocate an array of undefined contents, in `order` ``"C"`` or ``"F"``.

        Reads write it behind all work that the caller's stream has been given so far.
        """

    def destination(
        self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any = None
    ) -> Memory:
        """Return the memory of an array to fill, behind all work of its stream so far.

        A :meth:`region` is returned as it is.

        Raises
        ------
        MismatchError
            If its shape or data type differs.
        TypeError
            If it is not writable memory of this backend.
        """

    def region(
        self, memory: Any, start: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Memory:
        """Return a region of memory that is filled, which :meth:`destination` takes as well.

        Parameters
        ----------
        memory : Memory
            Result of :meth:`empty` or :meth:`destination`.
        start : int
            Bytes from its element of index zero to that of the region.
        shape, strides : tuple of int
            Elements of the region along each dimension, and bytes between neighbours.
        """

    def source(self, array: Any, domain: IndexDomain, dtype: np.dtype[Any]) -> Memory:
        """Return the memory of an array to write, cast to `dtype` and broadcast to `domain`.

        Raises
        ------
        TypeError
            If the cast is not safe.
        MismatchError
            If the shape does not broadcast.
        """

    def convert(self, elements: Any, convert: Converter, out: Any) -> None:
        """Convert an array of this backend into the memory of another.

        Parameters
        ----------
        elements : array
            Elements in an array of the shape of `out`.
        convert : Converter
            Conversion on the host; a device may compute the same by itself.
        out : Memory
        """

    def downsample(self, elements: Any, job: Downsampling, cells: Cells, out: Any) -> bool:
        """Reduce blocks of an array of this backend, and return whether it did.

        That depends on data type, method and factors alone. The host does what is left:
        :func:`gpustore.backends.host.downsample.downsample`.

        Parameters
        ----------
        elements : array
            Elements of all blocks.
        job : Downsampling
            Method and blocks.
        cells : Cells
            The blocks, and where in `out` their elements go.
        out : Memory
        """

    def place(self, elements: NDArray[Any], out: Any) -> None:
        """Copy a NumPy array into memory of this backend; a device counts it (the host made it)."""

    def to_host(self, elements: Any) -> NDArray[Any]:
        """Return the elements of an array of this backend as a NumPy array in host memory."""

    def elements(self, memory: Any) -> NDArray[Any]:
        """Return the elements of the memory of :meth:`source` as a NumPy array, broadcast."""

    def gather_nbytes(self, memory: Any, limits: Limits) -> int | None:
        """Return the decoded bytes that :meth:`gather` takes at a time from memory of
        :meth:`source`; None where small batches are best.
        """

    def encode_unsupported_reason(self, chain: CodecChain) -> str | None:
        """Return why the host encodes chunks of `chain`, None if a device encodes them."""

    def gather(
        self,
        overlays: Sequence[Overlay],
        chain: CodecChain,
        fill_value: Any,
        limits: Limits,
        *,
        keep_fill: bool,
        decode_rule: DecodeRule = AUTO,
    ) -> list[Buffer | None]:
        """Lay the elements of writes over chunks and encode these.

        Parameters
        ----------
        overlays : sequence of Overlay
            Layers over different chunks.
        keep_fill : bool
            Whether chunks that equal the fill value bit for bit are encoded as well.
        decode_rule : DecodeRule
            Rule that chooses who decodes the stored chunks, where a device could.

        Returns
        -------
        list of buffer or None
            Encoded chunks of all overlays in order, in host memory; None for one that equals the
            fill value.

        Raises
        ------
        CorruptChunkError
            If a stored chunk does not decode; names its key.
        LimitError
            If there is not enough memory for a chunk.
        """
