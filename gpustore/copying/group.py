"""``gpustore copy`` of a group: everything below it, with the attributes.

1. Derive the target of every array, so that impossible ones are known before anything is made.
2. Make the group, the groups below it and the arrays.
3. Copy the arrays one after the other.

Within a format, documents of groups are copied unchanged, unknown members included. A member that
cannot be read, or not be stored in the target's format, is left out and named at the end. The copy
has consolidated metadata if the source was opened with them.
"""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.copying.array import ArrayCopy, check_place, check_source, journal_at
from gpustore.copying.elements import open_whole
from gpustore.copying.journal import digest_of
from gpustore.copying.target import chosen_format, make_target
from gpustore.copying.transfer import first_interrupt
from gpustore.display.text import format_nbytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gpustore.copying.target import Options


_DRIVERS = {2: "zarr2", 3: "zarr3"}


@dataclass(slots=True)
class _Work:
    """Documents and arrays of a copy of a group.

    Attributes
    ----------
    groups : dict of str to dict
        JSON documents to store, by path and name.
    arrays : dict of str to ArrayCopy
        Copies of arrays, by path.
    left_out : list of str
        Members that are not copied, with the reasons.
    """

    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, ArrayCopy] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def run(
    arguments: argparse.Namespace, group: gpustore.Group, options: Options, screen: Any
) -> None:
    """Copy a group.

    Raises
    ------
    CopyError
        The options do not fit, the target is not free, the copy failed half-way, or members were
        left out.
    KeyboardInterrupt
        After Ctrl-C, with a text that says what is left.
    """
    if arguments.field is not None:
        raise gpustore.CopyError("--field names a field of an array, but the source is a group")
    place = gpustore.Spec(arguments.target).to_json()
    after = chosen_format(options.zarr_format, str(place["driver"]), group.zarr_format)
    root: dict[str, Any] = dict(place["kvstore"])
    overwrite = arguments.overwrite
    check_source(arguments.target, root, group.kvstore)
    options = replace(options, zarr_format=after)
    work = _work(group, arguments, options, root)
    digest = digest_of(
        {path: (copy.source, copy.target) for path, copy in work.arrays.items()}, work.groups
    )
    journal = journal_at(arguments.target, root, digest, overwrite=overwrite)
    again = journal.found and not overwrite
    resumed = again and journal.is_made
    if not again:
        check_place(arguments.target, root, "group", overwrite=overwrite)
    if not (again or overwrite):
        journal.begin({})
    begin = time.perf_counter()
    before = gpustore.statistics["bytes_stored"]
    with first_interrupt() as stopped:
        if resumed:
            made = {path: copy.target.reopen() for path, copy in work.arrays.items()}
        else:
            made = _make(work, root, after, overwrite=overwrite)
        plans = {
            path: work.arrays[path].plan(store, journal.region(path) if resumed else None)
            for path, store in made.items()
        }
        if not resumed:
            journal.begin(plans)
        total = sum(plan.nbytes for plan in plans.values())
        done = 0
        step: AbstractContextManager[Callable[[int], object]] = nullcontext(lambda nbytes: None)
        if screen is not None:
            for path, copy in work.arrays.items():
                for note in copy.notes(plans[path]):
                    screen.line(f"note: {path}: {note}")
            step = screen.step("copy", total, rate=True)
        try:
            with step as show:
                for path, copy in work.arrays.items():
                    copy.run(made[path], plans[path], stopped, show, journal, path)
                    done += 1
        except (gpustore.GpustoreError, KeyboardInterrupt) as error:
            more = f"; {done} of the {len(work.arrays)} arrays of the group were copied before"
            if isinstance(error, gpustore.GpustoreError):
                raise error.suffixed(more) from error.__cause__
            raise KeyboardInterrupt(f"{error}{more}") from None
    if group.is_consolidated:
        spec = {"driver": _DRIVERS[after], "kvstore": root}
        gpustore.open_group(spec).result().consolidate().result()
    journal.remove()
    if screen is not None:
        pairs = [
            ("format", f"Zarr v{after} group"),
            ("groups", str(len(work.groups) - 1)),
            ("arrays", str(len(work.arrays))),
            ("decoded size", format_nbytes(total)),
            ("stored size", format_nbytes(gpustore.statistics["bytes_stored"] - before)),
            ("time", f"{time.perf_counter() - begin:.2f} s"),
        ]
        screen.facts(f"Copied {arguments.source} to {arguments.target}", pairs)
    if work.left_out:
        raise gpustore.CopyError(
            f"{arguments.target} lacks {len(work.left_out)} of the members, which could not be "
            f"copied: {'; '.join(work.left_out)}"
        )


