"""Codec pipeline of zarr-python: :class:`CodecPipeline`.

1. The batch of chunks that zarr-python asks for becomes one region (``selection.py``).
2. The array is opened by its metadata, without I/O, once for each shape that zarr-python gives it:
   local files as they are, other stores of zarr-python as kvstores (``store.py``).
3. The region is read into the memory of zarr-python, or written from it, by one call.

zarr-python's own pipeline does what is left: other data types, codecs and stores, buffers of other
classes, fields of records, and everything that failed here: it has the last word on errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self

import numpy as np
from zarr.abc.codec import Codec
from zarr.abc.codec import CodecPipeline as _Base
from zarr.abc.store import Store
from zarr.core.array import create_codec_pipeline
from zarr.core.buffer import cpu, gpu
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, StorePath, ZipStore

import gpustore
from gpustore.interop.zarr.selection import ChunkKeys, Item, Region, region_of

_LOG: Final = logging.getLogger(__name__)

_KINDS: Final = "biufc"
"""Kinds of data types that are read here: those whose elements are numbers."""

_STORES: Final = (MemoryStore, ZipStore, FsspecStore, ObjectStore)
"""Classes of stores that are kvstores here, besides local ones; subclasses may do otherwise."""

_SMALL_NBYTES: Final = 256 << 10
"""Most bytes of decoded chunks that are read in the event loop itself: another thread would take
longer to wake up (0.2 ms where two cores are busy)."""

_MOST_OPEN: Final = 8
"""Most arrays that a pipeline keeps open: of one array, with other shapes, options and devices."""


_PRESENT: Final = ({"status": "present"},)


class _LeftError(Exception):
    """zarr-python's own pipeline has to do the work."""


