"""OCDBT databases that TensorStore reads and writes, in memory, and random histories of them."""

import tensorstore as ts
from hypothesis import strategies as st

from gpustore.kvstores.base import Base
from gpustore.kvstores.columns import WriteRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.ocdbt import OcdbtKvStore
from gpustore.runtime.context import Context
from tests.kvstores.faulty import FaultyKvStore

__all__ = ["Opened", "Recorded", "TensorStoreDatabase", "apply", "configs", "histories"]

_KEYS = st.sampled_from(
    [f"{a}{b}" for a in ("", "a/", "a/b/", "zz") for b in ("", "0", "1", "10", "11", "2")]
    + ["é/1", "é/2", "a/" + "x" * 300 + "1", "a/" + "x" * 300 + "2"]
)
_VALUES = st.binary(max_size=12) | st.just(b"v" * 200)

configs = st.fixed_dictionaries(
    {
        "manifest_kind": st.sampled_from(["single", "numbered"]),
        "max_inline_value_bytes": st.sampled_from([0, 4, 100]),
        "max_decoded_node_bytes": st.sampled_from([1, 100, 300, 8 << 20]),
        "version_tree_arity_log2": st.sampled_from([1, 2, 4]),
        "compression": st.sampled_from([None, {"id": "zstd"}, {"id": "zstd", "level": 5}]),
    }
)

# A step is a batch of writes, with None for a deletion, or a range to delete.
histories = st.lists(
    st.dictionaries(_KEYS, _VALUES | st.none(), min_size=1, max_size=6)
    | st.tuples(_KEYS, _KEYS).filter(lambda ends: ends[0] < ends[1]),
    min_size=1,
    max_size=12,
)


class TensorStoreDatabase:
    """A database in the memory of TensorStore."""

    def __init__(self, config=None, files=None, **members):
        self.context = ts.Context()
        self.base = ts.KvStore.open("memory://", context=self.context).result()
        for key, value in (files or {}).items():
            self.base[key] = value
        self.spec = {"driver": "ocdbt", "base": "memory://", **members}
        if config:
            self.spec["config"] = config
        self.store = self.open()

    def open(self, **members):
        return ts.KvStore.open({**self.spec, **members}, context=self.context).result()

    @property
    def files(self):
        return {key: self.base[key] for key in self.base.list().result()}

    def apply(self, step):
        if isinstance(step, tuple):
            self.store.delete_range(ts.KvStore.KeyRange(*step)).result()
            return
        transaction = ts.Transaction(atomic=True)
        store = self.store.with_transaction(transaction)
        for key, value in step.items():
            store.write(key, value).result()
        transaction.commit_async().result()

    def items(self, **members):
        store = self.open(**members)
        return {key: store[key] for key in store.list().result()}

    @property
    def versions(self):
        return ts.ocdbt.dump(self.base).result()["versions"]


def apply(model, step):
    """Return the dict after a step."""
    if isinstance(step, tuple):
        low, high = (end.encode() for end in step)
        return {key: value for key, value in model.items() if not low <= key < high}
    changed = {key.encode(): value for key, value in step.items()}
    return {key: value for key, value in {**model, **changed}.items() if value is not None}


class Recorded(FaultyKvStore):
    """A kvstore in which things can go wrong, and that remembers which keys were asked for.

    Attributes
    ----------
    read : list of str
    requests : int
        To read.
    written : dict of str to int
        Bytes by key.
    """

    def __init__(self, base, rules=()):
        super().__init__(base, rules)
        self.read = []
        self.requests = 0
        self.written = {}

    def read_many(self, request):
        self.read += request.keys
        self.requests += 1
        return super().read_many(request)

    def write_many(self, request):
        for key, value in zip(request.keys, request.values, strict=True):
            self.written[key] = self.written.get(key, 0) + len(value or b"")
        return super().write_many(request)


class Opened:
    """A database in the memory of gpustore."""

    def __init__(self, config=None, files=None, **members):
        self.context = Context()
        self.base = KvStore.open("memory://", context=self.context).result()
        for key, value in (files or {}).items():
            self.base[key] = value
        self.spec = {"driver": "ocdbt", "base": "memory://", **members}
        if config:
            self.spec["config"] = config
        self.store = self.open()

    def open(self, **members):
        return KvStore.open({**self.spec, **members}, context=self.context).result()

    def record(self, rules=(), **members):
        """The same store on a base that is recorded, and that."""
        driver = self.open(**members).driver
        recorded = Recorded(driver.base.driver, rules)
        base = Base(recorded, driver.base.path)
        again = OcdbtKvStore(base, spec=driver.spec, resources=driver.resources)
        return KvStore(again), recorded

    @property
    def files(self):
        return {key: self.base[key] for key in self.base.list().result()}

    def apply(self, step):
        if isinstance(step, tuple):
            self.store.delete_range(KvStore.KeyRange(*step)).result()
            return
        self.store.write_many(WriteRequest(list(step), list(step.values()))).raise_first()

    def items(self, **members):
        store = self.open(**members)
        return {key: store[key] for key in store.list().result()}
