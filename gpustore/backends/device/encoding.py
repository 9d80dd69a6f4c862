"""Encoding of the chunks of arrays on a device, where they are.

Chunks are encoded by submissions (:mod:`gpustore.backends.device.write_submission`) of as many
chunks as the budget has room for. Where memory is short halves are encoded one after the other.
What a submission leaves to the host is encoded here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from gpustore.backends.base import Overlay
from gpustore.backends.device.proven_encoders import ProvenEncoders
from gpustore.backends.device.write_submission import (
    Lane,
    WriteSubmission,
    WrittenChunk,
    WrittenValues,
)
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.protocol import Device
from gpustore.errors import GpustoreError, LimitError
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.limits import Limits

LANES: Final = 2
"""Most submissions of writes at a time: the values of one are stored while the next is encoded."""

_SHARES: Final = 8
"""Divisor of the budget of a submission: chunks, shuffled and compressed bytes, scratch, values."""


class DeviceEncoder:
    """Encoder of the chunks of writes on one device. Thread-safe.

    Parameters
    ----------
    device : Device
    with_memory : callable
        Does a submission, again and again while it lacks memory that is kept for later ones.
    give_back : callable
        Frees about so many bytes of device memory that caches keep and nobody uses.

    Attributes
    ----------
    codecs : ProvenEncoders
        Codecs that chunks are encoded with.
    """

    def __init__(
        self,
        device: Device,
        with_memory: Callable[[Callable[[], WrittenValues]], WrittenValues],
        give_back: Callable[[int], object],
    ) -> None:
        self.codecs = ProvenEncoders(device)
        self._device = device
        self._with_memory = with_memory
        self._give_back = give_back
        self._left = LANES
        self._idle: list[Lane] = []
        self._changed = threading.Condition()

    def nbytes(self, limits: Limits, written_nbytes: int) -> int:
        """Return the decoded bytes of the chunks of one submission of a write.

        Caches give memory back where it lacks for submissions of `written_nbytes` bytes, or of as
        many as the limits allow.
        """
        budget = limits.device_in_flight_nbytes
        lacking = 2 * min(budget, LANES * _SHARES * written_nbytes) - self._free_nbytes()
        if lacking > 0:
            self._give_back(lacking)
        return max(1, min(budget, self._free_nbytes() // 2) // (LANES * _SHARES))

    def _free_nbytes(self) -> int:
        return self._device.memory().free_nbytes

    def encode(
        self,
        overlays: Sequence[Overlay],
        chain: CodecChain,
        fill_value: Any,
        limits: Limits,
        *,
        keep_fill: bool,
    ) -> list[Buffer | None]:
        """Encode the chunks of overlays; see :meth:`gpustore.backends.base.Backend.gather`."""
        chunks = [
            WrittenChunk(number, row, overlay.layers[0].rows.keys[row], stored)
            for number, overlay in enumerate(overlays)
            for row, stored in enumerate(overlay.stored)
        ]
        nbytes = max(1, chain.layout.nbytes)
        most = max(1, self.nbytes(limits, len(chunks) * nbytes) // nbytes)
        wanted = CancelToken.current()
        encoded: list[Buffer | None] = []
        for first in range(0, len(chunks), most):
            wanted.check()
            some = chunks[first : first + most]
            encoded += self._encode(some, overlays, chain, fill_value, keep_fill=keep_fill)
        return encoded

    def _encode(
        self,
        chunks: Sequence[WrittenChunk],
        overlays: Sequence[Overlay],
        chain: CodecChain,
        fill_value: Any,
        *,
        keep_fill: bool,
    ) -> list[Buffer | None]:
        """Encode chunks by one submission, or halves of them where memory is short."""
        encodes = chain.encode_unsupported_reason(self.codecs) is None

        def run() -> WrittenValues:
            lane = self._take()
            try:
                submission = WriteSubmission(
                    *(self._device, lane, chunks, overlays, chain, fill_value)
                )
                return submission.run(keep_fill=keep_fill, encodes=encodes)
            except MemoryError:
                lane.free()
                raise
            finally:
                self._put(lane)

        values = None
        try:
            values = self._with_memory(run)
        except MemoryError as error:
            if len(chunks) == 1:
                key = chunks[0].key
                raise LimitError(
                    f'Error writing "{key}": a chunk of {chain.layout.nbytes} bytes and its '
                    f"encoding do not fit the memory of device {self._device.name}",
                    key=key,
                ) from error
        if values is None:
            half = len(chunks) // 2
            found: list[Buffer | None] = []
            for some in (chunks[:half], chunks[half:]):
                found += self._encode(some, overlays, chain, fill_value, keep_fill=keep_fill)
            return found
        for i, decoded in values.decoded.items():
            try:
                values.encoded[i] = chain.encode(decoded)
            except GpustoreError as error:
                key = chunks[i].key
                raise error.prefixed(f'Error writing "{key}"', key=key) from error
        return values.encoded

    def free(self) -> None:
        """Free the pinned memory of all submissions that do not run."""
        with self._changed:
            for lane in self._idle:
                lane.free()

    def _take(self) -> Lane:
        with self._changed:
            while not self._idle:
                if self._left:
                    self._idle.append(Lane(self._device))
                    self._left -= 1
                else:
                    self._changed.wait()
            return self._idle.pop()

    def _put(self, lane: Lane) -> None:
        with self._changed:
            self._idle.append(lane)
            self._changed.notify()
