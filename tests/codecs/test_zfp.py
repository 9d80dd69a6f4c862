"""``zfp`` and numcodecs' ``zfpy`` against the library, numcodecs and zarr-python."""

import itertools

import hypothesis.strategies as st
import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given

import gpustore
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.codecs import _zfp
from gpustore.data_types.dtype import dtype
from gpustore.errors import CorruptChunkError, LimitError, MetadataError, UnsupportedError
from gpustore.metadata.component import Component
from gpustore.metadata.named_configuration import NamedConfiguration
from tests.matrix import each
from tests.on_device import emulated, on_host

zfpy = pytest.importorskip("zfpy")

MODES = {
    "reversible": {},
    "fixed_accuracy": {"tolerance": 0.05},
    "fixed_rate": {"rate": 10.5},
    "fixed_precision": {"precision": 14},
}
SHAPES = [(), (7,), (5, 6), (4, 5, 3), (3, 4, 5, 6)]
TYPES = ["int32", "int64", "float32", "float64"]
IDS = {"ids": str}


def elements_of(name, shape, seed=0):
    random = np.random.default_rng(seed)
    found = random.integers(-100, 100, shape) + (random.random(shape) if "float" in name else 0)
    return np.asarray(np.abs(found) if "uint" in name else found).astype(dtype(name).numpy_dtype)


def zfp_chain(name, shape, mode, **options):
    codec = NamedConfiguration("zfp", {"mode": mode, **options})
    return resolve_v3([codec], dtype(name), shape)


def zfpy_chain(name, shape, order="C", **options):
    component = Component.whole(dtype(name))
    return resolve_v2({"id": "zfpy", **options}, None, component, shape, order)


def decoded(chain, encoded, like):
    return np.frombuffer(chain.decode(encoded), like.dtype).reshape(like.shape)


# --------------------------------------------------------------------------- values


@each("mode", MODES)
@each("name", TYPES)
@each("shape", SHAPES)
def test_values_are_those_of_the_library(shape, name, mode):
    elements, options = elements_of(name, shape), MODES[mode]
    chain = zfp_chain(name, shape, mode, **options)
    encoded = bytes(chain.encode(elements.tobytes()))
    whole = np.atleast_1d(elements)
    assert encoded == zfpy.compress_numpy(whole, write_header=False, **options)
    ztype = zfpy.dtype_to_ztype(whole.dtype)
    expected = zfpy._decompress(encoded, ztype, whole.shape, **options)
    assert bytes(chain.decode(encoded)) == expected.tobytes()
    out = memoryview(bytearray(elements.nbytes))
    assert bytes(chain.decode(encoded, out)) == bytes(out) == expected.tobytes()
    if mode == "reversible":
        assert expected.tobytes() == elements.tobytes()
    if mode == "fixed_accuracy" and "float" in name:  # Of integers zfp promises nothing.
        assert np.abs(expected.reshape(shape) - elements).max() <= 0.05


NUMCODECS = [
    {"mode": 4, "tolerance": 0.05, "rate": -1, "precision": -1},
    {"mode": 4},
    {"mode": 2, "rate": 10.5},
    {"mode": 3, "precision": 14},
]


@each("options", NUMCODECS)
@each("name", TYPES)
@each("shape", SHAPES[1:])
def test_values_with_a_header_are_those_of_numcodecs(shape, name, options):
    elements = elements_of(name, shape)
    theirs = numcodecs.get_codec({"id": "zfpy", **options})
    chain = zfpy_chain(name, shape, **options)
    encoded = bytes(chain.encode(elements.tobytes()))
    assert encoded == bytes(theirs.encode(elements))
    assert bytes(chain.decode(encoded)) == np.asarray(theirs.decode(encoded)).tobytes()
    # Behind the header it is the stream that ``zfp`` has.
    parameter = {key: options[key] for key in ("tolerance", "rate", "precision") if key in options}
    parameter = {key: value for key, value in parameter.items() if value != -1}
    plain = zfpy.compress_numpy(elements, write_header=False, **parameter)
    if (shape, options["mode"]) == (SHAPES[-1], 2):
        return  # Of a header for so many bits the length is no multiple of 8.
    stream = encoded[12:]
    size = max(len(stream), len(plain))
    assert stream.ljust(size, b"\0") == plain.ljust(size, b"\0")


