"""Descriptions, for messages, of places that hold no array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpustore.errors import GpustoreError, MismatchError
from gpustore.kvstores.columns import ReadRequest, ReadState
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.spec import as_directory
from gpustore.strict_json.near_names import near_names
from gpustore.strict_json.parsing import quote

_SHOWN: Final = 5
"""Most names in a directory that a message shows."""


def names_below(store: KvStore) -> list[str] | None:
    """Return the names in a directory; None if it cannot be listed."""
    if not store.driver.can_list:
        return None
    try:
        return store.driver.list_names(as_directory(store.path))
    except GpustoreError:
        return None


def some_of(names: Sequence[str]) -> str:
    """Return the first names as text.

    >>> some_of(["a", "b"]), some_of("abcdefg")
    ('"a", "b"', '"a", "b", "c", "d", "e" and 2 more')
    """
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(quote(name) for name in names[:_SHOWN])}{more}"


def names_like(store: KvStore) -> str:
    """Return names like that of a path, or like the first part of it that is not there, as the end
    of a message.

    Only of local kvstores: a bucket may have millions of keys there.
    """
    path = store.path.rstrip("/")
    while store.driver.is_local and path:
        above, slash, name = path.rpartition("/")
        try:
            beside = store.driver.list_names(above + slash)
        except GpustoreError:
            return ""
        if beside:
            return near_names(name, [one.rstrip("/") for one in beside])
        path = above
    return ""


def is_v2_group(store: KvStore) -> bool:
    """Whether the path is that of a Zarr v2 group: no format of its own, but worth naming."""
    request = ReadRequest([as_directory(store.path) + ".zgroup"], start=[0], stop=[0])
    return store.driver.read_many(request).state[0] is ReadState.VALUE


def group_error(store: KvStore, zarr_format: int) -> MismatchError:
    """Return the error for a group that is opened as an array."""
    members = [name.rstrip("/") for name in names_below(store) or () if name.endswith("/")]
    below = f": {some_of(members)}" if members else ""
    return MismatchError(
        f"{store.driver.describe(store.path)} is a Zarr v{zarr_format} group, not an array: open "
        f"the group with gpustore.open_group, or a member of it{below}",
        key=store.path,
    )
