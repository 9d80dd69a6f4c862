"""``{"name": ..., "configuration": {...}}``: how Zarr v3 names an extension and its options.

Names and options are not interpreted here. A bare name is read, and never written: specification
3.1 allows it, but few readers take it.
Source: Zarr v3 core specification, "Extension definition".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import (
    JsonValue,
    Members,
    at_position,
    expect_bool,
    expect_list,
    expect_object,
    expect_str,
    in_member,
    quote,
    text,
)


def json_equal(a: JsonValue, b: JsonValue) -> bool:
    """Whether two JSON values are the same; ``1`` and ``1.0`` are, ``1`` and ``true`` are not.

    NaN, which Python writes, is the same as NaN.

    >>> json_equal({"a": [1, 2.0]}, {"a": [1.0, 2]}), json_equal(1, True)
    (True, False)
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(json_equal(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(json_equal, a, b))
    return bool(a == b or (a != a and b != b))


@dataclass(frozen=True, slots=True, eq=False)
class NamedConfiguration:
    """Name of an extension and its options; immutable.

    Parameters
    ----------
    name : str
        The registered name, e.g. ``"zstd"``.
    configuration : mapping, optional
        Options of the extension as JSON, empty if none were given. Not to be changed.
    must_understand : bool, optional
        False where the file allows a reader to ignore an extension that it does not know.

    Examples
    --------
    >>> NamedConfiguration("zstd", {"level": 3}).to_json()
    {'name': 'zstd', 'configuration': {'level': 3}}
    """

    name: str
    configuration: Mapping[str, JsonValue] = field(default_factory=dict)
    must_understand: bool = True

    @classmethod
    def from_json(
        cls, value: JsonValue, *, names: Sequence[str] | None = None
    ) -> NamedConfiguration:
        """Parse an object with name and configuration, or a bare string without options; the name
        is one of `names`, if any are given.
        """
        if isinstance(value, str):
            with in_member("name"):
                return cls(expect_str(value, choices=names))
        members = Members(value)
        name = members.take_str("name", choices=names)
        configuration = members.take_with("configuration", _object, {})
        must_understand = members.take_with("must_understand", expect_bool, True)
        members.finish()
        return cls(name, configuration, must_understand)

    @classmethod
    def mandatory(
        cls, value: JsonValue, what: str, *, names: Sequence[str] | None = None
    ) -> NamedConfiguration:
        """Parse an extension that every reader must understand, with one of these `names`.

        Raises
        ------
        MetadataError
            If `value` is no extension, or says ``"must_understand": false``; `what` names the
            extension point in the message.
        """
        parsed = cls.from_json(value, names=names)
        if not parsed.must_understand:
            raise MetadataError(
                f'Extension {quote(parsed.name)} is marked {{"must_understand": false}}, which is '
                f"not allowed for a {what}"
            )
        return parsed

    @classmethod
    def list_from_json(cls, value: JsonValue) -> tuple[NamedConfiguration, ...]:
        """Parse an array of extensions."""
        parsed: list[NamedConfiguration] = []
        for index, element in enumerate(expect_list(value)):
            with at_position(index):
                parsed.append(cls.from_json(element))
        return tuple(parsed)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the object form; without options it has no ``configuration``, as TensorStore's."""
        value: dict[str, JsonValue] = {"name": self.name}
        # zarr-python does not open its own codecs without a configuration.
        if self.configuration or self.name.startswith("numcodecs."):
            value["configuration"] = dict(self.configuration)
        if not self.must_understand:
            value["must_understand"] = False
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamedConfiguration):
            return NotImplemented
        return json_equal(self.to_json(), other.to_json())

    def __hash__(self) -> int:
        # Equal numbers may be written differently (1, 1.0), so only names of options count.
        return hash((self.name, frozenset(self.configuration), self.must_understand))

    def __str__(self) -> str:
        return text(self.to_json())


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return dict(expect_object(value))
