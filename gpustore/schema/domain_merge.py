"""Merging of domains as constraints: known bounds and labels fill in unknown ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustore.errors import MetadataError
from gpustore.index_space import Dim, IndexDomain

if TYPE_CHECKING:
    from gpustore.data_types.unit import Unit


_INF = 2**62 - 1


def merge_domains(existing: IndexDomain | None, new: IndexDomain) -> IndexDomain:
    """Return the domain that satisfies both constraints.

    Bounds must be equal, except that any bound agrees with an infinite implicit one. The result is
    implicit only where both are. An empty label agrees with any label.

    Raises
    ------
    MetadataError
        If they contradict: ``Cannot merge index domain {...} with index domain {...}: ...``.

    Examples
    --------
    >>> merge_domains(IndexDomain(shape=[5]), IndexDomain(labels=["x"]))
    { "x": [0, 5) }
    """
    if existing is None:
        return new
    try:
        return IndexDomain(_merge_all(existing, new))
    except MetadataError as error:
        raise error.prefixed(
            f"Cannot merge index domain {existing} with index domain {new}"
        ) from None


def _merge_all(existing: IndexDomain, new: IndexDomain) -> list[Dim]:
    if existing.rank != new.rank:
        raise MetadataError("Ranks do not match")
    return [_merge_dims(i, a, b) for i, (a, b) in enumerate(zip(existing, new, strict=True))]


def _merge_dims(i: int, a: Dim, b: Dim) -> Dim:
    if a.label and b.label and a.label != b.label:
        raise MetadataError(f"Mismatch in dimension {i}: Dimension labels do not match")
    lower, implicit_lower = _merge_bounds(
        (a.inclusive_min, a.implicit_lower), (b.inclusive_min, b.implicit_lower), -_INF
    ) or _mismatch(i, "Lower")
    upper, implicit_upper = _merge_bounds(
        (a.inclusive_max, a.implicit_upper), (b.inclusive_max, b.implicit_upper), _INF
    ) or _mismatch(i, "Upper")
    return Dim(
        inclusive_min=lower,
        inclusive_max=upper,
        implicit_lower=implicit_lower,
        implicit_upper=implicit_upper,
        label=a.label or b.label,
    )


def _merge_bounds(
    a: tuple[int, bool], b: tuple[int, bool], infinite: int
) -> tuple[int, bool] | None:
    if a[0] == b[0]:
        return a[0], a[1] and b[1]
    if a == (infinite, True):
        return b
    if b == (infinite, True):
        return a
    return None


def _mismatch(i: int, which: str) -> tuple[int, bool]:
    raise MetadataError(f"Mismatch in dimension {i}: {which} bounds do not match")


def merge_units(
    existing: tuple[Unit | None, ...] | None, new: tuple[Unit | None, ...]
) -> tuple[Unit | None, ...]:
    """Return the unit of each dimension that satisfies both; None agrees with any unit.

    Raises
    ------
    MetadataError
        If they contradict: ``Cannot merge dimension units [...] and [...]``.
    """
    if existing is None:
        return new
    if any(a is not None and b is not None and a != b for a, b in zip(existing, new, strict=True)):
        raise MetadataError(
            f"Cannot merge dimension units {units_text(new)} and {units_text(existing)}"
        )
    return tuple(a if b is None else b for a, b in zip(existing, new, strict=True))


def units_text(units: tuple[Unit | None, ...]) -> str:
    """Format units as in TensorStore's messages: ``["4 nm", null]``."""
    return "[" + ", ".join("null" if u is None else f'"{u}"' for u in units) + "]"
