"""One HTTP/1.1 connection, driven by generators that never wait.

A generator yields ``READ`` or ``WRITE`` when the socket has to be ready for more, so that one
thread drives many connections (:mod:`~gpustore.kvstores.http.client`). A connection carries one
request at a time, and can be used again if its last response ended where it said.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import ssl
from collections.abc import Generator
from typing import Final, TypeAlias

from gpustore.errors import GpustoreError, StoreIOError
from gpustore.kvstores.http.address import RESOLVER, Address
from gpustore.kvstores.http.body import Body
from gpustore.kvstores.http.message import (
    HttpRequest,
    HttpResponse,
    Origin,
    collect,
    parse_head,
)
from gpustore.kvstores.http.proxy import Proxy, proxy_for
from gpustore.runtime.buffer import Buffer

READ: Final = select.POLLIN
WRITE: Final = select.POLLOUT

Steps: TypeAlias = Generator[int, None, HttpResponse]

_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;|\Z)")
_BLOCK_NBYTES: Final = 1 << 16
_MAX_HEAD_NBYTES: Final = 1 << 16
_MOST_INFORMATIONAL: Final = 20
"""Most 1xx responses before the final one (RFC 9110, section 15.2)."""
_TURN_NBYTES: Final = 1 << 20
"""Bytes after which a connection yields to the others."""


class Lost(Exception):
    """Transient failure of a connection.

    Attributes
    ----------
    sent : bool
        Whether the request may have reached the server.
    stale : bool
        Whether the connection had been used before and not a byte came back: most likely the
        server had closed it meanwhile.
    """

    def __init__(self, text: str, *, sent: bool, stale: bool = False) -> None:
        super().__init__(text)
        self.sent = sent
        self.stale = stale


class Connection:
    """A connection to `origin`, which is made by the first :meth:`perform`.

    Attributes
    ----------
    origin : Origin
    connected, reusable, used : bool
        Whether there is a connection, whether it can carry another request, and whether it has
        carried one.
    moved : int
        Bytes sent and received since the attribute was set, without skipped ones.
    since : float
        Monotonic time in seconds since which the connection is idle; set by its pool.
    """

    __slots__ = (
        "_block",
        "_filled",
        "_for_proxy",
        "_received",
        "_socket",
        "_start",
        "_tried",
        "_turn",
        "_view",
        "_watch",
        "connected",
        "moved",
        "origin",
        "reusable",
        "since",
        "used",
    )

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._socket: socket.socket | None = None
        self._block = bytearray(_BLOCK_NBYTES)
        self._view = memoryview(self._block)
        self._tried: tuple[Origin, Address] | None = None
        self._turn = _TURN_NBYTES  # Bytes left until other connections have their turn.
        self._start = self._filled = 0  # Bytes received and not yet parsed lie between these.
        self.connected = self.reusable = self.used = False
        self.moved = 0
        self._received = False
        self._for_proxy: str | None = None
        self.since = 0.0
        self._watch = select.poll()

    def fileno(self) -> int:
        """Return the file descriptor of the socket; the connection has one."""
        assert self._socket is not None
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket, if there is one."""
        self.connected = self.reusable = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def blame_address(self) -> None:
        """Move the address that did not answer behind the others of its host."""
        if self._tried is not None:
            RESOLVER.put_last(*self._tried)

    def is_alive(self) -> bool:
        """Whether an idle connection can be used: nothing was received, and it is not closed.

        Bytes beyond the last response would be taken for the head of the next one.
        """
        if self._socket is None:
            return False
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False
        return not self._watch.poll(0)

    # ------------------------------------------------------------------ steps

    def perform(self, request: HttpRequest) -> Steps:
        """Send `request` and receive its response.

        Raises
        ------
        Lost
            If the connection fails or the body is shorter than it should be.
        StoreIOError
            If the response is malformed.
        GpustoreError
            Whatever the request's plan raises.
        """
        self.reusable = False
        if not self.connected:
            yield from self._connect()
        stale, self.used, self._received = self.used, True, False
        self._turn = _TURN_NBYTES
        try:
            yield from self._send(request.head(self.origin, self._for_proxy), request.body)
            yield READ
            response = yield from self._receive_head()
            for _ in range(_MOST_INFORMATIONAL):
                if not 100 <= response.status < 200 or response.status == 101:
                    break
                response = yield from self._receive_head()
            else:
                raise StoreIOError(
                    f"the HTTP response is malformed: more than {_MOST_INFORMATIONAL} "
                    "informational responses",
                    status="UNKNOWN",
                )
            yield from self._receive_body(request, response)
        except GpustoreError:  # Some of them are OSErrors as well.
            raise
        except (OSError, EOFError) as error:
            raise Lost(_reason(error), sent=True, stale=stale and not self._received) from error
        return response

    def _connect(self) -> Generator[int, None, None]:
        failure: Exception | None = None
        proxy = proxy_for(self.origin)
        peer = self.origin if proxy is None else proxy.origin
        for entry in (yield from self._resolve(peer)):
            self._tried = peer, entry
            family, kind, protocol, _, address = entry
            try:
                self.close()
                self._socket = socket.socket(family, kind, protocol)
                self._socket.setblocking(False)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    self._socket.connect(address)
                except BlockingIOError:
                    yield WRITE
                    code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code:
                        raise OSError(code, os.strerror(code)) from None
                if self.origin.scheme == "https":
                    if proxy is not None:
                        yield from self._tunnel(proxy)
                    yield from self._encrypt()
                elif proxy is not None:
                    self._for_proxy = proxy.headers
            except (Lost, GpustoreError):
                self.close()
                raise
            except (OSError, EOFError) as error:
                failure = error
            else:
                self.connected = True
                self._watch = select.poll()
                self._watch.register(self._socket, select.POLLIN)
                return
        self.close()
        if isinstance(failure, ssl.SSLCertVerificationError):
            raise StoreIOError(
                f"the certificate of {self.origin} is not valid: {failure.verify_message}",
                status="FAILED_PRECONDITION",
            ) from failure
        assert failure is not None
        through = "" if proxy is None else f" through the proxy {peer}"
        text = f"cannot connect to {self.origin}{through}: {_reason(failure)}"
        raise Lost(text, sent=False) from failure

    def _tunnel(self, proxy: Proxy) -> Generator[int, None, None]:
        """Ask the proxy for a tunnel to the origin (CONNECT; RFC 9110, section 9.3.6)."""
        host = f"[{self.origin.host}]" if ":" in self.origin.host else self.origin.host
        to = f"{host}:{self.origin.port}"
        head = f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: gpustore\r\n{proxy.headers}\r\n"
        yield from self._send(head.encode("latin-1"), b"")
        yield READ
        response = yield from self._receive_head()
        if response.status >= 500:
            text = f"the proxy {proxy.origin} cannot connect [HTTP code {response.status}]"
            raise Lost(text, sent=False)
        if response.status != 200 or self._start < self._filled:
            raise StoreIOError(
                f"the proxy {proxy.origin} does not connect to {self.origin} "
                f"[HTTP code {response.status}]",
                status="PERMISSION_DENIED",
            )

    def _resolve(self, peer: Origin) -> Generator[int, None, list[Address]]:
        """Look up the addresses of the host, waiting for the resolver as for a server."""
        known = RESOLVER.known(peer)
        if known is not None:
            return known
        found: list[Address] | Exception
        try:
            answer, self._socket = RESOLVER.ask(peer)
        except OSError as error:
            found = error
        else:
            yield READ
            self.close()
            found = answer.result()
        if isinstance(found, list):
            return found
        text = f"cannot resolve host {peer.host!r}: {_reason(found)}"
        if isinstance(found, socket.gaierror) and found.errno == socket.EAI_NONAME:
            raise StoreIOError(text, status="NOT_FOUND") from found  # It will not be there soon.
        raise Lost(text, sent=False) from found

    def _encrypt(self) -> Generator[int, None, None]:
        assert self._socket is not None
        wrapped = _tls_context().wrap_socket(
            self._socket,
            server_hostname=self.origin.host,
            do_handshake_on_connect=False,
            # Otherwise a body of no length would end wherever somebody cuts the connection.
            suppress_ragged_eofs=False,
        )
        self._socket = wrapped
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                yield READ
            except ssl.SSLWantWriteError:
                yield WRITE
            else:
                return

    def _send(self, head: bytes, body: Buffer) -> Generator[int, None, None]:
        assert self._socket is not None
        parts = [head + bytes(body)] if len(body) <= 4096 else [head, body]
        # A server that refuses a long body may answer and close; the answer is there.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                rest = memoryview(part).cast("B")
                while len(rest):
                    try:
                        count = self._socket.send(rest)
                    except (BlockingIOError, ssl.SSLWantWriteError):
                        yield WRITE
                    except ssl.SSLWantReadError:
                        yield READ
                    else:
                        self.moved += count
                        rest = rest[count:]

    def _receive(self, memory: memoryview) -> Generator[int, None, int]:
        """Receive at least a byte into `memory`; EOFError at the end."""
        assert self._socket is not None
        if self._turn <= 0:
            self._turn = _TURN_NBYTES
            # A socket is not ready because of bytes that TLS has decrypted already.
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                yield READ
        while True:
            try:
                count = self._socket.recv_into(memory)
            except (BlockingIOError, ssl.SSLWantReadError):
                yield READ
            except ssl.SSLWantWriteError:
                yield WRITE
            else:
                if not count:
                    raise EOFError("the server closed the connection")
                self.moved += count
                self._turn -= count
                self._received = True
                return count

    def _more(self) -> Generator[int, None, None]:
        """Receive at least one more byte behind those not looked at yet."""
        if self._start == self._filled:
            self._start = self._filled = 0
        elif self._start and self._filled == len(self._block):
            rest = self._block[self._start : self._filled]
            self._block[: len(rest)] = rest
            self._start, self._filled = 0, len(rest)
        self._filled += yield from self._receive(self._view[self._filled :])

    def _until(self, mark: bytes, max_nbytes: int) -> Generator[int, None, bytes]:
        """Return the bytes before `mark` and skip it; StoreIOError beyond `max_nbytes`."""
        while True:
            at = self._block.find(mark, self._start, self._filled)
            if at >= 0:
                found = bytes(self._block[self._start : at])
                self._start = at + len(mark)
                return found
            if self._filled - self._start >= max_nbytes:
                raise StoreIOError(
                    f"the HTTP response has a head of more than {max_nbytes} bytes",
                    status="UNKNOWN",
                )
            yield from self._more()

    def _receive_head(self) -> Generator[int, None, HttpResponse]:
        head = yield from self._until(b"\r\n\r\n", _MAX_HEAD_NBYTES - 4)
        return parse_head(head)

    def _receive_body(
        self, request: HttpRequest, response: HttpResponse
    ) -> Generator[int, None, None]:
        close = response.headers.get("connection", "").lower() == "close"
        if request.method == "HEAD" or response.status in (204, 304):
            self.reusable = not close and self._start == self._filled
            return
        wanted = 200 <= response.status < 300
        body = Body(request.plan(response) if wanted else collect(response))
        if "transfer-encoding" in response.headers:
            ended = yield from self._receive_chunks(body)
        elif (nbytes := response.nbytes) is None:
            ended = yield from self._receive_rest(body)
            close = True
        else:
            ended = yield from self._receive_part(body, nbytes)
        response.body = body.finish()
        # More than was asked for would be taken for the next response.
        self.reusable = ended and not close and self._start == self._filled

    def _receive_part(self, body: Body, nbytes: int) -> Generator[int, None, bool]:
        """Receive `nbytes` of the body; False if the rest of them is not wanted."""
        if nbytes > body.most:
            body.refuse(nbytes)
        while nbytes:
            if body.is_full:
                return False
            ready = min(nbytes, self._filled - self._start)
            if ready:
                self.moved -= body.take(self._view[self._start : self._start + ready])
                self._start += ready
                nbytes -= ready
                continue
            direct = body.direct(nbytes)
            if direct is not None:
                count = yield from self._receive(direct)
                body.advance(count)
                nbytes -= count
            else:
                yield from self._more()
        return True

    def _receive_chunks(self, body: Body) -> Generator[int, None, bool]:
        while True:
            line = yield from self._until(b"\r\n", 1024)
            match = _CHUNK.match(line)
            if match is None:
                raise StoreIOError(
                    f"the HTTP response is malformed: chunk length {line[:50]!r}", status="UNKNOWN"
                )
            nbytes = int(match[1], 16)
            if not nbytes:
                yield from self._receive_trailers()
                return True
            if not (yield from self._receive_part(body, nbytes)):
                return False
            while self._filled - self._start < 2:
                yield from self._more()
            if self._block[self._start : self._start + 2] != b"\r\n":
                raise StoreIOError("the HTTP response is malformed: chunk end", status="UNKNOWN")
            self._start += 2

    def _receive_trailers(self) -> Generator[int, None, None]:
        left = _MAX_HEAD_NBYTES
        while left > 0:
            line = yield from self._until(b"\r\n", left)
            if not line:
                return
            left -= len(line) + 2
        raise StoreIOError(
            f"the HTTP response has trailers of more than {_MAX_HEAD_NBYTES} bytes",
            status="UNKNOWN",
        )

    def _receive_rest(self, body: Body) -> Generator[int, None, bool]:
        """Receive until the server closes the connection."""
        while not body.is_full:
            if self._start < self._filled:
                self.moved -= body.take(self._view[self._start : self._filled])
                self._start = self._filled
            try:
                yield from self._more()
            except EOFError:
                break
        return False


def _reason(error: BaseException) -> str:
    """Describe an error by the text of the operating system, without its number."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_TLS: list[ssl.SSLContext] = []


def _tls_context() -> ssl.SSLContext:
    """Return the TLS context, made once: loading the certificates takes 20 ms."""
    if not _TLS:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        # Older Pythons set it (3.11.2): a connection that was cut would end like a closed one.
        context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
        _TLS.append(context)
    return _TLS[0]
