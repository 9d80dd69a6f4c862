"""Sends many HTTP requests at once from one thread and retries those with transient failures.

1. Requests begin in order, as many as there are permits; each has a connection to itself.
2. The thread waits until some of the sockets are ready and drives these on.
3. A transient failure (no connection, a lost one, a body that is too short, status 408, 429, 500,
   502, 503, 504) is retried after a pause of random length, at least as long as
   ``Retry-After`` says; a connection that the server closed while it was idle, at once.
4. Every wait has an end: to connect, for the next byte, and for a request with all repetitions,
   which is near as long as the process has never had a connection to the server.

Nothing follows a redirect to another origin, and no message holds a query or a header field, but
those that say what the body is.
"""

from __future__ import annotations

import heapq
import math
import random
import select
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import urljoin, urlsplit

from gpustore.errors import GpustoreError, NetworkWarning, StoreIOError
from gpustore.kvstores.http.connection import Connection, Lost, Steps
from gpustore.kvstores.http.message import HttpRequest, HttpResponse, Origin
from gpustore.kvstores.http.pool import POOL
from gpustore.resources._request_concurrency import Permits
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.statistics import STATISTICS

PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of transient failures (RFC 9110, section 15; 429: RFC 6585, section 4)."""

_REACH: Final = '(member "reach" of the context resource "http_request_timeouts")'
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 5
_LONGEST_RETRY_AFTER_S: Final = 30.0
_NBYTES_PER_S: Final = 1 << 16
"""Bytes sent or received that extend the deadline of a request by one second."""
_WARNED_S: Final = 2.0
"""Seconds after which there is a warning about a server that has never been reached."""
_TICK_S: Final = 0.25
"""Seconds between a waiting thread's checks for cancellation and for expired deadlines."""

_reached: Final[set[Origin]] = set()
"""Origins to which this process, or the one that it was forked from, has had a connection."""
_warned: Final[set[Origin]] = set()
"""Origins about which there was a warning."""


