"""Resolves host names in threads, so that a thread that drives connections never waits.

The system's resolver blocks as long as its own configuration says. One thread asks it for all
requests of the same origin; each request waits for a socket that becomes readable with the answer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, Final, TypeAlias

from gpustore.kvstores.http.message import Origin
from gpustore.runtime.executor import reset_after_fork

Address: TypeAlias = tuple[Any, ...]
"""Family, kind, protocol, canonical name and socket address."""

_KEPT_S: Final = 30.0


class Answer:
    """Pending answer of the resolver."""

    def __init__(self) -> None:
        self.found: list[Address] | Exception | None = None
        self.waiting: list[socket.socket] = []

    def result(self) -> list[Address] | Exception:
        """Return the addresses, or the error; legal once the socket of :meth:`ask` is readable."""
        assert self.found is not None
        return self.found


class _Resolver:
    """Cache of the addresses of origins, each kept for 30 seconds. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Origin, tuple[float, list[Address]]] = {}
        self._asked: dict[Origin, Answer] = {}
        self._lock = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Forget lookups under way: their threads run in the parent only."""
        self._lock = threading.Lock()
        self._asked.clear()

    def known(self, origin: Origin) -> list[Address] | None:
        """Return the addresses of `origin` if they are cached or numeric, else None."""
        known = self._known.get(origin)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        with contextlib.suppress(OSError, UnicodeError):
            numeric = socket.AI_NUMERICHOST
            found = socket.getaddrinfo(
                origin.host, origin.port, type=socket.SOCK_STREAM, flags=numeric
            )
            return self._keep(origin, list(found))
        return None

    def ask(self, origin: Origin) -> tuple[Answer, socket.socket]:
        """Begin a lookup; return its answer and a socket that the answer makes readable."""
        mine, theirs = socket.socketpair()
        with self._lock:
            answer = self._asked.get(origin)
            begin = answer is None
            if answer is None:
                answer = self._asked[origin] = Answer()
            answer.waiting.append(theirs)
        if begin:
            try:
                threading.Thread(target=self._find, args=(origin, answer), daemon=True).start()
            except RuntimeError:  # There are too many threads, or the program ends.
                self._find(origin, answer)
        return answer, mine

    def put_last(self, origin: Origin, address: Address | None) -> None:
        """Move an address of `origin` behind the others."""
        with self._lock:
            known = self._known.get(origin)
            if known is not None and address in known[1]:
                others = [other for other in known[1] if other != address]
                self._known[origin] = known[0], [*others, address]

    def _find(self, origin: Origin, answer: Answer) -> None:
        try:
            found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
            answer.found = self._keep(origin, list(found))
        except Exception as error:  # Whatever it is, those who wait must know.
            answer.found = error
        with self._lock:
            if self._asked.get(origin) is answer:
                del self._asked[origin]
            waiting = answer.waiting
        for one in waiting:
            one.close()

    def _keep(self, origin: Origin, found: list[Address]) -> list[Address]:
        with self._lock:
            self._known[origin] = time.monotonic() + _KEPT_S, found
        return found


RESOLVER = _Resolver()
"""Resolver of the process."""
