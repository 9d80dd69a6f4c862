"""What kernels do, in NumPy: each function has the name of a kernel and replays one launch of it.

Memory is a :class:`Memory`, bytes at addresses. Every access is checked: inside the buffers,
aligned as the kernel requires, and no byte written twice in a launch.
"""

import re

import ml_dtypes
import numpy as np

from gpustore.device.kernels import instance


class Memory:
    """Buffers at addresses; the bytes between them do not exist."""

    def __init__(self):
        self._buffers = []

    def add(self, array, address):
        """Let the bytes of a 1-D uint8 array lie at `address`."""
        self._buffers.append((address, array, np.zeros(len(array), bool)))

    def _locate(self, addresses):
        for address, array, written in self._buffers:
            inside = (addresses >= address) & (addresses < address + len(array))
            if inside.all():
                return addresses - address, array, written
            assert not inside.any(), "a run leaves its buffer"
        raise AssertionError("an access outside of all buffers")

    def read(self, addresses):
        place, array, _ = self._locate(addresses)
        return array[place]

    def write(self, addresses, values):
        place, array, written = self._locate(addresses)
        assert not written[place].any(), "a byte is written twice"
        assert len(np.unique(place)) == place.size, "a byte is written twice"
        written[place] = True
        array[place] = values

    def begin(self):
        """A new batch of launches, whose writes are compared with one another."""
        for _, _, written in self._buffers:
            written[:] = False


def width(expression):
    return {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "u128": 16}[
        re.search(r"<gs::(\w+),", expression)[1]
    ]


def addresses(run, offsets=None):
    """Addresses of all items of a run, on both sides."""
    src = np.array([run["src"]]).astype(np.int64)
    dst = np.array([run["dst"]]).astype(np.int64)
    for dim in run["dim"]:
        index = np.arange(dim["extent"])
        src_step, dst_step = index * dim["src_stride"], index * dim["dst_stride"]
        if dim["indexed"] & 1:
            src_step = offsets[dim["src_stride"] + index]
        if dim["indexed"] & 2:
            dst_step = offsets[dim["dst_stride"] + index]
        src = np.add.outer(src, src_step).ravel()
        dst = np.add.outer(dst, dst_step).ravel()
    return src, dst


def _check_table(launch, tiles):
    first = launch.table["first_tile"].astype(np.int64)
    assert first[0] == 0
    assert (np.diff(first) == tiles[:-1]).all()
    assert launch.blocks == first[-1] + tiles[-1]


def _check_divisions(dim, divisor):
    for a in {0, 1, divisor - 1, divisor, 2 * divisor, 2**31 - 1}:
        quotient = a if divisor == 1 else (a * int(dim["magic"]) >> 32) >> int(dim["shift"])
        assert quotient == a // divisor


