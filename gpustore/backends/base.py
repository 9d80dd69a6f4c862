"""The seam between pipelines and memory: what every backend offers.

A backend owns arrays in one memory space. To read is to decode the values of a window and to put
their elements where they belong: at once (:class:`AtOnce`), or while the next values are fetched
(:class:`Flight`). :meth:`Backend.gather` does the reverse. All work on whole windows, so that a
device can launch one kernel for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.chain import CodecChain
from gpustore.data_types.conversion import Converter
from gpustore.errors import GpustoreError
from gpustore.index_space import IndexDomain
from gpustore.kvstores.arena import Arena
from gpustore.planning.copy_plan import CopyWindow
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.limits import Limits


class Memory(Protocol):
    """An array a backend reads from or writes to.

    Attributes
    ----------
    array : object
        The array as the user holds it; it must stay alive as long as this object.
    strides : tuple of int, one a dimension
        Bytes between neighbours.
    """

    @property
    def array(self) -> Any: ...

    @property
    def strides(self) -> tuple[int, ...]: ...


Check = Callable[[PlanWindow, list[Buffer | None], dict[int, GpustoreError]], None]


class Flight(Protocol):
    """Values on their way into one array. A context manager: leaving it waits for the device.

    Attributes
    ----------
    nbytes : int
        Decoded bytes that should be given at once.
    """

    nbytes: int

    def __enter__(self) -> Flight: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def arena(self) -> Arena:
        """Memory for the values that are given next."""

    def scatter(
        self, rows: PlanWindow, values: Sequence[Buffer | None], fill_value: Any, out: Any
    ) -> None:
        """Begin what :meth:`AtOnce.scatter` does."""

    def cut(
        self,
        pieces: CopyWindow,
        first: int,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        fill_value: Any,
        out: Sequence[Any],
    ) -> None:
        """Begin to decode values and to copy all pieces of them to where they belong.

        Parameters
        ----------
        pieces : CopyWindow
            Of a plan whose block is ``direct``.
        first : int
            Number of the chunk of the first value in it.
        out : sequence of Memory
            The array of each target.
        """

    def finish(self) -> None:
        """Wait until all values are in place."""


class AtOnce(Protocol):
    """Values are in their places when a method returns."""

    def scatter(
        self,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        chain: CodecChain,
        fill_value: Any,
        out: Memory,
    ) -> dict[int, GpustoreError]:
        """Decode `values`, one a row (None: a missing chunk), into `out`.

        Returns
        -------
        dict
            The error of each row that failed; the others are in place.
        """

    def cut(
        self, block: Memory, pieces: CopyWindow, lo: int, hi: int, out: Sequence[Memory]
    ) -> None:
        """Copy pieces `lo` to `hi` to where they belong.

        Parameters
        ----------
        block : Memory
            Blocks in C order, one after the other, of the data type of the arrays.
        pieces : CopyWindow
        out : sequence of Memory
            The array of each target.
        """


class Backend(Protocol):
    """How the elements of chunks move between stored bytes and arrays."""

    name: str

    device: str
    """Where its arrays live: ``"cpu"``, or ``"cuda:N"``."""

    defers: bool
    """Whether a small read may run on whoever asks for its result."""

    def sub_batch_nbytes(self, limits: Limits) -> int | None:
        """Decoded bytes that a device takes together; None where few at once are best."""

    def unsupported_reason(self, chain: CodecChain) -> str | None:
        """Return why the host decodes chunks of `chain`, None if a device decodes them."""

    @property
    def at_once(self) -> AtOnce | None:
        """What reads where there is no :meth:`flight`."""

    def flight(
        self, chain: CodecChain, rows: int, limits: Limits, check: Check, *, pieces: int = 0
    ) -> Flight | None:
        """What a task that reads `rows` rows has on its way, and cuts `pieces` pieces from them.

        Parameters
        ----------
        check : callable
            Called with rows, values and errors of what is done, by the methods of the flight.
        """

    def caller_stream(self, stream: Any) -> Any:
        """The stream of the caller: `stream`, or the calling thread's if that is None.

        What it returns stands for the same stream on any thread. Host memory has no streams.
        """

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str, stream: Any = None
    ) -> Memory:
        """A new array of undefined contents, in `order` ``"C"`` or ``"F"``.

        What is read into it is written behind everything asked of the caller's stream so far.
        """

    def destination(
        self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any = None
    ) -> Memory:
        """The memory of an array the caller wants filled, behind what its stream was asked for.

        Raises
        ------
        MismatchError
            If its shape or data type differs.
        TypeError
            If it is not writable memory of this backend.
        """

    def source(self, array: Any, domain: IndexDomain, dtype: np.dtype[Any]) -> Memory:
        """The memory of an array to be written, cast to `dtype` and broadcast to `domain`.

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
            Of the shape of `out`.
        convert : Converter
            What the host does; a device may do the same by itself.
        out : Memory
        """

    def to_host(self, elements: Any) -> NDArray[Any]:
        """The elements of an array of this backend as a NumPy array."""

    def gather(
        self,
        rows: PlanWindow,
        stored: Sequence[Buffer | None],
        chain: CodecChain,
        fill_value: Any,
        source: Memory,
        *,
        keep_fill: bool,
    ) -> list[Buffer | None]:
        """Lay the elements of `source` over the chunks and encode them.

        Parameters
        ----------
        stored : sequence of buffer or None
            The present, encoded contents of each chunk that is not covered whole.
        keep_fill : bool
            Encode chunks that equal the fill value bit for bit too.

        Returns
        -------
        list of buffer or None
            The encoded chunks; None where the chunk equals the fill value.

        Raises
        ------
        CorruptChunkError
            If a stored chunk does not decode; names its key.
        """
