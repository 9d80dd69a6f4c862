import random

import pytest
import tensorstore as ts

from gpustore.errors import GpustoreError
from gpustore.index_space import IndexDomain, inf
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.chunk_shape import (
    choose_chunk_shape,
    choose_read_write_chunk_shapes,
    nearest_divisor,
    nearest_multiple,
)

DOCUMENTED = (1000, 2000, 3000)


def one_level(layout, shape):
    grid = layout.read_write_chunk()
    return choose_chunk_shape(
        grid.shape_constraint and grid.shape_constraint.values,
        grid.aspect_ratio_constraint and grid.aspect_ratio_constraint.values,
        grid.elements_constraint,
        (0,) * len(shape),
        shape,
    )


def two_levels(layout, shape):
    domain = IndexDomain(shape=shape)
    return choose_read_write_chunk_shapes(layout.read_chunk, layout.write_chunk, domain)


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, (101, 101, 101)),
        ({"chunk_shape": [100, 200, 300]}, (100, 200, 300)),
        ({"chunk_aspect_ratio": [1, 2, 2]}, (64, 128, 128)),
        ({"chunk_aspect_ratio": [1, 2, 2], "chunk_elements": 2_000_000}, (79, 159, 159)),
        ({"chunk_aspect_ratio": [1, 1.5, 1.5], "chunk_elements": 486_000}, (60, 90, 90)),
    ],
    ids=["unconstrained", "shape", "aspect_ratio", "elements", "fractional"],
)
def test_one_level_documented_examples(keywords, expected):
    assert one_level(ChunkLayout(**keywords), DOCUMENTED) == expected


@pytest.mark.parametrize(
    ("keywords", "read", "write"),
    [
        ({}, (101, 101, 101), (101, 101, 101)),
        (
            {
                "chunk_aspect_ratio": [2, 1, 1],
                "read_chunk_elements": 2_000_000,
                "write_chunk_elements": 1_000_000_000,
            },
            (200, 100, 100),
            (1000, 1000, 1000),
        ),
        (
            {"read_chunk_shape": [64, 64, 64], "write_chunk_shape": [512, 512, 512]},
            (64, 64, 64),
            (512, 512, 512),
        ),
    ],
    ids=["unconstrained", "elements", "shapes"],
)
def test_two_levels_documented_examples(keywords, read, write):
    assert two_levels(ChunkLayout(**keywords), DOCUMENTED) == (read, write)


def test_full_extent_and_open_dimension():
    assert choose_chunk_shape((-1, None), None, 10, (0, 5), (0, 5)) == (1, 5)
    assert choose_chunk_shape((), (), None, (), ()) == ()


def test_full_extent_of_unbounded_domain_is_refused():
    with pytest.raises(ValueError, match=r"Cannot match chunk size for dimension 1 to unbounded"):
        choose_chunk_shape((4, -1), None, None, (0, -inf), (4, 2 * inf + 1))


def test_constraint_of_another_rank_is_refused():
    with pytest.raises(ValueError, match=r"Rank of constraints \(1\) does not match rank of"):
        choose_chunk_shape((4,), None, None, (0, 0), (4, 4))


def test_unbounded_domain_takes_the_target():
    domain = IndexDomain(2)
    layout = ChunkLayout(rank=2)
    assert choose_read_write_chunk_shapes(layout.read_chunk, layout.write_chunk, domain) == (
        (1024, 1024),
        (1024, 1024),
    )


@pytest.mark.parametrize("ratio", [[1e-300, 1e300], [1e308, 1e308], [5e-324, 1.0]])
def test_extreme_aspect_ratio_terminates(ratio):
    chosen = choose_chunk_shape(None, ratio, None, (0, 0), (10**9, 10**9))
    assert all(1 <= size <= 10**9 for size in chosen)


