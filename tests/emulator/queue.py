"""Streams that put off everything until somebody waits for it.

A GPU may run what it is asked for at once, or long after; a program must be right either way. Here
the latest legal moment is the rule, so a forgotten wait shows up as memory that nobody has written:

``lazy``
    Nothing runs until the host waits, and then only what that wait needs.
``early_frees``
    The same, but memory is freed as early as it may be.
``random``
    Any legal order, chosen by a seed.

In all of them a task that has run is one the host knows to have run, or may not rely on. With
``lazy`` that makes an exact test for races: two tasks that use the same bytes, one of them to
write, must be ordered, by their stream, by events, or by the host having waited for the first.
"""

import random
from collections import deque

import numpy as np

ORDERS = ("lazy", "early_frees", "random")


class Breach(AssertionError):
    """The protocol of gpustore.device.protocol was broken. No product code catches this."""


class Ranges:
    """Sets of bytes by address: sorted, disjoint intervals."""

    def __init__(self, starts, sizes):
        self.are_disjoint = True
        if len(starts) == 1 and sizes[0]:  # As nearly all are.
            first, nbytes = int(starts[0]), int(sizes[0])
            self.low = np.array([first], np.int64)
            self.high = np.array([first + nbytes], np.int64)
            self.span = (first, first + nbytes)
            return
        starts = np.asarray(starts, np.int64)
        sizes = np.asarray(sizes, np.int64)
        order = np.argsort(starts, kind="stable")
        order = order[sizes[order] > 0]
        self.low = starts[order]
        self.high = self.low + sizes[order]
        # Of what is read, pieces may overlap; the test for common bytes wants ends in order too.
        self.are_disjoint = not (self.low[1:] < self.high[:-1]).any()
        self.high = np.maximum.accumulate(self.high)
        # All of them, also as Python has numbers: most sets lie far apart.
        self.span = (int(self.low[0]), int(self.high[-1])) if len(self.low) else (0, 0)

    def meet(self, other):
        """An address that both have, or None."""
        if self.span[1] <= other.span[0] or other.span[1] <= self.span[0]:
            return None
        first = np.searchsorted(other.high, self.low, "right")
        inside = first < len(other.low)
        first = np.minimum(first, len(other.low) - 1)
        hits = np.flatnonzero(inside & (other.low[first] < self.high))
        return int(max(self.low[hits[0]], other.low[first[hits[0]]])) if len(hits) else None


class Task:
    """Something asked of a stream."""

    __slots__ = ("after", "done", "name", "reads", "run", "stream", "writes")

    def __init__(self, stream, name, run, reads, writes):
        self.stream = stream
        self.name = name
        self.run = run
        self.reads = reads
        self.writes = writes
        self.after = stream.awaited
        self.done = False
        stream.awaited = []

    def conflict(self, other):
        """An address used by both tasks, by at least one to write it."""
        pairs = [(w, x) for w in self.writes for x in (*other.reads, *other.writes)]
        pairs += [(r, w) for r in self.reads for w in other.writes]
        return next((found for a, b in pairs if (found := a.meet(b)) is not None), None)


class EmulatedStream:
    """A queue of tasks."""

    def __init__(self, number):
        self.number = number
        self.queue = deque()
        self.awaited = []

    def __cuda_stream__(self):
        return (0, self.number)

    def __repr__(self):
        return f"stream {self.number}"


class EmulatedEvent:
    """The last task of a stream when it was recorded, or what an empty stream waited for."""

    def __init__(self, stream):
        self.tasks = [stream.queue[-1]] if stream.queue else []
        self.tasks += stream.awaited


class Queue:
    """All streams of a device, and the order in which their tasks run."""

    def __init__(self, order, seed):
        assert order in ORDERS
        self.order = order
        self.streams = []
        self._random = random.Random(seed)

    def new_stream(self):
        stream = EmulatedStream(len(self.streams) + 1)
        self.streams.append(stream)
        return stream

    def submit(self, stream, name, run, *, reads=(), writes=(), is_free=False):
        """Put a task at the end of a stream, and say so if it races with another one."""
        task = Task(stream, name, run, reads, writes)
        stream.queue.append(task)
        if self.order == "lazy":
            self._check_races(task)
        if is_free and self.order == "early_frees":
            self.finish(task)
        while self.order == "random" and self._random.random() < 0.4 and self.run_any():
            pass
        return task

    def wait(self, stream, event):
        stream.awaited = stream.awaited + [task for task in event.tasks if not task.done]

    def pending(self):
        return [task for stream in self.streams for task in stream.queue]

    def finish(self, task):
        """Run what has to run before a task, and the task."""
        wanted = [task]
        while wanted:
            if wanted[-1].done:
                wanted.pop()
                continue
            head = wanted[-1].stream.queue[0]
            first = [earlier for earlier in head.after if not earlier.done]
            if first:
                wanted.append(first[-1])
            else:
                self._run(head)

    def run_any(self):
        """Run one task that may run now; False if there is none."""
        ready = [
            stream.queue[0]
            for stream in self.streams
            if stream.queue and all(task.done for task in stream.queue[0].after)
        ]
        if ready:
            self._run(self._random.choice(ready))
        return bool(ready)

    def _run(self, task):
        task.stream.queue.popleft()
        task.done = True  # Also if it fails: what comes after it is not stuck.
        task.run()

    def _check_races(self, task):
        others = [
            other
            for stream in self.streams
            if stream is not task.stream
            for other in stream.queue
            if other.conflict(task) is not None
        ]
        if not others:
            return
        before = self._before(task)
        for other in others:
            if id(other) not in before:
                raise Breach(
                    f"{task.name} on {task.stream} is not ordered behind {other.name} on "
                    f"{other.stream}: both use address {other.conflict(task):#x}"
                )

    @staticmethod
    def _before(task):
        """Identities of all tasks that run before this one."""
        found = set()
        wanted = [task]
        while wanted:
            last = wanted.pop()
            queue = list(last.stream.queue)
            until = queue[: queue.index(last) + 1] if last in queue else []
            for earlier in until:
                if id(earlier) not in found:
                    found.add(id(earlier))
                    wanted += [other for other in earlier.after if not other.done]
        return found
