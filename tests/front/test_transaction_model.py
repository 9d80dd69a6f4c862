"""Random programs in transactions, run with gpustore and with TensorStore."""

import itertools
import shutil
import tempfile

import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from tests.matrix import share

SIZE, CHUNK = 7, 3
KEYS = ["c/0", "c/1", "k", "q"]
WHO = st.sampled_from([None, "A", "B"])
LOCAL = {"file_io_sync": False}


@st.composite
def spans(draw):
    start, stop = sorted([draw(st.integers(0, SIZE)), draw(st.integers(0, SIZE))])
    return start, stop


VALUES = st.binary(min_size=CHUNK, max_size=CHUNK).filter(any)
"""Raw chunks that are not the fill value, which are not stored."""

ARRAY_STEPS = st.one_of(
    st.tuples(st.just("write"), WHO, spans(), st.integers(0, 3)),
    st.tuples(st.just("read"), WHO, spans()),
)
KEY_STEPS = st.one_of(
    st.tuples(st.just("put"), WHO, st.sampled_from(KEYS), VALUES),
    st.tuples(st.just("drop"), WHO, st.sampled_from(KEYS)),
    st.tuples(st.just("get"), WHO, st.sampled_from(KEYS)),
    st.tuples(st.just("list"), WHO),
    st.tuples(st.just("delete"), WHO, st.sampled_from(["c/", "c/1", "d"]), st.just("r")),
)
ENDS = st.tuples(st.sampled_from(["commit", "commit", "abort"]), st.sampled_from(["A", "B"]))


def programs(*steps):
    return st.lists(st.one_of(*steps), min_size=3, max_size=12)


def zarr3(chunk, *codecs):
    grid = {"name": "regular", "configuration": {"chunk_shape": [chunk]}}
    metadata = {"data_type": "uint8", "shape": [SIZE], "chunk_grid": grid, "codecs": [*codecs]}
    return {"driver": "zarr3", "metadata": metadata}


RECORD = [["x", "|u1"], ["y", "<i4"]]
SHARDS = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity", "preshift_bits": 0}
SCALE = {"size": [SIZE, 1, 1], "chunk_size": [CHUNK, 1, 1], "encoding": "raw"}
FORMS = {
    "chunks": zarr3(CHUNK, {"name": "bytes"}),
    "shards": zarr3(
        2 * CHUNK, {"name": "sharding_indexed", "configuration": {"chunk_shape": [CHUNK]}}
    ),
    "fields": {
        "driver": "zarr",
        "metadata": {"dtype": RECORD, "shape": [SIZE], "chunks": [CHUNK], "compressor": None},
    },
    "precomputed shards": {
        "driver": "neuroglancer_precomputed",
        "multiscale_metadata": {"type": "image", "data_type": "uint8", "num_channels": 1},
        "scale_metadata": {
            **SCALE,
            "resolution": [1, 1, 1],
            "sharding": {**SHARDS, "minishard_bits": 1, "shard_bits": 0},
        },
    },
}


class Machine:
    """Runs the steps of a program with one library."""

    def __init__(self, library, url, mode, form):
        self.library, self.mode = library, mode
        self.context = library.Context(LOCAL)
        spec = {"kvstore": url, **FORMS[form]}
        fields = [{**spec, "field": name} for name in "xy"] if form == "fields" else [spec]
        self.stores = [
            library.open(one, create=True, open=True, context=self.context).result()
            for one in fields
        ]
        self.store = self.stores[0]
        self.kvstore = self.store.kvstore
        self.transactions = {name: library.Transaction(**mode) for name in "AB"}

    def bound(self, store, who):
        return store if who is None else store.with_transaction(self.transactions[who])

    def step(self, name, who, *arguments):
        """The result of a step, or the kind of its error."""
        try:
            return getattr(self, name)(who, *arguments)
        except ValueError as error:
            return "error", str(error).split(":")[0] if ": " in str(error) else "INVALID"

    def write(self, who, span, value):
        store = self.stores[value % len(self.stores)]
        self.bound(store, who)[slice(*span)].write(value).result()

    def read(self, who, span):
        stores = [self.bound(store, who) for store in self.stores]
        return [store[slice(*span)].read().result().tolist() for store in stores]

    def put(self, who, key, value):
        self.bound(self.kvstore, who).write(key, value).result()

    def drop(self, who, key):
        self.bound(self.kvstore, who).write(key, None).result()

    def get(self, who, key):
        found = self.bound(self.kvstore, who).read(key).result()
        return found.state, found.value

    def list(self, who):
        return sorted(self.bound(self.kvstore, who).list().result())

    def delete(self, who, low, high):
        keys = self.library.KvStore.KeyRange(low, high)
        self.bound(self.kvstore, who).delete_range(keys).result()

    def commit(self, who):
        transaction = self.transactions[who]
        self.transactions[who] = self.library.Transaction(**self.mode)
        transaction.commit_sync()

    def abort(self, who):
        self.transactions[who].abort()
        self.transactions[who] = self.library.Transaction(**self.mode)

    def content(self):
        keys = sorted(self.kvstore.list().result())
        return {key: self.kvstore[key] for key in keys if not key.endswith((b"json", b"zarray"))}


