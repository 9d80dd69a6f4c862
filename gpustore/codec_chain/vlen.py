"""Strings and bytes of any length as one stream of bytes: ``vlen-utf8`` and ``vlen-bytes``.

The stream is the number of elements, then of each element its length in bytes and those bytes;
numbers are 32 bits, little endian. The elements are in C order of the array that is encoded.

numcodecs makes and reads streams. What it leaves open is checked here: the number of elements
before memory is taken for them, and that nothing follows the last one.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import ChunkBytes, Option, too_long, too_short
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import CorruptChunkError, MismatchError, UnsupportedError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import Members

_U32: Final = struct.Struct("<I")
_MOST_ELEMENTS: Final = 2**32 - 2

# Put behind the last element: found there, it proves that the element ends where the stream does.
# Nobody who writes files can know it.
_END: Final = secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class VlenCodec:
    """A registered array -> bytes codec of strings or bytes of any length.

    Attributes
    ----------
    name : str
        Name in Zarr v3, and id among the filters of Zarr v2. There are no options.
    dtype : dtype
        Of the elements, ``ustring`` or ``string``.
    encode_library, decode_library : callable
        From an array of objects to a stream, and back.
    """

    kind: ClassVar[str] = "array -> bytes"
    options: ClassVar[tuple[Option, ...]] = ()
    name: str
    dtype: DataType
    encode_library: Callable[[NDArray[Any]], Buffer]
    decode_library: Callable[[Buffer], NDArray[Any]]

    def parse(self, members: Members, *, stored: bool) -> dict[str, Any]:
        """Refuse options."""
        del stored
        members.finish()
        return {}

    def layout(self, shape: tuple[int, ...], *, order: str = "C") -> ChunkBytes:
        """Where the references to the elements of a decoded chunk are.

        Raises
        ------
        UnsupportedError
            If there are more elements than the stream can say.
        """
        layout = ChunkBytes.contiguous(np.dtype(object), shape, order=order)
        if layout.nbytes // layout.dtype.itemsize > _MOST_ELEMENTS:
            raise UnsupportedError(
                f"{self.name} codec stores at most {_MOST_ELEMENTS} elements in a chunk, not those "
                f"of shape {list(shape)}"
            )
        return layout

    def encode(self, elements: NDArray[Any]) -> Buffer:
        """The stream of a 1-D array of objects.

        Raises
        ------
        MismatchError
            If a string has no UTF-8, since it has surrogates.
        """
        try:
            return self.encode_library(elements)
        except UnicodeEncodeError as error:
            raise MismatchError(
                f"{self.name}: a string cannot be stored as UTF-8: {error}", status=""
            ) from error

    def decode(self, encoded: Buffer, count: int) -> NDArray[Any]:
        """The elements of a stream: a 1-D array of `count` objects.

        Memory is taken for what `encoded` has, whatever it claims.

        Raises
        ------
        CorruptChunkError
            If there is another number of elements, one of them is cut off or not UTF-8, or
            something follows the last one.
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
        """What is wrong with a stream of the right number of elements."""
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
