"""``http_request_timeouts``: time limits of requests of the http, s3 and gcs kvstores.

JSON: ``{"connect": "10s", "idle": "30s", "total": "120s", "reach": "10s"}`` (the defaults):

===========  ===================================================================================
``connect``  to open a connection, look-up of the host's name and TLS handshake included
``idle``     until the next byte is sent or received
``total``    for a request with all its repetitions; every 64 KiB that arrive add a second, so a
             long transfer is not cut, and one that drips is. Bytes that a server without ranges
             sends before the range add nothing
``reach``    for a request with all its repetitions as long as this process has never had a
             connection to the server: a wrong address is told from a short outage
===========  ===================================================================================

TensorStore has no such resource, and no such limits.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from gpustore.errors import MetadataError
from gpustore.resources._duration import Duration, format_duration, parse_duration, seconds
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members, text


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of a request in seconds; may be infinite."""

    connect_s: float
    idle_s: float
    total_s: float
    reach_s: float


@dataclass(frozen=True, slots=True)
class _Config:
    connect: Duration
    idle: Duration
    total: Duration
    reach: Duration


_DEFAULT = _Config(*map(parse_duration, ("10s", "30s", "120s", "10s")))


class _HttpRequestTimeoutsType(ResourceType[_Config, Timeouts]):
    id = "http_request_timeouts"

    def parse(self, json: JsonValue) -> _Config:
        members = Members(json)
        found = {
            field.name: members.take_with(field.name, _parse_timeout, getattr(_DEFAULT, field.name))
            for field in fields(_Config)
        }
        members.finish()
        return _Config(**found)

    def default(self) -> _Config:
        return _DEFAULT

    def to_json(self, config: _Config, *, include_defaults: bool) -> JsonValue:
        return {
            field.name: format_duration(getattr(config, field.name))
            for field in fields(_Config)
            if include_defaults or getattr(config, field.name) != getattr(_DEFAULT, field.name)
        }

    def make(self, config: _Config) -> Timeouts:
        return Timeouts(*map(seconds, astuple(config)))


def _parse_timeout(json: JsonValue) -> Duration:
    duration = parse_duration(json)
    if duration <= 0:
        raise MetadataError(f"Expected a duration above 0, but received: {text(json)}")
    return duration


RESOURCE = _HttpRequestTimeoutsType()
