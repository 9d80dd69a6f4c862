"""The entry point: reads the command line, runs one command, turns failures into one line.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

Each command is a module with its options and what it does, and is imported when it is asked for, as
are the libraries of the extra ``cli``: help takes no longer than Python's start.
"""

from __future__ import annotations

import argparse
import codecs
import io
import os
import re
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Never

import gpustore
from gpustore import registry
from gpustore.cli.failure import CommandError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_COMMANDS = {
    "info": ("info", "describe an array or a group"),
    "tree": ("tree", "list groups and arrays with shapes, types and sizes"),
    "view": ("view", "show a slice as a picture"),
    "chunks": ("chunks", "map the stored and missing chunks of an array"),
    "verify": ("verify", "check that every stored chunk decodes"),
    "copy": ("copy", "copy an array or a group, re-chunked or re-encoded"),
    "bench": ("bench", "measure the speed of random patches and of a loader"),
    "ls": ("keys", "list the names or keys below a URL"),
    "cat": ("keys", "print the value of a key"),
    "du": ("keys", "print the stored size below a URL"),
    "demo": ("demo", "write, read and check a simulated volume, and print the speed"),
    "doctor": ("doctor", "say what works on this machine, and what to install for the rest"),
}
"""Module of each command, and its line in the list of commands."""


_ASCII = dict(zip("│├└─━·░▒▓█✓µ•…", "||`--.:=*#+u*.", strict=True))
"""Characters of tables, trees and maps as ASCII has them, for terminals of other encodings."""

_NO_NEWS = 'Error opening "auto" driver: '
"""Beginning of messages that says nothing to who named no driver."""


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage on one line, a command that does not exist with those like it."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._negative_number_matcher = re.compile(r"-\d")  # Also an index, as -1,:,2:-3.

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # The parser of a command leaves them to the one above it, which names itself.
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> Never:
        self.exit(2, f"gpustore: error: {message} (see `{self.prog} --help`)\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            import difflib  # Only where something went wrong.

            near = difflib.get_close_matches(str(value), action.choices, n=2)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            raise argparse.ArgumentError(None, f"there is no command {value!r}{meant}")
        super()._check_value(action, value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpustore`` with `argv`, by default that of the process; return the exit code."""
    try:
        try:
            words = sys.argv[1:] if argv is None else argv
            with _any_terminal():
                arguments = _parser(words).parse_args(words)
                code: int = arguments.run(arguments)
        finally:
            # Here, because at exit nobody could catch what this raises.
            if sys.stdout is not None:  # Closed by the shell: >&-
                sys.stdout.flush()
    except KeyboardInterrupt as stop:
        return _fail(f"interrupted: {stop}" if str(stop) else "interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): end quietly, also at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except gpustore.PathNotFoundError as error:
        # What was looked for is of no use where there is nothing at all.
        found = re.search("format for (.*?): .*; there is nothing(.*)", error.text, re.DOTALL)
        text = f"there is nothing at {found[1]}{found[2]}" if found else error.text
        return _fail(f"error: {text}", 1)
    except gpustore.GpustoreError as error:
        return _fail(f"error: {error.text.removeprefix(_NO_NEWS)}", 1)
    except (CommandError, OSError, MemoryError) as error:
        return _fail(f"error: {error or type(error).__name__}", 1)
    return code


@contextmanager
def _any_terminal() -> Iterator[None]:
    """Write in ASCII what an encoding lacks, and warnings on one line, during a command."""
    codecs.register_error("gpustore", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="gpustore")
    before = warnings.formatwarning
    warnings.formatwarning = _warning_text
    try:
        yield
    finally:
        warnings.formatwarning = before


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(char, "?") for char in lacking), error.end


def _warning_text(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    del category, filename, lineno, line
    return f"gpustore: warning: {printable(' '.join(str(message).split()))}\n"


def _fail(text: str, code: int) -> int:
    print(f"gpustore: {printable(' '.join(text.split()))}", file=sys.stderr)
    return code


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Make the parser; only the command that `argv` begins with gets its options."""
    parser = _Parser(
        prog="gpustore",
        description="Chunked, compressed Zarr arrays: look at them, copy them, check them.",
    )
    parser.add_argument("--version", action="version", version=f"gpustore {gpustore.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wanted = next((word for word in argv if not word.startswith("-")), None)
    for name, (module, help_) in _COMMANDS.items():
        command = commands.add_parser(name, help=help_)
        if name == wanted:
            registry.find("cli", module)[name](command)
    return parser
