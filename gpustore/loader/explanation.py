"""Explanations of an epoch: what a loader will read, before it reads it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from gpustore.display.text import format_nbytes
from gpustore.loader.fetched_window import FetchedArray, FetchedWindow
from gpustore.loader.residents import Residents
from gpustore.loader.touched_chunks import TouchedChunks
from gpustore.loader.volume import Volume

MANY_DECODES: Final = 1.6
"""Decodes of a chunk and epoch above which there is advice."""

_DOUBLINGS: Final = 8
"""Number of times that the window is doubled in search of advice."""

_SPARSE: Final = 8.0
"""Decoded bytes for each byte of patches from which on there is advice."""


@dataclass(frozen=True, slots=True)
class LoaderExplanation:
    """Estimate of an epoch of one rank; made by :meth:`PatchLoader.explain`.

    The windows are those of the epoch; no stored value is read. What was done is counted by
    :meth:`PatchLoader.stats`. ``print(explanation)`` shows a text for people, :meth:`to_json`
    returns JSON for programs.

    Attributes
    ----------
    epoch : int
        Number of the epoch.
    batches, patches : int
        Number of batches, and of patches in them.
    windows : int
        Number of windows, each of which is read at once.
    chunks : int
        Number of different chunks that the patches touch, of all arrays.
    chunks_decoded : int
        Number of decodes of chunks if all are stored and none is cached.
    bytes_read : int or None
        Most encoded bytes that come from storage; None if nothing bounds them.
    bytes_decoded : int
        Most decoded bytes of these chunks.
    bytes_patches : int
        Bytes of the patches, in the data types of the arrays.
    window_nbytes : int
        Bytes that the largest window takes, beside arrays that stay in memory.
    resident_nbytes : int
        Bytes of the arrays that stay in memory for an epoch, as they take at most half of what is
        left beside the batches: each of their chunks is read once, but for patches that are read
        alone.
    memory_nbytes : int
        Most bytes that windows and batches take together.
    memory : int
        Bytes that they may take.
    limited_by : {"window", "memory", "arrays"}
        What keeps windows from being larger: the sampler's `window`; the loader's `memory`, for
        which some are divided; or nothing, as each volume is one window.
    decoders : tuple of str
        Name and decoders of each array.
    advice : tuple of str
        Sentences on what would make the epoch cheaper.
    """

    epoch: int
    batches: int
    patches: int
    windows: int
    chunks: int
    chunks_decoded: int
    bytes_read: int | None
    bytes_decoded: int
    bytes_patches: int
    window_nbytes: int
    resident_nbytes: int
    memory_nbytes: int
    memory: int
    limited_by: str
    decoders: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def decodes_per_chunk(self) -> float:
        """Number of decodes of each chunk in the epoch, on average."""
        return self.chunks_decoded / max(1, self.chunks)

    @property
    def decoded_per_byte(self) -> float:
        """Number of decoded bytes for each byte of the patches."""
        return self.bytes_decoded / max(1, self.bytes_patches)

    def to_json(self) -> dict[str, Any]:
        """Return all attributes and properties as JSON."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found |= {"decoders": list(self.decoders), "advice": list(self.advice)}
        found["decodes_per_chunk"] = self.decodes_per_chunk
        return found | {"decoded_per_byte": self.decoded_per_byte}

    def __str__(self) -> str:
        lines = [
            ("epoch", f"{self.epoch}: {self.patches:,} patches in {self.batches:,} batches"),
            ("windows", self._windows_text()),
            ("chunks", f"{self.chunks:,} different ones"),
            ("decoded", self._decoded_text()),
            ("read", self._read_text()),
            ("memory", self._memory_text()),
            *(("by", one) for one in self.decoders),
            *(("advice", one) for one in self.advice),
        ]
        return "\n".join(f"{name:<12} {text}" for name, text in lines)

    def _windows_text(self) -> str:
        mean = self.patches / max(1, self.windows)
        reason = {
            "window": "limited by the sampler's window",
            "memory": "some divided, as memory is too small",
            "arrays": "each a whole volume",
        }[self.limited_by]
        most = f", at most {format_nbytes(self.window_nbytes)}" if self.window_nbytes else ""
        return f"{self.windows:,} of about {mean:,.0f} patches{most}; {reason}"

    def _decoded_text(self) -> str:
        return (
            f"{self.decodes_per_chunk:.3g} times each: {self.chunks_decoded:,} chunks, "
            f"{format_nbytes(self.bytes_decoded)}, {self.decoded_per_byte:.3g} bytes for each "
            "byte of a patch"
        )

    def _read_text(self) -> str:
        if self.bytes_read is None:
            return "an unknown number of bytes"
        return f"at most {format_nbytes(self.bytes_read)}; the stored bytes decide"

    def _memory_text(self) -> str:
        stays = ""
        if self.resident_nbytes:
            stays = f"; {format_nbytes(self.resident_nbytes)} of arrays stay for the epoch"
        return f"at most {format_nbytes(self.memory_nbytes)} of {format_nbytes(self.memory)}{stays}"


Windows = Callable[[int, int, Residents], Iterable[FetchedWindow]]
"""Returns the windows of an epoch for a window of the sampler and room for windows, in bytes, of
which arrays that stay in memory take theirs."""


