"""Kernels of the package that decode streams where a device's library does not."""

from __future__ import annotations

from gpustore.device.protocol import Decoders

OWN_KERNELS = {"blosclz": "gs::decode_blosclz", "lz4": "gs::decode_lz4"}
"""Codecs that the package decodes itself where the device's libraries do not."""

NO_KERNEL = "no kernel of the package decodes it"
"""Reason for which all other codecs need a library."""


def can_decompress(device: Decoders, codec: str) -> bool:
    """Return whether a library or an own kernel decodes this codec on this device."""
    return device.codec(codec) is not None or device.own_kernel_failure(codec) is None


def checks_bounds(device: Decoders, codec: str) -> bool:
    """Return whether the decoder of this codec on this device checks all bounds of its streams."""
    known = device.codec(codec)
    return codec in OWN_KERNELS if known is None else known.detects_damage
