"""gpustore.strict_json.repr: specs print as those of TensorStore."""

from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.strict_json.repr import pretty
from tests.matrix import each

unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

# TensorStore's shortest digits are not always the shortest: it prints 3.000692903030273e+16 as
# 3.0006929030302728e+16 and 9.5e+21 as 9.500000000000001e+21. Of these numbers they are.
few_digits = st.builds(lambda n, e: float(f"{n}e{e}"), st.integers(-9999, 9999), st.integers(-9, 9))
attribute_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | few_digits
    | unicode_text
    | st.builds(mul, st.text("ab' \"\\é\x01", min_size=4, max_size=15), st.integers(5, 6)),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(unicode_text, inner, max_size=6),
    max_leaves=40,
)


@pytest.mark.matrix
@given(st.dictionaries(unicode_text, attribute_values, max_size=6))
def test_pretty_prints_as_tensorstore_prints_a_spec(attributes):
    ts = pytest.importorskip("tensorstore")
    spec = ts.Spec(
        {"driver": "zarr3", "kvstore": "memory://", "metadata": {"attributes": attributes}}
    )
    assert pretty("Spec", spec.to_json()) == repr(spec)


shapes = st.lists(st.integers(1, 10**6), min_size=1, max_size=6)
grids = st.fixed_dictionaries({}, optional={
    "shape": shapes, "shape_soft_constraint": shapes, "elements": st.integers(1, 10**9),
    "aspect_ratio": st.lists(st.floats(0.1, 100), min_size=1, max_size=6),
})  # fmt: skip
layouts = st.fixed_dictionaries({}, optional={
    "read_chunk": grids, "write_chunk": grids, "codec_chunk": grids,
    "inner_order": st.permutations(range(4)),
    "grid_origin": st.lists(st.integers(-9, 9), min_size=1, max_size=6),
})  # fmt: skip


@given(layouts)
def test_pretty_prints_as_tensorstore_prints_chunk_layouts_and_schemas(layout):
    ts = pytest.importorskip("tensorstore")
    try:
        chunk_layout = ts.ChunkLayout(layout)
        schema = ts.Schema({"chunk_layout": layout, "dtype": "uint16", "dimension_units": ["4nm"]})
    except ValueError:
        return
    for value in (chunk_layout, schema):
        assert pretty(type(value).__name__, value.to_json()) == repr(value)


@each("length", range(20, 90))
def test_pretty_breaks_lines_where_tensorstore_does(length):
    ts = pytest.importorskip("tensorstore")
    for attributes in ({"a": "x" * length}, {"x" * length: {}}, {"a": [["x" * length, []]]}):
        spec = ts.Spec({"driver": "zarr3", "metadata": {"attributes": attributes}})
        assert pretty("Spec", spec.to_json()) == repr(spec)


@each(
    "value", [1e14, 1e15, 123456789012345.5, 1234567890123456.5, -9999999999999998.0, 1e16, 1e-4,
              1e-5, -0.0, 5e-324, 1.5, 1e22, 2**53, True, None, "a'b\"\\\n\té\x01f"],
)  # fmt: skip
def test_pretty_writes_scalars_as_tensorstore_does(value):
    ts = pytest.importorskip("tensorstore")
    spec = ts.Spec({"driver": "zarr3", "metadata": {"attributes": {"a": value}}})
    assert pretty("Spec", spec.to_json()) == repr(spec)
