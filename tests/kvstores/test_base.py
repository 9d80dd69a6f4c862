"""The parts that all kvstores share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import LimitError, MismatchError, NotFoundError, UnsupportedError
from gpustore.kvstores.arena import Arena
from gpustore.kvstores.base import KvStoreDriver, prefix_end
from gpustore.kvstores.columns import (
    LocateColumns,
    ReadColumns,
    WriteColumns,
    WriteRequest,
    check_byte_range,
    check_nbytes,
    condition_holds,
)


@given(st.lists(st.lists(st.integers(0, 5000), max_size=12), max_size=4))
def test_pieces_of_an_arena_are_aligned_and_apart(rounds):
    arena = Arena(4096)
    for sizes in rounds:
        pieces = [arena.take(nbytes) for nbytes in sizes]
        for i, piece in enumerate(pieces):
            piece[:] = bytes([i % 256]) * len(piece)
        for i, (nbytes, piece) in enumerate(zip(sizes, pieces, strict=True)):
            assert bytes(piece) == bytes([i % 256]) * nbytes
            assert piece.format == "B"
        arena.reset()


def test_arena_reuses_its_memory():
    arena = Arena(1024)

    def addresses():
        pieces = [arena.take(1000) for _ in range(10)]
        arena.reset()
        import numpy as np

        return [np.frombuffer(piece, np.uint8).ctypes.data for piece in pieces]

    addresses()
    second = addresses()
    assert all(address % 64 == 0 for address in second)
    assert addresses() == second


def test_arena_keeps_no_more_than_allowed():
    arena = Arena(1024, retain_nbytes=10_000)
    arena.take(1_000_000)
    arena.reset()
    assert len(arena._block) <= 10_000


@given(st.integers(0, 20), st.integers(-25, 25), st.none() | st.integers(-5, 25))
def test_byte_range_is_a_python_slice_or_an_error(size, start, stop):
    value = bytes(range(size))
    legal = -size <= start <= size and (
        stop is None or (start if start >= 0 else start + size) <= stop <= size
    )
    if legal:
        begin, end = check_byte_range(size, start, stop, "k")
        expected = value[start:stop] if start else value[:stop]
        assert value[begin:end] == expected
    else:
        with pytest.raises(MismatchError) as caught:
            check_byte_range(size, start, stop, "k")
        assert caught.value.key == "k"
        assert caught.value.status == "OUT_OF_RANGE"


UNICODE = st.characters(exclude_categories=["Cs"])


@given(st.text(UNICODE, max_size=4), st.text(UNICODE, max_size=6))
def test_prefix_end_is_above_exactly_the_keys_with_the_prefix(prefix, key):
    end = prefix_end(prefix)
    assert key.startswith(prefix) == (key >= prefix and (end is None or key < end))


def test_prefix_end_of_the_last_character():
    assert prefix_end("") is None
    assert prefix_end("\U0010ffff") is None
    assert prefix_end("a\U0010ffff") == "b"


def test_nbytes_are_checked_against_the_limit():
    check_nbytes(10, None, "k")
    check_nbytes(10, 10, "k")
    with pytest.raises(LimitError, match='"k" has 11 bytes, at most 10 are expected'):
        check_nbytes(11, 10, "k")


def test_condition_holds_for_the_same_generation_or_none():
    assert condition_holds(b"", b"x")
    assert condition_holds(b"x", b"x")
    assert not condition_holds(b"y", b"x")


@pytest.mark.parametrize("columns", [ReadColumns, WriteColumns, LocateColumns])
def test_first_error_is_that_of_the_first_key(columns):
    result = columns.blank(3)
    result.raise_first()
    result.error[2] = UnsupportedError("second")
    result.error[1] = NotFoundError("first")
    with pytest.raises(NotFoundError, match="first"):
        result.raise_first()


def test_driver_refuses_unknown_members():
    class ReadOnly(KvStoreDriver):
        id = "read_only"
        read_many = check_key = spec = None

    driver = ReadOnly()
    for call in (
        lambda: driver.write_many(WriteRequest([], [])),
        driver.delete_range,
        driver.list,
        lambda: driver.locate_many([]),
    ):
        with pytest.raises(UnsupportedError, match='kvstore driver "read_only" does not support'):
            call()
    assert driver.describe('a"b') == r'"a\"b"'
    assert driver.resources == {}
    assert driver.rooted("x") is driver
