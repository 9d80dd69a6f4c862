"""``gpustore copy``: arguments, notes, bar and report of :func:`gpustore.copy`."""

from __future__ import annotations

import argparse
import math
import re
import time
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.options import add_place_options, add_progress_options, extent_or_extents, integer
from gpustore.cli.places import copying_context, specs_of
from gpustore.cli.screen import Screen
from gpustore.display.array_info import FORMATS
from gpustore.display.elements import Elements
from gpustore.display.extents import chunk_extents
from gpustore.display.text import format_codecs, format_nbytes, format_shape
from gpustore.schema.codec_words import CODEC_WORDS, codecs_named

if TYPE_CHECKING:
    from collections.abc import Callable


_ARGUMENT = re.compile(
    r"`(chunks|shards|codec|checksum|dims|units|field|memory|overwrite|zarr_format|ome_version)(?:=(\w+))?`"
)
"""An argument of :func:`gpustore.copy` in a message."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Copies an array, or a group with everything below it, to another place, with "
        "other chunks, codecs or another format. Properties without an option stay as in the "
        "source. Files of NumPy (a.npy), TIFF (a.tif) and HDF5 (a.h5::/group/dataset) become new "
        "arrays in chunks of about 1 MiB. After Ctrl-C the copy can be read and holds the chunks "
        "copied so far; the same command continues it."
    )
    command.add_argument(
        "source", metavar="SOURCE", help="URL or path of an array, a group or a file"
    )
    command.add_argument("target", metavar="TARGET", help="URL or path of the copy")
    command.add_argument(
        "--chunks",
        type=extent_or_extents,
        metavar="N,N,...",
        help="extents of a chunk, e.g. 64,64,64, or 64 for all dimensions",
    )
    command.add_argument(
        "--shards",
        type=extent_or_extents,
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
        "--ome-version",
        choices=("0.4", "0.5", "0.6"),
        help="version of OME-Zarr of the copy of a group; 0.4 is Zarr v2, 0.5 and 0.6 are v3 "
        "(default: that of the source, or 0.4 or 0.5 with another --zarr-format)",
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
    add_place_options(command)
    command.set_defaults(run=run)


def _codec(text: str) -> str:
    """Argument type: a word for a codec."""
    try:
        codecs_named(text, 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code.

    Raises
    ------
    CommandError
        The target would not stay, or a library is missing.
    GpustoreError
        The errors of :func:`gpustore.copy`, with options in the words of the shell.
    KeyboardInterrupt
        After Ctrl-C; the text names the rest.
    """
    _check_stays(arguments.target)
    screen = None if arguments.quiet else Screen(progress=arguments.progress)
    bar = _Bar(screen)
    begin = time.perf_counter()
    before = gpustore.statistics["bytes_stored"]
    with warnings.catch_warnings():
        warnings.simplefilter("always", gpustore.CopyWarning)
        warnings.showwarning = _shown(screen, warnings.showwarning)
        try:
            with bar:
                made = _copied(arguments, bar.show)
        except gpustore.CopyError:
            if not bar.is_full:
                raise
            # All there is was copied, but for members that could not be.
            _report(
                arguments,
                screen,
                _group(arguments),
                bar,
                begin,
                before,
            )
            raise
    _report(arguments, screen, made, bar, begin, before)
    return 0


def _group(arguments: argparse.Namespace) -> gpustore.Group:
    """Open the copy of a group."""
    _, target = specs_of((arguments.source, arguments.target), arguments)
    return gpustore.open_group(target, context=copying_context(arguments)).result()


class _Bar:
    """The bar of a copy, which begins when its size is known."""

    def __init__(self, screen: Screen | None) -> None:
        self._screen = screen
        self._stack = ExitStack()
        self._step: Callable[[int], object] | None = None
        self._done = 0
        self.total = -1

    def __enter__(self) -> None:
        self._stack.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def is_full(self) -> bool:
        """Whether all bytes are copied."""
        return self._done == self.total

    def show(self, done: int, total: int) -> None:
        """Move the bar."""
        if self.total < 0:
            self.total = total
            if self._screen is not None:
                if done:
                    self._screen.line(f"note: {format_nbytes(done)} were copied before")
                step = self._screen.step("copy", total, rate=True)
                self._step = self._stack.enter_context(step)
        if self._step is not None:
            self._step(done - self._done)
        self._done = done


