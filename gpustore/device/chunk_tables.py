"""Tables of all chunks of an array in device memory, for reads of any of them.

They begin with the address of each chunk by number. Chunks that lie there encoded have *entries*
(:mod:`gpustore.device.recording`). A read knows the numbers of its chunks alone: kernels
(``select.cu``) add up how many entries each has, and write the tables of the decoders.

A read of a box of chunks has a kernel compute the numbers, so that nothing is uploaded; others
upload them. Nothing is downloaded: sizes, statuses and checksums are not looked at again, for the
same bytes were found sound when they were decoded first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.device.command_list import CommandList
from gpustore.device.kernels.descriptor import REGION, REGIONS
from gpustore.device.kernels.instance import THREADS_PER_BLOCK
from gpustore.device.own_kernels import OWN_KERNELS
from gpustore.device.protocol import Argument, CodecBatch, Device, Spans, Stream
from gpustore.device.table import Table

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

COLUMNS: Final = 64
"""Form of a table that is a :class:`CodecBatch`'s, for ``select_entries``."""

_WARPS_PER_BLOCK: Final = 8


@dataclass(frozen=True, slots=True)
class Part:
    """Step that decodes chunks, with entries for each.

    Attributes
    ----------
    codec : str or None
        Codec of the streams that are decompressed.
    kernel : (family, expression)
        Kernel that is launched, without a codec.
    form : int
        Form of the table that it reads; see ``select.cu``.
    offset : int
        First byte of the entries of all chunks in the tables.
    longest, most_nbytes : int
        Most bytes of one destination, and of all of a chunk.
    """

    codec: str | None
    kernel: tuple[str, str]
    form: int
    offset: int
    longest: int
    most_nbytes: int


@dataclass(frozen=True, slots=True)
class ChunkTables:
    """Tables of all chunks of an array.

    Attributes
    ----------
    address : int
        Device address of the tables, which begin with the address of each chunk by number, a uint64
        each; 0 for chunks that are decoded to scratch memory.
    parts : tuple of Part
        Steps that decode chunks; none if all are decoded.
    sums : ndarray of uint64, shape (parts, chunks + 1)
        Entries of all chunks before each, and their thread blocks in the high 32 bits.
    sums_offset : int
        First byte of `sums` in the tables.
    pitches : tuple of int
        Bytes of a row in each region of scratch memory.
    output : int
        Region where chunks are decoded to.
    is_encoded : ndarray of bool, shape (chunks,)
        Whether each chunk lies there encoded; of length 0 if none does.
    in_place : ndarray of uint64, shape (chunks,)
        Address of each of these that is used where it lies, otherwise 0.
    """

    address: int
    parts: tuple[Part, ...] = ()
    sums: Words = field(default_factory=lambda: np.zeros((0, 1), np.uint64))
    sums_offset: int = 0
    pitches: tuple[int, ...] = ()
    output: int = 0
    is_encoded: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    in_place: Words = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self.sums.nbytes + self.is_encoded.nbytes + self.in_place.nbytes

    def select(
        self, commands: CommandList, chunks: Integers, numbers: Table | None = None
    ) -> Selection:
        """Return how chunks with these numbers are decoded, with scratch memory for it.

        `numbers` is a table of them; by default a step of the caller writes it.
        """
        regions = np.zeros(REGIONS, REGION)
        written = np.uint64(0)
        if self.parts:
            if numbers is None:
                written = np.uint64(commands.scratch(8 * len(chunks)))
            for k, pitch in enumerate(self.pitches):
                regions[k] = commands.scratch(pitch * len(chunks)), pitch
        return Selection(self, chunks, numbers or written, regions)


@dataclass(frozen=True, slots=True)
class Selection:
    """Decoding of some chunks, row by row.

    Attributes
    ----------
    tables : ChunkTables
    chunks : ndarray of int64, shape (n,)
        Number of the chunk of each row.
    numbers : uint64 or Table
        Device address of the numbers, n int64; 0 if they are not wanted.
    regions : ndarray of REGION
        Scratch memory.
    """

    tables: ChunkTables
    chunks: Integers
    numbers: np.uint64 | Table
    regions: NDArray[np.void]

    @property
    def decoded(self) -> tuple[int, int]:
        """Device address of the first decoded chunk, and bytes from one row to the next."""
        region = self.regions[self.tables.output]
        return int(region["address"]), int(region["pitch"])

    @property
    def addresses(self) -> Words:
        """Device address of each decoded chunk, all of which are encoded."""
        address, pitch = self.decoded
        rows = np.arange(len(self.chunks), dtype=np.uint64) * np.uint64(pitch)
        in_place = self.tables.in_place[self.chunks]
        return np.where(in_place, in_place, rows + np.uint64(address))

    @property
    def encoded(self) -> int:
        """Number of encoded chunks."""
        return int(np.count_nonzero(self.tables.is_encoded[self.chunks]))

    def record(self, commands: CommandList, device: Device, first_chunk: int) -> None:
        """Record the decoding; the step before has written the numbers, less `first_chunk`."""
        tables = self.tables
        if not tables.parts:
            return
        rows, (parts, pitch) = len(self.chunks), tables.sums.shape
        begins = tables.address + tables.sums_offset + 8 * first_chunk
        first = commands.scratch(8 * parts * rows)
        numbers = self.numbers, np.uint32(rows)
        sums = np.uint64(begins), np.uint64(pitch), np.uint64(first)
        commands.launch("select", "gs::first_entries", parts, [*numbers, *sums])
        totals = (tables.sums[:, self.chunks + 1] - tables.sums[:, self.chunks]).sum(axis=1)
        for k, (part, total) in enumerate(zip(tables.parts, totals.tolist())):
            count, blocks = total & 0xFFFFFFFF, total >> 32
            if not count:
                continue
            out = commands.scratch(32 * count)
            places = begins + 8 * k * pitch, first + 8 * k * rows, tables.address + part.offset
            words = [np.uint64(one) for one in places]
            arguments: list[Argument | Table] = [*numbers, *words, np.uint32(count)]
            arguments += [self.regions.view(np.uint8), np.uint32(part.form), np.uint64(out)]
            selecting = -(-count // THREADS_PER_BLOCK)
            commands.launch("select", "gs::select_entries", selecting, arguments)
            if part.codec is None:
                commands.launch(*part.kernel, blocks, [np.uint64(out), np.uint32(count)])
            else:
                sizes = part.longest, part.most_nbytes * rows
                _decompress(commands, device, part.codec, count, out, sizes)


def _decompress(
    commands: CommandList,
    device: Device,
    codec: str,
    count: int,
    table: int,
    sizes: tuple[int, int],
) -> None:
    """Record the decompression of streams whose table an earlier step writes."""
    result = commands.scratch(12 * count)
    if device.codec(codec) is None:
        statuses = np.uint64(result + 8 * count)
        streams = np.uint64(table), np.uint32(count), np.uint64(result), statuses
        commands.launch("lz", OWN_KERNELS[codec], -(-count // _WARPS_PER_BLOCK), streams)
        return
    temp_nbytes = device.decompress_temp_nbytes(codec, count, *sizes)
    temp = commands.scratch(temp_nbytes) if temp_nbytes else 0
    none = Spans.contiguous(0, [])
    batch = CodecBatch(codec, none, none, table, result, temp, temp_nbytes, count)

    def step(stream: Stream, tables: int, results: int) -> None:
        del tables, results
        device.decompress(batch, stream)

    commands.record(step)
