"""Copy of a group: everything below it, with the attributes.

1. Derive the target of every array, so that impossible ones are known before anything is made.
2. Make the group, the groups below it and the arrays.
3. Copy the arrays one after the other.

Within a format, documents of groups are copied unchanged, unknown members included; between them,
and between versions of OME-Zarr, OME metadata are converted (:mod:`gpustore.ome.conversion`). A
member that cannot be read, or not be stored in the target's format, is left out and named at the
end. The copy has consolidated metadata if the source was opened with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gpustore
from gpustore.copying.array import (
    ArrayCopy,
    check_place,
    check_source,
    digest_of,
    journal_at,
)
from gpustore.copying.elements import open_whole
from gpustore.copying.options import Options
from gpustore.copying.request import Request
from gpustore.copying.target import chosen_format, make_target, place_of
from gpustore.copying.zarr_source import source_of
from gpustore.display.extents import chunk_extents
from gpustore.ome.conversion import axes_of, converted, is_ome
from gpustore.ome.new_image import FORMATS
from gpustore.sources.base import places_of
from gpustore.transfer.regions import first_interrupt

_DRIVERS = {2: "zarr2", 3: "zarr3"}
_OF_FORMAT = {2: "0.4", 3: "0.5"}
"""Version of OME-Zarr of images that only their format was asked of."""
_FILES = {2: ".zattrs", 3: "zarr.json"}


@dataclass(slots=True)
class _Work:
    """Documents and arrays of a copy of a group.

    Attributes
    ----------
    name : str
        Name of the group in its store.
    after : int
        Format of the copy.
    version : str or None
        Version of OME-Zarr of the copy; None is that of the source.
    is_asked : bool
        Whether the caller named the version, so that another one is an error.
    groups : dict of str to dict
        JSON documents to store, by path and name.
    images : dict of str to dict
        Attributes of groups with OME metadata in the source, by path.
    arrays : dict of str to ArrayCopy
        Copies of arrays, by path.
    left_out : list of str
        Members that are not copied, with the reasons.
    notes : list of str
        Properties of groups that are lost.
    """

    name: str
    after: int
    version: str | None
    is_asked: bool
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, ArrayCopy] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def copy_group(group: gpustore.Group, request: Request) -> gpustore.Group:
    """Copy a group.

    Raises
    ------
    CopyError
        The options do not fit, the target is not free, or members were left out.
    GpustoreError
        The copy failed half-way; the text says how to go on.
    KeyboardInterrupt
        After Ctrl-C, with a text that says what is left.
    """
    if request.field is not None:
        raise gpustore.CopyError("`field` names a field of an array, but the source is a group")
    driver, root = place_of(request.target)
    wanted = _format(request.options.ome_version, request.options.zarr_format)
    after = chosen_format(wanted, driver, group.zarr_format)
    overwrite, context = request.overwrite, request.context
    places = places_of(group.kvstore)
    check_source(request.name, root, places, context)
    request = replace(request, options=replace(request.options, zarr_format=after))
    work = _work(group, request, root, after)
    digest = digest_of(
        {path: (copy.source, copy.target) for path, copy in work.arrays.items()}, work.groups
    )
    journal = journal_at(request.name, root, digest, context, overwrite=overwrite)
    # A store object of another library has no name by which it could be known again.
    kept = journal if places else None
    again = journal.found and not overwrite
    resumed = again and journal.is_made
    if not again:
        check_place(request.name, root, "group", context, overwrite=overwrite)
    if kept is not None and not (again or overwrite):
        kept.begin({})
    spec = {"driver": _DRIVERS[after], "kvstore": root}
    with first_interrupt() as stopped:
        if resumed:
            made = {path: copy.target.reopen() for path, copy in work.arrays.items()}
        else:
            made = _make(work, spec, request)
        plans = {
            path: work.arrays[path].plan(store, journal.region(path) if resumed else None)
            for path, store in made.items()
        }
        if kept is not None and not resumed:
            kept.begin(plans)
        total = sum(plan.nbytes for plan in plans.values())
        request.warn(work.notes)
        for path, copy in work.arrays.items():
            request.warn(f"{path}: {note}" for note in copy.notes(plans[path]))
        request.progress(0, total)
        before, done = 0, 0
        try:
            for path, copy in work.arrays.items():
                show = _shown(request, before, total)
                copy.run(made[path], plans[path], stopped, show, kept, path)
                before += plans[path].nbytes
                done += 1
        except (gpustore.GpustoreError, KeyboardInterrupt) as error:
            more = f"; {done} of the {len(work.arrays)} arrays of the group were copied before"
            if isinstance(error, gpustore.GpustoreError):
                raise error.suffixed(more) from error.__cause__
            raise KeyboardInterrupt(f"{error}{more}") from None
    copied = gpustore.open_group(spec, context=context).result()
    if group.is_consolidated:
        copied = copied.consolidate().result()
    if kept is not None:
        kept.remove()
    if work.left_out:
        raise gpustore.CopyError(
            f"{request.name} lacks {len(work.left_out)} of the members, which could not be "
            f"copied: {'; '.join(work.left_out)}"
        )
    return copied


def _shown(request: Request, before: int, total: int) -> Callable[[int], object]:
    """Return the progress of an array as part of that of the group."""
    return lambda nbytes: request.progress(before + nbytes, total)


def _format(version: str | None, zarr_format: int | None) -> int | None:
    """Return the format of a copy in a version of OME-Zarr, None if that of the source will do."""
    if version is None:
        return zarr_format
    if version not in FORMATS:
        raise gpustore.CopyError(f"`ome_version`: expected 0.4, 0.5 or 0.6, got {version!r}")
    if zarr_format not in (None, FORMATS[version]):
        raise gpustore.CopyError(
            f"OME-Zarr {version} is stored as Zarr v{FORMATS[version]}: leave out `zarr_format`"
        )
    return FORMATS[version]


def _work(group: gpustore.Group, request: Request, root: dict[str, Any], after: int) -> _Work:
    """Derive the copy of every member."""
    asked = request.options.ome_version
    version = _OF_FORMAT[after] if asked is None and group.zarr_format != after else asked
    name = group.kvstore.path.rstrip("/").rpartition("/")[2]
    work = _Work(name, after, version, asked is not None)
    _add_group(work, "", *_documents(group))
    for path, node in group.walk():
        try:
            if node.error is not None:
                raise node.error
            if node.is_group:
                _add_group(work, path, node.document, node.attributes)
                continue
            spec = {"driver": _DRIVERS[group.zarr_format]}
            place = group.kvstore / path
            context = request.context
            store = open_whole(spec, kvstore=place, read=True, device="cpu", context=context)
            wanted = {"driver": _DRIVERS[after], "kvstore": _at(root, path)}
            options = _options_of(path, store, request.options, work)
            target = make_target(store, wanted, options, request.context)
            if after == 2 and group.zarr_format == 3 and _image(path, work.images) is not None:
                target.metadata["dimension_separator"] = "/"
                # Whoever reads such images expects one, and does not mask it.
                target.schema.setdefault("fill_value", store.fill_value)
        except gpustore.CopyError as error:
            raise error.prefixed(path) from error
        except gpustore.GpustoreError as error:
            work.left_out.append(f"{path}: {error}")
        else:
            name = f"{request.name.rstrip('/')}/{path}"
            work.arrays[path] = ArrayCopy(source_of(store), target, name, request.memory_nbytes)
    if asked is not None and not work.images:
        raise gpustore.CopyError("`ome_version`: the source has no metadata of OME-Zarr")
    return work


def _options_of(
    path: str,
    store: gpustore.TensorStore,
    options: Options,
    work: _Work,
) -> Options:
    """Return the options of an array: in an image chunks are those of the last dimensions.

    Arrays of an image whose version changes have its axes as names of dimensions.
    """
    if _image(path, work.images) is None:
        return options
    chunk = chunk_extents(store, "read_chunk")
    found = {"chunks": options.chunks, "shards": options.shards}
    for name, value in found.items():
        if isinstance(value, list | tuple) and len(value) < store.rank:
            found[name] = [*chunk[: store.rank - len(value)], *value]
    dims = options.dims
    image, _, name = path.rpartition("/")
    if work.version is not None and dims is None:
        dims = axes_of(work.images.get(image, {})).get(name)
        dims = dims if dims is not None and len(dims) == store.rank else None
    return replace(options, dims=dims, **found)


def _image(path: str, images: dict[str, dict[str, Any]]) -> str | None:
    """Return the path of a group with OME metadata above an array, None if there is none."""
    return next((at for at in images if path.startswith(f"{at}/" if at else "")), None)


def _documents(group: gpustore.Group) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the document and the attributes of a group.

    The document is in consolidated metadata only if the group is a member of another.
    """
    attributes = dict(group.attrs)
    if group.zarr_format == 2:
        read = group.kvstore.read(".zgroup").result()
        document = json.loads(read.value) if read.state == "value" else {"zarr_format": 2}
    else:
        read = group.kvstore.read("zarr.json").result()
        made = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        document = json.loads(read.value) if read.state == "value" else made
    return document, attributes


