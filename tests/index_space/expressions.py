"""Random dimension expressions, as plain data that both libraries understand.

Seeded rather than drawn by hypothesis, which takes ten times as long as to try one.
"""

from __future__ import annotations

import numpy as np


def domain(random):
    """Keyword arguments of an IndexDomain of finite and infinite, explicit and implicit bounds."""
    rank = random.choice([1, 2, 3, 3, 4])
    low = [random.randint(-3, 3) for _ in range(rank)]
    stop = [start + random.choice([0, 1, 4, 5, 6, 7, 8]) for start in low]
    pairs = [
        random.choice([(-(2**62) + 1, 5), (-2, 2**62), (-(2**62) + 1, 2**62)])
        if random.random() < 0.15
        else pair
        for pair in zip(low, stop)
    ]
    # Of implicit empty domains with index arrays TensorStore makes transforms that crash it.
    implicit = [random.random() < 0.2 and pair[0] < pair[1] for pair in pairs]
    labels = random.sample(["x", "y", "z", "", "it's"], 4)[:rank]
    return {
        "inclusive_min": [pair[0] for pair in pairs],
        "exclusive_max": [pair[1] for pair in pairs],
        "implicit_lower_bounds": [flag and random.random() < 0.5 for flag in implicit],
        "implicit_upper_bounds": [flag and random.random() < 0.5 for flag in implicit],
        "labels": labels if random.random() < 0.8 else [""] * rank,
    }


def start(random):
    """The beginning of a program: an identity, sometimes with index arrays, or a domain."""
    first = domain(random)
    if random.random() < 0.3:
        return [("domain", first)]
    program = [("identity", first)]
    if random.random() < 0.4:
        rank = len(first["labels"])
        terms = [
            np.array([low, low + 1, low][: random.randint(1, 3)])
            if -(2**60) < low < stop - 1
            else slice(None)
            for low, stop in zip(first["inclusive_min"], first["exclusive_max"])
        ]
        mode = random.choice(["index", "oindex", "vindex"])
        kept = random.randint(1, rank)
        if not _incompatible(terms[:kept]) or mode == "oindex":
            program.append((mode, (*terms[:kept], ...)))
    return program


def _incompatible(terms):
    sizes = {len(term) for term in terms if isinstance(term, np.ndarray)} - {1}
    return len(sizes) > 1


def selection(random, labels):
    """What is between the brackets of ``d[...]``, and how many dimensions it selects if legal."""
    rank = len(labels)
    if random.random() < 0.3:
        one = _range(random)
        return one, len(range(rank)[one])
    count = random.choice([1, 1, 1, 2, 2, 2, 3, 0])
    dims = random.sample(range(rank), min(count, rank))
    terms = [random.choice([dim, dim - rank, labels[dim] or dim]) for dim in dims]
    if random.random() < 0.15:
        terms.append(random.choice([0, -1, 3, 5, "x", "q", "", _range(random)]))
    if random.random() < 0.1:
        return [terms, []], len(dims)
    return terms[0] if len(terms) == 1 and random.random() < 0.5 else tuple(terms), len(terms)


def _range(random):
    bounds = [None, None, None, None, 0, 1, 2, -1, -2, 3]
    step = random.choice([None, None, None, None, 1, 2, -1, -1, -2])
    return slice(random.choice(bounds), random.choice(bounds), step)


def _vector(random, count, values):
    """One of the values, or mostly so many."""
    if random.random() < 0.5:
        return random.choice(values)
    wrong = random.random() < 0.1
    return [random.choice(values) for _ in range(count + wrong)]


def _translation(random, count):
    values = [0, 1, 2, 3, -2, 5, None, 7]
    return _vector(random, count, [*values, 2**62] if random.random() < 0.1 else values)


def _strides(random, count):
    values = [1, 2, 3, -1, -2, 7, 2, 3, -3]
    return _vector(
        random, count, [*values, 0, 2**62, -(2**63) + 1] if random.random() < 0.1 else values
    )


def _labels(random, count):
    labels = ["a", "b", "c", "", "it's\n", "d", "e"]
    found = random.sample(labels, min(count, 6))
    if random.random() < 0.15:
        found.append(random.choice(["x", "a"]))
    return found[0] if len(found) == 1 and random.random() < 0.7 else found


