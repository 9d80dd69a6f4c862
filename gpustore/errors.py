"""Every error gpustore raises, in one tree, grouped by what the caller can do about it.

::

    GpustoreError
    +-- MetadataError(ValueError)          the JSON of a spec or of a file is wrong: correct it
    +-- MismatchError(ValueError)          what is stored is not what was asked: ask differently
    +-- CorruptChunkError(ValueError)      stored bytes do not decode: restore the key
    +-- LimitError(ValueError)             a size is beyond a limit: raise it, or distrust the file
    +-- InvalidKeyError(ValueError)        a key is not legal in this kvstore: choose another
    +-- NotFoundError(ValueError, KeyError)   nothing there: create it
    |   +-- PathNotFoundError(FileNotFoundError)   nothing at the path: look for a typo
    +-- AlreadyExistsError(ValueError)     something there: open it or delete it
    +-- ConflictError(ValueError)          another writer was faster: read again and retry
    +-- OutOfBoundsError(IndexError)       an index is outside the domain
    +-- CopyError(ValueError)              a copy does not fit its source or place: change it
    +-- UnsupportedError(NotImplementedError)  legal, but gpustore cannot do it
    +-- StoreIOError(OSError, ValueError)  the operating system or the network failed
    +-- DeviceError(RuntimeError)          the GPU, its driver or its libraries
        +-- ForkError                      CUDA was used before the process forked

Each class also derives from the builtin a caller would expect, so ``except ValueError`` works.
The text begins as TensorStore's does, including the status name where TensorStore prints one
(``NOT_FOUND: ...``), and then says where, what was found, what was expected, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Self


class GpustoreError(Exception):
    """Base of all errors raised by gpustore.

    Parameters
    ----------
    text : str
        The message without the status name.
    status : str, optional
        TensorStore's status name that precedes the text, ``""`` for none. Defaults to that of
        the class.
    key : str, optional
        The kvstore key (or file) the error is about.
    codec : str, optional
        The codec that failed.

    Attributes
    ----------
    kind : str
        Stable, machine-readable name of the class.
    text, status, key, codec
        The parameters; `status` is never None.
    """

    kind: ClassVar[str] = "error"
    default_status: ClassVar[str] = ""

    def __init__(
        self,
        text: str,
        *,
        status: str | None = None,
        key: str | None = None,
        codec: str | None = None,
    ) -> None:
        self.text = text
        self.status = self.default_status if status is None else status
        self.key = key
        self.codec = codec
        super().__init__(f"{self.status}: {text}" if self.status else text)

    # KeyError's own __str__ prints the repr of its argument, OSError's an errno.
    __str__ = Exception.__str__

    def prefixed(self, context: str, *, key: str | None = None) -> Self:
        """Return the same error with ``context: `` before its text, naming `key` if none was.

        >>> str(NotFoundError('"a" is missing').prefixed("Error opening x"))
        'NOT_FOUND: Error opening x: "a" is missing'
        """
        error = self.reworded(f"{context}: {self.text}")
        if error.key is None:
            error.key = key
        return error

    def suffixed(self, more: str) -> Self:
        """Return the same error with `more` behind its text.

        >>> str(NotFoundError('"a" is missing').suffixed('; so is "b"'))
        'NOT_FOUND: "a" is missing; so is "b"'
        """
        return self.reworded(self.text + more)

    def reworded(self, text: str) -> Self:
        """Return an error of the same class, attributes and cause whose message is `text`."""
        error = type(self)(text, **self._attributes())
        error.__cause__ = self.__cause__
        return error

    def _attributes(self) -> dict[str, Any]:
        return {"status": self.status, "key": self.key, "codec": self.codec}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.text, self._attributes()))


class prefixing:
    """Context manager that puts ``context: `` before the text of errors raised inside.

    A class, because a generator takes four times as long and opening an array enters dozens.

    Parameters
    ----------
    context : str or callable
        Description of the operation, or a function that returns it, called only on an error.
    status : str, optional
        TensorStore's status name to put in place of the error's own.
    """

    __slots__ = ("_context", "_status")

    def __init__(self, context: str | Callable[[], str], *, status: str | None = None) -> None:
        self._context = context
        self._status = status

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, GpustoreError):
            return
        context = self._context if isinstance(self._context, str) else self._context()
        prefixed = error.prefixed(context)
        if self._status is not None:
            attributes = {**prefixed._attributes(), "status": self._status}
            prefixed = type(prefixed)(prefixed.text, **attributes)
        raise prefixed from error.__cause__


class naming_key:
    """Context manager that sets the key of errors raised inside.

    Parameters
    ----------
    key : str
    """

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, GpustoreError):
            error.key = self._key


def _rebuild(cls: type[GpustoreError], text: str, attributes: dict[str, Any]) -> GpustoreError:
    return cls(text, **attributes)


class MetadataError(GpustoreError, ValueError):
    """JSON of a spec or of stored metadata is malformed or not allowed."""

    kind = "metadata"


class MismatchError(GpustoreError, ValueError):
    """A constraint given by the caller does not match what is stored."""

    kind = "mismatch"
    default_status = "FAILED_PRECONDITION"


class CorruptChunkError(GpustoreError, ValueError):
    """The stored bytes of a chunk do not decode to exactly one chunk.

    Attributes
    ----------
    key : str or None
        The kvstore key of the chunk.
    codec : str or None
        Name of the codec that cannot decode the bytes.
        reason : str
        Message of the error without key, codec and status name.
    """

    kind = "corrupt_chunk"
    default_status = "FAILED_PRECONDITION"

    @property
    def reason(self) -> str:
        """Message of the error without key, codec and status name."""
        return self.text


class LimitError(GpustoreError, ValueError):
    """A size is larger than the context resource ``limits`` allows."""

    kind = "limit"


class InvalidKeyError(GpustoreError, ValueError):
    """A key is not legal in its kvstore; no key is normalised into a legal one."""

    kind = "invalid_key"


class NotFoundError(GpustoreError, ValueError, KeyError):
    """Nothing is stored where something was expected."""

    kind = "not_found"
    default_status = "NOT_FOUND"
    __str__ = Exception.__str__


class PathNotFoundError(NotFoundError, FileNotFoundError):
    """Nothing at all is stored at the path of an array that was to be opened."""

    # TensorStore's status where it detects no format.
    default_status = "FAILED_PRECONDITION"
    __str__ = Exception.__str__


class AlreadyExistsError(GpustoreError, ValueError):
    """Something is stored where nothing was expected."""

    kind = "already_exists"
    default_status = "ALREADY_EXISTS"


class ConflictError(GpustoreError, ValueError):
    """Another writer changed a key between reading and writing it."""

    kind = "conflict"
    default_status = "ABORTED"


class TransactionError(GpustoreError, ValueError):
    """A transaction is not open any more, or cannot make the change that was asked of it."""

    kind = "transaction"


class OutOfBoundsError(GpustoreError, IndexError, ValueError):
    """An index lies outside the domain."""

    kind = "out_of_bounds"
    default_status = "OUT_OF_RANGE"


class CopyError(GpustoreError, ValueError):
    """The arguments of a copy do not fit its source or its place, or members were left out."""

    kind = "copy"


class UnsupportedError(GpustoreError, NotImplementedError, ValueError):
    """The request is legal, but gpustore has no implementation of it.

    TensorStore raises NotImplementedError or ValueError there.
    """

    kind = "unsupported"


class StoreIOError(GpustoreError, OSError, ValueError):
    """The operating system or the network failed; the cause is chained.

    Attributes
    ----------
    errno : int or None
        Error number of the operating system, None if the error is not one of its.
    """

    kind = "store_io"
    __str__ = Exception.__str__

    def __init__(self, text: str, *, errno: int | None = None, **attributes: Any) -> None:
        super().__init__(text, **attributes)
        self.errno = errno

    def _attributes(self) -> dict[str, Any]:
        return {**super()._attributes(), "errno": self.errno}


class DeviceError(GpustoreError, RuntimeError):
    """The GPU, its driver or one of its libraries is missing or failed."""

    kind = "device"


class ForkError(DeviceError):
    """CUDA or a bucket was used before this process was forked and cannot be used in it."""

    kind = "fork"


class NetworkWarning(UserWarning):
    """A server has not been reached for two seconds, and is tried on.

    Raised once for each server of a process. The text says what has failed, how long it is tried,
    and where to set that.
    """


class CopyWarning(UserWarning):
    """A copy does not keep a property of its source, or takes more memory or time than it need."""


class DeviceWarning(UserWarning):
    """A library of a GPU is missing or failed its self-test, and reads are slower for that.

    Raised once for each device of a process, by the first read that could use the library. The text
    says what to install.
    """
