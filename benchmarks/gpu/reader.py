"""Who reads: gpustore to the device, and everybody else to the host and then by a copy."""

import contextlib
import importlib

import numpy as np

import gpustore
from benchmarks.gpu.findings import MissingError
from benchmarks.gpu.setting import THREADS
from benchmarks.peers import GpustorePeer, Peer, TensorStorePeer, ZarrPeer, ZarrsPeer


class Reader:
    """One of those compared.

    Parameters
    ----------
    target : Target
        Where its results go.

    Attributes
    ----------
    name : str
    on_host : bool
        Whether it decodes on the host, so that results are copied.
    many : bool
        Whether it has one call for many crops.
    unknown : tuple of str
        Codecs that it does not have.
    is_slow : bool
        Whether a thousand calls would take too long to be asked.
    """

    name: str
    on_host = True
    many = False
    unknown: tuple[str, ...] = ()
    is_slow = False

    def __init__(self, target):
        self.target = target

    def use(self):
        """A context within which this reader is set up; not part of what is timed."""
        return contextlib.nullcontext()

    def cannot(self, array_format, access):
        """Why a cell is left out; None if it is not."""
        if array_format.codec in self.unknown:
            return f"does not know {array_format.codec}"
        if access == "crops" and not self.many:
            return "has no call for many crops: see one by one"
        if access == "one by one" and self.is_slow:
            return "a thousand calls take too long: see crop"
        return None

    def close(self):
        """Give up what it holds."""


class Gpustore(Reader):
    name, on_host, many = "gpustore", False, True

    def __init__(self, target, setting):
        super().__init__(target)
        self._context = setting.context()

    def open(self, path, array_format):
        spec = array_format.spec(path)
        return gpustore.open(spec, context=self._context, device=self.target.name).result()

    def read(self, handle, box):
        return handle[box].read().result()

    def read_crops(self, handle, boxes):
        starts = [[part.start for part in box] for box in boxes]
        return handle.read_many(starts, _extent(boxes)).result()


def _extent(boxes):
    return tuple(part.stop - part.start for part in boxes[0])


class HostReader(Reader):
    """A library that reads to the host; then one copy."""

    kind: type[Peer]

    def __init__(self, target):
        super().__init__(target)
        self._peer = self.kind(THREADS)
        # What one sets in the process must not be there while another reads.
        self._peer.close()

    @contextlib.contextmanager
    def use(self):
        peer = self.kind(THREADS)
        try:
            yield
        finally:
            peer.close()

    def open(self, path, array_format):
        return self._peer.open(f"{path}/", array_format)

    def read(self, handle, box):
        return self.target.copied(self._peer.read(handle, box))


class GpustoreHost(HostReader):
    name, kind, many = "gpustore host + copy", GpustorePeer, True

    def read_crops(self, handle, boxes):
        starts = [[part.start for part in box] for box in boxes]
        return self.target.copied(handle.read_many(starts, _extent(boxes)).result())


class TensorStore(HostReader):
    name, kind, many = "tensorstore + copy", TensorStorePeer, True
    unknown = ("lz4",)

    def read_crops(self, handle, boxes):
        with self._peer.module.Batch() as batch:
            futures = [handle[box].read(batch=batch) for box in boxes]
        out = np.empty((len(boxes), *_extent(boxes)), handle.dtype.numpy_dtype)
        for row, future in zip(out, futures):
            row[...] = future.result()
        return self.target.copied(out)


class TensorStoreOverlapped(TensorStore):
    """See :mod:`benchmarks.gpu.overlap`."""

    name, many = "tensorstore overlapped", False

    def __init__(self, target):
        super().__init__(target)
        self._overlap = importlib.import_module("benchmarks.gpu.overlap").Overlap(target.device)

    def read(self, handle, box):
        return self._overlap.read(handle, box, handle.chunk_layout.write_chunk.shape[0])

    def close(self):
        self._overlap.close()


class Zarr(HostReader):
    name, kind, is_slow = "zarr-python + copy", ZarrPeer, True


class _FusedPeer(ZarrPeer):
    pipeline = "zarr.core.codec_pipeline.FusedCodecPipeline"

    def __init__(self, threads):
        from zarr.core import codec_pipeline

        if not hasattr(codec_pipeline, "FusedCodecPipeline"):
            raise MissingError("this version of zarr-python has no FusedCodecPipeline")
        super().__init__(threads)


class ZarrFused(HostReader):
    """The newer of zarr-python's two pipelines, which must be asked for."""

    name, is_slow = "zarr-python fused + copy", True
    kind = _FusedPeer


class Zarrs(HostReader):
    name, kind, is_slow = "zarrs + copy", ZarrsPeer, True


class ZarrGpu(Reader):
    """zarr-python's own way to the device: bytes arrive there, codecs take them to the host."""

    name, is_slow = "zarr-python enable_gpu", True

    def __init__(self, target):
        super().__init__(target)
        if target.is_emulated:
            raise MissingError("needs CuPy and a GPU")
        import kvikio.defaults
        import kvikio.zarr
        import zarr

        self._set_kvikio = kvikio.defaults.set
        self._store, self._open = kvikio.zarr.GDSStore, zarr.open_array
        self._enable, self._set = zarr.config.enable_gpu, zarr.config.set

    def cannot(self, array_format, access):
        if array_format.chunk == "64KiB":
            return "opens a file and copies three times for each chunk: takes too long"
        return super().cannot(array_format, access)

    @contextlib.contextmanager
    def use(self):
        settings = {"threading.max_workers": THREADS, "async.concurrency": THREADS}
        # kvikio's own default is one thread.
        kvikio_settings = {"num_threads": THREADS}
        with self._enable(), self._set(settings), self._set_kvikio(kvikio_settings):
            yield

    def open(self, path, array_format):
        store = self._store(path, read_only=True)
        return self._open(store, mode="r", zarr_format=array_format.version)

    def read(self, handle, box):
        return handle[box]


READERS = (
    Gpustore, GpustoreHost, TensorStoreOverlapped, TensorStore, Zarrs, ZarrFused, Zarr, ZarrGpu,
)  # fmt: skip


def readers(target, setting):
    """All that are installed, gpustore with a setting, and why the others are not."""
    found, missing = [], {}
    for kind in READERS:
        try:
            found.append(kind(target, setting) if kind is Gpustore else kind(target))
        except (ImportError, MissingError) as error:
            missing[kind.name] = str(error)
    return found, missing
