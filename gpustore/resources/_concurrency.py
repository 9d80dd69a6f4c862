"""What the two resources that limit concurrency have in common."""

from __future__ import annotations

from gpustore._json import JsonValue, Members, expect_int
from gpustore.context import ResourceType
from gpustore.executor import Executor, shared

__all__ = ["ConcurrencyType"]


class ConcurrencyType(ResourceType[int | None, Executor]):
    """``{"limit": "shared"}`` is the pool of the process, ``{"limit": 4}`` one of its own."""

    def __init__(self, id: str) -> None:
        self.id = id

    def parse(self, json: JsonValue) -> int | None:
        members = Members(json, integral_floats=True)
        limit: int | None = members.take_with("limit", _parse_limit, default=None)
        members.finish()
        return limit

    def default(self) -> int | None:
        return None

    def to_json(self, config: int | None, *, include_defaults: bool) -> JsonValue:
        if config is not None:
            return {"limit": config}
        return {"limit": "shared"} if include_defaults else {}

    def make(self, config: int | None) -> Executor:
        return shared() if config is None else Executor(config)


def _parse_limit(value: JsonValue) -> int | None:
    if value == "shared":
        return None
    return expect_int(value, 1, 2**64 - 1, integral_floats=True)
