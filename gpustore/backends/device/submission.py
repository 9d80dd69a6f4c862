"""Submissions: values of some chunks of a read, uploaded to a device and decoded together.

1. Threads add *pieces*, values that they have brought into the staging buffer.
2. :meth:`Submission.begin` lets the chain record its steps and the placement its launches, for all
   pieces together, and asks the device for one upload of values and tables, all steps, and one
   download of their results. It waits for nothing.
3. :meth:`Submission.finish` waits for the results and returns the rows that are left to the host:
   those that the chain does not decode on a device, and those that failed there.

Where memory is short all the same, the rows are split in halves, which are asked for one behind the
other; a single row that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.direct_read import Expected
from gpustore.backends.device.piece import (
    CACHED,
    CACHED_ENCODED,
    DECODED,
    ENCODED,
    FAILED,
    MISSING,
    Group,
    Kept,
    Left,
    Piece,
)
from gpustore.backends.device.placement import TablePlaces, place, place_fill
from gpustore.backends.device.recorded_chunks import decode_selected, keep_tables
from gpustore.backends.device.slab import SLAB_ALIGNMENT, EncodedSlab
from gpustore.backends.device.staging_buffer import PART_ALIGNMENT, StagingBuffer, aligned
from gpustore.backends.native.headers import header_reader
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.protocol import Device, Event, PinnedMemoryError, Spans
from gpustore.errors import LimitError
from gpustore.runtime.statistics import STATISTICS

Integers = NDArray[np.int64]

_PATTERN_ROOM_NBYTES = 4096


class _NoRoom(Exception):
    """More tables than there is room for behind the values."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


