"""Whole programs of index algebra, of any rank and with every operation, against TensorStore.

The tests beside this one try each operation alone; here operations follow each other, so that
each sees what the others leave: labels, implicit flags, index arrays, origins, strides.
"""

import itertools
import re

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpustore
import gpustore.index_space as gs
from tests.index_space.parity import outcome, run
from tests.index_space.strategies import (
    affine_indices,
    array_indices,
    domains,
    made_once,
    small,
    transforms,
)

pytestmark = pytest.mark.matrix

MANY = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
flag = st.sampled_from([None, True, False])
names = st.sampled_from(["x", "y", "z", "a", ""])


@made_once
def steps(forward_only):
    """One operation; a reversal only where both libraries agree on implicit bounds."""

    def forward(index):
        terms = index if isinstance(index, tuple) else (index,)
        return not any(type(t) is slice and (t.step or 1) < 0 for t in terms)

    indices = affine_indices()
    arrays = array_indices()
    if forward_only:
        indices, arrays = indices.filter(forward), arrays.filter(forward)
    offsets = small | st.lists(small | st.none(), max_size=3)
    axes = st.none() | st.permutations([0, 1]) | st.permutations([0, 1, 2]) | st.just(["y", "x"])
    return st.one_of(
        st.tuples(st.just("index"), indices | arrays),
        st.tuples(st.sampled_from(["oindex", "vindex"]), arrays),
        st.tuples(
            st.sampled_from(["translate_to", "translate_by", "translate_backward_by"]), offsets
        ),
        st.tuples(st.just("label"), st.lists(names, max_size=3)),
        st.tuples(st.just("mark_bounds_implicit"), st.booleans() | st.builds(slice, flag, flag)),
        st.tuples(st.just("transpose"), axes),
        st.tuples(st.just("crop"), domains(max_rank=3, unbounded=False)),
    )


@MANY
@given(domains(min_rank=1, max_rank=3, implicit_empty=False), st.data())
def test_operations_one_after_the_other_match_tensorstore(same, domain, data):
    operations = data.draw(st.lists(steps(forward_only=True), min_size=2, max_size=5))
    same([("identity", domain), *operations])


@MANY
@given(transforms(implicit_empty=False), st.data())
def test_operations_on_a_transform_match_tensorstore(same, json, data):
    operations = data.draw(st.lists(steps(forward_only=True), min_size=1, max_size=3))
    same([("json", json), *operations])


@MANY
@given(domains(min_rank=1, max_rank=3, unbounded=False, implicit=False), st.data())
def test_operations_on_explicit_bounds_match_tensorstore(oracle, domain, data):
    operations = data.draw(st.lists(steps(forward_only=False), min_size=2, max_size=4))
    operations = [step for step in operations if step[0] != "mark_bounds_implicit"]
    terms = [
        t for _, index in operations for t in (index if isinstance(index, tuple) else (index,))
    ]
    if any(term is None for term in terms):
        return  # A new dimension has implicit bounds.
    program = [("identity", domain), *operations]
    expected = oracle.ask(program)
    assert expected is None or outcome(gs, program) == expected


# ----------------------------------------------------------------------------- rank up to 32

wide_term = st.one_of(
    st.just(slice(None)),
    st.integers(0, 1),
    st.builds(slice, st.integers(0, 1), st.just(2)),
    st.just(slice(None, None, 2)),
    st.none(),
    st.sampled_from([[1, 0], [[0, 1]], [True, False], []]).map(np.array),
)


@st.composite
def wide_programs(draw):
    """Programs of rank 0 to 32, where ranks above 32 come up, too."""
    rank = draw(st.integers(0, 32))
    labels = [f"d{i}" if draw(st.booleans()) else "" for i in range(rank)]
    program = [("identity", {"shape": [2] * rank, "labels": labels})]
    count = draw(st.integers(0, min(rank + 2, 34)))
    terms = [draw(wide_term) for _ in range(count)]
    if draw(st.booleans()):
        terms.insert(draw(st.integers(0, len(terms))), Ellipsis)
    arrays = draw(st.sampled_from(["index", "oindex", "vindex"]))
    terms = [t.astype(np.int64) if isinstance(t, np.ndarray) and not t.size else t for t in terms]
    program.append((arrays, tuple(terms)))
    if draw(st.booleans()):
        program.append(("transpose", None))
    if draw(st.booleans()):
        program.append(("translate_by", draw(small)))
    return program


@MANY
@given(wide_programs())
def test_programs_of_every_rank_match_tensorstore(same, program):
    same(program)


# ----------------------------------------------------------------------------- equality, JSON


