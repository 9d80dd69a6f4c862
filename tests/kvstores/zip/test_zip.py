"""The zip kvstore."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import io
import itertools
import os
import pickle
import re
import struct
import threading
import zipfile
import zlib

import pytest
import tensorstore

import gpustore
from gpustore.errors import (
    ConflictError,
    CorruptChunkError,
    InvalidKeyError,
    LimitError,
    MetadataError,
    StoreIOError,
    UnsupportedError,
)
from gpustore.kvstores.base import Base
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.http.pool import POOL
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.zip.directory import METHODS
from gpustore.runtime.context import Context
from gpustore.runtime.executor import shared
from tests.kvstores.contract import *
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.kvstores.http.http_server import HttpServer
from tests.kvstores.zip.archive import central, local, made, opened, patched
from tests.matrix import each
from tests.waiting import wait_until


@pytest.fixture
def make_store(tmp_path):
    count = iter(range(10**9))

    def make():
        base = {"driver": "file", "path": f"{tmp_path}/{next(count)}.zip", "file_io_sync": False}
        return KvStore.open({"driver": "zip", "base": base}).result()

    return make


def names(store):
    return [info.filename for info in zipfile.ZipFile(io.BytesIO(store.base[""])).infolist()]


def attempted(operation):
    """Return the result, or the text of the error."""
    try:
        return operation(), ""
    except ValueError as error:
        return None, str(error)


# --------------------------------------------------------------------------- specs


@each(
    "json",
    [
        {"base": "memory://a.zip"},
        {"base": {"driver": "memory", "path": "a.zip"}, "path": "x/"},
        {"base": "memory://a.zip", "compression": "zstd"},
        {"base": "memory://a.zip", "cache_pool": {"total_bytes_limit": 1000}},
        {"base": "memory://a.zip", "data_copy_concurrency": "data_copy_concurrency#x"},
        {"base": "memory://a.zip", "compression": "stored"},
        {"base": "memory://a.zip", "compression": None},
        {"base": "memory://a.zip", "compression": 8},
        {"base": "memory://a.zip", "other": 1},
        {"base": 3},
        {},
    ],
)
def test_specs_are_those_of_tensorstore(json):
    theirs, failure = attempted(lambda: tensorstore.KvStore.Spec({"driver": "zip", **json}))
    if failure:
        with pytest.raises(MetadataError, match=f"^{re.escape(failure)}"):
            KvStore.Spec({"driver": "zip", **json})
        return
    ours = KvStore.Spec({"driver": "zip", **json})
    assert repr(ours) == repr(theirs)
    assert ours.url == theirs.url
    added = {"limits": "limits", "duplicates": "error"}
    assert ours.to_json(include_defaults=True) == {
        **theirs.to_json(include_defaults=True),
        **added,
    }


@each(
    "url",
    [
        "memory://a.zip|zip:",
        "memory://a.zip|zip",
        "memory://a.zip|zip:x/y z",
        "memory://a.zip|zip:in.zip|zip:",
        "memory://a|zip://x",
        "memory://a|zip:x?q",
        "memory://a|zip:x#f",
        "zip:a",
    ],
)
def test_urls_are_those_of_tensorstore(url):
    theirs, failure = attempted(lambda: tensorstore.KvStore.Spec(url))
    if failure:
        with pytest.raises(MetadataError, match=f"^{re.escape(failure)}"):
            KvStore.Spec(url)
        return
    ours = KvStore.Spec(url)
    assert (ours.url, ours.path) == (theirs.url, theirs.path)
    assert ours.to_json() == theirs.to_json()


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", "a//b", "a\\b", "./a"])
def test_paths_that_are_no_keys_are_refused(path):
    with pytest.raises(InvalidKeyError):
        KvStore.Spec({"driver": "zip", "base": "memory://a.zip", "path": path})


def test_duplicates_takes_two_words():
    spec = {"driver": "zip", "base": "memory://a.zip", "duplicates": "last"}
    assert KvStore.Spec(spec).to_json()["duplicates"] == "last"
    with pytest.raises(MetadataError, match='member "duplicates": Expected one of "error", "last"'):
        KvStore.Spec({**spec, "duplicates": "first"})


def test_opened_store_prints_and_pickles_as_its_spec(make_store):
    store = make_store()
    store["a"] = b"1"
    again = pickle.loads(pickle.dumps(store))
    assert again["a"] == b"1"
    assert repr(again) == repr(store)
    assert store.driver.describe("a") == f'"a" in local file "{store.base.path}"'


@pytest.mark.parametrize("driver", ["zip", "ocdbt"])
def test_data_copy_concurrency_limits_reads_and_decoding(tmp_path, driver):
    """The limit applies to the kvstore's own operations, and to those of arrays in it."""
    base = f"file://{tmp_path}/a{'/' if driver == 'ocdbt' else ''}"
    plain = {"driver": driver, "base": base}
    bounded = {**plain, "data_copy_concurrency": {"limit": 1}}
    made = {"create": True, "dtype": "uint8", "shape": [4]}
    array = gpustore.open({"driver": "zarr3", "kvstore": bounded}, **made).result()
    again = gpustore.open({"driver": "zarr3", "kvstore": plain}).result()
    assert array.kvstore.driver.executor.limit == 1
    assert array._driver.executor is array.kvstore.driver.executor
    assert again.kvstore.driver.executor is shared()
    assert again._driver.executor is shared()
    array[...] = 7
    assert again.read().result().tolist() == [7] * 4


