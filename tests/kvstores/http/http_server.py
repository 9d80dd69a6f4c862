"""An HTTP server on loopback that serves values of a dict and, where told to, does it wrong."""

import contextlib
import hashlib
import re
import socket
import threading
from dataclasses import dataclass, field
from urllib.parse import unquote

__all__ = ["Fault", "HttpServer", "Request", "head"]


@dataclass
class Request:
    method: str
    target: str
    headers: dict
    body: bytes = b""
    under_way: bool = True

    @property
    def path(self):
        return unquote(self.target.partition("?")[0])

    @property
    def query(self):
        return self.target.partition("?")[2]


@dataclass
class Fault:
    """What to do instead of serving a value.

    Attributes
    ----------
    answer : callable
        ``answer(server, connection, request)``; False closes the connection.
    path : str
        Only paths that end so.
    times : int
        How often; then values are served again.
    """

    answer: object
    path: str = ""
    times: int = 1 << 30
    done: int = field(default=0, init=False)


def head(status, headers=(), reason="Reason"):
    """The head of a response."""
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class HttpServer:
    """Serves `values` (path without the first slash -> bytes) until it is closed.

    Attributes
    ----------
    values : dict
    faults : list of Fault
    requests : list of Request
        In the order in which they came.
    most : int
        The most requests that were answered at the same time.
    stopped : threading.Event
        For faults that wait for the end.
    """

    def __init__(self, values=None):
        self.values = {} if values is None else values
        self.faults = []
        self.requests = []
        self.connections = 0
        self.most = self._now = 0
        self.stopped = threading.Event()
        self._changed = threading.Condition()
        self._open = set()
        self._threads = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._start(self._listen)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        self.stopped.set()
        # Shutting down wakes a thread that waits in accept or recv; closing alone does not.
        for one in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(30)
            assert not thread.is_alive()
        self._listener.close()

    def forget(self):
        """Forget values, faults and requests, for the next test."""
        self.values.clear()
        self.faults.clear()
        self.requests.clear()

    def wait_for_request(self):
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests, 60)

    def wait_for_the_last(self):
        """Return once no request is under way."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._now, 60)

    def drop_connections(self):
        """Close those that wait for a request, as servers do after a while."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _start(self, target, *args):
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self):
        while not self.stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection):
        try:
            with connection, connection.makefile("rb") as stream:
                while not self.stopped.is_set():
                    request = _receive(stream)
                    if request is None or self._answer(connection, request) is False:
                        break
        except OSError:
            pass
        finally:
            self._open.discard(connection)

    def _answer(self, connection, request):
        with self._changed:
            self.requests.append(request)
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            fault = next(
                (f for f in self.faults if request.path.endswith(f.path) and f.done < f.times), None
            )
            if fault is not None:
                fault.done += 1
        try:
            answer = type(self).serve if fault is None else fault.answer
            return answer(self, connection, request)
        finally:
            self._leave(request)

    def _leave(self, request):
        """It is no longer under way, at the latest when its client can know the answer."""
        with self._changed:
            self._now -= request.under_way
            request.under_way = False
            self._changed.notify_all()

    def serve(self, connection, request, *, status=None, fields=(), body=None):
        """Answer as a server should; `status`, `fields` and `body` say what is different."""
        value = self.values.get(request.path.removeprefix("/"))
        if value is None and body is None:
            self._leave(request)
            text = b"" if request.method == "HEAD" else b"not found"
            connection.sendall(head(404, [("Content-Length", 9)]) + text)
            return None
        value = b"" if value is None else value
        tag = f'"{hashlib.md5(value).hexdigest()}"'
        found = {"ETag": tag, "Accept-Ranges": "bytes"}
        number, part = 200, value
        if request.headers.get("if-none-match") == tag:
            number, part = 304, b""
        elif "range" in request.headers:
            number, part = _part(value, request.headers["range"], found)
        part = part if body is None else body
        found["Content-Length"] = len(part)
        found.update(fields)
        self._leave(request)
        found = [(name, text) for name, text in found.items() if text is not None]
        empty = request.method == "HEAD" or number == 304
        connection.sendall(head(status or number, found) + (b"" if empty else part))
        return None


def _receive(stream):
    line = stream.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split()
    headers = {}
    while line := stream.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        assert name.lower() not in headers, "a field is sent twice"
        headers[name.lower()] = value.strip()
    return Request(method, target, headers, stream.read(int(headers.get("content-length", 0))))


def _part(value, text, found):
    start, stop = re.fullmatch(r"bytes=(\d*)-(\d*)", text).groups()
    if not start:
        low, high = max(0, len(value) - int(stop)), len(value)
    else:
        low, high = int(start), min(len(value), int(stop) + 1 if stop else len(value))
    if low >= high:
        found["Content-Range"] = f"bytes */{len(value)}"
        return 416, b""
    found["Content-Range"] = f"bytes {low}-{high - 1}/{len(value)}"
    return 206, value[low:high]