def _copied(
    arguments: argparse.Namespace, progress: Callable[[int, int], object]
) -> gpustore.TensorStore | gpustore.Group:
    """Copy as the arguments say; errors name options as the shell does."""
    try:
        return gpustore.copy(
            *specs_of((arguments.source, arguments.target), arguments),
            context=copying_context(arguments),
            chunks=arguments.chunks,
            shards=arguments.shards,
            codec=arguments.codec,
            checksum=arguments.checksum,
            zarr_format=arguments.zarr_format,
            ome_version=arguments.ome_version,
            field=arguments.field,
            overwrite=arguments.overwrite,
            memory=arguments.memory << 20,
            progress=progress,
        )
    except gpustore.GpustoreError as error:
        raise error.reworded(_in_shell(error.text)) from error.__cause__
    except ModuleNotFoundError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_in_shell(str(error))) from None


def _in_shell(text: str) -> str:
    """Return a message with arguments as options.

    >>> _in_shell("add `overwrite=True` or `zarr_format=3`, or leave out `chunks`")
    'add --overwrite or --zarr-format 3, or leave out --chunks'
    """

    def option(match: re.Match[str]) -> str:
        value = "" if match[2] in (None, "True") else f" {match[2]}"
        return f"--{match[1].replace('_', '-')}{value}"

    return _ARGUMENT.sub(option, text).replace("the same call", "the same command")


def _shown(screen: Screen | None, other: Any) -> Any:
    """Return what shows warnings: those of the copy as notes."""

    def show(message: Any, category: Any, *place: Any) -> None:
        if not issubclass(category, gpustore.CopyWarning):
            other(message, category, *place)
        elif screen is not None:
            screen.line(f"note: {_in_shell(str(message))}")

    return show


def _check_stays(target: str) -> None:
    """Raise CommandError if the target is in the memory of this process."""
    kvstore: Any = gpustore.Spec(target).to_json().get("kvstore", {})
    while "base" in kvstore:
        kvstore = kvstore["base"]
    if kvstore.get("driver") == "memory":
        raise CommandError(f"{target} would end with this command: name a target that stays")


def _report(
    arguments: argparse.Namespace,
    screen: Screen | None,
    made: gpustore.TensorStore | gpustore.Group,
    bar: _Bar,
    begin: float,
    before: int,
) -> None:
    """Print the result of a copy that began at a time and a count of stored bytes."""
    if screen is None:
        return
    stored = gpustore.statistics["bytes_stored"] - before
    seconds = time.perf_counter() - begin
    if isinstance(made, gpustore.Group):
        nodes = [node for _, node in made.walk()]
        pairs = [
            ("format", f"Zarr v{made.zarr_format} group"),
            ("groups", str(sum(node.is_group for node in nodes))),
            ("arrays", str(sum(node.is_array for node in nodes))),
            ("decoded size", format_nbytes(bar.total)),
            ("stored size", format_nbytes(stored)),
            ("time", f"{seconds:.2f} s"),
        ]
    else:
        pairs = _facts(made, stored, seconds)
    screen.facts(f"Copied {arguments.source} to {arguments.target}", pairs)


def _facts(
    target: gpustore.TensorStore, stored_nbytes: int, seconds: float
) -> list[tuple[str, str]]:
    """Return the properties of a copied array, and its speed."""
    elements = Elements.of(target)
    nbytes = math.prod(target.shape) * target.dtype.array_dtype.itemsize
    rank = elements.rank
    chunk = chunk_extents(target, "read_chunk")[:rank]
    shard = chunk_extents(target, "write_chunk")[:rank]
    ratio = f", ratio {nbytes / stored_nbytes:.2f}" if stored_nbytes else ""
    codec = target.codec.to_json() if target.codec is not None else {}
    return [
        ("format", FORMATS[str(target.spec().to_json()["driver"])]),
        ("shape", format_shape(target.shape[:rank])),
        ("type", str(elements)),
        ("chunk", format_shape(chunk)),
        *([("shard", format_shape(shard))] if shard != chunk else []),
        ("codecs", format_codecs(codec)),
        ("decoded size", format_nbytes(nbytes)),
        ("stored size", format_nbytes(stored_nbytes) + ratio),
        ("time", f"{seconds:.2f} s, {format_nbytes(round(nbytes / max(seconds, 1e-9)))}/s"),
    ]


COMMANDS = {"copy": add_options}
