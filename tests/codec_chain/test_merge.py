"""Parsing, merging and completing codecs against TensorStore on the same specs."""

import json

import pytest
import tensorstore

from gpustore import registry
from gpustore.codec_chain.chain_spec import parse_v3
from gpustore.codec_chain.compressor import complete_v2, merge_v2, parse_v2
from gpustore.codec_chain.merge import complete_v3, merge_v3
from gpustore.data_types.dtype import DTYPES
from gpustore.errors import MetadataError, MismatchError
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.metadata.zarr2_member import UNSET
from tests.matrix import each


def named(codecs):
    return None if codecs is None else NamedConfiguration.list_from_json(codecs)


def to_json(codecs):
    return None if codecs is None else [codec.to_json() for codec in codecs]


def attempt(function, *arguments, **keywords):
    """What a call of TensorStore returns, and the message of its error."""
    try:
        return function(*arguments, **keywords), None
    except ValueError as error:
        return None, str(error)


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


def created(spec, key, **keywords):
    """The metadata TensorStore writes for a new array."""
    context = tensorstore.Context()
    spec = {**spec, "kvstore": "memory://"}
    tensorstore.open(spec, create=True, context=context, **keywords).result()
    kvstore = tensorstore.KvStore.open("memory://", context=context).result()
    return json.loads(kvstore.read(key).result().value)


def created_v3(codecs, dtype, **keywords):
    metadata = {"shape": [4], "data_type": dtype}
    if codecs is not None:
        metadata["codecs"] = codecs
    return created({"driver": "zarr3", "metadata": metadata}, "zarr.json", **keywords)["codecs"]


def created_v2(members, **keywords):
    metadata = {"shape": [4], "dtype": "<u2", **members}
    return created({"driver": "zarr", "metadata": metadata}, ".zarray", **keywords)["compressor"]


def parsed_v3(codecs, *, stored=False):
    return to_json(parse_v3(named(codecs), stored=stored))


PARTIAL = [
    None,
    [],
    ["bytes"],
    [codec("bytes", endian="big")],
    ["gzip"],
    [codec("gzip", level=0)],
    [codec("gzip", level=3.0)],
    ["zstd"],
    [codec("zstd", level=-131072)],
    [codec("zstd", checksum=True)],
    ["crc32c"],
    ["blosc"],
    [codec("blosc", shuffle="noshuffle")],
    [codec("blosc", shuffle="noshuffle", typesize=4)],
    [codec("blosc", shuffle="bitshuffle", cname="zstd", clevel=9)],
    [codec("blosc", typesize=3)],
    [codec("blosc", typesize=1)],
    [codec("blosc", blocksize=4096, cname="snappy")],
    ["gzip", "blosc"],
    ["crc32c", "blosc"],
    ["blosc", "blosc", "crc32c"],
    ["gzip", codec("blosc", typesize=2)],
]


@each("dtype", ["bool", "int4", "uint8", "uint16", "bfloat16", "complex128"])
@each("codecs", PARTIAL)
def test_completes_v3_as_tensorstore_does(codecs, dtype):
    completed = complete_v3(named(codecs), DTYPES[dtype], 1)
    assert to_json(completed) == created_v3(codecs, dtype)
    assert parse_v3(completed, stored=True) == completed


def test_a_typesize_that_cannot_be_inferred_must_be_given():
    codecs = ["gzip", codec("blosc", shuffle="shuffle")]
    with pytest.raises(MetadataError) as caught:
        complete_v3(named(codecs), DTYPES["uint16"], 1)
    start = (
        'Error resolving codec spec through codec {"configuration":{"shuffle":"shuffle"},'
        '"name":"blosc"}: typesize must be specified explicitly because inferred itemsize '
    )
    assert str(caught.value).startswith(start)
    with pytest.raises(ValueError, match="typesize must be specified explicitly"):
        created_v3(codecs, "uint16")


