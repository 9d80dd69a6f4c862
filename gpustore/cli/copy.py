"""``gpustore copy``: any array to any other, re-chunked or re-encoded, in bounded memory.

:mod:`gpustore.copying.group` copies a group. The copy of an array has five steps:

1. Open the source; derive the target (:mod:`gpustore.copying.target`).
2. Refuse a place with other contents, or one that overlaps the source.
3. Divide the array into regions of whole chunks of the target (:mod:`gpustore.copying.plan`).
4. Make the target; read and write the regions (:mod:`gpustore.copying.transfer`).
5. Report the copy, or the rest after an error or Ctrl-C: the same command continues it
   (:mod:`gpustore.copying.journal`).

A chunk that holds only the fill value is not stored.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import gpustore
from gpustore.cli.group_info import find_group
from gpustore.cli.screen import Screen
from gpustore.copying import group as copy_group
from gpustore.copying.array import ArrayCopy, check_place, check_source, journal_at
from gpustore.copying.elements import open_whole
from gpustore.copying.journal import digest_of
from gpustore.copying.target import Options, make_target
from gpustore.copying.transfer import first_interrupt
from gpustore.display.array_info import FORMATS
from gpustore.display.elements import Elements
from gpustore.display.extents import chunk_extents
from gpustore.display.text import format_codecs, format_nbytes, format_shape

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code.

    Raises
    ------
    CommandError
        The options do not fit the array, the target is not free, or the copy failed half-way.
    KeyboardInterrupt
        After Ctrl-C; the text names the rest.
    """
    screen = None if arguments.quiet else Screen(progress=arguments.progress)
    try:
        source = open_whole(arguments.source, field=arguments.field, read=True, device="cpu")
    except gpustore.GpustoreError as error:
        group = find_group(arguments.source, error)
        copy_group.run(arguments, group, _options(arguments), screen)
        return 0
    target = make_target(source, arguments.target, _options(arguments))
    copy = ArrayCopy(source, target, arguments.target, arguments.memory << 20)
    overwrite = arguments.overwrite
    digest = digest_of({"": (source, target)})
    check_source(arguments.target, target.kvstore, source.kvstore)
    journal = journal_at(arguments.target, target.kvstore, digest, overwrite=overwrite)
    again = journal.found and not overwrite
    resumed = again and journal.is_made
    if not again:
        check_place(arguments.target, target.kvstore, "array", overwrite=overwrite)
    if not (again or overwrite):
        journal.begin({})
    begin = time.perf_counter()
    before = gpustore.statistics["bytes_stored"]
    with first_interrupt() as stopped:
        made = (
            target.reopen()
            if resumed
            else target.make(delete_existing=overwrite, may_exist=not overwrite)
        )
        plan = copy.plan(made, journal.region("") if resumed else None)
        if not resumed:
            journal.begin({"": plan})
        if screen is None:
            copy.run(made, plan, stopped, lambda nbytes: None, journal)
            journal.remove()
            return 0
        for note in copy.notes(plan):
            screen.line(f"note: {note}")
        if resumed:
            screen.line(
                f"note: {format_nbytes(plan.nbytes_of(journal.done('')))} were copied before"
            )
        with screen.step("copy", plan.nbytes, rate=True) as show:
            copy.run(made, plan, stopped, show, journal)
        journal.remove()
    stored = gpustore.statistics["bytes_stored"] - before
    _report(screen, arguments, made, stored, time.perf_counter() - begin)
    return 0


def _options(arguments: argparse.Namespace) -> Options:
    """Return the options of the command line as :class:`Options`."""
    return Options(
        chunks=arguments.chunks,
        shards=arguments.shards,
        codec=arguments.codec,
        checksum=arguments.checksum,
        zarr_format=arguments.zarr_format,
    )


def _report(
    screen: Screen,
    arguments: argparse.Namespace,
    target: gpustore.TensorStore,
    stored_nbytes: int,
    seconds: float,
) -> None:
    """Print the result of a copy."""
    elements = Elements.of(target)
    nbytes = math.prod(target.shape) * target.dtype.array_dtype.itemsize
    rank = elements.rank
    chunk = chunk_extents(target, "read_chunk")[:rank]
    shard = chunk_extents(target, "write_chunk")[:rank]
    ratio = f", ratio {nbytes / stored_nbytes:.2f}" if stored_nbytes else ""
    codec = target.codec.to_json() if target.codec is not None else {}
    pairs = [
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
    screen.facts(f"Copied {arguments.source} to {arguments.target}", pairs)
