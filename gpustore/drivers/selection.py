"""Part of each stored element that a spec opens, and its fill value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gpustore.errors import MetadataError
from gpustore.metadata.component import Component, is_opaque, select
from gpustore.schema.fill_value import check_broadcast
from gpustore.strict_json.parsing import JsonValue, Members, text


@dataclass(frozen=True, slots=True)
class Selection:
    """Part of each stored element that a spec opens.

    Attributes
    ----------
    field : str
        Name of the field of a structured data type; empty if none is named.
    as_void : bool
        Whether to open the bytes of the stored elements.
    """

    field: str = ""
    as_void: bool = False

    @classmethod
    def from_members(cls, members: Members) -> Selection:
        """Take ``field`` and ``open_as_void``.

        Raises
        ------
        MetadataError
            If both are present.
        """
        name = members.take_str("field", "")
        as_void = members.take_bool("open_as_void", default=False)
        if name and as_void:
            raise MetadataError('"field" and "open_as_void" are mutually exclusive')
        return cls(name, as_void) if name or as_void else NO_SELECTION

    def to_json(self) -> dict[str, JsonValue]:
        """Return the member that differs from its default, if any."""
        if self.as_void:
            return {"open_as_void": True}
        return {"field": self.field} if self.field else {}

    def of(self, stored: np.dtype[Any]) -> Component:
        """Return the component of elements of a stored type; see
        :func:`gpustore.metadata.component.select`.
        """
        return select(stored, self.field, as_void=self.as_void)

    def check_dtype(self, dtype: object | None) -> None:
        """Raise MetadataError if a part is selected of elements without a known `dtype`."""
        for name in self.to_json() if dtype is None else ():
            raise MetadataError(f'"dtype" must be specified in "metadata" if "{name}" is specified')


NO_SELECTION = Selection()


class WholeElements:
    """Answers shared by formats without parts of elements, which have no records."""

    __slots__ = ()

    selection = NO_SELECTION
    has_components = False

    def selecting(self, selection: Selection) -> Self:
        """Return the format itself: elements have no parts."""
        del selection
        return self

    def component(self, metadata: Any) -> Component:
        """Return the whole stored element."""
        return Component.whole(metadata.dtype)


def is_shown(component: Component, stored: np.dtype[Any]) -> bool:
    """Return whether the stored elements are opened as they are."""
    return component.is_element and not is_opaque(stored)


def stored_element(fill: Any, stored: np.dtype[Any]) -> Any:
    """Return the bytes ``V<n>`` of a stored element with this fill value, zeros for None."""
    opaque = f"V{stored.itemsize}"
    if fill is None:
        return np.zeros((), opaque)
    is_bytes = fill.dtype.type is np.void and fill.dtype.names is None
    element = fill if is_bytes else fill.astype(stored.base)
    return np.frombuffer(element.tobytes(), opaque).reshape(())


def fill_of_component(component: Component, stored: np.dtype[Any], fill: Any) -> tuple[Any, Any]:
    """Return the fill value that an array shows (None if undefined), and its `blank`."""
    if is_shown(component, stored):
        return fill, None
    element = stored_element(fill, stored)
    shown = None if fill is None else component.of(element)
    return shown, None if component.is_element else element


def fill_to_element(fill: Any, stored: np.dtype[Any], component: Component, json: JsonValue) -> Any:
    """Return a fill value of the schema as the fill value of stored elements.

    Raises
    ------
    MetadataError
        If the value does not broadcast to the inner dimensions, or leaves other fields undefined.
    """
    if is_shown(component, stored):
        return fill
    if stored.names is not None and len(stored.names) > 1 and component.name:
        raise MetadataError(
            f"Cannot specify fill_value through schema for structured zarr data type {text(json)}"
        )
    check_broadcast(np.shape(fill), component.shape)
    elements = np.broadcast_to(np.asarray(fill).astype(component.stored), component.shape)
    return np.frombuffer(elements.tobytes(), f"V{component.nbytes}").reshape(())
