import copy
import pickle

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import GpustoreError
from gpustore.schema.chunk_layout import ChunkLayout
from tests.matrix import each


def outcome(make, *observations):
    """What the observations say of the made object, or the kind and text of the error."""
    try:
        made = make()
        return [observe(made) for observe in observations]
    except TypeError as error:
        # Texts of wrong types begin alike; TensorStore's say no more.
        return "TypeError", str(error).partition(":")[0]
    except (GpustoreError, ValueError) as error:
        return "ValueError", str(error)


def grid_state(grid):
    return (
        grid.rank,
        grid.shape,
        grid.shape_soft_constraint,
        grid.aspect_ratio,
        grid.aspect_ratio_soft_constraint,
        grid.elements,
        grid.elements_soft_constraint,
        grid.to_json(),
    )


def layout_state(layout):
    grids = (layout.read_chunk, layout.write_chunk, layout.codec_chunk)
    return (
        layout.rank,
        layout.inner_order,
        layout.inner_order_soft_constraint,
        layout.grid_origin,
        layout.grid_origin_soft_constraint,
        [grid_state(g) for g in grids],
        layout.to_json(),
        list(layout.to_json()),
        repr(layout),
    )


# Few values, so that constraints meet and contradict each other often.
ranks = st.sampled_from([2, 2, 2, 2, 3, 1, 0])
sizes = st.sampled_from([None, None, 0, -1, 4, 4, 6, 12, -2, 2**62 - 2, 2**62])
origins = st.sampled_from([None, None, 0, 5, -7, 2**62 - 2, 2**62])
ratios = st.sampled_from([None, None, 0, 1, 1.5, 2, -1, 1e-30, float("inf"), float("nan")])
elements = st.sampled_from([10, 10, 20, 0, -1, 2**62 - 1])


@st.composite
def vectors(draw, values):
    return draw(st.lists(values, min_size=(n := draw(ranks)), max_size=n))


orders = st.sampled_from([[0, 1], [0, 1], [1, 0], [0], [2, 0, 1], [0, 0], [0, 2], [-1], []])
ODD = st.sampled_from(["x", True, 1.5, None, [], {}])

GRID = {
    "rank": ranks,
    "shape": vectors(sizes),
    "shape_soft_constraint": vectors(sizes),
    "aspect_ratio": vectors(ratios),
    "aspect_ratio_soft_constraint": vectors(ratios),
    "elements": elements,
    "elements_soft_constraint": elements,
}


def grid_keywords():
    return st.fixed_dictionaries({}, optional=GRID)


def layout_keywords():
    """Keywords as data; grids as dictionaries of keywords."""
    optional = {
        "rank": ranks,
        "inner_order": orders,
        "inner_order_soft_constraint": orders,
        "grid_origin": vectors(origins),
        "grid_origin_soft_constraint": vectors(origins),
        "finalize": st.sampled_from([True, False, False]),
    }
    for level in ("chunk", "write_chunk", "read_chunk", "codec_chunk"):
        optional[level] = grid_keywords()
        for soft in ("", "_soft_constraint"):
            optional[f"{level}_elements{soft}"] = elements
            if level != "codec_chunk":
                optional[f"{level}_shape{soft}"] = vectors(sizes)
                optional[f"{level}_aspect_ratio{soft}"] = vectors(ratios)
    names = st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({n: optional[n] for n in chosen}))


def with_grids(layout_class, keywords):
    return {
        name: layout_class.Grid(**value) if isinstance(value, dict) else value
        for name, value in keywords.items()
    }


def both(make, *observations):
    return (
        outcome(lambda: make(ChunkLayout), *observations),
        outcome(lambda: make(ts.ChunkLayout), *observations),
    )


@given(grid_keywords())
def test_grid_keywords_as_tensorstore(keywords):
    ours, theirs = both(lambda layout: layout.Grid(**keywords), grid_state)
    assert ours == theirs


@given(layout_keywords())
def test_keywords_as_tensorstore(keywords):
    ours, theirs = both(lambda cls: cls(**with_grids(cls, keywords)), layout_state)
    assert ours == theirs


@given(layout_keywords(), layout_keywords())
def test_update_as_tensorstore(first, second):
    def make(cls):
        layout = cls(**with_grids(cls, first))
        layout.update(**with_grids(cls, second))
        return layout

    ours, theirs = both(make, layout_state)
    assert ours == theirs


@given(layout_keywords(), layout_keywords())
def test_equality_as_tensorstore(first, second):
    ours, theirs = both(
        lambda cls: (cls(**with_grids(cls, first)), cls(**with_grids(cls, second))),
        lambda pair: pair[0] == pair[1],
        lambda pair: pair[0].read_chunk == pair[1].read_chunk,
        lambda pair: pair[0] == pair[0],
    )
    assert ours == theirs


@given(layout_keywords())
def test_templates_as_tensorstore(keywords):
    keywords.pop("finalize", None)
    ours, theirs = both(
        lambda cls: cls(**with_grids(cls, keywords)),
        lambda layout: repr(layout.read_chunk_template),
        lambda layout: repr(layout.write_chunk_template),
    )
    assert ours == theirs


def layout_json():
    grid = st.fixed_dictionaries({}, optional={n: s | ODD for n, s in GRID.items() if n != "rank"})
    levels = {
        level: st.fixed_dictionaries({}, optional=GRID | {"other": st.just(1)}) | grid
        for level in ("chunk", "write_chunk", "read_chunk", "codec_chunk")
    }
    optional = levels | {
        "rank": ranks | ODD,
        "inner_order": orders | ODD,
        "inner_order_soft_constraint": orders | ODD,
        "grid_origin": vectors(origins | ODD) | ODD,
        "grid_origin_soft_constraint": vectors(origins),
        "foo": ODD,
    }
    names = st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({n: optional[n] for n in chosen}))


