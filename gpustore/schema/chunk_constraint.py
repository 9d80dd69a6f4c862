"""Hard and soft constraints on the dimensions of a chunk grid, and their merging.

Each constraint is *hard* (must hold) or *soft* (a wish). Merging follows one rule everywhere: a
hard value replaces a soft one, a soft value fills only what is empty, and two different hard
values of the same dimension are an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import JsonValue, at_position, expect_int, expect_list

MAX_RANK = 32
SOFT = "_soft_constraint"

# Largest finite index of TensorStore, and largest size of a chunk.
MAX_INDEX = 2**62 - 2

N = TypeVar("N", int, float)
T = TypeVar("T")


def check_rank(rank: int, existing: int | None) -> int:
    """Return `rank` if it is legal and agrees with `existing`, raise MetadataError otherwise."""
    if not 0 <= rank <= MAX_RANK:
        raise MetadataError(f"Rank {rank} is outside valid range [0, {MAX_RANK}]")
    if existing is not None and existing != rank:
        raise MetadataError(f"Rank {rank} does not match existing rank {existing}")
    return rank


# ------------------------------------------------------------------------ vectors


@dataclass(frozen=True, slots=True)
class _Kind(Generic[N]):
    """Kind of the values of a vector.

    `unset` is the number that stands for no constraint; a `wish` is a value that is always soft.
    """

    unset: N
    minimum: N
    maximum: N
    wish: N | None = None


_SHAPE: _Kind[int] = _Kind(unset=0, minimum=-1, maximum=MAX_INDEX, wish=-1)
_ORIGIN: _Kind[int] = _Kind(unset=-(2**63), minimum=-MAX_INDEX, maximum=MAX_INDEX)
_ASPECT_RATIO: _Kind[float] = _Kind(unset=0.0, minimum=0.0, maximum=sys.float_info.max)


@dataclass(frozen=True, slots=True)
class ConstraintVector(Generic[N]):
    """Constraints of one kind on each dimension; immutable.

    Attributes
    ----------
    values : tuple, length rank
        Value of each dimension, None without a constraint.
    hard : tuple of bool, length rank
        Whether the constraint of each dimension is hard; False without one.
    """

    kind: _Kind[N]
    values: tuple[N | None, ...]
    hard: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_set(self) -> bool:
        """Whether any dimension has a constraint."""
        return self.values.count(None) < len(self.values)

    def select(self, *, hard: bool) -> tuple[N | None, ...]:
        """Return the hard values alone, or the soft ones, None for other dimensions."""
        return tuple(
            value if is_hard is hard else None
            for value, is_hard in zip(self.values, self.hard, strict=True)
        )

    def softened(self) -> ConstraintVector[N]:
        """Return the same values, all soft."""
        return ConstraintVector(self.kind, self.values, (False,) * len(self.values))

    def merged(self, other: ConstraintVector[N]) -> ConstraintVector[N]:
        """Return these constraints merged with those of `other`.

        Raises
        ------
        MetadataError
            If both have different hard values for one dimension.
        """
        values, hard = list(self.values), list(self.hard)
        for i, (value, is_hard) in enumerate(zip(other.values, other.hard, strict=True)):
            existing = values[i]
            if value is None:
                continue
            if is_hard and hard[i] and value != existing:
                raise MetadataError(
                    f"New hard constraint ({_number(value)}) for dimension {i} does not match "
                    f"existing hard constraint ({_number(existing)})"
                )
            if is_hard or existing is None:
                values[i] = value
                hard[i] = is_hard or hard[i]
        return ConstraintVector(self.kind, tuple(values), tuple(hard))


def _number(value: float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _vector(
    kind: _Kind[N], values: Iterable[N | None], hard: bool | Sequence[bool]
) -> ConstraintVector[N]:
    numbers = [kind.unset if value is None else value for value in values]
    is_hard = [hard] * len(numbers) if isinstance(hard, bool) else hard
    cleaned: list[N | None] = []
    for i, number in enumerate(numbers):
        if number != kind.unset and not kind.minimum <= number <= kind.maximum:
            shown = ", ".join(map(_number, numbers))
            raise MetadataError(f"Invalid value for dimension {i}: {{{shown}}}")
        cleaned.append(None if number == kind.unset else number)
    flags = tuple(
        h and value is not None and value != kind.wish
        for value, h in zip(cleaned, is_hard, strict=True)
    )
    return ConstraintVector(kind, tuple(cleaned), flags)


def shape_vector(
    values: Iterable[int | None], *, hard: bool | Sequence[bool] = True
) -> ConstraintVector[int]:
    """Return chunk sizes as constraints: None and 0 are unset, -1 (full extent) is always soft."""
    return _vector(_SHAPE, values, hard)


def origin_vector(
    values: Iterable[int | None], *, hard: bool | Sequence[bool] = True
) -> ConstraintVector[int]:
    """Return the origin of the chunk grid as constraints: None is unset."""
    return _vector(_ORIGIN, values, hard)


def aspect_ratio_vector(
    values: Iterable[float | None], *, hard: bool | Sequence[bool] = True
) -> ConstraintVector[float]:
    """Return relative chunk sizes as constraints: None and 0 are unset."""
    return _vector(_ASPECT_RATIO, values, hard)


def parse_vector(
    value: JsonValue, convert: Callable[[JsonValue], T], *, nullable: bool = True
) -> list[T | None]:
    """Parse a JSON array of numbers (and nulls), at most 32 long."""
    elements = expect_list(value)
    check_rank(len(elements), None)
    converted: list[T | None] = []
    for i, element in enumerate(elements):
        with at_position(i):
            converted.append(None if element is None and nullable else convert(element))
    return converted


def parse_int(value: JsonValue) -> int:
    """Parse a 64-bit integer; 3.0 counts as 3."""
    return expect_int(value, integral_floats=True)


def vector_to_json(name: str, vector: ConstraintVector[N]) -> dict[str, JsonValue]:
    """Return the members ``<name>`` and ``<name>_soft_constraint`` that are not empty."""
    json: dict[str, JsonValue] = {}
    for member, hard in ((name, True), (f"{name}{SOFT}", False)):
        values = vector.select(hard=hard)
        if any(value is not None for value in values):
            json[member] = list(values)
    return json
