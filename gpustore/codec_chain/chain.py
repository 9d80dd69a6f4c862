"""Resolved codecs of an array: encoding and decoding of chunks.

A :class:`CodecChain` is a byte layout, which costs nothing per chunk, plus stages: first those that
change elements, then bytes -> bytes. Transposes are part of the layout, but those behind a stage
that needs the elements in order. :mod:`gpustore.codec_chain.resolve` makes a chain from metadata.

The number of decoded bytes is known before, so no stage allocates memory by the size that a chunk
claims. Strings and bytes of any length are the exception: a chain of those decodes to a stream of
at most as many bytes as the limit of a chunk, and its layout is that of references to the elements
made of the stream (:mod:`gpustore.codec_chain.vlen`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import BytesCodec, too_long, too_short
from gpustore.codec_chain.decoder_choice import Streams
from gpustore.codec_chain.device_segments import EncodedValues, Unchanged
from gpustore.codec_chain.device_streams import fall_back_where
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.legal_elements import checker, illegal_bits, in_records, normalizer
from gpustore.codec_chain.value import ElementStages, ValueStage
from gpustore.codec_chain.vlen import VlenCodec
from gpustore.device.command_list import CommandList
from gpustore.device.encoding_list import EncodingList
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import (
    CorruptChunkError,
    GpustoreError,
    LimitError,
    MetadataError,
)
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import JsonValue, text

_PARTED_NBYTES = 96 << 10
"""Decoded bytes below which a chunk is one block for most encoders, and parts save nothing."""

_COPY_NS = 0.12
"""Estimate of the nanoseconds one thread takes to place a decoded byte."""

_OBJECT_NS = 12
"""Estimate of the nanoseconds to make an element of any length, per byte of its reference."""

_REFERENCE_NBYTES = np.dtype(object).itemsize

_OBJECTS_NBYTES = 64 << 10
"""Least bytes that a chunk of such elements counts as: few references may be long strings."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Stage of a chain, with the number of bytes that it must or may decode to."""

    stage: BytesCodec
    decoded_max: int
    exact: bool


@dataclass(frozen=True, slots=True)
class _DeviceStep:
    """Step that a device does at once: a stage, or several codecs of elements."""

    stage: BytesCodec | ElementStages
    decoded_max: int
    exact: bool


def _together(steps: Sequence[_Step]) -> tuple[_DeviceStep, ...]:
    """Return the steps in the order of decoding, consecutive ones of elements joined."""
    found: list[_DeviceStep] = []
    for step in steps:
        stage: BytesCodec | ElementStages = step.stage
        if isinstance(step.stage, ValueStage) and step.stage.conversions() is not None:
            last = found[-1].stage if found else None
            if isinstance(last, ElementStages) and last.takes(step.stage):
                stage = ElementStages((*last.stages, step.stage))
                found.pop()
            else:
                stage = ElementStages((step.stage,))
        found.append(_DeviceStep(stage, step.decoded_max, step.exact))
    return tuple(found)