# --------------------------------------------------------------------------- reading


@each("method", [0, 8, 12, 93, 95])
@each("nbytes", [0, 1, 5000, 300_000])
def test_every_method_is_read_whole_and_in_parts(method, nbytes):
    value = bytes(i * i % 251 for i in range(nbytes))
    store = opened(encoded_archive(method, value))
    assert store["m"] == value
    half = nbytes // 2
    for start, stop in [(0, half), (half, nbytes), (half, None), (-half or nbytes, None)]:
        columns = store.read_many(ReadRequest(["m"], start=[start], stop=[stop]))
        columns.raise_first()
        assert bytes(columns.value[0]) == value[start:stop]
        assert columns.total == [nbytes]


def encoded_archive(method, value):
    """An archive with one member `m`, made by TensorStore where it can make it."""
    if method in (0, 8, 12):
        return made([("m", value)], method=method)
    compression = {93: "zstd", 95: "xz"}[method]
    store = tensorstore.KvStore.open(
        {"driver": "zip", "base": "memory://a.zip", "compression": compression}
    ).result()
    store["m"] = value
    data = store.base[""]
    assert struct.unpack_from("<H", data, 8)[0] == method
    return data


def test_many_parts_of_one_member_are_read_together():
    value = bytes(range(256)) * 500
    store = opened(made([("m", value)], method=8))
    starts = [5000, 0, 100_000, 7]
    columns = store.read_many(
        ReadRequest(["m"] * 4, start=starts, stop=[start + 10 for start in starts])
    )
    columns.raise_first()
    assert [bytes(v) for v in columns.value] == [value[s : s + 10] for s in starts]


def test_large_local_extra_fields_are_passed_over():
    info = zipfile.ZipInfo("m")
    info.extra = struct.pack("<HH", 0xABCD, 5000) + bytes(5000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, b"value", zipfile.ZIP_DEFLATED)
        archive.writestr("n", b"other")
        info.extra = b""  # So the directory does not have it.
    store = opened(buffer.getvalue())
    assert (store["m"], store["n"]) == (b"value", b"other")


def test_no_archive_is_an_empty_one_and_an_empty_file_is_none():
    store = opened()
    assert store.list().result() == []
    assert store.read("a").result().state == "missing"
    with pytest.raises(CorruptChunkError, match="Failed to find valid ZIP EOCD"):
        opened(b"").list().result()


def test_archive_that_is_replaced_is_read_anew():
    store = opened(made([("a", b"1"), ("b", b"2")]))
    assert store["a"] == b"1"
    store.base[""] = made([("b", b"3"), ("c", b"4")], method=8)
    columns = store.read_many(ReadRequest(["a", "b", "c"]))
    assert columns.state == [ReadState.MISSING, ReadState.VALUE, ReadState.VALUE]
    assert store["b"] == b"3"
    store.base[""] = None
    assert "b" not in store


