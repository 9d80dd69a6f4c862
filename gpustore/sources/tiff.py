"""Images and stacks in TIFF files, read by tifffile: ``"file.tif"``, ``"file.tif::1"``.

The number behind ``::`` is that of the series; the first one otherwise. Uncompressed series are
mapped into memory, of others the strips or tiles that a region touches are decoded. Axes and pixel
sizes of OME-TIFF and ImageJ become names and units of dimensions.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import CopyError, CorruptChunkError, StoreIOError, UnsupportedError
from gpustore.sources.base import (
    FileFormat,
    Region,
    Source,
    distinct,
    need,
    ranges_of,
    region_shape,
)

_SIGNATURES: Final = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_UNKNOWN_AXES: Final = "QI"
_JPEG: Final = {6, 7, 34892, 33007}
"""Compressions whose tables lie in the page."""


def _matches(begin: bytes) -> bool:
    return begin.startswith(_SIGNATURES)


def _open(path: str, part: str | None) -> Source:
    need("tifffile", "tiff")
    import tifffile

    try:
        file = tifffile.TiffFile(path)
    except (OSError, ValueError, struct.error) as error:
        raise StoreIOError(f"{path} cannot be opened: {error}") from error
    try:
        return _of_file(path, file, part)
    except BaseException:
        file.close()
        raise


def _of_file(path: str, file: Any, part: str | None) -> Source:
    if not file.series:
        raise StoreIOError(f"{path} has no images that tifffile can find: it may be cut")
    number = 0 if part is None else int(part) if part.isdecimal() else -1
    if not 0 <= number < len(file.series):
        raise CopyError(f'{path} has {len(file.series)} series: "{path}::0" is the first')
    series = file.series[number]
    page = series.keyframe
    if page.dtype is None or series.transform is not None:
        raise UnsupportedError(f"{path}: pixels of {page.bitspersample} bits have no copy")
    axes = series.axes
    read: Any
    if series.dataoffset is not None and page.is_memmappable:
        dtype = page.dtype.newbyteorder(file.byteorder)
        end, nbytes = series.dataoffset + series.nbytes, file.filehandle.size
        if end > nbytes:
            raise StoreIOError(f"{path} has {nbytes} bytes, but its elements end at byte {end}")
        array = np.memmap(path, dtype, "r", series.dataoffset, series.shape)
        read, chunks = array.__getitem__, None
    else:
        pages = _Pages.of(path, series)
        read, chunks = pages.read, pages.chunks
    return Source(
        series.shape,
        series.dtype,
        read,
        chunks=chunks,
        is_slow=chunks is not None,
        dims=distinct("" if a in _UNKNOWN_AXES else a.lower() for a in axes),
        units=_units(file, axes, number),
        channels=_channels(file, number),
        close=file.close,
    )


@dataclass(frozen=True, slots=True)
class _Pages:
    """Pages of a series, each an array of `page_shape` in strips or tiles of shape `tile`.

    `outer` is the shape of what the pages are counted by.
    """

    series: Any
    outer: tuple[int, ...]
    page_shape: tuple[int, ...]
    tile: tuple[int, ...]

    @classmethod
    def of(cls, path: str, series: Any) -> _Pages:
        page = series.keyframe
        outer = series.shape[: len(series.shape) - len(page.shape)]
        if series.shape[len(outer) :] != page.shape or math.prod(outer) != len(series):
            raise UnsupportedError(
                f"{path}: {len(series)} pages of shape {page.shape} make no array of {series.shape}"
            )
        tile = (*(1 for _ in page.shape[len(page.chunks) :]), *page.chunks)
        return cls(series, outer, page.shape, tile)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Shape of a strip or tile in the whole array."""
        return (*(1 for _ in self.outer), *self.tile)

    def read(self, region: Region) -> NDArray[Any]:
        """Decode the strips and tiles that a region touches."""
        found = np.zeros(region_shape(region), self.series.dtype)
        rank = len(self.outer)
        within = region[rank:]
        for place in itertools.product(*(range(p.start, p.stop) for p in region[:rank])):
            number = int(np.ravel_multi_index(place, self.outer)) if rank else 0
            here = found[tuple(at - p.start for at, p in zip(place, region, strict=False))]
            page = self.series[number]
            if page is None:  # Missing in a file of OME.
                here[...] = self.series.keyframe.nodata
                continue
            for start, tile in self._tiles(page, within):
                into, part = [], []
                for begin, n, one in zip(start, tile.shape, within, strict=True):
                    lo, hi = max(begin, one.start), min(begin + n, one.stop)
                    into.append(slice(lo - one.start, hi - one.start))
                    part.append(slice(lo - begin, hi - begin))
                here[tuple(into)] = tile[tuple(part)]
        return found

    def _extents(self, size: int, inside: list[int]) -> Sequence[int]:
        """Return the extents of a strip or tile of `size` elements, of which some are inside.

        Tiles are whole beyond the edge, or end below but not beside it; strips end there.
        """
        x = self.series.keyframe.axes.rfind("X")
        wide = list(inside)
        wide[x] = self.tile[x]
        return next((one for one in (self.tile, wide) if math.prod(one) == size), inside)

    def _error(self, number: int, error: Exception) -> Exception:
        """Return the error for a strip or tile that tifffile could not decode."""
        where = f"{self.series.parent.filename}, strip or tile {number}"
        if "imagecodecs" in str(error):
            return UnsupportedError(
                f"{where}: {error.args[0]}: python -m pip install 'gpustore[tiff]'"
            )
        return CorruptChunkError(f"{where}: {error}", key=self.series.parent.filename)

    def _tiles(self, page: Any, region: Region) -> Iterator[tuple[list[int], NDArray[Any]]]:
        """Yield the first indices and the elements of strips or tiles of a page."""
        keyframe = self.series.keyframe
        options: dict[str, Any] = {"_fullsize": False}
        if keyframe.compression in _JPEG:
            options |= {"jpegtables": page.jpegtables, "jpegheader": keyframe.jpegheader}
        file = page.parent.filehandle
        if file.closed:
            file.open()
        for place in itertools.product(*ranges_of(region, self.tile)):
            start = [at * n for at, n in zip(place, self.tile, strict=True)]
            shape = [
                min(n, whole - at)
                for n, whole, at in zip(self.tile, self.page_shape, start, strict=True)
            ]
            number = int(np.ravel_multi_index(place, keyframe.chunked))
            n_stored = min(len(page.databytecounts), len(page.dataoffsets))
            if number >= n_stored:
                name = self.series.parent.filename
                raise CorruptChunkError(
                    f"{name}, strip or tile {number}: the page lists {n_stored} of "
                    f"{math.prod(keyframe.chunked)}",
                    key=name,
                )
            nbytes = page.databytecounts[number]
            file.seek(page.dataoffsets[number])
            value = file.read(nbytes) if nbytes else None
            try:
                decoded = keyframe.decode(value, number, **options)[0]
                if decoded is not None:
                    decoded = decoded.reshape(self._extents(decoded.size, shape))
            except Exception as error:
                raise self._error(number, error) from error
            if decoded is None:
                yield start, np.full(shape, keyframe.nodata, self.series.dtype)
            else:
                yield start, decoded


