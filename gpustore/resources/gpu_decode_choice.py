"""``gpu_decode_choice``: side on which the chunks of a read into a device are decoded.

A device decodes a stream with few threads, so that it is fast with many streams and slow with one
long one. The choice is made once for each read, with all its streams in view
(:mod:`gpustore.codec_chain.decoder_choice`).

JSON: a string, or an object with thresholds.

============  ==================================================================================
``"auto"``    the host decodes reads of few long streams, the device all others (the default)
``"device"``  the device decodes every read that it can
``"host"``    the host decodes every read
============  ==================================================================================

``{"min_streams": 200, "long_stream_nbytes": 262144}`` is ``"auto"`` with other thresholds for all
codecs: the host decodes reads with fewer than ``min_streams`` streams, of which one has more than
``long_stream_nbytes`` decoded bytes. A missing member keeps the threshold of the codec.

Reads that the host decodes are counted (``few_stream_reads``), and ``explain`` gives the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import INT64_MAX, JsonValue, Members, expect_str

_SIDES = ("auto", "device", "host")


@dataclass(frozen=True, slots=True)
class DecodeRule:
    """Rule that chooses who decodes a read.

    Attributes
    ----------
    side : str
        ``"auto"``, ``"device"`` or ``"host"``.
    min_streams : int or None
        Number of streams from which on the device decodes long ones; None for that of the codec.
    long_stream_nbytes : int or None
        Decoded bytes above which a stream is long; None for those of the codec.
    """

    side: str = "auto"
    min_streams: int | None = None
    long_stream_nbytes: int | None = None


AUTO = DecodeRule()


class _GpuDecodeChoiceType(ResourceType[DecodeRule, DecodeRule]):
    id = "gpu_decode_choice"

    def parse(self, json: JsonValue) -> DecodeRule:
        if not isinstance(json, dict):
            return DecodeRule(expect_str(json, choices=_SIDES))
        members = Members(json, integral_floats=True)
        rule = DecodeRule(
            min_streams=members.take_int("min_streams", 0, INT64_MAX, default=None),
            long_stream_nbytes=members.take_int("long_stream_nbytes", 0, INT64_MAX, default=None),
        )
        members.finish()
        return rule

    def default(self) -> DecodeRule:
        return AUTO

    def to_json(self, config: DecodeRule, *, include_defaults: bool) -> JsonValue:
        thresholds: dict[str, JsonValue] = {
            "min_streams": config.min_streams,
            "long_stream_nbytes": config.long_stream_nbytes,
        }
        return {name: value for name, value in thresholds.items() if value is not None} or (
            config.side
        )

    def make(self, config: DecodeRule) -> DecodeRule:
        return config


RESOURCE = _GpuDecodeChoiceType()
