"""What one probe has found, on disk at once: a crash or a hang that follows loses nothing."""

import faulthandler
import json
import os
import time

import numpy as np

MISSING, HUNG, LOST = 4, 8, 9
"""Exit statuses: something is not installed; the device hangs; its context is lost."""


class MissingError(Exception):
    """A package, a library or a feature is not there; what needs it cannot be asked."""


class HangError(Exception):
    """Work of the device has not ended in time; this process must end."""


def plain(value):
    """For json: NumPy's numbers as numbers, all else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


def read_lines(path):
    """What a probe has written so far, line by line; a line cut off by a crash is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


class Findings:
    """Facts by name, written to `path`, a JSON text a line.

    Parameters
    ----------
    path : Path
        Also read, for the steps that an earlier process of this probe has begun.
    deadline : float
        Seconds since the epoch at which the parent ends this process.
    guarded : bool
        Whether a step that does not return to Python ends this process.

    Attributes
    ----------
    known : dict
        Facts by name, those of earlier processes too.
    """

    def __init__(self, path, deadline, *, guarded=True):
        self.path = path
        self.deadline = deadline
        self._guarded = guarded
        lines = read_lines(path)
        self._begun = {line["step"] for line in lines if "step" in line}
        self.known = {line["name"]: line["value"] for line in lines if "name" in line}

    def seconds_left(self):
        return self.deadline - time.time()

    def _write(self, **line):
        with self.path.open("a") as file:
            file.write(json.dumps(line, default=plain) + "\n")

    def note(self, name, value):
        """Keep a fact; a later one of the same name replaces it."""
        self._write(name=name, value=value)
        self.known[name] = value

    def begin(self, step, seconds=12):
        """Whether to take this step: not if an earlier process did not live to end it.

        A step that stays longer than `seconds` in C ends the process.
        """
        if step in self._begun:
            return False
        self._begun.add(step)
        self._write(step=step)
        if self._guarded:
            faulthandler.dump_traceback_later(seconds, exit=True)
        return True

    def attempt(self, name, call):
        """Keep what `call` returns, or its error as text."""
        try:
            value = call()
        except HangError as error:
            self.note(name, {"hang": str(error)})
            raise
        except Exception as error:
            value = {"error": f"{type(error).__name__}: {error}"[:300]}
        finally:
            if self._guarded:
                faulthandler.cancel_dump_traceback_later()
        self.note(name, value)
        return value

    def leave_if_lost(self, target, name):
        """End this process if the step `name` has lost the context, which then answers nothing."""
        try:
            target.wait()
        except Exception as error:
            self.note(f"{name}_lost_the_context", str(error))
            os._exit(LOST)