def _flags(random, count):
    flag = [None, True, False]
    if random.random() < 0.5:
        return random.choice(flag)
    return slice(random.choice(flag), random.choice(flag))


def _target(random, count):
    kind = random.random()
    if kind < 0.4:
        return random.choice([0, 0, 0, 1, -1, -1, -2, 4])
    if kind < 0.6:
        return random.choice([slice(0, count), slice(count), slice(None, None, -1), _range(random)])
    target = random.sample([0, 1, 2, -1], min(count, 4))
    return tuple(target if random.random() < 0.85 else [*target, random.choice([5, "x", 0])])


def _slice(random):
    if random.random() < 0.2:
        return slice(None, None, random.choice([None, 2, 3]))
    low = random.randint(-1, 4)
    bounds = (random.choice([low, low, None]), random.choice([low + random.randint(0, 2), None]))
    # [5::-1] on an implicit bound differs on purpose: test_numpy_indexing.py
    return slice(*bounds, random.choice([None, None, None, 2, 3]))


def _array(random, count):
    shape = random.choice([(2,), (2,), (2,), (1,), (), (1, 2), (3, 1), (0,), (3,)])
    if random.random() < 0.2:
        shape = shape if count > 1 else (3,)
        size = int(np.prod(shape))
        return np.array([random.random() < 0.5 for _ in range(size)], bool).reshape(shape)
    low = random.choice([0, 2, 3])
    values = [low + random.choice([0, 0, 1]) for _ in range(int(np.prod(shape)))]
    return np.array(values, np.int64).reshape(shape)


def _terms(random, count, arrays, newaxis):
    terms = []
    while count > 0:
        kind = random.random()
        if kind < arrays:
            terms.append(_array(random, count))
            count -= terms[-1].ndim if terms[-1].dtype == bool else 1
        elif kind < arrays + newaxis:
            terms.append(None)
            count -= 1
        elif kind < 0.95:
            terms.append(random.randint(0, 4) if random.random() < 0.4 else _slice(random))
            count -= 1
        else:
            low = random.randint(0, 3)
            terms.append(slice([low, low + 1], random.choice([None, [low + 2, low + 3], 6])))
            count -= 2
    if random.random() < 0.3:
        terms.insert(random.randint(0, len(terms)), ...)
        if len(terms) > 2:
            terms.pop(random.randint(0, len(terms) - 1))
    if terms and random.random() < 0.15:
        terms = terms[:1]
    return terms[0] if len(terms) == 1 and random.random() < 0.7 else tuple(terms)


def _plain(random, count):
    return _terms(random, count, 0, 0.1)


def _with_arrays(random, count):
    return _terms(random, count, 0.6, 0.03)


_INDICES = {
    "diagonal": lambda random, count: None,
    "index": lambda random, count: random.choice([_plain, _plain, _with_arrays])(random, count),
    "label": _labels,
    "mark_bounds_implicit": _flags,
    "oindex": _with_arrays,
    "stride": _strides,
    "translate_backward_by": _translation,
    "translate_by": _translation,
    "translate_to": _translation,
    "transpose": _target,
    "vindex": _with_arrays,
}
OPERATIONS = sorted(_INDICES)


def expression(random, name, labels):
    """A selection and one to three operations, of which the first is of that name."""
    selected, count = selection(random, labels)
    names = [name, *random.choices(OPERATIONS, k=random.choice([0, 0, 1, 2]))]
    operations = []
    for name in names:
        index = _INDICES[name](random, count)
        if operations and (
            index is ... or (isinstance(index, tuple) and any(term is ... for term in index))
        ):
            # TensorStore corrupts its memory where a later ellipsis stands for dimensions.
            index = 2
        if ("diagonal", None) in operations:
            # An array of which the diagonal has one element depends on that dimension there.
            if name in ("index", "oindex", "vindex"):
                index = slice(None, 4)
            if name == "mark_bounds_implicit":
                index = False
        operations.append((name, index))
        if name == "diagonal":
            count = 1
        if name in ("index", "oindex", "vindex"):
            kept = index if isinstance(index, tuple) else (index,)
            count = max(0, count - sum(isinstance(term, int) for term in kept))
    return selected, operations