@given(layout_json() | ODD)
def test_json_as_tensorstore(json):
    ours, theirs = both(lambda cls: cls(json), layout_state)
    assert ours == theirs


@given(layout_keywords())
def test_json_round_trip(keywords):
    try:
        layout = ChunkLayout(**with_grids(ChunkLayout, keywords))
    except GpustoreError:
        return
    assert layout_state(ChunkLayout(layout.to_json())) == layout_state(layout)
    assert layout_state(pickle.loads(pickle.dumps(layout))) == layout_state(layout)


def test_codec_chunk_keywords_constrain_the_codec_chunk():
    """TensorStore 0.1.86 applies them to the read chunk, against its documentation."""
    layout = ChunkLayout(codec_chunk_shape=[1, 2], codec_chunk_aspect_ratio=[3, 4])
    assert layout.to_json() == {"codec_chunk": {"aspect_ratio": [3.0, 4.0], "shape": [1, 2]}}
    assert ts.ChunkLayout(codec_chunk_shape=[1, 2]).to_json() == {"read_chunk": {"shape": [1, 2]}}


def test_grid_soft_constraint_is_soft():
    """TensorStore 0.1.86 merges it as hard, against its documentation."""
    wish = ChunkLayout.Grid(shape=[3, 4], aspect_ratio=[1, 2], elements=4)
    grid = ChunkLayout.Grid(shape=[1, None], grid_soft_constraint=wish)
    assert grid.shape == (1, None)
    assert grid.shape_soft_constraint == (None, 4)
    assert grid.elements is None
    assert ts.ChunkLayout.Grid(grid_soft_constraint=ts.ChunkLayout.Grid(elements=4)).elements == 4


def test_refused_update_changes_nothing():
    layout = ChunkLayout(chunk_shape=[1, 2])
    before = layout_state(layout)
    with pytest.raises(ValueError, match="Invalid chunk_shape: Error setting write_chunk shape"):
        layout.update(inner_order=[1, 0], chunk_shape=[1, 3])
    assert layout_state(layout) == before
    grid = layout.read_chunk
    with pytest.raises(ValueError, match="Invalid elements"):
        grid.update(shape_soft_constraint=[4, 4], elements=-1)
    assert grid == layout.read_chunk


def test_parts_are_copies():
    layout = ChunkLayout(chunk_shape=[1, None])
    layout.read_chunk.update(shape=[None, 5])
    clone = layout.copy()
    clone.update(rank=2, write_chunk_shape=[None, 7])
    assert copy.deepcopy(layout) == layout == copy.copy(layout)
    assert layout == ChunkLayout(chunk_shape=[1, None])


@each(
    ("keywords", "text"),
    [
        ({"chunk_shape": [1, "2"]}, "Invalid chunk_shape"),
        ({"chunk_shape": 5}, "Invalid chunk_shape"),
        ({"chunk_shape": [2**64]}, "Invalid chunk_shape"),
        ({"chunk_aspect_ratio": ["1"]}, "Invalid chunk_aspect_ratio"),
        ({"chunk_elements": 5.0}, "Invalid chunk_elements"),
        ({"inner_order": [0, None]}, "Invalid inner_order"),
        ({"rank": "3"}, "Invalid rank"),
        ({"chunk": {"shape": [1]}}, "Invalid chunk"),
        ({"foo": 1}, "unexpected keyword argument 'foo'"),
        ({"json": {}, "rank": 3}, "either json or keywords"),
    ],
)
def test_wrong_types_are_type_errors(keywords, text):
    with pytest.raises(TypeError, match=text):
        ChunkLayout(**keywords)
    with pytest.raises(TypeError):
        ts.ChunkLayout(**keywords)


def test_comparison_with_anything_else_is_false():
    assert ChunkLayout() != 3
    assert ChunkLayout.Grid() != 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(ChunkLayout())


def test_number_beyond_64_bits_in_json_is_a_value_error():
    with pytest.raises(ValueError, match="Expected 64-bit signed integer, but received: 1844674"):
        ChunkLayout({"grid_origin": [2**64]})


def test_read_write_chunk_merges_both():
    layout = ChunkLayout(read_chunk_shape=[4, None], write_chunk_shape=[None, 5])
    assert layout.read_write_chunk().shape == (4, 5)
    layout = ChunkLayout(read_chunk_shape=[4], write_chunk_shape=[8])
    with pytest.raises(ValueError, match="write_chunk constraints not compatible with existing"):
        layout.read_write_chunk()


def test_merged_hard_overrides_soft():
    wish = ChunkLayout(chunk_shape_soft_constraint=[4, 4], inner_order_soft_constraint=[1, 0])
    must = ChunkLayout(chunk_shape=[None, 6], inner_order=[0, 1])
    merged = wish.merged(must)
    assert merged == must.merged(wish)
    assert merged.read_chunk.shape == (None, 6)
    assert merged.read_chunk.shape_soft_constraint == (4, None)
    assert merged.inner_order == (0, 1)
    assert wish == ChunkLayout(
        chunk_shape_soft_constraint=[4, 4], inner_order_soft_constraint=[1, 0]
    )
    with pytest.raises(ValueError, match=r"New hard constraint \(7\) for dimension 1 does not"):
        must.merged(ChunkLayout(read_chunk_shape=[None, 7]))
