"""Commits: exchanged with TensorStore, atomic, complete, and nothing more than is needed."""

import re
import threading

import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from gpustore.errors import (
    ConflictError,
    CorruptChunkError,
    GpustoreError,
    InvalidKeyError,
    MismatchError,
    StoreIOError,
)
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.faulty import Fault, Rule
from tests.kvstores.ocdbt.tensorstore_ocdbt import (
    Opened,
    TensorStoreDatabase,
    apply,
    configs,
    histories,
)
from tests.waiting import wait_until


def put(store, key, value, if_equal=b""):
    columns = store.write_many(WriteRequest([key], [value], [if_equal]))
    columns.raise_first()
    return columns.generation[0]


def generation(store):
    return store.driver._version().generation


# --------------------------------------------------------------------------- exchange


def totals(database, location, height):
    """Sums over a subtree, counted."""
    node = database.node(location, height)
    if not height:
        return node.totals(location.nbytes)
    below = [totals(database, node.child(row), height - 1) for row in range(len(node.keys))]
    assert below == [node.child_totals(row) for row in range(len(node.keys))]
    keys, tree, indirect = map(sum, zip(*below, strict=True))
    return keys, tree + location.nbytes, indirect


def check_exchange(config, rounds):
    """Both write in turn, and read all versions of both."""
    model, wanted = {}, {}
    files = {}
    for i, steps in enumerate(rounds):
        made = Opened if i % 2 == 0 else TensorStoreDatabase
        database = made(config, files)
        for step in steps:
            database.apply(step)
            model = apply(model, step)
            reader = TensorStoreDatabase(files=database.files)
            wanted[reader.versions[-1]["generation_number"]] = model
        files = database.files
    ours, theirs = Opened(files=files), TensorStoreDatabase(files=files)
    assert ours.items() == theirs.items() == model
    version = ours.store.driver._version()
    if not version.is_empty:
        counted = totals(ours.store.driver._database, version.root, version.root_height)
        assert version.totals == counted
    for number, items in wanted.items():
        assert ours.items(version=number) == theirs.items(version=number) == items
    assert sorted(wanted) == list(range(min(wanted), max(wanted) + 1))


rounds = st.lists(histories, min_size=1, max_size=3)


@settings(max_examples=12)
@given(configs, rounds)
def test_databases_are_exchanged_with_tensorstore(config, rounds):
    check_exchange(config, rounds)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(configs, rounds)
def test_databases_are_exchanged_with_tensorstore_long(config, rounds):
    check_exchange(config, rounds)


EXTREMES = {
    "everything inline": {"max_inline_value_bytes": 1 << 20, "max_decoded_node_bytes": 2**32 - 1},
    "nothing inline": {"max_inline_value_bytes": 0, "max_decoded_node_bytes": 1},
    "one node": {"max_decoded_node_bytes": 0, "compression": None},
    "wide": {"version_tree_arity_log2": 16, "compression": {"id": "zstd", "level": 22}},
    "narrow": {"version_tree_arity_log2": 1, "compression": {"id": "zstd", "level": -131072}},
}


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["single", "numbered"])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_configurations_are_exchanged_with_tensorstore(name, kind):
    sizes = (0, 1, 100, 101, 1 << 20, (1 << 20) + 1)
    values = {f"v/{n}": b"v" * n for n in sizes}
    keys = {"": b"1", "k" * 65_535: b"2", "k" * 65_534: b"3"}
    steps = [values, keys, {"v/0": b"0", "v/1048577": None}, ("v/1", "v/101")]
    config = {"manifest_kind": kind, **EXTREMES[name]}
    check_exchange(config, [steps, [{"": None}, {"": b"4"}], [{"x": b"5"}]])


@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_old_versions_stay_through_hundreds_of_commits(kind):
    ours = Opened({"version_tree_arity_log2": 1, "manifest_kind": kind})
    for i in range(140):
        put(ours.store, f"k{i % 7}", b"%d" % i)
    theirs = TensorStoreDatabase(files=ours.files)
    assert generation(ours.store) == 141
    for number in (1, 2, 64, 65, 127, 128, 129, 141):
        model = {b"k%d" % (i % 7): b"%d" % i for i in range(number - 1)}
        assert theirs.items(version=number) == model
        assert ours.items(version=number) == model
    numbered = [key for key in ours.files if re.fullmatch(rb"manifest\.[0-9a-f]{16}", key)]
    assert len(numbered) == (129 if kind == "numbered" else 0)


