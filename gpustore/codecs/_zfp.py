"""zfp streams of the codecs ``zfp`` and ``zfpy``; the latter has a header before the stream.

A chunk of one to four dimensions is divided into blocks of 4 elements along each, encoded one after
the other, by the library zfpy. The library trusts its input, so this module checks the rest:

* zfpy reads bits as long as there are blocks to decode, also beyond the end. Zeros behind the
  stream extend it to the largest length of its blocks.
* zfpy does not detect a truncated stream. At a fixed rate, with blocks of one size, the length
  shows it. In other modes the stream is decoded a second time with ones behind it: a whole stream
  gives the same elements again. Bytes behind a whole stream of another mode are not detected, nor
  is other damage, for which ``crc32c`` is the remedy.
* zfpy allocates memory by the header, which is read and compared first.

Source: https://zfp.readthedocs.io/en/release1.0.1/ (bit stream, header, compression modes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import BytesCodec, check_nbytes, deliver, too_short
from gpustore.codec_chain.value import Elements
from gpustore.errors import CorruptChunkError, LimitError, MetadataError, UnsupportedError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import text

_library: Any
try:
    import zfpy
except ImportError:
    _library = None
else:
    _library = zfpy


_TYPES: Final = {"int32": 1, "int64": 2, "float32": 3, "float64": 4}
"""zfp's numbers of its types."""

_WORD_NBYTES: Final = 8
"""Unit of the length of streams, in bytes."""

_HEADER_BITS: Final = 96
"""Magic, type and shape, and a mode of 12 bits; one of 64 bits is 52 longer: least and most bits
of a block, 15 each, and what else there is."""

_LONG_MODE: Final = 0xFFF
_RATE_MODES: Final = 2048
"""Modes below this one have a fixed number of bits a block, the number of the mode plus one."""

_MOST_PADDING: Final = 32
"""Largest ratio of the bytes of blocks to those of a chunk, beyond :data:`_SMALL` bytes."""

_SMALL: Final = 1 << 20


def require_library(name: str) -> None:
    """Raise UnsupportedError unless zfpy is installed."""
    if _library is None:
        raise UnsupportedError(
            f"{text(name)} is decoded by the library zfpy, which is not installed: "
            f"pip install 'gpustore[zfp]'"
        )


def field_shape(name: str, elements: Elements) -> tuple[int, ...]:
    """Return the shape of a chunk in zfp's terms.

    Raises
    ------
    MetadataError
        If it has more than four dimensions.
    """
    if len(elements.shape) > 4:
        raise MetadataError(
            f"{text(name)} is for chunks of at most 4 dimensions, not {len(elements.shape)}: put "
            f'"reshape" before it'
        )
    return elements.shape or (1,)


