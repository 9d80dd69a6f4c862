"""Stages of a codec chain: :class:`BytesCodec`, prepared from a registered codec and its options.

Three kinds of objects are called codecs: registered ones (:mod:`gpustore.codec_chain.registered`),
stages, and layouts of decoded bytes (:mod:`gpustore.codec_chain.layout`).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from gpustore.codec_chain.device_segments import EncodedValues
from gpustore.codec_chain.device_streams import cannot
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.encoding_list import EncodingList
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer


class BytesCodec(abc.ABC):
    """Prepared bytes -> bytes stage of a chain. Any number of threads may use it at once."""

    __slots__ = ()

    name: str
    """Registered name of the codec, for messages."""

    is_exact: ClassVar[bool] = False
    """Whether every encoding has exactly :meth:`encoded_bound` bytes."""

    is_view: ClassVar[bool] = False
    """Whether :meth:`decode` without `out` copies nothing."""

    decode_ns: float = 1.0
    """Estimate of the nanoseconds one thread takes for a decoded byte, for the division of work."""

    decodes_parts: bool = False
    """Whether :meth:`decode_part` takes less time than :meth:`decode`."""

    verifies: ClassVar[bool] = False
    """Whether :meth:`decode_device` can compare a checksum before later stages decode."""

    needs_bytes: ClassVar[bool] = True
    """Whether :meth:`decode_device` needs the encoded bytes in host memory, to read headers."""

    appends: ClassVar[str | None] = None
    """Checksum, a key of ``CHECKSUMS``, whose 4 bytes are all that encoding adds, at the end."""

    @property
    def is_identity(self) -> bool:
        """Whether decoding returns all bytes unchanged."""
        return False

    @property
    def device_codec(self) -> str | None:
        """Name of the device codec of the streams in a value, None without one."""
        return None

    @property
    def image_format(self) -> str | None:
        """Format of the images that values are, if the library of a device may decode them."""
        return None

    @property
    def device_outputs(self) -> int:
        """Number of times that decoding on a device has the decoded bytes in its memory."""
        return 0 if self.is_view else 1

    def device_streams(self, decoded_nbytes: int) -> tuple[int, int]:
        """Return the number of streams in a value, and the decoded bytes of the longest.

        They are an estimate for values of `decoded_nbytes` decoded bytes, made without a value, for
        codecs with a :attr:`device_codec`.
        """
        return 1, decoded_nbytes

    @property
    def native_codec(self) -> str | None:
        """Name of the codec of the native core that decodes whole values, None without one."""
        return None

    @property
    def native_header(self) -> bytes:
        """Bytes with which each value of :attr:`native_codec` begins, before those of the codec."""
        return b""

    def native_options(self, decoded_nbytes: int) -> Mapping[str, int] | None:
        """Return the options with which the native core encodes values of `decoded_nbytes` bytes.

        They are members of ``Encoding`` in ``kernels/host/write_job.h``. None where it cannot make
        the same bytes as :meth:`encode`.
        """
        del decoded_nbytes
        return None

    @abc.abstractmethod
    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the most bytes that any encoder makes of `decoded_nbytes` bytes."""

    def staged_bound(self, decoded_nbytes: int) -> int:
        """Return the most bytes of a value for which memory of a device is taken beforehand.

        The host decodes longer ones.
        """
        return self.encoded_bound(decoded_nbytes)

    @abc.abstractmethod
    def encode(self, decoded: Buffer) -> Buffer:
        """Encode one chunk in host memory.

        `decoded` must be contiguous; it may be changed once the method has returned.
        """

    @abc.abstractmethod
    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one chunk in host memory bounded by `decoded_max`, whatever its header claims.

        Parameters
        ----------
        encoded : bytes-like
            The whole stored value: no byte may be missing, none may follow.
        decoded_max : int
            Most bytes of the result.
        exact : bool
            Whether the result must have exactly `decoded_max` bytes.
        out : memoryview, optional
            Writable host memory of `decoded_max` bytes. If given, the result is a view of it.

        Returns
        -------
        bytes-like
            The decoded bytes.

        Raises
        ------
        CorruptChunkError
            If `encoded` is damaged, or does not decode to an allowed number of bytes.
        """

    def decode_part(
        self, encoded: Buffer, nbytes: int, start: int, stop: int, out: memoryview
    ) -> tuple[Buffer, int]:
        """Decode at least the bytes [start, stop).

        Parameters
        ----------
        encoded : bytes-like
            The whole stored value.
        nbytes : int
            Bytes that the whole value must decode to.
        start, stop : int
            Range of decoded bytes; not empty, inside [0, nbytes).
        out : memoryview
            Writable host memory of `nbytes` bytes; the result may be a view of it.

        Returns
        -------
        bytes-like, int
            The decoded bytes, and the offset of the first one in the whole value.

        Raises
        ------
        CorruptChunkError
            If that part is damaged, or the whole has another size. Other parts are not checked.
        """
        del start, stop
        return self.decode(encoded, nbytes, exact=True, out=out), 0

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return why no value at all can be decoded on `device`, None if values can be.

        By default that depends on :attr:`device_codec` and :attr:`image_format`. `distrust` is the
        rule its decoders must heed; a command list has its own.
        """
        if self.image_format is not None:
            return self.missing_decoder(device) or (None if distrust is None else distrust.reason)
        codec = self.device_codec
        if codec is None:
            return f"{self.name} is not decoded on a device"
        return cannot(device, codec, distrust)

    def missing_decoder(self, device: Decoders) -> str | None:
        """Return what `device` lacks to decode any value, None if it lacks nothing."""
        if self.image_format is not None:
            return device.image_decoder(self.image_format).missing.get(self.image_format)
        return None if self.device_codec is None else cannot(device, self.device_codec, None)

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the steps that decode values of `commands` on a device; the others fall back.

        Parameters
        ----------
        commands : CommandList
            Encoded values. Afterwards ``commands.values`` are the decoded ones, and
            ``commands.encoded`` is None, unless these bytes are in host memory too.
        device : Device
            Device for which :meth:`unsupported_reason` is None.
        decoded_max, exact
            As for :meth:`decode`. Values of unknown decoded size fall back to the host.

        Raises
        ------
        MemoryError
            If there is no scratch memory; the list cannot be used any more.
        """
        del decoded_max, exact
        reason = self.unsupported_reason(device) or f"{self.name} is not decoded on a device"
        self._fall_back_all(commands, reason)

    def encode_unsupported_reason(self, device: Decoders, decoded_nbytes: int) -> str | None:
        """Return why `device` encodes no values of `decoded_nbytes` bytes, None if it does."""
        del device, decoded_nbytes
        return f"{self.name} is not encoded on a device"

    def encode_device(self, commands: EncodingList) -> EncodedValues | None:
        """Record the steps that encode all values of `commands`.

        Called where :meth:`encode_unsupported_reason` is None.

        Returns
        -------
        EncodedValues or None
            Encoded values whose sizes the steps find; None if ``commands.values`` are the encoded
            ones, which have the size of :meth:`encoded_bound`.

        Raises
        ------
        MemoryError
            If there is no scratch memory; the list cannot be used any more.
        """
        raise AssertionError(f"{self.name} is not encoded on a device")

    def _fall_back_all(self, commands: CommandList, reason: str) -> None:
        commands.fall_back(dict.fromkeys(range(len(commands)), reason))

    def _headers(
        self,
        commands: CommandList,
        read: Callable[[EncodedColumns], tuple[Any, dict[int, str]]],
    ) -> Any | None:
        """Return what `read` finds in the encoded bytes, or what it found in those of a cache.

        If the host has neither, all values fall back to it. None if no values are left.
        """
        headers = commands.read_headers(read)
        if headers is None:
            self._fall_back_all(commands, f"{self.name}: its headers are not in host memory")
        return headers if len(commands) else None


def too_short(expected: int, found: int, *, codec: str | None = None) -> CorruptChunkError:
    """Return the error for a value that has `found` instead of `expected` bytes."""
    return CorruptChunkError(
        f"Not enough data: expected at least {expected} or {expected - found} more; "
        f"at byte {found}",
        codec=codec,
    )


def too_long(expected: int, found: int | None = None, *, codec: str) -> CorruptChunkError:
    """Return the error for a value of more than `expected` bytes; `found` is None if unknown."""
    remaining = "" if found is None else f"; remaining length: {found - expected}"
    return CorruptChunkError(f"End of data expected{remaining}; at byte {expected}", codec=codec)


def check_nbytes(found: int, expected: int, *, exact: bool, codec: str) -> None:
    """Raise CorruptChunkError unless a value of `found` bytes has at most `expected`, and exactly
    that many if `exact`.
    """
    if found > expected:
        raise too_long(expected, found, codec=codec)
    if exact and found < expected:
        raise too_short(expected, found, codec=codec)


def deliver(decoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None) -> Buffer:
    """Return bytes that a library decoded as :meth:`BytesCodec.decode` does, in `out` if given.

    `decoded` must have at most `decoded_max` bytes, and exactly that many if `exact`, which
    :func:`check_nbytes` checks.
    """
    if out is None:
        return decoded
    nbytes = decoded_max if exact else len(decoded)
    # NumPy lets other threads run meanwhile: one may wait for Ctrl-C.
    np.frombuffer(out, np.uint8)[:nbytes] = np.frombuffer(decoded, np.uint8)
    return out[:nbytes]