def test_hard_sizes_that_do_not_divide_are_refused():
    layout = ChunkLayout(read_chunk_shape=[3], write_chunk_shape=[8])
    with pytest.raises(ValueError, match=r"Incompatible chunk size constraints for dimension 0: "):
        two_levels(layout, [100])


def test_nearest_divisor_far_from_any_is_the_dividend():
    prime = 2**61 - 1
    assert nearest_divisor(prime, 10**9) == prime
    assert nearest_divisor(10**6 + 3, 5) == 1
    assert nearest_divisor(2**40, 3 * 10**6) == 2**21


def test_nearest_multiple_ties_go_down():
    assert [nearest_multiple(6, n) for n in (1, 9, 10, 12)] == [6, 6, 12, 12]


def random_layout(rng, ratios, rank):
    def vector(draw, share):
        return [draw() if rng.random() < share else None for _ in range(rank)]

    def size():
        return rng.choice([-1, 1, 2, 3, 5, 8, 10, 64, 100, 128, rng.randint(1, 2000)])

    keywords = {}
    for usage in ("read", "write"):
        for soft in ("", "_soft_constraint"):
            if rng.random() < 0.4:
                keywords[f"{usage}_chunk_shape{soft}"] = vector(size, 0.4)
        if rng.random() < 0.6:
            keywords[f"{usage}_chunk_aspect_ratio"] = vector(lambda: rng.choice(ratios), 0.7)
        if rng.random() < 0.5:
            keywords[f"{usage}_chunk_elements"] = rng.choice(
                [1, 10, 10**4, 10**6, 2 * 10**6, 10**9, rng.randint(1, 10**7)]
            )
    return keywords


def tensorstore_choice(driver, shape, keywords):
    spec = {"driver": driver, "kvstore": {"driver": "memory"}}
    try:
        store = ts.open(
            spec, create=True, dtype="uint8", shape=shape, chunk_layout=ts.ChunkLayout(**keywords)
        ).result()
    except ValueError as error:
        return str(error)
    return store.chunk_layout.read_chunk.shape, store.chunk_layout.write_chunk.shape


def our_choice(driver, shape, keywords):
    layout = ChunkLayout(**keywords)
    try:
        if driver == "zarr3":
            return two_levels(layout, shape)
        chosen = one_level(layout, shape)
    except GpustoreError as error:
        return str(error)
    return chosen, chosen


def compare(rng, ratios, driver):
    """Both choose the same chunks of a random array, or both refuse with one text."""
    rank = rng.randint(1, 4)
    shape = [rng.choice([0, 1, 5, 100, 3000, 10**5, rng.randint(1, 5000)]) for _ in range(rank)]
    keywords = random_layout(rng, ratios, rank)
    theirs = tensorstore_choice(driver, shape, keywords)
    ours = our_choice(driver, shape, keywords)
    if isinstance(theirs, str) or isinstance(ours, str):
        assert isinstance(theirs, str), (shape, keywords, theirs, ours)
        assert isinstance(ours, str), (shape, keywords, theirs, ours)
        assert ours in theirs
    else:
        assert ours == theirs, (shape, keywords)


@pytest.mark.parametrize("ratios", [[0.5, 1, 1.5, 2, 3, 4], [0.3, 0.7, 1, 1.5, 2.3, 3.7, 5]])
@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_random_constraints_give_tensorstores_chunks(driver, ratios):
    rng = random.Random(f"{ratios} {driver}")
    for _ in range(300):
        compare(rng, ratios, driver)


def test_the_same_grid_of_factors_is_searched():
    """Sizes that depend on where a bisection happens to stop, for many extents."""
    for extent in (*range(2000, 2150), *range(20_000, 60_000, 400)):
        keywords = {"chunk_aspect_ratio": [1.5, 0.7], "chunk_elements": 100_000}
        theirs = tensorstore_choice("zarr", [1000, extent], keywords)
        assert our_choice("zarr", [1000, extent], keywords) == theirs
