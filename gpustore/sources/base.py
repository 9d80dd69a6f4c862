"""Sources of copies: :class:`Source`, an array that is read region by region."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as field_
from pathlib import Path
from typing import Any, Final

import numpy as np

from gpustore import registry
from gpustore.errors import CopyError, CopyWarning, UnsupportedError
from gpustore.runtime.future import Future

Region = tuple[slice, ...]
"""Part of an array: a slice with ``start`` and ``stop`` along each dimension, counted from 0."""

NOTHING: Final = object()
"""Result of :func:`json_value` for a value that JSON does not have."""


@dataclass(frozen=True)
class Source:
    """An array to be copied.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype or gpustore.dtype
    read : callable
        ``read(region)`` returns the elements of a :data:`Region`, an array of its shape in host
        memory or in that of a GPU.
    chunks : tuple of int, optional
        Shape of the parts that are read whole; None if any region is read as fast.
    keeps_chunks : bool
        Whether a copy has the same chunks unless it is given others.
    is_slow : bool
        Whether `read` decodes in its own thread: large regions are read in parts then, between
        which a copy shows progress and can be stopped.
    dims : tuple of str, optional
        Names of the dimensions, empty where unknown.
    units : tuple of str or None, optional
        Physical size of a step along each dimension.
    channels : tuple of str
        Names of the channels, empty where unknown; none if no channel has a name.
    attributes : dict
        User attributes, JSON values.
    fill_value : scalar, optional
    masked : scalar, optional
        Element that stands for a missing one, which xarray masks.
    identity : JSON value, optional
        Tells the source from others and from changed ones; None if a copy of it cannot be
        continued.
    places : tuple of dict
        JSON of the kvstores with the source in them.
    close : callable
        Called when the copy has ended.
    """

    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[Region], Any]
    chunks: tuple[int, ...] | None = None
    keeps_chunks: bool = False
    is_slow: bool = False
    dims: tuple[str, ...] | None = None
    units: tuple[str | None, ...] | None = None
    channels: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field_(default_factory=dict)
    fill_value: Any = None
    masked: Any = None
    identity: Any = None
    places: tuple[Mapping[str, Any], ...] = ()
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Files of one format, which ``gpustore/sources/<name>`` registers.

    Attributes
    ----------
    matches : callable
        ``matches(begin)`` returns whether a file with these first bytes is of the format.
    open : callable
        ``open(path, part)`` returns the :class:`Source` of a file; `part` is the text behind
        ``::``, None without.
    """

    matches: Callable[[bytes], bool]
    open: Callable[[str, str | None], Source]


