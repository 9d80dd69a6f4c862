"""Stages of a read on a device, and how long it is busy with each.

Stages of several streams overlap, so what counts is the time in which at least one of a stage runs.
"""

DECODE = ("decompress", "lz")
"""Stages that decompress: nvcomp's calls, and gpustore's own kernels."""

PLACE = ("shuffle", "copy")
"""Families of kernels through which all decoded bytes go: unshuffle, and scatter."""

GROUPS = {"decode": DECODE, "place": PLACE}
"""Stages that are also summed up."""


def union(intervals):
    """Length of the time that intervals cover.

    >>> union([(0, 2), (5, 6), (1, 3)])
    4
    """
    total, end = 0, None
    for first, last in sorted(intervals):
        if end is None or first > end:
            total, end = total + last - first, last
        elif last > end:
            total, end = total + last - end, last
    return total


def rows(stages):
    """For the report; all stages of decoding, and of placing, are also summed up."""
    groups = {name: (name,) for name in stages}
    groups |= GROUPS
    found = {}
    for name, members in groups.items():
        some = [stages[member] for member in members if member in stages]
        if some:
            found[name] = {
                "calls": sum(row["calls"] for row in some),
                "nbytes": sum(row["nbytes"] for row in some),
                "ms": round(union([each for row in some for each in row["intervals"]]), 4),
            }
    return found
