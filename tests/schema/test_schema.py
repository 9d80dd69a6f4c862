import copy
import pickle
import re

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.data_types.dtype import DTYPES, uint16
from gpustore.data_types.unit import Unit
from gpustore.errors import GpustoreError, UnsupportedError
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMap
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec
from gpustore.schema.domain_merge import merge_domains
from gpustore.schema.fill_value import FillValue
from tests.matrix import each


class Ours:
    Schema = Schema
    ChunkLayout = ChunkLayout
    CodecSpec = CodecSpec
    IndexDomain = IndexDomain
    IndexTransform = IndexTransform
    OutputIndexMap = OutputIndexMap


def outcome(make):
    """State of the made schema, or kind and text of the error without TensorStore's payload."""
    try:
        return state(make())
    except TypeError as error:
        return "TypeError", str(error).partition(":")[0]
    except (GpustoreError, ValueError, IndexError, OverflowError) as error:
        kind = next(k for k in (IndexError, OverflowError, ValueError) if isinstance(error, k))
        text = re.sub(r" \[\w+='.*", "", str(error), flags=re.DOTALL)
        # TensorStore prints a uint8 as the character it would be.
        return kind.__name__, re.sub(r"(Specified fill_value) .*", r"\1", text, flags=re.DOTALL)


def state(schema):
    fill = schema.fill_value
    return (
        schema.rank,
        schema.dtype and schema.dtype.name,
        repr(schema.domain),
        repr(schema.chunk_layout),
        schema.codec and schema.codec.to_json(),
        None if fill is None else (fill.dtype.name, fill.tolist()),
        None
        if schema.dimension_units is None
        else [None if u is None else u.to_json() for u in schema.dimension_units],
        schema.to_json(),
        list(schema.to_json()),
        repr(schema),
        schema.to_json(include_defaults=True),
    )


def both(make):
    return outcome(lambda: make(Ours)), outcome(lambda: make(ts))


# ------------------------------------------------------------------------ construction

rank = st.sampled_from([2, 2, 2, 2, 1, 3, 0])
bound = st.sampled_from([0, 0, 0, 3, -2])
label = st.sampled_from(["", "", "x", "y"])


@st.composite
def domains(draw, rank=rank):
    """Keywords of an IndexDomain."""
    n = draw(rank)
    keywords = {}
    if draw(st.booleans()):
        keywords["inclusive_min"] = draw(st.lists(bound, min_size=n, max_size=n))
    upper = draw(st.sampled_from(["shape", "exclusive_max", None]))
    if upper:
        keywords[upper] = [draw(st.sampled_from([4, 4, 6])) for _ in range(n)]
    labels = draw(st.lists(label, min_size=n, max_size=n))
    if len(set(filter(None, labels))) == len(list(filter(None, labels))):
        keywords["labels"] = labels
    for side in ("implicit_lower_bounds", "implicit_upper_bounds"):
        if draw(st.booleans()):
            keywords[side] = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return keywords | {"rank": n}


def vectors(values):
    return rank.flatmap(lambda n: st.lists(values, min_size=n, max_size=n))


units = vectors(st.sampled_from([None, None, "4nm", "4 nm", (4, "nm"), "5nm", 3, ""]))
fills = st.sampled_from([0, 7, 7, 7.5, True, [1, 2], [[1], [2]], [1, 2, 3, 4], -1, 300])
layouts = st.fixed_dictionaries(
    {},
    optional={
        "rank": rank,
        "chunk_shape": vectors(st.sampled_from([None, 4, 5, -1])),
        "inner_order_soft_constraint": st.sampled_from([[0, 1], [1, 0]]),
        "grid_origin": vectors(st.sampled_from([None, 0, 3])),
        "read_chunk_elements": st.sampled_from([10, 20]),
    },
)
codecs = st.sampled_from([{"driver": "zarr3"}, {"driver": "zarr"}, {"driver": "zarr3"}])


