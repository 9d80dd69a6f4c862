"""Base class of the kvstores s3 and gcs, which differ in how a bucket is opened and named."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Generic, TypeVar

from gpustore.kvstores.base import DriverSpec, KvStoreDriver
from gpustore.kvstores.buckets.bucket import Bucket, check_object_key
from gpustore.kvstores.columns import ReadColumns, ReadRequest, WriteColumns, WriteRequest

if TYPE_CHECKING:
    import builtins
    from collections.abc import Mapping

    from gpustore.errors import GpustoreError
    from gpustore.runtime.context import Context


S = TypeVar("S", bound=DriverSpec)


class BucketKvStore(KvStoreDriver, Generic[S]):
    """An opened kvstore of a bucket.

    Parameters
    ----------
    spec : DriverSpec
    resources : mapping
        Resolved context resources, by identifier.
    """

    batch_nbytes = 32 << 20

    def __init__(self, spec: S, resources: Mapping[str, Context.Resource]) -> None:
        self._spec = spec
        self._resources = resources
        self.executor = resources["data_copy_concurrency"].value

    @property
    @abc.abstractmethod
    def _bucket(self) -> Bucket:
        """Bucket that executes the reads and writes."""

    @property
    def spec(self) -> S:
        return self._spec

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        return self._resources

    def check_key(self, key: str) -> None:
        check_object_key(key)

    def read_many(self, request: ReadRequest) -> ReadColumns:
        return self._bucket.read_many(request)

    def write_many(self, request: WriteRequest) -> WriteColumns:
        return self._bucket.write_many(request)

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        return [*self._bucket.list_nbytes(inclusive_min, exclusive_max)]

    def list_nbytes(
        self, inclusive_min: str = "", exclusive_max: str | None = None
    ) -> tuple[dict[str, int], dict[str, GpustoreError]]:
        return self._bucket.list_nbytes(inclusive_min, exclusive_max), {}

    def list_names(self, prefix: str) -> builtins.list[str]:
        return self._bucket.list_names(prefix)

    def list_directories(self, prefix: str) -> builtins.list[str]:
        return sorted(name[:-1] for name in self.list_names(prefix) if name.endswith("/"))

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        return self._bucket.delete_range(inclusive_min, exclusive_max)
