"""Tables of the chunks that a cache has, for all reads of an array.

They are the addresses of the decoded chunks, what a codec chain records for encoded ones, and one
chunk of fill values for all that are not stored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.cell_table import MISSING
from gpustore.backends.device.chunk_cache import Entries
from gpustore.backends.device.piece import Group, Kept
from gpustore.backends.device.placement import place
from gpustore.backends.device.slab import CachedRows
from gpustore.backends.device.staging_buffer import StagingBuffer
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.chunk_tables import ChunkTables
from gpustore.device.command_list import CommandList
from gpustore.device.protocol import Device, Spans, Stream
from gpustore.device.recording import NotRecorded, Recording
from gpustore.device.table import aligned
from gpustore.planning.chunk_grid import Integers


def keep_tables(
    device: Device,
    buffer: StagingBuffer,
    group: Group,
    fill_chunk: Callable[[Group], bytes | None],
    held: list[Kept],
) -> None:
    """Upload the tables of an array, through a buffer of which nothing is used any more.

    Nothing is done unless a cache has all chunks on the device, and room for the tables.

    Parameters
    ----------
    fill_chunk : callable
        Returns a chunk of fill values as it is decoded; None if there is no such.
    held : list of Kept
        Gets the memory of the tables, in use until the stream of the buffer has come this far.
    """
    cached = group.pieces[0].cached
    entries = None if cached is None else cached.cache.entries(cached)
    if cached is None or entries is None or not buffer.nbytes:
        return
    missing = entries.numbers[entries.slab == MISSING]
    chunk = fill_chunk(group) if len(missing) else b""
    made = _tables_of(device, buffer.stream, group.chain, entries)
    if made is None or chunk is None:
        return
    tables, content = made
    slab = cached.cache.reserve_left(len(content) + len(chunk), buffer.stream, tables.nbytes)
    if slab is None:
        return
    none: Integers = np.zeros(0, np.int64)
    held.append(Kept(group, none, cached.cache, slab, none, none))
    content.view(np.uint64)[missing] = slab.start + len(content)
    content = np.concatenate((content, np.frombuffer(chunk, np.uint8)))
    buffer.upload_bytes(content.data, slab.start)
    cached.cache.put_tables(cached, slab, tables, entries.changes)


def decode_selected(
    device: Device, buffer: StagingBuffer, group: Group, rows: Integers
) -> CommandList | None:
    """Record the decoding of rows of encoded chunks, and the copies, by the tables of their array.

    None without these, or if the device is not to decode the chunks.
    """
    tables = group.tables
    if tables is None or group.chain.unsupported_reason(device) is not None:
        return None
    none = Spans.contiguous(0, [])
    commands = CommandList(device, buffer.stream, rows, none, room=buffer.table_room)
    try:
        numbers = group.numbers(rows)
        selection = tables.select(commands, numbers, commands.table(numbers))
        selection.record(commands, device, 0)
        some = None if len(rows) == len(group.state) else rows
        place(commands, group.places, some, selection.addresses, group.chain.layout.dtype)
    except BaseException:
        commands.release()
        raise
    return commands


def _tables_of(
    device: Device, stream: Stream, chain: CodecChain, entries: Entries
) -> tuple[ChunkTables, NDArray[np.uint8]] | None:
    """Return the tables of all chunks of an array, and their content, a multiple of 16 bytes.

    None if the steps of the chain need more than entries. The content begins with the addresses of
    the chunks, of which those of chunks that are not stored are to be set.
    """
    numbers, slab, position = entries.numbers, entries.slab, entries.position
    address = np.zeros(int(numbers[-1]) + 1, np.uint64)
    address[numbers] = position
    is_there = [number for number, one in entries.slabs.items() if one.encoded is not None]
    (encoded,) = np.isin(slab, is_there).nonzero()
    if not len(encoded):
        content = np.zeros(aligned(address.nbytes), np.uint8)
        content[: address.nbytes] = address.view(np.uint8)
        return ChunkTables(0), content
    columns = numbers[encoded], slab[encoded], position[encoded]
    rows = CachedRows.of(*columns, entries.slabs, chain.layout.nbytes)
    values = Spans(rows.position.view(np.uint64), rows.nbytes.view(np.uint64))
    recording = Recording(device, stream, rows.rows, values, rows.headers)
    try:
        chain.decode_device(recording, device)
        return None if recording.fallbacks else recording.tables(address)
    except NotRecorded:
        return None