def test_new_database_begins_as_with_tensorstore():
    ours, theirs = Opened(), TensorStoreDatabase()
    for database in (ours, theirs):
        database.apply((" ", "!"))
    assert list(ours.files) == list(theirs.files) == [b"manifest.ocdbt"]
    (version,) = TensorStoreDatabase(files=ours.files).versions
    assert {**version, "commit_time": 0} == {**theirs.versions[0], "commit_time": 0}


def test_first_commit_makes_the_database_if_its_configuration_is_assumed():
    for kind in ("single", "numbered"):
        ours = Opened({"manifest_kind": kind}, assume_config=True)
        put(ours.store, "a", b"1")
        theirs = TensorStoreDatabase(files=ours.files)
        assert [one["generation_number"] for one in theirs.versions] == [1]
        assert theirs.items() == {b"a": b"1"}


def test_assumed_configuration_that_is_wrong_is_an_error():
    ours = Opened(assume_config=True)
    late = ours.open(config={"max_inline_value_bytes": 7})
    late.driver._committer._config(late.driver._database.snapshot())
    put(ours.store, "a", b"1")
    with pytest.raises(MismatchError, match="Configuration mismatch on max_inline_value_bytes"):
        put(late, "b", b"1")
    other = Opened(assume_config=True)
    late = other.open(cache_pool={"total_bytes_limit": 1})
    late.driver._committer._config(late.driver._database.snapshot())
    put(other.store, "a", b"1")
    with pytest.raises(MismatchError, match="made by somebody else meanwhile"):
        put(late, "b", b"1")


def test_data_files_have_the_prefixes_that_are_given():
    members = {
        "value_data_prefix": "v/",
        "btree_node_data_prefix": "b",
        "version_tree_node_data_prefix": "",
        "config": {"version_tree_arity_log2": 1},
    }
    ours = Opened(**members)
    for i in range(4):
        put(ours.store, f"a{i}", b"1" * 200)
    names = [key.decode() for key in ours.files if key != b"manifest.ocdbt"]
    assert sorted({re.sub("[0-9a-f]{32}$", "", name) for name in names}) == ["", "b", "v/"]
    theirs = TensorStoreDatabase(files=ours.files)
    assert theirs.items() == ours.items()
    assert len(theirs.items(version=3)) == 2


def test_data_files_end_at_their_target_size():
    ours = Opened(target_data_file_size=1000)
    keys = [f"k{i:02}" for i in range(20)]
    ours.store.write_many(WriteRequest(keys, [b"x" * 400] * 20)).raise_first()
    sizes = [len(value) for key, value in ours.files.items() if key.startswith(b"d/")]
    assert len(sizes) == 7
    assert max(sizes) <= 1400
    assert TensorStoreDatabase(files=ours.files).items() == ours.items()


# --------------------------------------------------------------------------- what is a commit


def test_a_batch_is_one_commit():
    ours = Opened()
    keys = [f"k{i}" for i in range(50)]
    ours.store.write_many(WriteRequest(keys, [b"%d" % i for i in range(50)])).raise_first()
    assert generation(ours.store) == 2
    ours.store.write_many(WriteRequest(keys[:30], [None] * 30)).raise_first()
    assert generation(ours.store) == 3
    assert len(ours.items(version=2)) == 50
    assert len(ours.items()) == 20


def test_the_same_operations_make_commits_as_with_tensorstore():
    def run(database, write, delete_range):
        numbers = []
        for operate in (
            lambda: write("a", b"1"),
            lambda: write("a", b"1"),
            lambda: write("a", b"2", b"wrong"),
            lambda: write("q", None),
            lambda: write("q", None, b"wrong"),
            lambda: delete_range("x", "y"),
            lambda: delete_range("y", "x"),
            lambda: delete_range("a", "b"),
            lambda: delete_range("", ""),
        ):
            operate()
            versions = TensorStoreDatabase(files=database.files).versions
            numbers.append(versions[-1]["generation_number"])
        return numbers

    ours, theirs = Opened(), TensorStoreDatabase()
    assert run(
        ours,
        lambda key, value, condition=b"": put(ours.store, key, value, condition),
        lambda low, high: ours.store.delete_range(KvStore.KeyRange(low, high)).result(),
    ) == run(
        theirs,
        lambda key, value, condition=None: theirs.store.write(
            key, value, if_equal=condition
        ).result(),
        lambda low, high: theirs.store.delete_range(ts.KvStore.KeyRange(low, high)).result(),
    )