WRONG = [
    ["lz4"],
    [codec("numcodecs.pickle")],
    [codec("zlib")],
    [codec("gzip", level=10)],
    [codec("gzip", level=-1)],
    [codec("gzip", level=True)],
    [codec("gzip", level=1.5)],
    [codec("gzip", level="5")],
    [codec("gzip", x=1)],
    [codec("zstd", level=23)],
    [codec("zstd", level=-131073)],
    [codec("zstd", checksum=1)],
    [codec("blosc", cname="foo")],
    [codec("blosc", cname="")],
    [codec("blosc", clevel=10)],
    [codec("blosc", shuffle=1)],
    [codec("blosc", shuffle="auto")],
    [codec("blosc", typesize=0)],
    [codec("blosc", typesize=256)],
    [codec("blosc", blocksize=2**31)],
    [codec("bytes", endian="middle")],
    [codec("bytes", endian=None)],
    [codec("crc32c", a=1)],
    ["crc32c", codec("crc32c", b=1)],
    ["gzip", "bytes"],
    ["bytes", "bytes"],
    ["bytes", "gzip", codec("bytes", endian="big")],
]


@each("codecs", WRONG)
def test_refuses_wrong_v3_constraints_in_tensorstores_words(codecs):
    with pytest.raises(ValueError, match="Error parsing") as theirs:
        created_v3(codecs, "uint16")
    with pytest.raises(MetadataError) as ours:
        parse_v3(named(codecs), stored=False)
    expected = str(theirs.value).removeprefix('Error parsing object member "metadata": ')
    assert str(ours.value).startswith(expected)


@pytest.mark.parametrize(
    ("parse", "member", "some"),
    [
        (lambda name: parse_v3(named([name]), stored=False), "name", "numcodecs.lz4 vlen-utf8"),
        (lambda name: parse_v2({"id": name}, stored=True), "id", "lz4 bz2 blosc"),
    ],
    ids=["v3", "v2"],
)
def test_an_unknown_codec_suggests_known_ones(parse, member, some):
    expected = f'Error parsing object member "{member}": "%s" is not registered; '
    with pytest.raises(MetadataError, match=expected % "gzpi" + 'did you mean "gzip"'):
        parse("gzpi")
    with pytest.raises(MetadataError, match=expected % "pickle" + "known: ") as caught:
        parse("pickle")
    known = str(caught.value).partition("known: ")[2].split(", ")
    assert {"gzip", *some.split()} <= set(known)
    assert all(registry.find("codecs", name.removeprefix("numcodecs.")) for name in known)


@pytest.mark.parametrize("name", ["../codecs/gzip", "_deflate", "base", "chain", "", "merge"])
def test_only_registered_names_are_looked_up(name):
    with pytest.raises(MetadataError, match="is not registered"):
        parse_v3([NamedConfiguration(name)], stored=False)
    with pytest.raises(MetadataError, match="is not registered"):
        parse_v2({"id": name}, stored=True)


