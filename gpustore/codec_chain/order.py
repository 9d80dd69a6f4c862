"""Stages for the order of elements, and of their bytes, behind codecs that change elements.

Before such codecs both orders are part of the layout of a chunk, and cost nothing. Behind a codec
that needs the elements in order, a ``transpose`` is a stage, and so is the byte order of ``bytes``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import BytesCodec, check_nbytes
from gpustore.codec_chain.device_streams import destinations, fall_back_where
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
    """Stage that swaps the bytes of elements, for the codec ``bytes`` after codecs of elements."""

    name = "bytes"
    decode_ns = 0.3

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> SwapStage:
        """Return the stage from elements of `dtype` in native byte order to the other one."""
        part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
        native = np.dtype(f"u{part}")
        return cls(native, native.newbyteorder("S"))

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Encode into `encoded`, in the other byte order; both are 1-D."""
        encoded[:] = decoded

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Decode into `decoded`, in the byte order it had; both are 1-D."""
        decoded[:] = encoded

    def conversions(self) -> Sequence[Conversion]:
        """Return no conversions: kernels read elements of either byte order."""
        return ()


@dataclass(frozen=True, slots=True)
class PermuteStage(BytesCodec):
    """Stage that transposes the output of a codec which needs the elements in order.

    Attributes
    ----------
    shape : tuple of int
        Shape of the decoded elements.
    order : tuple of int
        Permutation, as the option of the codec ``transpose``.
    itemsize : int
        Bytes of an element.
    """

    name = "transpose"
    is_exact = True
    decode_ns = 1.0
    needs_bytes = False

    shape: tuple[int, ...]
    order: tuple[int, ...]
    itemsize: int

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return `decoded_nbytes`: a transpose keeps the number of bytes."""
        return decoded_nbytes

    def encode(self, decoded: Buffer) -> Buffer:
        """Return the elements in the transposed order."""
        there = np.frombuffer(decoded, f"V{self.itemsize}").reshape(self.shape)
        return as_bytes(np.ascontiguousarray(there.transpose(self.order)).reshape(-1))

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Return the elements in the order before the transpose."""
        nbytes = math.prod(self.shape) * self.itemsize
        check_nbytes(len(encoded), nbytes, exact=True, codec=self.name)
        whole = np.empty(nbytes, np.uint8).data if out is None else out[:nbytes]
        element = np.dtype(f"V{self.itemsize}")
        there = np.frombuffer(encoded, element).reshape([self.shape[dim] for dim in self.order])
        np.frombuffer(whole, element).reshape(self.shape).transpose(self.order)[...] = there
        return whole

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return None: a strided copy transposes on every device."""
        del device, distrust
        return None

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record a strided copy of all values; it needs no bytes in host memory."""
        del device, exact
        wrong = commands.values.nbytes != decoded_max
        fall_back_where(commands, wrong, f"transpose: not {decoded_max} bytes")
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
    """Return the strides of contiguous elements in C order, in bytes."""
    return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
