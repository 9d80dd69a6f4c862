"""``gpustore verify``: reads every stored chunk of an array, or of all arrays of a group.

A chunk is good if it decodes to exactly its size and its checksums are right. Chunks that are not
stored are counted only.

1. List the stored values of each array; where the kvstore cannot list, take the whole grid. Values
   whose place or size cannot be found are bad.
2. Read boxes of whole chunks, several at a time; a box that fails is halved until the bad chunks
   are known.
3. Report the bad keys with the reasons.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.options import add_json_option, add_place_options, add_progress_options
from gpustore.cli.places import open_member, open_node, reading_context
from gpustore.cli.screen import Screen
from gpustore.cli.value_grid import StoredValues, ValueGrid
from gpustore.display.extents import chunk_extents
from gpustore.display.text import format_nbytes
from gpustore.runtime.cores import cores

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


_BOX_NBYTES = 32 << 20
"""Decoded bytes that are read at once, unless one chunk has more."""

_SHOWN = 20

Box = tuple[range, ...]


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Reads and decodes every stored chunk of an array, or of all arrays of a "
        "group, and lists the keys of those that do not decode. Damage that keeps the size is "
        "found where chunks have a checksum. Exit code 1 if a chunk or a member is bad."
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="URL or path of a group or an array")
    add_json_option(command)
    add_progress_options(command)
    add_place_options(command)
    command.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Bad:
    """A stored value with bad chunks, or a member that cannot be opened.

    Attributes
    ----------
    array : str
        Path of the array in the group; empty for the array itself.
    key : str
        Key of the value below the array; empty for a member that cannot be opened.
    chunks : int
        Number of bad chunks in it.
    reason : str
        Reason of the first.
    """

    array: str
    key: str
    chunks: int
    reason: str


@dataclass
class Outcome:
    """Counts of a verification, of all arrays together.

    Attributes
    ----------
    arrays : int
        Arrays that were read.
    values, possible : int
        Stored values that were read, and those of the grids; equal where keys cannot be listed.
    nbytes : int
        Decoded bytes that were read.
    bad : list of Bad
    """

    arrays: int = 0
    values: int = 0
    possible: int = 0
    nbytes: int = 0
    bad: list[Bad] = field(default_factory=list)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    context = reading_context(arguments)
    node = open_node(arguments.url, arguments, context, read=True)
    outcome = Outcome()
    works = [
        _Work(path, store, outcome) for path, store in _arrays(node, context, outcome.bad.append)
    ]
    screen = None if arguments.quiet or arguments.json else Screen(progress=arguments.progress)
    reporting = Screen(progress=True) if arguments.json and arguments.progress else screen
    try:
        if reporting is None:
            _verify(works, lambda nbytes: None)
        else:
            with reporting.step("verify", sum(w.nbytes for w in works), rate=True) as advance:
                _verify(works, advance)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{format_nbytes(outcome.nbytes)} were read, {len(outcome.bad)} keys of them are bad"
        ) from None
    if arguments.json:
        print(json.dumps(_to_json(outcome), indent=2))
        return int(bool(outcome.bad))
    if screen is not None:
        _report(screen, arguments.url, outcome, works)
    elif outcome.bad:
        first = outcome.bad[0]
        raise CommandError(
            f"{len(outcome.bad)} bad in {arguments.url}, the first: {_name(first)}: {first.reason}"
        )
    return int(bool(outcome.bad))


def _arrays(
    node: gpustore.TensorStore | gpustore.Group,
    context: gpustore.Context,
    report: Callable[[Bad], object],
) -> Iterator[tuple[str, gpustore.TensorStore]]:
    """Yield the arrays to verify by path; `report` takes members that cannot be opened."""
    if isinstance(node, gpustore.TensorStore):
        yield "", node.base or node
        return
    for path, member in node.walk():
        try:
            if member.error is not None:
                raise member.error
            if member.is_array:
                yield path, open_member(node, path, context)
        except gpustore.GpustoreError as error:
            report(Bad(path, "", 0, error.text))


def _verify(works: list[_Work], advance: Callable[[int], object]) -> None:
    for work in works:
        work.run(advance)


class _Work:
    """Verification of one array."""

    def __init__(self, path: str, store: gpustore.TensorStore, outcome: Outcome) -> None:
        self._path, self._store, self._outcome = path, store, outcome
        self._grid = ValueGrid.of(store)
        rank = len(self._grid.counts)
        self._chunk = chunk_extents(store, "read_chunk")[:rank]
        inner = math.prod(int(n) for n in store.shape[rank:])
        self._itemsize = max(1, inner * store.dtype.array_dtype.itemsize)
        listed = StoredValues.listed(store, self._grid)
        self.is_listed = listed is not None
        self._cells = sorted(listed.nbytes) if listed is not None else self._grid.cells()
        self._found = {
            key: Bad(path, key, 1, error.text)
            for key, error in (listed.errors if listed is not None else {}).items()
            if self._grid.cell(key) is not None
        }
        self._values = self._grid.size
        if listed is not None:
            self._values = len(listed.nbytes) + len(self._found)
        self.nbytes = (
            sum(self._nbytes(self._grid.box(cell)) for cell in listed.nbytes)
            if listed is not None
            else self._nbytes([range(int(n)) for n in store.shape[:rank]])
        )

    def _nbytes(self, box: Box | list[range]) -> int:
        return math.prod(map(len, box)) * self._itemsize

    def run(self, advance: Callable[[int], object]) -> None:
        """Read all boxes, several at a time."""
        outcome = self._outcome
        outcome.arrays += 1
        outcome.values += self._values
        outcome.possible += self._grid.size
        under_way: deque[tuple[Box, gpustore.Future[Any]]] = deque()
        try:
            for box in self._boxes():
                under_way.append((box, self._read(box)))
                if len(under_way) > cores():
                    self._finish(*under_way.popleft(), advance)
            while under_way:
                self._finish(*under_way.popleft(), advance)
        finally:
            for _, future in under_way:
                future.cancel()
            outcome.bad += self._found.values()

    def _boxes(self) -> Iterator[Box]:
        """Yield boxes of whole chunks that hold all stored values and few bytes each."""
        run: Box | None = None
        for cell in self._cells:
            box = self._grid.box(cell)
            joined = None if run is None else _joined(run, box)
            if joined is not None and self._nbytes(joined) <= _BOX_NBYTES:
                run = joined
                continue
            if run is not None:
                yield from self._divided(run)
            run = box
        if run is not None:
            yield from self._divided(run)

    def _divided(self, box: Box) -> Iterator[Box]:
        """Yield parts of a box that are small, or one chunk."""
        halves = self._halves(box) if self._nbytes(box) > _BOX_NBYTES else ()
        if not halves:
            yield box
        for half in halves:
            yield from self._divided(half)

    def _halves(self, box: Box) -> tuple[Box, ...]:
        """Divide a box between two chunks of the longest dimension; empty for one chunk."""
        numbers = [self._pieces(axis, along) for axis, along in enumerate(box)]
        if not numbers or max(map(len, numbers)) < 3:
            return ()
        axis = max(range(len(box)), key=lambda axis: len(numbers[axis]))
        middle = numbers[axis][len(numbers[axis]) // 2]
        along = box[axis]
        parts = range(along.start, middle), range(middle, along.stop)
        return tuple((*box[:axis], part, *box[axis + 1 :]) for part in parts)

    def _pieces(self, axis: int, along: range) -> list[int]:
        """Return the edges of chunks in a range, with both ends."""
        edges = self._grid.edges[axis]
        if self._grid.is_sharded or len(edges) == 2:
            size = self._chunk[axis]
            return [along.start, *range(along.start + size, along.stop, size), along.stop]
        touched = self._grid.touched(axis, along)
        return [edges[i] for i in range(touched.start, touched.stop + 1)]

    def _read(self, box: Box) -> gpustore.Future[Any]:
        return self._store[tuple(slice(along.start, along.stop) for along in box)].read()

    def _finish(
        self, box: Box, future: gpustore.Future[Any], advance: Callable[[int], object]
    ) -> None:
        """Wait for a box; find what is bad in it."""
        try:
            future.result()
        except gpustore.GpustoreError as error:
            halves = self._halves(box)
            for half in halves:
                self._finish(half, self._read(half), advance)
            if halves:
                return
            self._note(box, error)
        self._outcome.nbytes += self._nbytes(box)
        advance(self._nbytes(box))

    def _note(self, box: Box, error: gpustore.GpustoreError) -> None:
        """Note a bad chunk under the key of its stored value."""
        cell = [self._grid.touched(axis, along).start for axis, along in enumerate(box)]
        key = self._grid.key(cell)
        before = self._found.get(key)
        if before is None:
            self._found[key] = Bad(self._path, key, 1, error.text)
        else:
            self._found[key] = Bad(self._path, key, before.chunks + 1, before.reason)


def _joined(one: Box, next_: Box) -> Box | None:
    """Return two boxes as one if the second follows the first in the last dimension."""
    if not one or one[:-1] != next_[:-1] or one[-1].stop != next_[-1].start:
        return None
    return (*one[:-1], range(one[-1].start, next_[-1].stop))


def _name(bad: Bad) -> str:
    return "/".join(part for part in (bad.array, bad.key) if part)


def _to_json(outcome: Outcome) -> dict[str, Any]:
    bad = [
        {"array": one.array, "key": one.key, "chunks": one.chunks, "reason": one.reason}
        for one in outcome.bad
    ]
    return {
        "arrays": outcome.arrays,
        "values": outcome.values,
        "values_possible": outcome.possible,
        "nbytes": outcome.nbytes,
        "bad": bad,
    }


def _report(screen: Screen, url: str, outcome: Outcome, works: list[_Work]) -> None:
    """Print the counts and the bad keys."""
    values = f"{outcome.values:,} of {outcome.possible:,} chunks and shards are stored"
    if not all(work.is_listed for work in works):
        values = f"{outcome.possible:,} chunks and shards, stored or not: the keys cannot be listed"
    facts = [
        ("arrays", f"{outcome.arrays:,}"),
        ("read", f"{values}, {format_nbytes(outcome.nbytes)} decoded"),
        ("bad", f"{len(outcome.bad):,}" if outcome.bad else "none"),
    ]
    screen.facts(url, facts)
    for bad in outcome.bad[:_SHOWN]:
        inside = f" ({bad.chunks:,} chunks in it)" if bad.chunks > 1 else ""
        text = f"{_name(bad)}{inside}: {bad.reason}"
        screen.entry(("! ", "red"), "", [text])
    if len(outcome.bad) > _SHOWN:
        screen.line(f"  and {len(outcome.bad) - _SHOWN:,} more: --json lists all")


COMMANDS = {"verify": add_options}
