"""Open files of a device, for reads straight into its memory.

A kvstore opens a file as for any read. The device opens files by path, so it gets the path that the
system has for an open descriptor: that names the file itself, whatever has been renamed or linked
meanwhile.

Handles are slow to make and kept. One is found by what makes a generation: file system, inode, time
of last change and size. As long as a handle is open its inode is no other file's, so a file that
was replaced is never read through the handle of the old one; one that was written in place has
another time or size, which is looked at again when its reads have ended.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from gpustore.device.protocol import Device, DeviceFile
from gpustore.errors import DeviceError, UnsupportedError
from gpustore.runtime.statistics import STATISTICS

HANDLES = 64
"""Most handles that are kept; each takes about three descriptors of the process."""

_FAILURES = 8
"""Failures in a row after which no reads of a file system are tried any more."""

_Identity = tuple[int, int, int, int]


class Handle:
    """Open file of a device.

    Attributes
    ----------
    file : DeviceFile
    uses : int
        Number of reads under way; the file is not closed before they have ended.

    Raises
    ------
    OSError, UnsupportedError
        Errors of :meth:`gpustore.device.protocol.Device.open_file`.
    """

    __slots__ = ("_descriptor", "_identity", "file", "uses")

    def __init__(self, device: Device, fd: int, identity: _Identity) -> None:
        self._identity = identity
        self._descriptor = os.dup(fd)
        try:
            self.file: DeviceFile = device.open_file(Path(f"/proc/self/fd/{self._descriptor}"))
        except BaseException:
            os.close(self._descriptor)
            raise
        self.uses = 0

    @property
    def device_number(self) -> int:
        """Number of the file system, ``st_dev``."""
        return self._identity[0]

    def is_unchanged(self) -> bool:
        """Whether the file was not written to since the kvstore read its status."""
        return _identity(os.fstat(self._descriptor)) == self._identity

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more, so that no store can open it again."""
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self, device: Device) -> None:
        """Close the file; none of its reads may be under way."""
        with suppress(DeviceError):  # A lost device has lost its files too.
            device.close_file(self.file)
        os.close(self._descriptor)


class OpenFiles:
    """Cache of the open files of a device. Thread-safe.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    unsupported_reason : str or None
        Reason if this device reads no files at all; None as long as none is known.
    """

    def __init__(self, device: Device) -> None:
        self.unsupported_reason: str | None = None
        self._device = device
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._handles: OrderedDict[_Identity, Handle] = OrderedDict()
        self._indirect: set[int] = set()
        self._failures: Counter[int] = Counter()
        weakref.finalize(self, _close_at_exit, device, self._handles, self._pid)

    def may_be_direct(self, file_system: Callable[[], int | None]) -> bool:
        """Return whether files of a file system may be read straight into device memory.

        That is so until it is known that they are not.
        """
        if self.unsupported_reason is not None:
            return False
        return not self._indirect or file_system() not in self._indirect

    def take(self, fd: int, status: os.stat_result, end_reads: Callable[[], None]) -> Handle | None:
        """Return the handle of an open file, which the caller puts back.

        Parameters
        ----------
        fd : int
            Descriptor of the file; the caller may close it afterwards.
        status : os.stat_result
            Status of `fd`.
        end_reads : callable
            Puts back the handles of the caller; called if all handles are in use.

        Returns
        -------
        Handle or None
            Handle; None to read through host memory, after the reason was counted.
        """
        if self.unsupported_reason is not None or status.st_dev in self._indirect:
            STATISTICS.add(direct_unavailable=1)
            return None
        self._forget_after_fork()
        identity = _identity(status)
        with self._lock:
            found = self._handles.get(identity)
            if found is not None:
                found.uses += 1
                self._handles.move_to_end(identity)
                return found
        if not self._has_room():
            end_reads()
            if not self._has_room():
                STATISTICS.add(direct_fallbacks=1)
                return None
        return self._opened(fd, identity)

    def _has_room(self) -> bool:
        """Whether there is room for one more handle, at the cost of the oldest idle one."""
        with self._lock:
            evicted = self._evicted(HANDLES - 1)
            has_room = len(self._handles) < HANDLES
        self._close(evicted)
        return has_room

    def _opened(self, fd: int, identity: _Identity) -> Handle | None:
        try:
            handle = Handle(self._device, fd, identity)
        except OSError:
            STATISTICS.add(direct_fallbacks=1)
            self._note(identity[0], failed=True)
            self.close_idle()  # There may be too many open files.
            return None
        except UnsupportedError as error:
            self.unsupported_reason = error.text
            STATISTICS.add(direct_unavailable=1)
            return None
        if not handle.file.is_direct:
            # The device would read through host memory; the pinned path does that as well.
            self._indirect.add(identity[0])
            handle.close(self._device)
            STATISTICS.add(direct_unavailable=1)
            return None
        with self._lock:
            # Another thread may have opened it as well.
            kept = self._handles.setdefault(identity, handle)
            kept.uses += 1
        if kept is not handle:
            handle.close(self._device)
        return kept

    def put(self, handle: Handle, *, failed: bool = False) -> None:
        """Give a handle back, after the read has ended."""
        with self._lock:
            handle.uses -= 1
        self._note(handle.device_number, failed=failed)

    def _note(self, device_number: int, *, failed: bool) -> None:
        """Count failures in a row on one file system."""
        with self._lock:
            self._failures[device_number] = self._failures[device_number] + 1 if failed else 0
            if self._failures[device_number] == _FAILURES:
                self._indirect.add(device_number)

    def close_idle(self) -> None:
        """Close all handles that are not in use."""
        self._forget_after_fork()
        with self._lock:
            idle = self._evicted(0)
        self._close(idle)

    def _evicted(self, most: int) -> list[Handle]:
        """Remove idle handles, the oldest first, until at most `most` are left, and return them."""
        idle = [identity for identity, one in self._handles.items() if not one.uses]
        # The disk keeps a file that has no name until the last handle is closed.
        gone = [identity for identity in idle if self._handles[identity].is_deleted]
        old = [identity for identity in idle if identity not in gone]
        excess = max(0, len(self._handles) - len(gone) - most)
        return [self._handles.pop(identity) for identity in (*gone, *old[:excess])]

    def _close(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            handle.close(self._device)

    def _forget_after_fork(self) -> None:
        """Forget the handles of the parent process, without closing them."""
        if os.getpid() != self._pid:
            _INHERITED.append(self._handles)
            self._lock = threading.Lock()
            self._handles = OrderedDict()
            self._pid = os.getpid()


_INHERITED: list[OrderedDict[_Identity, Handle]] = []
"""Handles of the parent, kept because the libraries close handles that are dropped."""


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _close_at_exit(device: Device, handles: OrderedDict[_Identity, Handle], pid: int) -> None:
    """Close the handles at exit, before their libraries are unloaded."""
    while handles and os.getpid() == pid:
        handles.popitem()[1].close(device)
