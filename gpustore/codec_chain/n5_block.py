"""Blocks of N5: a header, then the elements of a chunk behind at most one compression.

The header is the mode (0: all elements of the block follow), the rank and the extents of the block.
Elements are big endian, the first dimension innermost; both are the layout of the chunk, so a whole
block costs no more than its compression. A block may be smaller than the chunk, as Java's writers
cut it off at the edges of the array: the rest of the chunk is 0. Blocks are written whole.

Source: https://github.com/saalfeldlab/n5, "file-system specification"; TensorStore's
``driver/n5/metadata.cc``.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gpustore import registry
from gpustore.codec_chain.base import BytesCodec, check_nbytes, deliver
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.device_streams import fall_back_where
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.registered import Options
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns, Mask
from gpustore.device.protocol import Decoders, Device, Spans
from gpustore.errors import CorruptChunkError
from gpustore.metadata.n5_compression import Compression
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import JsonValue

_START: Final = struct.Struct(">HH")
"""Mode and rank in the header of a block; the extents follow, 4 bytes each."""


@dataclass(frozen=True, slots=True)
class N5Block(BytesCodec):
    """Codec of a chunk as one block of N5.

    Attributes
    ----------
    shape : tuple of int
        Shape of a chunk.
    itemsize : int
        Bytes of an element.
    inner : BytesCodec or None
        Compression of the elements, None without.
    larger_nbytes : int
        Most bytes of the elements of a block that reaches beyond the chunk, and is cut off there; 0
        if such a block is an error.
    name : str
        Registered name of the codec, for messages.
    header : bytes
        Header of a block that has the shape of the chunk.
    """

    shape: tuple[int, ...]
    itemsize: int
    inner: BytesCodec | None
    larger_nbytes: int = 0
    name: str = "n5"
    header: bytes = field(init=False, compare=False, repr=False)
    decode_ns: float = field(init=False, compare=False, repr=False)
    decodes_parts: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        extents = np.array(self.shape, ">u4").tobytes()
        object.__setattr__(self, "header", _START.pack(0, len(self.shape)) + extents)
        object.__setattr__(self, "decode_ns", self.inner.decode_ns if self.inner else 0.1)
        parts = self.inner is None or self.inner.decodes_parts
        object.__setattr__(self, "decodes_parts", parts)

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of the longest block that is read, in bytes."""
        most = max(decoded_nbytes, self.larger_nbytes)
        return len(self.header) + (self.inner.encoded_bound(most) if self.inner else most)

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode a block with the shape of the chunk."""
        return b"".join((self.header, self.inner.encode(decoded) if self.inner else decoded))

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode the elements of the block, and zeros in the rest of the chunk.

        Raises
        ------
        CorruptChunkError
            If the block has another mode or rank, is too large, or has not as many elements as its
            header says.
        """
        view = memoryview(encoded)
        shape = self._block_shape(view)
        elements = view[len(self.header) :]
        if shape == self.shape:
            return self._elements(elements, decoded_max, out)
        whole = np.zeros(decoded_max, np.uint8) if out is None else np.frombuffer(out, np.uint8)
        whole = whole[:decoded_max]
        whole[:] = 0
        block = self._elements(elements, math.prod(shape) * self.itemsize, None)
        element = np.dtype(f"V{self.itemsize}")
        chunk = whole.view(element).reshape(self.shape[::-1])
        part = tuple(slice(min(sizes)) for sizes in zip(shape[::-1], self.shape[::-1], strict=True))
        chunk[part] = np.frombuffer(block, element).reshape(shape[::-1])[part]
        return whole.data if out is None else out[:decoded_max]

    def decode_part(
        self, encoded: Buffer, nbytes: int, start: int, stop: int, out: memoryview
    ) -> tuple[Buffer, int]:
        """Decode at least the bytes [start, stop); all of a block smaller than the chunk."""
        view = memoryview(encoded)
        if self._block_shape(view) != self.shape:
            return self.decode(encoded, nbytes, exact=True, out=out), 0
        elements = view[len(self.header) :]
        if self.inner is not None:
            return self.inner.decode_part(elements, nbytes, start, stop, out)
        return self._elements(elements, nbytes, None)[start:stop], start

    def _elements(self, encoded: memoryview, nbytes: int, out: memoryview | None) -> Buffer:
        """Decode `nbytes` bytes of elements."""
        if self.inner is not None:
            return self.inner.decode(encoded, nbytes, exact=True, out=out)
        check_nbytes(len(encoded), nbytes, exact=True, codec=self.name)
        return deliver(encoded, nbytes, exact=True, out=out)

    def _block_shape(self, encoded: memoryview) -> tuple[int, ...]:
        length, found = len(self.header), len(encoded)
        if found < length:
            raise CorruptChunkError(
                f"Expected header of length {length}, but chunk has size {found}", codec=self.name
            )
        if encoded[:length] == self.header:
            return self.shape
        mode, rank = _START.unpack_from(encoded)
        if mode:
            known = "varlength chunks not supported" if mode == 1 else None
            raise CorruptChunkError(known or f"Unexpected N5 chunk mode: {mode}", codec=self.name)
        if rank != len(self.shape):
            raise CorruptChunkError(
                f"Received chunk with {rank} dimensions but expected {len(self.shape)}",
                codec=self.name,
            )
        shape: tuple[int, ...] = struct.unpack_from(f">{rank}I", encoded, _START.size)
        is_larger = any(size > most for size, most in zip(shape, self.shape, strict=True))
        if is_larger and math.prod(shape) * self.itemsize > self.larger_nbytes:
            raise CorruptChunkError(
                f"Received chunk of size {list(shape)} which exceeds blockSize of "
                f"{list(self.shape)}",
                codec=self.name,
            )
        return shape

    # ----------------------------------------------------------------- in the native core

    @property
    def native_codec(self) -> str | None:
        """Codec of whole blocks behind their header, which the native core compares."""
        return "raw" if self.inner is None else self.inner.native_codec

    @property
    def native_header(self) -> bytes:
        return self.header

    def native_options(self, decoded_nbytes: int) -> Mapping[str, int] | None:
        """Return the options of the compression."""
        return {} if self.inner is None else self.inner.native_options(decoded_nbytes)

    # ----------------------------------------------------------------- on a device

    @property
    def device_codec(self) -> str | None:
        """Name of the compression's codec on a device."""
        return None if self.inner is None else self.inner.device_codec

    @property
    def device_outputs(self) -> int:
        """Number of times that decoding on a device has the decoded bytes in its memory."""
        return 0 if self.inner is None else self.inner.device_outputs

    def device_streams(self, decoded_nbytes: int) -> tuple[int, int]:
        """Return the number of streams in a block, and the decoded bytes of the longest."""
        assert self.inner is not None  # Without compression there is no device codec.
        return self.inner.device_streams(decoded_nbytes)

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return why `device` does not undo the compression, None if it does or there is none."""
        return None if self.inner is None else self.inner.unsupported_reason(device, distrust)

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of blocks that have the shape of the chunk."""
        length = len(self.header)
        if commands.encoded is not None:
            wrong = ~_begin_with(commands.encoded, self.header)
        else:
            wrong = commands.values.nbytes < length
        fall_back_where(commands, wrong, "n5: not a block of the shape of the chunk")
        if commands.encoded is None and len(commands):
            # The bytes are only on the device, where a kernel compares the header.
            expected = np.full(len(commands), zlib.crc32(self.header), np.uint32)
            begin = np.full(len(commands), length, np.uint64)
            commands.checksum("crc32", Spans(commands.values.address, begin), expected)
        commands.narrow(length, 0)
        if self.inner is not None:
            self.inner.decode_device(commands, device, decoded_max, exact=exact)
            return
        wrong = commands.values.nbytes != decoded_max
        fall_back_where(commands, wrong, f"n5: not {decoded_max} bytes of elements")


