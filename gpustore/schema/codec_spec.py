"""Constraints on the encoding of chunks, which the driver interprets.

Source: ``CodecSpec`` of TensorStore (``tensorstore/codec_spec.h``).
"""

from __future__ import annotations

from typing import Any

from gpustore import registry
from gpustore.errors import GpustoreError, MetadataError
from gpustore.strict_json.member_order import ordered
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
    """Constraints on the codecs of one driver; immutable.

    Parameters
    ----------
    json : object
        ``{"driver": "zarr3", "codecs": [...]}``: `driver` is required, the other members belong to
        the driver, which validates and completes them.

    Raises
    ------
    MetadataError
        If the driver is not known, or a member is not allowed.
    """

    __slots__ = ("_json",)

    def __init__(self, json: Any) -> None:
        value = expect_object(from_python(json))
        with in_member("driver"):
            name = expect_str(value.get("driver", REQUIRED))
        # A driver validates and completes a spec when it merges it with no constraint.
        self._json: dict[str, JsonValue] = _driver(name).merge_codec(value, {"driver": name})

    @property
    def driver(self) -> str:
        """Name of the driver, as it stands in JSON ("zarr" for zarr2)."""
        name: str = self._json["driver"]
        return name

    def merged(self, other: CodecSpec) -> CodecSpec:
        """Return the merged constraints of both specs.

        Raises
        ------
        MetadataError, MismatchError
            If they contradict each other: ``Cannot merge codec spec {...} with {...}: <reason>``.
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
        """Return a copy of the JSON form, completed by the driver."""
        return ordered(self._json)

    def __eq__(self, other: object) -> bool:
        """Whether both specs have the same JSON. (TensorStore compares identities.)"""
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
