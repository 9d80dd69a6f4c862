"""The ``shuffle`` filter.

============  ======================================================================
content       All first bytes of the elements, then all second bytes, and so on
specification https://numcodecs.readthedocs.io/en/stable/filter/shuffle.html
v3 name       none
v2 id         ``shuffle``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "shuffle", "elementsize": 4}]

The default size is 4, as in numcodecs. Elements of 0 or 1 bytes are unchanged. A chunk without a
whole number of elements is an error, in numcodecs too; Blosc's own shuffle copies its last bytes.
TensorStore has no filters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpustore.codec_chain.base import BytesCodec, check_nbytes, deliver
from gpustore.codec_chain.device_streams import destinations, fall_back_where
from gpustore.codec_chain.registered import Codec, CodecVariant, Option, Options, integer
from gpustore.device.command_list import CommandList
from gpustore.device.encoding_list import EncodingList
from gpustore.device.kernels.block import shuffle_launches, unshuffle_launches
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError, MetadataError
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer

_MAX_ELEMENT_NBYTES = 2**31 - 1

# Up to so many bytes NumPy copies one place of all elements after the other, 2 to 6 times as fast.
_MOST_PLACES = 64


@dataclass(frozen=True, slots=True)
class _Shuffle(BytesCodec):
    name = "shuffle"
    decode_ns = 0.5
    is_exact = True
    is_view = False
    needs_bytes = False
    element_nbytes: int

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of the decoded bytes.

        Raises
        ------
        MetadataError
            If chunks are not whole elements.
        """
        if decoded_nbytes % self.element_nbytes:
            raise MetadataError(
                f'"elementsize" of {self.element_nbytes} does not divide chunks of '
                f"{decoded_nbytes} bytes"
            )
        return decoded_nbytes

    def encode(self, decoded: Buffer) -> Buffer:
        """Group the bytes of the elements by their place."""
        if self.element_nbytes == 1:
            return decoded
        elements = np.frombuffer(decoded, np.uint8).reshape(-1, self.element_nbytes)
        shuffled = np.empty(elements.T.shape, np.uint8)
        shuffled[:] = elements.T
        return shuffled.reshape(-1).data

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Join the bytes of each element."""
        nbytes = len(encoded)
        check_nbytes(nbytes, decoded_max, exact=exact, codec=self.name)
        if nbytes % self.element_nbytes:
            raise CorruptChunkError(
                f"{nbytes} bytes are no elements of {self.element_nbytes} bytes", codec=self.name
            )
        if self.element_nbytes == 1:
            return deliver(encoded, decoded_max, exact=exact, out=out)
        decoded = memoryview(bytearray(nbytes)) if out is None else out[:nbytes]
        elements = np.frombuffer(decoded, np.uint8).reshape(-1, self.element_nbytes)
        shuffled = np.frombuffer(encoded, np.uint8).reshape(self.element_nbytes, -1)
        if len(shuffled) > _MOST_PLACES:
            elements[:] = shuffled.T
        else:
            for place, column in enumerate(shuffled):
                elements[:, place] = column
        return decoded

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return None: a kernel decodes on every device, and checks bounds for any bytes."""
        del device, distrust
        return None

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of all values, also of those only on the device."""
        del device
        nbytes = commands.values.nbytes.astype(np.int64)
        wrong = (nbytes != decoded_max) if exact else (nbytes > decoded_max)
        wrong |= nbytes % self.element_nbytes != 0
        fall_back_where(commands, wrong, f"shuffle: not {decoded_max} bytes")
        kept = ~wrong
        if self.element_nbytes == 1 or not len(commands):
            return
        dst = destinations(commands, nbytes[kept])
        commands.launch_tables(
            unshuffle_launches(
                commands.values.address, dst.address, dst.nbytes, self.element_nbytes
            )
        )
        commands.values, commands.encoded = dst, None

    def encode_unsupported_reason(self, device: Decoders, decoded_nbytes: int) -> str | None:
        """Return None: a kernel encodes on every device."""
        del device, decoded_nbytes
        return None

    def encode_device(self, commands: EncodingList) -> None:
        """Record the shuffle of all values."""
        if self.element_nbytes == 1:
            return
        src = commands.values
        dst = destinations(commands, src.nbytes.astype(np.int64))
        launches = shuffle_launches(src.address, dst.address, src.nbytes, self.element_nbytes)
        commands.launch_tables(launches)
        commands.values = dst


def _prepare(options: Options, itemsize: int | None) -> _Shuffle:
    del itemsize
    return _Shuffle(max(1, options["elementsize"]))


CODEC = Codec(
    name="shuffle",
    filter=CodecVariant(
        options=(
            Option(
                name="elementsize",
                convert=integer(0, _MAX_ELEMENT_NBYTES),
                default=4,
                stored_default=4,
            ),
        ),
        prepare=_prepare,
    ),
)
