"""Stored form of new arrays under random constraints, against TensorStore.

Metadata, a second codec chain, an inner order and chunk shapes constrain each other; what is left
open is chosen. Both libraries must store the same ``zarr.json`` or ``.zarray``, or refuse; which of
several contradictions is named first is not the same.
"""

import json

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from tests.matrix import each


def codec(name, **options):
    """A codec by its name alone, where it has no options."""
    return {"name": name, "configuration": options} if options else name


levels = st.sampled_from([None, None, 1, 2])
some = st.sampled_from


@st.composite
def stages(draw):
    """bytes -> bytes codecs, drawn so that two chains often agree."""
    if draw(st.booleans()):
        return []
    gzip = draw(levels)
    chain = [codec("gzip", **({} if gzip is None else {"level": gzip}))]
    kind = draw(some(["gzip", "gzip", "zstd", "blosc", "gzip, crc32c"]))
    if kind == "zstd":
        chain = [codec("zstd", **draw(some([{}, {"level": 1}, {"checksum": True}])))]
    elif kind == "blosc":
        options = [{}, {"cname": "zstd"}, {"clevel": 3}, {"shuffle": "bitshuffle"}]
        chain = [codec("blosc", **draw(some(options)))]
    elif kind == "gzip, crc32c":
        chain.append("crc32c")
    return chain


orders = some([[0, 1, 2], [2, 1, 0], [2, 1, 0], [1, 0, 2], [2, 0, 1], "C", "F", [0, 0, 1], [1, 0]])


@st.composite
def chains(draw, depth=2):
    chain = [
        codec("transpose", order=draw(orders)) for _ in range(draw(some([0, 0, 0, 0, 1, 1, 2])))
    ]
    layout = draw(some([None, None, "bytes", "big", "shard", "shard"]))
    if layout == "shard" and depth:
        options = {}
        if draw(st.booleans()):
            options["chunk_shape"] = draw(some([[2, 2, 2], [2, 2, 2], [4, 2, 1], [3, 3, 3], [2]]))
        if draw(st.booleans()):
            options["codecs"] = draw(chains(depth=depth - 1))
        if draw(st.integers(0, 3)) == 0:
            options["index_location"] = draw(some(["start", "end"]))
        if draw(st.integers(0, 3)) == 0:
            options["index_codecs"] = draw(
                some([["bytes"], ["bytes", "crc32c"], ["crc32c"], [codec("bytes", endian="big")]])
            )
        chain.append(codec("sharding_indexed", **options))
        if draw(st.integers(0, 9)):
            return chain
    elif layout is not None:
        chain.append(codec("bytes", **({"endian": "big"} if layout == "big" else {})))
    return chain + draw(stages())


shapes = some([[4, 4, 4], [4, 4, 4], [2, 2, 2], [4, None, 2], [8, 4, 2], [-1, 2, 2], [None] * 3])


def layouts(*, two_levels):
    usages = ["chunk", "write_chunk", "read_chunk"] if two_levels else ["chunk"]
    optional = {}
    for usage in usages:
        for soft in ("", "_soft_constraint"):
            optional[f"{usage}_shape{soft}"] = shapes
            optional[f"{usage}_elements{soft}"] = some([8, 16, 64])
        optional[f"{usage}_aspect_ratio"] = some([[1, 1, 1], [1, 2, 1], [None, 2, None]])
    for soft in ("", "_soft_constraint"):
        optional[f"inner_order{soft}"] = some([[0, 1, 2], [2, 1, 0], [2, 1, 0], [1, 0, 2]])
    keys = st.lists(some(sorted(optional)), unique=True, max_size=3)
    return keys.flatmap(lambda names: st.fixed_dictionaries({n: optional[n] for n in names}))


maybe_chain = st.none() | chains()


@st.composite
def v3_cases(draw):
    metadata = {}
    for name, values in (
        ("codecs", maybe_chain),
        (
            "chunk_grid",
            st.none() | some([codec("regular", chunk_shape=s) for s in ([4, 4, 4], [4, 2, 4])]),
        ),
    ):
        value = draw(values)
        if value is not None:
            metadata[name] = value
    return {
        "driver": "zarr3",
        "metadata": metadata,
        "codecs": draw(st.lists(chains(), max_size=2)),
        "layouts": draw(st.lists(layouts(two_levels=True), max_size=2)),
        "dtype": draw(some(["uint16", "uint16", "uint8", "complex64"])),
    }


