"""Values in the shards of Neuroglancer, with TensorStore as oracle.

Keys are numbers of 8 bytes, so the contract of other kvstores, with its keys of any text, is not
taken over: the tests here compare random programs with TensorStore and with a dict.
"""

import contextlib
import pickle
import struct
import threading

import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.errors import GpustoreError
from gpustore.kvstores.base import Base
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.kvstores.spec_contract import check_spec, check_wrong_spec
from tests.matrix import each, share
from tests.tensorstore_process import TensorStoreProcess

METADATA = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "hash": "identity",
    "preshift_bits": 1,
    "minishard_bits": 2,
    "shard_bits": 1,
    "data_encoding": "raw",
    "minishard_index_encoding": "raw",
}
SPEC = {
    "driver": "neuroglancer_uint64_sharded",
    "base": "memory://shards/",
    "metadata": METADATA,
}


def key(number):
    return struct.pack(">Q", number)


def opened(library=gpustore, base="memory://shards/", context=None, **changes):
    spec = {**SPEC, "base": base, "metadata": METADATA | changes}
    return library.KvStore.open(spec, context=context).result()


def test_the_base_is_a_directory():
    ours, theirs = (
        library.KvStore.Spec({**SPEC, "base": "memory://a"}) for library in (gpustore, ts)
    )
    assert ours.to_json() == theirs.to_json()


NUMBERS = st.integers(0, 20) | st.sampled_from([2**63, 2**64 - 1, 0xC3A9, 0x80FF_FFFF_0000])
VALUES = st.binary(max_size=40)
SHARDINGS = st.fixed_dictionaries(
    {
        "hash": st.sampled_from(["identity", "murmurhash3_x86_128"]),
        "preshift_bits": st.integers(0, 3),
        "minishard_bits": st.integers(0, 3),
        "shard_bits": st.integers(0, 5),
        "minishard_index_encoding": st.sampled_from(["raw", "gzip"]),
    }
)
WRITES = st.lists(st.dictionaries(NUMBERS, st.none() | VALUES, max_size=8), max_size=4)


def stored(library, writes, sharding, in_transactions):
    """Return the shards after some batches of writes, and what the kvstore says of them."""
    kvstore = opened(library, **sharding)
    for batch in writes:
        with library.Transaction() if in_transactions else contextlib.nullcontext() as one:
            inside = kvstore if one is None else kvstore.with_transaction(one)
            for number, value in batch.items():
                inside.write(key(number), value).result()
    shards = {name: kvstore.base[name] for name in kvstore.base.list().result()}
    values = {name: kvstore[name] for name in kvstore.list().result()}
    return shards, values


def read_all(library, base, numbers, changes):
    """Return the sorted names of all values, and the values of some numbers."""
    kvstore = opened(library, base, **changes)
    return sorted(kvstore.list().result()), {number: kvstore[key(number)] for number in numbers}


def outcome(library, program):
    """What a function of this module returns; for the child process."""
    name, *arguments = program
    return {"stored": stored, "read_all": read_all}[name](library, *arguments)


@pytest.fixture(scope="module")
def in_tensorstore():
    """Call a function of this module with TensorStore, in a process of its own.

    In a ``list`` of TensorStore 0.1.86 two threads may each wait for the end of the other's
    callback, for ever, which no signal ends. Such a program is run again.
    """
    process = TensorStoreProcess(__name__)

    def run(*program):
        for _ in range(3):
            if (found := process.ask(program)) is not None:
                return found
        pytest.fail(f"TensorStore crashed or hung three times: {program}")

    yield run
    process.close()


@settings(max_examples=share(200))
@given(WRITES, SHARDINGS, st.booleans())
def test_shards_are_tensorstores_byte_for_byte(in_tensorstore, writes, sharding, in_transactions):
    sharding["minishard_index_encoding"] = "raw"  # Each library has its own compressor.
    found = stored(gpustore, writes, sharding, in_transactions)
    assert found == in_tensorstore("stored", writes, sharding, in_transactions)
    expected = {}
    for batch in writes:
        expected |= {key(number): value for number, value in batch.items()}
    assert found[1] == {name: value for name, value in expected.items() if value is not None}


@settings(max_examples=share(200))
@given(st.dictionaries(NUMBERS, VALUES, min_size=1), SHARDINGS, st.sampled_from(["raw", "gzip"]))
def test_values_are_exchanged_with_tensorstore(
    in_tensorstore, tmp_path_factory, values, sharding, encoding
):
    readers = {gpustore: in_tensorstore, ts: lambda *program: outcome(gpustore, program)}
    for writer, read in readers.items():
        base = f"file://{tmp_path_factory.mktemp('shards')}/"
        with writer.Transaction() as one:
            inside = opened(writer, base, data_encoding=encoding, **sharding).with_transaction(one)
            for number, value in values.items():
                inside[key(number)] = value
        changes = {"data_encoding": encoding, **sharding}
        found = read("read_all", base, list(values), changes)
        assert found == (sorted(map(key, values)), values)


RANGES = (slice(1, 3), slice(2, None), slice(None, 2), slice(-2, None), slice(0, 0), slice(1, 99))


