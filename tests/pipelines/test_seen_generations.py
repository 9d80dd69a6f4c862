"""Generations that reads note: of files by the native core, and of keys by Python, alike."""

import struct

import numpy as np
import pytest

from gpustore.backends.native.job import DONE, MISSING, NOT_DONE
from gpustore.errors import ConflictError
from gpustore.kvstores.columns import ABSENT
from gpustore.pipelines.seen_generations import SeenGenerations
from gpustore.planning.chunk_format import ChunkFormat

RATIO = (2, 2)


@pytest.fixture
def seen():
    return SeenGenerations((3, 4), ChunkFormat((8, 1), "c/", "/", RATIO, 2), str.upper)


def files(*fours):
    return np.array(fours, np.int64).view(np.uint64).reshape(-1, 4)


def packed(four):
    return struct.pack("<xQQqQ", *four)


def test_files_and_keys_are_the_same_values(seen):
    four = 1, 2, -3, 4
    seen.note_files(RATIO, np.array([[2, 3], [5, 4]]), files(four, four), np.array([DONE, DONE]))
    assert seen.note(["c/1/2"], [packed(four)]) == {}
    assert seen.note(["c/1/2"], [packed((8, 9, -3, 4))]) == {}  # The disk was mounted again.
    for other in (1, 2, -3, 5), (1, 2, -2, 4):
        assert [*seen.note(["c/0/0", "c/1/2"], [b"x", packed(other)])] == [1]
        with pytest.raises(ConflictError, match="C/1/2 has changed since it was first read") as e:
            seen.note_files(RATIO, np.array([[2], [5]]), files(other), np.array([DONE]))
        assert e.value.key == "c/1/2"


def test_missing_values_are_noted_and_unknown_ones_are_not(seen):
    keys = [f"c/0/{i}" for i in range(4)]
    assert seen.note(keys, [ABSENT, b"", b"x", b"y"]) == {}
    assert [*seen.note(keys, [b"x", b"x", b"", ABSENT])] == [0, 3]
    cells, none = np.array([[0], [0]]), files((0, 0, 0, 0))
    seen.note_files(RATIO, cells, none, np.array([MISSING]))
    seen.note_files(RATIO, cells, files((1, 2, 3, 4)), np.array([NOT_DONE]))
    with pytest.raises(ConflictError):
        seen.note_files(RATIO, cells, files((1, 2, 3, 4)), np.array([DONE]))


def test_chunks_of_one_shard_that_changes_meanwhile_are_an_error(seen):
    cells = np.array([[0, 1], [0, 1]])
    with pytest.raises(ConflictError):
        seen.note_files(RATIO, cells, files((1, 2, 3, 4), (1, 2, 9, 4)), np.array([DONE, MISSING]))