SMALL = {
    "int8": (np.int32, 23, 0),
    "uint8": (np.int32, 23, 0x80),
    "int16": (np.int32, 15, 0),
    "uint16": (np.int32, 15, 0x8000),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_integers_are_promoted_as_the_registry_says(name):
    coded, shift, zero = SMALL[name]
    limits = np.iinfo(name)
    elements = np.linspace(limits.min, limits.max, 60).astype(name).reshape(5, 12)
    chain = zfp_chain(name, (5, 12), "reversible")
    encoded = bytes(chain.encode(elements.tobytes()))
    promoted = (elements.astype(coded) - coded(zero)) << shift
    assert encoded == zfpy.compress_numpy(promoted, write_header=False)
    assert np.array_equal(decoded(chain, encoded, elements), elements)
    # What loss makes too large is the nearest number there is.
    rough = zfp_chain(name, (5, 12), "fixed_precision", precision=2)
    stored = rough.encode(elements.tobytes())
    ztype = zfpy.dtype_to_ztype(np.dtype(coded))
    lossy = zfpy._decompress(bytes(stored), ztype, (5, 12), precision=2).astype(np.int64)
    nearest = np.clip((lossy >> shift) + zero, limits.min, limits.max)
    assert np.array_equal(decoded(rough, stored, elements), nearest)
    assert nearest.max() == limits.max


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_short_floats_are_promoted(name):
    elements = elements_of(name, (5, 7))
    chain = zfp_chain(name, (5, 7), "reversible")
    encoded = bytes(chain.encode(elements.tobytes()))
    assert encoded == zfpy.compress_numpy(elements.astype(np.float32), write_header=False)
    assert decoded(chain, encoded, elements).tobytes() == elements.tobytes()
    assert name != "bfloat16" or elements.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("bits", [32, 64])
def test_large_unsigned_integers_are_refused_not_changed(bits):
    name, most = f"uint{bits}", 2 ** (bits - 1) - 1
    chain = zfp_chain(name, (4,), "reversible")
    elements = np.array([0, 1, most, 7], name)
    assert np.array_equal(decoded(chain, chain.encode(elements.tobytes()), elements), elements)
    with pytest.raises(LimitError, match=f"up to {most}"):
        chain.encode(np.array([0, 1, most + 1, 7], name).tobytes())
    # Loss may make numbers below 0, which there are none of.
    below = zfpy.compress_numpy(np.array([-5, 3, 0, 9], f"int{bits}"), write_header=False)
    assert decoded(chain, below, elements).tolist() == [0, 3, 0, 9]


# --------------------------------------------------------------------------- damage


def _chains():
    for shape, name, mode in itertools.product(SHAPES[1:], TYPES, MODES):
        yield zfp_chain(name, shape, mode, **MODES[mode]), elements_of(name, shape)
    for shape, name, options in itertools.product(SHAPES[1:], TYPES, NUMCODECS):
        yield zfpy_chain(name, shape, **options), elements_of(name, shape)


CHAINS = list(_chains())


@given(st.sampled_from(range(len(CHAINS))), st.data())
def test_a_value_that_is_cut_off_is_damaged(index, data):
    """Unless what is missing are bits that no element has."""
    chain, elements = CHAINS[index]
    encoded = bytes(chain.encode(elements.tobytes()))
    cut = data.draw(st.integers(0, len(encoded) - 1))
    try:
        found = bytes(chain.decode(encoded[:cut]))
    except CorruptChunkError:
        return
    assert found == bytes(chain.decode(encoded))


@given(st.sampled_from(range(len(CHAINS))), st.binary(min_size=1, max_size=60), st.data())
def test_any_bytes_are_elements_or_damage(index, more, data):
    chain, elements = CHAINS[index]
    encoded = bytes(chain.encode(elements.tobytes()))
    start = data.draw(st.integers(0, len(encoded)))
    kept = data.draw(st.integers(0, len(encoded)))
    try:
        found = chain.decode(encoded[:start] + more + encoded[kept:])
    except CorruptChunkError:
        return
    assert len(found) == elements.nbytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((0, b"ZFP"), "No header of zfp"),
        ((3, b"\x01"), "zfp: Failed to read"),
        ((4, b"\x00"), "type .* and shape"),
        ((8, b"\xff"), "type .* and shape"),
        # 2000 bits a block; those of 4 x 4 floats have 688 at most.
        ((10, b"\x00\x7d"), "2001 bits a block"),
    ],
)
def test_headers_are_compared(change, message):
    start, more = change
    elements = elements_of("float32", (5, 6))
    chain = zfpy_chain("float32", (5, 6), mode=4, tolerance=0.05)
    encoded = bytearray(chain.encode(elements.tobytes()))
    encoded[start : start + len(more)] = more
    with pytest.raises(CorruptChunkError, match=message):
        chain.decode(bytes(encoded))


