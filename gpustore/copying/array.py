"""Steps that copies of single arrays and of groups share."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import gpustore
from gpustore.copying.new_array import Target
from gpustore.copying.overlap import overlap
from gpustore.display.extents import chunk_extents
from gpustore.display.text import format_nbytes
from gpustore.runtime.cores import cores
from gpustore.sources.base import Source
from gpustore.transfer.journal import NAME, Journal
from gpustore.transfer.plan import Plan, plan_regions
from gpustore.transfer.regions import transfer


@dataclass(frozen=True)
class ArrayCopy:
    """Copy of one array: source, target and the bound of memory.

    Attributes
    ----------
    source : Source
    target : Target
    name : str
        Name of the copy in messages.
    memory_nbytes : int
        Bound of the decoded regions in memory.
    """

    source: Source
    target: Target
    name: str
    memory_nbytes: int

    def plan(self, made: gpustore.TensorStore, region: tuple[int, ...] | None = None) -> Plan:
        """Divide the array into regions of whole chunks of the made target, or into `region`."""
        written = chunk_extents(made, "write_chunk")
        plan = plan_regions(
            self.source.shape,
            made.dtype.array_dtype.itemsize,
            source_chunk=written if self.source.chunks is None else self.source.chunks,
            target_chunk=written,
            memory_nbytes=self.memory_nbytes,
            workers=cores(),
        )
        if region is None or region == plan.region:
            return plan
        nbytes = max(1, math.prod(region) * plan.itemsize)
        fitting = max(1, self.memory_nbytes // nbytes)
        return replace(plan, region=region, in_flight=min(fitting, plan.in_flight))

    def notes(self, plan: Plan) -> list[str]:
        """Return notes for the user about properties that are lost, and about memory."""
        return self.target.notes + _notes(plan, self.memory_nbytes)

    def run(
        self,
        made: gpustore.TensorStore,
        plan: Plan,
        stopped: Callable[[], bool],
        progress: Callable[[int], object],
        journal: Journal | None,
        path: str = "",
    ) -> None:
        """Copy the regions that `journal` does not list as stored for the array at `path`.

        `progress` is called with the bytes that are done. Errors and Ctrl-C report the rest and how
        to continue; the message of KeyboardInterrupt too.
        """
        first = 0 if journal is None else journal.done(path)
        done = plan.nbytes_of(first)
        progress(done)

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if journal is not None:
                journal.advance(path)

        def left() -> str:
            if done == plan.nbytes:
                whole = f"all of {shlex.quote(self.name)} was copied"
                return whole if journal is None else f"{whole}: the same call ends the copy"
            again = "the same call goes on from there, " if journal is not None else ""
            return (
                f"{shlex.quote(self.name)} opens and its chunks are whole, but only "
                f"{format_nbytes(done)} of {format_nbytes(plan.nbytes)} were copied: "
                f"{again}with `overwrite=True` it begins anew"
            )

        try:
            try:
                transfer(
                    self.source,
                    made,
                    plan,
                    advance=advance,
                    moving=lambda nbytes: progress(done + nbytes),
                    stopped=stopped,
                    first=first,
                )
            finally:
                if journal is not None and (done < plan.nbytes or stopped()):
                    journal.write()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(left()) from None
        except gpustore.GpustoreError as error:
            raise error.suffixed(f"; {left()}") from error.__cause__
        except (OSError, MemoryError) as error:
            raise gpustore.CopyError(f"{str(error) or type(error).__name__}; {left()}") from error
        if stopped():
            raise KeyboardInterrupt(left())


def check_source(
    name: str,
    kvstore: Mapping[str, Any],
    sources: Iterable[Mapping[str, Any]],
    context: gpustore.Context,
) -> None:
    """Raise CopyError if the copy would change its source, or the target cannot be written.

    Parameters
    ----------
    name : str
        Name of the target in messages.
    kvstore : dict
        JSON of the target's kvstore.
    sources : iterable of dict
        JSON of the kvstores with the source in them.
    context : Context
    """
    if any(overlap(kvstore, source) for source in sources):
        raise gpustore.CopyError(f"{name} overlaps the source: name another target")
    driver = gpustore.KvStore.open(dict(kvstore), context=context).result().driver
    if not driver.can_write:
        raise gpustore.CopyError(f'{name} cannot be written: kvstore "{driver.id}" is only read')


def check_place(
    name: str,
    kvstore: Mapping[str, Any],
    kind: Literal["array", "group"],
    context: gpustore.Context,
    *,
    overwrite: bool,
) -> None:
    """Raise unless the place is free, or `overwrite` allows replacing its contents.

    Parameters
    ----------
    name : str
        Name of the target in messages.
    kvstore : dict
        JSON of the target's kvstore.
    kind : {"array", "group"}
    context : Context
    overwrite : bool

    Raises
    ------
    AlreadyExistsError
        If there is another node of the kind.
    CopyError
        If the place holds something else.
    """
    is_folder = kvstore["driver"] == "file"
    # Of an interrupted copy there may be nothing but its journal.
    if is_folder:
        path = Path(kvstore["path"])
        if path.exists() and not path.is_dir():
            raise gpustore.CopyError(f"{name} is a file: name a folder")
        names = [one.name for one in path.iterdir()] if path.is_dir() else []
        if not names or (overwrite and names == [NAME]):
            return
    store = _directory(kvstore, context)
    if _is(store, kind):
        if overwrite:
            return
        raise gpustore.AlreadyExistsError(
            f"{name} exists already: add `overwrite=True`, or name another target", status=""
        )
    # What lies beside an array now would be deleted with it by overwriting later.
    if not is_folder:
        names = store.list_names().result()
    if names and not (overwrite and names == [NAME]):
        a = "an" if kind == "array" else "a"
        raise gpustore.CopyError(f"{name} holds other things than {a} {kind}: name another target")


def journal_at(
    name: str,
    kvstore: Mapping[str, Any],
    digest: str,
    context: gpustore.Context,
    *,
    overwrite: bool,
) -> Journal:
    """Open the journal of the copy at a place.

    Raises
    ------
    CopyError
        If another copy was begun there, unless `overwrite`.
    """
    store = gpustore.KvStore.open(dict(kvstore), context=context).result()
    journal = Journal(store, digest)
    if journal.other and not overwrite:
        raise gpustore.CopyError(
            f"{name} holds the beginning of another copy, or of this one with other options: add "
            "`overwrite=True`, or name another target"
        )
    return journal


def _directory(kvstore: Mapping[str, Any], context: gpustore.Context) -> gpustore.KvStore:
    """Return the kvstore at a place with a path to which names can be appended."""
    store = gpustore.KvStore.open(dict(kvstore), context=context).result()
    return store if not store.path or store.path.endswith("/") else store + "/"


def _is(store: gpustore.KvStore, kind: str) -> bool:
    """Return whether a place holds an array or a group of this kind; False if unreadable."""
    if ".zgroup" in store:
        return kind == "group"
    document = store.read("zarr.json").result()
    if document.state != "value":
        return kind == "array" and ".zarray" in store
    try:
        node = json.loads(document.value)
    except ValueError:
        return False
    return isinstance(node, dict) and node.get("node_type") == kind


def _notes(plan: Plan, memory_nbytes: int) -> list[str]:
    """Return notes for the user about memory."""
    notes = []
    if plan.region_nbytes > memory_nbytes:
        notes.append(
            f"one chunk of the target takes {format_nbytes(plan.region_nbytes)}, more than "
            f"`memory` allows ({format_nbytes(memory_nbytes)}): one is copied at a time"
        )
    if plan.reads_per_chunk >= 1.5:
        notes.append(
            f"chunks of the source are decoded {plan.reads_per_chunk:.1f} times on average; "
            "more `memory` makes it fewer"
        )
    return notes


def digest_of(copies: Mapping[str, tuple[Source, Target]], documents: Any = None) -> str:
    """Return a digest of sources, targets and documents, which identifies a copy."""
    parts = {
        path: (
            source.identity,
            target.driver,
            target.metadata,
            target.schema,
            target.as_void,
            target.attributes,
        )
        for path, (source, target) in copies.items()
    }
    text = json.dumps([parts, documents], sort_keys=True, default=_text)
    return hashlib.sha256(text.encode()).hexdigest()


def _text(value: Any) -> str:
    """Return a text for a value without JSON form, such as a fill value."""
    return repr(value.tobytes() if hasattr(value, "tobytes") else value)