def copy_strided(launch, memory):
    size = width(launch.expression)
    unit = int(launch.arguments[0])
    assert unit <= size
    table = launch.table
    items = np.prod(table["dim"]["extent"].astype(np.int64), axis=1)
    assert (items == table["items"]).all()
    assert (items < 2**31).all()
    tile = 64 if size <= 2 else 32
    if "tiled" in launch.expression:
        steps = table["dim"]["extent"].astype(np.int64)
        steps[:, -2:] = -(-steps[:, -2:] // tile)
        _check_table(launch, np.prod(steps, axis=1))
    else:
        steps = table["dim"]["extent"]
        _check_table(launch, -(-items // 1024))
    within = np.arange(size)
    for run, divisors in zip(table, steps, strict=True):
        for dim, divisor in zip(run["dim"], divisors, strict=True):
            _check_divisions(dim, int(divisor))
        src, dst = addresses(run, launch.offsets)
        assert not (src % size).any()
        assert not (dst % size).any()
        values = memory.read(src[:, None] + within)
        values = values.reshape(len(src), -1, unit)[:, :, ::-1].reshape(len(src), size)
        memory.write(dst[:, None] + within, values)


copy_tiled = copy_strided
copy_indexed = copy_strided


def _dtype(name):
    """The NumPy dtype of a type of kernels/cast.cu."""
    named = (text for text, found in instance.CASTS.items() if found == name)
    text = next(text for text in named if text != "|b1")  # Converted as what it is stored as.
    return np.dtype(ml_dtypes.bfloat16 if text == "bfloat16" else text)


def cast_strided(launch, memory):
    names = re.findall(r"gs::(?!cast)\w+", launch.expression)
    source, target = map(_dtype, names)
    tiled = "tiled" in launch.expression
    neighbours = 1 if tiled else int(re.search(r", (\d+), \d+>", launch.expression)[1])
    unit, *flags = map(int, launch.arguments)
    assert unit in (1, source.itemsize)
    bytewise = flags == [1]
    assert not (bytewise and neighbours > 1)
    table = launch.table
    items = np.prod(table["dim"]["extent"].astype(np.int64), axis=1)
    assert (items == table["items"]).all()
    steps = table["dim"]["extent"].astype(np.int64)
    if tiled:
        steps[:, -2:] = -(-steps[:, -2:] // (64 if target.itemsize == 2 else 32))
        _check_table(launch, np.prod(steps, axis=1))
    else:
        _check_table(launch, -(-items // 1024))
    for run, divisors in zip(table, steps, strict=True):
        for dim, divisor in zip(run["dim"], divisors, strict=True):
            _check_divisions(dim, int(divisor))
        src, dst = addresses(run)
        sides = []
        for places, dtype in ((src, source), (dst, target)):
            nbytes = neighbours * dtype.itemsize
            assert bytewise or not (places % min(nbytes, 16)).any()
            sides.append(places[:, None] + np.arange(nbytes))
        values = memory.read(sides[0]).reshape(-1, unit)[:, ::-1]
        values = np.ascontiguousarray(values).view(np.uint8).reshape(-1).view(source)
        with np.errstate(all="ignore"):
            found = np.ascontiguousarray(values.astype(target))
        memory.write(sides[1], found.view(np.uint8).reshape(sides[1].shape))


cast_tiled = cast_strided


def fill_strided(launch, memory):
    size = width(launch.expression)
    (pattern,) = launch.arguments
    assert pattern.nbytes == size
    items = np.prod(launch.table["dim"]["extent"].astype(np.int64), axis=1)
    assert (items == launch.table["items"]).all()
    _check_table(launch, -(-items // 1024))
    for run in launch.table:
        _, dst = addresses(run)
        assert not (dst % size).any()
        memory.write(dst[:, None] + np.arange(size), pattern)


def copy_stream(launch, memory):
    nbytes = launch.table["nbytes"].astype(np.int64)
    _check_table(launch, -(-(nbytes + launch.table["dst"].astype(np.int64) % 16) // 16384))
    for found in launch.table:
        within = np.arange(found["nbytes"]).astype(np.int64)
        memory.write(int(found["dst"]) + within, memory.read(int(found["src"]) + within))


def _converted(launch, memory, tile, convert):
    _check_table(launch, -(-launch.table["elements"].astype(np.int64) // tile))
    fixed = re.search(r"<(\d+)>", launch.expression)
    for block in launch.table:
        n, typesize = int(block["elements"]), int(block["typesize"])
        assert fixed is None or int(fixed[1]) == typesize
        within = np.arange(n * typesize)
        data = memory.read(int(block["src"]) + within)
        memory.write(int(block["dst"]) + within, convert(data, n))


def _check_words(table, planes, elements):
    assert not (table["elements"] % 4).any()
    assert not (table[planes] % 4).any()
    assert not (table[elements] % np.minimum(4 * table["typesize"], 16)).any()


def unshuffle(launch, memory):
    _check_words(launch.table, "src", "dst")
    _converted(launch, memory, 1024, lambda data, n: data.reshape(-1, n).T.ravel())


def shuffle(launch, memory):
    _check_words(launch.table, "dst", "src")
    _converted(launch, memory, 1024, lambda data, n: data.reshape(n, -1).T.ravel())


def unshuffle_any(launch, memory):
    _converted(launch, memory, 128, lambda data, n: data.reshape(-1, n).T.ravel())


def shuffle_any(launch, memory):
    _converted(launch, memory, 128, lambda data, n: data.reshape(n, -1).T.ravel())


def bit_unshuffle_any(launch, memory):
    assert not (launch.table["elements"] % 8).any()

    def undo(data, n):
        bits = np.unpackbits(data, bitorder="little").reshape(-1, n).T
        return np.packbits(bits, bitorder="little")

    _converted(launch, memory, 2048, undo)


def bit_shuffle_any(launch, memory):
    assert not (launch.table["elements"] % 8).any()

    def transpose(data, n):
        bits = np.unpackbits(data, bitorder="little").reshape(n, -1).T
        return np.packbits(bits, bitorder="little")

    _converted(launch, memory, 2048, transpose)


def bit_unshuffle(launch, memory):
    assert not (launch.table["dst"] % np.minimum(8 * launch.table["typesize"], 16)).any()
    bit_unshuffle_any(launch, memory)


def bit_shuffle(launch, memory):
    assert not (launch.table["src"] % np.minimum(8 * launch.table["typesize"], 16)).any()
    bit_shuffle_any(launch, memory)


def replay(launches, memory):
    """All launches of one batch."""
    memory.begin()
    for launch in launches:
        globals()[re.match(r"gs::(\w+)", launch.expression)[1]](launch, memory)