def test_archive_that_is_replaced_again_and_again_is_a_conflict():
    store = opened(made([("a", bytes(100_000))]))
    base = store.driver.base
    versions = itertools.count(1)

    def read_many(request):
        """Somebody writes before each read of the base."""
        base.driver.write_many(
            WriteRequest([base.path], [made([("a", bytes(100_000 + next(versions)))])])
        )
        return type(base.driver).read_many(base.driver, request)

    driver = FaultyKvStore(base.driver, [])
    driver.read_many = read_many
    store.driver.base = store.driver._archive._base = Base(driver, base.path)
    columns = store.read_many(ReadRequest(["a"]))
    with pytest.raises(ConflictError, match="was replaced 20 times while"):
        columns.raise_first()
    with pytest.raises(ConflictError, match="was replaced 20 times while"):
        store.locate_many(["a"])


def test_directory_need_not_be_current_before_the_staleness_bound():
    store = opened(made([("a", b"1")]))
    assert store["a"] == b"1"
    store.base[""] = made([("b", b"3")])
    assert store.read("b", staleness_bound=0.0).result().state == "missing"
    assert store.read("b").result().value == b"3"


def test_cache_pool_keeps_decoded_members():
    pool = {"total_bytes_limit": 1 << 20}
    value = bytes(100_000)
    store = opened(made([("m", value)], method=8), cache_pool=pool)
    driver = store.driver
    assert store["m"] == value
    rules = [Rule(Fault.ERROR, "read", skip=1, times=10**9)]
    driver._archive._base = Base(FaultyKvStore(driver.base.driver, rules), driver.base.path)
    # One look at the generation of the archive is all that is read.
    assert store.read("m", byte_range=slice(5, 9)).result().value == bytes(4)
    with pytest.raises(StoreIOError):
        store.read("m").result()


def test_names_are_decoded_as_they_say():
    cp437 = made([("XX", b"1")]).replace(b"XX", b"\x82\x9b")
    assert opened(cp437).list().result() == ["é¢".encode()]
    assert opened(made([("日本", b"1")])).list().result() == ["日本".encode()]
    # zip on Linux writes UTF-8 and does not say so.
    unsaid = made([("ZZZZ", b"1")]).replace(b"ZZZZ", "éé".encode())
    assert opened(unsaid).list().result() == ["éé".encode()]
    flagged = made([("éé", b"1")]).replace("éé".encode(), b"\xff\xfe\xfd\xfc")
    store = opened(flagged)
    assert store.list().result() == [b"\xff\xfe\xfd\xfc"]
    assert store[b"\xff\xfe\xfd\xfc"] == b"1"
    for crc, expected in ((None, "ново"), (b"\0\0\0\0", "old\x82")):
        name = b"old\x82"
        path = b"\1" + (crc or zlib.crc32(name).to_bytes(4, "little")) + "ново".encode()
        info = zipfile.ZipInfo("oldX")
        info.extra = struct.pack("<HH", 0x7075, len(path)) + path
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(info, b"1")
        data = buffer.getvalue().replace(b"oldX", name)
        assert opened(data).list().result() == [expected.replace("\x82", "é").encode()]


@each("name", ["../evil", "/abs", "a/../../b", "a\\b", "./a/b", "a//b", "..", "c/.", "a/b\0x"])
def test_members_with_illegal_names_are_neither_keys_nor_missing(name):
    placeholder = "N" * len(name)
    data = made([(placeholder, b"1"), ("good", b"2"), ("d/", b"")])
    data = data.replace(placeholder.encode(), name.encode())
    store = opened(data)
    assert store.list().result() == [b"good"]
    assert store["good"] == b"2"
    with pytest.raises(InvalidKeyError, match=r"^Invalid key"):
        store.read(name).result()
    if ".." not in name and name not in ("/abs", "c/."):
        with pytest.raises(InvalidKeyError, match="never taken for") as caught:
            store.read("a/b").result()
        assert caught.value.key == "a/b"
    store["other"] = b"3"
    assert name.encode() in store.base[""]
    assert store.list().result() == [b"good", b"other"]


