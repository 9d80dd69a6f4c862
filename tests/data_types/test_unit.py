"""gpustore.data_types.unit, against tensorstore.Unit."""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.data_types.unit import Unit
from gpustore.errors import MetadataError
from tests.matrix import each

base_units = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
finite = st.floats(allow_nan=False)


@pytest.fixture(scope="module")
def ts():
    return pytest.importorskip("tensorstore")


def same(ours, theirs):
    # One of them may be a NaN of the other sign.
    assert ours.to_json() == theirs.to_json() or math.isnan(ours.multiplier)
    assert repr(ours) == repr(theirs).replace("-nan", "nan")
    assert str(ours) == str(theirs).replace("-nan", "nan")
    assert (ours.multiplier, ours.base_unit) == (theirs.multiplier, theirs.base_unit) or (
        math.isnan(ours.multiplier) and math.isnan(theirs.multiplier)
    )
    assert type(ours.multiplier) is float
    return True


STRINGS = [
    *("4nm", "nm", "4 nm", "4", "", " ", "4.5e3 nm", "  4nm ", " nm ", "-4nm", "+5nm", "0nm", "-0"),
    *("1e", "1e5", "e5", "4.nm", ".5nm", "12.", "00012nm", "1.2.3", "1.e5x", "1e5.5", "1e5e5", "."),
    *(
        "+",
        "-",
        "+.",
        "1e+",
        "1e-nm",
        ".e5",
        "--5nm",
        "+ 5",
        "0x10nm",
        "1_0nm",
        "1,5nm",
        "4f",
        "1p5",
    ),
    *(
        "inf",
        "infnm",
        "-inf",
        "4inf",
        "nan",
        "NaN nm",
        "4nan",
        "Infinity",
        "5 5nm",
        "nm 5",
        "4um/s",
    ),
    *(
        "4\tnm",
        "4\nnm",
        "4\fnm",
        "4\vnm",
        "4nm\v",
        "4nm\f",
        "\v4nm",
        "4nm\r\n",
        "4nm\0x",
        "\x004nm",
    ),
    *("4\nnm\nx", "4 \n", "4\xa0nm", "4\u3000nm", "é", "4é", "\u0664nm", "4e\u0664", "\uff11nm"),
    *("1e400nm", "1.8e308", "1e-400nm", "1e-310nm", "5e-324nm", "2.2250738585072014e-308nm"),
    *(
        "2.2250738585072011e-308",
        "1" * 400,
        "0." + "0" * 400 + "1nm",
        "0e5",
        "0e999nm",
        "0.0e-999x",
    ),
    *("0.1nm", "123456789nm", "1e-7nm", "1e15", "1e16", "1e20nm", "1e21nm", "1E5x", "a\"'\\\x01f"),
]


@each("text", STRINGS)
def test_string_is_read_as_by_tensorstore(text, ts):
    assert same(Unit(text), ts.Unit(text))
    assert same(Unit(unit=text), ts.Unit(unit=text))
    assert same(Unit(json=text), ts.Unit(json=text))


@given(st.text("0123456789.eE+- \t\nnmx\v", max_size=10) | base_units)
def test_any_string_is_read_as_by_tensorstore(text):
    ts = pytest.importorskip("tensorstore")
    assert same(Unit(text), ts.Unit(text))


@given(st.floats() | st.integers(-(2**70), 2**70), base_units)
def test_pair_is_read_as_by_tensorstore(multiplier, base_unit):
    ts = pytest.importorskip("tensorstore")
    assert same(Unit(multiplier, base_unit), ts.Unit(multiplier, base_unit))
    assert same(Unit((multiplier, base_unit)), ts.Unit((multiplier, base_unit)))
    assert same(Unit(multiplier), ts.Unit(multiplier))
    assert same(Unit(json=float(multiplier)), ts.Unit(json=float(multiplier)))


@given(st.floats(0, exclude_min=True, allow_infinity=False), base_units)
def test_json_pair_is_read_as_by_tensorstore(multiplier, base_unit):
    ts = pytest.importorskip("tensorstore")
    pair = [multiplier, base_unit]
    assert same(Unit(json=pair), ts.Unit(json=pair))
    assert Unit(json=pair).to_json() == pair


@given(finite, base_units, st.floats() | st.integers(-(2**70), 2**70))
def test_arithmetic_is_that_of_tensorstore(multiplier, base_unit, factor):
    ts = pytest.importorskip("tensorstore")
    ours, theirs = Unit(multiplier, base_unit), ts.Unit(multiplier, base_unit)
    assert same(ours * factor, theirs * factor)
    assert same(ours / factor, theirs / factor)