class CodecPipeline(_Base):
    """Codec pipeline of zarr-python that reads and writes with gpustore.

    Parameters
    ----------
    metadata : zarr.core.metadata.ArrayMetadata
        Metadata of the array.
    store : zarr.abc.store.Store
        Store of the array.

    Attributes
    ----------
    reason : str
        Reason why zarr-python's own pipeline does the work for this array; empty if it does not.
    """

    def __init__(self, metadata: Any, store: Store) -> None:
        self._metadata = metadata
        self._store = store
        self._python: _Base = create_codec_pipeline(metadata)
        self._opened: dict[Any, gpustore.TensorStore] = {}
        self._prefix: str | None = None
        self._dtype = metadata.dtype.to_native_dtype()
        self.reason = _unknown(store, self._dtype, self._python)
        if not self.reason:
            try:
                self._document = _document(metadata)
                self._keys = ChunkKeys(self._document)
                self._shape = tuple(self._document["shape"])
                self._small = _small_batch(store, self._document, self._keys, self._dtype)
            except (KeyError, TypeError, ValueError) as error:
                self.reason = f"its chunks are divided or named in a way not known here: {error}"

    def __getstate__(self) -> tuple[Any, Store]:
        return self._metadata, self._store

    def __setstate__(self, state: tuple[Any, Store]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CodecPipeline) and self.__getstate__() == other.__getstate__()

    __hash__ = None  # type: ignore[assignment]

    # ---- what zarr-python makes pipelines with

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Store) -> Self:
        """Return the pipeline of an array."""
        return cls(array_metadata, store)

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Any:
        """Return zarr-python's own pipeline: of codecs without an array, as inside of shards."""
        return BatchedCodecPipeline.from_codecs(codecs)

    def evolve_from_array_spec(self, array_spec: Any) -> Self:
        """Return the pipeline itself, whose metadata are complete."""
        return self

    @property
    def supports_partial_decode(self) -> bool:
        """Whether parts of chunks can be decoded by zarr-python's own pipeline."""
        return self._python.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        """Whether parts of chunks can be encoded by zarr-python's own pipeline."""
        return self._python.supports_partial_encode

    def __iter__(self) -> Iterator[Codec]:
        return iter(self._python)  # type: ignore[call-overload]

    def validate(self, *, shape: Any, dtype: Any, chunk_grid: Any) -> None:
        """Let the codecs check that they suit an array."""
        self._python.validate(shape=shape, dtype=dtype, chunk_grid=chunk_grid)

    def compute_encoded_size(self, byte_length: int, array_spec: Any) -> int:
        """Return the length of an encoded chunk in bytes."""
        return self._python.compute_encoded_size(byte_length, array_spec)

    async def decode(self, chunk_bytes_and_specs: Iterable[Any]) -> Iterable[Any]:
        """Decode chunks with zarr-python's codecs."""
        return await self._python.decode(chunk_bytes_and_specs)

    async def encode(self, chunk_arrays_and_specs: Iterable[Any]) -> Iterable[Any]:
        """Encode chunks with zarr-python's codecs."""
        return await self._python.encode(chunk_arrays_and_specs)

    # ---- reading and writing

    async def read(  # type: ignore[override]  # newer releases have a result, older ones none
        self, batch_info: Iterable[Item], out: Any, drop_axes: tuple[int, ...] = ()
    ) -> tuple[dict[str, str], ...]:
        """Read chunks into `out`, a buffer of zarr-python in host memory or on a GPU.

        Returns
        -------
        tuple of dict
            One for each chunk, for releases of zarr-python that look at them. All are "present":
            arrays that must not have missing chunks are left to zarr-python.
        """
        batch = list(batch_info)
        try:
            array = out.as_ndarray_like()
            view = await self._view(batch, out, drop_axes, writes=False)
            if array.dtype != view.dtype.array_dtype:  # Of another byte order.
                array[...] = await view.read()
            elif len(batch) <= self._small and type(out) is cpu.NDBuffer:
                view.read(out=array).result()
            else:
                await view.read(out=array)
        except (_LeftError, gpustore.GpustoreError, TypeError) as error:
            self._leave(error, out)
            python: Any = self._python
            return await python.read(batch, out, drop_axes)
        return _PRESENT * len(batch)

    async def write(
        self, batch_info: Iterable[Item], value: Any, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Write chunks, or parts of them, from a buffer of zarr-python."""
        batch = list(batch_info)
        try:
            array = value.as_ndarray_like()
            view = await self._view(batch, value, drop_axes, writes=True)
            await view.write(array)
        except (_LeftError, gpustore.GpustoreError, TypeError) as error:
            self._leave(error, value)
            await self._python.write(batch, value, drop_axes)

    def _leave(self, error: Exception, buffer: Any) -> None:
        """Note why zarr-python's own pipeline does the work, which for a GPU is on the host."""
        _LOG.debug("left to zarr-python's own pipeline: %s", error)
        if isinstance(buffer, gpu.NDBuffer):
            warnings.warn(
                f"zarr-python decodes these chunks on the host, not on the GPU: {error}",
                gpustore.DeviceWarning,
                stacklevel=3,
            )

    async def _view(
        self,
        batch: list[Item],
        buffer: Any,
        drop_axes: tuple[int, ...],
        *,
        writes: bool,
    ) -> gpustore.TensorStore:
        """Return the part of the opened array that a batch names.

        Raises
        ------
        _LeftError
            If zarr-python's own pipeline has to do the work.
        """
        if self.reason:
            raise _LeftError(self.reason)
        if not batch:
            raise _LeftError("there are no chunks")
        device = _device_of(buffer)
        getter, spec, *_ = batch[0]
        if type(getter) is not StorePath or getter.store is not self._store:
            raise _LeftError("chunks lie elsewhere than the array")
        if writes and self._store.read_only:
            raise _LeftError("the store is read-only")
        if spec.shape != self._keys.chunk_shape or spec.dtype.to_native_dtype() != self._dtype:
            raise _LeftError("chunks have another shape or data type than those of the array")
        if not getattr(spec.config, "read_missing_chunks", True):
            raise _LeftError("missing chunks are errors")
        if self._prefix is None:
            self._prefix = self._keys.prefix(getter.path)
        region = self._region(batch, drop_axes)
        if buffer.shape not in ((region.shape, ()) if writes else (region.shape,)):
            raise _LeftError("elements have another shape than the selection")
        shape = self._shape_for(batch, region, writes=writes)
        opened = await self._open(shape, device, empty=writes and spec.config.write_empty_chunks)
        if region.kind == "basic":
            return opened[region.index]
        return (opened.oindex if region.kind == "outer" else opened.vindex)[region.index]

    def _region(self, batch: list[Item], drop_axes: tuple[int, ...]) -> Region:
        keys, prefix = self._keys, self._prefix
        assert prefix is not None
        found = None
        if not keys.chunk_shape:
            found = Region((), "basic", (), ())
        else:
            try:
                found = region_of(
                    batch, lambda item: keys.cell(item[0].path, prefix), keys.chunk_shape, drop_axes
                )
            except (TypeError, ValueError, AttributeError) as error:
                raise _LeftError(f"the selection is not known here: {error}") from error
        if found is None:
            raise _LeftError("the selection is not known here")
        return found

    def _shape_for(self, batch: list[Item], region: Region, *, writes: bool) -> tuple[int, ...]:
        """Return the shape of the array, which zarr-python may have resized since.

        The region tells: it lies inside, and a chunk at the edge is complete where the array ends.
        """
        shape = tuple(map(max, self._shape, region.stop))
        chunks = self._keys.chunk_shape
        cut = [
            d
            for d, (stop, size, chunk) in enumerate(zip(region.stop, shape, chunks, strict=True))
            if stop % chunk and stop != size
        ]
        if writes and cut:
            last = [(region.stop[d] - 1) // chunks[d] for d in range(len(chunks))]
            prefix = self._prefix or ""
            for item in batch:
                if not item[4]:
                    continue
                cell = self._keys.cell(item[0].path, prefix)
                ended = [d for d in cut if cell[d] == last[d]]
                if ended:
                    shape = tuple(
                        region.stop[d] if d in ended else size for d, size in enumerate(shape)
                    )
        self._shape = shape
        return shape

    async def _open(
        self, shape: tuple[int, ...], device: str, *, empty: bool
    ) -> gpustore.TensorStore:
        """Open the array.

        Raises
        ------
        _LeftError
            If gpustore does not know its codecs or its data type.
        """
        store = self._store
        loop = root = None
        if type(store) is LocalStore:
            root = store.root  # LocalStore.move() changes it.
        elif type(store) is not MemoryStore:
            loop = asyncio.get_running_loop()
        key = (shape, device, empty, root, loop, os.getpid() if loop else 0)
        found = self._opened.get(key)
        if found is not None:
            return found
        driver = "zarr3" if self._document["zarr_format"] == 3 else "zarr2"
        directory = self._keys.directory(self._prefix or "")
        spec = {
            "driver": driver,
            "metadata": {**self._document, "shape": list(shape)},
            "store_data_equal_to_fill_value": empty,
        }
        try:
            opening = gpustore.open(
                spec,
                kvstore=_kvstore(self._store, directory, loop),
                open=True,
                assume_metadata=True,
                device=device,
                context=_context(),
            )
            # It may need a thread of the pool, all of which may wait for this loop.
            found = opening.result() if loop is None else await opening
        except gpustore.GpustoreError as error:
            self.reason = f"gpustore does not open the array: {error}"
            raise _LeftError(self.reason) from error
        # Without a lock, which a forked process might find held.
        for oldest in list(self._opened)[: 1 - _MOST_OPEN]:
            self._opened.pop(oldest, None)
        self._opened[key] = found
        return found


def _document(metadata: Any) -> dict[str, Any]:
    """Return the metadata of an array as they are stored, without attributes."""
    files = metadata.to_buffer_dict(cpu.buffer_prototype)
    name = ".zarray" if metadata.zarr_format == 2 else "zarr.json"
    document: dict[str, Any] = json.loads(files[name].to_bytes())
    document.pop("attributes", None)
    document.pop("consolidated_metadata", None)
    return document


def _unknown(store: Store, dtype: np.dtype[Any], codecs: Any) -> str:
    """Return the reason why an array is left to zarr-python; empty if it is not."""
    kind = type(store)
    if kind is not LocalStore and kind not in _STORES:
        return f"stores of the class {kind.__name__} are not known here"
    if dtype.kind not in _KINDS:
        return f"the data type {dtype} is not one of numbers"
    for codec in _classes(codecs):
        if not codec.__module__.startswith(("zarr.", "numcodecs.")):
            return f"codecs of the class {codec.__name__} are not known here"
    return ""


def _classes(codecs: Iterable[Any]) -> Iterator[type]:
    """Yield the classes of codecs, inside of shards too: users may register others of a name."""
    for codec in codecs:
        yield type(codec)
        inner = [*getattr(codec, "codecs", ()), *getattr(codec, "index_codecs", ())]
        inner += [*(getattr(codec, "filters", None) or ()), getattr(codec, "compressor", None)]
        yield from _classes(one for one in inner if one is not None)


def _small_batch(
    store: Store, document: dict[str, Any], keys: ChunkKeys, dtype: np.dtype[Any]
) -> int:
    """Return the most chunks whose read is small: of local files and values in memory."""
    sharded = any(codec["name"] == "sharding_indexed" for codec in document.get("codecs", ()))
    if sharded or type(store) not in (LocalStore, MemoryStore):
        return 0
    return _SMALL_NBYTES // max(1, math.prod(keys.chunk_shape) * dtype.itemsize)


def _device_of(buffer: Any) -> str:
    """Return the device in whose memory a buffer of zarr-python lies."""
    array = buffer.as_ndarray_like()
    if type(buffer) is cpu.NDBuffer and type(array) is np.ndarray:
        return "cpu"
    if type(buffer) is gpu.NDBuffer:
        return f"cuda:{array.device.id}"
    raise _LeftError(f"buffers of the class {type(buffer).__name__} are not known here")


def _kvstore(store: Store, directory: str, loop: Any) -> gpustore.KvStore:
    if type(store) is LocalStore:
        spec = {"driver": "file", "path": f"{store.root.resolve()}/{directory}"}
        return gpustore.KvStore.open(spec, context=_context()).result()
    return gpustore.KvStore.from_zarr_store(store, loop=loop) + directory


_contexts: dict[int, gpustore.Context] = {}


def _context() -> gpustore.Context:
    """Return the context of all arrays: files are as durable as those of zarr-python."""
    return _contexts.setdefault(0, gpustore.Context({"file_io_sync": False}))
