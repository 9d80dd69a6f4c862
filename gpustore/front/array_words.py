"""Short words for the properties of an array: ``chunks``, ``shards``, ``codec``, ``dims`` ...

Users of NumPy, zarr-python and xarray know these words. Each stands for constraints of a schema, so
that they apply wherever a schema does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

import numpy as np

from gpustore import registry
from gpustore.backends.host.memory import broadcast, converted
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import MetadataError
from gpustore.index_space import IndexDomain
from gpustore.schema import ChunkLayout, Schema
from gpustore.schema.codec_words import codec_spec

ARRAY_WORDS: Final = ("chunks", "shards", "dims", "units")
"""Keywords beside those of :class:`Schema`."""

DIMENSIONS_V2: Final = "_ARRAY_DIMENSIONS"
"""Attribute in which xarray keeps names of dimensions in Zarr v2, whose metadata have none."""


def constraints_of(keywords: Mapping[str, Any], known: Schema, driver: str) -> Schema:
    """Return the constraints that keywords stand for.

    Parameters
    ----------
    keywords : mapping
        Keywords of :class:`Schema`, ``codec`` in any form of
        :func:`~gpustore.schema.codec_words.codec_spec`, ``chunk_layout`` also as JSON or as the
        shape of the chunks, ``shape`` also as the length of a vector, and :data:`ARRAY_WORDS`:

        chunks : int or sequence of int, length rank
            Shape of the chunks that are encoded one by one; an int is the size along all
            dimensions.
        shards : int or sequence of int, length rank
            Shape of the shards, each of which stores many chunks in one value.
        dims : sequence of str or None, length rank
            Names of the dimensions.
        units : sequence or mapping of dimension names
            Physical size of a step along each dimension, such as ``"4nm"``.
    known : Schema
        Constraints that stand already: their rank and data type complete the keywords.
    driver : str
        Format of the array.

    Raises
    ------
    MetadataError
        If the constraints contradict each other, or more than rank and data type is needed.
    TypeError
        If a value has the wrong type.
    """
    given = dict(keywords)
    if driver in ("zarr", "zarr2", "n5") and given.get("shards") is not None:
        name = "N5" if driver == "n5" else "Zarr v2"
        raise MetadataError(f'{name} has no shards: choose Zarr v3, as in "x.zarr|zarr3:"')
    words: dict[str, Any] = {name: given.pop(name) for name in ARRAY_WORDS if name in given}
    codec = given.pop("codec", None)
    if isinstance(given.get("shape"), int | np.integer):
        given["shape"] = (given["shape"],)
    if "chunk_layout" in given:
        given["chunk_layout"] = _chunk_layout(given["chunk_layout"])
    constraints = Schema(**given)
    rank = known.rank if constraints.rank is None else constraints.rank
    for name, value in words.items():
        _check_rank(name, value, rank)
    names = words.get("dims")
    if names is not None:
        constraints.update(domain=_named(names))
    layout = _layout(words, rank)
    if layout is not None:
        constraints.update(chunk_layout=layout)
    units = words.get("units")
    if isinstance(units, str):
        raise TypeError(f"Invalid units: expected one unit a dimension, but received: {units!r}")
    if units is not None:
        domain = constraints.domain or known.domain
        labels = () if domain is None else domain.labels
        constraints.update(dimension_units=_units(units, labels))
    if codec is not None:
        dtype = constraints.dtype or known.dtype
        constraints.update(codec=codec_spec(codec, driver, 1 if dtype is None else dtype.itemsize))
    return constraints


def are_names(names: Any) -> TypeGuard[list[str]]:
    """Whether a value is a list of different names of dimensions, as xarray writes it."""
    return (
        isinstance(names, list)
        and all(isinstance(name, str) and name for name in names)
        and 0 < len(names) == len(set(names))
    )


def array_of(data: Any, dtype: Any = None) -> Any:
    """Return an array in memory as it is, any other array as a
    :class:`~gpustore.sources.base.Source` of regions, and lists as an ndarray of type `dtype`.

    Raises
    ------
    TypeError
        If elements of a masked array are masked, or numbers are not of the type.
    """
    if _is_in_memory(data):
        check_mask(data)
        return data
    if (hasattr(data, "shape") and hasattr(data, "dtype")) or hasattr(data, "__dlpack__"):
        return registry.public("sources.array_like", "of_object")(data)
    wanted = None if dtype is None else DataType(dtype).array_dtype
    # The type of strings of a fixed length does not tell the length.
    return np.asarray(data) if wanted is None or wanted.kind in "SV" else converted(data, wanted)


def check_mask(array: Any) -> None:
    """Raise TypeError if elements are masked, which no stored array can tell."""
    if hasattr(array, "filled") and np.any(getattr(array, "mask", False)):
        raise TypeError(
            "masked elements have no value to be stored: choose one with .filled(value), which may "
            "be the fill_value of the new array"
        )


def write_all(store: Any, data: Any) -> None:
    """Write what :func:`array_of` returned to a store and wait until it is there."""
    if _is_in_memory(data):
        store.write(data).result()
    else:
        registry.public("copying.fill", "fill")(store, data)


def _is_in_memory(data: Any) -> bool:
    return isinstance(data, np.ndarray | np.generic) or hasattr(data, "__cuda_array_interface__")


def with_shape_of(data: Any, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords, completed by shape and data type of `data`."""
    given = {name: value for name, value in keywords.items() if value is not None}
    kind = data.dtype
    if "dtype" not in given and isinstance(kind, np.dtype) and kind.kind == "O":
        raise MetadataError(
            'elements are Python objects: name their type, dtype="ustring" (str), "string" (bytes) '
            'or "json"'
        )
    if kind.names is not None:
        raise MetadataError(
            f"elements are records: store each field ({', '.join(kind.names)}) in an array of its "
            'own, or name a type in the metadata of Zarr v2, {"dtype": [["x", "<i4"], ...]}'
        )
    shape = {} if "shape" in given or "domain" in given else {"shape": data.shape}
    return {"dtype": data.dtype, **shape, **given}


