"""nvcomp's Python package, for a C library that cannot be loaded or has unknown prototypes.

It waits for each call, and a failure counts for all streams of it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.foreign import DeviceBytes
from gpustore.backends.nvcomp.abi import FORMATS, LARGEST
from gpustore.device.protocol import CodecBatch, DeviceCodec, Spans
from gpustore.errors import DeviceError

_CANNOT_DECOMPRESS = 12


def _package() -> Any:
    """Import the package, which the C library does without."""
    try:
        from nvidia import nvcomp
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"nvcomp's Python package cannot be used: {error}") from error
    return nvcomp


class Bindings:
    """nvcomp's Python package. It decodes, but does not encode.

    Raises
    ------
    DeviceError
        If it is not installed, or cannot be loaded.
    """

    name = "nvcomp, Python package"

    def __init__(self) -> None:
        self._nvcomp = _package()

    def codec(self, name: str) -> DeviceCodec | None:
        """Return the properties of a codec, with an alignment for all of nvcomp; None if absent."""
        if name not in FORMATS:
            return None
        return DeviceCodec(name, 16, 16, 1, LARGEST[name][0], 0, False, False)

    def decompress_temp_nbytes(
        self, codec: str, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        """Return 0: the package allocates its own scratch memory."""
        del codec, count, max_nbytes, total_nbytes
        return 0

    def results(self, batch: CodecBatch, stream: int) -> NDArray[np.uint8]:
        """Decode a batch, wait for it, and return the bytes for ``batch.result``."""
        sizes, status = [0] * len(batch), _CANNOT_DECOMPRESS
        # Which stream cannot be decoded is not said: the host decodes all of them then.
        nvcomp = self._nvcomp
        with suppress(RuntimeError, ValueError):
            codec = nvcomp.Codec(
                algorithm=FORMATS[batch.codec],
                bitstream_kind=nvcomp.BitstreamKind.RAW,
                cuda_stream=stream,
            )
            src, dst = (_batch_array(nvcomp, spans, stream) for spans in (batch.src, batch.dst))
            sizes, status = list(codec.decode(src, out=dst).buffer_sizes), 0
        statuses = np.full(len(batch), status, np.int32)
        return np.concatenate([np.array(sizes, np.uint64).view(np.uint8), statuses.view(np.uint8)])


def _batch_array(nvcomp: Any, spans: Spans, stream: int) -> Any:
    pieces = zip(spans.address.tolist(), spans.nbytes.tolist())
    sources = [DeviceBytes(address, nbytes) for address, nbytes in pieces]
    return nvcomp.as_arrays(sources, cuda_stream=stream)
