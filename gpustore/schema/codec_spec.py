"""Constraints on how chunks are encoded; what they mean is the business of the driver."""

from __future__ import annotations

from typing import Any

from gpustore import registry
from gpustore.errors import GpustoreError, MetadataError
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    expect_object,
    expect_str,
    from_python,
    in_member,
    quote,
    text,
)
from gpustore.strict_json.repr import pretty


class CodecSpec:
    """Codec constraints of one driver.

    Parameters
    ----------
    json : object
        ``{"driver": "zarr3", "codecs": [...]}``: `driver` is required, the other members are
        those the driver knows. They are validated and completed by the driver.

    Raises
    ------
    MetadataError
        If the driver is not known, or refuses the members.
    """

    __slots__ = ("_json",)

    def __init__(self, json: Any) -> None:
        value = expect_object(from_python(json))
        with in_member("driver"):
            name = expect_str(value.get("driver", REQUIRED))
        # Merging with no constraint is how a driver reads, checks and completes one.
        self._json: dict[str, JsonValue] = _driver(name).merge_codec(value, {"driver": name})

    @property
    def driver(self) -> str:
        """Name of the driver, as it stands in JSON ("zarr" for zarr2)."""
        name: str = self._json["driver"]
        return name

    def merged(self, other: CodecSpec) -> CodecSpec:
        """The constraints of both.

        Raises
        ------
        MetadataError, MismatchError
            ``Cannot merge codec spec {...} with {...}``, then the reason.
        """
        context = f"Cannot merge codec spec {text(self._json)} with {text(other._json)}"
        if self.driver != other.driver:
            raise MetadataError(context)
        result = CodecSpec.__new__(CodecSpec)
        try:
            result._json = _driver(self.driver).merge_codec(self._json, other._json)
        except GpustoreError as error:
            raise error.prefixed(context) from error.__cause__
        return result

    def to_json(self, include_defaults: bool = False) -> JsonValue:
        """The JSON form, completed by the driver; a copy."""
        return from_python(self._json)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same JSON. (TensorStore compares identities.)"""
        if not isinstance(other, CodecSpec):
            return NotImplemented
        return self._json == other._json

    def __hash__(self) -> int:
        return hash((CodecSpec, text(self._json)))

    def __repr__(self) -> str:
        return pretty("CodecSpec", self._json)


def _driver(name: str) -> Any:
    found = registry.find("drivers", name)
    if not hasattr(found, "merge_codec"):
        raise MetadataError(
            f'Error parsing object member "driver": {quote(name)} is not registered'
        )
    return found
