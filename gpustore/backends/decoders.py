"""Who decodes what on a GPU, known without one: for ``explain``, and for a table in the docs."""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.backends.nvcomp.abi import DETECTS_DAMAGE, FORMATS, LARGEST
from gpustore.codec_chain.base import BytesCodec
from gpustore.device.protocol import Decoders, DeviceCodec

_ALIGNMENT = 16
"""Suits all codecs of nvcomp; a GPU asks the library."""


@dataclass(frozen=True, slots=True)
class GpuDecoders:
    """What a GPU would decode; see :class:`gpustore.device.protocol.Decoders`.

    Attributes
    ----------
    has_nvcomp : bool
        Whether nvcomp is installed there; the package's own kernels always are.

    Examples
    --------
    >>> GpuDecoders(has_nvcomp=False).codec("zstd") is None
    True
    """

    has_nvcomp: bool

    def codec(self, name: str) -> DeviceCodec | None:
        """What nvcomp can do with streams of this kind."""
        if not self.has_nvcomp or name not in FORMATS:
            return None
        decoded_max, encoded_max = LARGEST[name]
        detects = name in DETECTS_DAMAGE
        return DeviceCodec(
            name, _ALIGNMENT, _ALIGNMENT, _ALIGNMENT, decoded_max, encoded_max, detects
        )


def decoder_of(stage: BytesCodec, decoders: Decoders) -> str:
    """What decodes values on a device that does not refuse to: its library, or own kernels.

    ``"nothing"`` if they are decoded.
    """
    if stage.is_identity:
        return "nothing"
    codec = stage.device_codec
    return "own kernels" if codec is None or decoders.codec(codec) is None else "nvcomp"
