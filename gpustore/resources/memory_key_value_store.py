"""``memory_key_value_store``: the contents of ``memory`` kvstores.

JSON: ``{}``. The value, :class:`MemoryState`, is empty at first; all memory kvstores opened with
one resource share it, so the name of the resource distinguishes one set of keys from another.
"""

from __future__ import annotations

import threading
from typing import Any

from gpustore.runtime.context import ResourceType
from gpustore.runtime.executor import reset_after_fork
from gpustore.strict_json.parsing import JsonValue, Members


class MemoryState:
    """Contents of ``memory`` kvstores: values by key, in host memory.

    Attributes
    ----------
    entries : dict
        Entry of the kvstore for each key. After a fork the child has a copy.
    lock : threading.Lock
        Lock that is held while `entries` is changed.
    identity : object
        Identity of the contents for caches, which must not keep the contents alive.
    """

    __slots__ = ("__weakref__", "entries", "identity", "lock")

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self.identity = object()
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Make a lock that no thread of the parent process holds."""
        self.lock = threading.Lock()


class _MemoryType(ResourceType[None, MemoryState]):
    id = "memory_key_value_store"
    shares_default = False  # Contexts do not see the values of each other.

    def parse(self, json: JsonValue) -> None:
        Members(json).finish()

    def default(self) -> None:
        return None

    def to_json(self, config: None, *, include_defaults: bool) -> JsonValue:
        return {}

    def make(self, config: None) -> MemoryState:
        return MemoryState()


RESOURCE = _MemoryType()
