"""Runs of chunk sizes against lists of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import MetadataError
from gpustore.metadata.chunk_edges import ChunkEdges
from tests.matrix import each

ENTRIES = st.lists(st.integers(1, 5) | st.tuples(st.integers(1, 5), st.integers(1, 4)).map(list))

# Source: the examples of the registration, for an extent of 6.
REGISTERED = [
    (4, [4, 4]),
    ([1, 2, 3], [1, 2, 3]),
    ([[4, 2]], [4, 4]),
    ([[1, 3], 3], [1, 1, 1, 3]),
    ([4, 4, 4], [4, 4, 4]),
    ([[2, 3]], [2, 2, 2]),
    ([[1, 6]], [1] * 6),
    ([1, [2, 1], 3], [1, 2, 3]),
    ([6], [6]),
]


def expanded(value):
    sizes = []
    for entry in value:
        sizes += [entry[0]] * entry[1] if isinstance(entry, list) else [entry]
    return sizes


@each(("value", "sizes"), REGISTERED)
def test_examples_of_the_registration(value, sizes):
    edges = ChunkEdges.from_json(value)
    ends = np.cumsum(sizes)
    cell, inside, size = edges.locate(np.arange(6))
    assert cell.tolist() == [int(np.searchsorted(ends, i, "right")) for i in range(6)]
    assert size.tolist() == [sizes[c] for c in cell]
    assert inside.tolist() == [i - sum(sizes[:c]) for i, c in enumerate(cell.tolist())]
    assert edges.endless == isinstance(value, int)
    assert ChunkEdges.from_json(edges.to_json()) == edges


@given(ENTRIES)
def test_runs_are_the_list(value):
    sizes = expanded(value)
    edges = ChunkEdges.from_json(value)
    assert expanded(edges.to_json()) == sizes
    assert ChunkEdges.from_json(edges.to_json()) == edges
    assert all(a[0] != b[0] for a, b in zip(edges.runs, edges.runs[1:], strict=False))
    assert edges.total == sum(sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    for extent in range(edges.total + 1):
        touched = [size for size, start in zip(sizes, starts, strict=False) if start < extent]
        assert edges.cells(extent) == len(touched)
        if touched:
            assert edges.uniform(extent) == (touched[0] if len(set(touched)) == 1 else None)
    if not sizes:
        return
    assert edges.starts(np.arange(len(sizes))).tolist() == starts[:-1].tolist()
    at = np.arange(edges.total)
    cell, inside, size = edges.locate(at)
    assert (starts[cell] + inside == at).all()
    assert size.tolist() == [sizes[c] for c in cell]
    assert [edges.locate(i) for i in at.tolist()] == list(
        zip(*map(np.ndarray.tolist, (cell, inside, size)))
    )
    assert edges.constant == (sizes[0] if len(set(sizes)) == 1 else None)


def test_long_runs_are_never_written_out():
    edges = ChunkEdges.from_json([[2, 2**60], 5])
    assert edges.cells(2**61 + 3) == 2**60 + 1
    assert edges.locate(np.array([2**61 + 2]))[1].tolist() == [2]
    assert ChunkEdges.regular(3).locate(np.array([2**62 - 1]))[0].tolist() == [(2**62 - 1) // 3]


@each(
    ("value", "message"),
    [
        (0, "received: 0"),
        (-1, "received: -1"),
        (True, "received: true"),
        ("4", 'received: "4"'),
        (None, "received: null"),
        (2.0, "received: 2.0"),
        ([0], "position 0: Expected integer in the range [1, "),
        ([3, [2]], "position 1: Array has length 1 but should have length 2"),
        ([3, [2, 0]], "received: 0"),
        ([[2, True]], "received: true"),
        ([[[2, 3], 4]], "received: [2,3]"),
        ([[2**61, 2], 1], "Sum of chunk sizes"),
        ([2**62 + 1], "received: 4611686018427387905"),
    ],
)
def test_what_is_no_entry_is_refused(value, message):
    with pytest.raises(MetadataError) as caught:
        ChunkEdges.from_json(value)
    assert message in str(caught.value)
