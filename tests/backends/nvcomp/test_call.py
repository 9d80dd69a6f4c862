"""Calls of nvcomp, made to functions that only write down what they got."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from gpustore.backends.nvcomp import abi
from gpustore.backends.nvcomp import call as calls
from gpustore.device.protocol import CodecBatch, Spans

BATCH = CodecBatch(
    "zstd",
    Spans(np.array([1 << 40, 2 << 40], np.uint64), np.array([300, 200], np.uint64)),
    Spans(np.array([3 << 40, 4 << 40], np.uint64), np.array([1000, 2000], np.uint64)),
    table=1 << 33,
    result=1 << 34,
    temp=1 << 35,
    temp_nbytes=5 << 32,
)


def called(major, call):
    """What a C function of this version's prototype gets, by the names in the header."""
    function, arguments = call
    prototype = abi.prototypes(major)[function]
    got = {}

    def note(*values):
        got.update(zip(prototype, values, strict=True))
        return 0

    assert set(arguments) == set(prototype)
    pointer = ctypes.CFUNCTYPE(ctypes.c_int, *prototype.values())(note)
    assert pointer(*[arguments[name] for name in prototype]) == 0
    return got


@pytest.fixture(params=abi.ROWS)
def major(request):
    return request.param


@pytest.mark.parametrize("codec", abi.FORMATS)
def test_every_function_gets_its_arguments(major, codec):
    batch = replace(BATCH, codec=codec)
    found = [
        calls.alignments(major, codec, 64),
        calls.temp_nbytes(major, "compress", codec, 2, 2000, 3000, 64),
        calls.temp_nbytes(major, "decompress", codec, 2, 2000, 3000, 64),
        calls.bound(major, codec, 2000, 64),
        calls.compress(major, batch, 9),
        calls.decompress(major, batch, 9),
    ]
    for call in found:
        called(major, call)
    names = {name for name in abi.prototypes(major) if f"Batched{abi.FORMATS[codec]}" in name}
    assert {function for function, _ in found} == names


def test_decoding_reads_the_table_of_the_batch(major):
    got = called(major, calls.decompress(major, BATCH, 9))
    assert got.pop("decompress_opts").first == 2
    assert got == {
        "device_compressed_chunk_ptrs": BATCH.table,
        "device_compressed_chunk_bytes": BATCH.table + 16,
        "device_uncompressed_chunk_ptrs": BATCH.table + 32,
        "device_uncompressed_buffer_bytes": BATCH.table + 48,
        "device_uncompressed_chunk_bytes": BATCH.result,
        "device_statuses": BATCH.result + 16,
        "num_chunks": 2,
        "device_temp_ptr": BATCH.temp,
        "temp_bytes": 5 << 32,
        "stream": 9,
    }


def test_encoding_reads_the_table_of_the_batch(major):
    got = called(major, calls.compress(major, BATCH, 9))
    assert got.pop("compress_opts").first == 0
    assert got == {
        "device_uncompressed_chunk_ptrs": BATCH.table,
        "device_uncompressed_chunk_bytes": BATCH.table + 16,
        "device_compressed_chunk_ptrs": BATCH.table + 32,
        "device_compressed_chunk_bytes": BATCH.result,
        "device_statuses": BATCH.result + 16,
        "max_uncompressed_chunk_bytes": 300,
        "num_chunks": 2,
        "device_temp_ptr": BATCH.temp,
        "temp_bytes": 5 << 32,
        "stream": 9,
    }


def test_options_are_the_headers_defaults_and_cuda(major):
    for codec in abi.FORMATS:
        assert calls.options(major, "decompress", codec).first == 2
        assert calls.options(major, "compress", codec).first == abi.ROWS[major][2].get(codec, 0)


def test_queries_say_how_much_and_where(major):
    got = called(major, calls.temp_nbytes(major, "decompress", "lz4", 2, 2000, 3000, 64))
    got.pop("decompress_opts")
    assert got.pop("stream", None) is None
    assert got == {
        "num_chunks": 2,
        "max_uncompressed_chunk_bytes": 2000,
        "temp_bytes": 64,
        "max_total_uncompressed_bytes": 3000,
    }