class CodecChain:
    """Chain of the codecs of one array. Immutable; any number of threads may use it at once.

    Parameters
    ----------
    layout : ChunkBytes
        Layout of the elements in the decoded bytes.
    stages : sequence of BytesCodec
        Stages in the order of encoding.
    json : JsonValue
        Result of :meth:`to_json`.
    inner_order : tuple of int, optional
        Dimensions from the slowest to the fastest in the decoded bytes; by default C order.
    objects : VlenCodec, optional
        Codec of strings or bytes of any length; `layout` is that of references to them.
    objects_max : int, optional
        Most decoded bytes of a chunk of such elements.

    Attributes
    ----------
    layout : ChunkBytes
    objects : VlenCodec or None
    objects_max : int
    batch_nbytes : int
        Bytes that a decoded chunk counts as where several are fetched or cached together.
    inner_order : tuple of int
        Dimensions from the slowest to the fastest in the decoded bytes. Strides do not tell it
        where a dimension has one element.
    stages : tuple of BytesCodec
        Stages in the order of encoding.
    encoded_bound : int
        Most bytes that a stored chunk may have; longer ones are an error before they are read.
    staged_bound : int
        Most bytes of a stored chunk for which memory of a device is taken beforehand.
    is_raw : bool
        Whether stored bytes are the decoded bytes, so that parts of them can be read.
    is_view : bool
        Whether decoding without `out` copies nothing.
    all_legal : bool
        Whether any bytes are legal elements, so that decoded ones need no :meth:`check`.
    reads_parts : bool
        Whether a part of the decoded bytes can be checked by itself.
    needs_bytes : bool
        Whether encoded bytes that a device decodes must be in host memory, too.
    decodes_parts : bool
        Whether decoding a part of a chunk takes less time than all of it.
    byte_s, decode_s : float
        Estimates of the seconds one thread takes to decode a byte and a chunk, and to place the
        elements.
    """

    __slots__ = (
        "_check",
        "_device_steps",
        "_distrust",
        "_json",
        "_normalize",
        "_steps",
        "_streams",
        "all_legal",
        "batch_nbytes",
        "byte_s",
        "decode_s",
        "decodes_parts",
        "encoded_bound",
        "inner_order",
        "is_raw",
        "is_view",
        "layout",
        "needs_bytes",
        "objects",
        "objects_max",
        "reads_parts",
        "staged_bound",
        "stages",
    )

    def __init__(
        self,
        layout: ChunkBytes,
        stages: Sequence[BytesCodec],
        json: JsonValue,
        *,
        inner_order: tuple[int, ...] | None = None,
        objects: VlenCodec | None = None,
        objects_max: int = 0,
    ) -> None:
        self.layout = layout
        self.objects = objects
        self.objects_max = 0 if objects is None else objects_max
        self.batch_nbytes = (
            layout.nbytes if objects is None else max(layout.nbytes, _OBJECTS_NBYTES)
        )
        self.inner_order = tuple(range(len(layout.shape))) if inner_order is None else inner_order
        self.stages = tuple(stages)
        self.is_raw = not self.stages and objects is None
        self.is_view = all(stage.is_view for stage in self.stages)
        ns = _COPY_NS + sum(stage.decode_ns for stage in self.stages)
        ns += 0 if objects is None else _OBJECT_NS
        self.byte_s = 1e-9 * ns
        self.decode_s = self.byte_s * layout.nbytes
        self._json = json
        self._distrust: Distrust | None = None
        self._streams: list[Streams] | None = None
        self._check: Callable[[Buffer], Buffer] | None = in_records(layout, checker(layout.dtype))
        self._normalize: Callable[[Buffer], Buffer] | None = in_records(
            layout, normalizer(layout.dtype)
        )
        self.all_legal = self._check is None
        self.reads_parts = (self._check is None or not layout.record) and objects is None
        self.needs_bytes = any(one.needs_bytes for one in self.stages)
        steps = []
        bound, exact = (layout.nbytes, True) if objects is None else (objects_max, False)
        for stage in self.stages:
            steps.append(_Step(stage, bound, exact))
            bound = stage.encoded_bound(bound)
            exact = exact and stage.is_exact
        self.encoded_bound = bound
        last = steps[-1] if steps else None
        self.staged_bound = bound if last is None else last.stage.staged_bound(last.decoded_max)
        self._steps = tuple(reversed(steps))
        self._device_steps = _together(self._steps)
        first = self.stages[:1]
        self.decodes_parts = (
            self.reads_parts
            and layout.nbytes >= _PARTED_NBYTES
            and any(stage.decodes_parts for stage in first)
        )

    def decode(self, encoded: Buffer, out: memoryview | None = None) -> Buffer:
        """Decode one whole chunk in host memory.

        Parameters
        ----------
        encoded : bytes-like
            The stored value.
        out : memoryview, optional
            Writable host memory, 1-D uint8, of ``layout.nbytes`` bytes to decode into. A raw
            chain does not write there and returns `encoded`.

        Returns
        -------
        bytes-like of ``layout.nbytes`` bytes
            A view of `out` if that was given and the chain is not raw; otherwise valid as long
            as `encoded` is unchanged.

        Raises
        ------
        CorruptChunkError
            If `encoded` is not a complete encoding of exactly one chunk of legal elements.
        UnsupportedError
            If gpustore cannot decode this form of encoding.
        """
        if not self._steps:
            found, nbytes = len(encoded), self.layout.nbytes
            if self.objects is not None:
                return self._before_last(encoded)
            if found != nbytes:
                raise self._wrong_length(found, nbytes)
            return encoded if self._check is None else self._check(encoded)
        step = self._steps[-1]
        decoded = step.stage.decode(
            self._before_last(encoded), step.decoded_max, exact=step.exact, out=out
        )
        return decoded if self._check is None else self._check(decoded)

    def decode_part(
        self, encoded: Buffer, start: int, stop: int, out: memoryview
    ) -> tuple[Buffer, int]:
        """Decode at least the bytes [start, stop) of a chunk that is not raw.

        Parameters
        ----------
        encoded : bytes-like
            The whole stored value.
        start, stop : int
            Range of decoded bytes of whole elements; not empty.
        out : memoryview
            Writable host memory, 1-D uint8, of ``layout.nbytes`` bytes; the result may be a view.

        Returns
        -------
        bytes-like, int
            The decoded bytes, and the offset of the first one in the chunk.

        Raises
        ------
        CorruptChunkError, UnsupportedError
            As :meth:`decode`, but damage to other parts may go unnoticed.
        """
        value = self._before_last(encoded)
        stage = self._steps[-1].stage
        decoded, begin = stage.decode_part(value, self.layout.nbytes, start, stop, out)
        return decoded if self._check is None else self._check(decoded), begin

    def _before_last(self, encoded: Buffer) -> Buffer:
        """Decode all stages but the last one."""
        if len(encoded) > self.encoded_bound:
            of = self.objects_max or self.layout.nbytes
            raise CorruptChunkError(
                f"Encoded chunk of {len(encoded)} bytes; no encoding of {of} "
                f"bytes has more than {self.encoded_bound}",
                codec=self._steps[0].stage.name if self._steps else None,
            )
        decoded = encoded
        for step in self._steps[:-1]:
            decoded = step.stage.decode(decoded, step.decoded_max, exact=step.exact)
        return decoded

    def distrusted(self, distrust: Distrust | None) -> CodecChain:
        """Return the chain with `distrust` as the rule for decoders of a device."""
        if distrust == self._distrust:
            return self
        chain = copy(self)
        chain._distrust = distrust
        return chain

    def trusted_as(self, other: CodecChain) -> CodecChain:
        """Return the chain with the rule of `other` for decoders of a device."""
        return self.distrusted(other._distrust)

    def for_host(self, reason: str) -> CodecChain:
        """Return the chain whose values the host decodes, for `reason`, on every device."""
        return self.distrusted(Distrust(reason, of_all=True))

    @property
    def is_for_host(self) -> bool:
        """Whether no device is to decode any value."""
        return self._distrust is not None and self._distrust.of_all

    def of_bytes(self, rank: int) -> CodecChain:
        """Return the chain of arrays that show the bytes of stored records, unchecked.

        `rank` is the number of dimensions without those inside a record.
        """
        layout = self.layout
        chain = copy(self)
        chain.layout = replace(
            layout,
            dtype=np.dtype(np.uint8),
            shape=(*layout.shape[:rank], layout.record),
            strides=(*layout.strides[:rank], 1),
            offset=0,
        )
        chain._check = chain._normalize = None
        return chain

    def device_streams(self, count: int) -> list[Streams]:
        """Estimate the streams in `count` values that the libraries of a device decode."""
        known = self._streams
        if known is None:
            known = []
            for step in self._steps:
                codec = step.stage.device_codec
                if codec is not None:
                    known.append(Streams(codec, *step.stage.device_streams(step.decoded_max)))
            self._streams = known
        return [Streams(codec, count * number, longest) for codec, number, longest in known]

    def unsupported_reason(self, device: Decoders) -> str | None:
        """Return why no chunk can be decoded on `device`, None if chunks can be."""
        if self.objects is not None:
            return f"elements of {self.objects.name} are Python objects"
        distrust = self._distrust
        for step in self._steps:
            if distrust is not None and distrust.of_all:
                return distrust.reason
            if step is not self._steps[0] and step.stage.image_format is not None:
                return f"{step.stage.name} behind another codec is decoded by the host"
            reason = step.stage.unsupported_reason(device, distrust)
            if reason is not None:
                return reason
            if distrust is not None and distrust.ends_with_checksum and step.stage.verifies:
                distrust = None
        return None

    def decode_device(self, commands: CommandList, device: Device) -> None:
        """Record the steps that decode each value of `commands` to a chunk in device memory.

        Called where :meth:`unsupported_reason` is None. Values that the device cannot decode, and
        those whose structure is damaged, fall back to the host, which decodes them or raises the
        error.

        Raises
        ------
        MemoryError
            If there is not enough device memory; the list cannot be used any more.
        """
        too_long = commands.values.nbytes > self.encoded_bound
        fall_back_where(commands, too_long, "longer than any encoding of a chunk")
        commands.distrust = self._distrust
        for step in self._device_steps:
            if not len(commands):
                return
            step.stage.decode_device(commands, device, step.decoded_max, exact=step.exact)
        wrong = commands.values.nbytes != self.layout.nbytes
        fall_back_where(commands, wrong, f"not {self.layout.nbytes} bytes long")
        self.check_device(commands)

    def check_device(self, commands: CommandList) -> None:
        """Record the checks of :meth:`check` for decoded values or whole elements of them."""
        if self._check is None:
            return
        errors, cleared = illegal_bits(self.layout)
        if errors:
            commands.check_bits(errors)
        if cleared:
            commands.clear_bits(cleared)

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode one whole chunk in host memory.

        Parameters
        ----------
        decoded : bytes-like, contiguous
            ``layout.nbytes`` bytes in the layout of the chain. A raw chain may return them.

        Raises
        ------
        UnsupportedError, LimitError
            If a codec or its format cannot encode the chunk.
        """
        if self._normalize is not None:
            decoded = self._normalize(decoded)
        for stage in self.stages:
            decoded = stage.encode(decoded)
        return decoded

    def encode_unsupported_reason(self, device: Decoders) -> str | None:
        """Return why no chunk can be encoded on `device`, None if chunks can be."""
        if self.objects is not None:
            return f"elements of {self.objects.name} are Python objects"
        nbytes, compressor = self.layout.nbytes, None
        for stage in self.stages:
            if stage.appends is not None:
                if stage is not self.stages[-1]:
                    return f"{stage.name} is not the last codec"
            elif compressor is not None:
                return f"{stage.name} encodes what {compressor} has compressed"
            else:
                reason = stage.encode_unsupported_reason(device, nbytes)
                if reason is not None:
                    return reason
                compressor = None if stage.is_exact else stage.name
                nbytes = stage.encoded_bound(nbytes)
        return None

    @property
    def appended_checksum(self) -> str | None:
        """Checksum whose 4 bytes end each value that a device encodes, None without one."""
        return self.stages[-1].appends if self.stages else None

    def encode_device(self, commands: EncodingList) -> EncodedValues:
        """Record the steps that encode each chunk, all but its :attr:`appended_checksum`.

        Raises
        ------
        MemoryError
            If there is not enough device memory; the list cannot be used any more.
        """
        if self._normalize is not None:
            commands.clear_bits(illegal_bits(self.layout)[1])
        for stage in self.stages:
            if stage.appends is None:
                encoded = stage.encode_device(commands)
                if encoded is not None:
                    return encoded
        return Unchanged(commands.values)

    def decode_objects(self, encoded: Buffer) -> NDArray[Any]:
        """Decode a chunk of objects to its elements, a 1-D array in the order of its layout."""
        assert self.objects is not None
        return self.objects.decode(self.decode(encoded), self.layout.nbytes // _REFERENCE_NBYTES)

    def encode_objects(self, elements: NDArray[Any]) -> Buffer:
        """Encode the elements of a chunk of objects, 1-D, in the order of its layout.

        Raises
        ------
        LimitError
            If a reader with these limits could not decode them.
        """
        assert self.objects is not None
        stream = self.objects.encode(elements)
        if len(stream) > self.objects_max:
            raise LimitError(
                f"Decoded chunk: chunk_nbytes is {len(stream)}, which exceeds the limit of "
                f"{self.objects_max}: choose smaller chunks"
            )
        return self.encode(stream)

    def check(self, decoded: Buffer) -> Buffer:
        """Check whole elements of decoded bytes, for readers of parts of raw chunks.

        Returns
        -------
        bytes-like
            `decoded`, or a copy in which the unused bits of elements are cleared.

        Raises
        ------
        CorruptChunkError
            If bytes are no elements: bools other than 0 and 1.
        """
        return decoded if self._check is None else self._check(decoded)

    def check_fill(self, fill_value: NDArray[Any]) -> None:
        """Raise MetadataError if a codec that must preserve the fill value changes it."""
        keeping = [i for i, s in enumerate(self.stages) if getattr(s, "keeps_fill", False)]
        if not keeping:
            return
        value = fill_value.astype(self.layout.dtype).tobytes()
        for stage in self.stages[: keeping[-1] + 1]:
            if not isinstance(stage, ValueStage):
                continue
            try:
                encoded = bytes(stage.encode(value))
            except GpustoreError as error:
                raise MetadataError(f"fill_value cannot be encoded: {error.text}") from error
            if stage.keeps_fill and bytes(stage.decode(encoded, len(value), exact=True)) != value:
                raise MetadataError(
                    f"fill_value does not come back as it was through codec {text(stage.name)}"
                )
            value = encoded

    def to_json(self) -> JsonValue:
        """Return the members of a CodecSpec of the same driver, with every option.

        For Zarr v3 they are the codecs, for Zarr v2 compressor and filters.
        """
        return self._json

    def __repr__(self) -> str:
        return f"CodecChain({text(self._json)})"

    @staticmethod
    def _wrong_length(found: int, nbytes: int) -> CorruptChunkError:
        if found < nbytes:
            return too_short(nbytes, found, codec="bytes")
        return too_long(nbytes, found, codec="bytes")
