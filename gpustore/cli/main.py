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
from gpustore.cli.failure import CommandError
from gpustore.schema.codec_words import CODEC_WORDS, codecs_named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_LARGEST_MB = 100_000


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage on one line."""

    def error(self, message: str) -> Never:
        self.exit(2, f"gpustore: error: {message} (see `{self.prog} --help`)\n")


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
        help="write, read and check a simulated volume, and print the speed",
        description="Simulates the volume of a microscope, writes it as Zarr v2 and v3, reads it "
        "back whole and by crops, checks every value, and saves a picture of a slice.",
    )
    command.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="folder for the files (default: a new temporary one)",
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
        help="seed of the volume (default: %(default)s)",
    )
    command.set_defaults(run=demo.run)

    command = commands.add_parser(
        "info",
        help="describe an array or a group",
        description="Describes an array (shape, data type, chunks, codecs, stored values) or a "
        "group (attributes, members).",
    )
    command.add_argument("array", metavar="URL_OR_PATH", help="for example volume.zarr")
    command.add_argument("--json", action="store_true", help="print JSON, for programs")
    command.add_argument(
        "--explain", action="store_true", help="estimate a read and a write of the whole array"
    )
    command.set_defaults(run=info.run)
    _add_copy(commands)
    _add_keys(commands)
    return parser


def _add_copy(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = commands.add_parser(
        "copy",
        help="copy an array or a group, re-chunked or re-encoded",
        description="Copies an array, or a group with everything below it, to another place, with "
        "other chunks, codecs or another format. Properties without an option stay as in the "
        "source. After Ctrl-C the copy can be read and holds the chunks copied so far; the same "
        "command continues it.",
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
        type=_integer(1, 1 << 20),
        default=256,
        metavar="MIB",
        help="limit of the decoded elements in memory, in MiB (default: %(default)s)",
    )
    command.add_argument(
        "--overwrite", action="store_true", help="replace an existing array or group"
    )
    command.add_argument("--quiet", action="store_true", help="print nothing but errors")
    command.set_defaults(run=copy.run)


def _add_keys(commands: argparse._SubParsersAction[_Parser]) -> None:
    place = "URL or path: a folder, an archive (x.zip|zip:), an array"
    command = commands.add_parser(
        "ls",
        help="list the names or keys below a URL",
        description="Prints the names one level below a URL, directories with a slash.",
    )
    command.add_argument("url", metavar="URL_OR_PATH", help=place)
    command.add_argument("-r", "--recursive", action="store_true", help="print all keys")
    command.set_defaults(run=keys.ls)
    command = commands.add_parser(
        "cat",
        help="print the value of a key",
        description="Writes a stored value to standard output, or the JSON value at a JSON "
        "pointer (x.json|json:/a/b).",
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="URL or path of a key")
    command.set_defaults(run=keys.cat)
    command = commands.add_parser(
        "du",
        help="print the stored size below a URL",
        description="Prints the numbers of keys and bytes below a URL, in total and by directory.",
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
