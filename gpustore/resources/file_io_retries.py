"""``file_io_retries``: how often operations on local files are repeated after passing errors.

JSON: ``{"max_retries": 0, "initial_delay": "1s", "max_delay": "32s"}`` (the defaults). The delay
doubles with each retry.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustore._json import INT64_MAX, JsonValue, Members
from gpustore.context import ResourceType
from gpustore.resources._duration import Duration, format_duration, parse_duration, seconds

__all__ = ["RESOURCE", "Retries"]


@dataclass(frozen=True, slots=True)
class Retries:
    """When to repeat.

    Attributes
    ----------
    max_retries : int
        Most repetitions after the first attempt.
    initial_delay_s, max_delay_s : float
        First and longest pause, in seconds; may be infinite.
    """

    max_retries: int
    initial_delay_s: float
    max_delay_s: float


@dataclass(frozen=True, slots=True)
class _Config:
    max_retries: int
    initial_delay: Duration
    max_delay: Duration


_DEFAULT = _Config(0, parse_duration("1s"), parse_duration("32s"))


class _FileIoRetriesType(ResourceType[_Config, Retries]):
    id = "file_io_retries"

    def parse(self, json: JsonValue) -> _Config:
        members = Members(json, integral_floats=True)
        config = _Config(
            max_retries=members.take_int("max_retries", 0, INT64_MAX, default=0),
            initial_delay=members.take_with(
                "initial_delay", parse_duration, _DEFAULT.initial_delay
            ),
            max_delay=members.take_with("max_delay", parse_duration, _DEFAULT.max_delay),
        )
        members.finish()
        return config

    def default(self) -> _Config:
        return _DEFAULT

    def to_json(self, config: _Config, *, include_defaults: bool) -> JsonValue:
        json = _members(config)
        default = _members(_DEFAULT)
        return {n: json[n] for n in json if include_defaults or json[n] != default[n]}

    def make(self, config: _Config) -> Retries:
        return Retries(
            max_retries=config.max_retries,
            initial_delay_s=max(0.0, seconds(config.initial_delay)),
            max_delay_s=max(0.0, seconds(config.max_delay)),
        )


def _members(config: _Config) -> dict[str, JsonValue]:
    return {
        "initial_delay": format_duration(config.initial_delay),
        "max_delay": format_duration(config.max_delay),
        "max_retries": config.max_retries,
    }


RESOURCE = _FileIoRetriesType()
