"""Bounds of a domain: checks of a caller's bounds, and propagation through output index maps.

:func:`propagate` finds the domain of ``b_to_c(a_to_b(x))``: each explicit bound of ``b`` must
hold for every ``x``, implicit bounds of ``a_to_b`` are replaced by the ones that follow.
Source: TensorStore ``index_space/internal/propagate_bounds.cc`` and ``index_transform_builder.cc``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import gpustore.index_space.interval as interval
from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space.interval import (
    INF,
    INF_SIZE,
    INF_STOP,
    MAX_RANK,
    format_interval,
    index_argument,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpustore.index_space.output_map import OutputIndexMap


class Box(NamedTuple):
    """Bounds and implicit flags of a domain, without labels; one entry per dimension."""

    inclusive_min: tuple[int, ...]
    exclusive_max: tuple[int, ...]
    implicit_lower: tuple[bool, ...]
    implicit_upper: tuple[bool, ...]


def check_labels(labels: Sequence[str]) -> None:
    """Raise MetadataError unless the non-empty labels are unique."""
    named = [label for label in labels if label]
    if len(set(named)) != len(named):
        named.sort()
        twice = [label for before, label in pairwise(named) if label == before]
        raise MetadataError(f"Dimension label(s) {', '.join(map(quote, twice))} not unique")


def integers(values: Iterable[Any], name: str) -> tuple[int, ...]:
    """Return `values` as int64, raise TypeError that names the parameter otherwise."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{name}: expected a sequence of integers, got {values!r}")
    try:
        return tuple(index_argument(value, name) for value in values)
    except TypeError as error:
        if str(error).startswith(name):
            raise
        raise TypeError(f"{name}: expected a sequence of integers, got {values!r}") from None


def build_box(
    rank: int,
    lower: Sequence[int] | None,
    upper: Sequence[int] | None,
    form: str,
    implicit_lower: Sequence[bool] | None,
    implicit_upper: Sequence[bool] | None,
) -> Box:
    """Check bounds and fill in those that were not given.

    Parameters
    ----------
    rank : int
        Number of dimensions, the length of all sequences.
    form : {"shape", "inclusive_max", "exclusive_max"}
        Meaning of `upper`.
    """
    if upper is None:
        upper, form = (INF_STOP,) * rank, "exclusive_max"
        if implicit_upper is None:
            implicit_upper = (True,) * rank
    if lower is None:
        if implicit_lower is None:
            implicit_lower = (form != "shape",) * rank
        lower = (0 if form == "shape" else -INF,) * rank
    pairs = []
    for low, up in zip(lower, upper):
        if form == "shape":
            size = INF_STOP - low if up == INF_SIZE else up
            pairs.append(interval.sized(low, size))
        elif form == "inclusive_max":
            pairs.append(interval.closed(low, up))
        else:
            pairs.append(interval.half_open(low, up))
    return Box(
        tuple(pair[0] for pair in pairs),
        tuple(pair[1] for pair in pairs),
        (False,) * rank if implicit_lower is None else tuple(map(bool, implicit_lower)),
        (False,) * rank if implicit_upper is None else tuple(map(bool, implicit_upper)),
    )


def box_from_arguments(
    names: dict[str, str], rank: Any, given: dict[str, Iterable[Any] | None]
) -> tuple[Box, tuple[str, ...]]:
    """Return box and labels from the arguments of a constructor.

    Parameters
    ----------
    names : dict
        Name of each parameter in the constructor, for messages, by ``rank``, ``inclusive_min``,
        ``shape``, ``exclusive_max``, ``inclusive_max`` and ``labels``.
    given : dict
        Arguments by the keys of `names`, ``implicit_lower_bounds`` and ``implicit_upper_bounds``.
    """
    rank_from = ""
    if rank is not None:
        rank, rank_from = index_argument(rank, names["rank"]), names["rank"]
        if not 0 <= rank <= MAX_RANK:
            raise MetadataError(f"Invalid {rank_from}: {rank}")
    parts: dict[str, tuple[Any, ...]] = {}
    upper_from = ""
    for key in _ORDER:
        values = given.get(key)
        if values is None:
            continue
        name = names.get(key, key)
        part = _sequence(key, name, values)
        if key in _UPPER:
            if upper_from:
                raise MetadataError(f"Cannot specify both `{names[upper_from]}` and `{name}`")
            upper_from = key
        if rank is None:
            if len(part) > MAX_RANK:
                raise MetadataError(
                    f"Rank specified by `{name}` ({len(part)}) exceeds maximum rank of {MAX_RANK}"
                )
            rank, rank_from = len(part), name
        elif len(part) != rank:
            raise MetadataError(
                f"Rank specified by `{name}` ({len(part)}) does not match rank specified by "
                f"`{rank_from}` ({rank})"
            )
        parts[key] = part
    if rank is None:
        raise MetadataError(f"Must specify `{names['rank']}`")
    labels = parts.get("labels", ("",) * rank)
    check_labels(labels)
    box = build_box(
        rank,
        parts.get("inclusive_min"),
        parts.get(upper_from),
        upper_from,
        parts.get("implicit_lower_bounds"),
        parts.get("implicit_upper_bounds"),
    )
    return box, labels