def test_a_header_of_another_shape_costs_no_memory():
    """numcodecs would make 32 GiB of it."""
    chain = zfpy_chain("float64", (4,), mode=4)
    huge = (2**32 - 1) << 4 | 3  # One dimension of doubles; the mode is that of 1 bit.
    header = b"zfp\x05" + huge.to_bytes(8, "little")
    with pytest.raises(CorruptChunkError, match="expected float64 and"):
        chain.decode(header + bytes(20))


def test_fixed_rates_have_one_size():
    chain = zfp_chain("float32", (8, 8), "fixed_rate", rate=8)
    encoded = bytes(chain.encode(elements_of("float32", (8, 8)).tobytes()))
    assert len(encoded) == 64
    for wrong, message in ((encoded[:-1], "Not enough data"), (encoded + b"\0", "End of data")):
        with pytest.raises(CorruptChunkError, match=message):
            chain.decode(wrong)


# --------------------------------------------------------------------------- options and limits


@each(
    ("name", "shape", "options", "error", "message"),
    [
        ("float32", (4,), {}, MetadataError, '"mode"'),
        ("float32", (4,), {"mode": "best"}, MetadataError, "Expected one of"),
        ("float32", (4,), {"mode": "fixed_rate"}, MetadataError, 'needs "rate"'),
        ("float32", (4,), {"mode": "fixed_rate", "rate": 65}, MetadataError, r"\(0, 64\]"),
        ("float32", (4,), {"mode": "fixed_accuracy", "tolerance": -1}, MetadataError, "at least"),
        ("float32", (4,), {"mode": "fixed_precision", "precision": 0}, MetadataError, "precision"),
        ("float32", (4,), {"mode": "reversible", "rate": 1}, MetadataError, "no option of mode"),
        ("float32", (4,), {"mode": "reversible", "more": 1}, MetadataError, "more"),
        (
            "float32",
            (4,),
            {"mode": "expert", "minbits": 1, "maxbits": 13, "maxprec": 19, "minexp": -2},
            UnsupportedError,
            "does not have it",
        ),
        ("complex64", (4,), {"mode": "reversible"}, MetadataError, "complex64"),
        ("bool", (4,), {"mode": "reversible"}, MetadataError, "bool"),
        ("float32", (2,) * 5, {"mode": "reversible"}, MetadataError, '"reshape" before'),
        ("float32", (10**6, 1, 1, 1), {"mode": "reversible"}, LimitError, "several times 4"),
    ],
)
def test_invalid_options_are_refused(name, shape, options, error, message):
    with pytest.raises(error, match=message):
        resolve_v3([NamedConfiguration("zfp", options)], dtype(name), shape)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("int16", {}, MetadataError, "Only int32"),
        ("float32", {"mode": 5}, UnsupportedError, "known are 2, 3 and 4"),
        ("float32", {"mode": 2}, MetadataError, "rate in"),
        ("float32", {"mode": 3, "precision": 2.5}, MetadataError, "precision from"),
        ("float32", {"tolerance": -2}, MetadataError, "-1 or number"),
    ],
)
def test_options_that_are_refused_of_zfpy(name, options, error, message):
    with pytest.raises(error, match=message):
        zfpy_chain(name, (4,), **options)


