"""Small arrays of chunks over kvstores in memory, in which things can be made to go wrong."""

import numpy as np

from gpustore.backends.host import BACKEND
from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype as DataType
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.runtime import executor
from gpustore.runtime.limits import DEFAULT_LIMITS
from gpustore.sharding.refiner import RawBytesRefiner
from tests.kvstores.faulty import FaultyKvStore

BYTES = NamedConfiguration("bytes", {"endian": "little"})
GZIP = NamedConfiguration("gzip", {"level": 1})


def memory():
    """An opened memory kvstore that nobody else has."""
    return KvStore.open("memory://").result().driver


def make_array(shape, chunks, *, dtype="uint16", codecs=(BYTES,), store=None, **changes):
    """A ChunkedArray with keys ``c/0/0``; `store` may be a sequence of fault rules."""
    if not hasattr(store, "read_many"):
        store = FaultyKvStore(memory(), store or ())
    data_type = DataType(dtype)
    chain = resolve_v3(codecs, data_type, chunks)
    native = data_type.array_dtype
    refiners = (RawBytesRefiner(chain.layout.nbytes, native.itemsize),) if chain.is_raw else ()
    parts = {
        "store": store,
        "key_prefix": "c/",
        "key_separator": "/",
        "shape": tuple(shape),
        "inner_rank": 0,
        "chunk_shape": tuple(chunks),
        "dtype": native,
        "fill_value": np.zeros((), native),
        "blank": changes.get("fill_value", np.zeros((), native)),
        "chain": chain,
        "levels": (),
        "refiners": refiners,
        "fill_missing": True,
        "keep_fill": False,
        "backend": BACKEND,
        "executor": executor.shared(),
        "limits": DEFAULT_LIMITS,
    }
    return ChunkedArray(**{**parts, **changes})


def whole(array):
    """The transform of all of it."""
    return IndexTransform(IndexDomain(shape=array.shape))


def stored(array):
    """The bytes of every chunk that is stored, by key."""
    store = getattr(array.store, "driver", array.store)
    keys = store.list()
    values = store.read_many(ReadRequest(keys)).value
    return {key: bytes(value) for key, value in zip(keys, values, strict=True)}


def put(array, key, value):
    """Store a value behind the array's back; None deletes it."""
    store = getattr(array.store, "driver", array.store)
    store.write_many(WriteRequest([key], [value])).raise_first()
