"""``file_io_locking``: method by which writers of one local file exclude each other.

JSON: ``{"mode": "os", "acquire_timeout": "60s"}`` with these modes:

==============  ================================================================================
``os``          a lock of the operating system on ``<key>.__lock`` (the default). It ends with the
                process that holds it, and is waited for without limit, as in TensorStore
``lockfile``    the mere existence of ``<key>.__lock``; for file systems without locks. A writer
                that was killed leaves it behind, and the next one fails after `acquire_timeout`
``none``        no lock: of two writers of one chunk, one may lose what the other wrote
``non_atomic``  no lock, and the file itself is written, without a temporary file and a rename; for
                file systems that cannot rename. Other processes may read half of a value, and a
                writer that is killed leaves the beginning of one
==============  ================================================================================

Threads of one process exclude each other in each mode. In mode ``non_atomic`` those that read a
key wait for those that write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from gpustore.resources._duration import Duration, format_duration, parse_duration, seconds
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members

LockMode = Literal["os", "lockfile", "none", "non_atomic"]

_MODES = ("os", "lockfile", "none", "non_atomic")
_DEFAULT_TIMEOUT = parse_duration("60s")


@dataclass(frozen=True, slots=True)
class FileIoLocking:
    """Method of locking local files.

    Attributes
    ----------
    mode : str
        ``"os"``, ``"lockfile"``, ``"none"`` or ``"non_atomic"``.
    acquire_timeout_s : float
        Longest wait for a lock file of another writer, in seconds; may be infinite.
    """

    mode: LockMode
    acquire_timeout_s: float


@dataclass(frozen=True, slots=True)
class _Config:
    mode: str = "os"
    acquire_timeout: Duration = _DEFAULT_TIMEOUT


class _FileIoLockingType(ResourceType[_Config, FileIoLocking]):
    id = "file_io_locking"
    is_shared = False

    def parse(self, json: JsonValue) -> _Config:
        members = Members(json)
        mode = members.take_str("mode", "os", choices=_MODES)
        timeout = members.take_with("acquire_timeout", parse_duration, _DEFAULT_TIMEOUT)
        members.finish()
        return _Config(mode, timeout)

    def default(self) -> _Config:
        return _Config()

    def to_json(self, config: _Config, *, include_defaults: bool) -> JsonValue:
        # TensorStore leaves these two out even when asked for the defaults.
        json = {}
        if config.acquire_timeout != _DEFAULT_TIMEOUT:
            json["acquire_timeout"] = format_duration(config.acquire_timeout)
        if config.mode != "os":
            json["mode"] = config.mode
        return json

    def make(self, config: _Config) -> FileIoLocking:
        timeout = max(0.0, seconds(config.acquire_timeout))
        return FileIoLocking(cast("LockMode", config.mode), timeout)


RESOURCE = _FileIoLockingType()
