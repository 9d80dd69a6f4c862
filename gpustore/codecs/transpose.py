"""The ``transpose`` codec.

============  ====================================================================
content       The dimensions of a chunk in another order
specification https://zarr-specs.readthedocs.io/en/latest/v3/codecs/transpose/index.html
v3 name       ``transpose``
v2 id         none: ``order`` says the same, for two of the orders
============  ====================================================================

Zarr v3::

    {"name": "transpose", "configuration": {"order": [2, 0, 1]}}

Dimension ``order[i]`` of the decoded chunk is dimension i of the encoded one, as in
``numpy.transpose(chunk, order)``. Several in a row act one after the other. The words ``"C"`` and
``"F"`` of early drafts are read, as TensorStore does, and stored as the permutation they mean.

The codec costs no time: strides are permuted once, when the chain is resolved.
"""

from __future__ import annotations

from typing import Final

from gpustore.codec_chain.registered import ABSENT, ArrayCodec, Option, Options, merge_equal
from gpustore.data_types.json_array import shape_text
from gpustore.errors import GpustoreError, MetadataError
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    at_position,
    expect_int,
    expect_list,
    expect_str,
)

_MAX_RANK: Final = 32
_WORDS: Final = ("C", "F")


def _convert(value: JsonValue) -> JsonValue:
    """Return a permutation or a word; the error names both forms, as in TensorStore."""
    try:
        return _permutation(value)
    except GpustoreError as error:
        first = error
    try:
        return expect_str(value, choices=_WORDS)
    except GpustoreError as second:
        raise MetadataError(f"No matching value binder: {first.text}; {second.text}") from None


def _permutation(value: JsonValue) -> list[int]:
    order = expect_list(value)
    if len(order) > _MAX_RANK:
        raise MetadataError(f"Rank {len(order)} is outside valid range [0, {_MAX_RANK}]")
    dims = []
    for index, dim in enumerate(order):
        with at_position(index):
            dims.append(expect_int(dim, 0, _MAX_RANK - 1, integral_floats=True))
    if sorted(dims) != list(range(len(dims))):
        raise MetadataError(f"{shape_text(dims)} is not a valid permutation")
    return dims


def _merge(a: JsonValue, b: JsonValue) -> JsonValue:
    """Merge a word and the permutation it means into the permutation."""
    if isinstance(a, str) and not isinstance(b, str):
        a, b = b, a
    if isinstance(b, str) and not isinstance(a, str):
        return a if a == list(_meant(b, len(a))) else None
    return merge_equal(a, b)


def _meant(word: str, rank: int) -> tuple[int, ...]:
    return tuple(range(rank) if word == "C" else reversed(range(rank)))


def _order(options: Options, rank: int) -> tuple[int, ...]:
    order = options["order"]
    if isinstance(order, str):
        return _meant(order, rank)
    if len(order) != rank:
        raise MetadataError(
            f"{shape_text(order)} is not a valid dimension permutation for a rank {rank} array"
        )
    return tuple(order)


def _complete(options: Options, rank: int) -> dict[str, JsonValue]:
    return {"order": list(_order(options, rank))}


CODEC = ArrayCodec(
    name="transpose",
    options=(
        Option(
            name="order",
            convert=_convert,
            default=ABSENT,
            constraint_default=REQUIRED,
            merge=_merge,
        ),
    ),
    order=_order,
    complete=_complete,
)