number = itertools.count()
OURS = {
    "memory": "memory://{}/",
    "separately": {"driver": "memory", "atomic": False},
    "file": "file://{}/",
    "ocdbt": "memory://{}/|ocdbt:",
    "zip": "memory://{}|zip:",
}
"""Kvstores of gpustore. TensorStore's is in memory: in files, a commit deletes no range in which
it writes a key.
"""


def compare(program, where, mode, form="chunks"):
    folder = tempfile.mkdtemp() if where == "file" else None
    try:
        url = OURS[where]
        if isinstance(url, str):
            url = url.format(folder or next(number))
        ours = Machine(gpustore, url, mode, form)
        theirs = Machine(tensorstore, f"memory://{next(number)}/", mode, form)
        for step in [*program, ("commit", "A"), ("commit", "B")]:
            result = ours.step(*step)
            assert result == theirs.step(*step), step
            if mode.get("repeatable_read") and step[0] == "commit" and result is not None:
                return  # TensorStore has stored some of the keys; gpustore has stored none.
        whole = ("read", None, (0, SIZE))
        assert ours.step(*whole) == theirs.step(*whole)
        if form == "chunks":
            assert ours.content() == theirs.content()
    finally:
        if folder is not None:
            shutil.rmtree(folder)


def array_reads_before_keys(program):
    """The program without array reads of transactions that have changed keys by themselves.

    After such a read TensorStore's commit deletes no range, and its list leaves the key out.
    """
    changed = set()
    for step in program:
        if step[0] != "read" or step[1] not in changed:
            yield step
        if step[0] in ("commit", "abort"):
            changed.discard(step[1])
        elif step[0] in ("put", "drop", "delete") and step[1] is not None:
            changed.add(step[1])


@settings(max_examples=share(300), deadline=None)
@given(programs(ARRAY_STEPS, KEY_STEPS, ENDS), st.sampled_from(sorted(OURS)))
def test_programs_mean_the_same(program, where):
    compare(array_reads_before_keys(program), where, {})


@settings(max_examples=share(200), deadline=None)
@given(programs(ARRAY_STEPS, KEY_STEPS, ENDS), st.sampled_from(["memory", "ocdbt", "zip"]))
def test_atomic_programs_mean_the_same(program, where):
    compare(array_reads_before_keys(program), where, {"atomic": True})


@settings(max_examples=share(300), deadline=None)
@given(
    st.lists(st.one_of(ARRAY_STEPS, ARRAY_STEPS, ENDS), min_size=6, max_size=30),
    st.sampled_from(["shards", "fields", "precomputed shards"]),
    st.sampled_from(sorted(OURS)),
)
def test_programs_of_shards_and_fields_mean_the_same(program, form, where):
    compare(program, where, {}, form)


REPEATABLE = KEY_STEPS.filter(lambda step: step[0] != "list" or step[1] is None)


def reads_first(program):
    """The program without reads of transactions that have changed something.

    After such a read TensorStore's commit stores an empty value.
    """
    changed = set()
    for step in program:
        if step[0] != "get" or step[1] not in changed:
            yield step
        if step[0] in ("commit", "abort"):
            changed.discard(step[1])
        elif step[0] != "get" and step[1] is not None:
            changed.add(step[1])


@settings(max_examples=share(200), deadline=None)
@given(programs(REPEATABLE, ENDS), st.sampled_from(sorted(OURS)))
def test_repeatable_programs_mean_the_same(program, where):
    compare(reads_first(program), where, {"repeatable_read": True})
