"""The libraries that are compared, behind one face.

Each is limited to the same number of threads in its own terms; the processor affinity that
conftest.py sets holds them to it. None calls fsync unless a row says so: zarr-python and zarrs
cannot, so TensorStore and gpustore are told not to.
"""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.formats import BLOSC, LEVEL, ArrayFormat


class Peer(abc.ABC):
    """One library, limited to a number of threads."""

    name: str

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @abc.abstractmethod
    def create(self, path: Path, array_format: ArrayFormat, shape: tuple[int, ...]) -> Any:
        """Create an empty array and return the handle."""

    @abc.abstractmethod
    def create_anew(
        self, path: Path, array_format: ArrayFormat, shape: tuple[int, ...], *, sync: bool
    ) -> Any:
        """Create an empty array in place of what is there; `sync` waits for the disk."""

    @abc.abstractmethod
    def open(self, path: Path, array_format: ArrayFormat) -> Any:
        """Open an array and return the handle."""

    def open_many(self, paths: Sequence[Path], array_format: ArrayFormat) -> list[Any]:
        """Open arrays and return their handles."""
        return [self.open(path, array_format) for path in paths]

    @abc.abstractmethod
    def read(self, handle: Any, index: Any) -> np.ndarray:
        """Read a part of an array."""

    @abc.abstractmethod
    def write(self, handle: Any, values: np.ndarray) -> None:
        """Write a whole array."""

    def close(self) -> None:
        """Undo what the peer changed in this process; most change nothing."""
        return


class TensorStorePeer(Peer):
    """TensorStore, and what has its interface."""

    name = "tensorstore"
    resources: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.module = self._import()
        resources = {
            "data_copy_concurrency": {"limit": threads},
            "file_io_concurrency": {"limit": threads},
            **self.resources,
        }
        self.context = self.module.Context({**resources, "file_io_sync": False})
        self.synced = self.module.Context({**resources, "file_io_sync": True})

    def _import(self) -> Any:
        import tensorstore

        return tensorstore

    def create(self, path: Path, array_format: ArrayFormat, shape: tuple[int, ...]) -> Any:
        spec = array_format.tensorstore_spec(str(path), shape)
        return self.module.open(spec, create=True, context=self.context).result()

    def create_anew(
        self, path: Path, array_format: ArrayFormat, shape: tuple[int, ...], *, sync: bool
    ) -> Any:
        spec = array_format.tensorstore_spec(str(path), shape)
        context = self.synced if sync else self.context
        return self.module.open(spec, create=True, delete_existing=True, context=context).result()

    def open(self, path: Path, array_format: ArrayFormat) -> Any:
        return self._opening(path, array_format).result()

    def open_many(self, paths: Sequence[Path], array_format: ArrayFormat) -> list[Any]:
        futures = [self._opening(path, array_format) for path in paths]
        return [future.result() for future in futures]

    def _opening(self, path: Path, array_format: ArrayFormat) -> Any:
        driver = "zarr" if array_format.version == 2 else "zarr3"
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}
        return self.module.open(spec, context=self.context)

    def read(self, handle: Any, index: Any) -> np.ndarray:
        return handle[index].read().result()

    def write(self, handle: Any, values: np.ndarray) -> None:
        handle.write(values).result()

    def kvstore(self, spec: dict[str, Any]) -> Any:
        """An opened kvstore."""
        return self.module.KvStore.open(spec, context=self.context).result()


class GpustorePeer(TensorStorePeer):
    """gpustore on the host."""

    name = "gpustore"
    resources = MappingProxyType({"device": "cpu"})

    def _import(self) -> Any:
        import gpustore

        return gpustore

    def members(self, path: Path) -> dict[str, Any]:
        """Shape, type and chunks of the arrays in a group."""
        arrays = self.module.open_group(path, context=self.context).result().arrays().result()
        return {
            name: (node.shape, node.dtype.name, node.chunk_shape) for name, node in arrays.items()
        }


class ZarrPeer(Peer):
    """zarr-python with its own codec pipeline."""

    name = "zarr"
    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        import numcodecs.blosc
        import zarr

        self.module = zarr
        self.blosc = numcodecs.blosc
        # Blosc's own threads would come on top of zarr's.
        self.blosc_threads = self.blosc.set_nthreads(1)
        settings = {
            "codec_pipeline.path": self.pipeline,
            "threading.max_workers": threads,
            "async.concurrency": threads,
        }
        self.settings = zarr.config.set(settings)

    def close(self) -> None:
        self.blosc.set_nthreads(self.blosc_threads)
        self.settings.__exit__(None, None, None)

    def create(self, path: Path, array_format: ArrayFormat, shape: tuple[int, ...]) -> Any:
        return self._create(path, array_format, shape, overwrite=False)

    def create_anew(
        self, path: Path, array_format: ArrayFormat, shape: tuple[int, ...], *, sync: bool
    ) -> Any:
        assert not sync
        return self._create(path, array_format, shape, overwrite=True)

    def _create(
        self, path: Path, array_format: ArrayFormat, shape: tuple[int, ...], *, overwrite: bool
    ) -> Any:
        return self.module.create_array(
            store=str(path),
            overwrite=overwrite,
            shape=shape,
            dtype="uint16",
            chunks=array_format.chunk,
            compressors=self._compressors(array_format.codec),
            filters=None,
            zarr_format=array_format.version,
            fill_value=0,
        )

    def _compressors(self, codec: str) -> Any:
        if codec == "blosc":
            return self.blosc.Blosc(**BLOSC)
        if codec == "zstd":
            return [self.module.codecs.ZstdCodec(level=LEVEL)]
        if codec == "gzip":
            return [self.module.codecs.GzipCodec(level=LEVEL)]
        return None

    def open(self, path: Path, array_format: ArrayFormat) -> Any:
        return self.module.open_array(str(path), mode="r+", zarr_format=array_format.version)

    def read(self, handle: Any, index: Any) -> np.ndarray:
        return np.asarray(handle[index])

    def write(self, handle: Any, values: np.ndarray) -> None:
        handle[...] = values

    def members(self, path: Path) -> dict[str, Any]:
        """Shape, type and chunks of the arrays in a group."""
        arrays = self.module.open_group(str(path), mode="r").arrays()
        return {name: (array.shape, array.dtype.name, array.chunks) for name, array in arrays}


class ZarrsPeer(ZarrPeer):
    """zarr-python with the codec pipeline of zarrs."""

    name = "zarrs"
    pipeline = "zarrs.ZarrsCodecPipeline"

    def __init__(self, threads: int) -> None:
        import zarrs  # noqa: F401  # registers its settings with zarr

        super().__init__(threads)


PEERS = {peer.name: peer for peer in (GpustorePeer, TensorStorePeer, ZarrPeer, ZarrsPeer)}
