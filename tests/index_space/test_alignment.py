"""Alignment of domains; compared with TensorStore where stores are written to stores."""

import itertools

import pytest
import tensorstore as ts

from gpustore import IndexDomain, MetadataError
from gpustore.index_space.alignment import align

LABELS = (["x", "y"], ["y", "x"], ["", "x"], ["", ""], ["z", ""])
SHAPES = ([2, 3], [3, 2], [1, 3], [1, 1], [2, 2])
CASES = [
    (first, second)
    for first in itertools.product(LABELS, SHAPES)
    for second in itertools.product(LABELS, SHAPES[:2])
]


def write(source, target):
    """TensorStore's outcome of writing one to the other: the message, None if it can."""
    arrays = [
        ts.array([[0] * shape[1]] * shape[0]).label[labels] for labels, shape in (source, target)
    ]
    try:
        arrays[1].write(arrays[0]).result()
    except ValueError as error:
        return str(error).split(" [")[0]
    return None


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_alignment_is_that_of_tensorstore(labels):
    for (first, shape), target in CASES:
        if first != labels:
            continue
        theirs = write((first, shape), target)
        domains = [IndexDomain(labels=names, shape=s) for names, s in ((first, shape), target)]
        try:
            align(*domains)
            ours = None
        except MetadataError as error:
            ours = str(error)
        assert (ours is None) == (theirs is None), (first, shape, target, ours, theirs)
        if ours is not None:
            assert ours.startswith(theirs), (ours, theirs)


def test_dimensions_without_a_label_match_from_the_last():
    source = IndexDomain(labels=["", "x", ""], shape=[2, 3, 4])
    target = IndexDomain(labels=["x", "", ""], shape=[3, 2, 4])
    assert align(source, target) == (1, 0, 2)


def test_ranks_may_differ_by_dimensions_of_size_one():
    assert align(IndexDomain(shape=[1, 1, 3]), IndexDomain(shape=[2, 3])) == (None, 0, 1)
    assert align(IndexDomain(shape=[3]), IndexDomain(shape=[2, 3])) == (1,)
    with pytest.raises(MetadataError, match="unmatched source dimension 0"):
        align(IndexDomain(shape=[2, 1, 3]), IndexDomain(shape=[2, 3]))