class Submission:
    """Submission of values to a device, in a staging buffer that it has for itself.

    Parameters
    ----------
    device : Device
    buffer : StagingBuffer
    fill_value : ndarray
        Value of missing elements, or the bytes of a stored record.
    ready : sequence of Event
        Events after which the destinations may be written.
    relieve : callable
        Called with the type of the error if memory is short: gives back what others do not need.
        Returns whether a cache has given memory back.

    Attributes
    ----------
    rows : int
        Number of values, with those that the threads who fill it are expected to add.
    fillers : int
        Number of threads that will add a piece.
    is_closed : bool
        Whether no other thread may join them.
    event : Event or None
        Event behind all work of the submission, once it has begun.
    lacking : type of MemoryError
        Memory that was short when the submission was opened, if its buffer has none.
    """

    lacking: type[MemoryError] = MemoryError

    def __init__(
        self,
        device: Device,
        buffer: StagingBuffer,
        fill_value: Any,
        ready: Sequence[Event],
        relieve: Callable[[type[MemoryError]], bool],
    ) -> None:
        self.buffer = buffer
        self.rows = self.fillers = 0
        self.is_closed = False
        self.pieces: list[Piece] = []
        self._device = device
        self._fill_value = fill_value
        self._ready = ready
        self._relieve = relieve
        self._uploaded = 0
        self._is_queued = False
        self._groups: list[Group] = []
        self._parts: list[tuple[Group, CommandList, int, int]] = []
        self.event: Event | None = None
        self._kept: list[Kept] = []
        self._unkept: list[Kept] = []
        self._keeps = True

    def begin(self) -> None:
        """Queue all work on the device."""
        for ready in self._ready:
            self._device.wait(self.buffer.stream, ready)
        chains: dict[int, list[Piece]] = {}
        for piece in self.pieces:
            chains.setdefault(id(piece.chain), []).append(piece)
        self._groups = [Group(pieces) for pieces in chains.values()]
        for group in self._groups:
            if self._queue_box(group):
                continue
            if group.last_state < FAILED:  # Nor are any cached.
                self._queue(group, np.arange(len(group.state)))
                continue
            is_encoded = group.state == CACHED_ENCODED
            self._queue(group, ((group.state != FAILED) & ~is_encoded).nonzero()[0])
            self._queue(group, is_encoded.nonzero()[0])
        if self._is_queued:
            self.event = self._device.record(self.buffer.stream)

    def _queue_box(self, group: Group) -> bool:
        """Queue the work for a box of cached chunks, for which nothing is uploaded.

        False if the rows are none, or memory is short.
        """
        places = group.places
        if not isinstance(places, TablePlaces) or places.box is None:
            return False
        none = Spans.contiguous(0, [])
        commands = CommandList(self._device, self.buffer.stream, np.zeros(0, np.int64), none)
        try:
            if not places.copy_box(commands, group.chain, self._device):
                return False
            self._run(group, commands)
        except MemoryError:
            return False
        finally:
            commands.release()
        return True

    def _queue(self, group: Group, rows: Integers) -> None:
        """Queue the work for some rows of a group; of halves of them if memory is short."""
        if not len(rows):
            return
        try:
            while not self._try(group, rows):
                self._drop_unkept()
        except MemoryError as error:
            may_succeed = self._relieve(type(error))
            self._device.synchronize(self._device.record(self.buffer.stream))
            self._keeps = False
            self._drop_unkept()
            if may_succeed:
                self._queue(group, rows)
                return
            if len(rows) > 1:
                for half in np.array_split(rows, 2):
                    self._queue(group, half)
                return
            group.fail(int(rows[0]), too_large(group.chain, self._device.name, type(error)))

    def _drop_unkept(self) -> None:
        """Let go of memory for chunks that came to nothing, after waiting for the stream."""
        unkept, self._unkept = self._unkept, []
        for one in unkept:
            one.let_go()

    def _try(self, group: Group, rows: Integers) -> bool:
        """Queue the work for some rows; False if the buffer had to grow for their tables first."""
        used = self.buffer.used
        commands: CommandList | None = None
        kept: list[Kept] = []
        try:
            commands = self._recorded(group, rows, kept)
            self._run(group, commands)
            self._kept += kept
            kept = []
        except _NoRoom as lacking:
            nbytes = self.buffer.used - used + PART_ALIGNMENT + lacking.nbytes
            self.buffer.used = used
            if commands is not None:
                commands.release()
                commands = None
            self.buffer.grow(nbytes)
            self._uploaded = 0
            return False
        finally:
            if commands is not None:
                commands.release()
            # Their memory is in use until the stream has come this far.
            self._unkept += kept
        return True

    def _recorded(self, group: Group, rows: Integers, kept: list[Kept]) -> CommandList:
        """Record the decoding and the placement of some rows, and what is kept of them."""
        buffer, chain = self.buffer, group.chain
        places = group.places
        state, start, nbytes, known = group.state, group.start, group.nbytes, group.known
        if len(rows) < len(state):
            state = state[rows]
        encoded, decoded, missing, cached = rows, rows[:0], rows[:0], rows[:0]
        if group.last_state > ENCODED:
            encoded, decoded, missing, cached = _of_states(rows, state)
        if len(encoded) < len(start):
            start, nbytes = start[encoded], nbytes[encoded]
            known = None if known is None else known.take(encoded)
        if state[0] == CACHED_ENCODED:
            selected = decode_selected(self._device, buffer, group, rows)
            if selected is not None:
                return selected
        base = buffer.address(0)
        fill = self._fill_element(group) if len(missing) else None
        found = None
        if state[0] == CACHED_ENCODED:  # And so are all others.
            found = group.in_slabs(rows)
            none = Spans.contiguous(0, [])
            commands = CommandList(
                *(self._device, buffer.stream, found.rows, none, None, found.headers),
                room=buffer.table_room,
            )
        else:
            here = None
            if not buffer.has_end:
                here = EncodedColumns(buffer.data, start, nbytes, header_reader(), known)
            commands = CommandList(
                self._device,
                buffer.stream,
                encoded,
                Spans((base + start).view(np.uint64), nbytes.view(np.uint64)),
                here,
                room=buffer.table_room,
            )
        try:
            if found is not None:
                commands.values = found.on_device(commands)
            copied = self._copy_encoded(commands, group, kept) if len(encoded) else None
            self._check_checksums(group, commands)
            if chain.is_raw:
                chain.check_device(commands)
            elif len(commands):
                chain.decode_device(commands, self._device)
            stored = chain.layout.dtype
            some, chunks = commands.rows, commands.values.address
            if len(decoded):
                begin = (base + group.start[decoded]).view(np.uint64)
                if len(some):
                    some, begin = np.concatenate((some, decoded)), np.concatenate((chunks, begin))
                else:
                    some = decoded
                chunks = begin
            if copied is not None:
                self._keep_encoded(commands, copied)
                self._keep(commands, group, decoded, chunks[len(commands) :], kept)
            elif len(encoded) or len(decoded):
                self._keep(commands, group, some, chunks, kept)
            if len(cached):
                found = group.in_slabs(cached)
                some = np.concatenate((some, found.rows))
                chunks = np.concatenate((chunks, found.on_device(commands).address))
            is_all = some is rows and len(rows) == len(group.state)
            place(commands, places, None if is_all else some, chunks, stored)
            if fill is not None:
                self._fill(commands, group, missing, *fill)
        except BaseException:
            commands.release()
            raise
        return commands

    def _keep(
        self,
        commands: CommandList,
        group: Group,
        rows: Integers,
        chunks: NDArray[np.uint64],
        kept: list[Kept],
    ) -> None:
        """Record the copy of decoded chunks to a cache, of as many as it has room for."""
        cached = group.pieces[0].cached
        if cached is None or not len(rows) or not self._keeps:
            return
        nbytes = group.chain.layout.nbytes
        pitch = -(-nbytes // SLAB_ALIGNMENT) * SLAB_ALIGNMENT
        count = min(len(rows), cached.cache.limit // max(1, pitch))
        slab = None
        while nbytes and count and slab is None:
            slab = cached.cache.reserve(count * pitch, self.buffer.stream)
            count = count if slab is not None else count // 2
        if slab is None:
            return
        position = slab.start + pitch * np.arange(count)
        sizes = np.full(count, nbytes, np.int64)
        kept.append(Kept(group, rows[:count], cached.cache, slab, position, sizes))
        slab.copy(commands, chunks[:count], position, sizes)

    def _copy_encoded(self, commands: CommandList, group: Group, kept: list[Kept]) -> Kept | None:
        """Record the copy of encoded chunks to a cache that keeps them so; None without one."""
        cached = group.pieces[0].cached
        if cached is None or not cached.cache.keeps_encoded or group.chain.is_raw:
            return None
        pitch = -(-commands.values.nbytes.astype(np.int64) // SLAB_ALIGNMENT) * SLAB_ALIGNMENT
        slab = None
        if self._keeps and len(commands):
            slab = cached.cache.reserve(max(SLAB_ALIGNMENT, int(pitch.sum())), self.buffer.stream)
        if slab is None:
            none: Integers = np.zeros(0, np.int64)
            return Kept(group, none, cached.cache, None, none, none)
        position = slab.start + np.cumsum(pitch) - pitch
        sizes = commands.values.nbytes.astype(np.int64)
        copied = Kept(group, commands.rows, cached.cache, slab, position, sizes)
        kept.append(copied)
        slab.copy(commands, commands.values.address, position, sizes)
        return copied

    def _keep_encoded(self, commands: CommandList, copied: Kept) -> None:
        """Note which of the copied chunks the device decodes, and their headers."""
        if copied.slab is None:
            return
        copied.take(np.isin(copied.rows, commands.rows))
        encoded = EncodedSlab(copied.position, copied.sizes, commands.headers)
        if not copied.cache.describe(copied.slab, encoded):
            copied.take(np.zeros(len(copied.rows), np.bool_))

    def _put_entries(self, left: Mapping[int, Sequence[Integers]]) -> None:
        """Make entries of the chunks that were verified, and of those that are not stored."""
        for kept in self._kept:
            failed = np.concatenate([np.zeros(0, np.int64), *left.get(id(kept.group), ())])
            kept.take(~np.isin(kept.rows, failed))
            for piece, some, chosen in kept.group.by_piece(kept.rows):
                assert piece.cached is not None
                if kept.cache.put(piece.cached, some, kept.slab, kept.position[chosen]):
                    STATISTICS.add(device_cache_bytes=int(kept.sizes[chosen].sum()))
        for piece in self.pieces:
            cached = piece.cached
            if cached is not None:
                rows = np.flatnonzero((piece.state == MISSING) & ~cached.is_known)
                cached.cache.put(cached, rows, None, np.zeros(len(rows), np.int64))
        self._let_go()

    def _let_go(self) -> None:
        """Leave the memory for chunks to the caches; nothing on the device uses it any more."""
        kept, self._kept = self._kept, []
        self._unkept += kept
        self._drop_unkept()

    def _fill_element(self, group: Group) -> tuple[bytes, int]:
        """Put the element of missing chunks in front of the tables; return it and its address."""
        pattern = self._pattern(group)
        at = self.buffer.reserve_table(len(pattern))
        if at is None:
            raise _NoRoom(len(pattern) + _PATTERN_ROOM_NBYTES)
        self.buffer.view(at, len(pattern))[:] = pattern
        return pattern, self.buffer.address(at)

    def _fill(
        self, commands: CommandList, group: Group, missing: Integers, pattern: bytes, address: int
    ) -> None:
        """Record the fill of the elements of missing rows."""
        if self._is_record(group):
            chunks = np.full(len(missing), address, np.uint64)
            place(commands, group.places, missing, chunks, group.chain.layout.dtype)
        else:
            place_fill(commands, group.places, missing, pattern, address)

    def _check_checksums(self, group: Group, commands: CommandList) -> None:
        """Record the comparison of the checksums of values that went straight to the device."""
        expected: list[Expected] = []
        for piece in group.pieces:
            if piece.direct is not None:
                expected += piece.direct.expected
        if not expected:
            return
        # A checksum is that of values that were read together; the first of them stands for all.
        row_at = dict(zip(group.start[commands.rows].tolist(), commands.rows.tolist()))
        wanted = [one for one in expected if one.start in row_at]
        commands.checksum(
            "crc32",
            Spans(
                np.array([self.buffer.address(one.start) for one in wanted], np.uint64),
                np.array([one.nbytes for one in wanted], np.uint64),
            ),
            np.array([one.crc32 for one in wanted], np.uint32),
            np.array([row_at[one.start] for one in wanted], np.int64),
        )

    def _is_record(self, group: Group) -> bool:
        """Whether the fill value is the bytes of a stored record."""
        dtype: np.dtype[Any] = self._fill_value.dtype
        return dtype.type is np.void and dtype.itemsize == group.chain.layout.record

    def _pattern(self, group: Group) -> bytes:
        """Return the bytes that fill missing rows: an element, or a chunk of records."""
        layout = group.chain.layout
        if self._is_record(group):
            record: bytes = self._fill_value.tobytes()
            return record * (layout.nbytes // layout.record)
        return bytes(np.asarray(self._fill_value, group.places.dtype).tobytes())

    def _run(self, group: Group, commands: CommandList) -> None:
        """Upload what was not, and queue the steps."""
        device, buffer = self._device, self.buffer
        stream = buffer.stream
        if not commands.launches:
            self._parts.append((group, commands, 0, 0))
            return
        result_nbytes, table_nbytes = commands.result_nbytes, commands.table_nbytes
        needed = aligned(table_nbytes) + result_nbytes
        tables = buffer.reserve_table(needed)
        if tables is None:
            raise _NoRoom(needed)
        commands.write_tables()
        end, results = tables + table_nbytes, tables + aligned(table_nbytes)
        first, here = self._uploaded, buffer.address(results)
        counts = {"copies": 0, "launches": commands.launches}
        if end > first:
            device.upload(buffer.pinned, first, buffer.address(first), end - first, stream)
            counts |= {"copies": 1, "bytes_to_device": end - first}
        self._uploaded = buffer.used
        self._is_queued = True
        commands.run(buffer.address(tables), here)
        if result_nbytes:
            device.download(here, buffer.pinned, results, result_nbytes, stream)
            counts["copies"] += 1
            counts["bytes_to_host"] = result_nbytes
        STATISTICS.add(**counts)
        self._parts.append((group, commands, results, result_nbytes))

    @property
    def is_whole(self) -> bool:
        """Whether no row is known to be left to the host, or to have failed."""
        for _, commands, *_ in self._parts:
            if commands.fallbacks:
                return False
        return not any([piece.errors for piece in self.pieces])

    def synchronize(self) -> None:
        """Wait until all work has run on the device."""
        if self.event is not None:
            self._device.synchronize(self.event)

    def finish(self) -> list[Left]:
        """Wait for the results; return the rows that are left to the host."""
        waits = retries = decoded = 0
        if self.event is not None:
            self.synchronize()
            waits = 1
        left: dict[int, list[Integers]] = {}
        for group, commands, results, nbytes in self._parts:
            found = dict(commands.fallbacks)
            failed: dict[int, str] = {}
            if nbytes:
                failed = commands.failures(self.buffer.view(results, nbytes))
                found.update(failed)
                retries += len(failed)
            if not group.chain.is_raw:
                decoded += max(0, len(commands) - len(failed))
            if found:
                left.setdefault(id(group), []).append(np.array(list(found), np.int64))
        self._parts = []
        STATISTICS.add(waits=waits, retries=retries, chunks_decoded_device=decoded)
        self._put_entries(left)
        if left:
            self._fetch_direct()
        pairs = [(group, left[id(group)]) for group in self._groups if id(group) in left]
        every = [one for group, rows in pairs for one in self._left(group, np.concatenate(rows))]
        self._download_cached(every)
        self._keep_tables()
        return [one for one in every if len(one.rows)]

    def _keep_tables(self) -> None:
        """Keep tables of all chunks on the device, once all of an array are there.

        The staging buffer is of no more use: results and values left to the host were taken out.
        """
        for group in self._groups:
            keep_tables(self._device, self.buffer, group, self._fill_chunk, self._unkept)
            self._drop_unkept()

    def _fill_chunk(self, group: Group) -> bytes | None:
        """Return a chunk of fill values as it is decoded; None for parts of records."""
        layout = group.chain.layout
        if self._is_record(group):
            return self._pattern(group)
        if not layout.is_dense:
            return None
        element = np.asarray(self._fill_value, layout.dtype).tobytes()
        return element * (layout.nbytes // len(element))

    def _left(self, group: Group, rows: Integers) -> list[Left]:
        found = []
        for lo, hi, piece in zip(group.edges, group.edges[1:], group.pieces):
            some = np.sort(rows[(rows >= lo) & (rows < hi)] - lo)
            some = np.array([row for row in some.tolist() if row not in piece.errors], np.int64)
            if not len(some):
                continue
            places = zip(piece.start[some].tolist(), piece.nbytes[some].tolist())
            values = [bytes(self.buffer.view(start, nbytes)) for start, nbytes in places]
            found.append(Left(piece, some, values))
        return found

    def _download_cached(self, left: Sequence[Left]) -> None:
        """Copy encoded chunks of a cache to the host; those for which memory is short fail."""
        for one in left:
            rows = np.flatnonzero(one.piece.state[one.rows] == CACHED_ENCODED)
            if not len(rows):
                continue
            found = Group([one.piece]).in_slabs(one.rows[rows])
            columns = found.rows, found.position, found.nbytes, found.owner
            for number, start, nbytes, owner in zip(*(column.tolist() for column in columns)):
                at = int(np.searchsorted(one.rows, number))
                pinned = found.slabs[owner].pinned
                if pinned is not None:
                    one.values[at] = bytes(pinned.view[start : start + nbytes])
                    continue
                value = self._downloaded(start, nbytes)
                if value is None:
                    one.piece.fail(number, too_large(one.piece.chain, self._device.name))
                    one.rows = np.delete(one.rows, at)
                    del one.values[at]
                else:
                    one.values[at] = value

    def _downloaded(self, address: int, nbytes: int) -> bytes | None:
        """Copy bytes of a cache to the host; None if memory is short and nobody has any to give."""
        is_relieved = False
        while True:
            try:
                value = self.buffer.downloaded(address, nbytes)
            except MemoryError as error:
                if not self._relieve(type(error)) and is_relieved:
                    return None
                is_relieved = True
            else:
                STATISTICS.add(copies=1, waits=1, bytes_to_host=nbytes)
                return value

    def _fetch_direct(self) -> None:
        """Copy bytes that only the device has to the host, and compare their checksums.

        A buffer that has grown has copied them before.
        """
        if self.buffer.has_end:
            self.buffer.download_end()
        for piece in self.pieces:
            if piece.direct is None:
                continue
            for whole, found in piece.direct.damaged():
                inside = (piece.start >= whole.start) & (piece.start < whole.start + whole.nbytes)
                for row in np.flatnonzero(inside).tolist():
                    piece.errors[row] = whole.error(found)

    def give_up(self) -> None:
        """Wait until none of its work runs any more. May be called again."""
        self._parts = []
        if self.buffer.nbytes:
            self._device.synchronize(self._device.record(self.buffer.stream))
        self._let_go()


def _of_states(rows: Integers, state: NDArray[np.uint8]) -> list[Integers]:
    """Return the encoded, decoded, missing and cached ones of some rows."""
    counts = np.bincount(state, minlength=CACHED_ENCODED + 1).tolist()
    return [
        rows if counts[wanted] == len(rows) else rows[state == wanted]
        for wanted in (ENCODED, DECODED, MISSING, CACHED)
    ]


def too_large(
    chain: CodecChain, device: str, lacking: type[MemoryError] = MemoryError
) -> LimitError:
    """Return the error for a chunk for which there is not enough memory, of the device or pinned.

    `lacking` is the type of the error that says which.
    """
    where = "the pinned memory for" if lacking is PinnedMemoryError else "the free memory of"
    return LimitError(
        f"A chunk of {chain.layout.nbytes} bytes does not fit in {where} device "
        f'{device} while it is decoded; free some, or open with device="cpu"'
    )