def _work(
    group: gpustore.Group, arguments: argparse.Namespace, options: Options, root: dict[str, Any]
) -> _Work:
    """Derive the copy of every member."""
    after = options.zarr_format or group.zarr_format
    below: dict[str, Any] = group.kvstore.spec().to_json()
    work = _Work({"": _documents(group, "", after)})
    for path, node in group.walk():
        try:
            if node.error is not None:
                raise node.error
            if node.is_group:
                work.groups[path] = _documents(group, path, after)
                continue
            spec = {"driver": _DRIVERS[group.zarr_format], "kvstore": _at(below, path)}
            source = open_whole(spec, read=True, device="cpu")
            wanted = {"driver": _DRIVERS[after], "kvstore": _at(root, path)}
            target = make_target(source, wanted, options)
        except gpustore.CopyError as error:
            raise error.prefixed(path) from error
        except gpustore.GpustoreError as error:
            work.left_out.append(f"{path}: {error}")
        else:
            name = f"{arguments.target.rstrip('/')}/{path}"
            work.arrays[path] = ArrayCopy(source, target, name, arguments.memory << 20)
    return work


def _at(kvstore: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the place of a member, as JSON of a kvstore."""
    base = str(kvstore.get("path", ""))
    return {**kvstore, "path": f"{base.rstrip('/')}/{path}/" if base else f"{path}/"}


def _documents(group: gpustore.Group, path: str, after: int) -> dict[str, Any]:
    """Return the documents of a group to store, by name."""
    prefix = f"{path}/" if path else ""
    names = (".zgroup", ".zattrs") if group.zarr_format == 2 else ("zarr.json",)
    stored: dict[str, dict[str, Any]] = {}
    for name in names:
        found = group.kvstore.read(prefix + name).result()
        stored[name] = json.loads(found.value) if found.state == "value" else {}
    if group.zarr_format == 3:
        document = stored["zarr.json"]
        document.pop("consolidated_metadata", None)
        attributes = document.get("attributes", {})
    else:
        document, attributes = stored[".zgroup"], stored[".zattrs"]
    if after == 2:
        kept = document if group.zarr_format == 2 else {"zarr_format": 2}
        return {".zgroup": kept} | ({".zattrs": attributes} if attributes else {})
    if group.zarr_format == 3:
        return {"zarr.json": document}
    return {"zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": attributes}}


def _make(
    work: _Work, root: dict[str, Any], after: int, *, overwrite: bool
) -> dict[str, gpustore.TensorStore]:
    """Make all groups and arrays; return the arrays by path."""
    spec = {"driver": _DRIVERS[after], "kvstore": root}
    # What is there without --overwrite was made by a run that was stopped.
    made = gpustore.open_group(
        spec, create=True, open=not overwrite, delete_existing=overwrite
    ).result()
    # Together: an archive or a database makes one change of all that are under way.
    writes = [
        made.kvstore.write(f"{path}/{name}" if path else name, json.dumps(document).encode())
        for path, documents in work.groups.items()
        for name, document in documents.items()
    ]
    for write in writes:
        write.result()
    return {path: copy.target.make(may_exist=not overwrite) for path, copy in work.arrays.items()}
