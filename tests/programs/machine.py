"""Runs random programs of calls with gpustore and with TensorStore and compares each result.

A program is a setup and a list of steps, ``(name, *arguments)``, all plain data: it is drawn by a
seeded generator, so that each number is one program, and steps can be left out of it. A
:class:`Machine` has a method for each name; what the steps share, stores or transactions, it keeps
in lists, and arguments are indices into them, taken modulo their length.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile

import numpy as np

KINDS = (NotImplementedError, IndexError, KeyError, TypeError, OverflowError, ValueError)
KINDS += (RuntimeError, ArithmeticError, TimeoutError, AttributeError)

_PAYLOAD = re.compile(
    r" \[(?:tensorstore_spec|transform|domain|schema|source locations|tensorstore_kvstore_spec)=.*",
    re.DOTALL,
)

WORDLESS = ("TypeError", "KeyError", "AttributeError")
"""Errors whose texts are not compared."""

TIMEOUT = 2
"""Seconds after which a step that waits for ever is given up, with an error."""


class Machine:
    """Runs the steps of a program with one library.

    Parameters
    ----------
    library : module
    setup : object
        Of the program.
    folder : str
        An empty folder, called ``<root>`` in outcomes.
    """

    def __init__(self, library, setup, folder):
        self.library, self.setup, self.folder = library, setup, folder
        self.is_ours = library.__name__ == "gpustore"
        self.generations = [b"", b"\x02"]

    def end(self):
        """Results of the end of each program: what is stored."""
        return []

    def result(self, future):
        return future.result(timeout=TIMEOUT)

    def stamp(self, stamp):
        """A generation by the number of its first appearance: libraries number them otherwise."""
        if stamp.generation not in self.generations:
            self.generations.append(stamp.generation)
        return self.generations.index(stamp.generation)

    def outcome(self, name, *arguments):
        """Result of a step as text or plain data, or kinds and text of its error."""
        try:
            result = getattr(self, name)(*arguments)
        except KINDS as error:
            kinds = tuple(kind.__name__ for kind in KINDS if isinstance(error, kind))
            text = _PAYLOAD.sub("", str(error)).replace(self.folder, "<root>")
            return "error", kinds, text
        return plain(result, self.folder)


def plain(result, folder):
    """Results of both libraries as the same plain data."""
    if isinstance(result, np.ndarray | np.generic):
        return f"{result.dtype} {result.shape} {result.tolist()}"
    if is_error(result):
        return result
    if isinstance(result, list | tuple):
        return [plain(one, folder) for one in result]
    if isinstance(result, dict):
        return json.dumps(result, sort_keys=True, default=repr).replace(folder, "<root>")
    if result is None or isinstance(result, bool | int | float | bytes):
        return result
    shown = result if isinstance(result, str) else repr(result)
    return shown.replace("tensorstore.", "").replace("gpustore.", "").replace(folder, "<root>")


def agree(ours, theirs):
    """Whether the outcomes of a step are the same.

    Errors of gpustore may be of more kinds and say more. Of some only the kind counts: the texts
    list overloads, are empty or those of Python. Of what the system refuses the text names
    TensorStore's own call.
    """
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return all(map(agree, ours, theirs))
    if not is_error(ours) or not is_error(theirs):
        return ours == theirs
    if not set(theirs[1]) <= set(ours[1]):
        return False
    texts = (re.sub("(FAILED_PRECONDITION: Failed to ).*", r"\1", one[2]) for one in (ours, theirs))
    return theirs[1][0] in WORDLESS or next(texts).startswith(next(texts))


def is_error(outcome):
    return isinstance(outcome, tuple) and outcome[:1] == ("error",)


def run(machine_type, library, program):
    """Outcomes of all steps of a program and of its end."""
    setup, steps = program
    folder = tempfile.mkdtemp()
    try:
        machine = machine_type(library, setup, folder)
        outcomes = [machine.outcome(*step) for step in steps]
        return [*outcomes, *(machine.outcome(*step) for step in machine.end())]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def difference(ours, theirs):
    """Index of the first step whose outcomes differ, None if there is none."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if not agree(one, other):
            return number
    return None


class Draw(random.Random):
    """Draws of a generator of programs."""

    def one(self, *weighted):
        """One of ``(weight, value)``."""
        return self.choices([value for _, value in weighted], [weight for weight, _ in weighted])[0]

    def some(self, values, low=0, high=None):
        """A few of `values`, in their order."""
        count = self.randint(low, len(values) if high is None else high)
        kept = sorted(self.sample(range(len(values)), count))
        return [values[i] for i in kept]
