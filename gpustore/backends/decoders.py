"""Decoders of a GPU, listed without one: for ``explain`` and for a table of the guide."""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.backends.nvcomp.abi import DETECTS_DAMAGE, FORMATS, LARGEST, NO_NVCOMP
from gpustore.backends.nvimgcodec import IMAGE_LIBRARY, NO_IMAGE_LIBRARY
from gpustore.codec_chain.base import BytesCodec
from gpustore.device.own_kernels import NO_KERNEL, OWN_KERNELS
from gpustore.device.protocol import Decoders, DecoderState, DeviceCodec

_ALIGNMENT = 16
"""Alignment in bytes for all codecs of nvcomp; a GPU asks the library instead."""


@dataclass(frozen=True, slots=True)
class GpuDecoders:
    """Decoders of a GPU; see :class:`gpustore.device.protocol.Decoders`.

    Attributes
    ----------
    has_nvcomp : bool
        Whether nvcomp is installed there; the package's own kernels always are.
    has_image_library : bool
        Whether nvImageCodec is installed there.

    Examples
    --------
    >>> GpuDecoders(has_nvcomp=False).codec("zstd") is None
    True
    """

    has_nvcomp: bool
    has_image_library: bool = False

    def decoders(self) -> DecoderState:
        """Return the state of nvcomp where all its codecs work, or where it is absent."""
        if self.has_nvcomp:
            return DecoderState("nvcomp", tuple(FORMATS), {}, None)
        return DecoderState(None, (), dict.fromkeys(FORMATS, NO_NVCOMP), NO_NVCOMP)

    def codec(self, name: str) -> DeviceCodec | None:
        """Return the properties of nvcomp's codec `name`; None if nvcomp lacks it or is absent."""
        if not self.has_nvcomp or name not in FORMATS:
            return None
        decoded_max, encoded_max = LARGEST[name]
        detects = name in DETECTS_DAMAGE
        return DeviceCodec(
            name, _ALIGNMENT, _ALIGNMENT, _ALIGNMENT, decoded_max, encoded_max, detects
        )

    def own_kernel_failure(self, codec: str) -> str | None:
        """Return why no kernel of the package decodes these streams, None if one does."""
        return None if codec in OWN_KERNELS else NO_KERNEL

    def image_decoder(self, name: str) -> DecoderState:
        """Return the state of nvImageCodec where it works, or where it is absent."""
        if self.has_image_library:
            return DecoderState(IMAGE_LIBRARY, (name,), {}, None)
        return DecoderState(None, (), {name: NO_IMAGE_LIBRARY}, NO_IMAGE_LIBRARY)


def decoder_of(stage: BytesCodec, decoders: Decoders) -> str:
    """Name the decoder of a codec that a device supports.

    The name is that of the device's library, ``"own kernels"``, or ``"nothing"`` if encoded bytes
    are the decoded ones.
    """
    if stage.is_identity:
        return "nothing"
    if stage.image_format is not None:
        return IMAGE_LIBRARY
    codec = stage.device_codec
    return "own kernels" if codec is None or decoders.codec(codec) is None else "nvcomp"


def encoder_of(stage: BytesCodec) -> str:
    """Name the encoder of a codec that a device encodes, as :func:`decoder_of` does.

    Kernels of the package compress nothing.
    """
    if stage.is_identity:
        return "nothing"
    return "own kernels" if stage.device_codec is None else "nvcomp"
