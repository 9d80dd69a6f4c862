"""Type of the context resources that say how often an operation is repeated.

JSON: ``{"max_retries": 32, "initial_delay": "1s", "max_delay": "32s"}``. The delay doubles with
each retry.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.resources._duration import Duration, format_duration, parse_duration, seconds
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import INT64_MAX, JsonValue, Members


@dataclass(frozen=True, slots=True)
class Retries:
    """Rule for the repetition of an operation that failed.

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


class RetriesType(ResourceType[_Config, Retries]):
    """Resource whose value is a :class:`Retries`.

    Parameters
    ----------
    id : str
        Identifier of the resource.
    max_retries : int
        Value of the member that JSON without it means.
    """

    is_shared = False

    def __init__(self, id: str, max_retries: int) -> None:
        self.id = id
        self._default = _Config(max_retries, parse_duration("1s"), parse_duration("32s"))

    def parse(self, json: JsonValue) -> _Config:
        members = Members(json, integral_floats=True)
        default = self._default
        config = _Config(
            max_retries=members.take_int("max_retries", 0, INT64_MAX, default=default.max_retries),
            initial_delay=members.take_with("initial_delay", parse_duration, default.initial_delay),
            max_delay=members.take_with("max_delay", parse_duration, default.max_delay),
        )
        members.finish()
        return config

    def default(self) -> _Config:
        return self._default

    def to_json(self, config: _Config, *, include_defaults: bool) -> JsonValue:
        json = _members(config)
        default = _members(self._default)
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
