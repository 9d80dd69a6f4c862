"""``limits``: largest sizes that files and requests may ask for.

JSON: an object with any of the fields of :class:`~gpustore.runtime.limits.Limits`, for instance
``{"chunk_nbytes": 4294967296}``. Other fields are as ``GPUSTORE_LIMITS`` has them, or else the
built-in defaults. The value is a :class:`~gpustore.runtime.limits.Limits`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.runtime.context import ResourceType
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from gpustore.strict_json.parsing import JsonValue


@dataclass(frozen=True, slots=True)
class _Config:
    limits: Limits
    given: frozenset[str]


class _LimitsType(ResourceType[_Config, Limits]):
    id = "limits"

    def parse(self, json: JsonValue) -> _Config:
        return _Config(Limits.from_json(json, base=DEFAULT_LIMITS), frozenset(json))

    def default(self) -> _Config:
        return _Config(DEFAULT_LIMITS, frozenset())

    def to_json(self, config: _Config, *, include_defaults: bool) -> JsonValue:
        # Given members stay, also where they equal the default here: another machine may have
        # another GPUSTORE_LIMITS.
        json = config.limits.to_json()
        return {n: v for n, v in json.items() if include_defaults or n in config.given}

    def make(self, config: _Config) -> Limits:
        return config.limits


RESOURCE = _LimitsType()