def _begin_with(values: EncodedColumns, begin: bytes) -> Mask:
    """Return a mask of the values that begin with these bytes."""
    found = values.nbytes >= len(begin)
    places = values.start[found][:, None] + np.arange(len(begin))
    found[found] = (values.data[places] == np.frombuffer(begin, np.uint8)).all(axis=1)
    return found


def resolve_n5(
    compression: Compression, dtype: np.dtype[Any], chunk_shape: tuple[int, ...], *, limits: Limits
) -> CodecChain:
    """Return the codec chain of an N5 array.

    Parameters
    ----------
    compression : mapping
        Complete compression, see :func:`gpustore.metadata.n5_compression.parse_compression`.
    dtype : numpy.dtype
        Type of the elements.
    chunk_shape : tuple of int
        Shape of a chunk in elements.
    limits : Limits
        Limits, of which ``chunk_nbytes`` applies.

    Raises
    ------
    LimitError
        If a chunk is too large.
    """
    layout = ChunkBytes.contiguous(dtype.newbyteorder(">"), chunk_shape, order="F")
    limits.check("chunk_nbytes", layout.nbytes, "Decoded chunk")
    block = N5Block(chunk_shape, dtype.itemsize, _compressor(compression, dtype.itemsize))
    order = tuple(reversed(range(len(chunk_shape))))
    json: JsonValue = {"compression": dict(compression)}
    return CodecChain(layout, [block], json, inner_order=order)


def _compressor(compression: Compression, itemsize: int) -> BytesCodec | None:
    """Return the stage of a compression, which is that of a compressor of Zarr v2."""
    options: Options = {name: value for name, value in compression.items() if name != "type"}
    match compression["type"]:
        case "raw":
            return None
        case "gzip":
            level = 6 if options["level"] == -1 else options["level"]  # zlib's own default.
            name, options = "zlib" if options["useZlib"] else "gzip", {"level": level}
        case "bzip2":
            name, options = "bz2", {"level": options["blockSize"]}
        case "xz":
            name = "lzma"
            options = {"format": 1, "check": -1, "preset": options["preset"], "filters": None}
        case same:
            name = same
    stage: BytesCodec = registry.find("codecs", name).v2.prepare(options, itemsize)
    return stage
