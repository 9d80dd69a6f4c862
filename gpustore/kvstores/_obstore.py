"""Calls of obstore, and what its errors mean.

obstore's threads do not live on in a forked process, where a call would wait for ever. So a child
of a process that has used it gets a ForkError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from gpustore import registry
from gpustore.errors import ForkError, StoreIOError, UnsupportedError
from gpustore.resources.http_request_timeouts import Timeouts

__all__ = [
    "Hints",
    "Missing",
    "NotInRange",
    "Passing",
    "Unfulfilled",
    "begin_use",
    "called",
    "client_options",
    "obstore_package",
    "require_obstore",
]

_PASSING: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_KNOWN: Final = frozenset(HTTPStatus)
_STATUS: Final = re.compile(r"status code: ([0-9]{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_LOST: Final = re.compile(r"kind: (Connect|Request|Timeout|Interrupted|Decode)\b")

_user = 0
"""The process that has started obstore's threads, 0 if none has."""


def require_obstore() -> None:
    """Raise UnsupportedError unless the package obstore is installed."""
    if not registry.is_installed("obstore"):
        raise UnsupportedError("buckets need the package obstore: pip install 'gpustore[cloud]'")


def obstore_package() -> Any:
    """The package obstore, for what starts no threads."""
    import obstore

    return obstore


def begin_use(*, waits: bool = True) -> Any:
    """The package obstore, for what starts its threads and, if it `waits`, needs them.

    Raises
    ------
    ForkError
        If they are needed and were those of the process this one was forked from.
    """
    global _user
    if not _user:
        _user = os.getpid()
    if waits and _user != os.getpid():
        raise ForkError(
            "a bucket was used before this process was forked, and obstore does not work in it: "
            'start workers with "spawn" or "forkserver", or open buckets in the workers only'
        )
    return obstore_package()


def client_options(timeouts: Timeouts) -> dict[str, Any]:
    """The options for a client of obstore."""

    def limited(seconds: float) -> timedelta:
        return timedelta(seconds=min(seconds, 1e8))

    return {
        "connect_timeout": limited(timeouts.connect_s),
        "read_timeout": limited(timeouts.idle_s),
        "timeout": limited(timeouts.total_s),
        "user_agent": "gpustore",
    }


class Passing(Exception):
    """A failure that may pass; `sent`: the server may have obeyed."""

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


class Missing(Exception):
    """There is no such key. `sure`: and it is not the bucket that is missing."""

    def __init__(self, *, sure: bool) -> None:
        self.sure = sure


class Unfulfilled(Exception):
    """A condition does not hold."""


class NotInRange(Exception):
    """The range does not lie in the value."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What may help, for errors.

    Attributes
    ----------
    redirect : str
        Added to the error that the request was sent elsewhere.
    keyless : str
        How a public bucket is opened, for the error that there are no credentials.
    """

    redirect: str = ""
    keyless: str = ""


def called(hints: Hints, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Call obstore, whose errors become ours; none of its text is shown that might be secret."""
    exceptions = obstore_package().exceptions
    try:
        return function(*args, **options)
    except exceptions.NotModifiedError:
        raise Unfulfilled from None
    except (exceptions.PreconditionError, exceptions.AlreadyExistsError) as error:
        if "status code: 409" in str(error):  # Another writer at the same moment.
            raise Passing("Conflict [HTTP code 409]", sent=False) from None
        raise Unfulfilled from None
    except FileNotFoundError as error:
        code = _code(str(error))
        if code == "NoSuchBucket":
            raise StoreIOError(
                "Not Found [HTTP code 404]: NoSuchBucket", status="NOT_FOUND"
            ) from None
        raise Missing(sure=bool(code) or "HEAD" not in str(error)) from None
    except (exceptions.BaseError, ValueError, OSError) as error:
        raise _explained(str(error), hints) from None


def _explained(text: str, hints: Hints) -> Exception:
    """What an error of obstore means."""
    status, code = _STATUS.search(text), _code(text)
    if "token request" in text or "credentials" in text.partition("Debug source")[0]:
        asked = f" [HTTP code {status[1]}]" if status else ""
        return StoreIOError(
            f"there are no credentials, or they cannot be fetched{asked}; for a public bucket: "
            f"{hints.keyless}",
            status="PERMISSION_DENIED",
        )
    if status is not None:
        number = int(status[1])
        phrase = HTTPStatus(number).phrase if number in _KNOWN else "Unknown"
        words = f"{phrase} [HTTP code {number}]{': ' if code else ''}{code}"
        if number in _PASSING:
            return Passing(words, sent=number != 429)
        if number == 416:
            return NotInRange()
        denied = number in (401, 403)
        return StoreIOError(
            words + (hints.redirect if number in (301, 307, 400) else ""),
            status="PERMISSION_DENIED" if denied else "FAILED_PRECONDITION",
        )
    lost = _LOST.search(text)
    if lost is not None:
        reasons = {"Connect": "cannot connect", "Timeout": "no answer in time"}
        return Passing(reasons.get(lost[1], "the connection was lost"))
    if "Range request not supported" in text:
        return StoreIOError("the server does not know ranges", status="FAILED_PRECONDITION")
    if "UnexpectedRange" in text:
        return StoreIOError("the response holds another range than was asked for", status="UNKNOWN")
    if "BareRedirect" in text or "without LOCATION" in text:
        return StoreIOError(
            f"the request was redirected{hints.redirect}", status="FAILED_PRECONDITION"
        )
    kind = re.match(r"[A-Za-z0-9 ]{1,60}", text)
    return StoreIOError(
        f"obstore: {kind[0] if kind else 'error'} (its text is left out, as it may hold secrets)",
        status="FAILED_PRECONDITION",
    )


def _code(text: str) -> str:
    """The code of an error that S3 or GCS describes."""
    match = _CODE.search(text)
    return match[1] if match else ""