@dataclass(frozen=True, slots=True)
class Zfp(BytesCodec):
    """Codec of the elements of a chunk as one stream.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
        Data type of the elements, in native byte order.
    coded : numpy.dtype
        Their data type for zfp: an integer or float of 32 or 64 bits.
    shape : tuple of int
        Shape of the chunk for zfp, one to four extents.
    parameters : mapping of str to float
        ``tolerance``, ``rate`` or ``precision`` for zfpy; empty for the lossless mode.
    has_header : bool
    """

    decode_ns = 8.0

    name: str
    dtype: np.dtype[Any]
    coded: np.dtype[Any]
    shape: tuple[int, ...]
    parameters: Mapping[str, float]
    has_header: bool

    @classmethod
    def of(
        cls,
        name: str,
        elements: Elements,
        coded: np.dtype[Any],
        parameters: Mapping[str, float],
        *,
        has_header: bool,
    ) -> Zfp:
        """Make a stage after checking that its blocks are not much larger than the chunk.

        Raises
        ------
        MetadataError, UnsupportedError, LimitError
            If zfp does not support the shape, the library is missing, or blocks would be mostly
            padding.
        """
        require_library(name)
        shape = field_shape(name, elements)
        stage = cls(name, elements.dtype, coded, shape, parameters, has_header)
        most, nbytes = stage.encoded_bound(0), elements.count * coded.itemsize
        if most > max(_SMALL, _MOST_PADDING * nbytes):
            raise LimitError(
                f"{text(name)}: blocks of chunks of shape {list(shape)} may take {most} bytes for "
                f"{nbytes}: choose sizes of several times 4"
            )
        return stage

    @property
    def _blocks(self) -> int:
        return math.prod((size + 3) // 4 for size in self.shape)

    @property
    def _block_bits(self) -> int | None:
        """Bits of each block at a fixed rate, rounded as by zfp; None if they differ."""
        if "rate" not in self.parameters:
            return None
        bits = math.floor((1 << 2 * len(self.shape)) * self.parameters["rate"] + 0.5)
        least = {"float32": 1 + 8, "float64": 1 + 11}.get(self.coded.name, 1)
        return max(bits, least)

    def _most_bits(self) -> int:
        """Upper bound of the bits of a block."""
        size, width = 1 << 2 * len(self.shape), 8 * self.coded.itemsize
        return max(width * (size + 1) + size + 64, self._block_bits or 0)

    def _nbytes(self, bits: int) -> int:
        words = -(-bits // (8 * _WORD_NBYTES))
        return words * _WORD_NBYTES

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the largest length of the blocks, in bytes."""
        del decoded_nbytes  # The bound follows from the shape.
        header = _HEADER_BITS + 52 if self.has_header else 0
        return self._nbytes(header + self._blocks * self._most_bits())

    def encode(self, decoded: Buffer) -> Buffer:
        elements = np.frombuffer(decoded, self.dtype).reshape(self.shape)
        encoded: bytes = _library.compress_numpy(
            self._promoted(elements), write_header=self.has_header, **self.parameters
        )
        return encoded

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        assert decoded_max >= nbytes, (decoded_max, exact)
        value = bytes(encoded)
        most, expected = self.encoded_bound(0), self._expected(value)
        bound = most if expected is None else expected
        check_nbytes(len(value), bound, exact=expected is not None, codec=self.name)
        padding = most - len(value) + _WORD_NBYTES
        found = self._decompressed(value + bytes(padding))
        if expected is None:
            again = self._decompressed(value + b"\xff" * padding)
            if found.tobytes() != again.tobytes():
                raise CorruptChunkError(
                    f"Truncated stream; it ends at byte {len(value)}", codec=self.name
                )
        demoted = np.ascontiguousarray(self._demoted(found)).reshape(-1).view(np.uint8).data
        return deliver(demoted, nbytes, exact=True, out=out)

    def _expected(self, value: bytes) -> int | None:
        """Return the length that `value` must have; None if it does not determine one."""
        bits = self._block_bits
        if not self.has_header:
            return None if bits is None else self._nbytes(self._blocks * bits)
        if len(value) * 8 < _HEADER_BITS:
            raise too_short(_HEADER_BITS // 8, len(value), codec=self.name)
        if value[:3] != b"zfp":
            raise CorruptChunkError("No header of zfp at byte 0", codec=self.name)
        header = int.from_bytes(value[: _HEADER_BITS // 8], "little") >> 32
        type_, rank = 1 + (header & 3), 1 + (header >> 2 & 3)
        width = 48 // rank
        sizes = [1 + (header >> 4 + i * width & (1 << width) - 1) for i in range(rank)]
        if (type_, sizes[::-1]) != (_TYPES[self.coded.name], list(self.shape)):
            names = {number: name for name, number in _TYPES.items()}
            raise CorruptChunkError(
                f"The header says type {names[type_]} and shape {sizes[::-1]}, expected "
                f"{self.coded.name} and {list(self.shape)}",
                codec=self.name,
            )
        mode, start = header >> 52 & _LONG_MODE, _HEADER_BITS
        if mode == _LONG_MODE:
            long = int.from_bytes(value[start // 8 : -(-(start + 52) // 8)], "little")
            least, bits, start = 1 + (long & 0x7FFF), 1 + (long >> 15 & 0x7FFF), start + 52
        elif mode < _RATE_MODES:
            least = bits = mode + 1
        else:
            return None
        if least > self._most_bits():
            raise CorruptChunkError(f"The header says {least} bits a block", codec=self.name)
        return self._nbytes(start + self._blocks * bits) if least == bits else None

    def _decompressed(self, value: bytes) -> NDArray[Any]:
        try:
            if self.has_header:
                found: NDArray[Any] = _library.decompress_numpy(value)
            else:
                type_ = _library.dtype_to_ztype(self.coded)
                found = _library._decompress(value, type_, self.shape, **self.parameters)
        except (ValueError, TypeError, RuntimeError) as error:
            raise CorruptChunkError(f"zfp: {error}", codec=self.name) from error
        return found

    def _promoted(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Return narrow elements in 32 bits, by the rule of zfp's own functions."""
        if self.dtype == self.coded:
            return elements
        if self.coded.kind == "f":
            return elements.astype(self.coded)
        width = 8 * self.dtype.itemsize
        if width == 8 * self.coded.itemsize:
            if (elements > np.iinfo(self.coded).max).any():
                raise LimitError(
                    f"{text(self.name)} stores {self.dtype.name} up to {np.iinfo(self.coded).max}"
                )
            return elements.astype(self.coded)
        zero = 1 << (width - 1) if self.dtype.kind == "u" else 0
        promoted: NDArray[Any] = (elements.astype(np.int32) - np.int32(zero)) << (31 - width)
        return promoted

    def _demoted(self, found: NDArray[Any]) -> NDArray[Any]:
        """Return the nearest elements of fewer bits."""
        if self.dtype == self.coded:
            return found
        if self.coded.kind == "f":
            with np.errstate(over="ignore"):
                return found.astype(self.dtype)
        width, limits = 8 * self.dtype.itemsize, np.iinfo(self.dtype)
        wide = found.astype(np.int64)
        if width < 8 * self.coded.itemsize:
            wide = (wide >> (31 - width)) + (1 << (width - 1) if self.dtype.kind == "u" else 0)
        most = min(limits.max, np.iinfo(np.int64).max)
        return np.clip(wide, limits.min, most).astype(self.dtype)
