"""Cropping a domain to another one, dimensions matched by label or by position."""

from __future__ import annotations

from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space.bounds import Box
from gpustore.index_space.interval import INF, INF_STOP, contains, format_interval, quote
from gpustore.index_space.selection import dimension_by_label


def crop_box(
    target: Box, labels: tuple[str, ...], crop: Box, crop_labels: tuple[str, ...]
) -> tuple[Box, tuple[str, ...]]:
    """Return box and labels of `target` cropped to `crop`.

    Dimensions match by label if both have labels, else by position. The bounds become those of
    `crop`, explicit. Dimensions of `target` that `crop` does not name are unchanged.
    """
    rank, crop_rank = len(labels), len(crop_labels)
    if not any(crop_labels) or not any(labels):
        if crop_rank != rank:
            raise MetadataError(
                f"Rank of index domain ({crop_rank}) must match rank of slice target "
                f"({rank}) when the index domain or slice target is unlabeled"
            )
        dims = list(range(rank))
        labels = crop_labels if any(crop_labels) else labels
    else:
        dims = _match_labels(labels, crop_labels)
    lows, stops = list(target.inclusive_min), list(target.exclusive_max)
    il, iu = list(target.implicit_lower), list(target.implicit_upper)
    for i, dim in enumerate(dims):
        low, stop = crop.inclusive_min[i], crop.exclusive_max[i]
        outer_low = -INF if il[dim] else lows[dim]
        outer_stop = INF_STOP if iu[dim] else stops[dim]
        if not contains(outer_low, outer_stop, low, stop):
            raise OutOfBoundsError(
                f"Cannot slice target dimension {dim} {{{_show(target, labels, dim)}}} with "
                f"index domain dimension {i} {{{_show(crop, crop_labels, i)}}}"
            )
        lows[dim], stops[dim], il[dim], iu[dim] = low, stop, False, False
    return Box(tuple(lows), tuple(stops), tuple(il), tuple(iu)), labels


def _show(box: Box, labels: tuple[str, ...], dim: int) -> str:
    low, stop, il, iu = box
    prefix = f"{quote(labels[dim])}: " if labels[dim] else ""
    return prefix + format_interval(low[dim], stop[dim], il[dim], iu[dim])


def _match_labels(labels: tuple[str, ...], crop_labels: tuple[str, ...]) -> list[int]:
    unlabelled = iter([dim for dim, label in enumerate(labels) if not label])
    dims = []
    for label in crop_labels:
        dim = dimension_by_label(label, labels) if label else next(unlabelled, None)
        if dim is None:
            raise MetadataError(
                "Number of unlabeled dimensions in index domain exceeds number of unlabeled "
                "dimensions in slice target"
            )
        dims.append(dim)
    if "" in crop_labels and len(labels) != len(crop_labels):
        raise MetadataError(
            f"Rank ({len(crop_labels)}) of index domain containing unlabeled dimensions must "
            f"equal slice target rank ({len(labels)})"
        )
    return dims
