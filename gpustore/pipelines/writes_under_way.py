"""Order of the writes of an array that are under way, and the work that they share.

A write begins at once unless an earlier one that has not ended touches one of the same keys; as a
bound of its keys the box of their grid indices is taken. A write that meets an earlier one waits.
When a write has ended, all writes that wait and meet no other one begin. Those of them that meet
each other begin together: what they lay over one key is read, changed and stored once, in the order
in which they were asked for, and is repeated write by write if it fails, so that each has its own
result or error. Work that they share is divided between their statistics.

So writes of one store take effect in order, and 100 writes of rows of one chunk cost a few.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpustore.backends.base import Layer, Memory
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.value_change import (
    ValueChange,
    batch_rows,
    store_changes,
    write_rows,
)
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.window import PlanWindow
from gpustore.runtime.cancel_token import CancelToken, is_cancelled
from gpustore.runtime.epoch import epoch
from gpustore.runtime.executor import wait_at_exit
from gpustore.runtime.frames import without_locals
from gpustore.runtime.future import Future
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import Operation, attributed, operation_of

PLANNED_ROWS = 4096
"""Most rows of a window of one task."""

FILE_S = 50e-6
"""Estimate of the seconds that the native core takes to store a file, without fsync."""

NATIVE_PART_S = 400e-6
"""Shortest work of the native core that is worth a task of its own, in seconds."""

MOST_ROWS = 1 << 16
"""Most rows of writes that begin together; a write that has more begins alone."""


class PendingWrite:
    """A write that is under way.

    Parameters
    ----------
    array : ChunkedArray
    plans : list of (ChunkedArray, ChunkPlan)
        Plan of the chunks of each shape.
    memory : Memory
        Array that is written.

    Attributes
    ----------
    copy, commit : Future
        Done when the source may be reused, and when everything is stored.
    box : list of (int, int)
        Lowest and highest grid index of its keys along each dimension.
    """

    __slots__ = (
        "_committed", "_copied", "_error", "_failed", "_left", "_lock", "_over", "_running",
        "array", "box", "commit", "copy", "memory", "plans",
    )  # fmt: skip

    def __init__(
        self, array: ChunkedArray, plans: list[tuple[ChunkedArray, ChunkPlan]], memory: Memory
    ) -> None:
        self.array, self.plans, self.memory = array, plans, memory
        self.box = _box(plans)
        self._copied: Promise[None]
        self._committed: Promise[None]
        self._copied, self.copy = Promise.new()
        self._committed, self.commit = Promise.new()
        # Either may be waited for as long as the process that began the write lives.
        self.copy._epoch = self.commit._epoch = epoch()
        self._copied.hand_over()
        self._committed.hand_over()
        self._lock = threading.Lock()
        self._left = self._running = 0
        self._over = False
        self._error: BaseException | None = None
        self._failed = sys.maxsize  # first task of several writes that has failed
        # However it ends: tasks that are never begun must not leave `copy` waiting.
        self.commit.add_done_callback(lambda _: self._copied.set_result(None))

    @property
    def rows(self) -> int:
        """Number of chunks that the write touches."""
        return sum([len(plan) for _, plan in self.plans])

    def meets(self, other: PendingWrite) -> bool:
        """Whether both may touch one key."""
        for (low, high), (first, last) in zip(self.box, other.box):
            if high < first or last < low:
                return False
        return True

    def begin(self, ended: Callable[[], None]) -> None:
        """Begin the write; `ended` is called when no task works for it any more."""
        work = [
            partial(_write_part, one, plan, self.memory, part, parts)
            for one, plan in self.plans
            for parts in [_parts(one, plan, self.memory)]
            for part in range(parts)
        ]
        self._left = len(work)

        def run(task: Callable[[], None]) -> None:
            if not self._enter():
                return
            try:
                task()
            finally:
                self._step()
                if self._exit():
                    ended()

        def over(_: Future[None]) -> None:
            with self._lock:
                self._over = True
                last = not self._running
            if last:
                ended()

        tasks = [partial(run, task) for task in work]
        self.array.executor.run_all(tasks, lambda: None, parent=self._committed, drain=True)
        self.commit.add_done_callback(over)

    def _enter(self) -> bool:
        """Count a task that begins; return False if the commit is done already."""
        with self._lock:
            self._running += not self._over
            return not self._over

    def _exit(self) -> bool:
        """Count a task that has ended; return whether it was the last, and the commit is done."""
        with self._lock:
            self._running -= 1
            return self._over and not self._running

    def join(self, tasks: int) -> None:
        """Let `tasks` of several writes work for this one."""
        self._left = tasks

    def wants(self, number: int) -> bool:
        """Whether the write was not cancelled, and no task before that of this number failed."""
        return self._failed > number and not self.commit.done()

    def fail(self, number: int, error: BaseException) -> None:
        """Note the error of a task; the first task's is that of the commit when all have ended."""
        without_locals(error)
        with self._lock:
            if number < self._failed:
                self._failed, self._error = number, error

    def leave(self) -> None:
        """End one of the tasks of several writes, the last one with the outcome."""
        if not self._step():
            return
        if self._error is None:
            self._committed.set_result(None)
        else:
            self._committed.set_exception(self._error)

    def refuse(self, error: BaseException) -> None:
        """End a write that could not begin."""
        self._committed.set_exception(error)

    def _step(self) -> bool:
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._copied.set_result(None)
        return last


