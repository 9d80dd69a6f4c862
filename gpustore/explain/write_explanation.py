"""Explanation of a write: a record of its estimate, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpustore.explain.explanation import (
    AMPLIFIED,
    Bounds,
    CodecPath,
    codecs_text,
    extents,
    member_names,
    place,
    to_json,
)
from gpustore.strict_json.parsing import JsonValue


class CodecEncoder(NamedTuple):
    """Encoder of one codec.

    Attributes
    ----------
    codec : str
        Registered name of the codec.
    encoder : str
        ``"host"``, ``"own kernels"``, ``"nvcomp"`` (the library of a device, whichever it is), or
        ``"nothing"`` if decoded bytes are the encoded ones.
    """

    codec: str
    encoder: str


@dataclass(frozen=True, slots=True)
class WriteExplanation:
    """Estimate of a write; made by ``explain_write`` of a store.

    The estimate is for an array in the memory space of the store, of its data type: arrays in host
    memory are encoded by the host, wherever the store reads into. It follows from the array's
    metadata; no stored value is read. ``print(explanation)`` shows a text for people,
    :meth:`to_json` returns JSON for programs.

    Attributes
    ----------
    device : str
        Memory space of the array written: ``"cpu"`` or ``"cuda:N"``.
    shape : tuple of int
        Shape of the array written.
    dtype : str
        Name of the data type of its elements.
    chunk_shape : tuple of int
        Shape of the chunks that are encoded, in elements: of the innermost ones of shards, and of
        the largest if they differ.
    chunks : int
        Number of chunks that the write changes.
    values : int
        Number of stored values that hold these chunks: one for each chunk or shard.
    read_chunks, read_values : int
        Number of chunks and of stored values of which the write covers a part. These values are
        read first, and the chunks decoded, if they are stored.
    bytes_written : int
        Size of the array written, in bytes.
    bytes_encoded : int
        Size of the chunks, decoded, in bytes.
    chunk_nbytes : int
        Size of a decoded chunk of `chunk_shape`, in bytes.
    codecs : tuple of CodecEncoder
        Encoders of the codecs, in the order of encoding. Chunks whose streams the device's encoder
        refuses are encoded by the host.
    host_reason : str or None
        Reason for which the host encodes all chunks of an array in device memory, after a copy.
    decoders : tuple of CodecPath
        Decoders of the chunks that are read first, in the order of decoding; empty if none is.
    decoder_reason : str or None
        Reason for which the host decodes these chunks of an array in device memory.
    library : str or None
        Library that encodes and decodes on the device, if a codec needs one and it is there.
    shortcoming : str or None
        What is missing or fails of the device's libraries, who takes its place, and what to
        install; None if nothing is, or no codec needs a library.
    counts : mapping of str to Bounds
        Bounds of counters in the ``statistics`` of the write, by the names of
        :data:`gpustore.statistics`. They hold unless values are written meanwhile, other writes
        are under way or requests are retried.
    gpu : tuple of CodecEncoder
        Encoders of a write of an array on a GPU with nvcomp, if this one is in host memory.
    gpu_reason : str or None
        Reason for which the host encodes in a write of an array on a GPU with nvcomp.
    gpu_missing : tuple of str
        Missing requirements of writes from a GPU of this machine, each with the way to get it.
    """

    device: str
    shape: tuple[int, ...]
    dtype: str
    chunk_shape: tuple[int, ...]
    chunks: int
    values: int
    read_chunks: int
    read_values: int
    bytes_written: int
    bytes_encoded: int
    chunk_nbytes: int
    codecs: tuple[CodecEncoder, ...]
    host_reason: str | None
    decoders: tuple[CodecPath, ...]
    decoder_reason: str | None
    library: str | None
    shortcoming: str | None
    counts: Mapping[str, Bounds]
    gpu: tuple[CodecEncoder, ...]
    gpu_reason: str | None
    gpu_missing: tuple[str, ...]

    @property
    def encoded_per_byte(self) -> float:
        """Number of bytes encoded per byte written; 0 for an empty array."""
        return self.bytes_encoded / max(1, self.bytes_written)

    @property
    def advice(self) -> str | None:
        """One sentence if 4 times as many bytes are encoded as written, else None."""
        if self.encoded_per_byte < AMPLIFIED:
            return None
        return (
            f"Each byte written costs {self.encoded_per_byte:.3g} encoded ones: write larger "
            f"parts, or store smaller chunks than {extents(self.chunk_shape)}."
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return all attributes and properties as JSON."""
        names = [*member_names(self), "encoded_per_byte", "advice"]
        return {name: to_json(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}" for name, text in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        chunks = f"{self.chunks:,} of {extents(self.chunk_shape)}, in {self.values:,} stored values"
        lines = [
            ("write", self._write_text()),
            ("chunks", chunks),
            ("encoded", f"{self.encoded_per_byte:.3g} bytes for each byte written"),
            ("by", codecs_text(self.codecs, self.host_reason, nothing="nothing to encode")),
        ]
        if self.device == "cpu":
            lines += [("no GPU", reason) for reason in self.gpu_missing]
            gpu = codecs_text(self.gpu, self.gpu_reason, nothing="nothing to encode")
            lines.append(("on a GPU", gpu))
        elif self.counts["chunks_encoded_device"].most:
            lines.append(("", "the host: chunks that the device's encoder refuses"))
        if self.read_values:
            lines.append(("read first", self._read_text()))
        details = ("library", self.library), ("missing", self.shortcoming), ("advice", self.advice)
        return lines + [(name, text) for name, text in details if text is not None]

    def _write_text(self) -> str:
        text = f"{extents(self.shape)} of {self.dtype}, {self.bytes_written:,} bytes"
        return f"{text}, from {place(self.device)}"

    def _read_text(self) -> str:
        by = codecs_text(self.decoders, self.decoder_reason, nothing="nothing to decode")
        return (
            f"{self.read_values:,} stored values, which the write covers in part, and "
            f"{self.read_chunks:,} of their chunks decoded: {by}"
        )
