"""``gpustore copy``: any array to any other, re-chunked or re-encoded, in bounded memory.

1. Open the source; say what the target is to be (:mod:`gpustore.cli.copy_target`).
2. Refuse a place that holds other things, or overlaps the source.
3. Cut the array into regions of whole chunks of the target (:mod:`gpustore.cli.copy_plan`).
4. Make the target; read and write the regions (:mod:`gpustore.cli.copy_transfer`).
5. Say what was done, or what is left after an error or Ctrl-C.

A chunk that holds only the fill value is not stored.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.copy_plan import Plan, plan_regions
from gpustore.cli.copy_target import Options, make_target
from gpustore.cli.copy_transfer import first_interrupt, transfer
from gpustore.cli.elements import Elements, open_whole
from gpustore.cli.failure import CommandError
from gpustore.cli.info import FORMATS, chunk_extents, format_codecs, format_shape
from gpustore.cli.screen import Screen, format_nbytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code.

    Raises
    ------
    CommandError
        The options do not fit the array, the target is not free, or the copy failed half-way.
    KeyboardInterrupt
        After Ctrl-C, with a text that says what is left.
    """
    screen = None if arguments.quiet else Screen()
    source = open_whole(arguments.source, field=arguments.field, read=True, device="cpu")
    options = Options(
        chunks=arguments.chunks,
        shards=arguments.shards,
        codec=arguments.codec,
        checksum=arguments.checksum,
        zarr_format=arguments.zarr_format,
    )
    target = make_target(source, arguments.target, options)
    _check_place(arguments.target, target.kvstore, source, overwrite=arguments.overwrite)
    begin = time.perf_counter()
    before = gpustore.statistics["bytes_stored"]
    with first_interrupt() as stopped:
        made = target.make(delete_existing=arguments.overwrite)
        plan = plan_regions(
            source.shape,
            source.dtype.array_dtype.itemsize,
            source_chunk=chunk_extents(source, "read_chunk"),
            target_chunk=chunk_extents(made, "write_chunk"),
            memory_nbytes=arguments.memory << 20,
            workers=os.cpu_count() or 1,
        )
        if screen is None:
            _transfer(arguments.target, source, made, plan, stopped, lambda nbytes: None)
            return 0
        for note in target.notes + _notes(plan, arguments.memory << 20):
            screen.line(f"note: {note}")
        with screen.step("copy", plan.nbytes, rate=True) as show:
            _transfer(arguments.target, source, made, plan, stopped, show)
    stored = gpustore.statistics["bytes_stored"] - before
    _report(screen, arguments, made, stored, time.perf_counter() - begin)
    return 0


def _check_place(
    name: str, kvstore: Mapping[str, Any], source: gpustore.TensorStore, *, overwrite: bool
) -> None:
    """Only a free place, or with `overwrite` an array, is written to."""
    if kvstore["driver"] != "file":
        return  # A store in this process's memory: nobody was there before.
    path = Path(kvstore["path"])
    if path.exists() and not path.is_dir():
        raise CommandError(f"{name} is a file: name a folder")
    read: Any = source.kvstore.spec().to_json() if source.kvstore is not None else {}
    if read.get("driver") == "file":
        here, there = path.resolve(), Path(read["path"]).resolve()
        if here == there or here in there.parents or there in here.parents:
            raise CommandError(f"{name} overlaps the source: name another target")
    if not path.is_dir() or not any(path.iterdir()):
        return
    if not _is_array(path):
        raise CommandError(f"{name} holds other things than an array: name another target")
    if not overwrite:
        raise CommandError(f"{name} exists already: add --overwrite, or name another target")


def _is_array(path: Path) -> bool:
    """Whether the folder may be deleted as an array; a group may not, nor what is unreadable."""
    if (path / ".zgroup").exists():
        return False
    if not (path / "zarr.json").exists():
        return (path / ".zarray").exists()
    try:
        node = json.loads((path / "zarr.json").read_bytes())
    except ValueError:
        return False
    return isinstance(node, dict) and node.get("node_type") == "array"


def _transfer(
    name: str,
    source: gpustore.TensorStore,
    target: gpustore.TensorStore,
    plan: Plan,
    stopped: Callable[[], bool],
    show: Callable[[int], object],
) -> None:
    """Copy the elements; an error or Ctrl-C says what is left, and what can be done with it."""
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        show(nbytes)

    def left() -> str:
        return (
            f"{shlex.quote(name)} opens and its chunks are whole, but only "
            f"{format_nbytes(done)} of {format_nbytes(plan.nbytes)} were copied: "
            "copy again with --overwrite, or remove it"
        )

    try:
        transfer(source, target, plan, advance=advance, stopped=stopped)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(left()) from None
    except (gpustore.GpustoreError, OSError, MemoryError) as error:
        raise CommandError(f"{str(error) or type(error).__name__}; {left()}") from error
    if stopped() and done < plan.nbytes:
        raise KeyboardInterrupt(left())


def _notes(plan: Plan, memory_nbytes: int) -> list[str]:
    """What the user should know about memory."""
    notes = []
    if plan.region_nbytes > memory_nbytes:
        notes.append(
            f"one chunk of the target takes {format_nbytes(plan.region_nbytes)}, more than "
            f"--memory allows ({format_nbytes(memory_nbytes)}): one is copied at a time"
        )
    if plan.reads_per_chunk >= 1.5:
        notes.append(
            f"chunks of the source are decoded {plan.reads_per_chunk:.1f} times on average; "
            "more --memory makes it fewer"
        )
    return notes


def _report(
    screen: Screen,
    arguments: argparse.Namespace,
    target: gpustore.TensorStore,
    stored_nbytes: int,
    seconds: float,
) -> None:
    """What was done."""
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
