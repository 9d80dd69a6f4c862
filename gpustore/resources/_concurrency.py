"""Type of the context resources that limit concurrent work, and their JSON."""

from __future__ import annotations

from gpustore.runtime.context import ResourceType
from gpustore.runtime.executor import Executor, shared
from gpustore.strict_json.parsing import JsonValue, Members, expect_int


class ConcurrencyType(ResourceType[int | None, Executor]):
    """Resource of threads: ``{"limit": "shared"}`` is the process's pool, ``{"limit": 4}`` its own.

    The value is an :class:`~gpustore.runtime.executor.Executor`.
    """

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
    """Parse an object with a member ``limit``; None stands for the shared limit."""
    members = Members(json, integral_floats=True)
    limit: int | None = members.take_with("limit", _parse_number, default=None)
    members.finish()
    return limit


def limit_json(limit: int | None, *, include_defaults: bool) -> JsonValue:
    """Return the object that :func:`parse_limit` turns into `limit`."""
    if limit is not None:
        return {"limit": limit}
    return {"limit": "shared"} if include_defaults else {}


def _parse_number(value: JsonValue) -> int | None:
    if value == "shared":
        return None
    return expect_int(value, 1, 2**64 - 1, integral_floats=True)
