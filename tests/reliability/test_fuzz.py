"""Random arrays, random damage, random ways to read: typed errors or elements of the right shape.

Where every stored byte is behind a checksum, also the right ones. The same trials every time; the
long version goes on with others.
"""

import collections
import random
import time

import numpy as np
import pytest

import gpustore
from gpustore.errors import CorruptChunkError
from tests.reliability.array_on_disk import CHECKSUMMED, FORMATS, SMALL_ALONE, metadata
from tests.reliability.test_damaged_shards import CHECKED, FORMS

DTYPES = ("|u1", "<u2", ">i4", "<f8", "<c8", "|b1")
ARRAYS, TRIALS = 125, 16
SLOWEST_S = 30  # Of processor time.


def array_spec(generator, form):
    """The driver and the metadata of an array of any shape with chunks of any shape."""
    shape = [generator.randint(1, 40) for _ in range(2)]
    if form in FORMS:
        shape = [8 * generator.randint(1, 6), 8 * generator.randint(1, 6)]
        return {
            "driver": "zarr3",
            "metadata": {
                "shape": shape,
                "data_type": "uint16",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [32, 32]}},
                "codecs": FORMS[form],
            },
        }
    chunk = [generator.randint(1, 40) for _ in range(2)]
    dtype = np.dtype(generator.choice(DTYPES))
    spec = metadata(form, shape=shape, chunk=chunk, dtype=dtype)
    if spec["driver"] == "zarr2":
        spec["metadata"]["order"] = generator.choice("CF")
        spec["metadata"]["dimension_separator"] = generator.choice("./")
        if spec["metadata"]["compressor"] and "blocksize" in spec["metadata"]["compressor"]:
            compressor = {**spec["metadata"]["compressor"], "blocksize": generator.choice([0, 256])}
            spec["metadata"]["compressor"] = compressor
    elif generator.random() < 0.3:
        spec["metadata"]["codecs"].insert(
            0, {"name": "transpose", "configuration": {"order": [1, 0]}}
        )
    return spec


