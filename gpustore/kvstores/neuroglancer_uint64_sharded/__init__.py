"""The ``neuroglancer_uint64_sharded`` kvstore: values by number in the shards of Neuroglancer.

JSON ``{"driver": "neuroglancer_uint64_sharded", "base": "file:///data/mesh/", "metadata": ...}``,
where the metadata are the member ``sharding`` of a volume, its meshes or skeletons. There is no
URL.

A key is a number: 8 bytes, big endian. A key of 16 bytes has a number of bytes behind that; it
reads so many bytes before the value, as they are stored, where Neuroglancer keeps the fragments of
a mesh. A write makes a whole shard anew; a transaction makes each shard anew once.

Source: https://github.com/google/neuroglancer, ``src/datasource/precomputed/sharded.md``;
TensorStore ``kvstore/neuroglancer_uint64_sharded``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from gpustore.errors import CorruptChunkError, GpustoreError, InvalidKeyError, UnsupportedError
from gpustore.kvstores.adapter import AdapterKvStore, AdapterSpec
from gpustore.kvstores.base import Base, invalid_key, prefix_end
from gpustore.kvstores.columns import (
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
    part_of,
)
from gpustore.kvstores.neuroglancer_uint64_sharded.shards import Uint64Shards
from gpustore.metadata.precomputed_scale import Sharding

if TYPE_CHECKING:
    import builtins
    from collections.abc import Mapping

    from gpustore.kvstores.spec import KvStoreSpec
    from gpustore.runtime.buffer import Buffer
    from gpustore.runtime.context import Context
    from gpustore.runtime.limits import Limits
    from gpustore.strict_json.parsing import JsonValue, Members

_NUMBER_NBYTES: Final = 8


class Uint64ShardedKvStore(AdapterKvStore):
    """Opened kvstore of the values in shards.

    Parameters
    ----------
    base : Base
        Kvstore of the shards, whose path ends with a slash or is empty.
    spec : Uint64ShardedSpec
    resources : mapping of str to Context.Resource
    """

    id = "neuroglancer_uint64_sharded"
    write_nbytes = Uint64Shards.write_nbytes

    def __init__(
        self, base: Base, *, spec: Uint64ShardedSpec, resources: Mapping[str, Context.Resource]
    ) -> None:
        super().__init__(base, spec=spec, resources=resources)
        self.can_write = base.driver.can_write
        self.can_list = base.driver.can_list
        self.batch_nbytes = base.driver.batch_nbytes
        limits: Limits = resources["limits"].value
        self._max_nbytes = limits.chunk_nbytes
        self._is_gzip = spec.sharding.data_encoding == "gzip"
        self._sharding = spec.sharding
        self._shards = Uint64Shards(base.driver, base.path, spec.sharding)

    def check_key(self, key: str) -> None:
        """Raise InvalidKeyError unless a key is a number, or one with a number of bytes."""
        self._name(key)

    def unit(self, key: str) -> str:
        """Return the key of the shard."""
        return self._shards.place(self._name(key)).shard

    def describe(self, key: str) -> str:
        return self._shards.describe(self._name(key))

    def _name(self, key: str, *, is_written: bool = False) -> str:
        """Return the key of a value in the shards."""
        value = key.encode("utf-8", "surrogateescape")
        if len(value) not in (_NUMBER_NBYTES, 2 * _NUMBER_NBYTES):
            raise invalid_key(key, "expected a number of 8 bytes, big endian")
        number = int.from_bytes(value[:_NUMBER_NBYTES], "big")
        name = f"{self.base.path}{number}"
        if len(value) == _NUMBER_NBYTES:
            return name
        if is_written:
            raise invalid_key(key, "bytes before a value are read only")
        return f"{name}-{int.from_bytes(value[_NUMBER_NBYTES:], 'big')}"

    def read_many(self, request: ReadRequest) -> ReadColumns:
        result = ReadColumns.blank(len(request.keys))
        plain: builtins.list[tuple[int, str]] = []
        encoded: builtins.list[tuple[int, str]] = []
        for row, key in enumerate(request.keys):
            try:
                name = self._name(key)
            except InvalidKeyError as error:
                result.error[row] = error
            else:
                is_encoded = self._is_gzip and "-" not in name[len(self.base.path) :]
                (encoded if is_encoded else plain).append((row, name))
        for rows, whole in ((plain, False), (encoded, True)):
            if rows:
                self._read(request, rows, result, whole=whole)
        for row, _ in encoded:
            value = result.value[row]
            if value is None:
                continue
            result.state[row], result.value[row] = ReadState.UNSPECIFIED, None
            try:
                decoded = self._inflated(value, request.keys[row])
                result.value[row] = part_of(decoded, row, request)
            except GpustoreError as error:
                result.error[row] = error
            else:
                result.state[row], result.total[row] = ReadState.VALUE, len(decoded)
        return result

    def _read(
        self,
        request: ReadRequest,
        rows: Sequence[tuple[int, str]],
        result: ReadColumns,
        *,
        whole: bool,
    ) -> None:
        """Read values as they are stored; the `whole` ones if they are to be decoded."""

        def some(column: Sequence[Any] | None) -> Any:
            return None if column is None else [column[row] for row, _ in rows]

        asked = ReadRequest(
            [name for _, name in rows],
            if_equal=some(request.if_equal),
            if_not_equal=some(request.if_not_equal),
            staleness_bound=request.staleness_bound,
        )
        if not whole:
            asked.start, asked.stop = some(request.start), some(request.stop)
            asked.max_nbytes, asked.into = request.max_nbytes, request.into
        found = self._shards.read_many(asked)
        for i, (row, _) in enumerate(rows):
            result.state[row], result.generation[row] = found.state[i], found.generation[i]
            result.value[row], result.total[row] = found.value[i], found.total[i]
            if i in found.error:
                result.error[row] = found.error[i]

    def _inflated(self, value: Buffer, key: str) -> bytes:
        stream = zlib.decompressobj(31)
        try:
            decoded = stream.decompress(value, self._max_nbytes)
        except zlib.error as error:
            raise self._damaged(key, str(error)) from error
        if not stream.eof or stream.unused_data:
            raise self._damaged(key, f"no gzip stream of at most {self._max_nbytes} bytes")
        return decoded

    def _damaged(self, key: str, reason: str) -> CorruptChunkError:
        return CorruptChunkError(f"Error reading {self.describe(key)}: {reason}", key=key)

    def write_many(self, request: WriteRequest) -> WriteColumns:
        result = WriteColumns.blank(len(request.keys))
        rows, names, values = [], [], []
        for row, (key, value) in enumerate(zip(request.keys, request.values, strict=True)):
            try:
                names.append(self._name(key, is_written=True))
            except InvalidKeyError as error:
                result.error[row] = error
                continue
            rows.append(row)
            values.append(self._deflated(value) if value is not None and self._is_gzip else value)
        conditions = request.if_equal and [request.if_equal[row] for row in rows]
        found = self._shards.write_many(WriteRequest(names, values, conditions))
        for i, row in enumerate(rows):
            result.generation[row] = found.generation[i]
            if i in found.error:
                result.error[row] = found.error[i]
        return result

    @staticmethod
    def _deflated(value: Buffer) -> bytes:
        stream = zlib.compressobj(9, zlib.DEFLATED, 31)
        return stream.compress(value) + stream.flush()

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        """Return the keys of all values, for which every shard is read as a whole."""
        prefix = self.base.path
        digits = max(1, -(-self._sharding.shard_bits // 4))
        name = re.compile(rf"{re.escape(prefix)}[0-9a-f]{{{digits}}}\.shard")
        shards = [
            key for key in self.base.driver.list(prefix, prefix_end(prefix)) if name.fullmatch(key)
        ]
        found = []
        for shard in shards:
            columns = self.read_base(ReadRequest([shard]))
            columns.raise_first()
            value = columns.value[0]
            if value is not None:
                chunks = self._shards.chunks(bytes(value), shard)
                found += [number for minishard in chunks.values() for number in minishard]
        keys = [
            number.to_bytes(_NUMBER_NBYTES, "big").decode("utf-8", "surrogateescape")
            for number in found
        ]
        return sorted(
            key
            for key in keys
            if inclusive_min <= key and (exclusive_max is None or key < exclusive_max)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Uint64ShardedSpec(AdapterSpec):
    """Spec of a kvstore of the values in shards.

    Attributes
    ----------
    sharding : Sharding
    """

    sharding: Sharding

    id = "neuroglancer_uint64_sharded"
    resource_ids = ("cache_pool", "data_copy_concurrency", "limits")

    def own_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        del include_defaults
        return {"metadata": self.sharding.to_json()}

    def to_url(self, path: str) -> str:
        """Raise UnsupportedError: there is no URL."""
        raise UnsupportedError("URL representation not supported")

    def open_on(
        self, base: Base, resources: Mapping[str, Context.Resource]
    ) -> Uint64ShardedKvStore:
        return Uint64ShardedKvStore(base, spec=self, resources=resources)


class _Kind:
    """Parses the JSON; there is no URL."""

    id = "neuroglancer_uint64_sharded"
    is_adapter: Literal[True] = True
    schemes = ()

    def from_json(self, members: Members) -> Uint64ShardedSpec:
        sharding = members.take_with("metadata", Sharding.from_json)
        if sharding is None:
            raise members.error("Expected object, but received: null", "metadata")
        common: dict[str, Any] = Uint64ShardedSpec.take(members)
        base: KvStoreSpec = common["base"]
        if base.path and not base.path.endswith("/"):
            common["base"] = base + "/"
        return Uint64ShardedSpec(sharding=sharding, **common)

    def check_path(self, path: str) -> None:
        """Accept any path: keys are checked."""


DRIVER = _Kind()
