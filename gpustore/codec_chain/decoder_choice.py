"""Choice of the side that decodes a read into a device: the device, or the host.

A device decodes a stream with one warp, so that a stream of several mebibytes takes it tens of
milliseconds, however idle the rest of the device is: few long streams are decoded faster by the
threads of the host. The choice is made once for each read, from all its streams, and
:data:`TABLE` is the whole rule. The thresholds are not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from gpustore.resources.gpu_decode_choice import DecodeRule


class Streams(NamedTuple):
    """Streams of one codec.

    Attributes
    ----------
    codec : str
        Name of a :class:`~gpustore.device.protocol.DeviceCodec`, or ``"blosclz"``.
    number : int
        Number of streams.
    longest_nbytes : int
        Decoded bytes of the longest stream.
    """

    codec: str
    number: int
    longest_nbytes: int


class Threshold(NamedTuple):
    """Threshold of a codec below which the host decodes.

    Attributes
    ----------
    per_multiprocessor : float
        Number of streams for each multiprocessor from which on the device decodes long streams.
    long_nbytes : int
        Decoded bytes above which a stream is long.
    """

    per_multiprocessor: float
    long_nbytes: int


TABLE: Final = {
    "blosclz": Threshold(0.5, 1 << 20),
    "lz4": Threshold(0.5, 1 << 20),
    "snappy": Threshold(0.5, 1 << 20),
    "zstd": Threshold(0.5, 1 << 20),
    "deflate": Threshold(0.5, 512 << 10),
    "gzip": Threshold(0.5, 512 << 10),
}


_COUNTER: Final = "few_stream_reads"


class Choice(NamedTuple):
    """Side that decodes a read.

    Attributes
    ----------
    by_host : bool
        Whether the host decodes although the device could.
    reason : str
        Figures and thresholds of the choice, a part of a sentence.
    counter : str or None
        Name of the counter of reads that the host decodes for such a reason.
    """

    by_host: bool
    reason: str
    counter: str | None = None


@lru_cache(maxsize=256)
def choose(streams: tuple[Streams, ...], multiprocessors: int, rule: DecodeRule) -> Choice:
    """Choose who decodes all `streams` of a read.

    Parameters
    ----------
    streams : tuple of Streams
        Streams of the read, one entry a codec. The host decodes if it is faster for one of them.
    multiprocessors : int
        Number of multiprocessors of the device.
    rule : DecodeRule
        Value of the context resource ``gpu_decode_choice``.

    Examples
    --------
    >>> choose((Streams("zstd", 12, 4 << 20),), 132, DecodeRule()).reason
    'zstd: 12 streams of up to 4194304 bytes, fewer than 66 of more than 1048576 bytes'
    >>> choose((Streams("zstd", 500, 4 << 20),), 132, DecodeRule()).by_host
    False
    """
    if rule.side != "auto":
        reason = f'gpu_decode_choice is "{rule.side}"'
        return Choice(True, reason, _COUNTER) if rule.side == "host" else Choice(False, reason)
    reasons = []
    for codec, number, longest_nbytes in streams:
        per_multiprocessor, long_nbytes = TABLE[codec]
        fewest = int(per_multiprocessor * multiprocessors)
        fewest = fewest if rule.min_streams is None else rule.min_streams
        if rule.long_stream_nbytes is not None:
            long_nbytes = rule.long_stream_nbytes
        found = f"{codec}: {number} streams of up to {longest_nbytes} bytes"
        if 0 < number < fewest and longest_nbytes > long_nbytes:
            found += f", fewer than {fewest} of more than {long_nbytes} bytes"
            return Choice(True, found, _COUNTER)
        if longest_nbytes > long_nbytes:
            reasons.append(f"{found}, at least {fewest}")
        else:
            reasons.append(f"{found}, none of more than {long_nbytes} bytes")
    return Choice(False, "; ".join(reasons))


def joined(streams: Sequence[Streams]) -> Sequence[Streams]:
    """Return one entry for each codec of `streams`."""
    if len(streams) < 2:
        return streams
    found: dict[str, Streams] = {}
    for one in streams:
        known = found.get(one.codec, Streams(one.codec, 0, 0))
        found[one.codec] = Streams(
            one.codec,
            known.number + one.number,
            max(known.longest_nbytes, one.longest_nbytes),
        )
    return list(found.values())
