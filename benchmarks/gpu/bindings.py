"""nvcomp's Python package, given the arenas that the C calls are given."""

import cupy
import numpy as np
from nvidia import nvcomp

from benchmarks.gpu.nvcomp import abi, packed


class BoundBatch:
    """Streams, and room for what they decode to, as nvcomp's batches over one arena each.

    Attributes
    ----------
    decoded : cupy.ndarray, uint8
        Where the output goes, one stream after another.
    """

    def __init__(self, gpu, codec, streams, sizes, **options):
        self.gpu, self._sizes = gpu, [int(size) for size in sizes]
        arena, offsets, nbytes = packed(streams)
        self._arena = cupy.asarray(arena)
        self.decoded = cupy.full(sum(self._sizes), 0xA5, np.uint8)
        cupy.cuda.runtime.deviceSynchronize()
        self.codec = nvcomp.Codec(
            algorithm=abi.FORMATS[codec],
            bitstream_kind=nvcomp.BitstreamKind.RAW,
            cuda_stream=gpu.queue,
            **options,
        )
        self._src = self._carve(self._arena, offsets.tolist(), nbytes.tolist())
        starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]]).astype(int).tolist()
        self._dst = self._carve(self.decoded, starts, self._sizes)

    def _carve(self, array, offsets, sizes):
        try:
            return nvcomp.as_arrays(array, offsets, sizes, cuda_stream=self.gpu.queue)
        except TypeError:  # Before nvcomp 6 only a list of arrays is taken.
            views = [array[at : at + size] for at, size in zip(offsets, sizes)]
            return nvcomp.as_arrays(views, cuda_stream=self.gpu.queue)

    def config_of_sizes(self):
        """A config that looked at no stream: sizes are what Zarr knows."""
        return self.codec.decompression_config(self.codec.compression_config(self._sizes))

    def config_of_streams(self):
        """A config that waits for the streams and looks at them."""
        return self.codec.decompression_config(self._src)

    def decode(self, config=None):
        """Queue: decode all; without a config nvcomp looks at the streams first."""
        if config is None:
            self.codec.decode(self._src, out=self._dst)
        else:
            self.codec.decode(self._src, out=self._dst, decompression_config=config)

    def sizes(self):
        """What nvcomp says it has decoded."""
        return sorted(set(self._dst.buffer_sizes))


POLICIES = getattr(nvcomp, "ExecutionPolicy", None)
"""New in nvcomp 6."""
