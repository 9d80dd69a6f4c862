"""Sends what obstore asks for, so that its requests keep the promises of our own.

obstore follows redirects to other origins, does not see ``Retry-After``, shows no tokens and no
signatures, and has no switch for any of it. But it can be told to use a proxy, and this is one: a
listener on loopback to which obstore speaks in the clear and whose requests
:mod:`~gpustore.kvstores.http.client` sends on, encrypted if the bucket is. A signature covers the
host and the path of a request, not its scheme.

1. Who does not know the secret of a bucket is refused, so nobody else on the machine can use it;
   how many such connections there are, how long and what is kept of them is bounded.
2. Requests to the bucket are repeated, bounded and counted as all are. Anything but a success
   becomes an error of ours, which waits under a number that obstore is told (:class:`Route`).
3. Requests to a service that hands out credentials are sent on too, and any short answer but a
   redirect is handed back.
4. There are no tunnels: what is in them could not be bounded, and obstore takes as much memory for
   a body as its head announces.

Source: RFC 9112 section 3.2.2 (absolute form).
"""

from __future__ import annotations

import base64
import contextlib
import random
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Final
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakValueDictionary

from gpustore.errors import GpustoreError, LimitError, StoreIOError
from gpustore.kvstores.buckets.list_page import ListPages
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import BodyPlan, HttpRequest, HttpResponse, Origin, collect
from gpustore.resources._request_concurrency import Permits
from gpustore.resources.http_request_timeouts import Timeouts
from gpustore.runtime.executor import reset_after_fork

_HEAD_NBYTES: Final = 1 << 16
_BODY_NBYTES: Final = 64 << 20
"""More than a part of a value has."""
_PAGE_NBYTES: Final = 16 << 20
"""More than a page of a list has: 1000 keys of 1 KiB, each byte of them encoded."""
_MOST_FAILURES: Final = 1024
_MOST_STRANGERS: Final = 256
"""So many connections may not yet have said who they are."""
_OWN_WAIT_S: Final = 10.0
"""obstore has said everything by then: it is the same process."""
_PASSING_CODES: Final = (b">InternalError<", b">ServiceUnavailable<", b">SlowDown<")
"""Of errors that a repetition may change, where the status is 200."""
_SERVICE: Final = Timeouts(connect_s=2.0, idle_s=5.0, total_s=15.0)
"""A service of the same machine, or of its network."""

