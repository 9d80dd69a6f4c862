"""The ``tiff`` driver: TIFF images, see :mod:`gpustore.drivers._image`."""

from __future__ import annotations

from gpustore.drivers._image import ImageKind

DRIVER = ImageKind("tiff")