@each("divisor", [0, 0.0, -0.0])
@each("multiplier", [1, -1, 0, math.inf, math.nan])
def test_division_by_zero_is_that_of_ieee(multiplier, divisor, ts):
    assert same(Unit(multiplier, "m") / divisor, ts.Unit(multiplier, "m") / divisor)


@given(finite, base_units)
def test_copies_are_lossless(multiplier, base_unit):
    unit = Unit(multiplier, base_unit)
    for other in (Unit(unit), Unit(tuple(unit.to_json())), pickle.loads(pickle.dumps(unit))):
        assert other == unit
        assert hash(other) == hash(unit)
        assert repr(other) == repr(unit)
    assert copy.deepcopy(unit) == unit


@each(
    ("arguments", "keywords"),
    [
        ((), {}),
        ((True,), {}),
        ((np.float32(4),), {}),
        ((np.int64(4), "nm"), {}),
        ((Fraction(1, 2),), {}),
        (([4, "nm"],), {}),
        (((np.float64(3), "x"),), {}),
        (((2, np.str_("x")),), {}),
        ((np.str_("4nm"),), {}),
        ((), {"multiplier": 4, "base_unit": "nm"}),
        ((), {"multiplier": 4}),
        ((4,), {"base_unit": "nm"}),
        ((), {"unit": (4, "nm")}),
        ((), {"json": 4.5}),
        ((), {"json": (4, "nm")}),
        ((), {"json": [np.float32(2), "a"]}),
        ((), {"json": [4, " nm "]}),
    ],
)
def test_arguments_are_those_of_tensorstore(arguments, keywords, ts):
    assert same(Unit(*arguments, **keywords), ts.Unit(*arguments, **keywords))


@each(
    ("arguments", "keywords"),
    [
        ((None,), {}),
        (({},), {}),
        ((1j,), {}),
        ((10**400,), {}),
        (((4,),), {}),
        (((4, "nm", 1),), {}),
        ((("nm", 4),), {}),
        (((4, None),), {}),
        ((((4,), "a"),), {}),
        ((("4", "nm"),), {}),
        (([],), {}),
        ((4, None), {}),
        (("4", "nm"), {}),
        ((1, 2, 3), {}),
        ((), {"base_unit": "nm"}),
        (("4nm",), {"json": 3}),
        ((4,), {"unit": "nm"}),
        ((), {"other": 3}),
    ],
)
def test_wrong_arguments_are_type_errors_as_in_tensorstore(arguments, keywords, ts):
    with pytest.raises(TypeError):
        ts.Unit(*arguments, **keywords)
    with pytest.raises(TypeError):
        Unit(*arguments, **keywords)


@each(
    "json",
    [
        *(None, True, {}, [4], [4, "nm", 1], ["nm", 4], [True, "nm"], [4, 5], ["4", "nm"]),
        *([None, "x"], [0.0, "m"], [-1.0, "m"], [-0.0, 5]),
    ],
)
def test_wrong_json_has_tensorstores_words(json, ts):
    with pytest.raises(ValueError, match=r"Expected|Array") as theirs:
        ts.Unit(json=json)
    with pytest.raises(MetadataError) as ours:
        Unit(json=json)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("multiplier", [math.inf, math.nan])
def test_json_pair_must_be_finite(multiplier, ts):
    with pytest.raises(ValueError, match="Expected finite positive number"):
        ts.Unit(json=[multiplier, "m"])
    with pytest.raises(MetadataError, match="Expected finite positive number"):
        Unit(json=[multiplier, "m"])


def test_equality_is_by_parts():
    assert Unit("4nm") == Unit(4.0, "nm")
    assert Unit("4nm") != Unit("4um")
    assert Unit("4nm") != Unit("5nm")
    assert Unit("-0") == Unit("0")
    assert hash(Unit("-0")) == hash(Unit("0"))
    assert Unit(math.nan) != Unit(math.nan)
    assert len({Unit("4nm"), Unit(4, "nm"), Unit("nm")}) == 2


@pytest.mark.parametrize("other", ["4nm", (4, "nm"), None, 4, [4.0, "nm"]])
def test_anything_else_is_unequal(other):
    assert Unit("4nm") != other


@pytest.mark.parametrize("operand", ["2", None, Unit("nm"), (2,), 1j])
def test_only_numbers_scale(operand):
    with pytest.raises(TypeError):
        Unit("4nm") * operand
    with pytest.raises(TypeError):
        Unit("4nm") / operand


def test_it_cannot_be_changed():
    unit = Unit("4nm")
    for name in ("multiplier", "base_unit", "other"):
        with pytest.raises(AttributeError):
            setattr(unit, name, 1)