_PER_HOP: Final = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "host", "keep-alive", "te"),
        *("proxy-authorization", "proxy-connection", "transfer-encoding", "upgrade", "user-agent"),
    }
)
"""Fields that are not sent on, as whoever sends them on has their own."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Route:
    """What the relay knows of one bucket, as long as somebody holds it.

    Attributes
    ----------
    client : HttpClient
        Sends to the bucket.
    keyless : str
        How a public bucket is opened, for the error that there are no credentials.
    signs : bool
        Whether each request to the bucket shows who asks.
    encrypted : dict
        By what requests to them name: services that obstore believes to speak in the clear.
    secret : str
        Who asks with it is the obstore of this bucket.
    authorization : str
        That of the last request to the bucket.
    pages : ListPages
        Those of its lists.
    """

    client: HttpClient
    keyless: str
    signs: bool
    encrypted: dict[str, Origin] = field(default_factory=dict)
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    authorization: str = field(default="", repr=False)
    pages: ListPages = field(default_factory=ListPages, repr=False)
    _failures: dict[str, GpustoreError] = field(default_factory=dict)
    _uploads: Counter[str] = field(default_factory=Counter, repr=False)
    _ended: threading.Condition = field(default_factory=threading.Condition, repr=False)

    @property
    def unsent(self) -> str:
        """A key: requests for it are answered with 404 and not sent, but their fields are seen."""
        return f"unsent{self.secret}"

    def remember(self, error: GpustoreError) -> str:
        """Keep an error for who comes with the number that is returned."""
        number = f"relay-{secrets.token_hex(16)}"
        self._failures[number] = _without_frames(error)
        for old in list(self._failures)[:-_MOST_FAILURES]:  # Nobody has asked for it.
            self._failures.pop(old, None)
        return number

    def failed(self, error: GpustoreError) -> bytes:
        """Remember an error; the answer that stands for it."""
        return _answer(400, {}, f"<Error><Code>{self.remember(error)}</Code></Error>".encode())

    def failure(self, text: str) -> GpustoreError | None:
        """The error that an answer stands for which is a part of `text`."""
        number = next((number for number in list(self._failures) if number in text), None)
        return None if number is None else self._failures.pop(number, None)

    def no_credentials(self, why: str) -> StoreIOError:
        """The error that they were not found, or not fetched."""
        return StoreIOError(
            f"there are no credentials, or they cannot be fetched{why}; for a public bucket: "
            f"{self.keyless}",
            status="PERMISSION_DENIED",
        )

    @contextlib.contextmanager
    def in_order(self, method: str, query: str) -> Iterator[None]:
        """While a request is sent: parts of a value are not deleted before all have arrived.

        Those that arrive later would stay, and be paid for.
        """
        upload = dict(parse_qsl(query)).get("uploadId", "")
        if not upload:
            yield
        elif method != "PUT":
            with self._ended:
                self._ended.wait_for(lambda: not self._uploads[upload])
            yield
        else:
            with self._ended:
                self._uploads[upload] += 1
            try:
                yield
            finally:
                with self._ended:
                    self._uploads[upload] -= 1
                    self._uploads += Counter()  # Keeps those above 0.
                    self._ended.notify_all()


def shows_who(authorization: str) -> bool:
    """Whether a field ``Authorization`` says anything."""
    return bool(authorization.removeprefix("Bearer").strip())


class _Relay:
    """The listener of the process and its routes. Thread-safe; a forked child begins its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._strangers: dict[socket.socket, None] = {}
        self._routes: WeakValueDictionary[str, Route] = WeakValueDictionary()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Close the child's copy of the listener, at which the parent goes on listening."""
        self._lock = threading.Lock()
        self._routes = WeakValueDictionary()
        self._strangers = {}
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def open(self, route: Route) -> str:
        """Begin to serve a route; the URL of the proxy for its obstore, which is a secret.

        Raises
        ------
        StoreIOError
            If nobody can listen on loopback.
        """
        with self._lock:
            if self._listener is None:
                self._listener = self._begin()
            key = base64.b64encode(f"{route.secret}:".encode()).decode()
            self._routes[f"Basic {key}"] = route
            port = self._listener.getsockname()[1]
        return f"http://{route.secret}:@127.0.0.1:{port}"

    def _begin(self) -> socket.socket:
        try:
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            try:
                threading.Thread(
                    target=self._listen, args=(listener,), name="gpustore-relay", daemon=True
                ).start()
            except BaseException:
                listener.close()
                raise
        except (OSError, RuntimeError) as error:  # No more files, no more threads.
            raise StoreIOError(
                f"cannot listen at 127.0.0.1, where obstore is met: {error}", status="UNAVAILABLE"
            ) from error
        return listener

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if listener.fileno() < 0:
                    return
                time.sleep(0.01)  # Too many open files; those who wait ask again.
                continue
            with self._lock:
                self._strangers[connection] = None
                if len(self._strangers) > _MOST_STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    _hang_up(oldest)
            serve = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            try:
                serve.start()
            except RuntimeError:  # There are too many threads, or the program ends.
                self._known(connection)
                connection.close()

    def _known(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(connection, None)

    def _serve(self, connection: socket.socket) -> None:
        """Answer one request."""
        with connection:
            with contextlib.suppress(OSError, EOFError, ValueError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    head = _receive_head(connection)
                finally:
                    self._known(connection)
                connection.settimeout(_OWN_WAIT_S)
                self._obey(connection, head)
            _hang_up(connection)

    def _obey(self, connection: socket.socket, head: _Head) -> None:
        route = self._routes.get(head.fields.get("proxy-authorization", ""))
        if route is None:
            connection.sendall(_answer(407, {}, b""))
        elif head.method == "CONNECT":
            connection.sendall(_answer(403, {}, b""))
        else:
            connection.sendall(_send_on(route, head, _receive_body(connection, head)))


RELAY: Final = _Relay()
"""That of the process."""


def _hang_up(connection: socket.socket) -> None:
    """End a connection, also if a forked child has a copy of it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _without_frames(error: GpustoreError) -> GpustoreError:
    """An error that may wait: variables of the frames it comes through are parts of values."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error


@dataclass(frozen=True, slots=True, repr=False)
class _Head:
    """A request of obstore; `begun` is what was received of its body."""

    method: str
    target: str
    fields: dict[str, str]
    begun: bytes


def _receive_head(connection: socket.socket) -> _Head:
    """Receive what precedes the body; OSError, EOFError or ValueError if it is no request."""
    until = time.monotonic() + _OWN_WAIT_S
    received = bytearray()
    seen, end = 0, -1
    while end < 0:
        connection.settimeout(max(1e-3, until - time.monotonic()))
        data = connection.recv(_HEAD_NBYTES)
        if not data or len(received) > _HEAD_NBYTES or time.monotonic() > until:
            raise EOFError
        received += data
        end, seen = received.find(b"\r\n\r\n", max(0, seen - 3)), len(received)
    first, *lines = received[:end].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    if not method.isalpha():
        raise ValueError
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    return _Head(method, target, fields, bytes(received[end + 4 :]))


def _receive_body(connection: socket.socket, head: _Head) -> memoryview:
    """As :func:`_receive_head`."""
    length = head.fields.get("content-length", "0")
    if not length.isdecimal() or int(length) > _BODY_NBYTES or len(head.begun) > int(length):
        raise EOFError
    body = memoryview(bytearray(int(length)))
    done = len(head.begun)
    body[:done] = head.begun
    while done < len(body):
        count = connection.recv_into(body[done:])
        if not count:
            raise EOFError
        done += count
    return body


def _answer(status: int, fields: dict[str, str], body: bytes | bytearray | memoryview) -> bytes:
    lines = [f"HTTP/1.1 {status} Answer"]
    lines += [f"{name}: {text}" for name, text in fields.items() if name not in _PER_HOP]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + bytes(body)


def _send_on(route: Route, asked: _Head, body: memoryview) -> bytes:
    """The answer to a request."""
    parts = urlsplit(asked.target)
    client = route.client
    shown = asked.fields.get("authorization", "")
    for_bucket = parts.netloc == client.origin.authority
    # The same server may hand out credentials, and be asked for them by nobody yet.
    for_bucket = for_bucket and not (parts.netloc in route.encrypted and not shown)
    if for_bucket:
        route.authorization = shown
        if parts.path.endswith(route.unsent):
            return _answer(404, {}, b"")
        if route.signs and not shows_who(shown):
            return route.failed(route.no_credentials(""))
    fields = {name: text for name, text in asked.fields.items() if name not in _PER_HOP}
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    plan: Callable[[HttpResponse], BodyPlan] = _page if for_bucket else collect
    request = HttpRequest(asked.method, target, fields, body, plan)
    try:
        if not for_bucket:
            client = _service(route, parts.netloc)
        completes = for_bucket and asked.method == "POST" and "uploadId=" in parts.query
        with route.in_order(asked.method, parts.query):
            response = (_complete if completes else HttpClient.send_one)(client, request)
        redirects = 300 <= response.status < 400
        if redirects or (for_bucket and not 200 <= response.status < 300):
            raise client.refusal(response)
        if for_bucket and "list-type=" in parts.query:
            response.body = route.pages.checked(parts.query, bytes(response.body))
    except GpustoreError as error:
        if for_bucket:
            return route.failed(error)
        return route.failed(route.no_credentials(f": {parts.netloc}: {error.text}"))
    return _answer(response.status, response.headers, response.body)


def _complete(client: HttpClient, request: HttpRequest) -> HttpResponse:
    """The answer to a request to put parts together, which may say 200 and have failed."""
    retries, attempts, lost = client.retries, 0, False
    until = time.monotonic() + client.timeouts.total_s
    while True:
        response = client.send_one(request)
        attempts += response.attempts
        lost |= response.lost
        response.attempts, response.lost = attempts, lost
        body = bytes(response.body)
        if response.status != 200 or b"<Error>" not in body:
            return response
        passes = any(code in body for code in _PASSING_CODES)
        if not passes or attempts > retries.max_retries or time.monotonic() > until:
            raise client.refusal(response)
        longest = min(retries.max_delay_s, retries.initial_delay_s * 2.0 ** min(attempts, 60))
        time.sleep(random.uniform(0.0, longest))


def _service(route: Route, authority: str) -> HttpClient:
    """The client for a service that hands out credentials."""
    ours = route.client
    if authority in route.encrypted:
        to, timeouts, retries = route.encrypted[authority], ours.timeouts, ours.retries
    else:
        to = Origin.parse("http", authority)
        timeouts = Timeouts(*map(min, zip(astuple(_SERVICE), astuple(ours.timeouts), strict=True)))
        retries = replace(ours.retries, max_retries=min(ours.retries.max_retries, 3))
    return HttpClient(to, permits=Permits(1), retries=retries, timeouts=timeouts)


def _page(response: HttpResponse) -> BodyPlan:
    del response

    def too_long(nbytes: int) -> LimitError:
        return LimitError(
            f"the response has {nbytes} bytes or more, at most {_PAGE_NBYTES} are expected"
        )

    return BodyPlan(max_nbytes=_PAGE_NBYTES, too_long=too_long)
