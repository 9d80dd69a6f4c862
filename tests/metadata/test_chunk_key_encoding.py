"""Chunk keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.metadata.chunk_key_encoding import ChunkKeyEncoding
from tests.matrix import each

ENCODINGS = [ChunkKeyEncoding(name, separator) for name in ("default", "v2") for separator in "./"]


@pytest.mark.parametrize(
    ("name", "separator", "key", "scalar"),
    [
        ("default", "", "c/1/23", "c"),
        ("default", ".", "c.1.23", "c"),
        ("v2", "", "1.23", "0"),
        ("v2", "/", "1/23", "0"),
    ],
)
def test_key_of_cell_and_of_rank_0(name, separator, key, scalar):
    encoding = ChunkKeyEncoding(name, separator)
    assert encoding.key((1, 23)) == key == encoding.prefix + encoding.separator.join(["1", "23"])
    assert encoding.key(()) == scalar == encoding.scalar_key


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@given(cell=st.lists(st.integers(0, 2**62), max_size=4))
def test_cell_is_inverse_of_key(encoding, cell):
    key = encoding.key(cell)
    assert encoding.cell(key, len(cell)) == tuple(cell)
    assert encoding.cell(key, len(cell) + 1) is None or (key, cell) == ("0", [])
    assert encoding.cell("0" + key, len(cell)) is None


@each("encoding", ENCODINGS)
@each("index", ["", "01", "-1", "+1", " 1", "1 ", "1_0", "\u0661", "1" * 5000, "x", "zarr.json"])
def test_other_keys_have_no_cell(encoding, index):
    assert encoding.cell(f"{encoding.prefix}0{encoding.separator}{index}", 2) is None
    assert encoding.cell(index, 0) is None


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_json_omits_default_separator(encoding):
    value = encoding.to_json()
    assert value["name"] == encoding.name
    is_default = encoding.separator == {"default": "/", "v2": "."}[encoding.name]
    assert value.get("configuration") == (None if is_default else {"separator": encoding.separator})


def test_unknown_name_or_separator_is_refused():
    with pytest.raises(ValueError, match='Expected one of "default", "v2"'):
        ChunkKeyEncoding("x")
    with pytest.raises(ValueError, match=r'Expected one of "\.", "/"'):
        ChunkKeyEncoding("v2", "-")
