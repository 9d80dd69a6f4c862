"""Copies of any array or group: :func:`copy`, which `gpustore.copy` calls.

:mod:`gpustore.copying.group` copies a group. The copy of an array has five steps:

1. Open the source; derive the target (:mod:`gpustore.copying.target` for Zarr arrays, otherwise
   :mod:`gpustore.copying.new_target`).
2. Refuse a place with other contents, or one that overlaps the source.
3. Divide the array into regions of whole chunks of the target (:mod:`gpustore.transfer.plan`).
4. Make the target; read and write the regions (:mod:`gpustore.transfer.regions`).
5. Return the copy, or report the rest after an error or Ctrl-C: the same call continues it
   (:mod:`gpustore.transfer.journal`).

A chunk that holds only the fill value is not stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import gpustore
from gpustore.copying.array import (
    ArrayCopy,
    check_place,
    check_source,
    digest_of,
    journal_at,
)
from gpustore.copying.elements import find_group, open_whole
from gpustore.copying.group import copy_group
from gpustore.copying.new_target import make_new_target
from gpustore.copying.options import Options
from gpustore.copying.request import Request
from gpustore.copying.target import FORMATS, make_target
from gpustore.copying.zarr_source import source_of
from gpustore.ome.new_image import new_place
from gpustore.sources.array_like import of_object
from gpustore.sources.base import Source, of_field
from gpustore.sources.files import open_file
from gpustore.transfer.regions import first_interrupt


def copy(
    source: Any,
    target: Any,
    *,
    field: str | None,
    overwrite: bool,
    memory: int,
    context: Any,
    progress: Callable[[int, int], object] | None,
    **options: Any,
) -> gpustore.TensorStore | gpustore.Group:
    """Copy an array or a group; see `gpustore.copy`. `options` are those of :class:`Options`."""
    if context is None or isinstance(context, Mapping):
        context = gpustore.Context(context or {})
    request = Request(
        new_place(target),
        Options(**options),
        field,
        overwrite,
        memory,
        context,
        progress or (lambda done, total: None),
    )
    opened = _opened(source, request)
    if isinstance(opened, gpustore.Group):
        return copy_group(opened, request)
    if request.options.ome_version is not None:
        raise gpustore.CopyError("`ome_version` is for groups, but the source is an array")
    elements = opened if isinstance(opened, Source) else source_of(opened)
    try:
        if isinstance(opened, Source):
            elements = of_field(opened, request.field)
            target = make_new_target(elements, request.target, request.options, request.context)
        else:
            target = make_target(opened, request.target, request.options, request.context)
        array = ArrayCopy(elements, target, request.name, request.memory_nbytes)
        return _copy_array(array, request)
    finally:
        elements.close()


def _copy_array(copy: ArrayCopy, request: Request) -> gpustore.TensorStore:
    target, overwrite, context = copy.target, request.overwrite, request.context
    check_source(request.name, target.kvstore, copy.source.places, context)
    digest = digest_of({"": (copy.source, target)})
    journal = journal_at(request.name, target.kvstore, digest, context, overwrite=overwrite)
    again = journal.found and not overwrite
    resumed = again and journal.is_made
    # Nothing tells whether an array of this process is the same the next time.
    kept = None if copy.source.identity is None else journal
    if not again:
        check_place(request.name, target.kvstore, "array", context, overwrite=overwrite)
    if kept is not None and not (again or overwrite):
        kept.begin({})
    with first_interrupt() as stopped:
        made = (
            target.reopen()
            if resumed
            else target.make(delete_existing=overwrite, may_exist=not overwrite)
        )
        plan = copy.plan(made, journal.region("") if resumed else None)
        if kept is not None and not resumed:
            kept.begin({"": plan})
        request.warn(copy.notes(plan))

        def progress(nbytes: int) -> None:
            request.progress(nbytes, plan.nbytes)

        copy.run(made, plan, stopped, progress, kept)
        if kept is not None:
            kept.remove()
    return made if target.as_void else target.reopen(device=None)


def _opened(source: Any, request: Request) -> gpustore.TensorStore | gpustore.Group | Source:
    """Return the source: a Zarr array whole in host memory, a group, or anything else."""
    if isinstance(source, gpustore.Group):
        return source
    if isinstance(source, gpustore.TensorStore):
        if request.field is not None:
            raise gpustore.CopyError(
                "`field` names a field, but the source is open: open the field"
            )
        if not _is_whole(source):
            return of_object(source)
        spec = source.spec(retain_context=True)
        return gpustore.open(spec, read=True, device="cpu").result()
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str):
        file = open_file(source)
        if file is not None:
            return file
    elif not isinstance(source, gpustore.Spec | gpustore.KvStore | dict):
        return of_object(source)
    keywords = {"read": True, "device": "cpu", "context": request.context}
    named = source
    if isinstance(source, gpustore.KvStore):
        named, keywords["kvstore"] = {"driver": "auto"}, source
    try:
        store = open_whole(named, field=request.field, **keywords)
    except gpustore.CopyError:
        raise
    except gpustore.GpustoreError as error:
        return find_group(source, error, context=request.context)
    is_json = store.spec().to_json()["driver"] == "json"  # Refused by `make_target`.
    return store if is_json or _is_whole(store) else of_object(store)


def _is_whole(store: gpustore.TensorStore) -> bool:
    """Whether a store is a Zarr array, and no view of one."""
    spec, json = store.spec(), store.spec().to_json()
    transform = spec.transform
    if json["driver"] not in FORMATS or transform is None:
        return False
    maps = [(one.input_dimension, one.offset, one.stride) for one in transform.output]
    shape = json["metadata"]["shape"]
    return (
        maps == [(i, 0, 1) for i in range(store.rank)]
        and store.origin == (0,) * store.rank
        and list(store.shape[: len(shape)]) == list(shape)
    )
