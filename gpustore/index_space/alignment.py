"""Alignment of a source domain with a target domain: which dimension is written to which.

Labels decide if both domains have any: dimensions with the same label belong together, those
without one from the last to the first. Otherwise all do so from the last to the first, as in NumPy.
A source dimension of size one is broadcast; origins do not matter.

Source: TensorStore ``index_space/alignment.cc``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpustore.errors import MetadataError
from gpustore.index_space.domain import IndexDomain
from gpustore.index_space.interval import format_interval, quote


def align(source: IndexDomain, target: IndexDomain) -> tuple[int | None, ...]:
    """The target dimension of each source dimension, None for those of size one without any.

    Raises
    ------
    MetadataError
        Naming each source dimension whose size does not fit.

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
    """What puts elements of one domain in the order of another's dimensions.

    Returns
    -------
    callable
        From an array of the shape of `source` to a view that broadcasts to that of `target`.

    Raises
    ------
    MetadataError
        As :func:`align`.
    """
    matches = align(source, target)
    # Those without a match are of size one; the others go where they match.
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
