"""iohub: :class:`Implementation`, its arrays read and written with gpustore.

iohub finds it as the entry point ``gpustore`` of ``iohub.zarr_implementations`` and takes it with
``open_ome_zarr(path, implementation="gpustore")``. Groups are those of zarr-python, which iohub
reads attributes of; arrays are stores in host memory, because iohub passes arrays of NumPy on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpustore
from gpustore.interop import extra

with extra("zarr"):
    import zarr

_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_RESOURCES = ("data_copy_concurrency", "file_io_concurrency")
"""Members of iohub's configuration that are resources of a context."""


@dataclass(slots=True)
class Array:
    """An array as iohub holds it: the same object after a resize.

    Attributes
    ----------
    store : TensorStore
        The array with its present shape.
    """

    store: gpustore.TensorStore


class Implementation:
    """Zarr implementation of iohub: groups of zarr-python, arrays of gpustore.

    Parameters
    ----------
    config : TensorStoreConfig or ZarrConfig, optional
        Configuration of iohub. Of TensorStore's the limits of concurrency, the bytes of its cache
        and its contexts become a context; the compressor is that of new arrays of Zarr v2.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config
        members: dict[str, Any] = dict(getattr(config, "context", None) or {})
        for name in _RESOURCES:
            limit = getattr(config, name, None)
            if limit is not None:
                members.setdefault(name, {"limit": limit})
        cached = getattr(config, "cache_pool_bytes", None)
        if cached is not None:
            members.setdefault("cache_pool", {"total_bytes_limit": cached})
        if not getattr(config, "file_io_sync", True):
            members.setdefault("file_io_sync", False)
        members.update(getattr(config, "extra_context", None) or {})
        self._context = gpustore.Context(members)

    # ---- groups

    def open_group(self, path: Any, mode: Any, zarr_format: Any = None) -> zarr.Group:
        """Open a group of zarr-python."""
        return zarr.open_group(path, mode=mode, zarr_format=zarr_format)

    def group_keys(self, group: zarr.Group) -> list[str]:
        """Return the names of the groups in a group, sorted."""
        return sorted(group.group_keys())

    def array_keys(self, group: zarr.Group) -> list[str]:
        """Return the names of the arrays in a group, sorted."""
        return sorted(group.array_keys())

    def close(self, group: zarr.Group) -> None:
        """Close the store of a group."""
        group.store.close()

    def get_zarr_format(self, group: zarr.Group) -> int:
        """Return the version of the format of a group, 2 or 3."""
        return group.metadata.zarr_format

    # ---- arrays

    def open_array(self, group: zarr.Group, name: str) -> Array:
        """Open an array of a group; NotFoundError, a KeyError, if there is none."""
        return self._opened(group, name, write=not group.store.read_only)

    def create_array(
        self, group: zarr.Group, name: str, spec: Any, *, overwrite: bool = False
    ) -> Array:
        """Create an array of Zarr v3 from iohub's description of it."""
        members = ("data_type", "chunk_grid", "chunk_key_encoding", "codecs", "fill_value")
        metadata = {member: getattr(spec, member) for member in members}
        metadata["shape"] = list(spec.shape)
        if spec.data_type.startswith("complex"):
            metadata["fill_value"] = [float(spec.fill_value), 0.0]
        if spec.dimension_names:
            metadata["dimension_names"] = list(spec.dimension_names)
        if spec.attributes:
            metadata["attributes"] = dict(spec.attributes)
        return self._opened(group, name, metadata=metadata, create=True, delete_existing=overwrite)

    def create_array_v2(
        self,
        group: zarr.Group,
        name: str,
        *,
        shape: Sequence[int],
        dtype: Any,
        chunks: Sequence[int],
        fill_value: int = 0,
        overwrite: bool = False,
    ) -> Array:
        """Create an array of Zarr v2 with Blosc."""
        compressor = getattr(self.config, "compressor", None)
        metadata = {
            "shape": list(shape),
            "chunks": list(chunks),
            "dtype": np.dtype(dtype).str,
            "compressor": {
                "id": "blosc",
                "cname": getattr(compressor, "cname", "zstd"),
                "clevel": getattr(compressor, "clevel", 1),
                "shuffle": _SHUFFLES.get(getattr(compressor, "shuffle", ""), 2),
            },
            "fill_value": bool(fill_value) if np.dtype(dtype).kind == "b" else fill_value,
            "order": "C",
            "filters": None,
            "dimension_separator": "/",
        }
        return self._opened(group, name, metadata=metadata, create=True, delete_existing=overwrite)

    def _opened(
        self,
        group: zarr.Group,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        **mode: Any,
    ) -> Array:
        spec: dict[str, Any] = {"driver": f"zarr{self.get_zarr_format(group)}"}
        if metadata is not None:
            spec["metadata"] = metadata
        root = getattr(group.store, "root", None)
        place = "/".join(part for part in (group.path.strip("/"), name) if part)
        if isinstance(group.store, zarr.storage.LocalStore):
            spec["kvstore"] = {"driver": "file", "path": f"{root}/{place}/"}
        else:
            mode["kvstore"] = gpustore.KvStore.from_zarr_store(group.store) / f"{place}/"
        mode.setdefault("write", True)
        opened = gpustore.open(spec, read=True, device="cpu", context=self._context, **mode)
        return Array(opened.result())

    # ---- elements

    def read(self, handle: Array, selection: Any) -> Any:
        """Read a part, with NumPy's indices."""
        return np.asarray(handle.store.numpy[selection])

    def write(self, handle: Array, selection: Any, data: Any) -> None:
        """Write a part, with NumPy's indices, and wait until it is stored."""
        handle.store.numpy[selection] = np.asarray(data)

    def read_oindex(self, handle: Array, selection: Any) -> Any:
        """Read a part, with an index along each dimension."""
        return np.asarray(handle.store.numpy.oindex[selection])

    def write_oindex(self, handle: Array, selection: Any, data: Any) -> None:
        """Write a part, with an index along each dimension, and wait until it is stored."""
        elements: Any = handle.store.numpy.oindex
        elements[selection] = np.asarray(data)

    def resize(self, handle: Array, new_shape: Sequence[int]) -> None:
        """Change the shape."""
        handle.store = handle.store.resize(exclusive_max=list(new_shape)).result()

    # ---- metadata

    def get_shape(self, handle: Array) -> tuple[int, ...]:
        """Return the number of elements along each dimension."""
        return handle.store.shape

    def get_dtype(self, handle: Array) -> np.dtype[Any]:
        """Return the data type as NumPy has it."""
        return handle.store.dtype.numpy_dtype

    def get_chunks(self, handle: Array) -> tuple[int, ...]:
        """Return the shape of a chunk, with shards of an inner one."""
        return handle.store.chunks or handle.store.shape

    def get_shards(self, handle: Array) -> tuple[int, ...] | None:
        """Return the shape of a shard, None without shards."""
        return handle.store.shards

    # ---- whole arrays

    def to_dask(self, handle: Array) -> Any:
        """Return a lazy array of dask, one block a chunk."""
        return gpustore.to_dask(handle.store)

    def write_from_dask(self, handle: Array, dask_array: Any) -> None:
        """Write an array of dask, shard by shard or chunk by chunk."""
        for region in self.iter_work_regions(handle):
            handle.store[region].write(np.asarray(dask_array[region])).result()

    def downsample(
        self, source: Array, target: Array, factors: Sequence[int], method: str = "mean"
    ) -> None:
        """Write a smaller array of the source, region by region."""
        for region in self.iter_work_regions(target):
            self.downsample_region(source, target, region, factors, method)

    def downsample_region(
        self,
        source: Array,
        target: Array,
        target_region: tuple[slice, ...],
        factors: Sequence[int],
        method: str = "mean",
    ) -> None:
        """Write a region of a smaller array, in its own coordinates; see `gpustore.downsample`."""
        smaller = gpustore.downsample(source.store, list(factors), method)
        elements = smaller[target_region].read().result()
        target.store[target_region].write(elements).result()

    def iter_work_regions(self, target: Array) -> list[tuple[slice, ...]]:
        """Return regions of whole shards or chunks that cover the array."""
        sides = self.get_shards(target) or self.get_chunks(target)
        along = [
            [slice(begin, min(begin + side, n)) for begin in range(0, n, max(1, side))]
            for n, side in zip(target.store.shape, sides, strict=True)
        ]
        return list(itertools.product(*along))