def test_one_key_that_is_illegal_leaves_the_others():
    ours = Opened()
    columns = ours.store.write_many(WriteRequest(["a", "x" * 65536, "b"], [b"1", b"2", b"3"]))
    assert list(columns.error) == [1]
    assert isinstance(columns.error[1], InvalidKeyError)
    assert ours.items() == {b"a": b"1", b"b": b"3"}


def test_versions_are_read_only():
    ours = Opened()
    put(ours.store, "a", b"1")
    old = ours.open(version=2)
    text = "^Writing is not supported with version=v2 specified$"
    with pytest.raises(MismatchError, match=text):
        put(old, "a", b"2")
    with pytest.raises(MismatchError, match=text):
        old.delete_range(KvStore.KeyRange()).result()
    assert not old.driver.can_write


def test_number_of_deleted_keys_is_told():
    ours = Opened({"max_decoded_node_bytes": 100})
    keys = [f"k{i:03}" for i in range(200)]
    ours.store.write_many(WriteRequest(keys, [b"1"] * 200)).raise_first()
    assert ours.store.driver.delete_range("k010", "k150") == 140
    assert ours.store.driver.delete_range("k010", "k150") == 0
    assert ours.store.driver.delete_range("k150") == 50
    assert generation(ours.store) == 4
    assert ours.store.list().result() == [b"k%03d" % i for i in range(10)]


def test_trees_become_lower_when_keys_go():
    ours = Opened({"max_decoded_node_bytes": 100})
    keys = [f"k{i:03}" for i in range(300)]
    ours.store.write_many(WriteRequest(keys, [b"1"] * 300)).raise_first()
    assert ours.store.driver._version().root_height > 4
    ours.store.driver.delete_range("k001")
    assert ours.store.driver._version().root_height == 0
    assert TensorStoreDatabase(files=ours.files).items() == {b"k000": b"1"}
    ours.store.driver.delete_range()
    assert ours.store.driver._version().is_empty


@pytest.mark.parametrize("node_nbytes", [0, 1, 60, 300])
def test_nodes_have_about_the_size_that_is_configured(node_nbytes):
    ours = Opened({"max_decoded_node_bytes": node_nbytes})
    keys = [f"k{i:03}" for i in range(300)]
    ours.store.write_many(WriteRequest(keys, [b"1"] * 300)).raise_first()
    sizes = []
    level = [ours.store.driver._version()]
    pending = [(level[0].root, level[0].root_height)]
    while pending:
        location, height = pending.pop()
        node = ours.store.driver._database.node(location, height)
        sizes.append(len(node.keys))
        if height:
            assert len(node.keys) >= 2
            pending += [(node.child(row), height - 1) for row in range(len(node.keys))]
    # A leaf entry of these counts for 21 bytes.
    assert max(sizes) == {0: 300, 1: 3, 60: 3, 300: 15}[node_nbytes]


def test_commit_of_one_key_writes_only_its_path():
    ours = Opened({"max_decoded_node_bytes": 1000, "compression": None})
    keys = [f"k{i:05}" for i in range(4000)]
    ours.store.write_many(WriteRequest(keys, [b"value"] * len(keys))).raise_first()
    version = ours.store.driver._version()
    assert version.totals.tree_nbytes > 40_000
    store, base = ours.record()
    put(store, "k02000", b"other")
    written = {key: nbytes for key, nbytes in base.written.items() if key.startswith("d/")}
    assert len(written) == 1
    path = version.root_height + 1
    # A node of 1000 decoded bytes has at most that many encoded.
    assert 0 < sum(written.values()) <= path * 1000
    read = [key for key in base.read if key.startswith("d/")]
    assert len(read) == path
    after = store.driver._version()
    assert after.generation == version.generation + 1
    assert after.totals.num_keys == version.totals.num_keys
    assert abs(after.totals.tree_nbytes - version.totals.tree_nbytes) < 1000
    assert TensorStoreDatabase(files=ours.files).store["k02000"] == b"other"


# --------------------------------------------------------------------------- many writers


def test_threads_are_committed_together_and_nothing_is_lost():
    ours = Opened()
    threads = [
        threading.Thread(target=lambda i=i: [put(ours.store, f"{i}/{j}", b"1") for j in range(20)])
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ours.items()) == 160
    assert generation(ours.store) <= 161
    theirs = TensorStoreDatabase(files=ours.files)
    assert theirs.items() == ours.items()


