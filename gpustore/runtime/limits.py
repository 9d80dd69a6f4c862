"""Limits on the sizes that files and requests may ask for.

Sizes are computed in Python integers and compared with a :class:`Limits` before memory is
allocated. The limits are a context resource, ``limits``; the environment variable
``GPUSTORE_LIMITS``, a JSON object with the same members, changes the defaults.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Self

from gpustore.errors import LimitError
from gpustore.strict_json import parsing
from gpustore.strict_json.parsing import INT64_MAX, JsonValue, Members

ENVIRONMENT_VARIABLE = "GPUSTORE_LIMITS"

_MAX_RANK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest sizes that are accepted; those named ``nbytes`` are in bytes, the others counts.

    Parameters
    ----------
    metadata_nbytes : int
        Bytes of a metadata document.
    hierarchy_nbytes : int
        Bytes of the consolidated metadata of a hierarchy, and of the document of a group.
    metadata_depth : int
        Levels of arrays and objects in a metadata document.
    rank : int
        Dimensions of an array, at most 32.
    codecs : int
        Codecs in one chain.
    nested_shardings : int
        Levels of shards within shards.
    chunk_nbytes : int
        Bytes of a decoded chunk.
    shard_index_nbytes : int
        Bytes of a decoded shard index.
    chunks_per_request : int
        Chunks that one read or write touches.
    zip_entry_nbytes : int
        Bytes of a decoded member of a zip archive.
    ocdbt_node_nbytes : int
        Bytes of a decoded manifest or node of an OCDBT database.
    zip_directory_nbytes : int
        Bytes of the directory of a zip archive.
    host_in_flight_nbytes, device_in_flight_nbytes : int
        Encoded and decoded bytes that operations hold in host and in device memory at a time,
        apart from their results.

    Examples
    --------
    >>> Limits(rank=4).rank
    4
    """

    metadata_nbytes: int = 16 << 20
    hierarchy_nbytes: int = 256 << 20
    metadata_depth: int = 64
    rank: int = _MAX_RANK
    codecs: int = 32
    nested_shardings: int = 4
    chunk_nbytes: int = 2 << 30
    shard_index_nbytes: int = 256 << 20
    chunks_per_request: int = 10**7
    zip_entry_nbytes: int = 2 << 30
    ocdbt_node_nbytes: int = 256 << 20
    zip_directory_nbytes: int = 1 << 30
    host_in_flight_nbytes: int = 1 << 30
    device_in_flight_nbytes: int = 4 << 30

    @classmethod
    def from_json(cls, value: JsonValue, *, base: Self | None = None, where: str = "") -> Self:
        """Return the limits that a JSON object sets; others are those of `base`.

        Parameters
        ----------
        value : JsonValue
            An object with any of the fields as members.
        base : Limits, optional
            Limits for missing members; by default the built-in ones.
        where : str
            Name of the object, for messages.

        Raises
        ------
        MetadataError
            If a member is unknown or no integer of at least 1.
        """
        members = Members(value, where, integral_floats=True)
        given = {name: members.take_int(name, 1, _maximum(name)) for name in _names_in(members)}
        members.finish()
        return replace(base if base is not None else cls(), **given)

    def to_json(self) -> dict[str, int]:
        """Return all limits as a JSON object."""
        return {name: getattr(self, name) for name in _NAMES}

    def check(self, name: str, value: int, what: str, *, key: str | None = None) -> None:
        """Raise LimitError if `value` is larger than limit `name`.

        Parameters
        ----------
        name : str
            Name of a field of this class.
        value : int
            The size found, in the unit of that field.
        what : str
            Beginning of the message: the object whose size it is, and its place.
        key : str, optional
            The kvstore key that the error is about.

        Examples
        --------
        >>> Limits().check("rank", 33, "zarr.json: shape")
        Traceback (most recent call last):
            ...
        gpustore.errors.LimitError: zarr.json: shape: rank is 33, which exceeds the limit of 32
        >>> Limits().check("codecs", 99, "codecs")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        gpustore.errors.LimitError: codecs: codecs is 99, ... context={"limits": {"codecs": 99}}...
        """
        limit = getattr(self, name)
        if value <= limit:
            return
        text = f"{what}: {name} is {value}, which exceeds the limit of {limit}"
        if value <= _maximum(name):
            text += (
                f'; if the data can be trusted, open with context={{"limits": {{"{name}": {value}'
                f"}}}} or set {ENVIRONMENT_VARIABLE}='{{\"{name}\": {value}}}'"
            )
        raise LimitError(text, key=key)


_NAMES = tuple(field.name for field in fields(Limits))


def _maximum(name: str) -> int:
    return _MAX_RANK if name == "rank" else INT64_MAX


def _names_in(members: Members) -> list[str]:
    return [name for name in _NAMES if name in members]


def _from_environment() -> Limits:
    """Read ``GPUSTORE_LIMITS``; a mistake there raises MetadataError at import."""
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not text:
        return Limits()
    where = f"environment variable {ENVIRONMENT_VARIABLE}"
    value = parsing.parse(text.encode(), where=where)
    return Limits.from_json(value, where=where)


DEFAULT_LIMITS = _from_environment()
