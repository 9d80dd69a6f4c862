"""Tables of Blosc frames that the native core writes, against those that NumPy makes."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpustore.backends.native.headers import header_reader
from gpustore.codecs.blosc.device import decode_frames, read_blosc
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.protocol import Spans
from tests.codecs.blosc.test_columns import frame_of

pytestmark = pytest.mark.skipif(header_reader() is None, reason="needs the native core")


class Device:
    """Device that gives out addresses and notes what is asked for; nothing runs."""

    def __init__(self, alignment):
        self.known = SimpleNamespace(
            src_alignment=alignment, detects_damage=True, decoded_max_nbytes=1 << 30
        )
        self.next, self.noted = 1 << 30, []

    def codec(self, name):
        return None if name == "blosclz" else self.known

    def own_kernel_failure(self, codec):
        return None

    def allocate(self, nbytes, stream):
        self.next += nbytes  # Whether memory is asked for at once or in parts does not matter.
        return SimpleNamespace(address=self.next - nbytes)

    def decompress_temp_nbytes(self, *sizes):
        self.noted.append(sizes)
        return 0

    def kernel(self, family, expression):
        return expression

    def fill(self, address, value, nbytes, stream):
        self.noted.append(nbytes)

    def launch(self, kernel, blocks, arguments, stream):
        self.noted.append((kernel, blocks, [int(one) for one in arguments]))

    def decompress(self, batch, stream):
        columns = [batch.src.address, batch.src.nbytes, batch.dst.address, batch.dst.nbytes]
        self.noted.append((batch.codec, [column.tolist() for column in columns]))


def recorded(values, reader, alignment, parts, *, in_room, resident=False):
    """Everything that the decoding of frames asks of a device, and the tables, as values."""
    encoded = EncodedColumns.joined(values)
    encoded.reader = reader
    if parts > 1:  # As several threads bring them.
        known = [
            header_reader().blosc_frames(
                encoded.data, encoded.start[some], encoded.nbytes[some], 1 << 20, exact=False
            )
            for some in np.array_split(np.arange(len(values)), parts)
        ]
        encoded.known = known[0].joined(known[1:])
    device = Device(alignment)
    spans = Spans((encoded.start + 4096).astype("u8"), encoded.nbytes.astype("u8"))
    memory = np.full(1 << 16, 0xEE, np.uint8)
    memory = memory[-(memory.ctypes.data) % 16 :][: 1 << 15]
    room = {"room": memory} if in_room else {}
    longest = max(int.from_bytes(value[4:8], "little") for value in values)
    read = partial(read_blosc, longest, exact=False)
    source = (encoded,)
    if resident:  # Headers were read when the device got the values.
        headers, reasons = read(encoded)
        source = (encoded,) if reasons else (None, headers.take(np.arange(len(values))))
    commands = CommandList(device, None, np.arange(len(values)) + 7, spans, *source, **room)
    columns = commands.read_headers(read)
    decode_frames(commands, device, columns)
    into = memory[: commands.table_nbytes]
    made = np.zeros(commands.table_nbytes, np.uint8) if not in_room else into
    assert len(made) == commands.table_nbytes
    commands.write_tables(made.data)
    commands.run(0, 1 << 20)
    results = np.full(commands.result_nbytes, 0xFF, np.uint8)
    failed = commands.failures(results.data)
    return device.next, device.noted, made.tobytes(), failed, commands.values.address.tolist()


frame_sets = st.builds(
    lambda cname, shuffle, typesize, elements, blocksize, kinds: [
        frame_of(cname, shuffle, typesize, typesize * elements, blocksize, 5, kind)[0]
        for kind in kinds
    ],
    cname=st.sampled_from(["blosclz", "lz4", "lz4hc", "zstd", "zlib"]),
    shuffle=st.sampled_from([0, 1, 2]),
    typesize=st.sampled_from([1, 2, 3, 4, 8, 16]),
    elements=st.sampled_from([8, 64, 800, 801, 4000]),
    blocksize=st.sampled_from([0, 256, 1000, 4096]),
    kinds=st.lists(st.sampled_from(["steps", "noise", "zeros"]), min_size=1, max_size=5),
)


@given(frame_sets, st.sampled_from([1, 4, 8]), st.integers(1, 3), st.booleans(), st.booleans())
@example([frame_of("lz4", 1, 2, 8000, 0, 5, "steps")[0]] * 4, 1, 2, True, False)
def test_tables_are_those_of_numpy(values, alignment, parts, in_room, resident):
    assume(parts <= len(values))
    expected = recorded(values, None, alignment, 1, in_room=False)
    how = {"in_room": in_room, "resident": resident}
    assert recorded(values, header_reader(), alignment, parts, **how) == expected


def test_frames_that_are_alike_are_written_by_the_core():
    for shuffle in (0, 1, 2):
        frame, _ = frame_of("lz4", shuffle, 2, 8000, 0, 5, "steps")
        encoded = EncodedColumns.joined([frame, frame])
        reader = header_reader()
        frames = reader.blosc_frames(encoded.data, encoded.start, encoded.nbytes, 8000, exact=True)
        places = encoded.start.astype("u8") + np.uint64(64), np.arange(2)
        found = reader.frame_tables(frames, *places)
        assert (found.nbytes, found.code, found.typesize, found.shuffle) == (8000, 1, 2, shuffle)
        frame, src, src_nbytes, _, dst_nbytes = frames.whole.streams
        is_compressed = src_nbytes != dst_nbytes
        begin = (places[0].view("i8")[frame] + src)[is_compressed]
        counts = found.compressed, found.stored, found.src_bits
        assert counts == (len(begin), sum(~is_compressed), np.bitwise_or.reduce(begin))
    other, _ = frame_of("lz4", 1, 4, 8000, 0, 5, "steps")
    encoded = EncodedColumns.joined([frame, other])
    frames = reader.blosc_frames(encoded.data, encoded.start, encoded.nbytes, 8000, exact=True)
    assert reader.frame_tables(frames, *places) is None