@st.composite
def v2_cases(draw):
    compressors = some([None, {"id": "zlib"}, {"id": "zlib", "level": 1}, {"id": "blosc"}])
    optional = {
        "compressor": compressors,
        "order": some(["C", "F"]),
        "chunks": some([[4, 4, 4], [4, 2, 4]]),
    }
    return {
        "driver": "zarr",
        "metadata": draw(st.fixed_dictionaries({}, optional=optional)),
        "codecs": [
            {"compressor": c} if given else {}
            for c, given in draw(st.lists(st.tuples(compressors, st.booleans()), max_size=2))
        ],
        "layouts": draw(st.lists(layouts(two_levels=False), max_size=2)),
        "dtype": draw(some(["uint16", "uint8"])),
    }


def stored(library, case):
    """The metadata that is stored, the chunk layout and the codec; or that it is refused."""
    driver = case["driver"]
    context = library.Context()
    name = "zarr.json" if driver == "zarr3" else ".zarray"
    try:
        schema = library.Schema(dtype=case["dtype"], shape=[8, 8, 8])
        for constraints in case["codecs"]:
            if driver == "zarr3":
                constraints = {"codecs": constraints}
            schema.update(codec=library.CodecSpec({"driver": driver, **constraints}))
        for layout in case["layouts"]:
            schema.update(chunk_layout=library.ChunkLayout(**layout))
        spec = {"driver": driver, "kvstore": "memory://", "metadata": case["metadata"]}
        store = library.open(spec, create=True, context=context, schema=schema).result()
        kvstore = library.KvStore.open("memory://", context=context).result()
        return (
            json.loads(kvstore.read(name).result().value),
            store.chunk_layout.to_json(),
            store.codec.to_json(),
        )
    except (ValueError, NotImplementedError):
        return "refused"


SHARDS = codec("sharding_indexed", chunk_shape=[4, 4, 4])
FULL_SHARDS = codec("sharding_indexed", chunk_shape=[4, 2, 1], codecs=["bytes"])
FOUND = {
    "codecs without shards leave one level of chunks": {
        "metadata": {"codecs": ["gzip"]},
        "layouts": [{"read_chunk_shape": [4, 4, 4]}],
    },
    "write constraints come first in one level of chunks": {
        "metadata": {"codecs": []},
        "layouts": [
            {"read_chunk_shape_soft_constraint": [2, 2, 2]},
            {"chunk_shape_soft_constraint": [-1, 2, 2]},
        ],
    },
    "codecs of metadata are not those of inner chunks": {
        "metadata": {"codecs": [codec("gzip", level=2)]},
        "codecs": [["sharding_indexed"]],
    },
    "a transpose before shards does not let others inside": {
        "metadata": {"codecs": ["bytes"]},
        "codecs": [[codec("transpose", order="C"), "sharding_indexed"]],
    },
    "codecs of inner chunks in metadata are whole": {
        "metadata": {"codecs": [codec("sharding_indexed", codecs=[])]},
        "codecs": [[codec("transpose", order="C")]],
    },
    "fewer levels of shards are inside": {
        "codecs": [[codec("sharding_indexed", codecs=[FULL_SHARDS])], [SHARDS]],
    },
    "shards of open codecs do not say the read chunks": {
        "metadata": {"codecs": [codec("sharding_indexed", chunk_shape=[3, 3, 3])]},
    },
    "shards around shards": {
        "metadata": {"codecs": [codec("sharding_indexed", codecs=[FULL_SHARDS])]},
        "layouts": [{"write_chunk_shape": [8, 4, 4]}],
    },
    "shards of a codec against a hard shape": {
        "codecs": [[FULL_SHARDS]],
        "layouts": [{"read_chunk_shape": [8, 4, 2]}],
    },
}


@each("constraints", FOUND.values(), ids=FOUND)
def test_constraints_that_once_came_to_something_else(constraints):
    case = {"driver": "zarr3", "metadata": {}, "codecs": [], "layouts": [], "dtype": "uint16"}
    case |= constraints
    assert stored(gpustore, case) == stored(ts, case)


@pytest.mark.matrix
@given(v3_cases())
def test_zarr3_constraints_come_to_tensorstores_metadata(case):
    assert stored(gpustore, case) == stored(ts, case)


@pytest.mark.matrix
@given(v2_cases())
def test_zarr2_constraints_come_to_tensorstores_metadata(case):
    assert stored(gpustore, case) == stored(ts, case)