@st.composite
def keywords(draw, depth=1):
    optional = {
        "rank": rank,
        "dtype": st.sampled_from(["uint8", "uint8", "float32", "bool", "int4", "nope"]),
        "domain": domains(),
        "shape": vectors(st.sampled_from([4, 4, 6, -1])),
        "chunk_layout": layouts,
        "codec": codecs,
        "fill_value": fills,
        "dimension_units": units,
    }
    if depth:
        optional["schema"] = keywords(depth=depth - 1)
    names = draw(st.lists(st.sampled_from(sorted(optional)), max_size=5, unique=True))
    return draw(st.fixed_dictionaries({name: optional[name] for name in names}))


def make_schema(module, given_keywords):
    made = dict(given_keywords)
    for name, make in (
        ("domain", lambda v: module.IndexDomain(**v)),
        ("chunk_layout", lambda v: module.ChunkLayout(**v)),
        ("codec", module.CodecSpec),
        ("schema", lambda v: make_schema(module, v)),
    ):
        if name in made:
            made[name] = make(made[name])
    return module.Schema(**made)


def not_unique(result):
    """TensorStore merges labels into a domain in which one occurs twice; we refuse that."""
    return result[0] == "ValueError" and 'label(s) "' in result[1]


def before_elements(result):
    """TensorStore prints elements of one byte as characters, `\\x01` for instance; we print 1."""
    is_refused = result[0] == "ValueError" and "Invalid fill_value for rank" in result[1]
    return result[1].partition("{")[0] if is_refused else result


@given(keywords())
def test_keywords_as_tensorstore(given_keywords):
    ours, theirs = both(lambda module: make_schema(module, given_keywords))
    assert before_elements(ours) == before_elements(theirs) or not_unique(ours)


@given(keywords(depth=0), keywords(depth=0))
def test_merging_as_tensorstore(first, second):
    def make(module):
        schema = make_schema(module, first)
        schema.update(schema=make_schema(module, second))
        return schema

    ours, theirs = both(make)
    assert ours == theirs or not_unique(ours)


ODD = st.sampled_from([None, "x", -1, 1.5, [], {}, [None], 40])
schema_json = st.fixed_dictionaries(
    {},
    optional={
        "rank": rank | ODD,
        "dtype": st.sampled_from(["uint8", "int16", "float32", "bool", "ustring"]) | ODD,
        "domain": vectors(st.sampled_from([4, 6])).map(lambda shape: {"shape": shape}) | ODD,
        "chunk_layout": vectors(st.sampled_from([4, None])).map(lambda v: {"chunk": {"shape": v}})
        | st.fixed_dictionaries({"rank": rank}),
        "codec": codecs | ODD,
        "fill_value": st.sampled_from(
            [0, 7.0, 7.5, "7", "x", True, 300, -1, [1, 2], [[1], [2]], [[1], 2], [1, [2]], {}]
        ),
        "dimension_units": vectors(st.sampled_from([None, "4nm", [4, "nm"], 3])) | ODD,
        "foo": ODD,
    },
).flatmap(
    lambda d: st.lists(st.sampled_from(sorted(d) or ["rank"]), max_size=4).map(
        lambda names: {n: d[n] for n in names if n in d}
    )
)


@given(schema_json)
def test_json_as_tensorstore(json):
    ours, theirs = both(lambda module: module.Schema(json))
    assert ours == theirs or "has no elements" in ours[1]


@given(keywords())
def test_json_round_trip(given_keywords):
    try:
        schema = make_schema(Ours, given_keywords)
    except (GpustoreError, TypeError, OverflowError):
        return
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert copy.copy(schema) == schema
    # JSON does not say that a fill value given before the data type is of another one.
    fill = schema.fill_value
    if fill is None or (schema.dtype and schema.dtype.array_dtype == fill.dtype.newbyteorder("=")):
        assert Schema(schema.to_json()).to_json() == schema.to_json()