def places_of(kvstore: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the places of a KvStore or None, as :attr:`Source.places`.

    A store object of another library has no JSON, but may have the folder `root`.
    """
    if kvstore is None:
        return ()
    try:
        return (kvstore.spec().to_json(),)
    except UnsupportedError:
        root = getattr(kvstore.driver.store.object, "root", None)
        if not isinstance(root, Path):
            return ()
        return ({"driver": "file", "path": str(root / kvstore.path)},)


def of_field(source: Source, field: str | None) -> Source:
    """Return one field of records as a source; other sources unchanged.

    Raises
    ------
    CopyError
        If elements are records and `field` is none of theirs, or they are no records.
    """
    kind = source.dtype
    names = kind.names if isinstance(kind, np.dtype) else None
    if field is None and names is None:
        return source
    if names is None:
        raise CopyError("`field` names a field of records, but elements are not records")
    if field not in names:
        raise CopyError(f"elements are records: name a field with `field` ({', '.join(names)})")

    def read(region: Region) -> Any:
        return source.read(region)[field]

    identity = None if source.identity is None else [source.identity, field]
    return replace(
        source, dtype=kind[field], read=read, fill_value=None, masked=None, identity=identity
    )


def transposed(source: Source, order: Sequence[int]) -> Source:
    """Return a source whose dimension n is the dimension ``order[n]`` of another one."""
    if list(order) == list(range(len(order))):
        return source

    def read(region: Region) -> Any:
        there = dict(zip(order, region, strict=True))
        found = source.read(tuple(there[d] for d in range(len(order))))
        # Stores are read by futures.
        elements = found.result() if isinstance(found, Future) else found
        return elements.transpose(order)

    def of(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[d] for d in order)

    return replace(
        source,
        shape=of(source.shape),
        read=read,
        chunks=None if source.chunks is None else of(source.chunks),
        dims=None if source.dims is None else of(source.dims),
        units=None if source.units is None else of(source.units),
    )


def need(library: str, extra: str) -> None:
    """Raise ModuleNotFoundError with the command that installs a library, unless it is there."""
    if not registry.is_installed(library):
        raise ModuleNotFoundError(
            f"{library} is not installed: python -m pip install 'gpustore[{extra}]'", name=library
        )


def distinct(names: Iterable[Any]) -> tuple[str, ...] | None:
    """Return names of dimensions, empty for those that are no text; None unless they differ."""
    found = tuple(name if isinstance(name, str) else "" for name in names)
    given = [name for name in found if name]
    return found if given and len(set(given)) == len(given) else None


def json_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of another library as JSON; those without JSON form are warned about."""
    found = {str(name): json_value(value) for name, value in attributes.items()}
    for name, value in found.items():
        if value is NOTHING:
            warnings.warn(
                f'attribute "{name}" has no JSON form: it is not kept', CopyWarning, stacklevel=3
            )
    return {name: value for name, value in found.items() if value is not NOTHING}


def json_value(value: Any) -> Any:
    """Return a value as JSON, :data:`NOTHING` if it has no such form.

    >>> json_value(np.arange(2)), json_value(np.float32(0.5)), json_value(b"a")
    ([0, 1], 0.5, 'a')
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return NOTHING
    if isinstance(value, np.generic | np.ndarray):
        plain = value.dtype.kind in "?biufSUO"
        return json_value(value.tolist()) if plain else NOTHING
    if isinstance(value, Mapping):
        members = {str(name): json_value(one) for name, one in value.items()}
        return NOTHING if NOTHING in members.values() else members
    if isinstance(value, list | tuple):
        items = [json_value(one) for one in value]
        return NOTHING if any(one is NOTHING for one in items) else items
    return NOTHING


def region_shape(region: Region) -> tuple[int, ...]:
    """Return the shape of a region.

    >>> region_shape((slice(2, 5), slice(0, 4)))
    (3, 4)
    """
    return tuple(part.stop - part.start for part in region)


def slabs(region: Region, chunks: Sequence[int], count: int) -> Iterator[Region]:
    """Divide a region into at most `count` parts of whole chunks, along its first long dimension.

    >>> [parts[1] for parts in slabs((slice(3, 4), slice(2, 9)), (1, 4), 2)]
    [slice(2, 8, None), slice(8, 9, None)]
    """
    ranges = ranges_of(region, chunks)
    axis = next((d for d, numbers in enumerate(ranges) if len(numbers) > 1), None)
    if axis is None:
        yield region
        return
    numbers, whole = ranges[axis], region[axis]
    step = -(-len(numbers) // count)
    for first in range(numbers.start, numbers.stop, step):
        begin = max(whole.start, first * chunks[axis])
        part = slice(begin, min(whole.stop, (first + step) * chunks[axis]))
        yield (*region[:axis], part, *region[axis + 1 :])


def ranges_of(region: Region, chunks: Sequence[int]) -> list[range]:
    """Return the numbers of the chunks along each dimension that a region touches.

    >>> ranges_of((slice(2, 5), slice(0, 4)), (2, 4))
    [range(1, 3), range(0, 1)]
    """
    return [
        range(part.start // chunk, math.ceil(part.stop / chunk))
        for part, chunk in zip(region, chunks, strict=True)
    ]
