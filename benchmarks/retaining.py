"""TensorStore in a process of its own, whose allocator keeps the memory that it freed.

glibc gives large blocks back to the kernel at once, so that every read pays for fresh pages. With
``GLIBC_TUNABLES``, which a program reads when it starts, freed memory stays with the process.
"""

import multiprocessing
from typing import Any

import numpy as np

from benchmarks.formats import ArrayFormat
from benchmarks.peers import TensorStorePeer

TUNABLES = ":".join(
    [
        "glibc.malloc.mmap_max=0",
        "glibc.malloc.trim_threshold=17179869184",
        "glibc.malloc.top_pad=268435456",
        "glibc.malloc.arena_max=1",
    ]
)


class RetainingPeer:
    """One array, read whole; a request and its answer take about 0.1 ms."""

    def __init__(
        self, path: Any, array_format: ArrayFormat, threads: int, monkeypatch: Any
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, path, array_format, threads))
        with monkeypatch.context() as patch:
            patch.setenv("GLIBC_TUNABLES", TUNABLES)
            self._process.start()
        theirs.close()

    def __enter__(self) -> "RetainingPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._process.join()

    def read(self) -> None:
        """Read the array; the result stays in the process."""
        self._ours.send("read")
        self._ours.recv()

    def result(self) -> np.ndarray:
        """The last result."""
        self._ours.send("result")
        return self._ours.recv()


def _serve(theirs: Any, path: Any, array_format: ArrayFormat, threads: int) -> None:
    peer = TensorStorePeer(threads)
    handle = peer.open(path, array_format)
    result = None
    while True:
        try:
            request = theirs.recv()
        except EOFError:
            return
        if request == "read":
            result = peer.read(handle, ...)
            theirs.send(None)
        else:
            theirs.send(result)