def begin_in_order(write: PendingWrite) -> None:
    """Begin a write when all earlier ones that meet it have ended."""
    wait_at_exit(write.commit)
    if not write.rows:
        write.begin(lambda: None)
        return
    with _lock:
        writes = _arrays.get(id(write.array)) or _arrays.setdefault(
            id(write.array), _Writes(write.array)
        )
        others = writes.begun + writes.waiting
        waits = any(map(write.meets, others))
        (writes.waiting if waits else writes.begun).append(write)
    if not waits:
        writes.begin([write])


class _Writes:
    """Writes of one array under way, in the order in which they were asked for."""

    __slots__ = ("array", "begun", "waiting")

    def __init__(self, array: ChunkedArray) -> None:
        self.array = array  # Its address is not used again meanwhile.
        self.begun: list[PendingWrite] = []
        self.waiting: list[PendingWrite] = []

    def begin(self, writes: list[PendingWrite]) -> None:
        """Begin writes that meet each other, or one."""
        ended = partial(self._end, writes)
        try:
            if len(writes) == 1:
                writes[0].begin(ended)
            else:
                _begin_together(self.array, writes, ended)
        except Exception as error:
            for one in writes:
                one.refuse(error)
            ended()

    def _end(self, writes: list[PendingWrite]) -> None:
        """Forget writes that have ended, and begin those that wait for nothing else."""
        with _lock:
            if _arrays.get(id(self.array)) is not self:
                return  # In a forked child these are writes of its parent.
            self.begun = [one for one in self.begun if one not in writes]
            waits = bool(self.waiting)
            if not waits and not self.begun:
                del _arrays[id(self.array)]
        if waits:
            self.array.executor.execute(self._take)

    def _take(self) -> None:
        with _lock:
            waiting = self.waiting
            cancelled = [one for one in waiting if one.commit.done()]
            blocked = self.begun.copy()
            ready: list[PendingWrite] = []
            for one in waiting:
                if not one.commit.done():
                    (blocked if any(map(one.meets, blocked)) else ready).append(one)
            groups = [_limited(group) for group in _groups(ready)]
            gone = {*cancelled, *itertools.chain(*groups)}
            self.waiting = [one for one in waiting if one not in gone]
            self.begun += itertools.chain(*groups)
        for group in groups:
            self.begin(group)
        if cancelled and not groups:
            self._end([])


_arrays: dict[int, _Writes] = {}
_lock = threading.RLock()  # Re-entrant: the garbage collector may run anything while it is held.


def _after_fork() -> None:
    """Forget the writes of the parent process, whose threads do them."""
    global _lock
    _lock = threading.RLock()
    _arrays.clear()


os.register_at_fork(after_in_child=_after_fork)


def _box(plans: Sequence[tuple[ChunkedArray, ChunkPlan]]) -> list[tuple[int, int]]:
    """Return the lowest and the highest grid index of the keys along each dimension."""
    bounds: dict[int, tuple[int, int]] = {}
    for _, plan in plans:
        for one in plan.sets:
            for o, cells in zip(one.output_dimensions, one.cells):
                if not len(cells):
                    continue
                ratio = plan.format.key_ratio[o]
                low, high = int(np.min(cells)) // ratio, int(np.max(cells)) // ratio
                first, last = bounds.get(o, (low, high))
                bounds[o] = min(first, low), max(last, high)
    return [bounds[o] for o in sorted(bounds)]


def _groups(writes: Sequence[PendingWrite]) -> list[list[PendingWrite]]:
    """Split writes into groups of which no two meet."""
    groups: list[list[PendingWrite]] = []
    for one in writes:
        met = [group for group in groups if any(map(one.meets, group))]
        if len(met) == 1:
            met[0].append(one)
            continue
        groups = [group for group in groups if group not in met]
        groups.append([*itertools.chain(*met), one])
    order = {one: i for i, one in enumerate(writes)}
    return [sorted(group, key=order.__getitem__) for group in groups]


def _limited(writes: list[PendingWrite]) -> list[PendingWrite]:
    """Return the first of the writes, as many as may begin together."""
    rows = list(itertools.accumulate(one.rows for one in writes))
    return writes[: max(1, sum(number <= MOST_ROWS for number in rows))]


