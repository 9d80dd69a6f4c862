"""Alignment of a source domain with a target domain: the target dimension of each source dimension.

If both domains have labels, dimensions with the same label match, and those without one match from
the last to the first. Otherwise all dimensions match from the last to the first, as in NumPy. A
source dimension of size one is broadcast; origins do not matter.

Source: TensorStore ``index_space/alignment.cc``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpustore.errors import MetadataError
from gpustore.index_space.domain import IndexDomain
from gpustore.index_space.interval import format_interval, quote


def align(source: IndexDomain, target: IndexDomain) -> tuple[int | None, ...]:
    """Return the target dimension of each source dimension, None for one that is broadcast.

    Raises
    ------
    MetadataError
        If the size of a source dimension does not fit; the message names each of them.

    Examples
    --------
    >>> align(
    ...     IndexDomain(labels=["y", "x"], shape=[2, 3]),
    ...     IndexDomain(labels=["x", "y"], shape=[3, 2]),
    ... )
    (1, 0)
    """
    if any(source.labels) and any(target.labels):
        matches = _by_label(source, target)
    else:
        shift = target.rank - source.rank
        matches = [i + shift if i + shift >= 0 else None for i in range(source.rank)]
    problems = []
    for i, j in enumerate(matches):
        size = source.shape[i]
        if j is None and size != 1:
            problems.append(f"unmatched source {_name(source, i)} does not have a size of 1")
        elif j is not None and size not in (1, target.shape[j]):
            problems.append(f"source {_name(source, i)} mismatch with target {_name(target, j)}")
    if problems:
        raise MetadataError(f"Error aligning dimensions: {', '.join(problems)}")
    return tuple(matches)


def arrangement(source: IndexDomain, target: IndexDomain) -> Callable[[Any], Any]:
    """Return a function that puts an array of one domain in the order of another's dimensions.

    Returns
    -------
    callable
        Function from an array of the shape of `source` to a view that broadcasts to `target`.

    Raises
    ------
    MetadataError
        If the size of a source dimension does not fit.
    """
    matches = align(source, target)
    # Dimensions without a match are of size one; the others move to their target dimension.
    unmatched = tuple(i for i, j in enumerate(matches) if j is None)
    order = sorted((j, i) for i, j in enumerate(matches) if j is not None)
    shape = [1] * target.rank
    for j, i in order:
        shape[j] = source.shape[i]
    axes = [*unmatched, *(i for _, i in order)]
    return lambda elements: elements.transpose(axes).reshape(shape)


def _by_label(source: IndexDomain, target: IndexDomain) -> list[int | None]:
    known = {label: j for j, label in enumerate(target.labels) if label}
    unlabeled = [j for j, label in enumerate(target.labels) if not label]
    matches: list[int | None] = [None] * source.rank
    for i in reversed(range(source.rank)):
        label = source.labels[i]
        if label:
            matches[i] = known.get(label)
        elif unlabeled:
            matches[i] = unlabeled.pop()
    return matches


def _name(domain: IndexDomain, i: int) -> str:
    label = f"{quote(domain.labels[i])}: " if domain.labels[i] else ""
    interval = format_interval(domain.inclusive_min[i], domain.exclusive_max[i])
    return f"dimension {i} {label}{interval}"
