"""Opening of files and directories without leaving the root of their store, and generations.

A symbolic link below the root may lead elsewhere in the store but not out of it. The user chooses
the root itself and everything above it, which may be links. ``openat2`` lets the kernel enforce
this in the same system call that opens the file:

1. open the whole path, refusing every link: the common case, nothing more to check;
2. on a link, open the root, and the rest of the path beneath it;
3. on a link with an absolute target (or without ``openat2``), resolve both and compare.

Source: ``openat2(2)``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import Final

from gpustore.errors import StoreIOError
from gpustore.kvstores.base import KeyDirectory
from gpustore.strict_json.parsing import quote

# O_NONBLOCK: opening a FIFO returns at once instead of waiting for a writer.
READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
OVERWRITE_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
CREATE_FLAGS: Final = OVERWRITE_FLAGS | os.O_EXCL

_AT_FDCWD: Final = -100
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08
_RETRIES: Final = 32

_pack_generation = struct.Struct("<xQQqQ").pack

# How often a file is opened anew that an NFS server replaced meanwhile.
_ATTEMPTS: Final = 10
_FILE_TYPES: Final = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


class _OpenHow(ctypes.Structure):
    """``struct open_how`` of ``<linux/openat2.h>``."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


# Without argtypes a call costs 0.5 us less; prebuilt arguments of full width replace them.
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_OPENAT2_NUMBER: Final = ctypes.c_long(437)  # the same on every Linux architecture
_HOW_SIZE: Final = ctypes.c_size_t(ctypes.sizeof(_OpenHow))
_MODE: Final = 0o666
_HOW = {
    (flags, resolve): ctypes.pointer(_OpenHow(flags, _MODE if flags & os.O_CREAT else 0, resolve))
    for flags in (READ_FLAGS, DIRECTORY_FLAGS, OVERWRITE_FLAGS, CREATE_FLAGS)
    for resolve in (_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH)
}


def _openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    """A file descriptor, or a negative errno (cheaper than an exception for absent chunks)."""
    name = path.encode("utf-8", "surrogateescape")
    how = _HOW[flags, resolve]
    for _ in range(_RETRIES):
        fd: int = _syscall(_OPENAT2_NUMBER, directory, name, how, _HOW_SIZE)
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        # EAGAIN: something was renamed while the kernel followed ".." of a link.
        if code not in (errno.EINTR, errno.EAGAIN):
            return -code
    return -errno.EAGAIN


def _open(path: str, flags: int) -> int:
    """A file descriptor, or a negative errno."""
    try:
        return os.open(path or ".", flags, _MODE)
    except OSError as error:
        return -(error.errno or errno.EIO)


def _have_openat2() -> bool:
    fd = _openat2(_AT_FDCWD, ".", DIRECTORY_FLAGS, _RESOLVE_BENEATH)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


