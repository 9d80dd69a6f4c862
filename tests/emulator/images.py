"""Libraries that decode images on an emulated device: Pillow, or nvImageCodec's for the host.

nvImageCodec runs by the module that drives it on a GPU, so all of that module but the memory of the
elements is tried.
"""

import io

import numpy as np

from gpustore.backends.nvimgcodec import Library

NO_GPU = -99999
"""``nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY``."""


class PillowLibrary:
    """The library of the host itself, whose elements are those that the host decodes."""

    name = "emulated images"

    def __init__(self):
        from PIL import Image  # A machine with a GPU need not have it.

        self._image = Image

    def decode(self, batch, stream):
        return [self._decoded(encoded, batch.page) for encoded in batch.encoded]

    def _decoded(self, encoded, page):
        try:
            with self._image.open(io.BytesIO(encoded)) as image:
                image.seek(page)
                return np.atleast_3d(np.asarray(image))
        except (OSError, SyntaxError, ValueError, EOFError, Warning):
            return None


class HostLibrary(Library):
    """nvImageCodec, with its decoders for the host."""

    def __init__(self):
        super().__init__(NO_GPU, ["CPU_ONLY"])

    def decode(self, batch, stream):
        found = super().decode(batch, stream)
        return [None if image is None else np.asarray(image) for image in found]
