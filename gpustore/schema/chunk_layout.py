"""Chunk layouts: constraints on the division of an array into chunks.

A layout has up to three levels of chunks (write, read, codec), the origin of their grid, and the
order of the dimensions within the innermost chunks. Merging is explained in
:mod:`gpustore.schema.chunk_constraint`, the choice of shapes in :mod:`gpustore.schema.chunk_shape`.

Source: ``ChunkLayout`` of TensorStore (``tensorstore/chunk_layout.cc``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, cast

from gpustore.data_types.json_array import shape_text
from gpustore.errors import MetadataError, prefixing
from gpustore.runtime.keyword_argument import (
    as_floats,
    as_int,
    as_ints,
    expect_type,
    set_keywords,
    when_known,
)
from gpustore.schema.chunk_constraint import (
    MAX_RANK,
    SOFT,
    ConstraintVector,
    aspect_ratio_vector,
    check_rank,
    origin_vector,
    parse_int,
    parse_vector,
    shape_vector,
    vector_to_json,
)
from gpustore.schema.chunk_grid import ChunkGrid
from gpustore.schema.chunk_keyword import ChunkLayoutKeywords
from gpustore.schema.chunk_template import chunk_template, precise_shapes
from gpustore.strict_json.parsing import REQUIRED, JsonValue, Members, expect_int, from_python
from gpustore.strict_json.repr import pretty

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpustore.index_space import IndexDomain


_USAGES = ("write", "read", "codec")

# Levels to which a constraint on "chunk" applies: the number of elements and the shape of the
# codec's chunks are independent of the others.
_SHAPE_USAGES = ("write", "read")


class ChunkLayout:
    """Constraints on the chunks of an array, hard and soft.

    Parameters
    ----------
    json : object, optional
        The JSON form. Excludes the keywords.
    rank : int, optional
        Number of dimensions.
    inner_order : iterable of int, length rank, optional
        Permutation of the dimensions, the outermost in storage first.
    grid_origin : iterable of int or None, length rank, optional
        Origin of the chunk grid, in elements.
    chunk, write_chunk, read_chunk, codec_chunk : ChunkLayout.Grid, optional
        Constraints on the levels. ``chunk`` applies to write and read chunks, its aspect ratio
        to codec chunks too.
    chunk_shape, write_chunk_shape, ... : iterable of int or None, optional
        Shorthands for one constraint of one level: every combination of ``chunk``,
        ``write_chunk``, ``read_chunk``, ``codec_chunk`` with ``_shape``, ``_aspect_ratio``,
        ``_elements``. (TensorStore 0.1.86 applies ``codec_chunk_shape`` and
        ``codec_chunk_aspect_ratio`` to read chunks, against its documentation.)
    ..._soft_constraint
        Each of these keywords but rank, chunk and the grids, as a soft constraint.
    finalize : bool, optional
        Turn the constraints into a precise layout, see :meth:`finalize`.

    Raises
    ------
    MetadataError
        For values out of range and hard constraints that contradict each other.
    TypeError
        For values of the wrong type.

    Examples
    --------
    >>> layout = ChunkLayout(chunk_shape=[64, 64], read_chunk_elements=100)
    >>> layout.read_chunk.shape
    (64, 64)
    >>> layout
    ChunkLayout({
      'read_chunk': {'elements': 100, 'shape': [64, 64]},
      'write_chunk': {'shape': [64, 64]},
    })
    """

    __slots__ = ("_grid_origin", "_grids", "_inner_order", "_inner_order_hard", "_rank")
    __hash__ = None  # type: ignore[assignment]

    Grid: TypeAlias = ChunkGrid

    _rank: int | None
    _inner_order: tuple[int, ...] | None
    _inner_order_hard: bool
    _grid_origin: ConstraintVector[int] | None
    _grids: dict[str, ChunkGrid]

    def __init__(self, json: Any = REQUIRED, **keywords: Unpack[ChunkLayoutKeywords]) -> None:
        given = cast("dict[str, Any]", keywords)
        self._rank = None
        self._inner_order = None
        self._inner_order_hard = False
        self._grid_origin = None
        self._grids = {usage: ChunkGrid() for usage in _USAGES}
        if json is not REQUIRED:
            if given:
                raise TypeError("ChunkLayout() takes either json or keywords, not both")
            self._load(from_python(json))
        elif given:
            set_keywords(self, _SETTERS, given)

    def copy(self) -> ChunkLayout:
        """Return an independent copy."""
        other = ChunkLayout.__new__(ChunkLayout)
        other._assign(self)
        return other

    def _assign(self, other: ChunkLayout) -> None:
        self._rank = other._rank
        self._inner_order = other._inner_order
        self._inner_order_hard = other._inner_order_hard
        self._grid_origin = other._grid_origin
        self._grids = {usage: grid.copy() for usage, grid in other._grids.items()}

    def update(self, **keywords: Unpack[ChunkLayoutKeywords]) -> None:
        """Merge in more constraints; the keywords are those of the constructor.

        If a keyword raises, no constraint is changed.
        """
        new = self.copy()
        set_keywords(new, _SETTERS, cast("dict[str, Any]", keywords))
        self._assign(new)

    # ---- merging

    def set_rank(self, rank: int) -> None:
        """Fix the number of dimensions."""
        if check_rank(rank, self._rank) != self._rank:
            self._rank = rank
            self._grid_origin = origin_vector([None] * rank)
            for grid in self._grids.values():
                grid.set_rank(rank)

    def merge_inner_order(self, order: Sequence[int], *, hard: bool = True) -> None:
        """Merge in the order of the dimensions in a chunk, a permutation."""
        if sorted(order) != list(range(len(order))):
            raise MetadataError(f"Invalid permutation: {shape_text(order)}")
        self.set_rank(len(order))
        if self._inner_order is not None and len(order):
            if not hard:
                return
            if self._inner_order_hard and tuple(order) != self._inner_order:
                raise MetadataError(
                    f"New hard constraint ({shape_text(order)}) does not match "
                    f"existing hard constraint ({shape_text(self._inner_order)})"
                )
        if len(order):
            self._inner_order = tuple(order)
            self._inner_order_hard = hard

    def merge_grid_origin(self, vector: ConstraintVector[int]) -> None:
        """Merge in constraints on the origin of the grid, in elements."""
        self.set_rank(len(vector))
        old = self._grid_origin
        self._grid_origin = vector if old is None else old.merged(vector)

    def merge_grid(self, usage: str, other: ChunkGrid) -> None:
        """Merge constraints into the grid of `usage`: "write", "read" or "codec"."""
        self._merge_shape(usage, other.shape_constraint)
        self._merge_aspect_ratio(usage, other.aspect_ratio_constraint)
        elements = other.elements_constraint
        if elements is not None:
            self._merge_elements(usage, elements, hard=other.elements is not None)

    def merge(self, other: ChunkLayout) -> None:
        """Merge in all constraints of `other`.

        Raises
        ------
        MetadataError
            If hard constraints contradict each other. This layout may then hold some of the
            constraints; use :meth:`merged` to keep it whole.
        """
        if other._rank is not None:
            self.set_rank(other._rank)
        if other._inner_order is not None:
            with _setting("inner_order"):
                self.merge_inner_order(other._inner_order, hard=other._inner_order_hard)
        if other._grid_origin is not None:
            with _setting("grid_origin"):
                self.merge_grid_origin(other._grid_origin)
        for usage, grid in other._grids.items():
            if grid.has_constraints:
                self.merge_grid(usage, grid)

    def merged(self, other: ChunkLayout) -> ChunkLayout:
        """Return the merged constraints of both layouts; MetadataError if they contradict."""
        new = self.copy()
        new.merge(other)
        return new

    def _merge_shape(self, usage: str, vector: ConstraintVector[int] | None) -> None:
        if vector is not None and len(vector):
            with _setting(f"{usage}_chunk shape"):
                self.set_rank(len(vector))
                self._grids[usage].merge_shape(vector)

    def _merge_aspect_ratio(self, usage: str, vector: ConstraintVector[float] | None) -> None:
        if vector is not None and len(vector):
            with _setting(f"{usage}_chunk aspect_ratio"):
                self.set_rank(len(vector))
                self._grids[usage].merge_aspect_ratio(vector)

    def _merge_elements(self, usage: str, elements: int, *, hard: bool) -> None:
        with _setting(f"{usage}_chunk elements"):
            self._grids[usage].merge_elements(elements, hard=hard)

    # ---- keywords

    def _set_inner_order(self, order: Any, *, hard: bool) -> None:
        dims = [as_int(dim) for dim in order]
        if dims:
            with _setting("inner_order"):
                self.merge_inner_order(dims, hard=hard)

    def _set_grid_origin(self, values: Any, *, hard: bool) -> None:
        numbers = as_ints(values)
        if numbers:
            with _setting("grid_origin"):
                self.set_rank(len(numbers))
                self.merge_grid_origin(origin_vector(numbers, hard=hard))

    def _set_grid(self, grid: Any, *, level: str) -> None:
        expect_type(ChunkGrid, grid)
        if level != "chunk":
            self.merge_grid(level.removesuffix("_chunk"), grid)
            return
        for usage in _SHAPE_USAGES:
            self.merge_grid(usage, grid)
        self._merge_aspect_ratio("codec", grid.aspect_ratio_constraint)

    def _set_shape(self, values: Any, *, level: str, hard: bool) -> None:
        numbers = as_ints(values)
        for usage in _usages(level, _SHAPE_USAGES) if numbers else ():
            with _setting(f"{usage}_chunk shape"):
                self.set_rank(len(numbers))
                vector = shape_vector(numbers, hard=hard)
            self._merge_shape(usage, vector)

    def _set_aspect_ratio(self, values: Any, *, level: str, hard: bool) -> None:
        numbers = as_floats(values)
        for usage in _usages(level, _USAGES) if numbers else ():
            with _setting(f"{usage}_chunk aspect_ratio"):
                self.set_rank(len(numbers))
                vector = aspect_ratio_vector(numbers, hard=hard)
            self._merge_aspect_ratio(usage, vector)

    def _set_elements(self, elements: Any, *, level: str, hard: bool) -> None:
        for usage in _usages(level, _SHAPE_USAGES):
            self._merge_elements(usage, as_int(elements), hard=hard)

    # ---- JSON

    def _load(self, json: JsonValue) -> None:
        members = Members(json, integral_floats=True)
        members.take_with("rank", self._load_rank, None)
        for hard, soft in ((True, ""), (False, SOFT)):
            members.take_with(f"inner_order{soft}", partial(self._load_inner_order, hard), None)
        for hard, soft in ((True, ""), (False, SOFT)):
            members.take_with(f"grid_origin{soft}", partial(self._load_grid_origin, hard), None)
        for level in _LEVELS:
            members.take_with(level, partial(self._load_grid, level), None)
        members.finish()

    def _load_rank(self, json: JsonValue) -> None:
        self.set_rank(expect_int(json, 0, MAX_RANK, integral_floats=True))

    def _load_inner_order(self, hard: bool, json: JsonValue) -> None:
        if json is None:
            return
        dims = parse_vector(
            json, lambda v: expect_int(v, 0, MAX_RANK - 1, integral_floats=True), nullable=False
        )
        self.merge_inner_order(cast("list[int]", dims), hard=hard)

    def _load_grid_origin(self, hard: bool, json: JsonValue) -> None:
        numbers = parse_vector(json, parse_int)
        self.set_rank(len(numbers))
        self.merge_grid_origin(origin_vector(numbers, hard=hard))

    def _load_grid(self, level: str, json: JsonValue) -> None:
        """Merge in the JSON of one level, in its order of members, without contexts of keywords."""
        if level != "chunk":
            self._load_into(self._grids[level.removesuffix("_chunk")], json)
            return
        grid = ChunkGrid()
        if self._rank is not None:
            grid.set_rank(self._rank)
        grid.load(json)
        if grid.rank is not None:
            self.set_rank(grid.rank)
        for usage in _SHAPE_USAGES:
            self._grids[usage].merge(grid)
        if grid.aspect_ratio_constraint is not None:
            self._grids["codec"].merge_aspect_ratio(grid.aspect_ratio_constraint)

    def _load_into(self, grid: ChunkGrid, json: JsonValue) -> None:
        grid.load(json)
        if grid.rank is not None:
            self.set_rank(grid.rank)

    def to_json(self, include_defaults: bool = False) -> JsonValue:
        """Return the JSON of the constraints; the rank only where no other member tells it."""
        json: dict[str, JsonValue] = {}
        if self._rank is not None and not self._has_vectors():
            json["rank"] = self._rank
        if self._inner_order is not None:
            soft = "" if self._inner_order_hard else SOFT
            json[f"inner_order{soft}"] = list(self._inner_order)
        if self._grid_origin is not None:
            json |= vector_to_json("grid_origin", self._grid_origin)
        for usage, grid in self._grids.items():
            members = grid.to_json()
            if members:
                json[f"{usage}_chunk"] = members
        return dict(sorted(json.items()))

    @property
    def has_constraints(self) -> bool:
        """Whether the layout has any constraint but the rank."""
        return self._has_vectors() or any(self._elements())

    def _has_vectors(self) -> bool:
        """Whether the layout constrains single dimensions, not only numbers of elements."""
        return (
            self._inner_order is not None
            or (self._grid_origin is not None and self._grid_origin.is_set)
            or any(grid.has_vectors for grid in self._grids.values())
        )

    # ---- reading

    @property
    def rank(self) -> int:
        """Number of dimensions, -1 if it is not known (as in TensorStore)."""
        return -1 if self._rank is None else self._rank

    ndim = rank

    @property
    def inner_order(self) -> tuple[int, ...] | None:
        """Hard constraint on the order of the dimensions in a chunk, the outermost first."""
        return self._inner_order if self._inner_order_hard else None

    @property
    def inner_order_soft_constraint(self) -> tuple[int, ...] | None:
        """Soft constraint on the order of the dimensions in a chunk, the outermost first."""
        if self._rank == 0:  # The only order there is.
            return ()
        return None if self._inner_order_hard else self._inner_order

    @property
    def grid_origin(self) -> tuple[int | None, ...] | None:
        """Hard constraints on the origin of the chunk grid, in elements."""
        return None if self._grid_origin is None else self._grid_origin.select(hard=True)

    @property
    def grid_origin_soft_constraint(self) -> tuple[int | None, ...] | None:
        """Soft constraints on the origin of the chunk grid, in elements."""
        return None if self._grid_origin is None else self._grid_origin.select(hard=False)

    @property
    def write_chunk(self) -> ChunkGrid:
        """Copy of the constraints on write chunks."""
        return self._of_level("write")

    @property
    def read_chunk(self) -> ChunkGrid:
        """Copy of the constraints on read chunks."""
        return self._of_level("read")

    @property
    def codec_chunk(self) -> ChunkGrid:
        """Copy of the constraints on the chunks of the codec."""
        return self._of_level("codec")

    def _of_level(self, usage: str) -> ChunkGrid:
        grid = self._grids[usage]
        if self._rank != 0:
            return grid.copy()
        # As in TensorStore, no dimensions are as good as none known.
        elements = grid.elements_constraint
        new = ChunkGrid()
        if elements is not None:
            new.merge_elements(elements, hard=grid.elements is not None)
        return new

    def read_write_chunk(self, *, first: Literal["read", "write"] = "read") -> ChunkGrid:
        """Return read and write constraints merged, for arrays with a single level of chunks.

        Parameters
        ----------
        first : {"read", "write"}
            Level whose soft constraints prevail. As in TensorStore, Zarr v2 merges the write
            constraints into the read constraints and Zarr v3 the other way round.

        Raises
        ------
        MetadataError
            If hard constraints on both contradict each other.
        """
        new = self.copy()
        second = "write" if first == "read" else "read"
        try:
            new.merge_grid(first, self._grids[second])
        except MetadataError as error:
            raise error.prefixed(
                f"{second}_chunk constraints not compatible with existing {first}_chunk constraints"
            ) from None
        return new._grids[first]

    @property
    def read_chunk_template(self) -> IndexDomain:
        """Domain of the read chunk at the origin of the grid, from hard constraints alone."""
        return self._template("read")

    @property
    def write_chunk_template(self) -> IndexDomain:
        """Domain of the write chunk at the origin of the grid, from hard constraints alone."""
        return self._template("write")

    def _template(self, usage: str) -> IndexDomain:
        if self._rank is None:
            raise MetadataError("Rank of chunk layout is unspecified")
        return chunk_template(self.grid_origin or (), self._grids[usage].shape or ())

    # ---- becoming precise

    def finalize(self) -> None:
        """Turn the constraints into the precise layout of an array.

        Soft sizes, aspect ratios and numbers of elements are dropped; read sizes without a
        constraint become those of the write chunks.

        Raises
        ------
        MetadataError
            If the rank or an origin is missing, or write chunks are not whole read chunks.
        """
        if self._rank is None:
            raise MetadataError("rank must be specified")
        shapes = {usage: self._grids[usage].shape or () for usage in _USAGES}
        for usage, shape in precise_shapes(self.grid_origin or (), shapes).items():
            self._grids[usage] = ChunkGrid(rank=self._rank, shape=shape)

    # ---- transforms

    def mapped(
        self,
        rank: int,
        map_order: Callable[[Sequence[int]], tuple[int, ...]],
        map_origin: Callable[[ConstraintVector[int]], ConstraintVector[int]],
        map_shape: Callable[[ConstraintVector[int]], ConstraintVector[int]],
        map_aspect_ratio: Callable[[ConstraintVector[float]], ConstraintVector[float]],
    ) -> ChunkLayout:
        """Return the constraints in another index space of `rank` dimensions.

        The functions convert the parts of a layout in this space to those in the other.
        """
        new = self.copy()
        if self._rank is None or self._grid_origin is None:
            return new
        new._rank = rank
        if self._inner_order is not None:
            new._inner_order = map_order(self._inner_order) or None
        with prefixing("Error transforming grid_origin"):
            new._grid_origin = map_origin(self._grid_origin)
        for usage, grid in self._grids.items():
            with prefixing(f"Error transforming {usage}_chunk"):
                new._grids[usage] = grid.mapped(rank, map_shape, map_aspect_ratio)
        return new

    # ---- comparing

    def __eq__(self, other: object) -> bool:
        """Whether both have the same constraints; as in TensorStore, a rank alone is none."""
        if not isinstance(other, ChunkLayout):
            return NotImplemented
        if self._is_empty() or other._is_empty():
            return self._is_empty() and other._is_empty()
        if self._rank != other._rank or not self._rank:
            return (
                self._elements() == other._elements()
                and not self._has_vectors()
                and not other._has_vectors()
            )
        return self._state() == other._state()

    def _is_empty(self) -> bool:
        return self._rank is None and not any(self._elements())

    def _elements(self) -> list[object]:
        return [
            None
            if grid.elements_constraint is None
            else (grid.elements_constraint, grid.elements is not None)
            for grid in self._grids.values()
        ]

    def _state(self) -> tuple[object, ...]:
        return self._inner_order, self._inner_order_hard, self._grid_origin, self._grids

    def __repr__(self) -> str:
        return pretty("ChunkLayout", self.to_json())


_LEVELS = ("chunk", "write_chunk", "read_chunk", "codec_chunk")


def _setters() -> dict[str, Callable[[ChunkLayout, Any], None]]:
    """Return the setter of each keyword, in the order in which they are applied."""
    setters: dict[str, Callable[[ChunkLayout, Any], None]] = {
        "rank": lambda layout, v: when_known(as_int(v), layout.set_rank),
    }
    for hard, soft in ((True, ""), (False, SOFT)):
        setters[f"inner_order{soft}"] = partial(ChunkLayout._set_inner_order, hard=hard)
    for hard, soft in ((True, ""), (False, SOFT)):
        setters[f"grid_origin{soft}"] = partial(ChunkLayout._set_grid_origin, hard=hard)
    for level in _LEVELS:
        setters[level] = partial(ChunkLayout._set_grid, level=level)
    for constraint, setter in (
        ("shape", ChunkLayout._set_shape),
        ("aspect_ratio", ChunkLayout._set_aspect_ratio),
        ("elements", ChunkLayout._set_elements),
    ):
        for level in _LEVELS:
            for hard, soft in ((True, ""), (False, SOFT)):
                name = f"{level}_{constraint}{soft}"
                setters[name] = partial(setter, level=level, hard=hard)
    setters["finalize"] = lambda layout, v: layout.finalize() if v else None
    return setters


_SETTERS = _setters()


def _usages(level: str, of_chunk: Sequence[str]) -> Sequence[str]:
    return of_chunk if level == "chunk" else (level.removesuffix("_chunk"),)


def _setting(what: str) -> prefixing:
    return prefixing(f"Error setting {what}")
