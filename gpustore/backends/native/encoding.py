"""Constants of an array whose whole chunks the native core can encode, as the core takes them."""

from __future__ import annotations

from array import array as numbers
from dataclasses import dataclass
from typing import Any, Final

from gpustore.backends.native.array import NativeArray
from gpustore.codec_chain.chain import CodecChain

_OPTIONS: Final = ("level", "checksum", "shuffle", "typesize", "blocksize", "compressor")


@dataclass(frozen=True, slots=True)
class NativeEncoding:
    """Struct ``Encoding`` of ``kernels/host/write_job.h``, and the memory it refers to.

    Attributes
    ----------
    address : int
        Address of the struct.
    """

    address: int
    _kept: tuple[Any, ...]


def native_encoding(
    array: NativeArray, chain: CodecChain, fill_value: Any, blank: Any
) -> NativeEncoding | None:
    """Return the constants for encoding chunks of an array; None if Python encodes them.

    `fill_value` and `blank` are those of :class:`~gpustore.pipelines.chunked_array.ChunkedArray`.
    """
    layout = chain.layout
    if not layout.is_dense or layout.record or layout.offset or layout.dtype.names is not None:
        return None
    if fill_value.dtype != blank.dtype or fill_value.tobytes() != blank.tobytes():
        return None
    options: dict[str, int] = {}
    for stage in chain.stages:
        found = stage.native_options(layout.nbytes)
        if found is None:
            return None
        options |= found
    struct = numbers("q", (array.address, *(options.get(name, 0) for name in _OPTIONS)))
    return NativeEncoding(struct.buffer_info()[0], (array, struct))
