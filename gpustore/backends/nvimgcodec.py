"""Images decoded on a GPU by nvImageCodec, where it is installed.

Only ``backends/cuda`` uses this module. A device without a GPU has nvImageCodec's decoders for the
host, by which the tests run this module.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from gpustore import registry
from gpustore.device.image_batch import ImageBatch
from gpustore.errors import DeviceError

IMAGE_LIBRARY: Final = "nvImageCodec"

NO_IMAGE_LIBRARY: Final = (
    "nvImageCodec is not installed (python -m pip install 'gpustore[image13]', or [image12] for a "
    "driver of CUDA 12)"
)

GPU: Final = ("GPU_ONLY", "HYBRID_CPU_GPU")
"""Decoders that place elements in the memory of the GPU.

Those of its fixed-function unit are not asked for: how they sample colours up is not known.
"""

_OPTIONS: Final = ":fancy_upsampling=1"
"""Colours are interpolated as libjpeg does."""


def _package() -> Any:
    try:
        from nvidia import nvimgcodec
    except (ImportError, OSError, RuntimeError) as error:
        if not registry.is_installed("nvidia.nvimgcodec"):
            raise DeviceError(NO_IMAGE_LIBRARY) from None
        raise DeviceError(f"nvImageCodec cannot be used: {error}") from error
    return nvimgcodec


class Library:
    """Decoder of nvImageCodec for one device. Thread-safe: one call runs at a time.

    Parameters
    ----------
    device_id : int
        CUDA's number of the device.
    backends : sequence of str
        Kinds of decoders that may be used, by nvImageCodec's names.

    Attributes
    ----------
    name : str
        Name of the library for messages.

    Raises
    ------
    DeviceError
        If it is not installed, or cannot be used.
    """

    def __init__(self, device_id: int, backends: Sequence[str] = GPU) -> None:
        nvimgcodec = _package()
        self.name = f"{IMAGE_LIBRARY} {nvimgcodec.__version__}"
        self._code_stream = nvimgcodec.CodeStream
        self._lock = threading.Lock()
        colours = {1: nvimgcodec.ColorSpec.GRAY, 3: nvimgcodec.ColorSpec.SRGB}
        try:
            kinds = [getattr(nvimgcodec.BackendKind, kind) for kind in backends]
            self._parameters = {
                channels: nvimgcodec.DecodeParams(
                    apply_exif_orientation=False, color_spec=colour, allow_any_depth=False
                )
                for channels, colour in colours.items()
            }
            self._decoder = nvimgcodec.Decoder(
                device_id=device_id,
                backends=[nvimgcodec.Backend(kind) for kind in kinds],
                options=_OPTIONS,
            )
        except (RuntimeError, TypeError, AttributeError) as error:
            raise DeviceError(f"{self.name} cannot be used: {error}") from error

    def decode(self, batch: ImageBatch, stream: int) -> list[Any]:
        """Decode images on CUDA stream `stream`.

        Returns
        -------
        list
            nvImageCodec's ``Image`` of each image, contiguous, whose memory is freed in the order
            of the stream; None for one that is not decoded, or not to the shape that was asked for.
        """
        images = zip(batch.encoded, batch.shapes)
        sources = [self._source(encoded, shape, batch.page) for encoded, shape in images]
        known = [source for source in sources if source is not None]
        decoded: list[Any] = [None] * len(known)
        if known:
            parameters = self._parameters[batch.shapes[0][2]]
            # An error says no more than that none is decoded.
            with self._lock, suppress(RuntimeError, ValueError):
                decoded = self._decoder.decode(known, params=parameters, cuda_stream=stream)
        if len(decoded) != len(known):  # Which ones are missing is not said.
            decoded = [None] * len(known)
        left = iter(decoded)
        found = [None if source is None else next(left) for source in sources]
        return [
            image if image is not None and tuple(image.shape) == shape else None
            for image, shape in zip(found, batch.shapes)
        ]

    def _source(self, encoded: Any, shape: tuple[int, int, int], page: int) -> Any:
        """Return the image as nvImageCodec reads it, None if its header says something else."""
        try:
            stream = self._code_stream(np.frombuffer(encoded, np.uint8))
            if page or stream.num_images > 1:
                stream = stream.get_sub_code_stream(image_idx=page)
            found = stream.height, stream.width, stream.num_channels  # Which reads the header.
            is_expected = found == shape and stream.dtype == np.uint8
        except (RuntimeError, ValueError):
            return None
        return stream if is_expected else None