@MANY
@given(transforms(), transforms(), st.booleans())
def test_equality_is_that_of_tensorstore(first, second, again):
    pairs = []
    for library in (gs, ts):
        try:
            a = library.IndexTransform(json=first)
            b = library.IndexTransform(json=a.to_json() if again else second)
        except ValueError:
            return
        pairs.append((a == b, a.domain == b.domain, list(a.output) == list(b.output)))
    assert pairs[0] == pairs[1]


@MANY
@given(domains(min_rank=1, max_rank=3, implicit_empty=False), st.data())
def test_what_a_program_makes_survives_json(domain, data):
    operations = data.draw(st.lists(steps(forward_only=False), min_size=1, max_size=4))
    program = [("identity", domain), *operations]
    try:
        made = run(gs, program)
    except (ValueError, IndexError, TypeError):
        return
    again = gs.IndexTransform(json=made.to_json())
    assert again.to_json() == made.to_json()
    # Bounds that all indices of an array keep are not in the JSON, as with TensorStore.
    shown = [re.sub(r"bounded\(.*, array", "array", repr(each)) for each in (again, made)]
    assert shown[0] == shown[1]
    assert again.domain == made.domain


# ----------------------------------------------------------------------------- elements

SHAPE = (5, 4, 6)
ARRAY = np.arange(120, dtype=np.int16).reshape(SHAPE)


@st.composite
def views(draw):
    """JSON of a transform into an array of `SHAPE` and then indices; often legal."""
    rank = draw(st.integers(0, 4))
    sizes = [
        draw(st.integers(0, 4) if draw(st.integers(0, 9)) == 0 else st.integers(1, 4))
        for _ in range(rank)
    ]
    origin = [draw(st.sampled_from([0, 0, -2, 3])) for _ in range(rank)]
    output = []
    for extent in SHAPE:
        kind = draw(st.sampled_from(["dimension", "dimension", "array", "constant"]))
        if kind == "dimension" and rank:
            dim = draw(st.integers(0, rank - 1))
            stride = draw(st.sampled_from([1, 1, -1, 2, 0]))
            reach = stride * (sizes[dim] - 1)
            low = min(0, reach)
            start = draw(st.integers(0, max(0, extent - 1 - abs(reach)))) - low
            # Now and then it is one too many.
            start += draw(st.integers(0, 19)) == 0
            output.append(
                {"input_dimension": dim, "stride": stride, "offset": start - stride * origin[dim]}
            )
        elif kind == "array" and rank and all(sizes):
            used = [size if draw(st.booleans()) else 1 for size in sizes]
            values = st.integers(0, extent - 1)
            count = int(np.prod(used))
            flat = draw(st.lists(values, min_size=count, max_size=count))
            output.append({"index_array": np.array(flat).reshape(used).tolist()})
        else:
            output.append({"offset": draw(st.integers(0, extent - 1))})
    return {"input_inclusive_min": origin, "input_shape": sizes, "output": output}


def read_and_written(library, view, chunks):
    """What is read through a view, and the whole array after numbers were written through it."""
    if chunks is None:
        store = library.array(ARRAY.copy())
    else:
        store = library.open(
            {"driver": "zarr3", "kvstore": "memory://"},
            create=True,
            dtype="int16",
            shape=SHAPE,
            chunk_layout=library.ChunkLayout(chunk_shape=chunks),
        ).result()
        store.write(ARRAY).result()
    try:
        part = store[library.IndexTransform(json=view)]
        read = part.read().result()
        part.write(np.arange(1000, 1000 + read.size, dtype=np.int16).reshape(read.shape)).result()
    except (ValueError, IndexError):
        return "refused"
    return read.tolist(), read.shape, store.read().result().tolist()


@MANY
@given(views(), st.sampled_from([None, [2, 3, 4], [5, 1, 2]]))
def test_elements_through_a_view_are_those_of_tensorstore(view, chunks):
    """Diagonals, repeated elements and reversals; of elements written twice the last one stays."""
    found, expected = (read_and_written(library, view, chunks) for library in (gpustore, ts))
    if 0 in view["input_shape"] and isinstance(expected, str):
        return  # TensorStore checks the bounds of dimensions even if there is no element.
    assert found == expected
    if isinstance(found, str):
        return
    transform = gs.IndexTransform(json=view)
    wanted = ARRAY.copy()
    for number, at in enumerate(itertools.product(*transform.domain)):
        assert np.array(found[0])[tuple(np.subtract(at, transform.origin))] == ARRAY[transform(at)]
        wanted[transform(at)] = 1000 + number
    assert found[2] == wanted.tolist()