def check_data(data: Any, dtype: DataType | None, domain: IndexDomain | None) -> None:
    """Raise what a write of `data` would raise, before an array of this type and domain is made.

    Raises
    ------
    TypeError, MismatchError
        As :meth:`TensorStore.write`.
    """
    wanted = None if dtype is None else dtype.array_dtype
    if wanted is None or wanted.kind in "SV":  # Their elements have dimensions of their own.
        return
    # A NumPy scalar converts by value.
    if wanted.kind != "O" and not isinstance(data, np.generic):
        converted(np.empty(0, data.dtype), wanted)
    if domain is not None:
        broadcast(np.broadcast_to(np.empty((), np.uint8), data.shape), domain)


def _check_rank(name: str, value: Any, rank: int | None) -> None:
    """Raise MetadataError if a keyword has not one value for each dimension."""
    if rank is None or isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        return
    if len(value) != rank:
        count = "1 value" if len(value) == 1 else f"{len(value)} values"
        raise MetadataError(f"{name} has {count}, but the array has rank {rank}")


def _named(names: Any) -> IndexDomain:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"Invalid dims: expected a sequence of names, but received: {names!r:.200}")
    return IndexDomain(labels=[name or "" for name in names])


def _chunk_layout(value: Any) -> Any:
    """Return the layout of JSON, or of the shape of the chunks; anything else unchanged."""
    if isinstance(value, Mapping):
        return ChunkLayout(value)
    return ChunkLayout(chunk_shape=value) if isinstance(value, list | tuple) else value


def _layout(words: Mapping[str, Any], rank: int | None) -> ChunkLayout | None:
    """Return the chunk layout of ``chunks`` and ``shards``; None if neither is given."""
    chunks, shards = (_extents(words.get(name), name, rank) for name in ("chunks", "shards"))
    if shards is None:
        return None if chunks is None else ChunkLayout(chunk_shape=chunks)
    if chunks is None:
        return ChunkLayout(write_chunk_shape=shards)
    return ChunkLayout(write_chunk_shape=shards, read_chunk_shape=chunks)


def _extents(value: Any, name: str, rank: int | None) -> Sequence[int] | None:
    if isinstance(value, np.ndarray | np.integer):
        value = value.tolist()
    if value is None or (isinstance(value, Sequence) and not isinstance(value, str)):
        return value  # ChunkLayout checks its elements.
    if not isinstance(value, int):
        raise TypeError(f"Invalid {name}: expected one size or a sequence, got {value!r:.200}")
    if rank is None:
        raise MetadataError(
            f"{name}={value} needs the number of dimensions: give shape, or one size a dimension"
        )
    return [value] * rank


def _units(units: Any, labels: Sequence[str]) -> Any:
    """Return one unit a dimension; a mapping names those that have one."""
    if not isinstance(units, Mapping):
        return units
    unknown = [name for name in units if name not in labels]
    if unknown:
        raise MetadataError(
            f"units name the dimension {unknown[0]!r}, but the dimensions are {list(labels)}"
        )
    return [units.get(label) for label in labels]
