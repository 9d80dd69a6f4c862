"""Stores of zarr-python with calls that block: :class:`StoreCalls`.

Their coroutines run in one event loop, by default zarr-python's own, in its thread: a store that
zarr-python uses as well may hold connections that belong to that loop. All keys of a call run
together. The methods of a :class:`zarr.storage.MemoryStore` never wait, and run where they are
called.

A thread that waits here while the thread of the loop waits for the same thing would wait for ever.
So a call from within the loop is refused, and a call that takes long looks, again and again, at
what the thread of the loop does, and whether the loop still runs.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer.cpu import Buffer, buffer_prototype
from zarr.core.config import config
from zarr.core.sync import SyncError, sync
from zarr.storage import MemoryStore

import gpustore

BLOCKED_S: Final = 2.0
"""Seconds after which a waiting call looks at the loop; it gives up if two looks find the same."""

_FUTURES: Final = "gpustore.runtime."


class StoreCalls:
    """A store of zarr-python with calls that block; see ``gpustore/kvstores/foreign``.

    Parameters
    ----------
    store : zarr.abc.store.Store
    loop : asyncio.AbstractEventLoop, optional
        Loop that runs the coroutines of the store; by default zarr-python's own.

    Raises
    ------
    TypeError
        If `store` is none of zarr-python's.
    """

    def __init__(self, store: Any, loop: asyncio.AbstractEventLoop | None = None) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"store: expected a zarr.abc.store.Store, got {store!r:.200}")
        self.object: Store = store
        self.in_memory = type(store) is MemoryStore
        self._given = loop
        self._found: tuple[int, asyncio.AbstractEventLoop, int | None] | None = None
        if not self.in_memory:
            self._loop()

    @property
    def can_write(self) -> bool:
        """Whether values can be written."""
        return self.object.supports_writes and not self.object.read_only

    @property
    def can_delete(self) -> bool:
        """Whether keys can be deleted."""
        return self.object.supports_deletes and not self.object.read_only

    @property
    def can_list(self) -> bool:
        """Whether keys can be listed."""
        return self.object.supports_listing

    def read(
        self, keys: Sequence[str], starts: Sequence[int], stops: Sequence[int | None]
    ) -> list[Any]:
        """Read byte ranges; None for missing keys, an exception for what failed."""
        store = self.object

        async def read(key: str, start: int, stop: int | None) -> Any:
            try:
                found = await store.get(key, buffer_prototype, _byte_request(start, stop))
            except Exception as error:
                if _is_no_key(error):
                    return None
                raise
            return None if found is None else found.as_numpy_array().data.cast("B")

        return self._each([partial(read, *one) for one in zip(keys, starts, stops, strict=True)])

    def sizes(self, keys: Sequence[str]) -> list[Any]:
        """Return the lengths of values in bytes, -1 for missing keys."""
        store = self.object

        async def size(key: str) -> int:
            try:
                return await store.getsize(key)
            except Exception as error:
                missing = isinstance(error, FileNotFoundError | NotADirectoryError | KeyError)
                if missing or _is_no_key(error):
                    return -1
                raise

        return self._each([partial(size, key) for key in keys])

    def write(self, keys: Sequence[str], values: Sequence[Any]) -> list[Any]:
        """Write values, or delete where they are None; an exception for what failed."""
        store = self.object

        async def write(key: str, value: Any) -> None:
            if value is not None:
                await store.set(key, Buffer.from_bytes(bytes(value)))
                return
            try:
                await store.delete(key)
            except FileNotFoundError:
                pass

        return self._each([partial(write, *one) for one in zip(keys, values, strict=True)])

    def list(self, directory: str) -> builtins.list[str]:
        """Return all keys that begin with `directory`, which ends with a slash or is empty."""

        async def keys() -> builtins.list[str]:
            found = self.object.list_prefix(directory) if directory else self.object.list()
            return [key async for key in found]

        result: builtins.list[str] = _run_here(keys()) if self.in_memory else self._wait(keys())
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreCalls, (self.object,)

    def _each(self, calls: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> builtins.list[Any]:
        """Run coroutines together; the exception of one is its result."""
        if self.in_memory:
            return [_run_here(_caught(call())) for call in calls]

        async def together() -> builtins.list[Any]:
            most = asyncio.Semaphore(config.get("async.concurrency"))

            async def one(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
                async with most:
                    return await _caught(call())

            return await asyncio.gather(*map(one, calls))

        results: builtins.list[Any] = self._wait(together())
        return results

    def _loop(self) -> tuple[asyncio.AbstractEventLoop, int | None]:
        """Return the loop, and its thread if that is known."""
        if self._found is None or self._found[0] != os.getpid():
            if self._given is None:
                self._found = os.getpid(), *_loop_of_zarr()
            else:
                here = threading.get_ident() if _running() is self._given else None
                self._found = os.getpid(), self._given, here
        return self._found[1:]

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop and wait for its result.

        Raises
        ------
        UnsupportedError
            If the loop waits for this call.
        StoreIOError
            If the loop is closed, does not run, or cancels the coroutine.
        """
        loop, thread = self._loop()
        if _running() is loop:
            coroutine.close()
            raise _blocked()
        call = _Call(coroutine, loop, thread)
        seen: object = None
        while not concurrent.futures.wait([call.future], BLOCKED_S).done:
            hindrance = call.hindrance()
            if loop.is_closed() or (hindrance is not None and hindrance == seen):
                call.give_up()
                raise _blocked() if isinstance(hindrance, tuple) else _not_running(loop)
            seen = hindrance
        return call.future.result()


