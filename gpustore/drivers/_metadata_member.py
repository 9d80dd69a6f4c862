"""Formats whose specs constrain the metadata by one member: :class:`MetadataMember`."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpustore.drivers import _remembered
from gpustore.drivers.format import Format
from gpustore.strict_json.parsing import JsonValue, Members


class MetadataMember:
    """Base of the formats whose specs have the member ``metadata``, and none of their own."""

    __slots__ = ()

    def take_constraints(self: Format, members: Members) -> Any:
        """Take ``metadata``."""
        return members.take_with(
            "metadata", partial(_remembered.constraints, self), self.no_constraints
        )

    def members(self, constraints: Any, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return ``metadata``, if there are any constraints or defaults are included."""
        metadata = constraints.to_json(include_defaults=include_defaults)
        return {"metadata": metadata} if metadata or include_defaults else {}

    def take_options(self, members: Members) -> dict[str, JsonValue]:
        """Return no options: the format has none."""
        del members
        return {}
