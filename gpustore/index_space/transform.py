"""Transform from an input index space to an output index space.

Indexing a store composes its transform with another one; nothing is read. Transforms compose as
functions do: ``a[b](x) == a(b(x))``.

Source: ``IndexTransform`` of TensorStore (``tensorstore/index_space/index_transform.h``).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import sub
from typing import Any, overload

import gpustore.index_space.interval as interval
from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space.accessor import IndexAccessors
from gpustore.index_space.bounds import (
    Box,
    box_from_arguments,
    integers,
    propagate,
)
from gpustore.index_space.composition import compose_maps, crop_arrays
from gpustore.index_space.dim import Dim
from gpustore.index_space.dimension_operation import operated, reordered_maps
from gpustore.index_space.domain import IndexDomain, make_domain
from gpustore.index_space.evaluation import evaluate
from gpustore.index_space.interval import INF, MAX_RANK, format_interval
from gpustore.index_space.json import box_from_json, box_to_json, maps_from_json, maps_to_json
from gpustore.index_space.map_check import checked_maps
from gpustore.index_space.numpy_indexing import index_maps
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    constant_map,
    format_array,
    identity_maps,
)
from gpustore.index_space.selection import Expression, permutation

_NAMES = {
    name: f"input_{name}"
    for name in ("rank", "inclusive_min", "exclusive_max", "inclusive_max", "shape", "labels")
}
_KEYWORDS = {*_NAMES.values(), "implicit_lower_bounds", "implicit_upper_bounds"} - {"input_rank"}


class IndexTransform(IndexAccessors):
    """Map from each index of its domain to an output index; immutable and hashable.

    Transforms of parts of an array are many, and few are looked at: domain and maps of an index of
    integers and slices are made when somebody asks for them.

    Parameters
    ----------
    input_rank : int, optional
        Number of input dimensions; needed only if nothing else tells it. Alternatively an
        :class:`IndexDomain` or a sequence of :class:`Dim` (keyword `domain`).
    input_inclusive_min, input_exclusive_max, input_inclusive_max, input_shape : sequence of int
        Bounds of the domain, as in :class:`IndexDomain`; so are `implicit_lower_bounds`,
        `implicit_upper_bounds` and `input_labels`.
    output : sequence of OutputIndexMap, optional
        One map per output dimension; the identity by default.
    json : dict, optional
        The JSON form, as the only argument.

    Raises
    ------
    ValueError
        If the arguments contradict each other or are out of range.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> t = IndexTransform(input_shape=[12], input_labels=["x"])[3:9:2]
    >>> t
    Rank 1 -> 1 index space transform:
      Input domain:
        0: [1, 4) "x"
      Output index maps:
        out[0] = 1 + 2 * in[0]
    <BLANKLINE>
    >>> t([2])
    (5,)
    """

    __slots__ = (
        "_domain", "_high", "_index", "_is_plain", "_labels", "_low", "_output", "_shape",
    )  # fmt: skip

    # Reads of the native core, which are many, look at these directly.
    _domain: IndexDomain | None  # None until it is asked for: both bounds are explicit then
    _low: tuple[int, ...]
    _high: tuple[int, ...]
    _labels: tuple[str, ...]
    _output: OutputIndexMaps | None  # None until they are asked for
    _index: tuple[int | slice, ...]  # Of integers and slices; it tells the maps, if they are None.
    _is_plain: bool  # whether `output` is `identity_maps`, and all bounds are finite
    _shape: tuple[int, ...] | None  # None until it is asked for

    @overload
    def __init__(
        self,
        input_rank: int | None = None,
        *,
        input_inclusive_min: Iterable[int] | None = None,
        implicit_lower_bounds: Iterable[bool] | None = None,
        input_exclusive_max: Iterable[int] | None = None,
        input_inclusive_max: Iterable[int] | None = None,
        input_shape: Iterable[int] | None = None,
        implicit_upper_bounds: Iterable[bool] | None = None,
        input_labels: Iterable[str | None] | None = None,
        output: Iterable[OutputIndexMap] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self, domain: IndexDomain | Iterable[Dim], /, output: Iterable[OutputIndexMap] | None = None
    ) -> None: ...
    @overload
    def __init__(self, *, json: Any) -> None: ...
    def __init__(
        self, input_rank: Any = None, output: Iterable[OutputIndexMap] | None = None, **kwargs: Any
    ) -> None:
        for name in ("domain", "input_rank"):
            if name in kwargs and input_rank is None:
                input_rank = kwargs.pop(name)
        if "json" in kwargs:
            if len(kwargs) > 1 or input_rank is not None or output is not None:
                raise TypeError("IndexTransform: `json` excludes other arguments")
            domain, maps = _from_json(kwargs["json"])
        else:
            if kwargs.keys() - _KEYWORDS:
                raise TypeError(f"IndexTransform: unexpected {sorted(kwargs.keys() - _KEYWORDS)}")
            if isinstance(input_rank, Iterable):
                if kwargs:
                    raise TypeError("IndexTransform: `domain` excludes the parts of a domain")
                domain = (
                    input_rank if isinstance(input_rank, IndexDomain) else IndexDomain(input_rank)
                )
            else:
                given = {k: kwargs.get(v, kwargs.get(k)) for k, v in _NAMES.items()}
                given |= {k: v for k, v in kwargs.items() if k.startswith("implicit")}
                domain = make_domain(*box_from_arguments(_NAMES, input_rank, given))
            if output is None:
                maps = identity_maps(len(domain.box.inclusive_min))
            else:
                maps = checked_maps(domain.box, output)
        _fill(self, domain, maps)

    @property
    def domain(self) -> IndexDomain:
        """Domain of the transform."""
        domain = self._domain
        if domain is None:
            explicit = _EXPLICIT[len(self._low)]
            box = Box(self._low, self._high, explicit, explicit)
            domain = self._domain = make_domain(box, self._labels)
        return domain

    @property
    def output(self) -> OutputIndexMaps:
        """Output index map of each output dimension."""
        output = self._output
        if output is None:
            kept = iter(identity_maps(len(self._low)))
            maps = [next(kept) if type(x) is slice else constant_map(x) for x in self._index]
            output = self._output = OutputIndexMaps(maps)
        return output

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexTransform):
            return NotImplemented
        return (self.domain, self.output) == (other.domain, other.output)

    def __hash__(self) -> int:
        return hash((self.domain, self.output))

    def __reduce__(self) -> tuple[Any, ...]:
        return (make_transform, (self.domain, self.output))

    @property
    def input_rank(self) -> int:
        """Number of input dimensions."""
        return len(self._low)

    ndim = input_rank

    @property
    def output_rank(self) -> int:
        """Number of output dimensions."""
        return len(self.output)

    @property
    def input_inclusive_min(self) -> tuple[int, ...]:
        """First index of each input dimension, ``-inf`` if unbounded."""
        return self._low

    origin = input_origin = input_inclusive_min

    @property
    def input_exclusive_max(self) -> tuple[int, ...]:
        """One more than the last index of each input dimension, ``inf + 1`` if unbounded."""
        return self._high

    @property
    def input_inclusive_max(self) -> tuple[int, ...]:
        """Last index of each input dimension, ``inf`` if unbounded."""
        return self.domain.inclusive_max

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Size of each input dimension, in elements."""
        shape = self._shape
        if shape is None:
            shape = self._shape = tuple(map(sub, self._high, self._low))
        return shape

    shape = input_shape

    @property
    def size(self) -> int:
        """Number of elements of the domain, at most ``2**63 - 1``."""
        return self.domain.size

    @property
    def input_labels(self) -> tuple[str, ...]:
        """Label of each input dimension, ``""`` for none."""
        return self._labels

    @property
    def implicit_lower_bounds(self) -> tuple[bool, ...]:
        """Whether the lower bound of each input dimension is implicit."""
        return self.domain.implicit_lower_bounds

    @property
    def implicit_upper_bounds(self) -> tuple[bool, ...]:
        """Whether the upper bound of each input dimension is implicit."""
        return self.domain.implicit_upper_bounds

    def __call__(self, indices: Iterable[int]) -> tuple[int, ...]:
        """Return the output index of one input index.

        Parameters
        ----------
        indices : sequence of int, length `input_rank`
            An input index within the explicit bounds of the domain.

        Returns
        -------
        tuple of int, length `output_rank`

        Raises
        ------
        OutOfBoundsError
            If the index is outside the domain, or a value of an index array outside its range.
        """
        at = integers(indices, "indices")
        box = self.domain.box
        if len(at) != self.input_rank:
            raise MetadataError(
                f"input indices vector of length {len(at)} cannot be used with index transform "
                f"with input rank {self.input_rank}"
            )
        for dim, (index, low, stop, il, iu) in enumerate(zip(at, *box)):
            if not ((il or low <= index) and (iu or index < stop) and -INF < index < INF):
                raise OutOfBoundsError(
                    f"Index {index} is not contained in the domain "
                    f"{format_interval(low, stop, il, iu)} for input dimension {dim}"
                )
        return tuple([evaluate(dim, m, at, box) for dim, m in enumerate(self.output)])

    def __getitem__(self, index: Any) -> IndexTransform:
        """Return the composition with an index, a dimension expression, a domain or a transform.

        Parameters
        ----------
        index : NumPy-style index, DimExpression, IndexDomain or IndexTransform
            Negative indices do not wrap; slices keep their origin.

        Raises
        ------
        IndexError
            If the index is out of bounds or no index expression.
        """
        found = self._index_inside(index)
        if found is not None:
            return found
        if isinstance(index, (IndexTransform, IndexDomain, Expression)):
            try:
                if isinstance(index, Expression):
                    domain = self.domain
                    box, labels, maps = index._applied(domain.box, domain.labels, self.output)
                    return make_transform(make_domain(box, labels), maps)
                if isinstance(index, IndexDomain):
                    domain = self.domain._cropped(index)
                    maps = crop_arrays(self.output, self.domain.box, domain.box)
                    return make_transform(domain, maps)
                return self._compose(index)
            except MetadataError as error:
                raise OutOfBoundsError(error.text, status="") from None
        return make_transform(*index_maps(self.domain, self.output, index))

    def _index_inside(self, index: Any) -> IndexTransform | None:
        """Index each dimension of an identity by an integer or ``start:stop`` inside its bounds.

        Most indices are such tuples, of which no more is asked.

        Returns
        -------
        IndexTransform or None
            None for other indices, and for those outside.
        """
        if type(index) is not tuple or not self._is_plain or len(index) != len(self._low):
            return None
        low: list[int] = []
        high: list[int] = []
        shape: list[int] = []
        for item, first, end in zip(index, self._low, self._high):
            if type(item) is slice:
                start = item.start
                stop = item.stop
                if type(start) is not int or type(stop) is not int or item.step is not None:
                    return None
                if not first <= start <= stop <= end:
                    return None
                low.append(start)
                high.append(stop)
                shape.append(stop - start)
            elif type(item) is not int or not first <= item < end:
                return None
        found = _new(IndexTransform)
        found._low = tuple(low)
        found._high = tuple(high)
        found._shape = tuple(shape)
        found._domain = None
        if len(low) == len(index):
            found._labels = self._labels
            found._output = self._output
            found._is_plain = True
        else:
            kept = [one for one, item in zip(self._labels, index) if type(item) is slice]
            found._labels = tuple(kept)
            found._index = index
            found._output = None
            found._is_plain = False
        return found

    def _compose(self, inner: IndexTransform) -> IndexTransform:
        if inner.output_rank != self.input_rank:
            raise MetadataError(
                f"Rank {self.input_rank} -> {self.output_rank} transform cannot be composed "
                f"with rank {inner.input_rank} -> {inner.output_rank} transform."
            )
        box = propagate(self.domain.box, inner.domain.box, inner.output)
        maps = compose_maps(self.output, self.domain.box, inner.output, box)
        return make_transform(make_domain(box, inner.domain.labels), maps)

    __iter__ = None

    def _accessed(self, name: str, index: Any) -> IndexTransform:
        if name in ("oindex", "vindex"):
            return make_transform(*index_maps(self.domain, self.output, index, name))
        domain = self.domain
        new = operated(domain.box, domain.labels, self.output, name, index)
        return make_transform(make_domain(new.box, new.labels), new.maps)

    def transpose(self, axes: Any = None) -> IndexTransform:
        """Return the transform with its input dimensions in the order `axes`, reversed by default.

        `axes` are indices, labels or slices.

        >>> IndexTransform(input_shape=[2, 3]).transpose([1, 0]).output[0]
        OutputIndexMap(offset=0, stride=1, input_dimension=1)
        """
        order = permutation(axes, self.domain.labels)
        maps = OutputIndexMaps(reordered_maps(self.output, order))
        return make_transform(self.domain._take(order), maps)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form.

        >>> IndexTransform(input_shape=[5])[::-1].to_json()["output"]
        [{'input_dimension': 0, 'stride': -1}]
        """
        result = box_to_json(self.domain.box, self.domain.labels, "input_")
        output = maps_to_json(self.output, self.input_rank)
        if output is not None:
            result["output"] = output
        return result

    def __repr__(self) -> str:
        lines = [f"Rank {self.input_rank} -> {self.output_rank} index space transform:"]
        lines.append("  Input domain:")
        for dim, d in enumerate(self.domain):
            text = f"    {dim}: {format_interval(*d._bounds()[:4])}"
            lines.append(f"{text} {interval.quote(d.label)}" if d.label else text)
        lines.append("  Output index maps:")
        for dim, m in enumerate(self.output):
            text = f"    out[{dim}] = {m.offset}"
            if m.input_dimension is not None:
                text += f" + {m.stride} * in[{m.input_dimension}]"
            elif m.index_array is not None:
                valid = format_interval(*m.bounds)
                text += f" + {m.stride} * bounded({valid}, array(in)), where array =\n"
                text += f"      {format_array(m.index_array)}"
            lines.append(text)
        return "\n".join(lines) + "\n"


_new = object.__new__

_NEGATIVE = -INF

_EXPLICIT = tuple((False,) * rank for rank in range(MAX_RANK + 1))


def make_transform(domain: IndexDomain, output: OutputIndexMaps) -> IndexTransform:
    """Return a transform of domain and maps that were checked."""
    transform = _new(IndexTransform)
    _fill(transform, domain, output)
    return transform


def _fill(transform: IndexTransform, domain: IndexDomain, output: OutputIndexMaps) -> None:
    transform._domain = domain
    transform._low = domain.inclusive_min
    transform._high = domain.exclusive_max
    transform._shape = None
    transform._labels = domain.labels
    transform._output = output
    transform._is_plain = (
        output is identity_maps(len(domain.labels))
        and min(domain.inclusive_min, default=0) > _NEGATIVE
        and max(domain.exclusive_max, default=0) < INF
    )


def _from_json(value: Any) -> tuple[IndexDomain, OutputIndexMaps]:
    try:
        box, labels, rest = box_from_json(value, "input_", others=("output",))
        domain, maps = make_domain(box, labels), maps_from_json(rest)
        return domain, identity_maps(domain.rank) if maps is None else checked_maps(box, maps)
    except MetadataError as error:
        raise error.prefixed("Error parsing index transform from JSON") from None
