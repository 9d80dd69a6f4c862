"""The smallest adapter that is worth its name: all values in one key of the base.

The key holds the length of an index in 8 bytes, the index, and the values, one after the other.
The index is JSON: ``{"next": 3, "entries": {"a/b": [offset, nbytes, generation]}}``. A write makes
the key anew, on condition that nobody else did. Spec: ``{"driver": "box", "base": ..., "path":
..., "fanciness": 2, "cache_pool": ...}``, URL ``<base>|box:path``.
"""

import json
import struct
from dataclasses import dataclass

import pytest

from gpustore import registry
from gpustore.errors import ConflictError, NotFoundError
from gpustore.kvstores.adapter import AdapterKvStore, AdapterSpec, Part
from gpustore.kvstores.columns import (
    ABSENT,
    LocateColumns,
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
    check_byte_range,
    check_nbytes,
    condition_holds,
)
from gpustore.url import require_no_slashes

__all__ = ["DRIVER", "BoxKvStore", "BoxSpec", "registered"]

_HEAD = struct.Struct("<Q")
_ATTEMPTS = 1000


class BoxKvStore(AdapterKvStore):
    id = "box"
    atomic_single_key = True

    def __init__(self, base, *, spec, resources):
        super().__init__(base, spec=spec, resources=resources)
        self.locates_files = base.driver.locates_files
        self.opened = 1

    def _load(self):
        """Index, offset of the first value, generation of the base's key."""
        read, key = self.base.driver.read_many, self.base.path
        while True:
            head = read(ReadRequest([key], start=[0], stop=[8]))
            head.raise_first()
            generation = head.generation[0]
            if head.state[0] is not ReadState.VALUE:
                return {"next": 1, "entries": {}}, 0, ABSENT
            (nbytes,) = _HEAD.unpack(head.value[0])
            index = read(ReadRequest([key], start=[8], stop=[8 + nbytes], if_equal=[generation]))
            index.raise_first()
            if index.state[0] is ReadState.VALUE:
                return json.loads(bytes(index.value[0])), 8 + nbytes, generation

    def read_many(self, request):
        result = ReadColumns.blank(len(request.keys))
        rows = list(range(len(request.keys)))
        while rows:
            index, first, generation = self._load()
            parts = []
            for i in rows:
                entry = index["entries"].get(request.keys[i])
                try:
                    part = self._part(i, entry, first, generation, request, result)
                except Exception as error:
                    result.error[i] = error
                    continue
                if part is not None:
                    parts.append(part)
            rows = self.read_parts(parts, request, result)
        return result

    def _part(self, i, entry, first, generation, request, result):
        own = ABSENT if entry is None else struct.pack("<xQ", entry[2])
        result.generation[i] = own
        if request.if_equal is not None and not condition_holds(request.if_equal[i], own):
            return None
        if entry is None:
            result.state[i] = ReadState.MISSING
            return None
        offset, nbytes, _ = entry
        result.total[i] = nbytes
        if request.if_not_equal is not None and request.if_not_equal[i] == own:
            return None
        start = 0 if request.start is None else request.start[i]
        stop = None if request.stop is None else request.stop[i]
        begin, end = check_byte_range(nbytes, start, stop, request.keys[i])
        check_nbytes(end - begin, request.max_nbytes, request.keys[i])
        at = first + offset
        return Part(i, self.base.path, at + begin, at + end, generation)

    def locate_many(self, keys):
        result = LocateColumns.blank(len(keys))
        index, first, generation = self._load()
        parts = []
        for i, key in enumerate(keys):
            entry = index["entries"].get(key)
            result.generation[i] = ABSENT if entry is None else struct.pack("<xQ", entry[2])
            if entry is not None:
                begin = first + entry[0]
                result.nbytes[i] = entry[1]
                parts.append(Part(i, self.base.path, begin, begin + entry[1], generation))
        self.locate_parts(parts, result)
        return result

    def write_many(self, request):
        for _ in range(_ATTEMPTS):
            result = WriteColumns.blank(len(request.keys))
            index, first, generation = self._load()
            values = {}
            if generation != ABSENT:
                whole = self.base.driver.read_many(
                    ReadRequest([self.base.path], if_equal=[generation])
                )
                whole.raise_first()
                if whole.state[0] is not ReadState.VALUE:
                    continue
                data = bytes(whole.value[0])
                for key, (offset, nbytes, own) in index["entries"].items():
                    at = first + offset
                    values[key] = data[at : at + nbytes], own
            count = index["next"]
            for i, (key, value) in enumerate(zip(request.keys, request.values, strict=True)):
                own = struct.pack("<xQ", values[key][1]) if key in values else ABSENT
                if request.if_equal is not None and not condition_holds(request.if_equal[i], own):
                    continue
                result.generation[i] = ABSENT
                values.pop(key, None)
                if value is not None:
                    values[key] = bytes(value), count
                    result.generation[i] = struct.pack("<xQ", count)
                    count += 1
            columns = self.base.driver.write_many(
                WriteRequest([self.base.path], [_made(values, count)], [generation])
            )
            columns.raise_first()
            if columns.generation[0]:
                return result
        raise ConflictError("another writer was always faster")

    def delete_range(self, inclusive_min="", exclusive_max=None):
        keys = self.list(inclusive_min, exclusive_max)
        self.write_many(WriteRequest(keys, [None] * len(keys))).raise_first()
        return len(keys)

    def list(self, inclusive_min="", exclusive_max=None):
        entries = self._load()[0]["entries"]
        return sorted(
            key
            for key in entries
            if inclusive_min <= key and (exclusive_max is None or key < exclusive_max)
        )


def _made(values, count):
    entries, offset = {}, 0
    for key, (value, own) in values.items():
        entries[key] = [offset, len(value), own]
        offset += len(value)
    index = json.dumps({"next": count, "entries": entries}).encode()
    return b"".join([_HEAD.pack(len(index)), index, *(value for value, _ in values.values())])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec(AdapterSpec):
    fanciness: int = 1

    id = "box"
    resource_ids = ("cache_pool",)

    def own_json(self, *, include_defaults):
        return {"fanciness": self.fanciness} if include_defaults or self.fanciness != 1 else {}

    def open_on(self, base, resources):
        if base.path.endswith("/"):
            raise NotFoundError(f"{base.driver.describe(base.path)} is not a file", key=base.path)
        return BoxKvStore(base, spec=self, resources=resources)


class _Kind:
    id = "box"
    is_adapter = True
    schemes = ("box",)

    def from_json(self, members):
        return BoxSpec(**BoxSpec.take(members), fanciness=members.take_int("fanciness", default=1))

    def from_url(self, component, base):
        require_no_slashes(component)
        return BoxSpec(base=base), component.path

    def check_path(self, path):
        pass


DRIVER = _Kind()


@pytest.fixture
def registered(monkeypatch):
    """For the time of a test the product knows this adapter."""
    find, ids = registry.find, registry.ids

    def find_with_box(folder, name):
        return DRIVER if (folder, name) == ("kvstores", "box") else find(folder, name)

    def ids_with_box(folder):
        return (*ids(folder), "box") if folder == "kvstores" else ids(folder)

    monkeypatch.setattr(registry, "find", find_with_box)
    monkeypatch.setattr(registry, "ids", ids_with_box)
