"""``file_io_mode``: method of reading local files. JSON: ``{"mode": "default"}``.

===========  ===================================================================================
``default``  through the page cache of the system
``memmap``   the same. TensorStore maps values of at least 256 KiB, and its process dies of SIGBUS
             if such a file is cut short meanwhile. A copy out of a mapping is not safe from that
             either, nor is a private mapping whose pages are there already. So nothing is mapped:
             the bytes are the same, and reading them was faster in all measurements
``direct``   past the page cache (``O_DIRECT``), which keeps what else is in it. A file system that
             cannot is read through it, counted as ``unbuffered_fallbacks``
===========  ===================================================================================

Writes go through the page cache in each mode, as TensorStore's do. The value is the mode.
"""

from __future__ import annotations

from typing import Literal, cast

from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members

FileIoMode = Literal["default", "memmap", "direct"]

_MODES = ("default", "memmap", "direct")


class _FileIoModeType(ResourceType[FileIoMode, FileIoMode]):
    id = "file_io_mode"
    is_shared = False

    def parse(self, json: JsonValue) -> FileIoMode:
        members = Members(json)
        mode = cast("FileIoMode", members.take_str("mode", "default", choices=_MODES))
        members.finish()
        return mode

    def default(self) -> FileIoMode:
        return "default"

    def to_json(self, config: FileIoMode, *, include_defaults: bool) -> JsonValue:
        # TensorStore leaves it out even when asked for the defaults.
        return {} if config == "default" else {"mode": config}

    def make(self, config: FileIoMode) -> FileIoMode:
        return config


RESOURCE = _FileIoModeType()
