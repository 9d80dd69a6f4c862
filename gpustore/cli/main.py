"""The entry point: reads the command line, runs one command, turns failures into one line.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

Each command is a module that adds its own parser (``add_command``) and runs it (``run``). Libraries
of the extra ``cli`` are imported by the commands that use them.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Never

import gpustore
from gpustore.cli import bench, chunks, copy, demo, doctor, info, keys, tree, verify, view
from gpustore.cli.failure import CommandError
from gpustore.cli.options import add_progress_options, codec, extents, integer
from gpustore.schema.codec_words import CODEC_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage on one line, a command that does not exist with those like it."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._negative_number_matcher = re.compile(r"-\d")  # Also an index, as -1,:,2:-3.

    def error(self, message: str) -> Never:
        self.exit(2, f"gpustore: error: {message} (see `{self.prog} --help`)\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = difflib.get_close_matches(str(value), action.choices, n=2)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            raise argparse.ArgumentError(None, f"there is no command {value!r}{meant}")
        super()._check_value(action, value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpustore`` with `argv`, by default that of the process; return the exit code."""
    try:
        try:
            arguments = _parser().parse_args(argv)
            code: int = arguments.run(arguments)
        finally:
            # Here, because at exit nobody could catch what this raises.
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
        return _fail(f"error: {error.text}", 1)
    except (CommandError, OSError, MemoryError) as error:
        return _fail(f"error: {error or type(error).__name__}", 1)
    return code


def _fail(text: str, code: int) -> int:
    print(f"gpustore: {' '.join(text.split())}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpustore",
        description="Chunked, compressed Zarr arrays: look at them, copy them, check them.",
    )
    parser.add_argument("--version", action="version", version=f"gpustore {gpustore.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (info, tree, view, chunks, verify):
        module.add_command(commands)
    _add_copy(commands)
    for more in (bench, keys, demo, doctor):
        more.add_command(commands)
    return parser


def _add_copy(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = commands.add_parser(
        "copy",
        help="copy an array or a group, re-chunked or re-encoded",
        description="Copies an array, or a group with everything below it, to another place, with "
        "other chunks, codecs or another format. Properties without an option stay as in the "
        "source. Files of NumPy (a.npy), TIFF (a.tif) and HDF5 (a.h5::/group/dataset) become new "
        "arrays in chunks of about 1 MiB. After Ctrl-C the copy can be read and holds the chunks "
        "copied so far; the same command continues it.",
    )
    command.add_argument(
        "source", metavar="SOURCE", help="URL or path of an array, a group or a file"
    )
    command.add_argument("target", metavar="TARGET", help="URL or path of the copy")
    command.add_argument(
        "--chunks", type=extents, metavar="N,N,...", help="extents of a chunk, e.g. 64,64,64"
    )
    command.add_argument(
        "--shards",
        type=extents,
        metavar="N,N,...",
        help="extents of a shard, multiples of those of a chunk; Zarr v3 only "
        "(default: with --chunks no shards, otherwise as in the source)",
    )
    command.add_argument(
        "--codec",
        type=codec,
        metavar="NAME[:LEVEL]",
        help=f"codec of the chunks: {CODEC_WORDS} (default: as in the source)",
    )
    command.add_argument(
        "--checksum",
        action=argparse.BooleanOptionalAction,
        help="end each chunk with a crc32c; Zarr v3 only (default: as in the source)",
    )
    command.add_argument(
        "--field",
        metavar="NAME",
        help="copy this field of records to an array of its own (default: whole records)",
    )
    command.add_argument(
        "--zarr-format",
        type=int,
        choices=(2, 3),
        help="version of the format (default: that of the target's URL, or of the source)",
    )
    command.add_argument(
        "--memory",
        type=integer(1, 1 << 20),
        default=256,
        metavar="MIB",
        help="limit of the decoded elements in memory, in MiB (default: %(default)s)",
    )
    command.add_argument(
        "--overwrite", action="store_true", help="replace an existing array or group"
    )
    add_progress_options(command)
    command.set_defaults(run=copy.run)