def test_archives_that_are_cut_anywhere_are_errors_that_name_them():
    data = made([("a", b"1" * 20), ("b/c", b"2" * 50, 8), ("d/", b"")], comment=b"comment")
    store = opened()
    for nbytes in range(len(data)):
        store.base[""] = data[:nbytes]
        for key in ("a", "b/c", "none"):
            with pytest.raises(CorruptChunkError, match=r'^FAILED_PRECONDITION: Error reading "a'):
                store[key]
        with pytest.raises(CorruptChunkError) as caught:
            store.list().result()
        assert caught.value.key == "a.zip"
        with pytest.raises(CorruptChunkError):
            store["new"] = b"1"
        assert store.base[""] == data[:nbytes]


def test_duplicate_names_are_refused_unless_the_last_one_counts():
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = made([("a", b"old"), ("b", b"1"), ("a", b"newer"), ("d/", b""), ("d/", b"")])
    with pytest.raises(CorruptChunkError, match="Duplicate filename in ZIP: a") as caught:
        opened(data)["b"]
    assert '"duplicates": "last"' in str(caught.value)
    store = opened(data, duplicates="last")
    assert store.list().result() == [b"a", b"b"]
    assert store["a"] == b"newer"
    store["c"] = b"2"
    assert names(store) == ["b", "a", "d/", "d/", "c"]
    assert b"old" not in store.base[""]


# --------------------------------------------------------------------------- bad members


@each(
    ("damage", "error", "text"),
    [
        (lambda d: d.replace(b"VALUE", b"VALUS"), CorruptChunkError, "CRC-32 of the data is"),
        (lambda d: patched(d, central(d) + 8, "H", 1), UnsupportedError, "encryption is not"),
        (lambda d: patched(d, central(d) + 10, "H", 14), UnsupportedError, r"14 \(lzma\)"),
        (lambda d: patched(d, central(d) + 10, "H", 77), UnsupportedError, "method 77 is not"),
        (lambda d: patched(d, central(d) + 8, "H", 32), UnsupportedError, "not supported"),
        (lambda d: patched(d, central(d) + 34, "H", 1), UnsupportedError, "several files"),
        (lambda d: patched(d, central(d) + 24, "I", 99), CorruptChunkError, "cannot hold 99 bytes"),
        (
            lambda d: patched(d, central(d) + 42, "I", 9999),
            CorruptChunkError,
            "local_header_offset",
        ),
        (lambda d: patched(d, central(d) + 42, "I", 40), CorruptChunkError, "with another member"),
        (
            lambda d: patched(d, central(d) + 20, "2I", 2**31, 2**31),
            CorruptChunkError,
            "outside of",
        ),
        (lambda d: patched(d, central(d) + 42, "I", 2**32 - 1), CorruptChunkError, "ZIP64 extra"),
        (lambda d: patched(d, local(d), "I", 7), CorruptChunkError, "Local Entry signature"),
        (lambda d: patched(d, local(d) + 30, "B", 0x7A), CorruptChunkError, "has another name"),
        (lambda d: patched(d, local(d) + 26, "H", 2), CorruptChunkError, "has another name"),
        (lambda d: patched(d, local(d) + 8, "H", 8), CorruptChunkError, "its directory says 0"),
        (lambda d: patched(d, local(d) + 28, "H", 60000), CorruptChunkError, "extra field length"),
    ],
)
def test_a_bad_member_is_an_error_that_names_it_and_leaves_the_others(damage, error, text):
    good = made([("bad", b"VALUE"), ("other", b"12345")])
    store = opened(damage(good))
    columns = store.read_many(ReadRequest(["bad", "other", "none"]))
    assert columns.state[1:] == [ReadState.VALUE, ReadState.MISSING] or "another member" in text
    assert columns.state[0] is ReadState.UNSPECIFIED
    assert columns.value[0] is None
    with pytest.raises(error, match=text) as caught:
        raise columns.error[0]
    assert caught.value.key == "bad"
    assert str(caught.value).partition(": ")[2].startswith('Error reading "bad" in "a.zip": ') or (
        str(caught.value).startswith('Error reading "bad" in "a.zip": ')
    )
    assert b"bad" in store.list().result()


