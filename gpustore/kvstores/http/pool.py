"""Pool of idle HTTP connections of the process."""

from __future__ import annotations

import atexit
import threading
import time
from typing import Final

from gpustore.kvstores.http.connection import Connection
from gpustore.kvstores.http.message import Origin
from gpustore.runtime.executor import reset_after_fork

_IDLE_S: Final = 15.0
"""Seconds after which an idle connection is closed; most servers drop it later."""
_MOST_IDLE: Final = 64
"""Most idle connections of one origin."""


class _Pool:
    """Idle connections by origin; a forked child has none of its parent's."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[Connection]] = {}
        self._swept = 0.0
        self._lock = threading.Lock()
        reset_after_fork(self)
        atexit.register(self.close)  # Sockets that the interpreter finds open make it warn.

    def after_fork(self) -> None:
        """Close the child's copies, which does not end the parent's connections."""
        self._lock = threading.Lock()
        self.close()

    def take(self, origin: Origin) -> Connection:
        """Take an idle connection that is alive, or make one that is not yet connected."""
        while True:
            with self._lock:
                idle = self._idle.get(origin)
                connection = idle.pop() if idle else None
            if connection is None:
                return Connection(origin)
            if time.monotonic() - connection.since <= _IDLE_S and connection.is_alive():
                return connection
            connection.close()

    def give_back(self, connection: Connection) -> None:
        """Keep a reusable connection, close others; close those idle for too long as well."""
        unwanted = [connection]
        if connection.reusable:
            connection.since = now = time.monotonic()
            with self._lock:
                if now - self._swept > _IDLE_S:
                    self._swept = now
                    unwanted += self._take_old(now)
                idle = self._idle.setdefault(connection.origin, [])
                if len(idle) < _MOST_IDLE:
                    idle.append(connection)
                    del unwanted[0]
        for one in unwanted:
            one.close()

    def _take_old(self, now: float) -> list[Connection]:
        """Remove the connections of all origins that were idle for too long, and return them."""
        old = []
        for origin, idle in list(self._idle.items()):
            old += [one for one in idle if now - one.since > _IDLE_S]
            idle[:] = [one for one in idle if now - one.since <= _IDLE_S]
            if not idle:
                del self._idle[origin]
        return old

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            found = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in found:
            connection.close()


POOL = _Pool()
"""Idle connections of the process."""