_UPPER = ("exclusive_max", "inclusive_max", "shape")
# Of two wrong arguments TensorStore reports the one that comes first in this order.
_ORDER = ("inclusive_min", "implicit_lower_bounds", *_UPPER, "implicit_upper_bounds", "labels")


def _sequence(key: str, name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if key == "labels":
        labels = () if isinstance(values, str) else tuple(values)
        if isinstance(values, str) or not all(x is None or isinstance(x, str) for x in labels):
            raise TypeError(f"{name}: expected a sequence of strings, got {values!r}")
        return tuple(label or "" for label in labels)
    if key in ("implicit_lower_bounds", "implicit_upper_bounds"):
        return tuple(bool(value) for value in values)
    return integers(values, name)


def explicitly_empty(box: Box) -> bool:
    """Whether a dimension has size 0 and two explicit bounds."""
    low, stop, il, iu = box
    return any([low[i] == stop[i] and not il[i] and not iu[i] for i in range(len(low))])


def propagate(b: Box, a: Box, a_to_b: Sequence[OutputIndexMap]) -> Box:
    """Return the domain of the composition of a transform ``b -> c`` with ``a_to_b``.

    Raises
    ------
    OutOfBoundsError
        If an index in `a` is mapped outside an explicit bound of `b`.
    MetadataError
        If a bound overflows.
    """
    empty = explicitly_empty(a)
    rank = len(a.inclusive_min)
    inferred: list[tuple[int, int, bool, bool] | None] = [None] * rank
    for dim, mapping in enumerate(a_to_b):
        if mapping.index_array is not None:
            continue
        low, stop = b.inclusive_min[dim], b.exclusive_max[dim]
        il, iu = b.implicit_lower[dim], b.implicit_upper[dim]
        source, stride = mapping.input_dimension, mapping.stride
        if source is None or stride is None:
            if not empty:
                check_constant(dim, mapping.offset, low, stop, il, iu)
            continue
        try:
            low, stop = interval.affine_domain(low, stop, mapping.offset, stride)
        except MetadataError as error:
            raise error.prefixed(
                f"Propagating bounds from dimension {dim} to input dimension {source}"
            ) from None
        if stride < 0:
            il, iu = iu, il
        known = inferred[source]
        inferred[source] = (
            (low, stop, il, iu) if known is None else _tighten(known, (low, stop, il, iu))
        )
    return _combine(a, inferred, empty)


def check_constant(dim: int, index: int, low: int, stop: int, il: bool, iu: bool) -> None:
    """Raise OutOfBoundsError if `index` is outside an explicit bound of output dimension `dim`."""
    if (il or low <= index) and (iu or index < stop) and -INF < index < INF:
        return
    valid = format_interval(-INF if il else low, INF_STOP if iu else stop)
    raise OutOfBoundsError(
        f"Checking bounds of constant output index map for dimension {dim}: "
        f"Index {index} is outside valid range {valid}"
    )


def _tighten(
    x: tuple[int, int, bool, bool], y: tuple[int, int, bool, bool]
) -> tuple[int, int, bool, bool]:
    """Return the intersection of intervals; an explicit bound wins over an implicit one."""
    il, iu = x[2] and y[2], x[3] and y[3]
    low = max(z[0] for z in (x, y) if il or not z[2])
    stop = min(z[1] for z in (x, y) if iu or not z[3])
    return low, max(low, stop), il, iu


def _with_size(low: int, stop: int, il: bool = False, iu: bool = False) -> str:
    size = "" if stop - low == INF_SIZE else f", with size={stop - low}"
    return format_interval(low, stop, il, iu) + size


def _combine(a: Box, inferred: Sequence[tuple[int, int, bool, bool] | None], empty: bool) -> Box:
    lows, stops = list(a.inclusive_min), list(a.exclusive_max)
    il, iu = list(a.implicit_lower), list(a.implicit_upper)
    for dim, found in enumerate(inferred):
        if found is None:
            continue
        low, stop, found_il, found_iu = found
        new_low = low if il[dim] else lows[dim]
        new_stop = max(new_low, stop if iu[dim] else stops[dim])
        outer_low, outer_stop = -INF if found_il else low, INF_STOP if found_iu else stop
        if not empty and not interval.contains(outer_low, outer_stop, new_low, new_stop):
            raise OutOfBoundsError(
                f"Propagated bounds {_with_size(*found)}, for dimension {dim} are incompatible "
                f"with existing bounds {_with_size(new_low, new_stop)}."
            )
        lows[dim], stops[dim] = new_low, new_stop
        il[dim], iu[dim] = il[dim] and found_il, iu[dim] and found_iu
    return Box(tuple(lows), tuple(stops), tuple(il), tuple(iu))