@pytest.mark.parametrize("nbytes", [999, 1001, 2**31])
def test_lying_sizes_are_errors_before_memory_is_taken(nbytes):
    data = made([("m", b"x" * 1000)], method=8)
    store = opened(patched(data, central(data) + 24, "I", nbytes))
    with pytest.raises((CorruptChunkError, LimitError)) as caught:
        store["m"]
    assert caught.value.key == "m"


@pytest.mark.parametrize("method", [0, 8, 12, 93, 95], ids=METHODS.get)
def test_members_that_claim_to_be_empty_are_errors(method):
    data = encoded_archive(method, bytes(range(250)) * 4)
    nbytes = [0, 0] if method == 0 else [struct.unpack_from("<I", data, central(data) + 20)[0], 0]
    store = opened(patched(data, central(data) + 20, "2I", *nbytes))
    for _ in range(2):
        with pytest.raises(CorruptChunkError, match=r'Error reading "m" in "a\.zip": ') as caught:
            store["m"]
        assert caught.value.key == "m"
    empty = encoded_archive(method, b"")
    store = opened(patched(empty, central(empty) + 16, "I", 1))
    with pytest.raises(CorruptChunkError, match=r"CRC-32 of the data is 0{8}, expected 0{7}1"):
        store["m"]


def test_entries_are_limited():
    data = made([("m", bytes(100_000))], method=8)
    limits = {"zip_entry_nbytes": 99_999}
    with pytest.raises(
        LimitError, match=r'Error reading "m" in "a\.zip": decoded member'
    ) as caught:
        opened(data, limits=limits)["m"]
    assert '{"limits": {"zip_entry_nbytes": 100000}}' in str(caught.value)
    with pytest.raises(LimitError, match="zip_directory_nbytes is 47"):
        opened(data, limits={"zip_directory_nbytes": 46})["m"]


def test_short_reads_of_the_base_are_noticed():
    store = opened(made([("m", bytes(200_000)), ("n", b"1")]))
    driver = store.driver
    assert store["m"] == bytes(200_000)
    faulty = Base(FaultyKvStore(driver.base.driver, [Rule(Fault.SHORT_READ)]), driver.base.path)
    driver.base = driver._archive._base = faulty
    columns = store.read_many(ReadRequest(["m"], start=[10], stop=[100_000]))
    with pytest.raises(StoreIOError, match=r"received 49995 bytes of \["):
        columns.raise_first()


# --------------------------------------------------------------------------- writing


@pytest.mark.parametrize("compression", ["store", "deflate", "zstd", "xz"])
def test_written_archives_are_read_by_tensorstore(tmp_path, compression):
    path = f"{tmp_path}/a.zip"
    spec = {"driver": "zip", "base": f"file://{path}", "compression": compression}
    values = {
        "a": b"",
        "b/c": os.urandom(1000),
        "日本": b"x" * 1000,
        "zeros": bytes(5 << 20),  # TensorStore leaves out what shrinks more than 1024 times.
    }
    store = KvStore.open(spec).result()
    store.write_many(WriteRequest(list(values), list(values.values()))).raise_first()
    theirs = tensorstore.KvStore.open(f"file://{path}|zip:").result()
    assert sorted(theirs.list().result()) == sorted(key.encode() for key in values)
    for key, value in values.items():
        assert theirs[key] == value
        assert store[key] == value
    if compression in ("store", "deflate"):
        archive = zipfile.ZipFile(path)
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == values


