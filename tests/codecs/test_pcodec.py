"""``pcodec`` against numcodecs and zarr-python."""

import itertools

import hypothesis.strategies as st
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given

import gpustore
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.codecs import pcodec
from gpustore.data_types.dtype import dtype
from gpustore.errors import CorruptChunkError, MetadataError, UnsupportedError
from gpustore.metadata.component import Component
from gpustore.metadata.named_configuration import NamedConfiguration
from tests.matrix import each

library = pytest.importorskip("pcodec")

TYPES = [f"{kind}{bits}" for bits in (16, 32, 64) for kind in ("int", "uint", "float")]
OPTIONS = [
    {},
    {"level": 0},
    {"level": 12, "mode_spec": "classic"},
    {"delta_spec": "try_consecutive", "delta_encoding_order": 2},
    {"delta_encoding_order": 1},
    {"delta_spec": "try_lookback", "equal_pages_up_to": 50},
]


def elements_of(name, count, seed=0):
    random = np.random.default_rng(seed)
    if seed % 3 == 0:
        return np.frombuffer(random.bytes(count * np.dtype(name).itemsize), name)
    return (random.integers(0, 50, count).cumsum() / (2 if "float" in name else 1)).astype(name)


def chain_of(name, count, **options):
    component = Component.whole(dtype(name))
    return resolve_v2({"id": "pcodec", **options}, None, component, (count,), "C")


@each("options", OPTIONS)
@each("name", TYPES)
@each("count", [1, 700])
def test_values_are_those_of_numcodecs(name, options, count):
    theirs = numcodecs.get_codec({"id": "pcodec", **options})
    chain = chain_of(name, count, **options)
    for seed in range(3):
        elements = elements_of(name, count, seed)
        encoded = bytes(chain.encode(elements.tobytes()))
        assert encoded == bytes(theirs.encode(elements))
        assert bytes(chain.decode(encoded)) == elements.tobytes()
        out = memoryview(bytearray(elements.nbytes))
        assert bytes(chain.decode(encoded, out)) == bytes(out) == elements.tobytes()
        assert np.asarray(theirs.decode(encoded)).tobytes() == elements.tobytes()


def test_no_delta_has_had_two_names():
    """numcodecs 0.16 knows the first one only."""
    elements = elements_of("int32", 300, 1)
    chain = chain_of("int32", 300, delta_spec="none")
    assert bytes(chain.decode(chain.encode(elements.tobytes()))) == elements.tobytes()


CHAINS = [
    (chain_of(name, 90, **options), elements_of(name, 90, seed))
    for name, options, seed in itertools.product(TYPES, OPTIONS, range(2))
]


@given(st.sampled_from(range(len(CHAINS))), st.binary(max_size=40), st.data())
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


@pytest.mark.parametrize(("stored", "message"), [(80, "Not enough data"), (100, "End of data")])
def test_another_count_is_damage(stored, message):
    encoded = chain_of("int32", stored).encode(elements_of("int32", stored, 1).tobytes())
    with pytest.raises(CorruptChunkError, match=message):
        chain_of("int32", 90).decode(encoded)


def test_a_value_that_is_cut_off_is_damaged():
    chain, elements = CHAINS[0]
    encoded = bytes(chain.encode(elements.tobytes()))
    for cut in range(len(encoded)):
        with pytest.raises(CorruptChunkError):
            chain.decode(encoded[:cut])


@each(
    ("name", "options", "message"),
    [
        ("int8", {}, "Only integers and floats"),
        ("complex64", {}, "Only integers and floats"),
        ("int32", {"level": 13}, "level"),
        ("int32", {"mode_spec": "best"}, "mode_spec"),
        ("int32", {"delta_spec": "none", "delta_encoding_order": 1}, "no option of delta_spec"),
        ("int32", {"delta_spec": "try_consecutive"}, "needs"),
        ("int32", {"delta_encoding_order": 8}, "delta_encoding_order"),
        ("int32", {"equal_pages_up_to": 0}, "equal_pages_up_to"),
        ("int32", {"more": 0}, "more"),
    ],
)
def test_invalid_options_are_refused(name, options, message):
    with pytest.raises(MetadataError, match=message):
        chain_of(name, 4, **options)


def test_without_the_library_errors_name_it(monkeypatch):
    monkeypatch.setattr(pcodec, "_library", None)
    message = r"not installed: pip install 'gpustore\[pcodec\]'"
    with pytest.raises(UnsupportedError, match=message):
        chain_of("int32", 4)
    with pytest.raises(UnsupportedError, match=message):
        resolve_v3([NamedConfiguration("numcodecs.pcodec", {})], dtype("int32"), (4,))


def test_after_a_codec_of_any_length_it_is_refused():
    component = Component.whole(dtype("int32"))
    filters = [{"id": "pcodec"}, {"id": "delta", "dtype": "<i4"}]
    with pytest.raises(MetadataError, match="any number of bytes"):
        resolve_v2(None, filters, component, (4,), "C")


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize("options", OPTIONS[::2], ids=str)
@pytest.mark.parametrize("layout", ["C", "F", "shards"])
@pytest.mark.parametrize("version", [2, 3])
def test_exchange_with_zarr_python(tmp_path, version, layout, options):
    if (version, layout) in ((2, "shards"), (3, "F")):
        pytest.skip("Zarr v2 has no shards; zarr-python 3.1 writes transposed ones in wrong order")
    data = elements_of("float32", 9 * 14, 1).reshape(9, 14)
    codec = numcodecs.get_codec({"id": "pcodec", **options})
    more = {"compressors": codec, "zarr_format": 2, "order": layout}
    if version == 3:
        serializer = {"name": "numcodecs.pcodec", "configuration": options}
        more = {"serializer": serializer, "compressors": None, "zarr_format": 3}
        if layout == "shards":
            more["shards"] = (8, 10)
    theirs = zarr.create_array(
        tmp_path / "a", shape=data.shape, chunks=(4, 5), dtype=data.dtype, **more
    )
    theirs[...] = data
    ours = gpustore.open(tmp_path / "a").result()
    assert np.array_equal(ours.read().result(), data)
    assert np.array_equal(ours[::-2, 3:9].read().result(), data[::-2, 3:9])
    ours[2:7] = data[:5]
    expected = data.copy()
    expected[2:7] = data[:5]
    assert np.array_equal(theirs[...], expected)
    spec = {**ours.spec().to_json(), "kvstore": f"file://{tmp_path}/b/"}
    made = gpustore.open(spec, create=True).result()
    made[...] = data
    assert np.array_equal(zarr.open_array(tmp_path / "b", mode="r")[...], data)
