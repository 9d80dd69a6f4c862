"""Runs one program of index algebra in gpustore and in TensorStore and compares the outcomes.

A program is plain data: how to make the first object, then operations on it. TensorStore runs in
a process of its own, since some legal programs make it crash (index arrays over empty implicit
dimensions); those are skipped.
"""

from __future__ import annotations

import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path

from gpustore.errors import GpustoreError


def run(lib, program):
    """The object that the program makes of `lib`, a module."""
    (maker, argument), *operations = program
    make = {
        "dim": lambda: lib.Dim(**argument),
        "domain": lambda: lib.IndexDomain(**argument),
        "expression": lambda: expression(lib, *argument),
        "equal": lambda: expression(lib, *argument[0]) == expression(lib, *argument[1]),
        "domain_json": lambda: lib.IndexDomain(json=argument),
        "identity": lambda: lib.IndexTransform(lib.IndexDomain(**argument)),
        "json": lambda: lib.IndexTransform(json=argument),
    }
    value = make[maker]()
    apply = {
        "index": lambda x: value[x],
        "compose": lambda x: value[lib.IndexTransform(json=x)],
        "crop": lambda x: value[lib.IndexDomain(**x)],
        "expression": lambda x: value[expression(lib, *x)],
        "call": lambda x: value(x),
        "transpose": lambda x: value.transpose(x),
        "hull": lambda x: value.hull(type(value)(**x)),
        "intersect": lambda x: value.intersect(type(value)(**x)),
    }
    for name, argument in operations:
        value = apply[name](argument) if name in apply else getattr(value, name)[argument]
    return value


def expression(lib, selection, operations):
    """The dimension expression of a selection and ``(name, index)`` of the operations on it."""
    value = lib.d[selection]
    for name, index in operations:
        if name == "diagonal":
            value = value.diagonal
        else:
            value = value[index] if name == "index" else getattr(value, name)[index]
    return value


def kind(error):
    """What both libraries agree on: out of bounds, or the builtin class."""
    if str(error).startswith("OUT_OF_RANGE"):
        return "OUT_OF_RANGE"
    return next(c.__name__ for c in (IndexError, TypeError, ValueError) if isinstance(error, c))


def outcome(lib, program):
    """JSON and print of the result, or kind and text of the error without bracketed payload."""
    try:
        result = run(lib, program)
    except (GpustoreError, ValueError, IndexError, TypeError) as error:
        # The text of a TypeError lists pybind11's overloads.
        text = "" if isinstance(error, TypeError) else str(error)
        return kind(error), re.sub(r" \[\w+='.*", "", text, flags=re.DOTALL)
    if hasattr(result, "to_json"):
        return result.to_json(), repr(result)
    return result if isinstance(result, tuple) else repr(result), str(result)


class Oracle:
    """TensorStore in a child process, started again when it has died."""

    def __init__(self):
        self.process = None

    def ask(self, program):
        """Outcome in TensorStore, None if it crashed."""
        return self.ask_all([program])[0]

    def ask_all(self, programs):
        """Outcomes of a few programs, all sent before the first answer is read."""
        outcomes = []
        while len(outcomes) < len(programs):
            process = self.process or self._start()
            for program in programs[len(outcomes) :]:
                frame = pickle.dumps(program)
                process.stdin.write(struct.pack("<q", len(frame)) + frame)
            process.stdin.flush()
            while len(outcomes) < len(programs) and len(header := process.stdout.read(8)) == 8:
                outcomes.append(pickle.loads(process.stdout.read(*struct.unpack("<q", header))))
            if len(outcomes) < len(programs):
                self.close()
                outcomes.append(None)
        return outcomes

    def _start(self):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
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


def serve():
    import tensorstore as ts

    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while header := source.read(8):
        program = pickle.loads(source.read(*struct.unpack("<q", header)))
        frame = pickle.dumps(outcome(ts, program))
        sink.write(struct.pack("<q", len(frame)) + frame)
        sink.flush()


if __name__ == "__main__":
    serve()
