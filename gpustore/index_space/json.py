"""JSON of index domains and index transforms, as TensorStore's schemas define it.

An implicit bound is wrapped in a list of one, an infinite one is ``"-inf"`` or ``"+inf"``. Members
that equal the default are left out: unbounded implicit bounds, empty labels, identity output maps.
Source: TensorStore ``index_space/json.cc``.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustore.errors import MetadataError
from gpustore.index_space.bounds import Box, build_box, check_labels
from gpustore.index_space.interval import (
    INF,
    INF_SIZE,
    INF_STOP,
    MAX_RANK,
    check_rank,
    closed,
    fits_int64,
)
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    array_map,
    identity_maps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def box_to_json(box: Box, labels: Sequence[str], prefix: str = "") -> dict[str, Any]:
    """Return the JSON of a domain, or with `prefix` ``"input_"`` those members of a transform."""
    result: dict[str, Any] = {}
    rank = len(labels)
    unbounded_above = set(zip(box.exclusive_max, box.implicit_upper)) <= {(INF_STOP, True)}
    unbounded_below = set(zip(box.inclusive_min, box.implicit_lower)) <= {(-INF, True)}
    if not unbounded_above:
        result[f"{prefix}exclusive_max"] = [
            _bound_to_json("+inf" if stop == INF_STOP else stop, implicit)
            for stop, implicit in zip(box.exclusive_max, box.implicit_upper)
        ]
    if not unbounded_below:
        result[f"{prefix}inclusive_min"] = [
            _bound_to_json("-inf" if low == -INF else low, implicit)
            for low, implicit in zip(box.inclusive_min, box.implicit_lower)
        ]
    if any(labels):
        result[f"{prefix}labels"] = list(labels)
    return result or {f"{prefix}rank": rank}


def _bound_to_json(value: int | str, implicit: bool) -> Any:
    return [value] if implicit else value


def maps_to_json(maps: OutputIndexMaps, input_rank: int) -> list[dict[str, Any]] | None:
    """Return the ``"output"`` member of a transform, None for the identity."""
    if tuple(maps) == tuple(identity_maps(input_rank)):
        return None
    return [_map_to_json(mapping) for mapping in maps]


def _map_to_json(mapping: OutputIndexMap) -> dict[str, Any]:
    result: dict[str, Any] = {}
    array = mapping.index_array
    if array is not None:
        result["index_array"] = array.tolist()
        low, stop = mapping.bounds
        if (low, stop) != (-INF, INF_STOP) and (array.min() < low or array.max() >= stop):
            result["index_array_bounds"] = [
                "-inf" if low == -INF else low,
                "+inf" if stop == INF_STOP else stop - 1,
            ]
    if mapping.input_dimension is not None:
        result["input_dimension"] = mapping.input_dimension
    if mapping.offset:
        result["offset"] = mapping.offset
    if mapping.stride not in (None, 1):
        result["stride"] = mapping.stride
    return result


def _show(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=repr)


def _expected(what: str, value: Any) -> MetadataError:
    return MetadataError(f"Expected {what}, but received: {_show(value)}")


def _integer(value: Any, low: int | None = None, high: int | None = None) -> int:
    """Parse an integer; as in TensorStore ``2.0`` is one."""
    number = value
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    if low is None or high is None:
        if type(number) is not int or not fits_int64(number):
            raise _expected("64-bit signed integer", value)
    elif type(number) is not int or not low <= number <= high:
        raise _expected(f"integer in the range [{low}, {high}]", value)
    return number


def _bound(value: Any, infinite: str, number: int) -> int:
    """Parse an index not beyond `number`, or the word `infinite` that stands for it."""
    if value == infinite:
        return number
    expected = _expected(f'64-bit signed integer or "{infinite}"', value)
    try:
        index = _integer(value)
    except MetadataError:
        raise expected from None
    if index < number if infinite == "-inf" else index > number:
        raise expected
    return index


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _expected("object", value)
    return dict(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise _expected("array", value)
    return list(value)


def _each(value: Any, parse: Callable[[Any], Any]) -> list[Any]:
    result = []
    for position, item in enumerate(_list(value)):
        try:
            result.append(parse(item))
        except MetadataError as error:
            raise error.prefixed(f"Error parsing value at position {position}") from None
    return result


def _member(members: dict[str, Any], name: str, parse: Callable[[Any], Any]) -> Any:
    """Remove a member from `members` and return it parsed; None if it is missing."""
    if name not in members:
        return None
    try:
        return parse(members.pop(name))
    except MetadataError as error:
        raise error.prefixed(f'Error parsing object member "{name}"') from None


def _finish(members: dict[str, Any]) -> None:
    if members:
        extra = ",".join(_show(name) for name in sorted(members))
        raise MetadataError(f"Object includes extra members: {extra}")


def _at_most_one(members: dict[str, Any], names: Sequence[str]) -> None:
    if sum(name in members for name in names) > 1:
        quoted = ", ".join(f'"{name}"' for name in names)
        raise MetadataError(f"At most one of {quoted} members is allowed")


class _Ranks:
    """Rank of a domain, known from the first member that has one entry per dimension."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank

    def check(self, size: int) -> None:
        check_rank(size)
        if self.rank is None:
            self.rank = size
        elif self.rank != size:
            raise MetadataError(f"Array has length {size} but should have length {self.rank}")

    def bounds(self, value: Any, infinite: str, number: int) -> tuple[list[int], list[bool]]:
        self.check(len(_list(value)))
        implicit = []

        def one(item: Any) -> int:
            if isinstance(item, (list, tuple)):
                if len(item) != 1:
                    raise _expected("array of size 1 indicating an implicit value", item)
                implicit.append(True)
                return _bound(item[0], infinite, number)
            implicit.append(False)
            return _bound(item, infinite, number)

        return _each(value, one), implicit

    def labels(self, value: Any) -> list[str]:
        self.check(len(_list(value)))

        def one(item: Any) -> str:
            if not isinstance(item, str):
                raise _expected("string", item)
            return item

        labels = _each(value, one)
        check_labels(labels)
        return labels


