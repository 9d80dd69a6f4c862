"""One level of chunks as constraints: shape, aspect ratio and number of elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from gpustore.errors import MetadataError
from gpustore.runtime.keyword_argument import (
    as_floats,
    as_int,
    as_ints,
    expect_type,
    set_keywords,
    when_known,
)
from gpustore.schema.chunk_constraint import (
    MAX_INDEX,
    SOFT,
    ConstraintVector,
    aspect_ratio_vector,
    check_rank,
    parse_int,
    parse_vector,
    shape_vector,
    vector_to_json,
)
from gpustore.strict_json.parsing import REQUIRED, JsonValue, Members, expect_float, from_python
from gpustore.strict_json.repr import pretty

if TYPE_CHECKING:
    from collections.abc import Iterable


class ChunkGridKeywords(TypedDict, total=False):
    """Keywords of :class:`ChunkGrid`."""

    rank: int | None
    shape: Iterable[int | None] | None
    shape_soft_constraint: Iterable[int | None] | None
    aspect_ratio: Iterable[float | None] | None
    aspect_ratio_soft_constraint: Iterable[float | None] | None
    elements: int | None
    elements_soft_constraint: int | None
    grid: ChunkGrid | None
    grid_soft_constraint: ChunkGrid | None


class ChunkGrid:
    """Constraints on one level of chunks; public as ``ChunkLayout.Grid``.

    Parameters
    ----------
    json : object, optional
        ``{"shape": [...], "aspect_ratio": [...], "elements": n}`` and each name with
        ``_soft_constraint``. Excludes the keywords.
    rank : int, optional
        Number of dimensions.
    shape : iterable of int or None, length rank, optional
        Chunk size in elements; None or 0 is no constraint, -1 (always soft) the full extent.
    aspect_ratio : iterable of float or None, length rank, optional
        Relative size; None or 0 is no constraint.
    elements : int, optional
        Target number of elements of a chunk.
    shape_soft_constraint, aspect_ratio_soft_constraint, elements_soft_constraint
        The same constraints, soft.
    grid : ChunkGrid, optional
        Other constraints to merge in.
    grid_soft_constraint : ChunkGrid, optional
        Other constraints to merge in, all as soft ones. (TensorStore 0.1.86 merges them as hard.)

    Raises
    ------
    MetadataError
        For values out of range and hard constraints that contradict each other.
    TypeError
        For values of the wrong type.

    Examples
    --------
    >>> grid = ChunkGrid(shape=[100, None, -1], elements=1000)
    >>> grid.shape
    (100, None, None)
    >>> grid.update(shape=[None, 50, None], elements_soft_constraint=1)
    >>> grid
    ChunkLayout.Grid({
      'elements': 1000,
      'shape': [100, 50, None],
      'shape_soft_constraint': [None, None, -1],
    })
    """

    __slots__ = ("_aspect_ratio", "_elements", "_elements_hard", "_rank", "_shape")
    __hash__ = None  # type: ignore[assignment]

    _rank: int | None
    _shape: ConstraintVector[int] | None
    _aspect_ratio: ConstraintVector[float] | None
    _elements: int | None
    _elements_hard: bool

    def __init__(self, json: Any = REQUIRED, **keywords: Unpack[ChunkGridKeywords]) -> None:
        given = cast("dict[str, Any]", keywords)
        self._clear()
        if json is not REQUIRED:
            if given:
                raise TypeError("ChunkGrid() takes either json or keywords, not both")
            self.load(from_python(json))
        elif given:
            self.update(**given)

    def _clear(self) -> None:
        self._rank = None
        self._shape = None
        self._aspect_ratio = None
        self._elements = None
        self._elements_hard = False

    def copy(self) -> ChunkGrid:
        """Return an independent copy."""
        other = ChunkGrid.__new__(ChunkGrid)
        other._assign(self)
        return other

    def _assign(self, other: ChunkGrid) -> None:
        self._rank = other._rank
        self._shape = other._shape
        self._aspect_ratio = other._aspect_ratio
        self._elements = other._elements
        self._elements_hard = other._elements_hard

    def update(self, **keywords: Unpack[ChunkGridKeywords]) -> None:
        """Merge in more constraints; the keywords are those of the constructor.

        If a keyword raises, no constraint is changed.
        """
        new = self.copy()
        set_keywords(new, _SETTERS, cast("dict[str, Any]", keywords))
        self._assign(new)

    def _set_shape(self, values: Any, *, hard: bool) -> None:
        numbers = as_ints(values)
        if numbers:
            self.set_rank(len(numbers))
            self.merge_shape(shape_vector(numbers, hard=hard))

    def _set_aspect_ratio(self, values: Any, *, hard: bool) -> None:
        numbers = as_floats(values)
        if numbers:
            self.set_rank(len(numbers))
            self.merge_aspect_ratio(aspect_ratio_vector(numbers, hard=hard))

    # ---- merging, one constraint each; the parts of ChunkLayout that act on its grids

    def set_rank(self, rank: int) -> None:
        """Fix the number of dimensions."""
        if check_rank(rank, self._rank) != self._rank:
            self._rank = rank
            self._shape, self._aspect_ratio = _unset_vectors(rank)

    def merge_shape(self, vector: ConstraintVector[int]) -> None:
        """Merge in constraints on the chunk size, in elements."""
        self.set_rank(len(vector))
        self._shape = vector if self._shape is None else self._shape.merged(vector)

    def merge_aspect_ratio(self, vector: ConstraintVector[float]) -> None:
        """Merge in constraints on the relative chunk size."""
        self.set_rank(len(vector))
        old = self._aspect_ratio
        self._aspect_ratio = vector if old is None else old.merged(vector)

    def merge_elements(self, elements: int, *, hard: bool) -> None:
        """Merge in the target number of elements."""
        if elements == -(2**63):
            return
        if not 0 <= elements <= MAX_INDEX:
            raise MetadataError(f"Invalid value: {elements}")
        if self._elements is not None:
            if not hard:
                return
            if self._elements_hard and self._elements != elements:
                raise MetadataError(
                    f"New hard constraint ({elements}) does not match "
                    f"existing hard constraint ({self._elements})"
                )
        self._elements = elements
        self._elements_hard = hard

    def merge(self, other: ChunkGrid) -> None:
        """Merge in all constraints of `other`."""
        if other._shape is not None:
            self.merge_shape(other._shape)
        if other._aspect_ratio is not None:
            self.merge_aspect_ratio(other._aspect_ratio)
        if other._elements is not None:
            self.merge_elements(other._elements, hard=other._elements_hard)

    def softened(self) -> ChunkGrid:
        """Return the same constraints, all soft."""
        other = self.copy()
        if self._shape is not None and self._aspect_ratio is not None:
            other._shape = self._shape.softened()
            other._aspect_ratio = self._aspect_ratio.softened()
        other._elements_hard = False
        return other

    def mapped(
        self,
        rank: int,
        map_shape: Callable[[ConstraintVector[int]], ConstraintVector[int]],
        map_aspect_ratio: Callable[[ConstraintVector[float]], ConstraintVector[float]],
    ) -> ChunkGrid:
        """Return the constraints in another index space of `rank` dimensions.

        `map_shape` and `map_aspect_ratio` convert the vectors of this space to those of the other.
        """
        new = self.copy()
        new._rank = rank
        if self._shape is not None:
            new._shape = map_shape(self._shape)
        if self._aspect_ratio is not None:
            new._aspect_ratio = map_aspect_ratio(self._aspect_ratio)
        return new

    def load(self, json: JsonValue) -> None:
        """Merge in the constraints of a JSON object."""
        members = Members(json, integral_floats=True)
        for name, hard in (("shape", True), ("shape_soft_constraint", False)):
            members.take_with(name, partial(self._load_shape, hard=hard), None)
        for name, hard in (("aspect_ratio", True), ("aspect_ratio_soft_constraint", False)):
            members.take_with(name, partial(self._load_aspect_ratio, hard=hard), None)
        for name, hard in (("elements", True), ("elements_soft_constraint", False)):
            members.take_with(name, partial(self._load_elements, hard=hard), None)
        members.finish()

    def _load_shape(self, json: JsonValue, *, hard: bool) -> None:
        numbers = parse_vector(json, parse_int)
        self.set_rank(len(numbers))
        self.merge_shape(shape_vector(numbers, hard=hard))

    def _load_aspect_ratio(self, json: JsonValue, *, hard: bool) -> None:
        numbers = parse_vector(json, expect_float)
        self.set_rank(len(numbers))
        self.merge_aspect_ratio(aspect_ratio_vector(numbers, hard=hard))

    def _load_elements(self, json: JsonValue, *, hard: bool) -> None:
        self.merge_elements(parse_int(json), hard=hard)

    # ---- reading

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None if it is not known."""
        return self._rank

    ndim = rank

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """Hard constraints on the chunk size, in elements."""
        return None if self._shape is None else self._shape.select(hard=True)

    @property
    def shape_soft_constraint(self) -> tuple[int | None, ...] | None:
        """Soft constraints on the chunk size, in elements."""
        return None if self._shape is None else self._shape.select(hard=False)

    @property
    def aspect_ratio(self) -> tuple[float | None, ...] | None:
        """Hard constraints on the relative size."""
        return None if self._aspect_ratio is None else self._aspect_ratio.select(hard=True)

    @property
    def aspect_ratio_soft_constraint(self) -> tuple[float | None, ...] | None:
        """Soft constraints on the relative size."""
        return None if self._aspect_ratio is None else self._aspect_ratio.select(hard=False)

    @property
    def elements(self) -> int | None:
        """Hard constraint on the target number of elements."""
        return self._elements if self._elements_hard else None

    @property
    def elements_soft_constraint(self) -> int | None:
        """Soft constraint on the target number of elements."""
        return None if self._elements_hard else self._elements

    @property
    def shape_constraint(self) -> ConstraintVector[int] | None:
        """Hard and soft constraints on the chunk size together, in elements."""
        return self._shape

    @property
    def aspect_ratio_constraint(self) -> ConstraintVector[float] | None:
        """Hard and soft constraints on the relative size together."""
        return self._aspect_ratio

    @property
    def elements_constraint(self) -> int | None:
        """Target number of elements of a chunk, hard or soft."""
        return self._elements

    @property
    def has_vectors(self) -> bool:
        """Whether a dimension has a constraint on size or aspect ratio."""
        vectors = (self._shape, self._aspect_ratio)
        return any(vector is not None and vector.is_set for vector in vectors)

    @property
    def has_constraints(self) -> bool:
        """Whether there is any constraint but the rank."""
        return self._elements is not None or self.has_vectors

    def to_json(self, include_defaults: bool = False) -> JsonValue:
        """Return the JSON of the constraints; a rank alone is not in it."""
        json: dict[str, JsonValue] = {}
        if self._shape is not None:
            json |= vector_to_json("shape", self._shape)
        if self._aspect_ratio is not None:
            json |= vector_to_json("aspect_ratio", self._aspect_ratio)
        if self._elements is not None:
            suffix = "" if self._elements_hard else SOFT
            json[f"elements{suffix}"] = self._elements
        return dict(sorted(json.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkGrid):
            return NotImplemented
        return self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        return self._rank, self._shape, self._aspect_ratio, self._elements, self._elements_hard

    def __repr__(self) -> str:
        return pretty("ChunkLayout.Grid", self.to_json())


@cache
def _unset_vectors(rank: int) -> tuple[ConstraintVector[int], ConstraintVector[float]]:
    """Return the vectors of shape and aspect ratio without constraints."""
    return shape_vector([None] * rank), aspect_ratio_vector([None] * rank)


_SETTERS: Mapping[str, Callable[[ChunkGrid, Any], None]] = {
    "rank": lambda grid, v: when_known(as_int(v), grid.set_rank),
    "shape": partial(ChunkGrid._set_shape, hard=True),
    "shape_soft_constraint": partial(ChunkGrid._set_shape, hard=False),
    "aspect_ratio": partial(ChunkGrid._set_aspect_ratio, hard=True),
    "aspect_ratio_soft_constraint": partial(ChunkGrid._set_aspect_ratio, hard=False),
    "elements": lambda grid, v: grid.merge_elements(as_int(v), hard=True),
    "elements_soft_constraint": lambda grid, v: grid.merge_elements(as_int(v), hard=False),
    "grid": lambda grid, v: grid.merge(expect_type(ChunkGrid, v)),
    "grid_soft_constraint": lambda grid, v: grid.merge(expect_type(ChunkGrid, v).softened()),
}