# --------------------------------------------------------------------------- pixel sizes


def _units(file: Any, axes: str, number: int) -> tuple[str | None, ...] | None:
    """Return the sizes of a pixel along the axes of a series, as OME or ImageJ tells them."""
    sizes: dict[str, str] = {}
    if file.is_ome:
        sizes = _sizes_of_ome(file.ome_metadata, number)
    elif file.is_imagej:
        sizes = _sizes_of_imagej(file)
    found = tuple(sizes.get(axis) for axis in axes)
    return found if any(found) else None


def _channels(file: Any, number: int) -> tuple[str, ...]:
    """Return the names of the channels of a series, as OME tells them."""
    pixels = _pixels_of_ome(file.ome_metadata, number) if file.is_ome else None
    found = () if pixels is None else pixels.iterfind("{*}Channel")
    names = tuple(one.get("Name", "") for one in found)
    return names if any(names) else ()


def _sizes_of_ome(xml: str, number: int) -> dict[str, str]:
    """Return ``PhysicalSizeX`` ... of an image in OME-XML, micrometres by default.

    >>> pixels = '<Pixels PhysicalSizeX="2" PhysicalSizeXUnit="nm"/>'
    >>> _sizes_of_ome(f"<OME><Image>{pixels}</Image></OME>", 0)
    {'X': '2 nm'}
    """
    pixels = _pixels_of_ome(xml, number)
    if pixels is None:
        return {}
    return {
        axis: f"{pixels.get(f'PhysicalSize{axis}')} {pixels.get(f'PhysicalSize{axis}Unit', 'um')}"
        for axis in "XYZ"
        if pixels.get(f"PhysicalSize{axis}") is not None
    }


def _pixels_of_ome(xml: str, number: int) -> ElementTree.Element | None:
    """Return the element ``Pixels`` of an image by number, None if there is none."""
    try:
        found = ElementTree.fromstring(xml).iterfind(".//{*}Image/{*}Pixels")
        return next(itertools.islice(found, number, None), None)
    except ElementTree.ParseError:
        return None


def _sizes_of_imagej(file: Any) -> dict[str, str]:
    """Return the sizes in ImageJ's unit: pixels per unit along x and y, and the spacing along z."""
    facts = file.imagej_metadata or {}
    unit = str(facts.get("unit", "")).replace("\\u00B5m", "um").replace("micron", "um")
    if unit in ("", "pixel", "inch"):
        return {}
    tags = file.pages[0].tags
    found = {}
    for axis, name in (("X", "XResolution"), ("Y", "YResolution")):
        tag = tags.get(name)
        if tag is not None and tag.value[0]:
            found[axis] = f"{tag.value[1] / tag.value[0]:.9g} {unit}"
    spacing = facts.get("spacing")
    if spacing and isinstance(spacing, int | float):
        found["Z"] = f"{spacing:.9g} {unit}"
    return found


FORMAT = FileFormat(_matches, _open)
