"""Type of the context resources that limit concurrent work, and their JSON."""

from __future__ import annotations

from typing import TypeVar

from gpustore.runtime.context import ResourceType
from gpustore.runtime.executor import Executor, shared
from gpustore.strict_json.parsing import JsonValue, Members, expect_int

Value = TypeVar("Value")
"""Type of the value of a resource."""


class LimitType(ResourceType[int | None, Value]):
    """Resource with a limit: ``{"limit": 4}``, or ``"shared"`` (the default) for the process's."""

    def __init__(self, id: str) -> None:
        self.id = id

    def parse(self, json: JsonValue) -> int | None:
        """Parse an object with a member ``limit``; None stands for the shared limit."""
        members = Members(json, integral_floats=True)
        limit: int | None = members.take_with("limit", _parse_number, default=None)
        members.finish()
        return limit

    def default(self) -> int | None:
        return None

    def to_json(self, config: int | None, *, include_defaults: bool) -> JsonValue:
        if config is not None:
            return {"limit": config}
        return {"limit": "shared"} if include_defaults else {}


class ConcurrencyType(LimitType[Executor]):
    """Resource of threads: ``{"limit": "shared"}`` is the process's pool, ``{"limit": 4}`` its own.

    The value is an :class:`~gpustore.runtime.executor.Executor`.
    """

    def make(self, config: int | None) -> Executor:
        return shared() if config is None else Executor(config)


def _parse_number(value: JsonValue) -> int | None:
    if value == "shared":
        return None
    return expect_int(value, 1, 2**64 - 1, integral_floats=True)