# ------------------------------------------------------------------------ indexing

FULL = {
    "domain": {"labels": ["x", "y", "z"], "shape": [1000, 2000, 3000]},
    "chunk_layout": {
        "grid_origin": [100, -201, 300],
        "inner_order": [2, 0, 1],
        "chunk_shape": [10, -1, None],
        "read_chunk_aspect_ratio": [1, 2, 3],
        "write_chunk_shape_soft_constraint": [None, None, 24],
        "chunk_elements": 40,
    },
    "dimension_units": ["4nm", "5nm", None],
    "fill_value": 3,
    "dtype": "uint8",
}
# Not FULL["domain"]: constraints alone.
OPEN = {name: value for name, value in FULL.items() if name != "domain"}
ARRAY_FILL = {"shape": [3, 4], "fill_value": [1, 2, 3, 4], "dimension_units": [None, "2nm"]}

terms = st.one_of(
    st.integers(0, 5),
    st.builds(slice, st.integers(0, 3), st.integers(4, 9), st.sampled_from([None, 2, 3])),
    st.sampled_from([slice(None), slice(8, 2, -1), slice(9, 1, -4), None, ...]),
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
)
indices = st.lists(terms, min_size=1, max_size=4).map(tuple)


def no_diagnosis(result):
    return result[0] if isinstance(result[0], str) else result


@pytest.mark.parametrize("base", [FULL, OPEN], ids=["domain", "no_domain"])
@given(index=indices, mode=st.sampled_from(["", "", "oindex", "vindex"]))
def test_indexing_as_tensorstore(base, index, mode):
    def make(module):
        schema = make_schema(module, base)
        return (getattr(schema, mode) if mode else schema)[index]

    ours, theirs = both(make)
    assert no_diagnosis(ours) == no_diagnosis(theirs)


small = st.one_of(
    st.integers(0, 2),
    st.sampled_from([slice(None), slice(1, 3), slice(None, None, -1), slice(0, 3, 2), None, ...]),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
)


@given(index=st.lists(small, min_size=1, max_size=4).map(tuple))
def test_indexing_fill_value_as_tensorstore(index):
    ours, theirs = both(lambda module: make_schema(module, ARRAY_FILL)[index])
    assert no_diagnosis(ours) == no_diagnosis(theirs)


@each(
    "apply",
    [
        lambda s: s.T,
        lambda s: s.transpose([2, 0, 1]),
        lambda s: s.translate_to[5],
        lambda s: s.translate_by[5, -3, 0],
        lambda s: s.translate_backward_by[5],
        lambda s: s.label["a", "b", "c"],
        lambda s: s.oindex[[1, 2], [3, 4]],
        lambda s: s.vindex[[1, 2], [3, 4]],
    ],
    ids=["T", "transpose", "to", "by", "backward", "label", "oindex", "vindex"],
)
def test_operations_as_tensorstore(apply):
    ours, theirs = both(lambda module: apply(make_schema(module, FULL)))
    assert ours == theirs


def test_diagonal_drops_constraints():
    def make(module):
        diagonal = [module.OutputIndexMap(input_dimension=0)] * 2
        transform = module.IndexTransform(input_rank=2, output=diagonal)
        layout = module.ChunkLayout(chunk_shape=[3, 4], inner_order=[1, 0])
        return module.Schema(chunk_layout=layout, dimension_units=["nm", None])[transform]

    ours, theirs = both(make)
    assert ours == theirs


def test_mark_bounds_implicit_is_kept():
    """TensorStore 0.1.86 makes the bounds explicit again at once."""
    schema = Schema(shape=[3]).mark_bounds_implicit[True]
    assert repr(schema.domain) == "{ [0*, 3*) }"


def test_indexing_needs_a_rank():
    with pytest.raises(ValueError, match="rank is not known"):
        Schema(dtype="uint8")[3]


