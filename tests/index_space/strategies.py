"""Random domains, transforms and indices, as plain data that both libraries understand."""

from __future__ import annotations

import functools

import hypothesis.strategies as st
import numpy as np
import tensorstore as ts

INF = ts.inf

small = st.integers(-6, 12)
extreme = st.sampled_from([INF, INF - 1, INF + 1, -INF, -INF - 1, -INF + 1, 2**63 - 1, -(2**63)])
flags, never, rarely = st.booleans(), st.just(False), st.sampled_from([False, False, True])
some_labels = st.permutations(["x", "y", "z", "", "", ""])
number = st.one_of(small, small, small, small, small, extreme)


# Hypothesis examines a strategy each time that it is made, which takes longer than to draw from it.
made_once = functools.cache


@made_once
def bounds(unbounded: bool = True):
    """(inclusive_min, exclusive_max) of one dimension."""
    finite = st.tuples(small, st.integers(0, 9)).map(lambda p: (p[0], p[0] + p[1]))
    if not unbounded:
        return finite
    half = st.sampled_from([(-INF, 5), (-2, INF + 1), (-INF, INF + 1)])
    return st.one_of(finite, finite, finite, half)


@made_once
@st.composite
def domains(draw, min_rank=0, max_rank=4, unbounded=True, implicit=True, implicit_empty=True):
    """Keyword arguments of an IndexDomain."""
    rank = draw(st.integers(min_rank, max_rank))
    pairs = [draw(bounds(unbounded)) for _ in range(rank)]
    flag = flags if implicit else never
    labels = draw(some_labels)[:rank]
    if not implicit_empty:
        flag = rarely
        pairs = [p if p[0] < p[1] else (p[0], p[0] + 1) for p in pairs]
    return {
        "inclusive_min": [p[0] for p in pairs],
        "exclusive_max": [p[1] for p in pairs],
        "implicit_lower_bounds": [draw(flag) for _ in range(rank)],
        "implicit_upper_bounds": [draw(flag) for _ in range(rank)],
        "labels": labels if draw(flags) else [""] * rank,
    }


@made_once
@st.composite
def transforms(draw, output_rank=None, numbers=small, implicit_empty=True):
    """JSON of an IndexTransform, legal or (rarely) not."""
    domain = ts.IndexDomain(**draw(domains(max_rank=3, implicit_empty=implicit_empty))).to_json()
    json = {f"input_{name}": value for name, value in domain.items()}
    dims = ts.IndexTransform(json=json).domain
    rank = draw(st.integers(0, 3)) if output_rank is None else output_rank
    json["output"] = [draw(output_maps(dims, numbers)) for _ in range(rank)]
    return json


@st.composite
def output_maps(draw, dims, numbers):
    methods = ["constant"] + ["dimension"] * 3 * bool(dims.rank) + ["array"]
    method = draw(st.sampled_from(methods))
    result = {"offset": draw(numbers)}
    if method == "dimension":
        result["input_dimension"] = draw(st.integers(0, dims.rank - 1))
    if method == "array":
        shape = [
            d.size if draw(st.booleans()) and d.finite and d.size < 10 and _explicit(d) else 1
            for d in dims
        ]
        values = draw(st.lists(small, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        result["index_array"] = np.array(values, dtype=np.int64).reshape(shape).tolist()
        if draw(st.booleans()):
            low = draw(st.integers(-8, 0))
            result["index_array_bounds"] = [low, low + draw(st.integers(0, 20))]
    if method != "constant":
        result["stride"] = draw(st.sampled_from([1, 1, -1, 2, -3, 0]))
    return result


def _explicit(dim):
    return not dim.implicit_lower and not dim.implicit_upper


@made_once
def slices(numbers):
    """Slices; with a negative step either both bounds or none.

    Of ``[5::-1]`` on an implicit upper bound TensorStore loses the 5, see test_numpy_indexing.py.
    """
    bound = st.one_of(st.none(), numbers)
    forward = st.builds(slice, bound, bound, st.sampled_from([None, None, 1, 2, 3, 2**62]))
    given = numbers.filter(lambda n: n != -(2**63))
    back = st.sampled_from([-1, -2, 0, -(2**63)])
    return st.one_of(
        forward,
        forward,
        st.builds(slice, given, given, back),
        st.builds(slice, st.none(), st.none(), back),
    )


@made_once
def affine_indices(numbers=small, max_size=4):
    """NumPy-style indices without arrays."""
    term = st.one_of(slices(numbers), slices(numbers), numbers, st.none(), st.just(Ellipsis))
    return st.one_of(term, st.lists(term, max_size=max_size).map(tuple))


@made_once
@st.composite
def array_terms(draw):
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    size = int(np.prod(shape))
    if draw(st.integers(0, 3)) == 0:
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool).reshape(
            shape
        )
    values = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    return np.array(draw(values), draw(st.sampled_from(["i8", "i2", "u1"]))).reshape(shape)


@made_once
def array_indices():
    term = st.one_of(array_terms(), array_terms(), slices(small), small, st.none())
    terms = st.lists(term, max_size=3)
    return st.tuples(terms, st.booleans()).map(
        lambda p: tuple(p[0]) + ((Ellipsis,) if p[1] else ())
    )
