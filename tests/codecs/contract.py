"""Contract of every bytes -> bytes stage, for the test of each codec to call."""

import hypothesis.strategies as st
import numpy as np
import pytest

from gpustore import registry
from gpustore.errors import CorruptChunkError

# Around the sizes at which codecs change their mind: blocks, thresholds of the small paths.
_SIZES = st.one_of(
    st.integers(0, 300),
    st.sampled_from([1023, 4096, 5001, 20_000, 33_000, 70_001, 131_073, 262_145]),
)
_KINDS = st.sampled_from(["zeros", "noise", "steps"])


def stage(name, version="v3", itemsize=2, **options):
    """A stage with the default options of a new array but for `options`."""
    variant = getattr(registry.find("codecs", name), version)
    return variant.prepare(variant.complete(variant, options, itemsize), itemsize)


@st.composite
def payloads(draw):
    """Bytes of many sizes that compress very well, not at all, and like images."""
    nbytes, kind = draw(_SIZES), draw(_KINDS)
    return make_payload(nbytes, kind, draw(st.integers(0, 2**16)))


def make_payload(nbytes, kind, seed=0):
    if kind == "zeros":
        return bytes([seed & 255]) * nbytes
    random = np.random.default_rng(seed)
    if kind == "noise":
        return random.bytes(nbytes)
    steps = random.integers(-3, 4, nbytes // 2 + 1).cumsum()
    return steps.astype("<u2").tobytes()[:nbytes]


def check_round_trip(codec, payload):
    """Encoding and decoding give the bytes back, in every way of asking, within the bound."""
    nbytes = len(payload)
    encoded = codec.encode(memoryview(bytearray(payload)))
    assert len(encoded) <= codec.encoded_bound(nbytes)
    assert bytes(codec.decode(encoded, nbytes, exact=True)) == payload
    assert bytes(codec.decode(memoryview(bytearray(encoded)), nbytes + 7, exact=False)) == payload
    out = bytearray(nbytes + 2)
    decoded = codec.decode(encoded, nbytes, exact=True, out=memoryview(out)[1:-1])
    assert decoded == payload
    assert out == b"\0" + payload + b"\0"
    out = bytearray(nbytes + 5)
    assert codec.decode(encoded, nbytes + 5, exact=False, out=memoryview(out)) == payload
    assert out[:nbytes] == payload


def check_sizes(codec, payload):
    """A wrong decoded size is an error in TensorStore's words, whatever is allowed."""
    encoded, nbytes = codec.encode(payload), len(payload)
    for exact in (True, False):
        with pytest.raises(CorruptChunkError, match="End of data expected") as caught:
            codec.decode(encoded, nbytes - 1, exact=exact)
        assert caught.value.codec == codec.name
    with pytest.raises(CorruptChunkError, match=r"at least .* or 3 more") as caught:
        codec.decode(encoded, nbytes + 3, exact=True)
    assert caught.value.codec == codec.name


def check_damage(codec, payload, *, checksummed):
    """No damage gets through as a crash, another error, or (if checksummed) as wrong bytes."""
    encoded, nbytes = bytes(codec.encode(payload)), len(payload)
    for damaged in (*_truncations(encoded), *_extensions(encoded)):
        with pytest.raises(CorruptChunkError) as caught:
            codec.decode(damaged, nbytes, exact=True)
        assert caught.value.codec == codec.name
    for damaged in _flips(encoded):
        decoded = _decoded_or_none(codec, damaged, nbytes)
        if decoded is not None:
            assert len(decoded) == nbytes
            assert not checksummed or bytes(decoded) == payload


def _decoded_or_none(codec, encoded, nbytes):
    try:
        return codec.decode(encoded, nbytes, exact=True)
    except CorruptChunkError:
        return None


def _truncations(encoded):
    step = max(1, len(encoded) // 100)
    return [encoded[:n] for n in (*range(0, len(encoded), step), len(encoded) - 1)]


def _extensions(encoded):
    return [encoded + more for more in (b"\0", b"x", b"\0" * 8, b"junk" * 5, encoded)]


def _flips(encoded):
    step = max(1, len(encoded) // 200)
    for position in range(0, len(encoded), step):
        for mask in (1, 0x80, 0xFF):
            damaged = bytearray(encoded)
            damaged[position] ^= mask
            yield bytes(damaged)