def test_origin_overflow_is_refused():
    schema = Schema(chunk_layout=ChunkLayout(grid_origin=[-(2**62) + 2]))
    with pytest.raises(
        ValueError,
        match=r"^OUT_OF_RANGE: Error transforming grid_origin: Error transforming output",
    ):
        schema.translate_by[-5]


def test_inverse_transform_undoes_affine_transform():
    schema = make_schema(Ours, {k: v for k, v in FULL.items() if k != "fill_value"})
    transform = IndexTransform(schema.domain).translate_to[5].transpose([2, 0, 1])
    assert schema.transformed(transform).inverse_transformed(transform) == schema
    mirror = IndexTransform(schema.domain)[::-1]
    layout = Schema(chunk_layout=schema.chunk_layout, domain=schema.domain)
    assert layout.transformed(mirror).inverse_transformed(mirror) == layout


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"chunk_layout": ChunkLayout(chunk_shape=[4, 5])}, "No output dimension corresponds to"),
        ({"dimension_units": ["nm", None]}, "No output dimension corresponds to input dimension 0"),
        ({"shape": [4, 5]}, "Cannot specify domain through a transform with a constant output"),
        ({"fill_value": [1, 2]}, "Error transforming fill_value"),
    ],
    ids=["chunk_layout", "units", "domain", "fill_value"],
)
def test_inverse_transform_refuses_what_it_cannot_keep(schema, text):
    output = [OutputIndexMap(3), OutputIndexMap(input_dimension=1)]
    transform = IndexTransform(input_rank=2, output=output)
    with pytest.raises((ValueError, UnsupportedError), match=text):
        Schema(**schema).inverse_transformed(transform)


# ------------------------------------------------------------------------ domains


def test_merge_domains_of_other_rank_is_refused():
    with pytest.raises(ValueError, match=r"^Cannot merge index domain .*: Ranks do not match"):
        merge_domains(IndexDomain(2), IndexDomain(3))


def test_labels_that_would_occur_twice_are_refused():
    with pytest.raises(ValueError, match="not unique"):
        merge_domains(IndexDomain(labels=["x", ""]), IndexDomain(labels=["", "x"]))


# ------------------------------------------------------------------------ fill values


@each("name", sorted(set(DTYPES) - {"char", "byte"}))
def test_fill_value_of_every_type_round_trips_through_json(name):
    value = {"string": b"a", "ustring": "a", "json": {"a": [1]}}.get(name, 1)
    schema = Schema(dtype=name, fill_value=value)
    assert schema.fill_value.shape == ()
    again = Schema(schema.to_json())
    assert again == schema
    assert again.fill_value.dtype == schema.dtype.numpy_dtype


@each("name", ["uint8", "int16", "uint64"])
@each("value", [-5, 1.5, 2.0**70, float("nan")])
def test_fill_value_of_an_array_never_becomes_another_integer(name, value):
    if name == "int16" and value == -5:
        assert Schema(dtype=name, fill_value=np.array(value)).fill_value == -5
        return
    for library in (gpustore, ts):
        with pytest.raises(TypeError):
            library.Schema(dtype=library.dtype(name), fill_value=np.array(value))


def test_fill_value_keeps_every_bit():
    nan = np.array(0x7FC00123, np.uint32).view(np.float32)
    schema = Schema(fill_value=nan)
    assert schema.fill_value.view(np.uint32) == 0x7FC00123
    assert schema.merged(fill_value=nan) == schema
    assert np.signbit(Schema(fill_value=-0.0).fill_value)
    with pytest.raises(ValueError, match=r"Specified fill_value \(nan\) does not match existing"):
        schema.merged(fill_value=np.float32("nan"))


def test_fill_value_is_read_only():
    source = np.array([1, 2])
    schema = Schema(fill_value=source)
    source[0] = 5
    assert schema.fill_value.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        schema.fill_value[0] = 3