def explained(
    windows: Windows,
    *,
    epoch: int,
    batches: int,
    patches: int,
    volumes: Sequence[Volume],
    window: int,
    memory: int,
    batches_nbytes: int,
) -> LoaderExplanation:
    """Explain an epoch.

    Parameters
    ----------
    windows : callable
        Gives windows that are not read.
    epoch, batches, patches : int
        Number of the epoch, of its batches and of their patches.
    volumes : sequence of Volume
    window : int
        Bytes of the sampler's windows.
    memory, batches_nbytes : int
        Bytes that windows and batches may take together, and those of the batches.
    """
    room = memory - batches_nbytes
    residents = Residents.of(volumes, room)
    counts = _Counts(windows(window, room, residents), room - residents.nbytes)
    is_whole = counts.windows <= len(volumes)
    limited_by = "memory" if counts.divided else "arrays" if is_whole else "window"
    advice = []
    if counts.decodes_per_chunk > MANY_DECODES:
        advice.append(_better(windows, counts, volumes, window, batches_nbytes))
    if counts.bytes_decoded >= _SPARSE * counts.bytes_patches:
        advice.append(
            f"Each byte of a patch takes {counts.bytes_decoded / counts.bytes_patches:.3g} decoded "
            "ones: more patches an epoch use more of each window, and smaller chunks have less "
            "beside them."
        )
    return LoaderExplanation(
        epoch=epoch,
        batches=batches,
        patches=patches,
        windows=counts.windows,
        chunks=counts.chunks,
        chunks_decoded=counts.chunks_decoded,
        bytes_read=counts.bytes_read,
        bytes_decoded=counts.bytes_decoded,
        bytes_patches=counts.bytes_patches,
        window_nbytes=counts.largest,
        resident_nbytes=residents.nbytes,
        memory_nbytes=counts.pair + residents.nbytes + batches_nbytes,
        memory=memory,
        limited_by=limited_by,
        decoders=tuple(f"{name}: {by}" for name, by in counts.decoders.items()),
        advice=tuple(advice),
    )


def _better(
    windows: Windows, now: _Counts, volumes: Sequence[Volume], window: int, batches_nbytes: int
) -> str:
    """Return advice for what decodes less: the smallest of some larger windows, or whole arrays."""
    decodes = f"A chunk is decoded {now.decodes_per_chunk:.3g} times an epoch"
    all_nbytes = 2 * Residents.of(volumes, sys.maxsize).nbytes or sys.maxsize
    for size in (_round(window << n) for n in range(_DOUBLINGS + 1)):
        pair = _Counts(windows(size, sys.maxsize, Residents(())), sys.maxsize).pair
        memory = _round(min(pair, all_nbytes) + batches_nbytes)
        room = memory - batches_nbytes
        residents = Residents.of(volumes, room)
        found = _Counts(windows(size, room, residents), room - residents.nbytes)
        if found.decodes_per_chunk <= MANY_DECODES:
            larger = f"window={_text(size)} with " if size > _round(window) else ""
            fewer = f"decodes it {found.decodes_per_chunk:.3g} times"
            return f"{decodes}: {larger}memory={_text(memory)} {fewer}."
    return f"{decodes}: patches are large for chunks and volumes."


def _round(nbytes: int) -> int:
    """Return a size that is at least as large, and short to write."""
    return -(-nbytes >> 20) << 20 if nbytes > 1 << 20 else nbytes


def _text(nbytes: int) -> str:
    return f'"{nbytes >> 20} MiB"' if nbytes >= 1 << 20 else f"{nbytes}"


class _Counts:
    """Counts of what the windows of an epoch will read.

    Attributes
    ----------
    windows, divided : int
        Number of windows, and of those that are parts of one of the sampler.
    chunks_decoded, bytes_decoded, bytes_read, bytes_patches : int
        See :class:`LoaderExplanation`.
    largest, pair : int
        Bytes of the largest window, and of the most that are in memory together.
    decoders : dict of str to str
        Decoders of each array, by its name.
    """

    def __init__(self, windows: Iterable[FetchedWindow], room: int) -> None:
        self.windows = self.divided = self.largest = self.pair = 0
        self.chunks_decoded = self.bytes_decoded = self.bytes_patches = 0
        self.bytes_read: int | None = 0
        self.decoders: dict[str, str] = {}
        self._touched: dict[tuple[int, str], TouchedChunks] = {}
        last, first = 0, -1
        for window in windows:
            self.windows += 1
            self.divided += window.first == first
            first = window.first
            self.largest = max(self.largest, window.nbytes)
            together = last + window.nbytes
            self.pair = max(self.pair, together if together <= room else window.nbytes)
            last = window.nbytes
            for one in window.arrays:
                self._add(window.volume, one)

    @property
    def chunks(self) -> int:
        """Number of different chunks."""
        return sum(one.different for one in self._touched.values())

    @property
    def decodes_per_chunk(self) -> float:
        """Number of decodes of each chunk, on average."""
        return self.chunks_decoded / max(1, self.chunks)

    def _add(self, volume: int, fetched: FetchedArray) -> None:
        name = fetched.array.name
        self.bytes_patches += len(fetched.origins) * fetched.array.patch_nbytes
        found = fetched.explain()
        if found is None:
            self.decoders.setdefault(name, "in memory")
            return
        if (volume, name) not in self._touched:
            self._touched[volume, name] = TouchedChunks(fetched.array)
        self._touched[volume, name].add(fetched)
        for read in found:
            self.chunks_decoded += read.chunks
            self.bytes_decoded += read.bytes_decoded
            if read.bytes_fetched is None or self.bytes_read is None:
                self.bytes_read = None
            else:
                self.bytes_read += read.bytes_fetched
            by = ", ".join(f"{codec} ({decoder})" for codec, decoder in read.codecs)
            self.decoders.setdefault(name, read.host_reason or by or "nothing to decode")
