"""Members of a group by path, each opened when it is asked for, many of them together."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from functools import cached_property
from typing import Any, Final, TypeVar

import gpustore
from gpustore import MetadataError, NotFoundError
from gpustore.ome.members import place_of

T = TypeVar("T")

_BATCH: Final = 256
"""Members whose metadata are in memory together before they are parsed."""


class Opened(Mapping[str, T]):
    """Members by path; a look-up opens one, ``values()`` and ``items()`` read all together.

    Parameters
    ----------
    group : Group
    kind : str
        What the members are, such as ``"well"``.
    names : callable
        Returns the paths; called when they are asked for.
    opening : callable
        Yields the members of the group at some paths, in order, or raises an error at one.
    below : str
        Prefix of all paths in the group.
    """

    def __init__(
        self,
        group: gpustore.Group,
        kind: str,
        names: Callable[[], Iterable[str]],
        opening: Callable[[gpustore.Group, Sequence[str]], Iterator[T]],
        below: str = "",
    ) -> None:
        self._group = group
        self._kind = kind
        self._find = names
        self._opening = opening
        self._below = below
        self._opened: dict[str, T] = {}

    @cached_property
    def _names(self) -> dict[str, None]:
        return dict.fromkeys(self._find())

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            some = ", ".join(list(self._names)[:8]) + ", ..." * (len(self._names) > 8)
            raise NotFoundError(
                f"{place_of(self._group)}: no {self._kind} {name!r}; "
                f"{self._kind}s: {some or 'there are none'}"
            )
        return next(self.read([name]))

    def read(self, names: Sequence[str]) -> Iterator[T]:
        """Yield members by name, opened together where they are not yet."""
        for first in range(0, len(names), _BATCH):
            part = names[first : first + _BATCH]
            new = [name for name in dict.fromkeys(part) if name not in self._opened]
            found = self._opening(self._group, [f"{self._below}{name}" for name in new])
            for name in part:
                if name not in self._opened:
                    # Those before it in `new` are opened.
                    try:
                        self._opened[name] = next(found)
                    except NotFoundError as error:
                        named = f"{place_of(self._group)}: {self._kind} {name!r}"
                        raise error.prefixed(named) from None
                yield self._opened[name]

    def values(self) -> ValuesView[T]:
        """Return a view of the members; iterating it opens all."""
        return _Values(self)

    def items(self) -> ItemsView[str, T]:
        """Return a view of names and members; iterating it opens all."""
        return _Items(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        count = len(self)
        return f"<{count} {self._kind}{'s' * (count != 1)} of {place_of(self._group)}>"


class _Values(ValuesView[T]):
    _mapping: Opened[T]

    def __iter__(self) -> Iterator[T]:
        return self._mapping.read(list(self._mapping))


class _Items(ItemsView[str, T]):
    _mapping: Opened[T]

    def __iter__(self) -> Iterator[tuple[str, T]]:
        names = list(self._mapping)
        return zip(names, self._mapping.read(names), strict=True)


def is_absent(group: gpustore.Group, node: Any) -> bool:
    """Whether there is nothing at a path of a group, as far as a server says."""
    if node is None:
        return True
    return node.error is not None and group.kvstore.driver.may_be_missing(node.error)


def group_of(
    group: gpustore.Group, path: str, node: Any
) -> tuple[gpustore.Group, Mapping[str, Any]]:
    """Return a group below a group and its attributes, which are not to be changed.

    Parameters
    ----------
    group : Group
    path : str
    node : Node or None
        What ``group.nodes`` found at the path.

    Raises
    ------
    NotFoundError
        If there is nothing at the path.
    MetadataError
        If there is an array, or a document that cannot be read.
    """
    found = group.open(path if node is None else node).result()
    if not isinstance(found, gpustore.Group):
        raise MetadataError(f"{place_of(found)}: expected a group, found an array")
    return found, found.attrs if node is None else node.attributes
