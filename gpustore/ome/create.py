"""New images and plates: :func:`create`, :func:`write` and :func:`create_plate`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import gpustore
from gpustore.display.nbytes import nbytes_of
from gpustore.ome.attributes import stated
from gpustore.ome.filling import ordered, source_of
from gpustore.ome.image import Image
from gpustore.ome.new_image import FORMATS, ImageProperties, NewDocuments, new_image, new_place
from gpustore.ome.plate import Plate
from gpustore.ome.pyramid import checked_method


def create(
    url: str | os.PathLike[str] | Mapping[str, Any],
    *,
    overwrite: bool = False,
    device: str | None = None,
    context: gpustore.Context | Mapping[str, Any] | None = None,
    **properties: Unpack[ImageProperties],
) -> Image:
    """Create an image of OME-Zarr, without elements.

    Parameters
    ----------
    url : str, os.PathLike or dict
        Place of the group, as for :func:`gpustore.open_group`; a file whose name ends in ``.ozx``
        becomes a zip archive.
    shape : sequence of int
        Shape of the finest level.
    dtype : dtype
        Data type of all levels.
    axes : str or sequence of str or Axis
        Names in the order of the dimensions, such as ``"tczyx"``: time, channels, space.
    scale, translation : float, sequence of float or dict, optional
        Distance of two elements of the finest level, and coordinate of the centre of its first
        one: by axis, for all axes, or for those of space; 1 and 0 by default.
    units : str or dict, optional
        Unit of the axes of space, or units by axis.
    channels : sequence of str or Channel, optional
        Channels, one for each index of the channel axis.
    name : str, optional
        Name of the image.
    version : {"0.4", "0.5", "0.6"}, optional
        Version of OME-Zarr, 0.5 by default; 0.4 is stored as Zarr v2, the others as v3.
    levels : int or None
        Number of levels, with the finest; None is as many as make the two last axes 256 elements
        or less. Axes of space are halved whose elements are less than twice as far apart as those
        of the finest axis. :meth:`Image.build_pyramid` makes levels, too.
    chunks, shards, codec, fill_value
        As those of :func:`gpustore.open`. By default chunks are of about 1 MiB, of one time and
        channel; there are no shards; integers of 16 bits are encoded by Blosc with LZ4 and shuffled
        bits, other elements by zstd.
    like : Image, optional
        Image that gives what is not given here: shape, data type, axes with their units, scale,
        translation, channels, name, version and chunks.
    overwrite : bool
        Delete everything at the place first.
    device : str, optional
        Device of the arrays; see :func:`gpustore.open`.
    context : Context or dict, optional
        Shared caches, thread pools and limits.

    Returns
    -------
    Image

    Raises
    ------
    TypeError, ValueError
        If the arguments do not fit each other.
    AlreadyExistsError
        If there is something at the place, unless `overwrite`.

    Examples
    --------
    >>> context = gpustore.Context()
    >>> image = create(
    ...     "memory://new/", shape=(20, 512, 512), dtype="uint16", axes="zyx", scale=(2, 0.5, 0.5),
    ...     units="um", levels=3, context=context,
    ... )  # fmt: skip
    >>> [level.shape for level in image.levels]
    [(20, 512, 512), (20, 256, 256), (20, 128, 128)]
    """
    image = new_image(properties)
    documents = NewDocuments.of(image)
    group = gpustore.open_group(
        new_place(url),
        zarr_format=FORMATS[image.version],
        create=True,
        delete_existing=overwrite,
        device=device,
        context=context,
    ).result()
    documents.store([group])
    return Image.of_group(group)


def write(
    url: str | os.PathLike[str] | Mapping[str, Any],
    array: Any,
    *,
    axes: str | Sequence[Any] | None = None,
    scale: float | Sequence[float] | Mapping[str, float] | None = None,
    units: str | Mapping[str, Any] | None = None,
    levels: int | None = None,
    method: str | None = None,
    memory: int = 256 << 20,
    progress: Callable[[int, int], object] | None = None,
    **options: Any,
) -> Image:
    """Write an array as an image with a pyramid, in bounded memory, and wait until it is stored.

    Parameters
    ----------
    url : str, os.PathLike or dict
        Place of the group.
    array : array-like, str or os.PathLike
        Elements: an array of NumPy, CuPy, torch, dask, xarray, zarr-python or h5py, a store, or a
        file of TIFF, NumPy or HDF5 by path, as :func:`gpustore.copy` takes them.
    axes, scale, units
        As those of :func:`create`. A source that has them, as TIFF files do, need not be told.
        One whose names are these in another order is transposed; without `axes`, to the order
        time, channels, space. Samples of colours are channels. Names of channels are taken, too.
    levels : int or None
        Number of levels; None is as many as make the two last axes 256 elements or less.
    method : str, optional
        How levels are made; see :meth:`Image.build_pyramid`.
    memory : int
        Most bytes of decoded elements in memory at once, unless a chunk has more.
    progress : callable, optional
        ``progress(done, total)`` in decoded bytes of the level that is written.
    **options
        Other arguments of :func:`create`.

    Returns
    -------
    Image

    Raises
    ------
    TypeError, ValueError
        If the arguments do not fit the array.
    AlreadyExistsError
        If there is something at the place, unless ``overwrite``.
    """
    source = source_of(array)
    try:
        source = ordered(source, axes)
        known = source.dims if source.dims and all(source.dims) else None
        if axes is None and known is None:
            raise TypeError("expected axes, such as 'zyx': the array has no names of dimensions")
        named = known or () if axes is None else axes
        if scale is None and units is None and source.units is not None and known is not None:
            found = {
                name: gpustore.Unit(one)
                for name, one in zip(known, source.units, strict=True)
                if one is not None and name in named
            }
            scale = {name: one.multiplier for name, one in found.items()}
            units = {name: one.base_unit for name, one in found.items()}
        count = dict(zip(known or (), source.shape)).get("c", 1)
        if options.get("like") is None and len(source.channels) == count:
            options.setdefault("channels", source.channels)
        # What does not fit is found before anything is made.
        checked_method(method, levels, gpustore.dtype(source.dtype))
        memory = nbytes_of(memory, "memory")
        image = create(
            url,
            shape=source.shape,
            dtype=source.dtype,
            axes=named,
            scale=scale,
            units=units,
            **options,
        )
        image._build(source, method, levels, memory, progress)
    finally:
        source.close()
    return image


def create_plate(
    url: str | os.PathLike[str] | Mapping[str, Any],
    *,
    rows: Sequence[str],
    columns: Sequence[str | int],
    name: str | None = None,
    acquisitions: Sequence[Mapping[str, Any]] | None = None,
    version: str = "0.5",
    overwrite: bool = False,
    device: str | None = None,
    context: gpustore.Context | Mapping[str, Any] | None = None,
) -> Plate:
    """Create a plate without wells; :meth:`Plate.create_image` adds them.

    Parameters
    ----------
    url : str, os.PathLike or dict
        Place of the group, as for :func:`gpustore.open_group`.
    rows, columns : sequence of str
        Names of letters and digits, such as ``"ABCDEFGH"`` and ``range(1, 13)``.
    name : str, optional
        Name of the plate.
    acquisitions : sequence of dict, optional
        Acquisitions, each with the member ``id``.
    version, overwrite, device, context
        As those of :func:`create`.

    Returns
    -------
    Plate

    Raises
    ------
    ValueError
        If a name has other characters, or stands twice.
    AlreadyExistsError
        If there is something at the place, unless `overwrite`.
    """
    if version not in FORMATS:
        raise gpustore.UnsupportedError(f"version: expected 0.4, 0.5 or 0.6, got {version!r}")
    plate: dict[str, Any] = {} if name is None else {"name": name}
    for member, given in (("rows", rows), ("columns", columns)):
        names = [str(one) for one in given]
        for one in names:
            if re.fullmatch("[A-Za-z0-9]+", one) is None:
                raise ValueError(f"{member}: expected names of letters and digits, got {one!r}")
        if len(set(names)) != len(names) or not names:
            raise ValueError(
                f"{member}: expected different names, got {', '.join(names) or 'none'}"
            )
        plate[member] = [{"name": one} for one in names]
    if acquisitions is not None:
        plate["acquisitions"] = [dict(one) for one in acquisitions]
    attributes = stated(version, plate={**plate, "wells": []})
    # What does not fit is found in memory, before anything is made, or deleted to be replaced.
    Plate(
        gpustore.open_group(
            "memory://",
            zarr_format=FORMATS[version],
            create=True,
            attributes=attributes,
            device="cpu",
            context=gpustore.Context(),
        ).result()
    )
    group = gpustore.open_group(
        new_place(url),
        zarr_format=FORMATS[version],
        create=True,
        delete_existing=overwrite,
        attributes=attributes,
        device=device,
        context=context,
    ).result()
    return Plate(group)
