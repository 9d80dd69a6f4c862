"""``n5_default``: arrays that TensorStore's N5 driver reads and writes too."""

import json
import struct

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorstore
from hypothesis import given

import gpustore
from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype
from gpustore.errors import CorruptChunkError, MetadataError
from gpustore.metadata.named_configuration import NamedConfiguration
from tests.matrix import each

SHAPE, CHUNKS = (7, 5, 4), (3, 2, 4)
BIG = {"name": "bytes", "configuration": {"endian": "big"}}


def named(name, **configuration):
    return {"name": name, "configuration": configuration}


COMPRESSIONS = {
    "raw": ({"type": "raw"}, []),
    "gzip": ({"type": "gzip", "level": 3, "useZlib": False}, [named("gzip", level=3)]),
    "blosc": (
        {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
        [named("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=2, blocksize=0)],
    ),
}
"""As N5 has them, and as Zarr v3 has."""


def codecs_of(rank, *behind, endian="big"):
    order = list(reversed(range(rank)))
    bytes_ = named("bytes", endian=endian) if endian else {"name": "bytes"}
    return [named("n5_default", codecs=[named("transpose", order=order), bytes_, *behind])]


def chain_of(name, shape, *behind, endian="big"):
    codecs = NamedConfiguration.list_from_json(codecs_of(len(shape), *behind, endian=endian))
    return resolve_v3(codecs, dtype(name), shape)


def elements_of(name):
    count = int(np.prod(SHAPE))
    found = np.arange(1, count + 1) * (1.5 if "float" in name else 1)
    return found.astype(name).reshape(SHAPE)


def metadata_of(name, behind=()):
    return {
        **{"shape": list(SHAPE), "data_type": name, "codecs": codecs_of(len(SHAPE), *behind)},
        "chunk_grid": named("regular", chunk_shape=list(CHUNKS)),
        "chunk_key_encoding": named("v2", separator="/"),
        "fill_value": 0,
    }


@pytest.mark.matrix("costly")
@each("compression", COMPRESSIONS)
@each("name", ["uint8", "int16", "uint32", "int64", "float32", "float64"])
def test_one_folder_is_both(tmp_path, name, compression):
    theirs_json, ours_json = COMPRESSIONS[compression]
    data = elements_of(name)
    kvstore = {"driver": "file", "path": f"{tmp_path}/"}
    theirs = tensorstore.open(
        {
            **{"driver": "n5", "kvstore": kvstore},
            "metadata": {
                **{"dimensions": list(SHAPE), "blockSize": list(CHUNKS), "dataType": name},
                "compression": theirs_json,
            },
        },
        create=True,
    ).result()
    theirs[...] = data
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/"}
    spec["metadata"] = metadata_of(name, ours_json)
    ours = gpustore.open(spec, create=True).result()
    assert np.array_equal(ours.read().result(), data)
    assert np.array_equal(ours[5:0:-2, 1:4, ::3].read().result(), data[5:0:-2, 1:4, ::3])
    blocks = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.suffix != ".json" and p.is_file()}
    assert len(blocks) == 9
    ours[...] = data
    if compression == "raw":
        assert blocks == {path: path.read_bytes() for path in blocks}
    ours[1:6, 2:] = -data[1:6, 2:] if "uint" not in name else data[:5, 2:]
    again = tensorstore.open(
        {"driver": "n5", "kvstore": kvstore}, context=tensorstore.Context()
    ).result()
    assert np.array_equal(again.read().result(), ours.read().result())
    assert not np.array_equal(ours.read().result(), data)
    assert json.loads((tmp_path / "zarr.json").read_text())["codecs"][0]["name"] == "n5_default"


def block(shape, elements, mode=0):
    header = struct.pack(f">HH{len(shape)}I", mode, len(shape), *shape)
    return header + elements.T.astype(elements.dtype.newbyteorder(">")).tobytes()


@given(st.lists(st.integers(1, 6), min_size=0, max_size=4), st.data())
def test_blocks_of_any_shape(shape, data):
    """Blocks may be cut off at the edges, as Java writes them, or reach beyond."""
    sizes = [data.draw(st.integers(1, 8)) for _ in shape]
    elements = np.arange(1, 1 + int(np.prod(sizes)), dtype=np.int16).reshape(sizes)
    chain = chain_of("int16", tuple(shape))
    expected = np.zeros(shape, np.int16)
    part = tuple(slice(min(pair)) for pair in zip(shape, sizes, strict=True))
    expected[part] = elements[part]
    value = block(sizes, elements)
    assert bytes(chain.decode(value)) == expected.tobytes()
    out = memoryview(bytearray(b"\xaa" * expected.nbytes))
    assert bytes(chain.decode(value, out)) == bytes(out) == expected.tobytes()
    encoded = bytes(chain.encode(expected.tobytes()))
    assert encoded == block(shape, expected)


@given(st.binary(max_size=60), st.integers(0, 40), st.integers(0, 40))
def test_any_bytes_are_elements_or_damage(more, start, kept):
    chain = chain_of("int16", (3, 4), named("gzip", level=1))
    encoded = bytes(chain.encode(bytes(range(24))))
    try:
        found = chain.decode(encoded[:start] + more + encoded[kept:])
    except CorruptChunkError:
        return
    assert len(found) == 24


ELEMENTS = np.arange(6, dtype=np.int16).reshape(2, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (block((2, 3), ELEMENTS)[:3], "Expected header of length 12"),
        (block((2, 3), ELEMENTS, mode=1), "varlength chunks not supported"),
        (block((2, 3), ELEMENTS, mode=2), "Unexpected N5 chunk mode: 2"),
        (
            block((6,), ELEMENTS.reshape(6)) + bytes(4),
            "Received chunk with 1 dimensions but expected 2",
        ),
        (block((2, 3), ELEMENTS)[:-1], "Not enough data"),
        (block((2, 3), ELEMENTS) + b"\0", "End of data expected"),
        (block((2**16, 2**16), ELEMENTS), "exceeds blockSize of"),
        (block((2**32 - 1, 2**32 - 1), ELEMENTS), "exceeds blockSize of"),
    ],
)
def test_damaged_blocks(value, message):
    with pytest.raises(CorruptChunkError, match=message) as caught:
        chain_of("int16", (2, 3)).decode(value)
    assert caught.value.codec == "n5_default"


TRANSPOSE = named("transpose", order=[1, 0])


@each(
    ("name", "codecs", "message"),
    [
        ("int16", [BIG], 'one "transpose"'),
        ("int16", [TRANSPOSE, TRANSPOSE, BIG], 'one "transpose"'),
        ("int16", [named("transpose", order=[0, 1]), BIG], "all dimensions reversed"),
        ("int16", [TRANSPOSE, named("bytes", endian="little")], "big endian"),
        ("int16", [TRANSPOSE, {"name": "bytes"}], 'need "endian"'),
        ("int16", [TRANSPOSE, {"name": "packbits"}], "big endian"),
        ("int16", [TRANSPOSE], "array -> bytes codec must be"),
        ("int16", [TRANSPOSE, BIG, {"name": "crc32c"}, {"name": "crc32c"}], "at most one"),
        ("float16", [TRANSPOSE, BIG], "not in N5"),
        ("bool", [TRANSPOSE, {"name": "bytes"}], "not in N5"),
    ],
)
def test_invalid_options_are_refused(name, codecs, message):
    with pytest.raises(MetadataError, match=message):
        resolve_v3([NamedConfiguration("n5_default", {"codecs": codecs})], dtype(name), (2, 3))


def test_bytes_need_no_order():
    chain = chain_of("uint8", (2, 3), endian=None)
    assert bytes(chain.decode(chain.encode(bytes(range(6))))) == bytes(range(6))


def test_blocks_cut_off_at_edges_have_edges_in_rectilinear_grids(tmp_path):
    """Their chunks are as large as those blocks."""
    data = elements_of("int16")
    metadata = metadata_of("int16")
    edges = [[3, 3, 1], [2, 2, 1], [4]]
    metadata["chunk_grid"] = named("rectilinear", kind="inline", chunk_shapes=edges)
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    store[...] = data
    assert np.array_equal(store.read().result(), data)
    assert (tmp_path / "2/2/0").read_bytes() == block((1, 1, 4), data[6:, 4:])
    (tmp_path / "2/2/0").write_bytes(block(CHUNKS, np.resize(data[6:, 4:], CHUNKS)))
    assert np.array_equal(store.read().result()[6:, 4:], np.resize(data[6:, 4:], CHUNKS)[:1, :1])
