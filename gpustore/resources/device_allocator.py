"""``device_allocator``: source of the device memory that reads and writes take.

JSON: a string.

=============  =================================================================================
``"default"``  memory for submissions and caches is a pool of gpustore's own, and that of new arrays
               CuPy's current allocator; both pools are left as they are found
``"torch"``    all of it comes from PyTorch's caching allocator: PyTorch counts it, and what one of
               the two frees the other may use; PyTorch must be installed
=============  =================================================================================

Arrays opened with different allocators have backends of their own, each with its own memory for
submissions and for caches. Pinned memory is gpustore's in any case.
"""

from __future__ import annotations

from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, expect_str

ALLOCATORS = ("default", "torch")


class _DeviceAllocatorType(ResourceType[str, str]):
    id = "device_allocator"

    def parse(self, json: JsonValue) -> str:
        return expect_str(json, choices=ALLOCATORS)

    def default(self) -> str:
        return "default"

    def to_json(self, config: str, *, include_defaults: bool) -> JsonValue:
        return config

    def make(self, config: str) -> str:
        return config


RESOURCE = _DeviceAllocatorType()