def test_undecodable_members_are_kept_byte_for_byte():
    members = [("d/", b""), ("lz", b"l" * 500, zipfile.ZIP_LZMA), ("a", b"1"), ("s", b"2")]
    data = made(members, comment=b"about it")
    data = patched(data, central(data, 3) + 8, "H", 1)
    before = zipfile.ZipFile(io.BytesIO(data))
    store = opened(data)
    store["b"] = b"3"
    del store["a"]
    store["c"] = b"4"
    after = zipfile.ZipFile(io.BytesIO(store.base[""]))
    assert after.comment == b"about it"
    assert after.read("lz") == b"l" * 500
    assert after.getinfo("s").flag_bits == 1
    for name in ("d/", "lz", "s"):
        one, other = before.getinfo(name), after.getinfo(name)
        stop = one.header_offset + 30 + len(name) + one.compress_size
        kept = data[one.header_offset : stop]
        assert store.base[""][other.header_offset :][: len(kept)] == kept
        assert (one.date_time, one.external_attr) == (other.date_time, other.external_attr)


def test_a_batch_is_one_rewrite():
    store = opened(made([("a", b"1")]))
    counted = FaultyKvStore(store.driver.base.driver, [])
    writes = []
    counted.write_many = lambda request: (
        writes.append(len(request.keys)),
        store.driver.base.driver.write_many(request),
    )[1]
    store.driver._writer._base = Base(counted, store.driver.base.path)
    keys = [f"k{i}" for i in range(50)]
    store.write_many(WriteRequest([*keys, "a"], [b"v"] * 50 + [None])).raise_first()
    assert writes == [1]
    assert len(store.list().result()) == 50
    assert store.driver.delete_range("k1", "k2") == 11
    store.write_many(WriteRequest(["none"], [None])).raise_first()
    assert store.write("k0", b"", if_equal=ABSENT).result().generation == b""
    assert writes == [1, 1]


def test_threads_share_rewrites():
    store = opened()
    began, go = threading.Event(), threading.Event()
    base = FaultyKvStore(store.driver.base.driver, [])
    writes = []

    def write_many(request):
        writes.append(1)
        began.set()
        assert go.wait(30)
        return base.driver.write_many(request)

    base.write_many = write_many
    store.driver._writer._base = Base(base, store.driver.base.path)
    threads = [threading.Thread(target=store.__setitem__, args=(f"{i}", b"v")) for i in range(8)]
    threads[0].start()
    assert began.wait(30)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(store.driver._writer._waiting) == 7)
    go.set()
    for thread in threads:
        thread.join()
    assert len(store.list().result()) == 8
    assert len(writes) == 2


def test_generations_outlive_changes_of_other_keys_also_of_foreign_members():
    store = opened(made([("a", b"1"), ("b", b"2")], method=8))
    a, b = get(store, "a")[2], get(store, "b")[2]
    c = put(store, "c", b"3")
    assert [get(store, key)[2] for key in "abc"] == [a, b, c]
    put(store, "b", None)
    assert put(store, "a", b"4", b) == b""
    assert put(store, "a", b"4", a) not in (b"", a)
    again = opened(store.base[""])
    assert get(again, "c")[2] == c


def test_stamps_copied_to_another_value_are_another_generation():
    store = opened()
    generation = put(store, "a", b"1")
    old = zipfile.ZipFile(io.BytesIO(store.base[""])).getinfo("a")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(old, b"2")
    assert get(opened(buffer.getvalue()), "a")[2] != generation


def test_lost_replies_and_failures_of_the_base_are_reported():
    store = opened(made([("a", b"1")]))
    base = store.driver.base
    rules = [Rule(Fault.ERROR, "write")]
    store.driver._writer._base = Base(FaultyKvStore(base.driver, rules), base.path)
    with pytest.raises(StoreIOError, match="injected failure to write"):
        store["b"] = b"2"
    assert "b" not in store
    rules.append(Rule(Fault.LOST_REPLY, "write"))
    with pytest.raises(StoreIOError):
        store["b"] = b"2"
    assert store["b"] == b"2"
    store["c"] = b"3"
    assert len(store.list().result()) == 3