def elements(generator, shape, dtype):
    """Some that compress and some that do not; bytes, because NaN is not NaN."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind == "b":
        data = bytes(generator.getrandbits(1) for _ in range(nbytes))
    elif generator.random() < 0.5:
        data = generator.randbytes(nbytes)
    else:
        data = bytes(generator.choices(b"\0\0\0\x01\x02\x80", k=nbytes))
    return np.frombuffer(data, dtype).reshape(shape)


def damage(generator, encoded, others):
    """Other bytes in place of some stored ones."""
    nbytes = len(encoded)
    start = generator.randrange(nbytes + 1)
    stop = min(nbytes, start + generator.choice([1, 1, 2, 4, 8, 16, 100, nbytes]))
    kind = generator.randrange(9)
    if kind <= 1:
        changed = bytearray(encoded)
        for _ in range(generator.choice([1, 1, 1, 2, 10])):
            at = generator.choice([0, nbytes // 2]) if kind else generator.randrange(nbytes)
            changed[at] ^= 1 << generator.randrange(8)
        return bytes(changed)
    if kind == 2:
        return encoded[:start]
    if kind == 3:
        return encoded[:start] + encoded[stop:]
    if kind == 4:
        return encoded[:start] + generator.randbytes(generator.randint(1, 40)) + encoded[start:]
    if kind == 5:
        return encoded[:start] + generator.randbytes(stop - start) + encoded[stop:]
    if kind == 6:
        number = generator.choice([0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, nbytes, nbytes - 16])
        width = generator.choice([4, 8])
        at = generator.choice([start, 4 * generator.randrange(5), max(0, nbytes - start % 64)])
        word = (number % 256**width).to_bytes(width, "little")
        return encoded[:at] + word + encoded[at + width :]
    if kind == 7:
        spliced = encoded[:start] + generator.choice([encoded[::-1], *others])[start:]
        return spliced[:start] if spliced in others else spliced
    return encoded * generator.choice([2, 3]) + encoded[:start]


def some_part(generator, shape):
    """A selection by slices of either step, and sometimes an integer."""
    part = []
    for size in shape:
        if generator.random() < 0.15:
            part.append(generator.randrange(size))
            continue
        start = generator.randrange(size)
        stop = generator.randint(start + 1, size)
        part.append(slice(start, stop, generator.choice([None, None, 2, 3])))
    return tuple(part)


def reads(generator, store):
    """Begin reads in one way or another; for each, what it is to give for an array."""
    way = generator.randrange(7)
    shape = store.shape
    parts = [some_part(generator, shape) for _ in range(generator.randint(1, 5))]
    if way == 0:
        return [(lambda array: array, store.read(order=generator.choice("CF")))]
    if way <= 2:
        extent = [generator.randint(1, size) for size in shape]
        starts = [
            [generator.randint(0, size - n) for size, n in zip(shape, extent, strict=True)]
            for _ in range(generator.randint(1, 30))
        ]

        def crops(array):
            slices = [
                tuple(slice(s, s + n) for s, n in zip(start, extent, strict=True))
                for start in starts
            ]
            return np.stack([array[one] for one in slices])

        return [(crops, store.read_many(starts, extent))]
    if way == 3:
        with gpustore.Batch() as batch:
            return [
                (lambda array, part=part: array[part], store[part].read(batch=batch))
                for part in parts
            ]
    if way == 4:
        rows = [generator.randrange(shape[0]) for _ in range(6)]
        return [(lambda array: array[rows], store.oindex[rows].read())]
    return [(lambda array, part=part: array[part], store[part].read()) for part in parts]


def fuzz(seed, arrays, trials):
    """Damage and read; returns how often each outcome was seen."""
    generator = random.Random(seed)
    forms = [*(form for form in FORMATS if form not in SMALL_ALONE), *FORMS]
    outcomes = collections.Counter()
    for number in range(arrays):
        form = forms[number % len(forms)]
        context = {"cache_pool": {"total_bytes_limit": generator.choice([0, 0, 1 << 20])}}
        store = gpustore.open(
            {**array_spec(generator, form), "kvstore": "memory://a/"},
            create=True,
            context=gpustore.Context(context),
        ).result()
        written = elements(generator, store.shape, store.dtype.numpy_dtype)
        store.write(written).result()
        keys = [key for key in store.kvstore.list().result() if b"json" not in key]
        keys = [key for key in keys if not key.startswith(b".")]
        whole = {key: bytes(store.kvstore[key]) for key in keys}
        # A shard with inner chunks of another one may be as good as any.
        others = [] if form in FORMS else list(whole.values())
        if not keys:
            outcomes["nothing stored"] += 1
            continue
        for _ in range(trials):
            damaged = {}
            for key in generator.sample(keys, min(len(keys), generator.choice([1, 1, 1, 2, 5]))):
                damaged[key] = damage(generator, whole[key], others)
                store.kvstore[key] = damaged[key]
            names = [store.kvstore.path + key.decode() for key in damaged]
            begin = time.process_time()
            for wanted, reading in reads(generator, store):
                error = reading.exception(timeout=60)
                if error is not None:
                    assert isinstance(error, CorruptChunkError), (form, repr(error))
                    assert error.key in names, (form, error)
                    assert error.key in str(error)
                    outcomes["error"] += 1
                    continue
                found, right = reading.result(), wanted(written)
                assert (found.shape, found.dtype) == (right.shape, right.dtype.newbyteorder("="))
                same = found.tobytes() == right.astype(found.dtype).tobytes()
                assert same or form not in CHECKSUMMED.union(CHECKED), (form, damaged)
                outcomes["same" if same else "wrong"] += 1
            assert time.process_time() - begin < SLOWEST_S, form
            outcomes["trials"] += 1
            if generator.random() < 0.2:
                write_beside(generator, store, whole, damaged, outcomes)
            for key in damaged:
                store.kvstore[key] = whole[key]
    return outcomes


def write_beside(generator, store, whole, damaged, outcomes):
    """A write of a part either says which key is damaged or is there afterwards."""
    part = some_part(generator, store.shape)
    view = store[part]
    value = elements(generator, view.shape, store.dtype.numpy_dtype)
    refused = view.write(value).exception()
    if refused is not None:
        assert isinstance(refused, CorruptChunkError)
        assert refused.key in [store.kvstore.path + key.decode() for key in damaged]
        outcomes["write refused"] += 1
    else:
        found = view.read().result()
        assert found.tobytes() == value.astype(found.dtype).tobytes()
        outcomes["written"] += 1
    for key in store.kvstore.list().result():
        if key not in whole and b"json" not in key and not key.startswith(b"."):
            del store.kvstore[key]
    for key, encoded in whole.items():
        store.kvstore[key] = encoded


@pytest.mark.matrix("costly")
@pytest.mark.slow
def test_damage_of_any_kind_is_an_error_or_does_no_harm():
    outcomes = fuzz(1, ARRAYS, TRIALS)
    assert outcomes["trials"] > 0.95 * ARRAYS * TRIALS
    assert outcomes["error"] > 1000
    assert outcomes["same"] > 300
    assert outcomes["wrong"] > 50  # Formats without a checksum are among them.
    assert outcomes["written"] > 20
    assert outcomes["write refused"] > 50


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 22))
def test_more_damage(seed):
    assert fuzz(seed, 10 * ARRAYS, TRIALS)["error"] > 10_000
