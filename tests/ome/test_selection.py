"""Parts of a level by names of axes; physical ranges compared with centres computed exactly."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore import ome
from gpustore.ome.multiscale import Axis
from gpustore.ome.selection import index_of
from gpustore.ome.units import Unit, unit
from tests.ome.files import VALUES, write_image


@pytest.fixture(scope="module")
def level():
    context = gpustore.Context()
    write_image("memory://a/", "0.5", context)
    return ome.open("memory://a/", context=context).level(0)


@pytest.mark.parametrize(
    ("axes", "index"),
    [
        ({}, np.s_[:]),
        ({"c": "GFP"}, np.s_[1]),
        ({"c": ["GFP", "DAPI"]}, np.s_[[1, 0]]),
        ({"c": 0, "z": 3}, np.s_[0, 3]),
        ({"x": [5, 1, 1]}, np.s_[..., [5, 1, 1]]),
        ({"y": slice(4, 9)}, np.s_[:, :, 4:9]),
        ({"z": slice(7, -1, -1)}, np.s_[:, ::-1]),
        ({"z": []}, np.s_[:, :0]),
        ({"z": ome.um(4, 10)}, np.s_[:, 2:5]),
        ({"z": ome.um(4.5, 10.1)}, np.s_[:, 3:6]),
        ({"z": ome.um(-100, 3)}, np.s_[:, :2]),
        ({"z": ome.um(9, float("inf"))}, np.s_[:, 5:]),
        ({"z": ome.nm(4000, 10000)}, np.s_[:, 2:5]),
        ({"z": ome.mm(0.004)}, np.s_[:, 2]),
        ({"z": ome.um(5)}, np.s_[:, 3]),
        ({"z": ome.um(4.9)}, np.s_[:, 2]),
        ({"c": "DAPI", "x": ome.um(1, 2), "y": ome.um(3)}, np.s_[0, :, 6, 2:4]),
    ],
)
def test_parts(level, axes, index):
    part = level.sel(**axes)
    assert np.array_equal(part.read().result(), VALUES[index])
    gone = {name for name, one in axes.items() if isinstance(one, int | str)}
    gone |= {n for n, one in axes.items() if isinstance(one, ome.Range) and one.stop is None}
    assert part.domain.labels == tuple(name for name in "czyx" if name not in gone)


def test_a_range_keeps_its_indices(level):
    assert level.sel(z=ome.um(4, 10)).domain["z"].inclusive_min == 2


@pytest.mark.parametrize(
    ("axes", "error", "text"),
    [
        ({"q": 1}, TypeError, "no axis 'q'; axes are c, z, y, x"),
        ({"z": 1.5}, TypeError, r"z: expected an index, got 1.5; .* ome.um\(1.5\)"),
        ({"z": slice(1.5, 3)}, TypeError, "z: slices have indices"),
        ({"z": slice(ome.um(1), None)}, TypeError, "z: slices have indices"),
        ({"z": "DAPI"}, TypeError, "z: names are for axes of channels, this one is of space"),
        ({"c": "RFP"}, ValueError, "c: no channel 'RFP'; channels: 'DAPI', 'GFP'"),
        ({"c": ["DAPI", 1]}, TypeError, "c: expected names of channels, got 1 among them"),
        ({"c": ome.um(1)}, ValueError, "c: the axis has no unit"),
        ({"z": ome.s(1)}, ValueError, "z: the unit is micrometer, not second"),
        ({"z": ome.um(5, 3)}, ValueError, "z: expected a start below the end, got 5 to 3 µm"),
        ({"z": ome.um(float("nan"), 3)}, ValueError, "z: expected a start below the end"),
        ({"z": ome.um(float("nan"))}, ValueError, "z: expected a finite coordinate"),
        ({"z": ome.um(20, 30)}, gpustore.OutOfBoundsError, "from 0 to 14 µm, 2 apart"),
        ({"z": ome.um(1, 1.5)}, gpustore.OutOfBoundsError, "z: no centre .* lies at 1 to 1.5 µm"),
        ({"z": ome.um(15.1)}, gpustore.OutOfBoundsError, "z: no centre"),
        ({"z": 8}, gpustore.OutOfBoundsError, r"z: index 8 lies outside of \[0, 8\)"),
        ({"z": -1}, gpustore.OutOfBoundsError, "z: index -1 lies outside"),
        ({"z": slice(2, 9)}, gpustore.OutOfBoundsError, "z: index 9 lies outside"),
        ({"z": slice(-1, 3)}, gpustore.OutOfBoundsError, "z: index -1 lies outside"),
        ({"z": [1, 8]}, gpustore.OutOfBoundsError, "z: index 8 lies outside"),
        ({"z": True}, TypeError, "z: expected an index, a slice or a list, got True"),
        ({"z": None}, TypeError, "z: expected an index, a slice or a list, got None"),
        ({"z": ...}, TypeError, "z: expected an index, a slice or a list, got Ellipsis"),
        ({"z": [[0, 1]]}, TypeError, r"z: expected an index, a slice or a list, got \[\[0, 1\]\]"),
        ({"z": [True] * 7}, ValueError, "z: expected a mask of 8 elements, got 7"),
        ({"z": slice("a", "b")}, TypeError, "interpreted as an integer"),
    ],
)
def test_wrong_parts(level, axes, error, text):
    with pytest.raises(error, match=text):
        level.sel(**axes)


TENTHS = st.integers(-200, 200).map(lambda n: Fraction(n, 10))


@given(
    start=TENTHS,
    length=st.integers(1, 200).map(lambda n: Fraction(n, 10)),
    scale=st.integers(1, 40).map(lambda n: Fraction(n, 10)),
    translation=TENTHS,
    count=st.integers(1, 12),
    of=st.sampled_from(["nanometer", "micrometer", "millimeter"]),
)
def test_ranges_of_decimal_fractions_are_exact(start, length, scale, translation, count, of):
    axis = Axis("x", "space", unit(of))
    factor = {"nanometer": Fraction(1, 1000), "micrometer": 1, "millimeter": 1000}[of]
    centres = [(translation + scale * index) * factor for index in range(count)]
    inside = [index for index, one in enumerate(centres) if start <= one < start + length]
    place = (axis, float(scale), float(translation), (0, count), ())
    if inside:
        found = index_of(ome.um(float(start), float(start + length)), *place)
        assert (found.start, found.stop) == (inside[0], inside[-1] + 1)
    else:
        with pytest.raises(gpustore.OutOfBoundsError):
            index_of(ome.um(float(start), float(start + length)), *place)
    nearest = (Fraction(start) / factor - translation) / scale + Fraction(1, 2)
    if 0 <= nearest // 1 < count:
        assert index_of(ome.um(float(start)), *place) == nearest // 1
    else:
        with pytest.raises(gpustore.OutOfBoundsError):
            index_of(ome.um(float(start)), *place)


def test_units():
    assert unit("µm") == unit("um") == unit("micrometer") == ome.um
    assert Unit("day").factor_to(ome.s) == 86400
    assert ome.s.factor_to(ome.um) is None
    assert Unit("parrot").factor_to(Unit("parrot")) == 1
    assert Unit("parrot").factor_to(ome.um) is None
    assert [ome.mm.factor_to(one) for one in (ome.nm, ome.um, ome.mm)] == [1e6, 1e3, 1]
    assert str(ome.um(0.5, 2)) == "0.5 to 2 µm"
    for ends in ((2**2000,), (0, -(2**2000))):
        with pytest.raises(ValueError, match="coordinate in micrometer: an integer too large for"):
            ome.um(*ends)
