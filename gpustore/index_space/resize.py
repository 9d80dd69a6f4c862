"""Resizing through a transform: new bounds of its domain become new bounds of its output space.

1. Only implicit bounds of the domain may be changed.
2. A bound of the domain moves that of the output dimension it belongs to, with stride 1 or -1.
3. A view that shows only part of the output space must not destroy the rest: its explicit bounds
   become conditions on the bounds of the output space, unless tied bounds may be resized.

Source: TensorStore ``index_space/internal`` (``PropagateInputDomainResizeToOutput``).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpustore.errors import MetadataError, MismatchError
from gpustore.index_space.interval import INF, format_interval
from gpustore.index_space.output_map import OutputIndexMap
from gpustore.index_space.transform import IndexTransform

Interval: TypeAlias = tuple[int | None, int | None]
"""Lower bound and stop, None where there is no condition."""


@dataclass(frozen=True, slots=True)
class OutputResize:
    """New bounds of one output dimension.

    Attributes
    ----------
    inclusive_min, exclusive_max : int or None
        New bounds; None keeps a bound.
    required_min, required_max : int or None
        Bounds that the dimension must have before; None is no condition.
    """

    inclusive_min: int | None = None
    exclusive_max: int | None = None
    required_min: int | None = None
    required_max: int | None = None

    def check_tied(self, dim: int, low: int, stop: int) -> None:
        """Raise MismatchError if elements outside the view would be lost or gained.

        Parameters
        ----------
        dim : int
            Number of the output dimension, for the message.
        low, stop : int
            Bounds of the dimension before.
        """
        affected = None
        if self.required_min is not None and self.required_min != low:
            affected = format_interval(low, self.required_min)
        elif self.required_max is not None and self.required_max != stop:
            affected = format_interval(self.required_max, stop)
        if affected is not None:
            raise MismatchError(
                f"Resize operation would also affect output dimension {dim} over the interval "
                f"{affected} but `resize_tied_bounds` was not specified"
            )


@dataclass(frozen=True, slots=True)
class ResizeRequest:
    """New bounds for the domain of a transform, and conditions on the change.

    Attributes
    ----------
    inclusive_min, exclusive_max : sequence of int or None, length of the domain's rank, or None
        New bounds; None keeps one, or all.
    resize_metadata_only : bool
        Whether chunks that are outside afterwards are kept.
    resize_tied_bounds : bool
        Whether the output space may lose elements that the view does not show.
    expand_only, shrink_only : bool
        Whether a change in the other direction is an error.
    """

    inclusive_min: Sequence[int | None] | None = None
    exclusive_max: Sequence[int | None] | None = None
    resize_metadata_only: bool = False
    resize_tied_bounds: bool = False
    expand_only: bool = False
    shrink_only: bool = False

    def output(self, transform: IndexTransform) -> tuple[OutputResize, ...] | None:
        """Return the new bounds of the output space of `transform`, None if none changes.

        Raises
        ------
        MetadataError
            If a bound is explicit, not possible, or tied to others in a way that cannot be
            resized.
        """
        rank = transform.input_rank
        low, high = _bounds(self.inclusive_min, rank), _bounds(self.exclusive_max, rank)
        for d in range(rank):
            _check_input(transform, d, low[d], high[d])
        resized = {d for d in range(rank) if low[d] is not None or high[d] is not None}
        used = [map_.input_dimension for map_ in transform.output if map_.stride is not None]
        if not resized.intersection(used):
            return None
        outputs = []
        for o, map_ in enumerate(transform.output):
            source = map_.input_dimension if map_.stride is not None else None
            new: Interval = (None, None)
            if source is not None and source in resized:
                new = _resized(o, map_, low[source], high[source])
            tied: Interval = (None, None)
            if not self.resize_tied_bounds:
                if source is not None and used.count(source) > 1:
                    raise MetadataError(
                        f"Input dimension {source} corresponds to a diagonal but "
                        f"`resize_tied_bounds` was not specified"
                    )
                tied = _required(o, map_, transform)
            outputs.append(OutputResize(*new, *tied))
        return tuple(outputs)


def _bounds(values: Sequence[int | None] | None, rank: int) -> tuple[int | None, ...]:
    if values is None:
        return (None,) * rank
    if len(values) != rank:
        raise MetadataError(
            f"inclusive_min and exclusive_max must have rank {rank}, but received: {values!r:.200}"
        )
    return tuple(None if value is None else operator.index(value) for value in values)


def _check_input(transform: IndexTransform, d: int, low: int | None, high: int | None) -> None:
    domain = transform.domain
    where = f"Invalid resize request for input dimension {d}"
    if low is not None:
        if not domain.implicit_lower_bounds[d]:
            raise MetadataError(f"{where}: Cannot change explicit lower bound")
        if not -INF <= low <= INF:
            raise MetadataError(f"{where}: Invalid requested inclusive min value {low}")
    if high is not None:
        if not domain.implicit_upper_bounds[d]:
            raise MetadataError(f"{where}: Cannot change explicit upper bound")
        least = domain.inclusive_min[d] if low is None else low
        if not -INF <= high <= INF:
            raise MetadataError(f"{where}: Invalid requested exclusive max value {high}")
        if high < least:
            # TensorStore takes it as `least`; a negative size is more likely a mistake.
            raise MetadataError(f"{where}: Invalid requested bounds [{least}, {high})")


def _resized(o: int, map_: OutputIndexMap, low: int | None, high: int | None) -> Interval:
    if map_.stride not in (1, -1):
        raise MetadataError(
            f"Output dimension {o} depends on resized input dimension {map_.input_dimension} with "
            f"non-unit stride of {map_.stride}"
        )
    return _affine(map_, low, high)


def _affine(map_: OutputIndexMap, low: int | None, stop: int | None) -> Interval:
    """Return bounds of an output dimension for bounds of its input dimension, stride 1 or -1."""
    if map_.stride == -1:
        low, stop = (
            None if stop is None else 1 - stop,
            None if low is None else 1 - low,
        )
    return (
        None if low is None else map_.offset + low,
        None if stop is None else map_.offset + stop,
    )


def _required(o: int, map_: OutputIndexMap, transform: IndexTransform) -> Interval:
    """Return the bounds of an output dimension of which the view shows every element."""
    if map_.index_array is not None:
        raise MetadataError(
            f"Output dimension {o} has index array map but `resize_tied_bounds` was not specified"
        )
    d = map_.input_dimension
    if d is None:
        return map_.offset, map_.offset + 1
    if map_.stride not in (1, -1):
        raise MetadataError(
            f"Output dimension {o} depends on input dimension {d} with non-unit stride of "
            f"{map_.stride} but `resize_tied_bounds` was not specified"
        )
    domain = transform.domain
    low = None if domain.implicit_lower_bounds[d] else domain.inclusive_min[d]
    stop = None if domain.implicit_upper_bounds[d] else domain.exclusive_max[d]
    return _affine(map_, low, stop)
