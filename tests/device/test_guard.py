"""Guards as columns, the rows beside those that were written, and streams that do no harm."""

import zlib

import numpy as np

from gpustore.device.guard import EMPTY_STREAMS, Guards, between
from gpustore.device.protocol import Spans
from tests.emulator import codecs


def test_guards_of_several_outputs_are_one_table():
    guards = Guards()
    guards.write(np.zeros(0, np.uint64))
    guards.add(1000, between(Spans.contiguous(3, [13]), 21), np.array([7]))
    guards.add(2000, between(Spans.contiguous(4, [3, 8], 16), 32), np.array([8, 9]))
    assert guards.count == 5
    table = np.zeros(10, np.uint64)
    guards.write(table)
    assert table.tolist() == [1000, 1016, 2000, 2007, 2028, 3, 5, 4, 13, 4]


def test_rows_on_both_sides_of_a_written_guard_have_failed():
    guards = Guards()
    rows = np.array([4, 6, 9])
    guards.add(0, between(Spans.contiguous(32, [32] * 3, 64), 224), rows)

    def failed(*changed):
        words = np.isin(np.arange(4), changed) * np.uint32(1 << 7)
        found = guards.overwritten(words.astype(np.uint32).view(np.uint8))
        return sorted({row for row, _ in found})

    assert failed() == []
    assert [failed(i) for i in range(4)] == [[4], [4, 6], [6, 9], [9]]
    assert failed(1, 2) == [4, 6, 9]
    # What no kernel has written is no success.
    assert len(list(guards.overwritten(np.full(16, 0xFF, np.uint8)))) == 6


def test_blocks_hold_eight_guards():
    guards = Guards()
    blocks = []
    for _ in range(17):
        guards.add(0, between(Spans.contiguous(32, [32]), 96), np.array([0]))
        blocks.append(guards.blocks)
    assert blocks == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5]


def test_empty_streams_are_whole():
    assert EMPTY_STREAMS.keys() == codecs.CODECS.keys()
    for codec, stream in EMPTY_STREAMS.items():
        assert codecs.decompress(codec, stream, 100) == (bytes(codec == "zstd"), codecs.SUCCESS)
    assert zlib.decompress(EMPTY_STREAMS["gzip"], 31) == b""
