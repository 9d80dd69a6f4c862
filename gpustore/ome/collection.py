"""Collections: images of one file that bioformats2raw converted.

Source: OME-NGFF 0.4 to 0.6, "bioformats2raw.layout" (transitional).
"""

from __future__ import annotations

import gpustore
from gpustore.ome.members import items, json_object, kind, place_of
from gpustore.ome.multiscale import ome_of
from gpustore.ome.opened import group_of, is_absent
from gpustore.ome.plate import Images

LAYOUT = 3
_MOST = 10_000
"""Images that are looked for by number: a server may answer each name."""


class Collection:
    """Images of one converted file; see :func:`gpustore.ome.open`.

    Attributes
    ----------
    group : Group
        Group of the collection.
    version : str
        Version of OME-Zarr.
    images : sequence of Image
        Images in the order of the file; each is opened when it is asked for.
    """

    def __init__(self, group: gpustore.Group) -> None:
        where = f"{place_of(group)}: "
        self.version, ome = ome_of(group.attrs, where)
        layout = ome["bioformats2raw.layout"]
        if layout != LAYOUT:
            raise gpustore.UnsupportedError(
                f"{where}bioformats2raw.layout: {kind(layout)} is not read, only {LAYOUT} is"
            )
        self.group = group
        self.images = Images.below(group, _series(group) or _numbered(group))

    @property
    def url(self) -> str:
        """URL of the group."""
        return self.group.url

    def __repr__(self) -> str:
        place = place_of(self.group)
        return f"<Collection OME-Zarr {self.version}, {len(self.images)} images, {place}>"


def _series(group: gpustore.Group) -> list[str]:
    """Return the paths that the group ``OME`` states, none if it does not."""
    [node] = group.nodes(["OME"]).result()
    if is_absent(group, node):
        return []
    listed, attributes = group_of(group, "OME", node)
    ome = json_object(attributes.get("ome", attributes), f"{place_of(listed)}: ome")
    if "series" not in ome:
        return []
    paths = items(ome, "series", f"{place_of(listed)}: ")
    for path in paths:
        if not isinstance(path, str):
            raise gpustore.MetadataError(
                f"{place_of(listed)}: series: expected paths, got {path!r}"
            )
    return paths


def _numbered(group: gpustore.Group) -> list[str]:
    """Return ``"0"``, ``"1"`` and so on, as long as there are such groups."""
    paths: list[str] = []
    while len(paths) < _MOST:
        path = str(len(paths))
        if is_absent(group, *group.nodes([path]).result()):
            break
        paths.append(path)
    return paths