def test_writer_that_was_overtaken_begins_again():
    ours = Opened({"max_inline_value_bytes": 0})
    put(ours.store, "a", b"1")
    store, base = ours.record()

    class Overtaking(Rule):
        def applies(self, operation, key):
            if operation == "write" and key == "manifest.ocdbt" and self.injected < 3:
                self.injected += 1
                put(ours.store, f"other{self.injected}", b"1")
            return False

    base.rules.append(Overtaking(Fault.ERROR))
    before = len(ours.files)
    put(store, "b", b"x" * 1000)
    items = {b"a": b"1", b"b": b"x" * 1000, **{b"other%d" % i: b"1" for i in (1, 2, 3)}}
    assert ours.items() == items
    assert generation(store) == 6
    # The value was written once, with the first attempt.
    sizes = [n for key, n in base.written.items() if key.startswith("d/")]
    assert len(sizes) == 4
    assert sum(size > 1000 for size in sizes) == 1
    assert len(ours.files) == before + 4 + 3


def test_condition_is_looked_at_again_when_a_writer_was_overtaken():
    ours = Opened()
    first = put(ours.store, "a", b"1")
    store, base = ours.record()

    class Overtaking(Rule):
        def applies(self, operation, key):
            if operation == "write" and key == "manifest.ocdbt" and not self.injected:
                self.injected = 1
                put(ours.store, "a", b"2")
            return False

    base.rules.append(Overtaking(Fault.ERROR))
    assert put(store, "a", b"3", first) == b""
    assert ours.items() == {b"a": b"2"}


def test_writer_that_is_always_overtaken_gives_up(monkeypatch):
    monkeypatch.setattr("gpustore.kvstores.ocdbt.commit._ATTEMPTS", 5)
    ours = Opened()
    put(ours.store, "a", b"1")
    store, base = ours.record()

    class Overtaking(Rule):
        def applies(self, operation, key):
            if operation == "write" and key == "manifest.ocdbt":
                put(ours.store, "n", b"")
            return False

    base.rules.append(Overtaking(Fault.ERROR))
    with pytest.raises(ConflictError, match="overtaken by other writers 5 times; nothing was"):
        put(store, "b", b"2")
    assert set(ours.items()) == {b"a", b"n"}


def test_thread_that_is_interrupted_leaves_the_work_of_others():
    ours = Opened()
    put(ours.store, "a", b"1")
    store, base = ours.record()
    committer = store.driver._committer
    waiting = threading.Event()
    done = []

    class Interrupting(Rule):
        def applies(self, operation, key):
            if operation == "write" and key.startswith("d/") and not self.injected:
                self.injected = 1
                waiting.set()
                wait_until(lambda: committer._waiting)
                raise KeyboardInterrupt
            return False

    base.rules.append(Interrupting(Fault.ERROR))

    def other():
        waiting.wait(30)
        done.append(put(store, "c", b"3"))

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        put(store, "b", b"2")
    thread.join(30)
    assert done
    assert ours.items() == {b"a": b"1", b"c": b"3"}


def test_operations_of_an_interrupted_commit_are_taken_over():
    ours = Opened()
    put(ours.store, "a", b"1")
    store, base = ours.record()
    committer = store.driver._committer
    committer._lock.acquire()
    results = {}

    def write(key):
        try:
            results[key] = put(store, key, b"1")
        except KeyboardInterrupt:
            results[key] = "interrupted"

    threads = [threading.Thread(target=write, args=(key,)) for key in "bcd"]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(committer._waiting) == 3)

    class Interrupting(Rule):
        def applies(self, operation, key):
            if operation == "write" and not self.injected:
                self.injected = 1
                raise KeyboardInterrupt
            return False

    base.rules.append(Interrupting(Fault.ERROR))
    committer._lock.release()
    for thread in threads:
        thread.join(30)
    assert sorted(map(str, results.values()))[-1] == "interrupted"
    interrupted = [key for key, result in results.items() if result == "interrupted"]
    assert len(interrupted) == 1
    assert set(ours.items()) == {b"a", *(key.encode() for key in "bcd" if key not in interrupted)}


def test_an_error_of_one_write_leaves_the_others():
    ours = Opened({"max_decoded_node_bytes": 100})
    keys = [f"k{i:03}" for i in range(60)]
    ours.store.write_many(WriteRequest(keys, [b"1"] * 60)).raise_first()
    found = ours.store.driver._version()
    node = ours.store.driver._database.node(found.root, found.root_height)
    while node.height:
        location = node.child(0)
        node = ours.store.driver._database.node(location, node.height - 1)
    name = location.file.path.encode()
    data = bytearray(ours.base[name])
    data[location.offset + 20] ^= 1
    ours.base[name] = bytes(data)
    committer = ours.store.driver._committer
    committer._lock.acquire()
    results = {}

    def write(key):
        try:
            results[key] = put(ours.store, key, b"2")
        except GpustoreError as error:
            results[key] = error

    threads = [threading.Thread(target=write, args=(key,)) for key in ("k000", "k059")]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(committer._waiting) == 2)
    committer._lock.release()
    for thread in threads:
        thread.join(30)
    assert isinstance(results["k000"], CorruptChunkError)
    assert "CRC-32C checksum verification failed" in str(results["k000"])
    assert results["k059"]
    assert ours.store["k059"] == b"2"


