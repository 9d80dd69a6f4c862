"""Serves the files of a folder, and ranges of them, over HTTP on loopback; prints its ports.

python -m benchmarks.range_server FOLDER [CERTIFICATE]

The second port is for TLS, if there is a certificate (a file in PEM, with its key).

A process of its own with one thread, so that it takes nothing from those that are measured but
their time to wait. What it says is enough for GET and HEAD of S3 too, with the bucket as a folder.
"""

import asyncio
import functools
import socket
import ssl
import sys
from pathlib import Path
from urllib.parse import unquote

FIELDS = b'ETag: "1"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'


class RangeServer(asyncio.Protocol):
    """One connection."""

    def __init__(self, value):
        self._value = value
        self._rest = b""

    def connection_made(self, transport):
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data):
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            head, self._rest = self._rest[:end], self._rest[end + 4 :]
            self._transport.write(self._answer(head))

    def _answer(self, head):
        method, target, _ = head.split(b" ", 2)
        value = self._value(target.partition(b"?")[0].decode())
        if value is None:
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        at = head.lower().find(b"\r\nrange: bytes=")
        status, part, fields = b"200 OK", value, FIELDS
        if at >= 0:
            start, _, last = head[at + 15 :].partition(b"\r\n")[0].partition(b"-")
            if start:
                low, high = int(start), min(len(value), int(last) + 1 if last else len(value))
            else:
                low, high = max(0, len(value) - int(last)), len(value)
            status, part = b"206 Partial Content", value[low:high]
            fields += b"Content-Range: bytes %d-%d/%d\r\n" % (low, high - 1, len(value))
        head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n" % (status, len(part), fields)
        return head if method == b"HEAD" else head + part


async def main(folder, certificate=None):
    @functools.cache
    def value(target):
        path = folder / unquote(target).lstrip("/")
        return path.read_bytes() if path.is_file() else None

    contexts = [None]
    if certificate is not None:
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        contexts[1].load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: RangeServer(value), "127.0.0.1", 0, ssl=context)
        for context in contexts
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:])))