@each("encoding", ["raw", "gzip"])
@each("span", RANGES)
def test_parts_are_those_of_the_value(encoding, span):
    found = []
    for library in (gpustore, ts):
        kvstore = opened(library, data_encoding=encoding)
        kvstore[key(3)] = b"hello"
        try:
            found.append(kvstore.read(key(3), byte_range=span).result().value)
        except ValueError as error:
            found.append(str(error).partition(" [")[0])
    assert found[0] == found[1]


@each("encoding", ["raw", "gzip"])
@each("nbytes", [0, 1, 7, 16, 10_000])
def test_bytes_before_a_value_are_those_that_are_stored(encoding, nbytes):
    found = []
    for library in (gpustore, ts):
        kvstore = opened(library, data_encoding=encoding, preshift_bits=5)
        with library.Transaction() as one:
            inside = kvstore.with_transaction(one)
            inside[key(1)] = b"fragments of a mesh"
            inside[key(2)] = b"manifest"
        long = key(2) + key(nbytes)
        try:
            found.append(kvstore.read(long).result().value)
        except ValueError as error:
            found.append("OUT_OF_RANGE" in str(error))
        assert kvstore.read(key(9) + key(4)).result().state == "missing"
        with pytest.raises(ValueError):  # noqa: PT011  every library in its words
            kvstore.write(long, b"").result()
    assert found[0] == found[1]
    if encoding == "raw" and nbytes == 7:
        assert found[0] == b" a mesh"


@each("wrong", [b"", b"a", b"123456789", b"1" * 17])
def test_keys_are_numbers_of_8_bytes(wrong):
    kvstore = opened()
    for operation in (kvstore.read, lambda name: kvstore.write(name, b"1")):
        with pytest.raises(gpustore.InvalidKeyError, match="a number of 8 bytes, big endian"):
            operation(wrong).result()


def test_a_path_is_the_begin_of_keys():
    kvstore = opened()
    kvstore[key(0x0102)] = b"1"
    inside = kvstore + b"\0\0\0\0\0\0\x01"
    assert inside[b"\x02"] == b"1"
    assert inside.list().result() == [b"\x02"]


def test_conditions_are_about_the_shard():
    kvstore = opened()
    first = kvstore.write(key(0), b"a").result().generation
    assert kvstore.read(key(0)).result().stamp.generation == first
    second = kvstore.write(key(1), b"b", if_equal=first).result().generation
    assert second
    assert kvstore.write(key(0), b"c", if_equal=first).result().generation == b""
    assert kvstore.read(key(0), if_not_equal=second).result().state == "unspecified"
    assert kvstore[key(0)] == b"a"


def test_a_shard_without_values_is_deleted():
    kvstore = opened()
    kvstore[key(0)] = b"1"
    assert kvstore.base.list().result() == [b"0.shard"]
    del kvstore[key(0)]
    del kvstore[key(5)]
    assert kvstore.base.list().result() == []


def over(rules, context=None):
    """Return a kvstore, and the one below, of which some operations go wrong."""
    spec = gpustore.KvStore.Spec(SPEC)
    context = context or Context()
    plain = spec.driver.base.open_driver(context)
    names = spec.driver.resource_ids
    driver = spec.driver.open_on(
        Base(FaultyKvStore(plain, rules), "shards/"), {name: context[name] for name in names}
    )
    return KvStore(driver)


def test_a_transaction_writes_each_shard_once():
    rules = [Rule(Fault.ERROR, "write", "0.shard", skip=1, times=1)]
    kvstore = over(rules)
    with gpustore.Transaction() as one:
        inside = kvstore.with_transaction(one)
        for number in range(500):
            inside[key(number * 16)] = b"%d" % number
    assert len(kvstore.list().result()) == 500
    with pytest.raises(gpustore.StoreIOError, match="injected"):  # This is the second write.
        kvstore[key(0)] = b"more"


def test_a_transaction_is_atomic_over_one_shard(in_tensorstore, tmp_path):
    changes = {"preshift_bits": 0, "minishard_bits": 1, "shard_bits": 1}
    for library in (gpustore, ts):
        base = f"file://{tmp_path}/{library.__name__}/"
        kvstore = opened(library, base, **changes)
        with library.Transaction(atomic=True) as one:
            inside = kvstore.with_transaction(one)
            inside[key(0)], inside[key(1)] = b"0", b"1"
        program = "read_all", base, [0, 1], changes
        found = in_tensorstore(*program) if library is ts else outcome(library, program)
        assert found == ([key(0), key(1)], {0: b"0", 1: b"1"})

        def written_to_two_shards(library=library, kvstore=kvstore):
            with library.Transaction(atomic=True) as one:
                for number in range(4):
                    kvstore.with_transaction(one)[key(number)] = b"2"

        with pytest.raises(ValueError, match="as single atomic transaction"):
            written_to_two_shards()
        assert kvstore[key(0)] == b"0"


OPERATIONS = st.lists(st.tuples(st.integers(0, 9), st.none() | VALUES), max_size=12)
RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from([Fault.ERROR, Fault.LOST_REPLY, Fault.SHORT_READ]),
        st.sampled_from(["read", "write", "list"]),
        skip=st.integers(0, 6),
        times=st.integers(1, 3),
    ),
    max_size=3,
)


