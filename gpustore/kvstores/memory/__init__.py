"""The ``memory`` kvstore: values in a dict of this process.

Stores with the same ``memory_key_value_store`` context resource share their values; a new context
starts empty. Every operation on one key is atomic.

Source: TensorStore ``kvstore/memory/index.rst``; JSON ``{"driver": "memory", "path": "a/"}``, URL
``memory://a/``. Any key is legal here, as in TensorStore.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gpustore.kvstores.base import KvStoreDriver, references_json, take_references
from gpustore.kvstores.columns import (
    ABSENT,
    AtomicRequest,
    ReadColumns,
    ReadRequest,
    WriteColumns,
    WriteRequest,
)
from gpustore.url import encode_path, require_slashes

if TYPE_CHECKING:
    import builtins
    from collections.abc import Hashable, Mapping

    from gpustore.resources.memory_key_value_store import MemoryState
    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue, Members
    from gpustore.url import UrlComponent


_RESOURCE = "memory_key_value_store"

# One counter for all stores of the process, so that no generation is ever used twice.
_counter = itertools.count()
_pack_generation = struct.Struct("<xQ").pack


class MemoryKvStore(KvStoreDriver):
    """An opened memory kvstore.

    Parameters
    ----------
    state : MemoryState
        The values; shared with other stores of the same context resource.
    """

    id = "memory"
    atomic_single_key = True
    is_local = True

    def __init__(self, state: MemoryState, *, spec: MemorySpec, resource: Context.Resource) -> None:
        self._state = state
        self._spec = spec
        self._resource = resource
        self.writes_together = spec.atomic

    @property
    def spec(self) -> MemorySpec:
        return self._spec

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        return {_RESOURCE: self._resource}

    @property
    def identity(self) -> Hashable:
        return self._state.identity

    def check_key(self, key: str) -> None:
        """Accept any key."""

    def read_many(self, request: ReadRequest) -> ReadColumns:
        result = ReadColumns.blank(len(request.keys))
        entries = self._state.entries
        for i, key in enumerate(request.keys):
            entry = entries.get(key)
            result.take(i, request, *((None, ABSENT) if entry is None else entry))
        return result

    def write_many(self, request: WriteRequest) -> WriteColumns:
        result = WriteColumns.blank(len(request.keys))
        state = self._state
        # Copies are made before the lock is taken; readers never wait.
        values = [None if value is None else bytes(value) for value in request.values]
        with state.lock:
            for i, (key, value) in enumerate(zip(request.keys, values, strict=True)):
                if request.if_equal is not None and request.if_equal[i]:
                    entry = state.entries.get(key)
                    if request.if_equal[i] != (ABSENT if entry is None else entry[1]):
                        continue
                if value is None:
                    state.entries.pop(key, None)
                    result.generation[i] = ABSENT
                else:
                    generation = _pack_generation(next(_counter))
                    state.entries[key] = value, generation
                    result.generation[i] = generation
        return result

    def write_together(self, request: AtomicRequest) -> builtins.list[str]:
        state = self._state
        values = [None if value is None else bytes(value) for value in request.values]
        with state.lock:
            old = state.entries
            found = {key: old[key][1] if key in old else ABSENT for key in request.expected}
            failed = request.failed(found)
            if not failed:
                # In another dict: a batch of reads, which takes no lock, sees all changes or none.
                is_one = len(request.keys) == 1 and not request.deleted
                entries = old if is_one else dict(old)
                for low, high in request.deleted:
                    for key in self.list(low, high):
                        entries.pop(key, None)
                for key, value in zip(request.keys, values, strict=True):
                    if value is None:
                        entries.pop(key, None)
                    else:
                        entries[key] = value, _pack_generation(next(_counter))
                state.entries = entries
        return failed

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        with self._state.lock:
            keys = self.list(inclusive_min, exclusive_max)
            for key in keys:
                del self._state.entries[key]
        return len(keys)

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        # list(dict) is one step for the interpreter, so no writer can come in between.
        return sorted(
            key
            for key in list(self._state.entries)
            if inclusive_min <= key and (exclusive_max is None or key < exclusive_max)
        )


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """Spec of a memory kvstore.

    Attributes
    ----------
    atomic : bool
        Whether transactions over several keys may be atomic.
    references : mapping of str to JsonValue
        The context resource that holds the values, if it is not the default one.
    """

    atomic: bool = True
    references: Mapping[str, JsonValue] = field(default_factory=dict)

    id = "memory"
    base = None

    def without_references(self) -> MemorySpec:
        return MemorySpec(self.atomic)

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        json = references_json((_RESOURCE,), self.references, include_defaults=include_defaults)
        if include_defaults or not self.atomic:
            json["atomic"] = self.atomic
        return json

    def to_url(self, path: str) -> str:
        return f"memory://{encode_path(path)}"

    def open(self, context: Context, path: str) -> MemoryKvStore:
        resource = context.resource(_RESOURCE, self.references.get(_RESOURCE))
        return MemoryKvStore(resource.value, spec=self, resource=resource)


class _Kind:
    """Parses both forms of a memory spec."""

    id = "memory"
    is_adapter: Literal[False] = False
    schemes = ("memory",)

    def from_json(self, members: Members) -> MemorySpec:
        atomic = members.take_bool("atomic", True)
        return MemorySpec(atomic, take_references(members, (_RESOURCE,)))

    def from_url(self, component: UrlComponent) -> tuple[MemorySpec, str]:
        require_slashes(component)
        return MemorySpec(), component.path

    def check_path(self, path: str) -> None:
        """Accept any path."""


DRIVER = _Kind()
