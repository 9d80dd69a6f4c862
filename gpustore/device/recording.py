"""Recordings of how all chunks of an array are decoded, for reads of any of them.

The chunks lie encoded in the memory of a device and have been decoded before, so nothing that a
later read needs is unknown:

1. A codec chain records its steps for all chunks once, in a :class:`Recording`. Its scratch memory
   is none: the steps are kept as *entries*, one for each stream or block, whose addresses are
   places in a *region*, memory of a read with as many bytes for each of its rows.
2. :meth:`Recording.tables` are the entries of all chunks by number. They are uploaded once, and a
   read takes those of its chunks from there (:mod:`gpustore.device.chunk_tables`).

Sizes, statuses and checksums are not looked at: the chunks have passed these tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpustore.device.chunk_tables import COLUMNS, ChunkTables, Integers, Part, Words
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.descriptor import BYTE_RANGE, MAX_ITEMS, REGIONS, SHUFFLED_BLOCK
from gpustore.device.protocol import Argument, Device, Spans, Stream
from gpustore.device.table import PART_ALIGNMENT, Result, Table, TableLaunch, aligned

_IN_REGION: Final = 1 << 62
_SHIFT: Final = 56
_OFFSET: Final = (1 << _SHIFT) - 1
"""Places in regions: a bit that no address has, the number of the region, and an offset."""

_FORMS: Final = {BYTE_RANGE: 0, SHUFFLED_BLOCK: 32}


class NotRecorded(Exception):
    """A step that cannot be recorded for chunks that are not known."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Step of a recording, with its entries for all chunks.

    Attributes
    ----------
    codec : str or None
        Codec of the streams that are decompressed.
    kernel : (family, expression)
        Kernel that is launched, without a codec.
    form : int
        Form of the table that it reads.
    entries : ndarray of uint64, shape (n, 4)
        Address of source and destination, bytes or elements, last word, by ascending owner.
    owner : ndarray of int64, shape (n,)
        Number of the chunk of each.
    blocks : ndarray of int64, shape (n,)
        Thread blocks of each.
    nbytes : ndarray of int64, shape (n,)
        Bytes of each destination.
    """

    codec: str | None
    kernel: tuple[str, str]
    form: int
    entries: Words
    owner: Integers
    blocks: Integers
    nbytes: Integers

    def placed(self, low: Integers) -> Words:
        """Return the entries with offsets from the first place of each chunk in each region."""
        entries = self.entries.copy()
        for column in (entries[:, 0], entries[:, 1]):
            (inside,) = (column >= _IN_REGION).nonzero()
            some = column[inside]
            column[inside] = some - low[_place(some)[0], self.owner[inside]].view(np.uint64)
        if self.form != COLUMNS:
            entries.view(np.uint32)[:, 6 + self.form // 32] = np.cumsum(self.blocks) - self.blocks
        return entries


class Recording(CommandList):
    """Command list of chunks whose steps are kept, and run for some of them later.

    Parameters
    ----------
    device : Device
    stream : Stream
        Not used.
    numbers : ndarray of int64, shape (n,)
        Numbers of the chunks.
    values : Spans, length n
        Places of the encoded chunks on the device.
    headers : Headers, length n, optional
        Their headers.

    Raises
    ------
    NotRecorded
        By steps other than decompression, copies and shuffles, while codecs record them.
    """

    looks_at_tables = True
    __slots__ = ("_kept", "_known", "_regions")

    def __init__(
        self, device: Device, stream: Stream, numbers: Integers, values: Spans, headers: Any
    ) -> None:
        super().__init__(device, stream, numbers, values, None, headers)
        self._regions = 0
        self._known = [(values.address, numbers)]
        self._kept: list[_Step] = []

    def scratch(self, nbytes: int) -> int:
        """Return the first place of a new region."""
        if self._regions == REGIONS:
            raise NotRecorded
        self._regions += 1
        return _IN_REGION | (self._regions - 1) << _SHIFT

    def guard(self, origin: int, around: Spans, rows: Integers, sets: int = 1) -> None:
        """Guard nothing: a decoder that has kept to its output before does so again."""
        if sets > 1:
            raise NotRecorded  # A region has one output of each chunk.

    def checksum(
        self, name: str, src: Spans, expected: NDArray[np.uint32], rows: Integers | None = None
    ) -> None:
        """Do nothing: the bytes have been compared."""

    def check_bits(self, illegal: bytes) -> None:
        """Do nothing: the elements have been looked at."""

    def launch_tables(self, launches: Sequence[TableLaunch]) -> None:
        """Keep launches of copies and shuffles."""
        for one in launches:
            form = _FORMS.get(one.table.dtype)
            if form is None or one.arguments or one.offsets is not None:
                raise NotRecorded
            entries = np.ascontiguousarray(one.table).view(np.uint64).reshape(-1, 4)
            ends = np.append(one.table["first_tile"][1:].astype(np.int64), one.blocks)
            blocks = ends - one.table["first_tile"]
            nbytes = entries[:, 2].view(np.int64)
            if form:
                nbytes = nbytes * one.table["typesize"]
            kernel = one.family, one.expression
            self._keep(None, kernel, form, entries, self._owners(entries[:, 0]), blocks, nbytes)

    def decompress(
        self,
        codec: str,
        src: Spans,
        dst: Spans,
        rows: Integers | None = None,
        table: Table | None = None,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        """Keep the decompression of streams, if the device does not want to know them."""
        del table, sizes
        known = self._device.codec(codec)
        if known is not None and not known.reads_table:
            raise NotRecorded
        entries = np.stack((src.address, dst.address, src.nbytes, dst.nbytes), axis=1)
        owner = self.rows if rows is None else rows
        none = np.zeros(len(src), np.int64)
        self._keep(codec, ("", ""), COLUMNS, entries, owner, none, dst.nbytes.view(np.int64))

    def launch(
        self,
        family: str,
        expression: str,
        blocks: int,
        arguments: Sequence[Argument | Table | Result],
    ) -> NoReturn:
        """Refuse other launches."""
        raise NotRecorded

    def result(self, nbytes: int, check: object) -> NoReturn:
        """Refuse what has to be looked at."""
        raise NotRecorded

    def record(self, step: object) -> NoReturn:
        """Refuse other steps."""
        raise NotRecorded

    def _owners(self, address: Words) -> Integers:
        """Return the number of the chunk to which each source belongs."""
        starts = np.concatenate([start for start, _ in self._known])
        owners = np.concatenate([owner for _, owner in self._known])
        order = np.argsort(starts, kind="stable")
        found: Integers = owners[order[np.searchsorted(starts[order], address, "right") - 1]]
        return found

    def _keep(
        self,
        codec: str | None,
        kernel: tuple[str, str],
        form: int,
        entries: Words,
        owner: Integers,
        blocks: Integers,
        nbytes: Integers,
    ) -> None:
        self._known.append((entries[:, 1], owner))
        order = np.argsort(owner, kind="stable")
        columns = owner[order], blocks[order], nbytes[order]
        self._kept.append(_Step(codec, kernel, form, entries[order], *columns))

    def tables(self, address: Words) -> tuple[ChunkTables, NDArray[np.uint8]]:
        """Return what is kept of all chunks of an array.

        Parameters
        ----------
        address : ndarray of uint64, shape (chunks,)
            Device address of each chunk that is not of the list. That of the others is set: 0 for
            those that are decoded to scratch memory.

        Returns
        -------
        ChunkTables
        ndarray of uint8
            Their content, which begins with the addresses.
        """
        count = len(address)
        shape = max(1, self._regions), count
        low, high = np.full(shape, _OFFSET, np.int64), np.zeros(shape, np.int64)
        for step in self._kept:
            region, begin = _place(step.entries[:, 1])
            np.minimum.at(low, (region, step.owner), begin)
            np.maximum.at(high, (region, step.owner), begin + step.nbytes)
        address[self.rows], output = self._outputs(low)
        sums: Words = np.zeros((len(self._kept), count + 1), np.uint64)
        contents = [address, sums]
        offset = aligned(address.nbytes) + aligned(sums.nbytes)
        parts = []
        for of_chunks, step in zip(sums, self._kept):
            if max(len(step.owner), int(step.blocks.sum())) > MAX_ITEMS:
                raise NotRecorded
            words = 1 + (step.blocks << 32)
            np.add.at(of_chunks, step.owner + 1, words.view(np.uint64))
            np.cumsum(of_chunks, out=of_chunks)
            longest, most = int(step.nbytes.max()), int(np.bincount(step.owner, step.nbytes).max())
            parts.append(Part(step.codec, step.kernel, step.form, offset, longest, most))
            contents.append(step.placed(low))
            offset += contents[-1].nbytes
        content = np.zeros(offset, np.uint8)
        end = 0
        for one in contents:
            content[end : end + one.nbytes] = one.reshape(-1).view(np.uint8)
            end = aligned(end + one.nbytes)
        is_encoded = np.zeros(count, np.bool_)
        is_encoded[self.rows] = True
        pitches = [aligned(max(0, n)) for n in (high - low).max(axis=1, initial=0).tolist()]
        tables = ChunkTables(0, tuple(parts), sums, aligned(address.nbytes), tuple(pitches), output)
        return replace(tables, is_encoded=is_encoded, in_place=address), content

    def _outputs(self, low: Integers) -> tuple[Words, int]:
        """Return the address of each decoded chunk, 0 in scratch memory, and the region there."""
        address, output = self.values.address.copy(), 0
        (inside,) = (address >= _IN_REGION).nonzero()
        if len(inside):
            region, begin = _place(address[inside])
            output = int(region[0])
            if (region != output).any() or (begin != low[output, self.rows[inside]]).any():
                raise NotRecorded
            address[inside] = 0
        if (address & np.uint64(PART_ALIGNMENT - 1)).any():
            raise NotRecorded  # Behind a header: copies want chunks to be aligned.
        return address, output


def _place(address: Words) -> tuple[Integers, Integers]:
    """Return the region of each place, and its offset there."""
    places = address.view(np.int64)
    return places >> _SHIFT & (REGIONS - 1), places & _OFFSET
