"""``device``: memory in which arrays are returned.

JSON: ``"auto"`` (the default: CUDA if it is usable, else the host), ``"cpu"``, ``"cuda"`` (CUDA's
current device) or ``"cuda:N"``; other kinds of devices have the names of :data:`DEVICES`. The text
stays as written when a spec is serialised or pickled, so that a program written on a laptop uses
the GPU of the machine it is sent to; the backends select the device.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpustore.errors import MetadataError
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, text

_SYNTAX = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]{0,2}))?")

DEVICES: dict[str, Callable[[int | None, str], Any]] = {}
"""Further kinds of devices by name.

Each is a function from an ordinal or None, and a value of ``device_allocator``, to a
:class:`gpustore.device.protocol.Device`; it may return the same object each time.
"""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """Parsed name of a device.

    Attributes
    ----------
    text : str
        The name as written.
    kind : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, or one of :data:`DEVICES`.
    ordinal : int or None
        The N of ``cuda:N``, None if the name has no number.
    """

    text: str
    kind: str
    ordinal: int | None = None

    def __str__(self) -> str:
        return self.text


def parse_device(json: JsonValue) -> DeviceName:
    """Parse the name of a device; MetadataError if there is no such kind.

    >>> parse_device("cuda:1").ordinal
    1
    """
    match = _SYNTAX.fullmatch(json) if isinstance(json, str) else None
    kind, ordinal = match.groups() if match is not None else ("", None)
    is_host = kind in ("auto", "cpu")
    if match is None or (ordinal is not None if is_host else kind not in ("cuda", *DEVICES)):
        raise MetadataError(
            f'Expected one of "auto", "cpu", "cuda", "cuda:N", but received: {text(json)}'
        )
    return DeviceName(
        text=match.group(),
        kind=kind,
        ordinal=None if ordinal is None else int(ordinal),
    )


class _DeviceType(ResourceType[DeviceName, DeviceName]):
    id = "device"

    def parse(self, json: JsonValue) -> DeviceName:
        return parse_device(json)

    def default(self) -> DeviceName:
        return DeviceName("auto", "auto")

    def to_json(self, config: DeviceName, *, include_defaults: bool) -> JsonValue:
        return config.text

    def make(self, config: DeviceName) -> DeviceName:
        return config


RESOURCE = _DeviceType()