STORED = [
    [],
    [{"name": "bytes"}],
    [{"name": "gzip", "configuration": {"level": 1}}, codec("bytes", endian="little")],
    [codec("bytes", endian="little"), codec("zstd", level=2)],
    [codec("bytes", endian="little"), {"name": "crc32c"}],
    [codec("bytes", endian="little"), {"name": "blosc"}],
    *(
        [codec("bytes", endian="little"), codec("blosc", **options)]
        for options in (
            {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
            {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0},
            {"cname": "lz4", "clevel": 5, "shuffle": "noshuffle", "blocksize": 0},
            {"cname": "lz4", "clevel": 5, "shuffle": "noshuffle"},
            {"cname": "lz4", "clevel": 5, "typesize": 2, "blocksize": 0},
            {"cname": "lz4", "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
        )
    ),
]


def opened_v3(codecs):
    """What TensorStore makes of stored codecs: JSON, or the message of its error."""
    context = tensorstore.Context()
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "uint8",
        "chunk_grid": codec("regular", chunk_shape=[4]),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": codecs,
    }
    kvstore = tensorstore.KvStore.open("memory://", context=context).result()
    kvstore.write("zarr.json", json.dumps(metadata)).result()
    spec = {"driver": "zarr3", "kvstore": "memory://"}
    return tensorstore.open(spec, context=context).result().codec.to_json()["codecs"]


@each("codecs", STORED)
def test_stored_codecs_must_say_what_tensorstore_wants(codecs):
    expected, theirs = attempt(opened_v3, codecs)
    if theirs is None:
        assert parsed_v3(codecs, stored=True) == expected
        return
    with pytest.raises(MetadataError) as ours:
        parse_v3(named(codecs), stored=True)
    # Where a number is missing TensorStore says that it received "<discarded>".
    found = str(ours.value).replace("but member is missing", "but received: <discarded>")
    assert str(ours.value) in theirs or found in theirs


@pytest.mark.parametrize(
    ("stored", "level"), [({"name": "gzip"}, 6), (codec("zstd", checksum=True), 3)]
)
def test_stored_level_may_be_missing_because_decoding_needs_none(stored, level):
    codecs = [codec("bytes", endian="little"), stored]
    _, theirs = attempt(opened_v3, codecs)
    assert '"level"' in theirs
    assert parsed_v3(codecs, stored=True)[1]["configuration"]["level"] == level


PAIRS = [
    ([], []),
    (["gzip"], [codec("gzip", level=3)]),
    ([codec("gzip", level=2)], [codec("gzip", level=3)]),
    ([codec("gzip", level=2)], [codec("gzip", level=2)]),
    (["bytes"], ["gzip"]),
    (["gzip"], ["zstd"]),
    (["gzip"], ["bytes"]),
    (["gzip"], ["bytes", "gzip"]),
    (["gzip", "crc32c"], ["bytes", "gzip"]),
    ([codec("bytes", endian="big")], ["bytes"]),
    ([codec("bytes", endian="big")], [codec("bytes", endian="little")]),
    ([codec("blosc", cname="zstd")], [codec("blosc", clevel=3)]),
    ([codec("blosc", cname="zstd")], [codec("blosc", cname="lz4")]),
    ([codec("blosc", shuffle="shuffle")], [codec("blosc", shuffle="noshuffle")]),
    ([codec("blosc", typesize=2)], [codec("blosc", typesize=3)]),
    ([codec("zstd", checksum=True)], [codec("zstd", checksum=False)]),
    ([codec("zstd", checksum=True)], [codec("zstd", level=3)]),
    (["crc32c"], ["crc32c"]),
    (["bytes", "gzip", "crc32c"], ["zstd", "crc32c"]),
    (["bytes"], ["bytes", codec("gzip", level=3)]),
]


@each(("a", "b"), PAIRS)
def test_merges_v3_as_tensorstore_does(a, b):
    constraint = tensorstore.CodecSpec({"driver": "zarr3", "codecs": b})
    expected, theirs = attempt(created_v3, a, "uint16", codec=constraint)
    if theirs is None:
        merged = merge_v3(named(a), named(b))
        assert to_json(complete_v3(merged, DTYPES["uint16"], 1)) == expected
        assert to_json(merge_v3(named(b), named(a))) == to_json(merged)
        return
    with pytest.raises(MismatchError):
        merge_v3(named(b), named(a))
    with pytest.raises(MismatchError) as ours:
        merge_v3(named(a), named(b))
    assert f": {ours.value.text} [" in theirs


def test_no_constraint_leaves_the_other():
    assert merge_v3(None, None) is None
    gzip = [{"name": "gzip"}]
    assert to_json(merge_v3(named(gzip), None)) == gzip
    assert to_json(merge_v3(None, named(gzip))) == gzip
    with pytest.raises(MetadataError, match="is not registered"):
        merge_v3(None, named(["lz4"]))


V2_PARTIAL = [
    {},
    {"compressor": None},
    {"compressor": {"id": "blosc"}},
    {"compressor": {"id": "blosc", "shuffle": 2, "cname": "zstd"}},
    {"compressor": {"id": "blosc", "blocksize": 2**40}},
    {"compressor": {"id": "zlib"}},
    {"compressor": {"id": "zlib", "level": 9}},
    {"compressor": {"id": "gzip"}},
    {"compressor": {"id": "bz2"}},
    {"compressor": {"id": "zstd"}},
    {"compressor": {"id": "zstd", "level": -5}},
]


@each("members", V2_PARTIAL)
def test_completes_v2_as_tensorstore_does(members):
    assert complete_v2(members.get("compressor", UNSET)) == created_v2(members)


V2_WRONG = [
    {"id": "vlen-utf8"},
    {"id": "crc32d"},
    {"id": "bytes"},
    {"id": "msgpack"},
    {"id": "zlib", "level": -1},
    {"id": "zlib", "level": 10},
    {"id": "bz2", "level": 0},
    {"id": "zstd", "level": 23},
    {"id": "blosc", "shuffle": 3},
    {"id": "blosc", "cname": "x"},
    {"id": "blosc", "clevel": 10},
    {"id": "gzip", "z": 1},
    {"id": "gzip", "z": 1, "a": 2},
    {"level": 1},
    {"id": 5},
]


@each("compressor", V2_WRONG)
def test_refuses_wrong_v2_constraints_in_tensorstores_words(compressor):
    with pytest.raises(ValueError, match="Error parsing") as theirs:
        created_v2({"compressor": compressor})
    with pytest.raises(MetadataError) as ours:
        parse_v2(compressor, stored=False)
    expected = str(theirs.value).removeprefix('Error parsing object member "metadata": ')
    assert str(ours.value).startswith(expected)


_BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}


