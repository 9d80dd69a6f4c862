"""What is said of a read beforehand: :class:`Explanation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from gpustore.strict_json.parsing import JsonValue

AMPLIFIED = 4.0
"""From so many decoded bytes per byte returned on there is advice."""


class Bounds(NamedTuple):
    """Bounds of a counter, exact where both are the same; `most` is None if nothing bounds it.

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
    """Who undoes one codec.

    Attributes
    ----------
    codec : str
        Its registered name.
    decoder : str
        ``"host"``, ``"own kernels"``, ``"nvcomp"`` (the library of a device, whichever it is), or
        ``"nothing"`` if encoded bytes are the decoded ones.
    """

    codec: str
    decoder: str

    def __str__(self) -> str:
        by = {"host": "by the host", "nothing": "as it is"}
        return f"{self.codec} {by.get(self.decoder, f'by {self.decoder}')}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Estimate of a read; made by ``explain`` of a store or a batch, and by ``explain_many``.

    It follows from the array's metadata alone, no stored value is looked at. What the stored bytes
    decide is in the ``statistics`` of the read. Its text (``print(explanation)``) is for people,
    :meth:`to_json` for programs.

    Attributes
    ----------
    device : str
        Where the array will be: ``"cpu"``, or ``"cuda:N"``.
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
        Number of stored values these are in: as many as chunks, or shards.
    bytes_returned : int
        Bytes of the arrays that are read.
    chunk_nbytes : int
        Decoded bytes of such a chunk.
    refined_by : tuple of str
        What spares parts of stored values: ``"cache"``, of decoded chunks, which is looked at
        first; ``"shard index"`` (once a level of sharding), which is read first; ``"byte range"``,
        the wanted part of an uncompressed chunk; ``"block"``, the wanted blocks of a compressed
        chunk, which is fetched whole.
    codecs : tuple of CodecPath
        In the order of decoding. Of values whose bytes a device does not take the host undoes all.
    host_reason : str or None
        Why the host decodes all chunks although the array will be on a device.
    direct_reason : str or None
        Why no bytes go from files straight to the device; None if large values may.
    counts : mapping of str to Bounds
        Bounds of what the ``statistics`` of the read will count, by the names of
        :data:`gpustore.statistics`. They hold if nobody writes meanwhile and nothing is retried.
        What is not here, as launches and copies on a device, follows from the stored bytes and the
        memory that is free.
    gpu : tuple of CodecPath
        As `codecs`, on a GPU with nvcomp, if the array will be in host memory.
    gpu_reason : str or None
        As `host_reason`, on a GPU with nvcomp.
    gpu_missing : tuple of str
        What is missing to read into a GPU of this machine, each with the way to get it.
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
    direct_reason: str | None
    counts: Mapping[str, Bounds]
    gpu: tuple[CodecPath, ...]
    gpu_reason: str | None
    gpu_missing: tuple[str, ...]

    @property
    def bytes_decoded(self) -> int:
        """Most bytes that are decoded: those of all chunks, less if some are not stored."""
        return self.counts["bytes_decoded"].most or 0

    @property
    def bytes_fetched(self) -> int | None:
        """Most encoded bytes that come from the kvstore; None if nothing bounds them.

        Of uncompressed chunks those that are decoded, of compressed ones what no encoder exceeds.
        """
        return self.counts["bytes_fetched"].most

    @property
    def decoded_per_byte(self) -> float:
        """Most decoded bytes for each byte returned; 0 for an empty array."""
        return self.bytes_decoded / max(1, self.bytes_returned)

    @property
    def advice(self) -> str | None:
        """One sentence, if much more is decoded than returned."""
        if self.decoded_per_byte < AMPLIFIED:
            return None
        more = "" if self.together > 1 else "read many crops together with read_many or a Batch, "
        return (
            f"Each byte returned costs {self.decoded_per_byte:.3g} decoded ones: read larger "
            f"parts, {more}or store smaller chunks than {_extents(self.chunk_shape)}."
        )

    def to_json(self) -> dict[str, JsonValue]:
        """All attributes and properties as JSON."""
        names = [field.name for field in fields(self)]
        names += ["bytes_decoded", "bytes_fetched", "decoded_per_byte", "advice"]
        return {name: _json(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}" for name, text in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        lines = [
            ("read", self._read_text()),
            ("chunks", self._chunks_text()),
            ("fetched", self._fetched_text()),
            ("decoded", self._decoded_text()),
            ("by", _decoders_text(self.codecs, self.host_reason)),
        ]
        if self.device == "cpu":
            lines += [("no GPU", reason) for reason in self.gpu_missing]
            lines.append(("on a GPU", _decoders_text(self.gpu, self.gpu_reason)))
        elif self.counts["chunks_decoded_device"].most:
            lines.append(("", "the host: values whose bytes the device does not take"))
        return lines if self.advice is None else [*lines, ("advice", self.advice)]

    def _read_text(self) -> str:
        text = "" if self.arrays == 1 else f"{self.arrays:,} arrays of "
        text += "" if self.shape is None else f"{_extents(self.shape)} of "
        where = "host memory" if self.device == "cpu" else self.device
        return f"{text}{self.dtype}, {self.bytes_returned:,} bytes, into {where}"

    def _chunks_text(self) -> str:
        text = f"{self.chunks:,} of {_extents(self.chunk_shape)}, in {self.values:,} stored values"
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
    "cache": "none of what is cached",
    "shard index": "indices of shards first",
    "byte range": "of chunks only the bytes wanted",
}


def _json(value: Any) -> JsonValue:
    if isinstance(value, Bounds | CodecPath):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: _json(one) for name, one in value.items()}
    found: JsonValue = [_json(one) for one in value] if isinstance(value, tuple) else value
    return found


def _decoders_text(codecs: Sequence[CodecPath], reason: str | None) -> str:
    return f"the host: {reason}" if reason else ", ".join(map(str, codecs)) or "nothing to decode"


def _extents(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if shape else "a single value"