def test_a_conditional_write_with_a_lost_answer_is_recognised():
    """Also after another writer has changed another member: else a counter would count twice."""
    store = opened(made([("n", b"1"), ("m", b"2")]))
    generation = get(store, "n")[2]
    base = store.driver.base
    losing = FaultyKvStore(base.driver, [])
    numbers = itertools.count()

    def write_many(request):
        columns = base.driver.write_many(request)
        if not next(numbers):
            values = base.driver.read_many(ReadRequest([base.path])).value
            data = rewritten(bytes(values[0]), "m", b"3")
            base.driver.write_many(WriteRequest([base.path], [data]))
            return type(columns).blank(1)
        return columns

    losing.write_many = write_many
    store.driver._writer._base = Base(losing, base.path)
    assert put(store, "n", b"4", generation) == get(store, "n")[2]
    assert (store["n"], store["m"]) == (b"4", b"3")


def rewritten(data, key, value):
    """The archive after another writer has written a member."""
    store = KvStore.open("memory://other.zip|zip:").result()
    store.base[""] = data
    store[key] = value
    return store.base[""]


def test_a_base_that_takes_only_whole_values_is_limited():
    store = opened(limits={"host_in_flight_nbytes": 1000}, compression="store")
    store["a"] = bytes(500)
    with pytest.raises(LimitError, match="host_in_flight_nbytes"):
        store["b"] = bytes(500)
    assert store.list().result() == [b"a"]


def test_illegal_keys_are_refused_and_the_rest_is_written():
    store = opened()
    columns = store.write_many(WriteRequest(["../x", "a", "b/"], [b"1", b"2", b"3"]))
    assert sorted(columns.error) == [0, 2]
    assert isinstance(columns.error[0], InvalidKeyError)
    assert store.list().result() == [b"a"]


def test_archives_with_faulty_places_are_not_rewritten():
    data = made([("a", b"1"), ("b", b"2")])
    broken = patched(data, central(data, 1) + 42, "I", 1)
    store = opened(broken)
    with pytest.raises(CorruptChunkError, match="cannot be rewritten"):
        store["c"] = b"3"
    assert store.base[""] == broken
    junk = opened(b"junk" * 100)
    with pytest.raises(CorruptChunkError, match="Failed to find valid ZIP EOCD"):
        junk["a"] = b"1"


def test_an_archive_in_an_archive():
    store = KvStore.open("memory://x.zip|zip:in/y.zip|zip:a/").result()
    store["b"] = b"1" * 1000
    outer = store.base.base
    assert store.base["" if store.base.path else "in/y.zip"][:4] == b"PK\3\4"
    assert zipfile.ZipFile(io.BytesIO(outer[""])).namelist() == ["in/y.zip"]
    assert store["b"] == b"1" * 1000


def test_deleting_a_missing_key_makes_no_archive(tmp_path):
    store = KvStore.open(f"file://{tmp_path}/new/a.zip|zip:").result()
    del store["a"]
    store.delete_range(KvStore.KeyRange()).result()
    assert list(tmp_path.iterdir()) == []


def test_stores_of_one_archive_see_each_other(tmp_path):
    url = f"file://{tmp_path}/a.zip|zip:"
    first = KvStore.open(url).result()
    second = KvStore.open(url, context=Context({"limits": {"rank": 5}})).result()
    assert first.driver is not second.driver
    for i in range(10):
        first[f"f{i}"] = b"1"
        second[f"s{i}"] = b"2"
    assert first.list().result() == second.list().result()
    assert len(first.list().result()) == 20


def test_an_archive_on_a_server_is_read_by_ranges():
    values = {"small": b"1" * 100, "large": os.urandom(300_000), "zeros": bytes(100_000)}
    data = made([(key, value, 0 if key == "large" else 8) for key, value in values.items()])
    with HttpServer({"a.zip": data}) as server:
        store = KvStore.open(f"{server.url}/a.zip|zip:").result()
        assert {key.decode(): store[key] for key in store.list().result()} == values
        before = len(server.requests)
        assert store["large"] == values["large"]
        assert store.read("large", byte_range=slice(7, 9)).result().value == values["large"][7:9]
        # The directory is known, and that it is the current one is told by the reads themselves.
        assert len(server.requests) == before + 2
        with pytest.raises(UnsupportedError, match="does not support writing"):
            store["new"] = b"1"
        server.values["a.zip"] = made([("small", b"2")])
        assert store["small"] == b"2"
        POOL.close()