_UPPER = {"shape": INF_SIZE, "inclusive_max": INF, "exclusive_max": INF_STOP}


def box_from_json(
    members: Any, prefix: str = "", *, others: tuple[str, ...] = ()
) -> tuple[Box, tuple[str, ...], dict[str, Any]]:
    """Parse box and labels of a domain; the members named in `others` are returned unparsed."""
    members = _object(members)
    names = ("rank", "inclusive_min", "shape", "inclusive_max", "exclusive_max", "labels")
    if not any(prefix + name in members for name in names):
        quoted = ", ".join(f'"{prefix}{name}"' for name in names)
        raise MetadataError(f"At least one of {quoted} members must be specified")
    rank = _member(members, f"{prefix}rank", lambda v: _integer(v, 0, MAX_RANK))
    ranks = _Ranks(rank)
    lower = _member(members, f"{prefix}inclusive_min", lambda v: ranks.bounds(v, "-inf", -INF)) or (
        None,
        None,
    )
    _at_most_one(members, [prefix + name for name in _UPPER])
    form, upper = "exclusive_max", (None, None)
    for name, number in _UPPER.items():
        found = _member(
            members, prefix + name, partial(ranks.bounds, infinite="+inf", number=number)
        )
        if found is not None:
            form, upper = name, found
    labels = _member(members, f"{prefix}labels", ranks.labels)
    rest = {name: members.pop(name) for name in others if name in members}
    _finish(members)
    assert ranks.rank is not None
    box = build_box(ranks.rank, lower[0], upper[0], form, lower[1], upper[1])
    return box, tuple(labels or ("",) * ranks.rank), rest


def maps_from_json(members: dict[str, Any]) -> list[OutputIndexMap] | None:
    """Parse the maps of the ``"output"`` member, None without one."""

    def all_maps(value: Any) -> list[OutputIndexMap]:
        return _each(value, _map_from_json)

    maps: list[OutputIndexMap] | None = _member(members, "output", all_maps)
    return maps


def _map_from_json(value: Any) -> OutputIndexMap:
    members = _object(value)
    offset = _member(members, "offset", _integer) or 0
    _at_most_one(members, ("input_dimension", "index_array"))
    dimension = _member(members, "input_dimension", _integer)
    array = _member(members, "index_array", _nested)

    def bounds(value: Any) -> tuple[int, int]:
        if array is None:
            raise MetadataError('"index_array_bounds" is only valid with "index_array"')
        return _closed_bounds(value)

    def stride_of(value: Any) -> int:
        if dimension is None and array is None:
            raise MetadataError(
                'Either "input_dimension" or "index_array" must be specified in conjunction '
                'with "stride"'
            )
        return _integer(value)

    index_range = _member(members, "index_array_bounds", bounds)
    stride = _member(members, "stride", stride_of)
    stride = 1 if stride is None else stride
    _finish(members)
    if dimension is not None:
        return OutputIndexMap(input_dimension=dimension, offset=offset, stride=stride)
    if array is None:
        return OutputIndexMap(offset=offset)
    return array_map(offset, stride, array, index_range or (-INF, INF_STOP))


def _closed_bounds(value: Any) -> tuple[int, int]:
    if len(_list(value)) != 2:
        raise MetadataError(f"Array has length {len(value)} but should have length 2")

    def one(item: Any) -> int:
        if item in ("-inf", "+inf"):
            return -INF if item == "-inf" else INF
        try:
            index = _integer(item)
        except MetadataError:
            index = INF + 1
        if not -INF <= index <= INF:
            raise _expected('64-bit signed integer or "-inf" or "+inf"', item)
        return index

    return closed(*_each(value, one))


def _nested(value: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Parse a nested list of integers as an int64 array."""
    shape: list[int] = []
    level = value
    while isinstance(level, (list, tuple)):
        shape.append(len(level))
        if not level:
            break
        level = level[0]
    check_rank(len(shape))
    flat: list[int] = []
    _flatten(value, tuple(shape), (), flat)
    return np.array(flat, dtype=np.int64).reshape(shape)


def _flatten(value: Any, shape: tuple[int, ...], at: tuple[int, ...], out: list[int]) -> None:
    where = f"at position {{{', '.join(map(str, at))}}}"
    is_list = isinstance(value, (list, tuple))
    if is_list != (len(at) < len(shape)):
        raise MetadataError(
            f"Expected rank-{len(shape)} array, but found {'' if is_list else 'non-'}array "
            f"element {_show(value)} {where}."
        )
    if not is_list:
        try:
            out.append(_integer(value))
        except MetadataError as error:
            raise error.prefixed(f"Error parsing array element {where}") from None
        return
    if len(value) != shape[len(at)]:
        raise MetadataError(
            f"Expected array of shape {{{', '.join(map(str, shape))}}}, but found array element "
            f"{_show(value)} of length {len(value)} {where}."
        )
    for position, item in enumerate(value):
        _flatten(item, shape, (*at, position), out)
