"""What the resources that limit concurrency have in common."""

from __future__ import annotations

from gpustore.runtime.context import ResourceType
from gpustore.runtime.executor import Executor, shared
from gpustore.strict_json.parsing import JsonValue, Members, expect_int


class ConcurrencyType(ResourceType[int | None, Executor]):
    """``{"limit": "shared"}`` is the pool of the process, ``{"limit": 4}`` one of its own."""

    def __init__(self, id: str) -> None:
        self.id = id

    def parse(self, json: JsonValue) -> int | None:
        return parse_limit(json)

    def default(self) -> int | None:
        return None

    def to_json(self, config: int | None, *, include_defaults: bool) -> JsonValue:
        return limit_json(config, include_defaults=include_defaults)

    def make(self, config: int | None) -> Executor:
        return shared() if config is None else Executor(config)


def parse_limit(json: JsonValue) -> int | None:
    """The limit that an object with a member ``limit`` sets; None is the shared one."""
    members = Members(json, integral_floats=True)
    limit: int | None = members.take_with("limit", _parse_number, default=None)
    members.finish()
    return limit


def limit_json(limit: int | None, *, include_defaults: bool) -> JsonValue:
    """The object that :func:`parse_limit` reads."""
    if limit is not None:
        return {"limit": limit}
    return {"limit": "shared"} if include_defaults else {}


def _parse_number(value: JsonValue) -> int | None:
    if value == "shared":
        return None
    return expect_int(value, 1, 2**64 - 1, integral_floats=True)
