"""``gpu_decode_trust``: stored values that a device may decode.

JSON: a string. Decoders for devices promise nothing about damaged streams, except for those that
check all bounds (LZ4, blosclz); values that any of the others is given have passed a walk through
their headers, whatever is chosen here. A stream made for the purpose can still lead such a decoder
out of its memory, which ends the use of the device in this process, or worse.

==============  ================================================================================
``"auto"``      the device decodes (the default); of stores that are not trusted (``http``), only
                streams of decoders that check all bounds
``"verified"``  streams of decoders that check all bounds, and values behind a checksum that is
                compared before decoding: ``crc32c`` after the compressor
``"never"``     the host decodes everything
==============  ================================================================================

Decoders of images check no bounds in this sense, and no checksum stands in front of them.
Values that the device does not decode are decoded by the host and counted (``host_fallbacks``).
Bytes that no codec has encoded are always copied to the device unchanged. A checksum shows
accidents; an attacker writes a new one. For data from sources that are not trusted choose
``"never"``, or read them in a process that may die.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, expect_str

_CHOICES = ("auto", "verified", "never")


@dataclass(frozen=True, slots=True)
class Distrust:
    """Rule that keeps values from decoders of a device.

    Attributes
    ----------
    reason : str
        Reason of the rule, a part of a sentence in messages.
    of_all : bool
        Whether values are kept from all decoders, also those that check all bounds.
    ends_with_checksum : bool
        Whether values whose checksum was found right before may be decoded.
    """

    reason: str
    of_all: bool = False
    ends_with_checksum: bool = False


_NEVER = Distrust('gpu_decode_trust is "never"', of_all=True)
_UNVERIFIED = Distrust(
    'gpu_decode_trust is "verified", and no checksum is compared before this decoder, which does '
    "not check bounds",
    ends_with_checksum=True,
)
_STORE = Distrust("the store is not trusted, and this decoder does not check bounds")


def distrust_of(trust: str, *, store_is_trusted: bool) -> Distrust | None:
    """Return the rule for the values of one kvstore, None if a device may decode all of them.

    Parameters
    ----------
    trust : str
        Value of this resource: ``"auto"``, ``"verified"`` or ``"never"``.
    store_is_trusted : bool
        Whether the kvstore is trusted; those of ``http`` are not.

    Examples
    --------
    >>> distrust_of("auto", store_is_trusted=True) is None
    True
    """
    if trust == "never":
        return _NEVER
    if trust == "verified":
        return _UNVERIFIED
    return None if store_is_trusted else _STORE


class _GpuDecodeTrustType(ResourceType[str, str]):
    id = "gpu_decode_trust"

    def parse(self, json: JsonValue) -> str:
        return expect_str(json, choices=_CHOICES)

    def default(self) -> str:
        return "auto"

    def to_json(self, config: str, *, include_defaults: bool) -> JsonValue:
        return config

    def make(self, config: str) -> str:
        return config


RESOURCE = _GpuDecodeTrustType()
