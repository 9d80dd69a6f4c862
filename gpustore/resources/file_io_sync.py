"""``file_io_sync``: durability that a write to a local file waits for.

=====================  =========================================================================
JSON                   a write is acknowledged when
=====================  =========================================================================
``true``, ``"full"``   the file and its directory are on the disk: it survives a power failure
``"file"``             the file is on the disk; after a power failure its old value may be back
``false``, ``"none"``  the kernel has it: it survives the process, not a power failure
=====================  =========================================================================

In each case readers see the old value or the new one, never a part. The value is ``"full"``,
``"file"`` or ``"none"``. The strings are gpustore's, the booleans TensorStore's.
"""

from __future__ import annotations

from typing import Literal, cast

from gpustore.errors import MetadataError
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, expect_bool, text

FileIoSync = Literal["full", "file", "none"]

_STRINGS = ("full", "file", "none")


class _FileIoSyncType(ResourceType[bool | str, FileIoSync]):
    id = "file_io_sync"
    is_shared = False

    def parse(self, json: JsonValue) -> bool | str:
        if not isinstance(json, str):
            return expect_bool(json)
        if json not in _STRINGS:
            expected = ", ".join(map(text, _STRINGS))
            raise MetadataError(
                f"Expected boolean, but received: {text(json)}; or one of {expected}"
            )
        return json

    def default(self) -> bool | str:
        return True

    def to_json(self, config: bool | str, *, include_defaults: bool) -> JsonValue:
        return config

    def make(self, config: bool | str) -> FileIoSync:
        if isinstance(config, str):
            return cast("FileIoSync", config)
        return "full" if config else "none"


RESOURCE = _FileIoSyncType()
