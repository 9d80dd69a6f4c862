"""Explanation of a read: a record of its estimate, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from gpustore.strict_json.parsing import JsonValue

AMPLIFIED = 4.0
"""Decoded bytes per byte returned from which on there is advice."""


class Bounds(NamedTuple):
    """Inclusive bounds of a counter; `most` is None if nothing bounds it.

    Examples
    --------
    >>> print(Bounds(0, 4096), Bounds(2, 1000), Bounds(7, 7), Bounds(0, None), sep="; ")
    at most 4,096; 2 to 1,000; 7; an unknown number of
    """

    least: int
    most: int | None

    def __str__(self) -> str:
        if self.most is None:
            return "an unknown number of"
        if self.least == self.most:
            return f"{self.most:,}"
        return f"{self.least:,} to {self.most:,}" if self.least else f"at most {self.most:,}"


class CodecPath(NamedTuple):
    """Decoder of one codec.

    Attributes
    ----------
    codec : str
        Registered name of the codec.
    decoder : str
        ``"host"``, ``"own kernels"``, ``"nvcomp"`` (the library of a device, whichever it is), or
        ``"nothing"`` if encoded bytes are the decoded ones.
    """

    codec: str
    decoder: str


class SubmissionSizes(NamedTuple):
    """Most that one submission to a device has, by the memory that is free now.

    Attributes
    ----------
    chunks : int
        Number of chunks; there are fewer if their stored bytes fill the staging buffer.
    stored_nbytes : int
        Bytes of their values as they are stored, in a staging buffer.
    device_nbytes : int
        Device memory for them: staging buffer, tables, decoded chunks and scratch of the codecs. Of
        large reads three run at once; the limit ``device_in_flight_nbytes`` bounds them together.
    """

    chunks: int
    stored_nbytes: int
    device_nbytes: int

    def __str__(self) -> str:
        return (
            f"up to {self.chunks:,} chunks and {self.stored_nbytes:,} stored bytes each, "
            f"{self.device_nbytes:,} bytes of the device's memory"
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """Estimate of a read; made by ``explain`` of a store or a batch, and by ``explain_many``.

    The estimate follows from the array's metadata; no stored value is read. Counts that depend on
    stored bytes are in the ``statistics`` of the read. ``print(explanation)`` shows a text for
    people, :meth:`to_json` returns JSON for programs.

    Attributes
    ----------
    device : str
        Memory space of the array returned: ``"cpu"`` or ``"cuda:N"``.
    shape : tuple of int, or None
        Shape of the array that is read, or of each; None if several have unlike ones.
    arrays : int
        Number of arrays that are read: several if reads of a batch share their chunks.
    together : int
        Number of reads or crops that share the chunks.
    dtype : str
        Name of the data type of the elements in memory.
    chunk_shape : tuple of int
        Shape of the chunks that are decoded, in elements: of the innermost ones of shards, and of
        the largest if they differ.
    chunks : int
        Number of chunks the read touches, each counted once.
    values : int
        Number of stored values that hold these chunks: one for each chunk or shard.
    bytes_returned : int
        Size of the arrays that are read, in bytes.
    chunk_nbytes : int
        Size of a decoded chunk of `chunk_shape`, in bytes.
    refined_by : tuple of str
        Means of fetching or decoding less than whole stored values: ``"device cache"`` and
        ``"cache"`` of chunks, which are searched first; ``"shard index"`` (once a level of
        sharding), which is read first; ``"byte range"``, the wanted part of an uncompressed chunk;
        ``"block"``, the wanted blocks of a compressed chunk, which may be fetched whole.
    codecs : tuple of CodecPath
        Decoders of the codecs, in the order of decoding. Values that the device does not accept are
        decoded by the host.
    host_reason : str or None
        Reason for which the host decodes all chunks of an array in device memory.
    library : str or None
        Library that decodes on the device, if a codec needs one and it is there.
    shortcoming : str or None
        What is missing or fails of the device's libraries, who decodes instead, and what to
        install; None if nothing is, or no codec needs a library.
    device_reason : str or None
        Figures for which a device decodes, where the host could be faster with few long streams:
        number and size of the streams of this read, and the thresholds.
    submission : SubmissionSizes or None
        Most that one submission to the device has; None if the read is into host memory, or empty.
    direct_reason : str or None
        Reason against reads from files into device memory; None if large values may be read so.
    counts : mapping of str to Bounds
        Bounds of counters in the ``statistics`` of the read, by the names of
        :data:`gpustore.statistics`. They hold unless values are written meanwhile or requests are
        retried. Other counters, as launches and copies on a device, depend on the stored bytes and
        on free memory.
    gpu : tuple of CodecPath
        Decoders of a read into a GPU with nvcomp, if this read is into host memory.
    gpu_reason : str or None
        Reason for which the host decodes in a read into a GPU with nvcomp.
    gpu_missing : tuple of str
        Missing requirements of reads into a GPU of this machine, each with the way to get it.
    """

    device: str
    shape: tuple[int, ...] | None
    arrays: int
    together: int
    dtype: str
    chunk_shape: tuple[int, ...]
    chunks: int
    values: int
    bytes_returned: int
    chunk_nbytes: int
    refined_by: tuple[str, ...]
    codecs: tuple[CodecPath, ...]
    host_reason: str | None
    library: str | None
    shortcoming: str | None
    device_reason: str | None
    submission: SubmissionSizes | None
    direct_reason: str | None
    counts: Mapping[str, Bounds]
    gpu: tuple[CodecPath, ...]
    gpu_reason: str | None
    gpu_missing: tuple[str, ...]

    @property
    def bytes_decoded(self) -> int:
        """Most bytes that are decoded, reached if all chunks are stored."""
        return self.counts["bytes_decoded"].most or 0

    @property
    def bytes_fetched(self) -> int | None:
        """Most encoded bytes that come from the kvstore; None if nothing bounds them.

        The bound of an uncompressed chunk is the number of bytes decoded, that of a compressed
        chunk the longest output of its encoder.
        """
        return self.counts["bytes_fetched"].most

    @property
    def decoded_per_byte(self) -> float:
        """Number of decoded bytes per byte returned, at most; 0 for an empty array."""
        return self.bytes_decoded / max(1, self.bytes_returned)

    @property
    def advice(self) -> str | None:
        """One sentence if 4 times as many bytes are decoded as returned, else None."""
        if self.decoded_per_byte < AMPLIFIED:
            return None
        more = "" if self.together > 1 else "read many crops together with read_many or a Batch, "
        return (
            f"Each byte returned costs {self.decoded_per_byte:.3g} decoded ones: read larger "
            f"parts, {more}or store smaller chunks than {extents(self.chunk_shape)}."
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return all attributes and properties as JSON."""
        names = [*member_names(self), "bytes_decoded", "bytes_fetched"]
        names += ["decoded_per_byte", "advice"]
        return {name: to_json(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}" for name, text in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        lines = [
            ("read", self._read_text()),
            ("chunks", self._chunks_text()),
            ("fetched", self._fetched_text()),
            ("decoded", self._decoded_text()),
            ("by", codecs_text(self.codecs, self.host_reason, nothing="nothing to decode")),
        ]
        if self.device == "cpu":
            lines += [("no GPU", reason) for reason in self.gpu_missing]
            gpu = codecs_text(self.gpu, self.gpu_reason, nothing="nothing to decode")
            lines.append(("on a GPU", gpu))
        elif self.counts["chunks_decoded_device"].most:
            lines.append(("", "the host: values whose bytes the device does not take"))
        if self.submission is not None:
            lines.append(("submissions", str(self.submission)))
        details = ("because", self.device_reason), ("library", self.library)
        lines += [(name, text) for name, text in details if text is not None]
        if self.shortcoming is not None:
            lines.append(("missing", self.shortcoming))
        return lines if self.advice is None else [*lines, ("advice", self.advice)]

    def _read_text(self) -> str:
        text = "" if self.arrays == 1 else f"{self.arrays:,} arrays of "
        text += "" if self.shape is None else f"{extents(self.shape)} of "
        return f"{text}{self.dtype}, {self.bytes_returned:,} bytes, into {place(self.device)}"

    def _chunks_text(self) -> str:
        text = f"{self.chunks:,} of {extents(self.chunk_shape)}, in {self.values:,} stored values"
        return text + (f", each once for all {self.together:,}" if self.together > 1 else "")

    def _fetched_text(self) -> str:
        texts = [f"{self.counts['bytes_fetched']} bytes in {self.counts['key_reads']} reads"]
        texts += [_NOTES[one] for one in dict.fromkeys(self.refined_by) if one in _NOTES]
        texts += ["the stored bytes decide"] * bool(self.codecs)
        if self.device != "cpu":
            direct = "large ones straight to the device if it can"
            reason = self.direct_reason
            texts.append(f"through host memory: {reason}" if reason else direct)
        return "; ".join(texts)

    def _decoded_text(self) -> str:
        text = f"{self.counts['bytes_decoded']} bytes, "
        text += f"{self.decoded_per_byte:.3g} for each byte returned"
        text += "; less if some are not stored" if self.counts["chunks_missing"].most else ""
        return f"{text}; only the blocks wanted" if "block" in self.refined_by else text


_NOTES = {
    "device cache": "none of what stays on the device",
    "cache": "none of what is cached",
    "shard index": "indices of shards first",
    "byte range": "of chunks only the bytes wanted",
}


def member_names(explanation: Any) -> list[str]:
    """Return the names of the attributes of an explanation."""
    return [field.name for field in fields(explanation)]


def to_json(value: Any) -> JsonValue:
    """Return an attribute of an explanation as JSON."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    found: JsonValue = [to_json(one) for one in value] if isinstance(value, tuple) else value
    return found


def codecs_text(codecs: Sequence[tuple[str, str]], reason: str | None, *, nothing: str) -> str:
    """Return who decodes or encodes each codec as text, or the `reason` why the host does all."""
    if reason:
        return f"the host: {reason}"
    by = {"host": "by the host", "nothing": "as it is"}
    return ", ".join(f"{codec} {by.get(who, f'by {who}')}" for codec, who in codecs) or nothing


def place(device: str) -> str:
    """Return the memory of a device as text."""
    return "host memory" if device == "cpu" else device


def extents(shape: Sequence[int]) -> str:
    """Return extents as text."""
    return " x ".join(map(str, shape)) if shape else "a single value"