Row = tuple[PendingWrite, Layer]
"""A write, and the layer that it lays over one key."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A part of the work of writes that begin together.

    Attributes
    ----------
    number : int
        Place of the task among all of them.
    array : ChunkedArray
        Array of the chunks of this shape.
    values : list of list of Row
        For each key what the writes lay over it, in their order.
    """

    number: int
    array: ChunkedArray
    values: list[list[Row]]

    @property
    def writes(self) -> list[PendingWrite]:
        return list(dict.fromkeys(one for rows in self.values for one, _ in rows))

    def run(self) -> None:
        """Store the values for all writes that are still wanted; note their errors."""
        writes = self.writes
        wanted = [one for one in writes if one.wants(self.number)]
        shared = Operation()
        token = CancelToken(lambda: not any(one.wants(self.number) for one in wanted))
        try:
            token.during(lambda: attributed(shared, lambda: self._store(wanted)))
        finally:
            shared.divide(operation_of(one.commit) for one in wanted)
            for one in writes:
                one.leave()

    def _store(self, writes: list[PendingWrite]) -> None:
        if not writes:
            return
        some = set(writes)
        layers = [[layer for one, layer in rows if one in some] for rows in self.values]
        try:
            changes = [ValueChange.of(self.array, laid) for laid in layers if laid]
            store_changes(self.array, changes)
        except BaseException as error:
            if is_cancelled(error):
                return
            if len(writes) == 1:
                writes[0].fail(self.number, error)
                return
            for one in writes:
                self._store([one])


def _begin_together(
    array: ChunkedArray, writes: Sequence[PendingWrite], ended: Callable[[], None]
) -> None:
    """Begin writes that meet each other; `ended` is called when no task works for them."""
    found: dict[tuple[int, ...], tuple[ChunkedArray, dict[str, list[Row]]]] = {}
    for write in writes:
        for one, plan in write.plans:
            _, values = found.setdefault(one.chunk_shape, (one, {}))
            for key, layer in layers_of(plan.windows(0, 1, PLANNED_ROWS), write.memory):
                values.setdefault(key, []).append((write, layer))
    tasks: list[_Task] = []
    for one, values in found.values():
        # In the order of the array's chunks, in which most writes have them: each write gets the
        # error of the first chunk that fails.
        laid = sorted(values.values(), key=lambda rows: _cell(one, rows))
        batch = batch_rows(one, writes[0].memory)
        if not one.store.write_nbytes:  # No longer than leaves work for all threads.
            batch = min(batch, -(-len(laid) // one.executor.limit))
        parts = [laid[at : at + batch] for at in range(0, len(laid), batch)]
        tasks += [_Task(number, one, part) for number, part in enumerate(parts, len(tasks))]
    counts = Counter(write for task in tasks for write in task.writes)
    for write in writes:
        write.join(counts[write])
    parent: Promise[None] = Promise.new()[0]
    run = [task.run for task in tasks]
    future = array.executor.run_all(run, lambda: None, parent=parent, drain=True)
    future.add_done_callback(lambda _: ended())


def layers_of(windows: Iterable[PlanWindow], memory: Memory) -> Iterator[tuple[str, Layer]]:
    """Yield what a write lays over each key; a key in several windows comes several times."""
    for rows in windows:
        if len(rows) == 1:
            yield rows.keys[0], Layer(rows, memory)
            continue
        if len(set(rows.keys)) == len(rows):
            for row in rows.singles():
                yield row.keys[0], Layer(row, memory)
            continue
        numbers: dict[str, list[int]] = {}
        for number, key in enumerate(rows.keys):
            numbers.setdefault(key, []).append(number)
        for key, some in numbers.items():
            yield key, Layer(rows.take(some), memory)


def _cell(array: ChunkedArray, rows: Sequence[Row]) -> list[int]:
    """Return the grid index of the key of rows."""
    cells = rows[0][1].rows.cells
    return [int(column[0]) // ratio for column, ratio in zip(cells, array.key_ratio)]


def _parts(array: ChunkedArray, plan: ChunkPlan, memory: Memory) -> int:
    if array.writes_files_natively:
        seconds = len(plan) * (array.chain.decode_s + FILE_S)
        return max(1, min(len(plan), 4 * array.executor.limit, int(seconds / NATIVE_PART_S)))
    parts = array.parts(plan)
    nbytes = array.backend.gather_nbytes(memory, array.limits)
    if nbytes is not None and array.backend.encode_unsupported_reason(array.chain) is None:
        parts = min(parts, -(-len(plan) * array.chain.layout.nbytes // nbytes))
    return max(1, min(parts, plan.objects)) if array.levels else parts  # One task a shard.


def _write_part(
    array: ChunkedArray, plan: ChunkPlan, memory: Memory, part: int, parts: int
) -> None:
    """Gather, encode and store one of `parts` parts of the plan."""
    on_device = array.backend.gather_nbytes(memory, array.limits) is not None
    most_keys = 1 if array.levels and not on_device else None
    for rows in plan.windows(part, parts, PLANNED_ROWS, most_keys=most_keys):
        write_rows(array, rows, memory)
