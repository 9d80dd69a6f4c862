"""Opening of OME-Zarr: :func:`open`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gpustore
from gpustore import MetadataError, NotFoundError
from gpustore.ome.collection import Collection
from gpustore.ome.image import Image
from gpustore.ome.members import place_of
from gpustore.ome.multiscale import ome_of
from gpustore.ome.new_image import new_place
from gpustore.ome.plate import Plate, Well


def open(
    url: str | os.PathLike[str] | Mapping[str, Any],
    *,
    device: str | None = None,
    context: gpustore.Context | Mapping[str, Any] | None = None,
) -> Image | Plate | Well | Collection:
    """Open an image, a plate, a well or a collection of OME-Zarr 0.4, 0.5 or 0.6.

    Only metadata are read, and nothing is listed, so that a plain web server will do.

    Parameters
    ----------
    url : str, os.PathLike or dict
        Place of the group, as for :func:`gpustore.open_group`: a directory, a zip archive
        (``.ozx``), a URL of a server or bucket. An image of a plate, a label image or a well may
        be opened by its own URL.
    device : str, optional
        Device that arrays are read to; see :func:`gpustore.open`.
    context : Context or dict, optional
        Shared caches, thread pools and limits.

    Returns
    -------
    Image, Plate, Well or Collection

    Raises
    ------
    NotFoundError
        If there is no group.
    CorruptChunkError
        If an archive was cut, or is none.
    MetadataError
        If the group has no OME metadata, or they are not as the specification has them; the text
        names the file and the member.
    UnsupportedError
        If they are of another version.
    """
    try:
        group = gpustore.open_group(url, device=device, context=context).result()
    except NotFoundError:
        archive = new_place(url)
        if not str(archive).endswith(".ozx|zip:"):
            raise
        # What is no archive, or only a part of one, has no group; this says why.
        group = gpustore.open_group(archive, device=device, context=context).result()
    where = f"{place_of(group)}: "
    stored = group.attrs.get("ome", group.attrs)
    if isinstance(stored, Mapping) and "labels" in stored:
        raise MetadataError(
            f"{where}the group lists label images; open one of them, or the image above"
        )
    version, ome = ome_of(group.attrs, where)
    if "plate" in ome:
        return Plate(group)
    if "well" in ome:
        return Well(group)
    if "multiscales" in ome:
        return Image.of_group(group)
    if "bioformats2raw.layout" in ome:
        return Collection(group)
    stated = f"OME-Zarr {version}: " if version else ""
    raise MetadataError(
        f"{where}{stated}expected a group with the attributes multiscales, plate, well or "
        f"bioformats2raw.layout, found {', '.join(map(repr, ome)) or 'none'}"
    )