@pytest.mark.parametrize(
    "compressor",
    [
        {"id": "zstd", "level": 0, "checksum": False},
        {"id": "zstd", "level": 0, "checksum": True},
        {
            "id": "blosc",
            "cname": "lz4",
            "clevel": 5,
            "shuffle": 1,
            "blocksize": 0,
            "typesize": None,
        },
        {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0, "typesize": 4},
    ],
    ids=str,
)
def test_reads_what_numcodecs_writes_and_tensorstore_refuses(compressor):
    assert parse_v2(compressor, stored=True) == compressor


V2_PAIRS = [
    ({"compressor": {"id": "zlib"}}, {"compressor": {"id": "zlib", "level": 1}}),
    ({"compressor": {"id": "zlib"}}, {"compressor": {"id": "zlib", "level": 2}}),
    ({"compressor": {"id": "zlib"}}, {"compressor": {"id": "gzip"}}),
    ({"compressor": {"id": "zlib"}}, {"compressor": None}),
    ({"compressor": None}, {"compressor": None}),
    ({}, {"compressor": None}),
    ({}, {"compressor": {"id": "zstd"}}),
    ({"compressor": {"id": "zlib"}}, {}),
    ({}, {}),
]


@each(("a", "b"), V2_PAIRS)
def test_merges_v2_as_tensorstore_does(a, b):
    constraint = tensorstore.CodecSpec({"driver": "zarr", **b})
    mine, other = (members.get("compressor", UNSET) for members in (a, b))
    expected, theirs = attempt(created_v2, a, codec=constraint)
    if theirs is None:
        assert complete_v2(merge_v2(mine, other)) == expected
        return
    assert '"compressor" does not match' in theirs
    with pytest.raises(MismatchError, match=r'^"compressor" does not match: '):
        merge_v2(mine, other)


def test_options_that_are_both_null_agree():
    one = [NamedConfiguration("packbits", {"first_bit": None, "last_bit": 3})]
    assert merge_v3(one, one) == parse_v3(one, stored=False)
    with pytest.raises(MismatchError, match='Incompatible "first_bit": null vs 1'):
        merge_v3(one, [NamedConfiguration("packbits", {"first_bit": 1})])