@settings(max_examples=share(200))
@given(OPERATIONS, RULES)
def test_faults_of_the_base_are_errors_and_nothing_is_lost(operations, rules):
    context = Context()
    kvstore = over(
        [rule for rule in rules if rule.fault is not Fault.SHORT_READ or rule.operation == "read"],
        context,
    )
    possible = {}
    for number, value in operations:
        before = possible.get(number, {None})
        try:
            kvstore.write(key(number), value).result()
        except GpustoreError:
            possible[number] = before | {value}
        else:
            possible[number] = {value}
        with contextlib.suppress(GpustoreError):
            found = kvstore.read(key(number)).result()
            value = found.value if found.state == "value" else None
            assert value in possible[number]
            possible[number] = {value}
    sound = over([], context)
    for number, values in possible.items():
        found = sound.read(key(number)).result()
        assert (found.value if found.state == "value" else None) in values


@settings(max_examples=share(200))
@given(
    st.dictionaries(st.integers(0, 9), VALUES, min_size=1),
    st.integers(0, 1 << 20),
    st.integers(0, 255),
    st.booleans(),
    st.sampled_from(["raw", "gzip"]),
)
def test_damaged_shards_are_values_or_typed_errors(values, at, byte, cut, encoding):
    kvstore = opened(shard_bits=0, data_encoding=encoding, minishard_index_encoding=encoding)
    for number, value in values.items():
        kvstore[key(number)] = value
    shard = bytearray(kvstore.base["0.shard"])
    at %= len(shard)
    shard[at] = byte
    kvstore.base["0.shard"] = bytes(shard[:at] if cut else shard)
    again = opened(
        context=None, shard_bits=0, data_encoding=encoding, minishard_index_encoding=encoding
    )
    again.base["0.shard"] = kvstore.base["0.shard"]
    for operation in (*(lambda n=n: again.read(key(n)) for n in values), again.list):
        with contextlib.suppress(GpustoreError):
            operation().result()


def test_threads_lose_no_value():
    kvstore = opened(shard_bits=0)
    numbers = [range(start, 64, 8) for start in range(8)]

    def write(some):
        for number in some:
            kvstore[key(number)] = b"%d" % number

    threads = [threading.Thread(target=write, args=(some,)) for some in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: kvstore[key(number)] for number in range(64)} == {
        number: b"%d" % number for number in range(64)
    }


def test_specs_are_tensorstores(tmp_path):
    spec, _ = check_spec(SPEC | {"path": "\0" * 7}, "limits")
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(gpustore.UnsupportedError, match="URL representation not supported"):
        _ = spec.url
    bare = {name: METADATA[name] for name in METADATA if "encoding" not in name}
    check_spec(SPEC | {"metadata": bare}, "limits")
    kvstore = opened(base=f"file://{tmp_path}/place")  # Without a slash behind it.
    kvstore[key(1)] = b"1"
    assert [one.name for one in (tmp_path / "place").iterdir()] == ["0.shard"]
    with pytest.raises(gpustore.MetadataError, match="unsupported URL scheme"):
        gpustore.KvStore.Spec("memory://a/|neuroglancer_uint64_sharded:")


@each(
    "wrong",
    [
        SPEC | {"metadata": {}},
        SPEC | {"metadata": METADATA | {"hash": "none"}},
        SPEC | {"metadata": METADATA | {"shard_bits": 63}},
        SPEC | {"metadata": METADATA | {"more": 1}},
        {"driver": "neuroglancer_uint64_sharded", "metadata": METADATA},
    ],
)
def test_wrong_specs_are_told_in_tensorstores_words(wrong):
    check_wrong_spec(wrong)


@each("metadata", [None, "absent"])
def test_metadata_are_needed(metadata):
    wrong = SPEC | {"metadata": metadata}
    if metadata == "absent":
        del wrong["metadata"]
    with pytest.raises(gpustore.MetadataError, match="Expected object"):
        gpustore.KvStore.Spec(wrong)


def test_what_needs_ranges_or_an_order_is_refused():
    kvstore = opened()
    with pytest.raises(gpustore.UnsupportedError, match="does not support deleting ranges"):
        kvstore.delete_range(gpustore.KvStore.KeyRange()).result()


def test_shards_of_a_volume_are_read_by_number():
    context = gpustore.Context()
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": "memory://volume/",
        "multiscale_metadata": {"type": "image", "data_type": "uint8", "num_channels": 1},
        "scale_metadata": {
            "size": [8, 8, 8],
            "resolution": [1, 1, 1],
            "encoding": "raw",
            "chunk_size": [4, 4, 4],
            "key": "s0",
            "sharding": METADATA,
        },
    }
    volume = gpustore.open(spec, create=True, context=context).result()
    volume[4:, :4, :4] = 7
    kvstore = opened(base="memory://volume/s0/", context=context)
    assert kvstore.list().result() == [key(1)]
    assert kvstore[key(1)] == b"\7" * 64
