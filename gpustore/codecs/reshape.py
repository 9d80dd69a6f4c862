"""The ``reshape`` codec.

============  ======================================================================
content       The same elements as an array of another shape
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/reshape
v3 name       ``reshape``
v2 id         none
============  ======================================================================

Zarr v3::

    {"name": "reshape", "configuration": {"shape": [[0, 1], [2], 3]}}

Each size is a number, the product of the sizes of some dimensions of the array, or once -1 for the
rest. Elements keep their order, so chunks are unchanged; only the following codecs see the new
shape.
"""

from __future__ import annotations

import math

from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options
from gpustore.codec_chain.value import Elements, ValueVariant
from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    at_position,
    expect_int,
    expect_list,
    text,
)

_MAX_RANK = 32
_MAX_SIZE = 2**63 - 1


def _convert(value: JsonValue) -> JsonValue:
    """Check sizes: numbers, lists of dimensions in increasing order, and -1 at most once."""
    sizes = expect_list(value)
    if len(sizes) > _MAX_RANK:
        raise MetadataError(f"Rank {len(sizes)} is outside valid range [0, {_MAX_RANK}]")
    converted: list[JsonValue] = []
    for index, size in enumerate(sizes):
        with at_position(index):
            converted.append(_size(size))
    if converted.count(-1) > 1:
        raise MetadataError(f"-1 is there more than once: {text(converted)}")
    dims = [dim for size in converted if isinstance(size, list) for dim in size]
    if dims != sorted(set(dims)):
        raise MetadataError(f"Dimensions are not in increasing order: {text(converted)}")
    return converted


def _size(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [expect_int(dim, 0, _MAX_RANK - 1, integral_floats=True) for dim in value]
    size = expect_int(value, -1, _MAX_SIZE, integral_floats=True)
    if size == 0:
        raise MetadataError("Expected -1 or a positive integer, but received: 0")
    return size


def _shape(options: Options, shape: tuple[int, ...]) -> tuple[int, ...]:
    sizes = options["shape"]
    wrong = MetadataError(f"{text(sizes)} is no shape of chunks of shape {text(list(shape))}")
    if any(dim >= len(shape) for size in sizes if isinstance(size, list) for dim in size):
        raise wrong
    found = [
        math.prod(shape[dim] for dim in size) if isinstance(size, list) else size for size in sizes
    ]
    count = math.prod(shape)
    if -1 in found:
        known = math.prod(size for size in found if size != -1)
        if not known or count % known:
            raise wrong
        found[found.index(-1)] = count // known
    if math.prod(found) != count:
        raise wrong
    for i, size in enumerate(sizes):
        # The dimensions must be those at that place of the order.
        if isinstance(size, list) and size:
            before, behind = math.prod(shape[: size[0]]), math.prod(shape[size[-1] + 1 :])
            if math.prod(found[:i]) != before or math.prod(found[i + 1 :]) != behind:
                raise wrong
    return tuple(found)


def _rank(options: Options, rank: int) -> int:
    del rank
    return len(options["shape"])


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> None:
    del options, decoded, encoded


CODEC = Codec(
    name="reshape",
    v3=ValueVariant(
        options=(
            Option(name="shape", convert=_convert, default=ABSENT, constraint_default=REQUIRED),
        ),
        prepare=_prepare,
        shape=_shape,
        rank=_rank,
        is_elementwise=False,
    ),
)