class Root:
    """Directory or prefix below which a store may open files.

    Parameters
    ----------
    path : str
        Path of the kvstore. Without a final slash it may be a directory, a file, or the common
        beginning of several names.
    """

    __slots__ = ("_openat2", "_root_has_link", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._openat2 = _OPENAT2
        self._root_has_link = False

    def directory_of(self, key: str) -> str | None:
        """Return the directory, with its slash, that `key` must stay in; None for the root."""
        path = self.path
        if key.startswith(path) and len(key) > len(path):
            if not path or path.endswith("/"):
                return path
            if key[len(path)] == "/":
                return f"{path}/" if len(key) > len(path) + 1 else None
            return path[: path.rfind("/") + 1]
        return None

    def open(self, key: str, flags: int) -> int:
        """Open a path.

        Parameters
        ----------
        key : str
            Path of a file, or of a directory with a trailing slash, without ``..``.
        flags : int
            One of the constants of this module.

        Returns
        -------
        int
            A file descriptor, or a negative errno.

        Raises
        ------
        StoreIOError
            If a link leads out of the root.
        """
        if not self._openat2:
            return self._open_resolved(key, flags)
        if not self._root_has_link:
            fd = _openat2(_AT_FDCWD, key or ".", flags, _RESOLVE_NO_SYMLINKS)
            if fd != -errno.ELOOP:
                return fd
        directory = self.directory_of(key)
        if directory is None:
            return _open(key, flags)
        root = _open(directory, DIRECTORY_FLAGS)
        if root < 0:
            return root
        try:
            fd = _openat2(root, key[len(directory) :], flags, _RESOLVE_BENEATH)
        finally:
            os.close(root)
        if fd == -errno.EXDEV:
            return self._open_resolved(key, flags)
        if fd >= 0 and not self._root_has_link:
            # With a link in the root step 1 always fails; it is skipped from now on.
            absolute = os.path.abspath(directory)  # noqa: PTH100  resolve() would follow links
            self._root_has_link = os.path.realpath(directory) != absolute
        return fd

    @property
    def refuses_links(self) -> bool:
        """Whether files are opened by their whole path, in which no part is a link."""
        return self._openat2 and not self._root_has_link

    def key_directory(self, prefix: str) -> KeyDirectory | None:
        """Return the directory of keys with a prefix; None if their root is not a directory.

        Files are opened there without following links, as in step 1 of :meth:`open`. If the
        directory cannot be opened, neither can they.
        """
        if self._openat2 and not self._root_has_link:
            name = prefix.encode("utf-8", "surrogateescape")
            return KeyDirectory(_AT_FDCWD, _RESOLVE_NO_SYMLINKS, name, _pack_generation)
        directory = self.directory_of(f"{prefix}0")
        if directory is None:
            return None
        descriptor = max(_open(directory, DIRECTORY_FLAGS), -1)
        name = prefix[len(directory) :].encode("utf-8", "surrogateescape")
        resolve = _RESOLVE_NO_SYMLINKS if self._openat2 else 0
        return KeyDirectory(descriptor, resolve, name, _pack_generation)

    def _open_resolved(self, key: str, flags: int) -> int:
        directory = self.directory_of(key)
        if directory is None:
            return _open(key, flags)
        root = _with_slash(os.path.realpath(directory or "."))
        target = os.path.realpath(key)
        if not _with_slash(target).startswith(root):
            raise StoreIOError(
                f"{quote(key)} is, or lies behind, a link that leads out of the store: "
                f"{quote(target)} is not in {quote(root)}",
                status="PERMISSION_DENIED",
                key=key,
            )
        return _open(target, flags | os.O_NOFOLLOW)


def _with_slash(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"


_OPENAT2: Final = os.uname().sysname == "Linux" and _have_openat2()


# The canonical status of an errno, as absl::ErrnoToStatusCode assigns it.
_STATUS: Final = {
    code: status
    for status, codes in {
        "INVALID_ARGUMENT": (errno.EINVAL, errno.ENAMETOOLONG, errno.E2BIG, errno.EFAULT),
        "DEADLINE_EXCEEDED": (errno.ETIMEDOUT,),
        "NOT_FOUND": (errno.ENOENT, errno.ENODEV, errno.ENXIO),
        "ALREADY_EXISTS": (errno.EEXIST,),
        "PERMISSION_DENIED": (errno.EPERM, errno.EACCES, errno.EROFS),
        "FAILED_PRECONDITION": (
            *(errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EBADF, errno.EBUSY),
            *(errno.ETXTBSY, errno.EPIPE, errno.ELOOP),
        ),
        "RESOURCE_EXHAUSTED": (
            *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EMLINK),
        ),
        "OUT_OF_RANGE": (errno.EFBIG, errno.EOVERFLOW, errno.ERANGE),
        "UNIMPLEMENTED": (errno.ENOSYS, errno.ENOTSUP),
        "UNAVAILABLE": (errno.EAGAIN, errno.ENOLCK, errno.EINTR),
        "ABORTED": (errno.EDEADLK, errno.ESTALE),
    }.items()
    for code in codes
}


def io_error(code: int | OSError, action: str, key: str) -> StoreIOError:
    """Return the typed error for a failed system call.

    Parameters
    ----------
    code : int or OSError
        Error number or exception; an exception becomes the cause.
    action : str
        The infinitive that follows "Failed to".
    key : str
        The file of the system call.
    """
    number = code if isinstance(code, int) else code.errno or errno.EIO
    error = StoreIOError(
        f"Failed to {action}: {quote(key)}: {os.strerror(number)} [os_error_code='{number}']",
        status=_STATUS.get(number, "UNKNOWN"),
        key=key,
    )
    error.errno = number
    if isinstance(code, OSError):
        error.__cause__ = code
    return error


def open_regular(root: Root, key: str, flags: int = READ_FLAGS) -> tuple[int, os.stat_result] | int:
    """Open a regular file.

    Parameters
    ----------
    root : Root
        Root that links must not leave.
    key : str
        A checked path.
    flags : int, optional
        Flags of :meth:`Root.open`.

    Returns
    -------
    (int, os.stat_result) or int
        The file descriptor and its status, or a negative errno.

    Raises
    ------
    StoreIOError
        If the file is not a regular file.
    """
    fd = -errno.ESTALE
    for _ in range(_ATTEMPTS):
        fd = root.open(key, flags)
        # ESTALE: an NFS server replaced the file between two steps of the open.
        if fd != -errno.ESTALE:
            break
    if fd < 0:
        return fd
    try:
        status = os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise
    if stat.S_ISREG(status.st_mode):
        return fd, status
    os.close(fd)
    file_type = _FILE_TYPES.get(stat.S_IFMT(status.st_mode), "special file")
    raise StoreIOError(
        f"local file {quote(key)} is not a regular file but a {file_type}",
        status="FAILED_PRECONDITION",
        key=key,
    )


def generation_of(status: os.stat_result) -> bytes:
    """Return the generation of a key whose file has this status."""
    return _pack_generation(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
