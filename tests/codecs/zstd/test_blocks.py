"""Headers in compressed Zstandard blocks: what is refused here libzstd refuses too."""

import random
from functools import cache

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.zstd.test_columns import read
from tests.matrix import each, share

IMPOSSIBLE = "zstd: impossible block"


def text(nbytes, seed=0):
    """Words, some of them often, as in text."""
    choose = random.Random(seed)
    letters = "eeeeetttaaoinshrdlucmfw"
    words = ["".join(choose.choices(letters, k=choose.randrange(1, 10))) for _ in range(400)]
    chosen = (words[int(400 * choose.random() ** 3)] for _ in range(nbytes))
    return " ".join(chosen).encode()[:nbytes]


@cache
def payloads_of_many_kinds():
    return list(_payloads())


def _payloads():
    numbers = np.random.default_rng(0)
    for nbytes in (1, 5, 70, 1000, 20_000, 140_000):
        yield numbers.integers(0, 5, nbytes, np.uint8).tobytes()
        yield numbers.normal(size=nbytes // 4 + 1).cumsum().astype("f4").tobytes()
        yield (np.arange(nbytes // 2 + 1) // 7 % 50).astype("<u2").tobytes()
        holes = numbers.integers(0, 2, nbytes, np.uint8)
        yield (holes * numbers.integers(0, 256, nbytes, np.uint8)).tobytes()
        yield text(nbytes, nbytes)


@pytest.mark.parametrize("level", [-5, 1, 3, 9, 19])
def test_encodings_of_the_library_are_never_refused(level):
    payloads = payloads_of_many_kinds()
    compressor = zstandard.ZstdCompressor(level=level)
    found, reasons = read([compressor.compress(payload) for payload in payloads])
    assert reasons == {}
    assert found == [len(payload) for payload in payloads]


def decodes(value):
    try:
        zstandard.ZstdDecompressor().decompress(value, allow_extra_data=False)
    except zstandard.ZstdError:
        return False
    return True


def damaged(count, seed):
    """Frames with a few bytes changed behind their headers, most of them near a block's start."""
    choose = random.Random(seed)
    frames = []
    for level in (-5, 1, 9):
        compressor = zstandard.ZstdCompressor(level=level)
        made = map(compressor.compress, payloads_of_many_kinds())
        frames += [frame for frame in made if 30 < len(frame) < 4000]
    for _ in range(count):
        value = bytearray(choose.choice(frames))
        for _ in range(choose.randrange(1, 4)):
            value[choose.randrange(6, choose.choice([20, len(value)]))] = choose.randrange(256)
        yield bytes(value)


def test_the_library_refuses_refused_values():
    values = list(damaged(2500, 1))
    _, reasons = read(values)
    wrong = [not decodes(value) for value in values]
    # But for streams that do not end with a bit that is set: not every version looks there.
    assert sum(not wrong[row] for row in reasons) <= len(reasons) / 100
    # And much of what it refuses is seen, though no bit of a table or stream is looked at.
    assert sum(wrong) > 1200
    assert len(reasons) > sum(wrong) / 2


VALUES = [zstandard.ZstdCompressor().compress(text(n)) for n in (300, 700, 1500, 3000)]


@settings(max_examples=share(300))
@given(st.sampled_from(VALUES), st.binary(max_size=12), st.integers(0, 60), st.integers(0, 400))
def test_any_bytes_in_a_block_are_refused_or_right_as_far_as_they_lead(value, changed, place, cut):
    damaged = bytearray(value)
    start = min(7 + place, len(value))
    damaged[start : start + len(changed)] = changed
    damaged = bytes(damaged[: len(damaged) - cut if cut < 200 else None])
    found, reasons = read([value, damaged, value])
    assert set(reasons) <= {1}
    assert (1 in reasons) == (found[1] == 0)
    if damaged == value:
        assert not reasons


def frame(*blocks, nbytes):
    """A frame of one segment; blocks are (kind, contents)."""
    made = b"\x28\xb5\x2f\xfd\xa0" + nbytes.to_bytes(4, "little")
    for number, (kind, contents) in enumerate(blocks, 1):
        header = len(contents) << 3 | kind << 1 | (number == len(blocks))
        made += header.to_bytes(3, "little") + contents
    return made


def plain(kind, nbytes):
    """Header of literals that are stored, or one that is repeated, in 12 bits."""
    return (kind | 1 << 2 | nbytes << 4).to_bytes(2, "little")


def packed(kind, form, literals, stored):
    bits, nbytes = {0: (10, 3), 1: (10, 3), 2: (14, 4), 3: (18, 5)}[form]
    header = kind | form << 2 | literals << 4 | stored << (4 + bits)
    return header.to_bytes(nbytes, "little")


def of_library():
    """Contents of the compressed block of a small frame: a tree, four streams, sequences."""
    payload = text(1500)
    value = zstandard.ZstdCompressor(level=3).compress(payload)
    start = len(value) - (int.from_bytes(value[7:10], "little") >> 3)
    assert (value[7] >> 1 & 3, start) == (2, 10)
    contents = value[start:]
    header = int.from_bytes(contents[:5], "little")
    assert (header & 3, header >> 2 & 3) == (2, 1)
    return payload, contents, header >> 4 & 0x3FF, header >> 14 & 0x3FF


ONE_RUN = plain(1, 60) + b"r\0"
RAW = plain(0, 60) + bytes(60) + b"\0"
ONE_SEQUENCE = plain(0, 60) + bytes(range(60)) + b"\1\0" + bytes([1 << 4 | 3, 1])


def test_the_smallest_blocks():
    for contents in (ONE_RUN, RAW):
        value = frame((2, contents), (0, bytes(40)), nbytes=100)
        assert read([value]) == ([100], {})
        assert decodes(value)
    # Without sequences a block decodes to its literals.
    assert read([frame((2, ONE_RUN), nbytes=61)])[1] == {0: "zstd: holds fewer bytes than it says"}
    assert read([frame((2, ONE_RUN), nbytes=59)])[1] == {0: IMPOSSIBLE}
    two = frame((2, ONE_RUN), (2, ONE_RUN), nbytes=119)
    assert read([two])[1] == {0: "zstd: holds more bytes than it says"}
    # Each sequence makes three bytes at the least.
    more = frame((2, ONE_SEQUENCE), (0, bytes(7)), nbytes=69)
    assert read([more])[1] == {0: "zstd: holds more bytes than it says"}
    assert read([frame((2, ONE_SEQUENCE), (0, bytes(7)), nbytes=70)])[1] == {}


WRONG = {
    "no room for the literals": plain(0, 60) + bytes(59),
    "more literals than a block has": plain(1, 101) + b"r\0",
    "no sequences section": plain(0, 60) + bytes(60),
    "something behind no sequences": RAW + b"\1",
    "no sequences in two bytes": plain(0, 60) + bytes(60) + b"\x80\0",
    "a reserved bit of the modes": ONE_SEQUENCE[:-3] + b"\1" + ONE_SEQUENCE[-2:],
    "tables of no block before": ONE_SEQUENCE[:-3] + b"\xfc" + ONE_SEQUENCE[-2:],
    "no stream behind three tables": ONE_SEQUENCE[:-3] + b"\x54\1\1\1",
    "a stream without an end": ONE_SEQUENCE[:-1] + b"\0",
    "a tree of no block before": packed(3, 0, 20, 4) + b"abcd\0",
    "an empty tree": packed(2, 0, 20, 4) + b"\0bcd\0",
    "a tree without streams": packed(2, 0, 20, 4) + b"\3bcd\0",
    "weights without streams": packed(2, 0, 20, 4) + b"\x85bcd\0",
    "literals without an end": packed(2, 0, 20, 4) + b"\1bc\0\0",
    "four streams of too few literals": packed(2, 1, 5, 12) + b"\1b\1\0\1\0\1\0abcd\0",
    "no literals": packed(2, 0, 0, 4) + b"\1bcd\0",
}


@each("what", WRONG)
def test_impossible_blocks_are_found(what):
    value = frame((2, WRONG[what]), nbytes=100)
    assert read([value])[1] == {0: IMPOSSIBLE}
    assert not decodes(value)


def test_impossible_lengths_of_four_streams_are_found():
    payload, contents, literals, stored = of_library()
    whole = frame((2, contents), nbytes=len(payload))
    assert decodes(whole)
    assert read([whole]) == ([len(payload)], {})
    tree = contents[3] + 1
    jumps = 3 + tree
    sizes = [int.from_bytes(contents[jumps + 2 * k :][:2], "little") for k in range(3)]
    assert 0 < sum(sizes) < stored - tree - 6

    def check(position, change, *, is_seen=True):
        changed = contents[:position] + change + contents[position + len(change) :]
        value = frame((2, changed), nbytes=len(payload))
        assert read([value])[1] == {0: IMPOSSIBLE}
        assert not is_seen or not decodes(value)

    for k in range(3):
        check(jumps + 2 * k, b"\0\0")
        check(jumps + 2 * k, (stored - tree - 6).to_bytes(2, "little"))
        check(jumps + 6 + sum(sizes[: k + 1]) - 1, b"\0", is_seen=False)
    check(3 + stored - 1, b"\0", is_seen=False)
    check(0, packed(2, 1, literals, len(contents) - 3))
    check(0, packed(3, 1, literals, stored))


def test_trees_and_tables_of_blocks_before():
    """The same literals again without their tree, the same tables without saying them."""
    payload, contents, literals, stored = of_library()
    tree = contents[3] + 1
    again = packed(3, 1, literals, stored - tree) + contents[3 + tree :]
    both = frame((2, contents), (2, again), nbytes=2 * len(payload))
    assert decodes(both)
    other = frame((0, payload), (2, again), nbytes=2 * len(payload))
    assert not decodes(other)
    single = frame((2, contents), nbytes=len(payload))
    # A frame's tree is not that of the next.
    found, reasons = read([single, both, other, single, other])
    assert reasons == dict.fromkeys((2, 4), IMPOSSIBLE)
    assert found[:2] == [len(payload), 2 * len(payload)]
