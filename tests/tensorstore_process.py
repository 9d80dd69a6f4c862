"""TensorStore in a child process that serves programs, since some make it crash or wait for itself.

A program is plain data. A module has the function ``outcome(library, program)``, which runs one and
returns plain data as well; the child calls it with TensorStore.
"""

from __future__ import annotations

import importlib
import os
import pickle
import select
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_S = 40
"""Seconds after which a child that does not answer is killed; its imports may take ten."""


class TensorStoreProcess:
    """The child process, started again when it has died.

    Parameters
    ----------
    module : str
        Name of the module with the function ``outcome``.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self.process: subprocess.Popen[bytes] | None = None
        self.answers = bytearray()  # What was read of them and is not of a whole one yet.

    def ask(self, program):
        """Outcome in TensorStore, None if it crashed, or did not answer and was killed."""
        return self.ask_all([program])[0]

    def ask_all(self, programs):
        """Outcomes of a few programs, all sent before the first answer is read."""
        outcomes = []
        while len(outcomes) < len(programs):
            self.send(programs[len(outcomes) :])
            outcomes += self.receive(len(programs) - len(outcomes))
        return outcomes

    def send(self, programs):
        """Send programs; the child begins with the first one at once."""
        process = self.process or self._start()
        for program in programs:
            frame = pickle.dumps(program)
            process.stdin.write(struct.pack("<q", len(frame)) + frame)
        process.stdin.flush()

    def receive(self, count):
        """Outcomes of the programs that were sent, up to the first of which the child died."""
        outcomes = []
        while len(outcomes) < count:
            header = self._read(8)
            frame = self._read(*struct.unpack("<q", header)) if header else b""
            if not frame:
                self.close()
                return [*outcomes, None]
            outcomes.append(pickle.loads(frame))
        return outcomes

    def _read(self, count):
        """The next bytes of the answers; none if the child has died or was killed."""
        out = self.process.stdout.fileno()
        while len(self.answers) < count:
            ready = select.poll()
            ready.register(out, select.POLLIN)
            if not ready.poll(1000 * PATIENCE_S):
                self.process.kill()
            if not (read := os.read(out, 1 << 20)):
                return b""
            self.answers += read
        found = bytes(self.answers[:count])
        del self.answers[:count]
        return found

    def _start(self):
        self.answers = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self.process

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


def serve(module: str) -> None:
    import tensorstore

    sys.path[0] = str(Path(__file__).parents[1])
    outcome: Any = importlib.import_module(module).outcome
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while header := source.read(8):
        program = pickle.loads(source.read(*struct.unpack("<q", header)))
        frame = pickle.dumps(outcome(tensorstore, program))
        sink.write(struct.pack("<q", len(frame)) + frame)
        sink.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
