"""Properties of a copy that its caller chooses: :class:`Options`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gpustore


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the user; None keeps the property of the source.

    Attributes
    ----------
    chunks, shards : int or list of int, optional
        Extents of chunks and shards, one for all dimensions or one for each. With `chunks` and
        without `shards` there are no shards.
    codec : optional
        Codecs in any form of :func:`gpustore.schema.codec_words.codec_spec`.
    checksum : bool, optional
        Whether each chunk ends with a crc32c.
    zarr_format : int, optional
        Format of the target, 2 or 3.
    ome_version : str, optional
        Version of OME-Zarr of the target, for groups.
    dims : list of str or None, optional
        Names of the dimensions.
    units : list, optional
        Physical size of a step along each dimension.
    attributes : dict, optional
        User attributes, beside those of the source that have other names.
    """

    chunks: Any = None
    shards: Any = None
    codec: Any = None
    checksum: bool | None = None
    zarr_format: int | None = None
    ome_version: str | None = None
    dims: Sequence[str | None] | None = None
    units: Sequence[Any] | None = None
    attributes: Mapping[str, Any] | None = None

    def of_rank(self, rank: int, after: int) -> Options:
        """Return the options of an array of `rank` dimensions in the format `after`.

        Raises
        ------
        CopyError
            If they contradict each other, or the array.
        """
        found: dict[str, Any] = {}
        for name in ("chunks", "shards", "dims", "units"):
            value = getattr(self, name)
            if isinstance(value, int):
                value = [value] * rank
            if value is not None and (isinstance(value, str) or len(value) != rank):
                raise gpustore.CopyError(
                    f"`{name}` has {len(value)} extents, but the array has {rank} dimensions"
                )
            found[name] = None if value is None else list(value)
        if after == 2 and self.shards is not None:
            raise gpustore.CopyError(
                "Zarr v2 has no shards: leave out `shards`, or add `zarr_format=3`"
            )
        if after == 2 and self.checksum:
            raise gpustore.CopyError(
                "Zarr v2 has no checksums: leave out `checksum`, or add `zarr_format=3`"
            )
        return replace(self, **found)
