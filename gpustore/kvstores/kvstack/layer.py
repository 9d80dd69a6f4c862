"""Layers of a kvstack: ranges of keys, and their kvstores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpustore.errors import MetadataError
from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.spec import KvStoreSpec
from gpustore.strict_json.parsing import Members, quote

if TYPE_CHECKING:
    from gpustore.strict_json.parsing import JsonValue

_LONGEST: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Layer:
    """Range of keys that lie in another kvstore.

    Attributes
    ----------
    low, high : str, str or None
        First key, and the end of the range; None for no end.
    base : KvStoreSpec
        Kvstore of the keys.
    strip : int
        Bytes that are removed from the beginning of a key.
    """

    low: str
    high: str | None
    base: KvStoreSpec
    strip: int

    def __contains__(self, key: str) -> bool:
        return self.low <= key and (self.high is None or key < self.high)

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the JSON of the layer, with the shortest description of its range."""
        json: dict[str, JsonValue] = {"base": self.base.to_json(include_defaults)}
        if self.strip != _common(self.low, self.high):
            json["strip_prefix"] = self.strip
        if self.high == self.low + "\0":
            json["exact"] = self.low
        elif self.low and self.high == prefix_end(self.low):
            json["prefix"] = self.low
        else:
            if self.low:
                json["inclusive_min"] = self.low
            if self.high is not None:
                json["exclusive_max"] = self.high
        return json

    def within(self, low: str, high: str | None) -> Layer | None:
        """Return the part of the layer between two keys, None if there is none."""
        first, last = max(low, self.low), _lower(high, self.high)
        if last is not None and first >= last:
            return None
        return replace(self, low=first, high=last)


def parse_layer(json: JsonValue) -> Layer:
    """Return the layer that JSON describes; MetadataError if it is not valid."""
    members = Members(json)
    for names in (("prefix", "exact", "inclusive_min"), ("prefix", "exact", "exclusive_max")):
        if sum(name in members for name in names) > 1:
            quoted = ", ".join(map(quote, names))
            raise MetadataError(f"At most one of {quoted} members is allowed")
    base = members.take_with("base", KvStoreSpec.from_json)
    strip = members.take_int("strip_prefix", 0, _LONGEST, None)
    exact, prefix = members.take_str("exact", None), members.take_str("prefix", None)
    low = members.take_str("inclusive_min", "")
    high = members.take_str("exclusive_max", "") or None
    members.finish()
    said = ""
    if exact is not None:
        low, high, said = exact, exact + "\0", f"exact {quote(exact)}"
    elif prefix is not None:
        low, high, said = prefix, prefix_end(prefix), f"prefix {quote(prefix)}"
    elif high is not None and low > high:
        raise MetadataError("Invalid inclusive_min/exclusive_max in range")
    common = _common(low, high)
    if strip is not None and strip > common:
        said = said or f"range [{quote(low)}, {quote(high or '')})"
        raise MetadataError(f"Invalid strip_prefix of {strip} for {said}")
    return Layer(low, high, base, common if strip is None else strip)


def _common(low: str, high: str | None) -> int:
    """Return the length in bytes of what all keys of a range begin with."""
    if high is None:
        return 0
    if high == low + "\0" or (low and high == prefix_end(low)):
        return len(_bytes(low))
    first, end = _bytes(low), _bytes(high)
    size = 0
    while size < min(len(first), len(end)) and first[size] == end[size]:
        size += 1
    if size + 1 == min(len(first), len(end)) and first[size] + 1 == end[size]:
        size += 1
    return size


def _lower(a: str | None, b: str | None) -> str | None:
    """Return the lower of two ends of ranges."""
    return b if a is None else a if b is None else min(a, b)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def without_start(key: str, skip: int) -> str:
    """Return a key without its first bytes."""
    return key[skip:] if key.isascii() else _bytes(key)[skip:].decode("utf-8", "surrogateescape")


def start_of(key: str, count: int) -> str:
    """Return the first bytes of a key."""
    return key[:count] if key.isascii() else _bytes(key)[:count].decode("utf-8", "surrogateescape")
