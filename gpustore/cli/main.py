"""The entry point: reads the command line, runs one command, turns failures into one line.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Never

import gpustore
from gpustore.cli import copy, demo, info, keys
from gpustore.cli.copy_codec import CODEC_WORDS, codecs_named
from gpustore.cli.failure import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_LARGEST_MB = 100_000


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage on one line."""

    def error(self, message: str) -> Never:
        self.exit(2, f"gpustore: error: {message} (see `{self.prog} --help`)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpustore`` with `argv`, by default the process's own; return the exit code."""
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
    except (CommandError, gpustore.GpustoreError, OSError, MemoryError) as error:
        return _fail(f"error: {error or type(error).__name__}", 1)
    return code


def _fail(text: str, code: int) -> int:
    print(f"gpustore: {' '.join(text.split())}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpustore",
        description="Chunked, compressed Zarr arrays behind TensorStore's front end.",
    )
    parser.add_argument("--version", action="version", version=f"gpustore {gpustore.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = commands.add_parser(
        "demo",
        help="write, read and check a microscopy-like volume, and show how fast",
        description="Makes a volume as a microscope would take it, writes it as Zarr v2 and v3, "
        "reads it back whole and by crops, checks it, and saves a picture of a slice.",
    )
    command.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="where to work (default: a new temporary one)"
    )
    command.add_argument(
        "--size",
        type=_integer(1, _LARGEST_MB),
        default=200,
        metavar="MB",
        help="decoded size in megabytes (default: %(default)s)",
    )
    command.add_argument(
        "--seed",
        type=_integer(0, 2**63 - 1),
        default=0,
        metavar="N",
        help="the same seed makes the same volume (default: %(default)s)",
    )
    command.set_defaults(run=demo.run)

    command = commands.add_parser(
        "info",
        help="say what an array or a group is",
        description="Says what an array is: shape, type, chunks, codecs, and what is stored of it; "
        "of a group, its attributes and what is below it.",
    )
    command.add_argument("array", metavar="URL_OR_PATH", help="for example volume.zarr")
    command.add_argument("--json", action="store_true", help="print JSON, for programs")
    command.add_argument(
        "--explain", action="store_true", help="say what a read of all of it would do"
    )
    command.set_defaults(run=info.run)
    _add_copy(commands)
    _add_keys(commands)
    return parser


def _add_copy(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = commands.add_parser(
        "copy",
        help="copy an array or a group, re-chunked or re-encoded",
        description="Copies an array, or a group with all that is below it, to another place, with "
        "other chunks, codecs or another format. What no option names stays as it is in the "
        "source. Ctrl-C leaves arrays that can be read, with the chunks that were copied by then; "
        "the same command goes on from there.",
    )
    command.add_argument("source", metavar="SOURCE", help="URL or path of the array or group")
    command.add_argument("target", metavar="TARGET", help="URL or path of the copy")
    command.add_argument(
        "--chunks", type=_extents, metavar="N,N,...", help="extents of a chunk, e.g. 64,64,64"
    )
    command.add_argument(
        "--shards",
        type=_extents,
        metavar="N,N,...",
        help="extents of a shard, multiples of those of a chunk; Zarr v3 only "
        "(default: with --chunks no shards, otherwise as in the source)",
    )
    command.add_argument(
        "--codec",
        type=_codec,
        metavar="NAME[:LEVEL]",
        help=f"how chunks are compressed: {CODEC_WORDS} (default: as in the source)",
    )
    command.add_argument(
        "--checksum",
        action=argparse.BooleanOptionalAction,
        help="whether a crc32c stands behind each chunk; Zarr v3 only (default: as in the source)",
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
        help="(default: as the target's URL says, or as the source)",
    )
    command.add_argument(
        "--memory",
        type=_integer(1, 1 << 20),
        default=256,
        metavar="MIB",
        help="bound of the decoded regions in memory (default: %(default)s)",
    )
    command.add_argument("--overwrite", action="store_true", help="delete the target if it exists")
    command.add_argument("--quiet", action="store_true", help="print nothing but errors")
    command.set_defaults(run=copy.run)


def _add_keys(commands: argparse._SubParsersAction[_Parser]) -> None:
    place = "URL or path: a folder, an archive (x.zip|zip:), an array"
    command = commands.add_parser(
        "ls",
        help="list what is stored under a URL",
        description="Prints the names one level below a URL, those of directories with a slash.",
    )
    command.add_argument("url", metavar="URL_OR_PATH", help=place)
    command.add_argument("-r", "--recursive", action="store_true", help="print all keys")
    command.set_defaults(run=keys.ls)
    command = commands.add_parser(
        "cat",
        help="print what is stored under a key",
        description="Writes a value to standard output as it is stored; of a JSON pointer "
        "(x.json|json:/a/b), the JSON value.",
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="URL or path of a key")
    command.set_defaults(run=keys.cat)
    command = commands.add_parser(
        "du",
        help="say how much is stored under a URL",
        description="Says how many keys and bytes are stored below a URL, and in which of its "
        "directories.",
    )
    command.add_argument("url", metavar="URL_OR_PATH", help=place)
    command.add_argument("--json", action="store_true", help="print JSON, for programs")
    command.set_defaults(run=keys.du)


def _extents(text: str) -> list[int]:
    """Argument type: extents of a chunk."""
    try:
        extents = [int(word) for word in text.split(",")]
    except ValueError:
        extents = [0]
    if any(not 0 < extent < 2**62 for extent in extents):
        raise argparse.ArgumentTypeError(
            f"expected whole numbers from 1 with commas between, got {text!r}"
        )
    return extents


def _codec(text: str) -> str:
    """Argument type: a word for a codec."""
    try:
        codecs_named(text, 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _integer(smallest: int, largest: int) -> Callable[[str], int]:
    """Argument type: a whole number in a range."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = smallest - 1
        if not smallest <= number <= largest:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {smallest} to {largest}, got {text!r}"
            )
        return number

    return parse