def test_zfpy_is_not_for_the_other_byte_order():
    component = Component.whole(dtype("float32")).with_byteorder(">")
    with pytest.raises(MetadataError, match="byte order of the machine"):
        resolve_v2({"id": "zfpy"}, None, component, (4,), "C")


@pytest.mark.parametrize("name", ["zfp", "numcodecs.zfpy"])
def test_without_the_library_errors_name_it(name, monkeypatch):
    monkeypatch.setattr(_zfp, "_library", None)
    options = {"mode": "reversible"} if name == "zfp" else {}
    with pytest.raises(UnsupportedError, match=r"zfpy, which is not installed.*gpustore\[zfp\]"):
        resolve_v3([NamedConfiguration(name, options)], dtype("float32"), (4,))


# --------------------------------------------------------------------------- arrays

_IGNORED = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
DATA = elements_of("float64", (9, 14))


@_IGNORED
@pytest.mark.parametrize("options", NUMCODECS, **IDS)
@pytest.mark.parametrize("version", [2, 3])
def test_exchange_with_zarr_python(tmp_path, version, options):
    more = {"compressors": numcodecs.get_codec({"id": "zfpy", **options}), "zarr_format": 2}
    if version == 3:
        serializer = {"name": "numcodecs.zfpy", "configuration": options}
        more = {"serializer": serializer, "compressors": None, "zarr_format": 3}
    theirs = zarr.create_array(
        tmp_path / "a", shape=DATA.shape, chunks=(4, 5), dtype=DATA.dtype, **more
    )
    theirs[...] = DATA
    ours = gpustore.open(tmp_path / "a").result()
    assert np.array_equal(ours.read().result(), theirs[...])
    assert np.array_equal(ours[::-2, 3:9].read().result(), theirs[...][::-2, 3:9])
    ours[...] = DATA[::-1]
    assert np.abs(theirs[...] - DATA[::-1]).max() < 10
    spec = {**ours.spec().to_json(), "kvstore": f"file://{tmp_path}/b/"}
    made = gpustore.open(spec, create=True).result()
    made[...] = DATA
    found = zarr.open_array(tmp_path / "b", mode="r")[...]
    assert np.array_equal(found, made.read().result())
    assert np.abs(found - DATA).max() < 10


def test_order_f_and_transposes_have_the_transposed_shape(tmp_path):
    metadata = {"shape": [9, 14], "chunks": [4, 5], "dtype": "<f8", "order": "F"}
    spec = {
        "driver": "zarr",
        "kvstore": f"file://{tmp_path}/",
        "metadata": {**metadata, "compressor": {"id": "zfpy"}},
    }
    store = gpustore.open(spec, create=True).result()
    store[...] = DATA
    assert np.array_equal(store.read().result(), DATA)
    stored = zfpy.decompress_numpy((tmp_path / "0.0").read_bytes())
    assert np.array_equal(stored, DATA[:4, :5].T)


@pytest.mark.parametrize("sharded", [False, True])
def test_arrays_of_zarr_v3_on_both_devices(sharded):
    zfp = {"name": "zfp", "configuration": {"mode": "fixed_accuracy", "tolerance": 0.01}}
    transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
    codecs = [transpose, zfp, {"name": "crc32c"}]
    if sharded:
        inner = {"chunk_shape": [2, 5], "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    metadata = {
        "shape": [9, 14],
        "data_type": "float64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 5]}},
        "codecs": codecs,
    }
    context = gpustore.Context()
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    store = gpustore.open(spec, create=True, context=context).result()
    store[...] = DATA
    found = store.read().result()
    assert 0 < np.abs(found - DATA).max() <= 0.01
    with emulated() as device:
        other = gpustore.open(store.spec(), device=device.name, context=context).result()
        future = other[1:8].read()
        assert np.array_equal(on_host(device, future.result()), found[1:8])
        assert future.statistics["host_fallbacks"] > 0
        del future, other
