"""``ocdbt_coordinator``: server that coordinates writers of OCDBT databases, which need none.

JSON: ``{"address": "host:port", "lease_duration": "10s"}``; by ``{}``, the default, each writer
commits by itself. An address is refused when a database is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpustore.errors import UnsupportedError
from gpustore.resources._duration import format_duration, parse_duration
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members

_Config = Mapping[str, str]


class _OcdbtCoordinatorType(ResourceType[_Config, None]):
    id = "ocdbt_coordinator"

    def parse(self, json: JsonValue) -> _Config:
        members = Members(json)
        config = {}
        if "address" in members:
            config["address"] = members.take_str("address")
        if "lease_duration" in members:
            duration = members.take_with("lease_duration", parse_duration)
            config["lease_duration"] = format_duration(duration)
        members.finish()
        return config

    def default(self) -> _Config:
        return {}

    def to_json(self, config: _Config, *, include_defaults: bool) -> JsonValue:
        del include_defaults
        return dict(config)

    def make(self, config: _Config) -> None:
        if config.get("address"):
            raise UnsupportedError(
                "several machines that commit through a coordinator are not supported; all writers "
                "of a database commit by themselves, which is as safe"
            )


RESOURCE = _OcdbtCoordinatorType()
