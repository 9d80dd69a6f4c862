"""Strings and bytes of any length as one stream of bytes: ``vlen-utf8`` and ``vlen-bytes``.

A stream is the number of elements, then for each element its length in bytes and its bytes;
numbers are uint32, little endian. The elements are in C order of the array that is encoded.

numcodecs writes and reads streams. This module checks what numcodecs does not: the number of
elements before memory is allocated for them, and the end of the stream.

Source: ``numcodecs/vlen.pyx``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import too_long, too_short
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.registered import Option
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import CorruptChunkError, MismatchError, UnsupportedError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import Members

_U32: Final = struct.Struct("<I")
_MOST_ELEMENTS: Final = 2**32 - 2

# Random bytes put behind the stream: found behind the last element, they prove that it ends where
# the stream does. A writer of files cannot know them.
_END: Final = os.urandom(8).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class VlenCodec:
    """Registered array -> bytes codec of strings or bytes of any length.

    Attributes
    ----------
    name : str
        Name in Zarr v3, and id among the filters of Zarr v2. The codec has no options.
    dtype : dtype
        Data type of the elements, ``ustring`` or ``string``.
    encode_library, decode_library : callable
        Functions of numcodecs from an array of objects to a stream, and back.
    """

    kind: ClassVar[str] = "array -> bytes"
    options: ClassVar[tuple[Option, ...]] = ()
    name: str
    dtype: DataType
    encode_library: Callable[[NDArray[Any]], Buffer]
    decode_library: Callable[[Buffer], NDArray[Any]]

    def parse(self, members: Members, *, stored: bool) -> dict[str, Any]:
        """Return no options; MetadataError if there are any."""
        del stored
        members.finish()
        return {}

    def layout(self, shape: tuple[int, ...], *, order: str = "C") -> ChunkBytes:
        """Return the layout of the references to the elements of a decoded chunk.

        Raises
        ------
        UnsupportedError
            If a chunk has more elements than a uint32 can count.
        """
        layout = ChunkBytes.contiguous(np.dtype(object), shape, order=order)
        if layout.nbytes // layout.dtype.itemsize > _MOST_ELEMENTS:
            raise UnsupportedError(
                f"{self.name} codec stores at most {_MOST_ELEMENTS} elements in a chunk, not those "
                f"of shape {list(shape)}"
            )
        return layout

    def encode(self, elements: NDArray[Any]) -> Buffer:
        """Encode a 1-D host array of objects as a stream.

        Raises
        ------
        MismatchError
            If a string has surrogates, and so no UTF-8.
        """
        try:
            return self.encode_library(elements)
        except UnicodeEncodeError as error:
            raise MismatchError(
                f"{self.name}: a string cannot be stored as UTF-8: {error}", status=""
            ) from error

    def decode(self, encoded: Buffer, count: int) -> NDArray[Any]:
        """Decode a stream to a 1-D host array of `count` objects.

        Memory is allocated for the bytes in `encoded`, not for the lengths it claims.

        Raises
        ------
        CorruptChunkError
            If the stream has another number of elements, an element is cut off or not UTF-8, or
            bytes follow the last one.
        """
        nbytes = len(encoded)
        if nbytes < _U32.size:
            raise too_short(_U32.size, nbytes, codec=self.name)
        (found,) = _U32.unpack_from(encoded)
        if found != count:
            raise CorruptChunkError(
                f"Expected {count} elements, but received: {found}; at byte 0", codec=self.name
            )
        if nbytes < _U32.size * (1 + count):
            raise too_short(_U32.size * (1 + count), nbytes, codec=self.name)
        end = _END.encode()
        stream = memoryview(encoded)[_U32.size :]
        marked = b"".join((_U32.pack(count + 1), stream, _U32.pack(len(end)), end))
        try:
            elements = self.decode_library(marked)
        except (ValueError, SystemError):
            raise self._wrong(encoded) from None
        if elements[count] not in (_END, end):
            raise self._wrong(encoded)
        return elements[:count]

    def _wrong(self, encoded: Buffer) -> CorruptChunkError:
        """Return the error for a damaged stream with the right number of elements."""
        try:
            elements = self.decode_library(encoded)
        except UnicodeDecodeError as error:
            return CorruptChunkError(f"Invalid UTF-8: {error}", codec=self.name)
        except (ValueError, SystemError):
            return CorruptChunkError(
                "An element is longer than what is left of the chunk", codec=self.name
            )
        used = _U32.size + sum(_U32.size + _length(element) for element in elements)
        return too_long(used, len(encoded), codec=self.name)


def _length(element: str | bytes) -> int:
    return len(element.encode() if isinstance(element, str) else element)