class HttpClient:
    """Sends requests to one origin. Thread-safe.

    Parameters
    ----------
    origin : Origin
    permits : Permits
    retries : Retries
    timeouts : Timeouts
    explain : callable, optional
        Makes a short text from a response that is not a success.
    passing : set of int, optional
        Statuses of transient failures, which are retried.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        permits: Permits,
        retries: Retries,
        timeouts: Timeouts,
        explain: Callable[[HttpResponse], str] = lambda response: "",
        passing: frozenset[int] = PASSING,
    ) -> None:
        self.origin = origin
        self.permits = permits
        self.retries = retries
        self.timeouts = timeouts
        self.explain = explain
        self.passing = passing

    def send(self, requests: Iterable[HttpRequest]) -> list[HttpResponse | GpustoreError]:
        """Send `requests`, all at once, and wait for the responses.

        Parameters
        ----------
        requests : iterable of HttpRequest
            Requests, each taken when it begins, so that thousands need not exist at once.

        Returns
        -------
        list of HttpResponse or GpustoreError
            Outcomes in the order of `requests`; a response may have any status that is not retried.

        Raises
        ------
        Cancelled
            If the task of this thread is cancelled.
        """
        return _Round(self, requests).run()

    def send_one(self, request: HttpRequest) -> HttpResponse:
        """Send one request and return its response; its error is raised."""
        [result] = self.send([request])
        if isinstance(result, GpustoreError):
            raise result
        return result

    def status_error(self, response: HttpResponse) -> StoreIOError:
        """Make the error for a response with an unexpected status."""
        denied = response.status in (401, 403)
        status = "PERMISSION_DENIED" if denied else "FAILED_PRECONDITION"
        return StoreIOError(self.words(response) + response.retried, status=status)

    def words(self, response: HttpResponse) -> str:
        """Describe a response that is not a success: phrase, status and explanation."""
        try:
            phrase = HTTPStatus(response.status).phrase
        except ValueError:
            phrase = "Unknown"
        said = self.explain(response)
        return f"{phrase} [HTTP code {response.status}]{': ' if said else ''}{said}"


class _Job:
    """A request that is being sent, with its attempts and deadlines."""

    __slots__ = (
        "attempted_at",
        "attempts",
        "begun",
        "connection",
        "extra_s",
        "fd",
        "index",
        "lost",
        "redirects",
        "request",
        "stale",
        "steps",
        "until",
        "wanted",
    )

    def __init__(self, index: int, request: HttpRequest) -> None:
        self.index = index
        self.request = request
        self.attempts = self.redirects = self.stale = 0
        self.begun = -1.0
        self.attempted_at = 0.0
        self.extra_s = 0.0  # What former attempts have sent and received, in seconds.
        self.lost = False
        self.connection: Connection | None = None
        self.steps: Steps | None = None
        self.fd = -1
        self.wanted = 0
        self.until = 0.0


class _Round:
    """One call of :meth:`HttpClient.send`."""

    def __init__(self, client: HttpClient, requests: Iterable[HttpRequest]) -> None:
        self._client = client
        self._results: list[HttpResponse | GpustoreError | None] = []
        self._new = iter(requests)
        self._ready: deque[_Job] = deque()
        self._refill()
        self._pausing: list[tuple[float, int, _Job]] = []
        self._active: dict[int, _Job] = {}
        self._poll = select.poll()
        self._wanted = CancelToken.current()
        self._checked = 0.0
        timeouts = client.timeouts
        self._tick_ms = 1000 * min(_TICK_S, *astuple(timeouts))
        self._is_reached = client.origin in _reached
        self._begun = math.inf  # Time of the first attempt.
        self._failure = ""

    def run(self) -> list[HttpResponse | GpustoreError]:
        try:
            while self._ready or self._pausing or self._active:
                self._wanted.check()
                self._begin()
                if self._active:
                    self._drive()
                if not self._has_reached():
                    self._warn()
        finally:
            for job in list(self._active.values()):
                self._leave(job, reusable=False)
        return [result for result in self._results if result is not None]

    @property
    def _connect_s(self) -> float:
        """Limit of one attempt to connect; there is time for more than one address of a server."""
        timeouts = self._client.timeouts
        if self._is_reached:
            return timeouts.connect_s
        return min(timeouts.connect_s, timeouts.reach_s / 3)

    def _has_reached(self) -> bool:
        """Return whether there has ever been a connection to the server."""
        if not self._is_reached:
            self._is_reached = self._client.origin in _reached
        return self._is_reached

    def _reach(self) -> None:
        """Note that there is a connection to the server."""
        self._is_reached = True
        _reached.add(self._client.origin)

    def _warn(self) -> None:
        """Warn once if the server has not been reached for long."""
        origin, limit_s = self._client.origin, self._client.timeouts.reach_s
        waited_s = time.monotonic() - self._begun
        if origin in _warned or waited_s < min(_WARNED_S, limit_s / 4):
            return
        _warned.add(origin)
        failure = self._failure or "no answer yet"
        warnings.warn(
            f"{origin} has not been reached for {waited_s:.1f} s: {failure}; it is tried for "
            f"{limit_s:g} s {_REACH}",
            NetworkWarning,
            stacklevel=2,
        )

    def _refill(self) -> None:
        """Make a job of the next request if none is ready."""
        if not self._ready:
            request = next(self._new, None)
            if request is not None:
                self._ready.append(_Job(len(self._results), request))
                self._results.append(None)

    def _begin(self) -> None:
        """Begin requests as long as there are permits; wait briefly if none is under way."""
        now = time.monotonic()
        while self._pausing and self._pausing[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._pausing)[2])
        while self._ready and self._client.permits.take(0 if self._active else _TICK_S):
            self._attempt(self._ready.popleft())
            self._refill()
        if self._pausing and not self._ready and not self._active:
            time.sleep(min(_TICK_S, max(0.0, self._pausing[0][0] - time.monotonic())))

    def _attempt(self, job: _Job) -> None:
        now = time.monotonic()
        if job.begun < 0:
            job.begun = now
            self._begun = min(self._begun, now)
        job.attempts += 1
        job.attempted_at = now
        job.connection = POOL.take(self._client.origin)
        job.connection.moved = 0
        job.steps = job.connection.perform(job.request)
        try:
            self._step(job)
        except BaseException:
            self._leave(job, reusable=False)
            raise

    def _drive(self) -> None:
        """Wait for sockets and drive their requests on."""
        ready = self._poll.poll(self._tick_ms)
        for fd, _ in ready:
            self._step(self._active[fd])
        now = time.monotonic()
        if (now - self._checked) * 1000 >= self._tick_ms or not ready:
            self._checked = now
            for job in [job for job in self._active.values() if self._until(job) <= now]:
                self._expire(job, now)

    def _until(self, job: _Job) -> float:
        """Return the moment at which a job expires, on the monotonic clock in seconds."""
        return min(job.until, self._deadline(job))

    def _deadline(self, job: _Job) -> float:
        moved = 0 if job.connection is None else job.connection.moved
        earned = job.extra_s + moved / _NBYTES_PER_S
        timeouts = self._client.timeouts
        if not self._has_reached():
            return job.begun + min(timeouts.reach_s, timeouts.total_s)
        return job.begun + timeouts.total_s + earned

    def _expire(self, job: _Job, now: float) -> None:
        timeouts = self._client.timeouts
        assert job.connection is not None
        sent = job.connection.connected
        if sent and self._deadline(job) <= now:
            text = f"no complete response within {timeouts.total_s:g} s"
        elif sent:
            text = f"no data for {timeouts.idle_s:g} s"
        else:
            waited_s = min(self._connect_s, now - job.attempted_at)
            text = f"no connection within {waited_s:.3g} s"
            job.connection.blame_address()
        text += ' (see the context resource "http_request_timeouts")'
        self._leave(job, reusable=False)
        self._failed(job, Lost(text, sent=sent), "DEADLINE_EXCEEDED")

    def _step(self, job: _Job) -> None:
        """Drive one request on until it waits or ends."""
        assert job.steps is not None
        assert job.connection is not None
        try:
            wanted = next(job.steps)
        except StopIteration as end:
            self._leave(job, reusable=True)
            self._received(job, end.value)
        except Lost as error:
            self._leave(job, reusable=False)
            self._failed(job, error, "ABORTED")
        except GpustoreError as error:
            self._leave(job, reusable=False)
            if job.attempts > 1:
                error = error.suffixed(f"; {job.attempts} attempts were made")
            self._results[job.index] = error
        else:
            self._wait(job, wanted)

    def _wait(self, job: _Job, wanted: int) -> None:
        connection = job.connection
        assert connection is not None
        fd = connection.fileno()
        if fd != job.fd:  # The first time, or the next of several addresses.
            self._forget(job)
            job.fd = fd
            self._active[fd] = job
            self._poll.register(fd, wanted)
        elif wanted != job.wanted:
            self._poll.modify(fd, wanted)
        job.wanted = wanted
        if connection.connected:
            if not self._is_reached:
                self._reach()
            job.until = time.monotonic() + self._client.timeouts.idle_s
        else:
            job.until = job.attempted_at + self._connect_s

    def _forget(self, job: _Job) -> None:
        if job.fd >= 0:
            self._poll.unregister(job.fd)
            del self._active[job.fd]
            job.fd = -1

    def _leave(self, job: _Job, *, reusable: bool) -> None:
        """End an attempt: give its connection and its permit back."""
        self._forget(job)
        connection, job.connection, job.steps = job.connection, None, None
        if connection is None:
            return
        if connection.connected and not self._is_reached:
            self._reach()
        job.extra_s += connection.moved / _NBYTES_PER_S
        if not reusable:
            connection.reusable = False
        POOL.give_back(connection)
        self._client.permits.give_back()

    # ------------------------------------------------------------------ outcomes

    def _received(self, job: _Job, response: HttpResponse) -> None:
        response.attempts, response.lost = job.attempts, job.lost
        if response.status in self._client.passing:
            text = self._client.words(response)
            # A server that reports a failure may have executed the request before.
            lost = Lost(text, sent=response.status != 429)
            self._failed(job, lost, "ABORTED", _retry_after(response))
        elif response.status in _REDIRECTS and job.request.follows_redirects:
            self._redirected(job, response)
        else:
            self._results[job.index] = response

    def _redirected(self, job: _Job, response: HttpResponse) -> None:
        origin = self._client.origin
        location = response.headers.get("location", "")
        job.redirects += 1
        other = None
        try:
            parts = urlsplit(urljoin(f"{origin}{job.request.target}", location))
            other = Origin.parse(parts.scheme, parts.netloc)
        except GpustoreError:
            pass
        except ValueError:
            parts = urlsplit("")
        if not location or not (parts.scheme or parts.netloc):
            text = "the redirect leads to a malformed URL"
        elif other != origin:
            where = f"{parts.scheme}:" if other is None else str(other)
            text = f"the redirect to another origin, {where}, is not followed; open that URL itself"
        elif job.redirects > _MOST_REDIRECTS:
            text = f"there were more than {_MOST_REDIRECTS} redirects"
        else:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            if target.isascii() and target.isprintable() and " " not in target:
                job.request = replace(job.request, target=target)
                job.attempts -= 1
                self._ready.appendleft(job)
                return
            text = "the redirect leads to a malformed URL"
        self._results[job.index] = StoreIOError(
            f"{self._client.words(response)}: {text}{response.retried}",
            status="FAILED_PRECONDITION",
        )

    def _failed(
        self, job: _Job, error: Lost, status: str, retry_after_s: float | None = None
    ) -> None:
        """Repeat, or give up."""
        now = time.monotonic()
        self._failure = str(error)
        job.lost |= error.sent
        if error.stale:
            # A connection that was closed while idle is no failed attempt.
            job.stale += 1
            STATISTICS.add(retries=1)
            self._ready.appendleft(job)
            return
        retries = self._client.retries
        failed = job.attempts - job.stale
        longest = retries.initial_delay_s * 2.0 ** min(failed - 1, 60)
        pause = random.uniform(0.0, min(retries.max_delay_s, longest))
        why = ""
        if retry_after_s is not None:
            pause = max(pause, retry_after_s)
            if retry_after_s > _LONGEST_RETRY_AFTER_S:
                why = f", and the server wants to be left alone for {retry_after_s:.0f} s"
        if failed <= retries.max_retries and not why and now + pause < self._deadline(job):
            STATISTICS.add(retries=1)
            heapq.heappush(self._pausing, (now + pause, job.index, job))
            return
        text = f"{error}{why}"
        if failed > 1:
            took = now - job.begun
            text = f"All {failed - 1} retry attempts failed, within {took:.1f} s: {text}"
        if failed <= retries.max_retries and not self._has_reached():
            limit_s = self._client.timeouts.reach_s
            text += f"; the server was never reached, and is tried for {limit_s:g} s {_REACH}"
        self._results[job.index] = StoreIOError(text, status=status)


def _retry_after(response: HttpResponse) -> float | None:
    """Return the pause that a response asks for, in seconds."""
    field = response.headers.get("retry-after", "")
    if field.isascii() and field.isdigit():
        return float(field)
    try:
        return max(0.0, parsedate_to_datetime(field).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
