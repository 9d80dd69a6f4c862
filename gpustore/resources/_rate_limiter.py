"""Type of the context resources that limit the rate of requests, which gpustore does not.

JSON: ``{"read_rate": 100, "write_rate": 10, "doubling_time": "90s"}``, in requests a second. The
default, ``{}``, limits nothing; anything else is refused when a kvstore with it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpustore.errors import UnsupportedError
from gpustore.resources._duration import Duration, format_duration, parse_duration
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members, expect_float

_Config = Mapping[str, float | Duration]


class RateLimiterType(ResourceType[_Config, None]):
    """Resource without a value.

    Parameters
    ----------
    id : str
        Identifier of the resource.
    """

    is_shared = False

    def __init__(self, id: str) -> None:
        self.id = id

    def parse(self, json: JsonValue) -> _Config:
        members = Members(json)
        config: dict[str, float | Duration] = {}
        for name in ("read_rate", "write_rate"):
            if name in members:
                config[name] = members.take_with(name, expect_float)
        if "doubling_time" in members:
            config["doubling_time"] = members.take_with("doubling_time", parse_duration)
        members.finish()
        return config

    def default(self) -> _Config:
        return {}

    def to_json(self, config: _Config, *, include_defaults: bool) -> JsonValue:
        del include_defaults
        return {
            name: format_duration(config[name]) if name == "doubling_time" else config[name]
            for name in sorted(config)
        }

    def make(self, config: _Config) -> None:
        if config:
            raise UnsupportedError(
                f'"{self.id}" is not supported: no rate of requests is limited; '
                '"s3_request_concurrency" and "gcs_request_concurrency" limit those under way'
            )
