"""Constants of an array whose chunks the native core can encode, as the core takes them."""

from __future__ import annotations

from array import array as numbers
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpustore.backends.native.array import NativeArray
from gpustore.backends.native.job import address_of
from gpustore.codec_chain.chain import CodecChain

_OPTIONS: Final = ("level", "checksum", "shuffle", "typesize", "blocksize", "compressor")


@dataclass(frozen=True, slots=True)
class NativeEncoding:
    """Struct ``Encoding`` of ``kernels/host/write_job.h``, and the memory it refers to.

    Attributes
    ----------
    address : int
        Address of the struct.
    itemsize : int
        Bytes of an element in memory.
    """

    address: int
    itemsize: int
    _kept: tuple[Any, ...]


def native_encoding(array: NativeArray, chain: CodecChain, blank: Any) -> NativeEncoding | None:
    """Return the constants for encoding chunks of an array; None if Python encodes them.

    `blank` is that of :class:`~gpustore.pipelines.chunked_array.ChunkedArray`.
    """
    layout = chain.layout
    if layout.dtype.names is not None:
        return None
    if layout.record:
        if layout.dtype == np.bool_:
            return None  # Other bytes of a record are no bools.
    elif not layout.is_dense or layout.offset:
        return None
    stored = np.dtype(f"V{layout.record}") if layout.record else layout.dtype
    options: dict[str, int] = {}
    for stage in chain.stages:
        found = stage.native_options(layout.nbytes)
        if found is None:
            return None
        options |= found
    element = np.frombuffer(np.asarray(blank).astype(stored).tobytes(), np.uint8)
    words = [options.get(name, 0) for name in _OPTIONS]
    struct = numbers("q", (array.address, address_of(element), stored.itemsize, *words))
    return NativeEncoding(struct.buffer_info()[0], array.itemsize, (array, struct, element))