def _add_group(
    work: _Work,
    path: str,
    document: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> None:
    """Add the documents of a group to store."""
    before, after = document["zarr_format"], work.after
    document = {name: v for name, v in document.items() if name != "consolidated_metadata"}
    attributes = dict(attributes)
    if is_ome(attributes):
        work.images[path] = attributes
    if work.version is not None:
        file = f"{path}/{_FILES[before]}".lstrip("/")
        name = path.rpartition("/")[2] if path else work.name
        try:
            attributes, notes = converted(attributes, work.version, f"{file}: ", name)
        except gpustore.GpustoreError as error:
            if work.is_asked:
                raise gpustore.CopyError(error.text) from error
            notes = [f"{error.text}: OME metadata stay as they are"]
        work.notes += notes
        if after == 3:
            # Members of a document of the same format stay.
            base = document if before == 3 else {"zarr_format": 3, "node_type": "group"}
            document = {**base, "attributes": attributes}
        elif before == 3:
            document = {"zarr_format": 2}
    if after == 3:
        work.groups[path] = {"zarr.json": document}
    else:
        work.groups[path] = {".zgroup": document} | ({".zattrs": attributes} if attributes else {})


def _at(kvstore: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the place of a member, as JSON of a kvstore."""
    base = str(kvstore.get("path", ""))
    return {**kvstore, "path": f"{base.rstrip('/')}/{path}/" if base else f"{path}/"}


def _make(work: _Work, spec: dict[str, Any], request: Request) -> dict[str, gpustore.TensorStore]:
    """Make all groups and arrays; return the arrays by path."""
    overwrite = request.overwrite
    # What is there without `overwrite` was made by a run that was stopped.
    made = gpustore.open_group(
        spec,
        create=True,
        open=not overwrite,
        delete_existing=overwrite,
        context=request.context,
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
