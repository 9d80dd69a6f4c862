"""Configuration of an OCDBT database: fixed when it is made, stored in every manifest.

JSON, all members optional::

    {"uuid": "52f814903630b039346d555cb7b1baff", "manifest_kind": "single",
     "max_inline_value_bytes": 100, "max_decoded_node_bytes": 8388608,
     "version_tree_arity_log2": 4, "compression": {"id": "zstd", "level": 0}}

``"compression": null`` means none. Members for an existing database must agree with its
configuration.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpustore.errors import MetadataError, MismatchError
from gpustore.kvstores.ocdbt.columns import Reader, encode_varint
from gpustore.strict_json.parsing import Members, expect_int, expect_str, text

if TYPE_CHECKING:
    from gpustore.strict_json.parsing import JsonValue


MAX_INLINE_NBYTES: Final = 1 << 20
_UINT32_MAX: Final = 2**32 - 1
_KINDS: Final = ("single", "numbered")
_MIN_LEVEL: Final = -131072
_MAX_LEVEL: Final = 22
_LEVEL = struct.Struct("<i")
_UUID = re.compile(r"[0-9a-fA-F]{32}")


@dataclass(frozen=True, slots=True)
class Compression:
    """Compression of manifest and nodes.

    Attributes
    ----------
    level : int or None
        Level of zstd; None for no compression.
    """

    level: int | None = 0

    def to_json(self, *, include_defaults: bool = False) -> JsonValue:
        """Return ``null`` or ``{"id": "zstd"}``, with the level unless it is 0."""
        if self.level is None:
            return None
        level = {"level": self.level} if self.level or include_defaults else {}
        return {"id": "zstd", **level}

    @classmethod
    def from_json(cls, json: JsonValue) -> Compression:
        """Parse the result of :meth:`to_json`."""
        if json is None:
            return cls(None)
        try:
            members = Members(json, integral_floats=True)
            members.take_str("id", choices=("zstd",))
            level = members.take_int("level", _MIN_LEVEL, _MAX_LEVEL, 0)
            members.finish()
        except MetadataError as error:
            raise MetadataError(
                f"No matching value binder: Expected null, but received: {text(json)}; {error.text}"
            ) from None
        return cls(level)


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of one database.

    Attributes
    ----------
    uuid : bytes
        Identifier of 16 bytes.
    manifest_kind : {"single", "numbered"}
    max_inline_value_bytes : int
        Longer values are stored in data files instead of leaf nodes.
    max_decoded_node_bytes : int
        Larger nodes are split when written; 0 for never.
    version_tree_arity_log2 : int
        From 1 to 16.
    compression : Compression
    """

    uuid: bytes
    manifest_kind: str
    max_inline_value_bytes: int = 100
    max_decoded_node_bytes: int = 8 << 20
    version_tree_arity_log2: int = 4
    compression: Compression = Compression()

    def encode(self, *, kind: str | None = None) -> bytes:
        """Return the beginning of a manifest's body, with `manifest_kind` if given."""
        level = self.compression.level
        return b"".join(
            (
                self.uuid,
                bytes((_KINDS.index(kind or self.manifest_kind),)),
                encode_varint(self.max_inline_value_bytes),
                encode_varint(self.max_decoded_node_bytes),
                bytes((self.version_tree_arity_log2, level is not None)),
                b"" if level is None else _LEVEL.pack(level),
            )
        )

    @classmethod
    def read(cls, reader: Reader) -> Config:
        """Read the result of :meth:`encode`."""
        uuid = reader.take(16)
        kind = reader.byte()
        if kind >= len(_KINDS):
            raise reader.error(f"Invalid manifest_kind {kind}")
        # More than a spec may say is no error in TensorStore, although no node has longer values.
        inline = reader.varint(_UINT32_MAX)
        node = reader.varint(_UINT32_MAX)
        arity = reader.byte()
        if not 1 <= arity <= 16:
            raise reader.error(
                f"Expected version_tree_arity_log2 in range [1, 16] but received: {arity}"
            )
        method = reader.varint(_UINT32_MAX)
        if method > 1:
            raise reader.error(f"Invalid compression method: {method}")
        level = None
        if method:
            level = _LEVEL.unpack(reader.take(_LEVEL.size))[0]
            if not _MIN_LEVEL <= level <= _MAX_LEVEL:
                raise reader.error(
                    f"Zstd compression level {level} is outside valid range "
                    f"[{_MIN_LEVEL}, {_MAX_LEVEL}]"
                )
        return cls(uuid, _KINDS[kind], inline, node, arity, Compression(level))

    @property
    def constraints(self) -> ConfigConstraints:
        """Return constraints that, apart from the manifest kind, only this configuration meets."""
        return ConfigConstraints({name: getattr(self, name) for name in _MEMBERS if name != _KIND})


_KIND: Final = "manifest_kind"


def _uuid(value: JsonValue) -> bytes:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise MetadataError(f"Expected string with 32 hex digits, but received: {text(value)}")
    return bytes.fromhex(value)


def _integer(minimum: int, maximum: int) -> Callable[[JsonValue], int]:
    return partial(expect_int, minimum=minimum, maximum=maximum, integral_floats=True)


_MEMBERS: Final[dict[str, Callable[[JsonValue], Any]]] = {
    "uuid": _uuid,
    _KIND: partial(expect_str, choices=_KINDS),
    "max_inline_value_bytes": _integer(0, MAX_INLINE_NBYTES),
    "max_decoded_node_bytes": _integer(0, _UINT32_MAX),
    "version_tree_arity_log2": _integer(1, 16),
    "compression": Compression.from_json,
}


def _member_json(value: Any, *, include_defaults: bool = False) -> JsonValue:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Compression):
        return value.to_json(include_defaults=include_defaults)
    return value


@dataclass(frozen=True, slots=True)
class ConfigConstraints:
    """Constraints of a spec on a configuration.

    Attributes
    ----------
    given : mapping of str to object
        Given fields of :class:`Config`, by name.
    """

    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, members: Members) -> ConfigConstraints:
        """Parse the member ``config``."""
        given = {
            name: members.take_with(name, parse)
            for name, parse in _MEMBERS.items()
            if name in members
        }
        members.finish()
        return cls(given)

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the members that are given; `include_defaults` adds defaults within them."""
        return {
            name: _member_json(value, include_defaults=include_defaults)
            for name, value in self.given.items()
        }

    def check(self, config: Config) -> None:
        """Raise MismatchError unless a configuration meets the constraints."""
        for name, value in self.given.items():
            found = getattr(config, name)
            if value != found:
                shown = [_member_json(one, include_defaults=True) for one in (value, found)]
                raise MismatchError(
                    f"Configuration mismatch on {name}: expected {text(shown[0])} "
                    f"but received {text(shown[1])}"
                )

    def make(self, manifest_kind: str) -> Config:
        """Make the configuration of a new database.

        Parameters
        ----------
        manifest_kind : {"single", "numbered"}
            Kind for constraints without one.
        """
        drawn = {"uuid": secrets.token_bytes(16), _KIND: manifest_kind}
        return Config(**{**drawn, **self.given})