class _Call:
    """A coroutine that is handed to a loop of another thread.

    Parameters
    ----------
    coroutine : Coroutine
    loop : asyncio.AbstractEventLoop
    thread : int or None
        Thread of the loop, if that is known.

    Raises
    ------
    StoreIOError
        If the loop is closed.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, thread: Any
    ) -> None:
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._coroutine, self._loop, self._thread = coroutine, loop, thread
        self._task: asyncio.Task[Any] | None = None
        self._given_up = False
        self._lock = threading.Lock()
        try:
            loop.call_soon_threadsafe(self._start)
        except RuntimeError as error:
            coroutine.close()
            raise _not_running(loop) from error

    def _start(self) -> None:
        with self._lock:
            if self._given_up:
                return
            self._thread = threading.get_ident()
            self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.future.set_exception(
                gpustore.StoreIOError(
                    "the event loop that runs the store cancelled the call: it may have ended"
                )
            )
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    def hindrance(self) -> tuple[FrameType, int] | str | None:
        """Return what keeps the loop from going on: a wait in gpustore, or that it does not run."""
        if not self._loop.is_running():
            return "not running"
        thread = self._thread or getattr(self._loop, "_thread_id", None)
        return None if thread is None else _waits_for_us(thread)

    def give_up(self) -> None:
        """Cancel the coroutine, at once if the loop has not begun it or never goes on."""
        with self._lock:
            self._given_up = True
            task = self._task
        if task is None:
            self._coroutine.close()
            return
        try:
            self._loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:  # The loop is closed.
            self._coroutine.close()


def _is_no_key(error: Exception) -> bool:
    """Whether an error says that no value can have the key: icechunk has keys of Zarr v3 only."""
    return "invalid zarr key format" in str(error)


def _byte_request(start: int, stop: int | None) -> ByteRequest | None:
    if stop is not None:
        return RangeByteRequest(start, stop)
    if start < 0:
        return SuffixByteRequest(-start)
    return OffsetByteRequest(start) if start else None


def _running() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _loop_of_zarr() -> tuple[asyncio.AbstractEventLoop, int]:
    """Return zarr-python's own loop and its thread."""

    async def here() -> tuple[asyncio.AbstractEventLoop, int]:
        return asyncio.get_running_loop(), threading.get_ident()

    coroutine = here()
    try:
        return sync(coroutine)
    except SyncError:  # This is its thread.
        coroutine.close()
        return asyncio.get_running_loop(), threading.get_ident()


def _run_here(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("a coroutine of a store in memory waited")


async def _caught(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except Exception as error:
        return error


def _waits_for_us(thread: int) -> tuple[FrameType, int] | None:
    """Return the frame of a thread that waits in gpustore, and its place there; None if none."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_FUTURES):
            return frame, frame.f_lasti
        frame = frame.f_back
    return None


def _blocked() -> gpustore.UnsupportedError:
    return gpustore.UnsupportedError(
        "the event loop that runs the store waits for gpustore, which waits for the loop: use "
        "`await` in place of result(), or call from another thread (asyncio.to_thread)"
    )


def _not_running(loop: asyncio.AbstractEventLoop) -> gpustore.StoreIOError:
    state = "is closed" if loop.is_closed() else "does not run"
    return gpustore.StoreIOError(f"the event loop that is to run the store {state}")
