"""Sink of a device: runs the tasks of a read, whose parts fill its submissions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gpustore.backends.device.sink_part import DevicePart, decode_left, may_be_direct
from gpustore.backends.device.staging_buffer import StagingBuffer
from gpustore.backends.device.submissions import Submissions
from gpustore.codec_chain.chain import CodecChain
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.promise import Promise

if TYPE_CHECKING:
    from gpustore.backends.native.array import NativeArray


class DeviceSink(Submissions):
    """Sink into device memory; parameters are those of its base."""

    _ended = 0
    """Number of groups of tasks after which :meth:`_end` was called."""

    @property
    def nbytes(self) -> int:
        return self.extent.piece_nbytes

    def part(
        self,
        chain: CodecChain,
        *,
        rows: int,
        blocks: tuple[int, ...] = (),
        native: NativeArray | None = None,
    ) -> DevicePart:
        """Make the part of one task; see :meth:`gpustore.backends.base.Sink.part`."""
        del blocks, native  # They place elements in host memory.
        fetched = self.extent.piece_nbytes // max(1, chain.layout.nbytes)
        return DevicePart(self, chain, min(rows, fetched))

    def staging_parts(
        self,
        chain: CodecChain,
        file_system: Callable[[], int | None],
        file_nbytes: int | None,
    ) -> tuple[Callable[[int], DevicePart], int] | None:
        """Return what makes the part of one task, which the native core fills; None for none.

        Values that may go straight to the device are fetched in Python.
        """
        is_direct = self.decodes(chain) and may_be_direct(chain, file_nbytes)
        if is_direct and self.files.may_be_direct(file_system):
            return None
        return partial(DevicePart, self, chain), self.extent.buffer_rows

    def run(
        self,
        executor: Executor,
        tasks: Sequence[Callable[[], object]],
        result: Callable[[], Any],
        *,
        helped: bool = False,
    ) -> Future[Any]:
        """Run the tasks of the read as soon as there is a staging buffer."""
        del helped  # A thread that helped would wait for the device.
        if not len(tasks):
            return executor.run_all(tasks, result)
        promise, future = Promise[Any].new()
        promise.offer(partial(self._early.take, result))

        def begin(buffer: StagingBuffer) -> None:
            self.has(buffer)
            self._run_all(executor, tasks, result, promise)

        buffer = self._pool.take(self, is_small=self.extent.is_small, later=begin)
        if buffer is not None:
            begin(buffer)
        return future

    def defer(
        self,
        executor: Executor,
        tasks: Callable[[], Iterable[Callable[[], object]]],
        result: Callable[[], Any],
    ) -> Future[Any]:
        """Return the Future of a small read, done by the thread that asks for the result."""
        run = partial(self._run_now, executor, tasks, result)
        return Future.deferred(run, executor, partial(self._early.take, result))

    def _run_now(
        self,
        executor: Executor,
        tasks: Callable[[], Iterable[Callable[[], object]]],
        result: Callable[[], Any],
    ) -> Any:
        """Do the read on this thread, or begin it once there is a staging buffer."""
        buffer = self._pool.take(self, is_small=self.extent.is_small)
        if buffer is None:
            return self.run(executor, list(tasks()), result)
        try:
            self.has(buffer)
            for task in tasks():
                task()
            while self.finish():
                decode_left(self)
        finally:
            try:
                self.put_back()
            except BaseException:  # Ctrl-C again, which no worker sees.
                executor.execute(self.put_back)
                raise
        self._early.check()
        return result()

    def _run_all(
        self,
        executor: Executor,
        tasks: Sequence[Callable[[], object]],
        result: Callable[[], Any],
        parent: Promise[Any] | None = None,
    ) -> Future[Any]:
        end = partial(self._end, executor, result)
        close = partial(self._close, self._ended + 1)
        return executor.run_all(tasks, end, parent=parent, ended=close)

    def _end(self, executor: Executor, result: Callable[[], Any]) -> Any:
        """Complete all submissions, and have rows that are left to the host decoded by tasks."""
        self._ended += 1
        try:
            left = self.finish()
            if left:
                tasks = [partial(decode_left, self)] * min(left, executor.limit)
                return self._run_all(executor, tasks, result)
        except BaseException:
            self.put_back()
            raise
        self.put_back()
        self._early.check()
        return result()

    def _close(self, group: int) -> None:
        """Give everything back if tasks have failed, so that :meth:`_end` was not called.

        The group that `_end` begins may be over before this is called for the one before.
        """
        if self._ended < group:
            self.put_back()
