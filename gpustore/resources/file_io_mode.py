"""``file_io_mode``: how local files are read.

JSON: ``{"mode": "default"}``. TensorStore's modes ``memmap`` and ``direct`` are legal in a spec,
but not supported: mapping chunk files was slower than reading them in all measurements. The value
is ``"default"``.
"""

from __future__ import annotations

from typing import Literal

from gpustore._json import JsonValue, Members
from gpustore.context import ResourceType
from gpustore.errors import UnsupportedError

__all__ = ["RESOURCE"]

_MODES = ("default", "memmap", "direct")


class _FileIoModeType(ResourceType[str, Literal["default"]]):
    id = "file_io_mode"

    def parse(self, json: JsonValue) -> str:
        members = Members(json)
        mode: str = members.take_str("mode", "default", choices=_MODES)
        members.finish()
        return mode

    def default(self) -> str:
        return "default"

    def to_json(self, config: str, *, include_defaults: bool) -> JsonValue:
        # TensorStore leaves it out even when asked for the defaults.
        return {} if config == "default" else {"mode": config}

    def make(self, config: str) -> Literal["default"]:
        if config != "default":
            raise UnsupportedError(
                f'file_io_mode: mode "{config}" is not supported, expected "default"'
            )
        return "default"


RESOURCE = _FileIoModeType()
