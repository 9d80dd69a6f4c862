"""The order of elements, and of the bytes of each, behind codecs that change elements.

Before such codecs both are part of the layout of a chunk, and cost nothing. Behind one that needs
the order it is given, a ``transpose`` is a stage, and so is the byte order that ``bytes`` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import BytesCodec, too_long, too_short
from gpustore.codec_chain.device_streams import destinations, refuse_where
from gpustore.codec_chain.value import ValueStage, as_bytes
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.launch import copy_launches
from gpustore.device.kernels.run import Rows
from gpustore.device.kernels.value import Conversion
from gpustore.device.protocol import Decoders, Device
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer


@dataclass(frozen=True, slots=True)
class SwapStage(ValueStage):
    """Elements in the other byte order, for the codec ``bytes`` after codecs of elements."""

    name = "bytes"
    decode_ns = 0.3

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> SwapStage:
        """From elements of `dtype` in the order of this machine to the other one."""
        part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
        native = np.dtype(f"u{part}")
        return cls(native, native.newbyteorder("S"))

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Swapped."""
        encoded[:] = decoded

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Swapped back."""
        decoded[:] = encoded

    def conversions(self) -> Sequence[Conversion]:
        """None: how a kernel reads them is enough."""
        return ()


@dataclass(frozen=True, slots=True)
class PermuteStage(BytesCodec):
    """A transpose of what a codec has made that needs the order it was given.

    Attributes
    ----------
    shape : tuple of int
        Of what is encoded.
    order : tuple of int
        As the codec ``transpose`` has it.
    itemsize : int
    """

    name = "transpose"
    is_exact = True
    decode_ns = 1.0
    needs_bytes = False

    shape: tuple[int, ...]
    order: tuple[int, ...]
    itemsize: int

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """As many bytes."""
        return decoded_nbytes

    def encode(self, decoded: Buffer) -> Buffer:
        """The elements in the other order."""
        there = np.frombuffer(decoded, f"V{self.itemsize}").reshape(self.shape)
        return as_bytes(np.ascontiguousarray(there.transpose(self.order)).reshape(-1))

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """The elements in the order they had."""
        nbytes = math.prod(self.shape) * self.itemsize
        if len(encoded) > nbytes:
            raise too_long(nbytes, len(encoded), codec=self.name)
        if len(encoded) < nbytes:
            raise too_short(nbytes, len(encoded), codec=self.name)
        whole = np.empty(nbytes, np.uint8).data if out is None else out[:nbytes]
        element = np.dtype(f"V{self.itemsize}")
        there = np.frombuffer(encoded, element).reshape([self.shape[dim] for dim in self.order])
        np.frombuffer(whole, element).reshape(self.shape).transpose(self.order)[...] = there
        return whole

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """None: a copy can do it."""
        del device, distrust
        return None

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """All values, also those whose bytes only the device has."""
        del device, exact
        wrong = commands.values.nbytes != decoded_max
        refuse_where(commands, wrong, f"transpose: not {decoded_max} bytes")
        dst = destinations(commands, commands.values.nbytes.astype(np.int64))
        there = tuple(self.shape[dim] for dim in self.order)
        rows = Rows(
            commands.values.address,
            dst.address,
            np.repeat(np.array(there, np.int64)[:, None], len(commands), axis=1),
            _strides(there, self.itemsize),
            tuple(_strides(self.shape, self.itemsize)[dim] for dim in self.order),
        )
        commands.launch_tables(copy_launches(rows, self.itemsize))
        commands.values, commands.encoded = dst, None


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Of contiguous elements."""
    return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