# --------------------------------------------------------------------------- faults


def test_commit_with_a_lost_reply_has_happened():
    for kind in ("single", "numbered"):
        ours = Opened({"manifest_kind": kind})
        put(ours.store, "a", b"1")
        store, base = ours.record([Rule(Fault.LOST_REPLY, "write", skip=1)])
        put(store, "b", b"2")
        assert base.rules[0].injected == 1
        assert ours.items() == {b"a": b"1", b"b": b"2"}
        assert generation(store) == 3


def test_commit_with_an_unknown_outcome_is_an_error():
    ours = Opened()
    put(ours.store, "a", b"1")
    rules = [
        Rule(Fault.LOST_REPLY, "write", "manifest.ocdbt"),
        Rule(Fault.ERROR, "read", "manifest.ocdbt", skip=1, times=100),
    ]
    store, _ = ours.record(rules)
    with pytest.raises(StoreIOError, match="whether the commit happened is not known"):
        put(store, "b", b"2")


class _Faulty(RuleBasedStateMachine):
    """A write either happens whole, or is an error and happens whole or not at all."""

    config: dict = {}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.database = Opened(self.config)
        self.model = {}
        self.generation = 0
        self.rules = []
        self.store, self.base = self.database.record(self.rules)

    @rule(
        fault=st.sampled_from([Fault.ERROR, Fault.LOST_REPLY]),
        operation=st.sampled_from(["read", "write"]),
        skip=st.integers(0, 3),
    )
    def inject(self, fault, operation, skip):
        self.rules.append(Rule(fault, operation, skip=skip))

    @rule(step=histories.map(lambda steps: steps[0]))
    def write(self, step):
        after = apply(self.model, step)
        try:
            if isinstance(step, tuple):
                self.store.delete_range(KvStore.KeyRange(*step)).result()
            else:
                columns = self.store.write_many(WriteRequest(list(step), list(step.values())))
                columns.raise_first()
            self.model = after
        except StoreIOError:
            assert any(one.injected for one in self.rules)
            now = self.database.items()
            assert now in (self.model, after)
            self.model = now
        assert self.database.items() == self.model

    @rule()
    def read(self):
        keys = [key.decode() for key in self.model] + ["none"]
        columns = self.store.read_many(ReadRequest(keys))
        for i, key in enumerate(keys):
            if i in columns.error:
                assert isinstance(columns.error[i], StoreIOError)
                assert columns.state[i] is ReadState.UNSPECIFIED
                continue
            value = columns.value[i]
            assert (None if value is None else bytes(value)) == self.model.get(key.encode())

    def teardown(self):
        self.rules.clear()
        theirs = TensorStoreDatabase(files=self.database.files)
        assert theirs.items() == self.model
        if self.model:
            numbers = [one["generation_number"] for one in theirs.versions]
            assert numbers == list(range(numbers[0], numbers[-1] + 1))


def check_faults(kind, examples):
    class Machine(_Faulty):
        config = {"manifest_kind": kind, "max_decoded_node_bytes": 150}  # noqa: RUF012

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=10,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_commits_are_whole_when_things_go_wrong(kind):
    check_faults(kind, 8)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_commits_are_whole_when_things_go_wrong_long(kind):
    check_faults(kind, 100)


def test_reads_see_all_of_a_batch_or_nothing():
    ours = Opened({"max_decoded_node_bytes": 100})
    keys = [f"k{i:02}" for i in range(30)]
    stop = threading.Event()
    reader = ours.open(cache_pool={"total_bytes_limit": 1_000_000})

    def write():
        for i in range(15):
            ours.store.write_many(WriteRequest(keys, [b"%d" % i] * 30)).raise_first()
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not stop.is_set():
        columns = reader.read_many(ReadRequest(keys))
        columns.raise_first()
        values = {None if value is None else bytes(value) for value in columns.value}
        assert len(values) == 1
        seen |= values
    thread.join()
    assert b"14" in seen | {bytes(reader["k00"])}


def test_only_if_absent():
    ours = Opened()
    assert put(ours.store, "a", b"1", ABSENT)
    assert put(ours.store, "a", b"2", ABSENT) == b""