def test_fill_value_of_other_byte_order_is_converted():
    """TensorStore 0.1.86 takes the bytes as they are: 256."""
    fill = Schema(fill_value=np.array(1, ">u2")).fill_value
    assert fill == 1
    assert fill.dtype.isnative


def test_broadcast_fill_value_is_stored_once():
    fill = np.broadcast_to(np.array([[1], [2]], np.int32), (2, 3))
    assert Schema(fill_value=fill).fill_value.tolist() == [[1], [2]]
    assert Schema(fill_value=np.zeros((1, 1, 2))).fill_value.shape == (2,)


def test_fill_value_without_elements_is_refused():
    """TensorStore 0.1.86 reads memory that is not there."""
    with pytest.raises(ValueError, match=r"fill_value of shape \{0\} has no elements"):
        Schema(fill_value=np.zeros(0))


def test_bytes_are_elements_of_char():
    assert Schema(fill_value=b"abc").fill_value.tolist() == [b"a", b"b", b"c"]
    with pytest.raises(ValueError, match="Conversion from char to JSON is not implemented"):
        Schema(fill_value=b"abc").to_json()
    with pytest.raises(ValueError, match="Conversion from JSON to byte is not implemented"):
        Schema({"dtype": "byte", "fill_value": 3})


def test_fill_value_converts_as_c_does():
    assert FillValue.from_array(70000, None).converted(uint16).array == 4464
    assert FillValue.from_json("7", None).converted(uint16).array == 7


# ------------------------------------------------------------------------ the rest


@each(
    ("keywords", "text"),
    [
        ({"domain": {"shape": [3]}}, "Invalid domain"),
        ({"chunk_layout": {"rank": 2}}, "Invalid chunk_layout"),
        ({"codec": {"driver": "zarr"}}, "Invalid codec: {.*}: expected CodecSpec, got dict"),
        ({"schema": {"rank": 2}}, "Invalid schema"),
        ({"dtype": 3}, "Invalid dtype"),
        ({"shape": [1, None]}, "Invalid shape"),
        ({"dimension_units": [object()]}, "Invalid dimension_units"),
        ({"dimension_units": 4}, "Invalid dimension_units"),
        ({"foo": 4}, "unexpected keyword argument 'foo'"),
        ({"json": {}, "rank": 4}, "either json or keywords"),
    ],
)
def test_wrong_types_are_type_errors(keywords, text):
    with pytest.raises(TypeError, match=text):
        Schema(**keywords)
    with pytest.raises(TypeError):
        ts.Schema(**keywords)


def test_unknown_domain_has_no_shape():
    """TensorStore 0.1.86 crashes if the rank is not known, too."""
    schema = Schema(rank=3)
    assert (schema.shape, schema.origin, schema.size) == (None, None, None)
    schema.update(shape=[1, 2, 3])
    assert (schema.shape, schema.origin, schema.size) == ((1, 2, 3), (0, 0, 0), 6)


def test_refused_update_changes_nothing():
    schema = make_schema(Ours, FULL)
    before = state(schema)
    with pytest.raises(ValueError, match="Invalid dimension_units: Cannot merge dimension units"):
        schema.update(dtype="uint8", dimension_units=["6nm", None, "7nm"])
    assert state(schema) == before


def test_chunk_layout_is_a_copy():
    schema = Schema(chunk_layout=ChunkLayout(chunk_shape=[1, None]))
    schema.chunk_layout.update(chunk_shape=[None, 4])
    assert schema.chunk_layout == ChunkLayout(chunk_shape=[1, None])
    other = schema.merged(chunk_layout=ChunkLayout(chunk_shape=[None, 4]))
    assert schema != other
    assert schema != 3


def test_units_of_all_kinds():
    schema = Schema(dimension_units=[Unit(4, "nm"), (4, "nm"), "4nm", 3, None])
    assert schema.dimension_units == (*[Unit(4, "nm")] * 3, Unit(3, ""), None)
