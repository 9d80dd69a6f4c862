"""What is said of a read beforehand: :class:`Explanation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpustore.strict_json.parsing import JsonValue

AMPLIFIED = 4.0
"""From so many decoded bytes per byte returned on there is advice."""


@dataclass(frozen=True, slots=True)
class CodecPath:
    """Who undoes one codec.

    Attributes
    ----------
    codec : str
        Its registered name.
    decoder : str
        ``"host"``, ``"own kernels"`` or ``"nvcomp"`` (what a device brings, whichever it is).
    """

    codec: str
    decoder: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a read will do; made by ``explain`` of a store or a batch, and ``explain_many``.

    Its text (``print(explanation)``) is for people, :meth:`to_json` for programs.

    Attributes
    ----------
    device : str
        Where the array will be: ``"cpu"``, or ``"cuda:N"``.
    shape : tuple of int, or None
        Of the array that is read, or of each; None if several have unlike ones.
    arrays : int
        How many are read: several if reads of a batch share their chunks.
    together : int
        The same, or how many crops share the chunks.
    dtype : str
    chunk_shape : tuple of int
        Of the chunks that are decoded, the innermost ones of shards; of the largest if they differ.
    chunks : int
        Chunks it touches, each counted once.
    values : int
        Stored values these are in: as many as chunks, or shards.
    bytes_returned : int
        Bytes of the array.
    chunk_nbytes : int
        Decoded bytes of such a chunk.
    codecs : tuple of CodecPath
        In the order of decoding.
    host_reason : str or None
        Why the host decodes all chunks although the array will be on a device.
    counts : mapping of str to int, or None
        What will be in the ``statistics`` of the read: names are those of
        :data:`gpustore.statistics`. None if there are too many chunks to look at each.
    expected : tuple of str
        Those of `counts` that hold if stored values are what writers usually make, whose headers
        nobody has looked at. The others are exact as long as nobody writes.
    unknown : tuple of str
        Those of `counts` that the kvstore does not tell.
    sub_batches : int
        Parts in which a device gets the chunks; 0 on the host, or if it is not known.
    launches_at_most : int
        Launches of one of them.
    left_to_host : tuple of (str, int)
        Why how many chunks are expected to be left to the host, by the sub-batch they are in.
    direct_nbytes : int
        Bytes that go from files straight into device memory, where the system can do that.
    gpu : tuple of CodecPath
        Of a store in host memory, who would undo the codecs on a GPU with nvcomp.
    gpu_reason : str or None
        Why the host would decode there.
    gpu_missing : tuple of str
        Of a store in host memory, what a GPU would need that is not there.
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
    codecs: tuple[CodecPath, ...]
    host_reason: str | None
    counts: Mapping[str, int] | None
    expected: tuple[str, ...]
    unknown: tuple[str, ...]
    sub_batches: int
    launches_at_most: int
    left_to_host: tuple[tuple[str, int], ...]
    direct_nbytes: int
    gpu: tuple[CodecPath, ...]
    gpu_reason: str | None
    gpu_missing: tuple[str, ...]

    @property
    def bytes_decoded(self) -> int | None:
        """Decoded bytes of the chunks that are stored; None if it is not known."""
        return self._count("bytes_decoded")

    @property
    def bytes_fetched(self) -> int | None:
        """Encoded bytes that come from the kvstore; None if it is not known."""
        return self._count("bytes_fetched")

    @property
    def decoded_per_byte(self) -> float | None:
        """Decoded bytes for each byte returned, 0 for an empty array; None if it is not known."""
        return self._ratio(self.bytes_decoded)

    @property
    def fetched_per_byte(self) -> float | None:
        """Fetched bytes for each byte returned, 0 for an empty array; None if it is not known."""
        return self._ratio(self.bytes_fetched)

    @property
    def advice(self) -> str | None:
        """One sentence, if much more is decoded than returned."""
        decoded = self.bytes_decoded
        if decoded is None:
            decoded = self.chunks * self.chunk_nbytes
        ratio = self._ratio(decoded) or 0.0
        if ratio < AMPLIFIED:
            return None
        more = "read many crops together with read_many or a Batch, "
        if self.together > 1:
            more = ""
        return (
            f"Each byte returned costs {ratio:.3g} decoded ones: read larger parts, {more}or store "
            f"smaller chunks than {_extents(self.chunk_shape)}."
        )

    def _count(self, name: str) -> int | None:
        if self.counts is None or name in self.unknown:
            return None
        return self.counts.get(name, 0)

    def _ratio(self, nbytes: int | None) -> float | None:
        return None if nbytes is None else nbytes / max(1, self.bytes_returned)

    def to_json(self) -> dict[str, JsonValue]:
        """All of it as JSON: the attributes, and what is worked out from them."""
        return {
            "device": self.device,
            "shape": None if self.shape is None else list(self.shape),
            "arrays": self.arrays,
            "together": self.together,
            "dtype": self.dtype,
            "chunk_shape": list(self.chunk_shape),
            "chunks": self.chunks,
            "values": self.values,
            "bytes_returned": self.bytes_returned,
            "bytes_decoded": self.bytes_decoded,
            "bytes_fetched": self.bytes_fetched,
            "decoded_per_byte": self.decoded_per_byte,
            "fetched_per_byte": self.fetched_per_byte,
            "chunk_nbytes": self.chunk_nbytes,
            "codecs": _paths(self.codecs),
            "host_reason": self.host_reason,
            "counts": None if self.counts is None else dict(self.counts),
            "expected": list(self.expected),
            "unknown": list(self.unknown),
            "sub_batches": self.sub_batches,
            "launches_at_most": self.launches_at_most,
            "left_to_host": [
                {"reason": reason, "chunks": count} for reason, count in self.left_to_host
            ],
            "direct_nbytes": self.direct_nbytes,
            "gpu": _paths(self.gpu),
            "gpu_reason": self.gpu_reason,
            "gpu_missing": list(self.gpu_missing),
            "advice": self.advice,
        }

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}" for name, text in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        lines = [
            (
                "read",
                f"{self._arrays_text()}{self.dtype}, {self.bytes_returned:,} bytes, "
                f"into {'host memory' if self.device == 'cpu' else self.device}",
            ),
            ("chunks", self._chunks_text()),
            ("fetched", self._fetched_text()),
            ("decoded", self._decoded_text()),
            ("by", _decoders_text(self.codecs, self.host_reason)),
        ]
        lines += [("", f"host: {count} chunks, {reason}") for reason, count in self.left_to_host]
        if self.device == "cpu":
            lines += [("no GPU", reason) for reason in self.gpu_missing]
            lines.append(("on a GPU", _decoders_text(self.gpu, self.gpu_reason)))
        elif self.counts is not None:
            lines.append(("device", self._device_text()))
        if self.advice is not None:
            lines.append(("advice", self.advice))
        return lines

    def _arrays_text(self) -> str:
        several = "" if self.arrays == 1 else f"{self.arrays:,} arrays of "
        return several if self.shape is None else f"{several}{_extents(self.shape)} of "

    def _chunks_text(self) -> str:
        text = f"{self.chunks:,} of {_extents(self.chunk_shape)}, in {self.values:,} stored values"
        if self.together > 1:
            text += f", each once for all {self.together:,}"
        missing = self._count("chunks_missing")
        if missing is None:
            return f"{text}; not known which are stored"
        return f"{text}; {missing:,} are not stored" if missing else text

    def _fetched_text(self) -> str:
        if self.bytes_fetched is None or self.counts is None:
            return "not known"
        reads = self.counts.get("key_reads", 0)
        text = f"{self.bytes_fetched:,} bytes in {reads:,} reads, {self.fetched_per_byte:.3g} for "
        text += "each byte returned"
        if self.device != "cpu":
            direct = f"{self.direct_nbytes:,} of them straight to the device if it can"
            text += f"; {direct if self.direct_nbytes else 'through host memory'}"
        return text

    def _decoded_text(self) -> str:
        if self.bytes_decoded is None:
            most = self.chunks * self.chunk_nbytes
            return f"at most {most:,} bytes: too many chunks to look at, explain a part of it"
        return f"{self.bytes_decoded:,} bytes, {self.decoded_per_byte:.3g} for each byte returned"

    def _device_text(self) -> str:
        counts = self.counts or {}
        about = "about " if "launches" in self.expected else ""
        return (
            f"{self.sub_batches:,} sub-batches of at most {self.launches_at_most} launches and one "
            f"wait; {about}{counts.get('launches', 0):,} launches, {counts.get('copies', 0):,} "
            f"copies, {counts.get('waits', 0):,} waits in all"
        )


def _paths(codecs: Sequence[CodecPath]) -> JsonValue:
    return [{"codec": one.codec, "decoder": one.decoder} for one in codecs]


def _decoders_text(codecs: Sequence[CodecPath], reason: str | None) -> str:
    if reason is not None:
        return f"the host: {reason}"
    text = ", ".join(f"{one.codec} by {one.decoder}" for one in codecs)
    text = text.replace(" by nothing", " as it is")
    return text.replace("by host", "by the host") if text else "nothing to decode"


def _extents(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) if shape else "a single value"
