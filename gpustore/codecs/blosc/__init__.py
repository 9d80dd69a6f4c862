"""The ``blosc`` codec.

============  ====================================================================
content       Blosc 1 frames: shuffled blocks, each compressed on its own
specification https://zarr-specs.readthedocs.io/en/latest/v3/codecs/blosc/index.html
frame format  https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst
v3 name       ``blosc``
v2 id         ``blosc``
============  ====================================================================

Zarr v3::

    {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle",
                                        "typesize": 4, "blocksize": 0}}

Zarr v2::

    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0}

``shuffle`` is a word in v3 and a number in v2: 0 none, 1 bytes, 2 bits, -1 by the element size.
``typesize`` is required in v3 unless nothing is shuffled; in v2 it is the element size, and a
``typesize`` member (null or a number) is read because numcodecs writes it. A ``blocksize`` of 0
lets Blosc choose. Blosc 2 frames are not Blosc 1 frames and are refused.

numcodecs' Blosc is built without Snappy, so frames with Snappy are converted to another code and
back; see :func:`recode`. With cramjam (``pip install gpustore[snappy]``) reading is fast and
writing possible; without it reading is slow.

The library trusts the header of a frame, so it is checked here first; see :func:`read_header`.

A device decodes frames of all compressors and shuffles (:mod:`gpustore.codecs.blosc.device`), and
encodes those with LZ4, zlib and Zstandard inside (:mod:`gpustore.codecs.blosc.encode`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from gpustore.codec_chain.base import BytesCodec, check_nbytes, deliver
from gpustore.codec_chain.device_segments import HIGHEST_LEVELS, EncodedValues
from gpustore.codec_chain.registered import (
    ABSENT,
    Codec,
    CodecVariant,
    Option,
    Options,
    choice,
    fill_defaults,
    integer,
)
from gpustore.codecs.blosc import snappy
from gpustore.codecs.blosc.block import MAX_BLOCKSIZE, blocksize_of, streams_of
from gpustore.codecs.blosc.device import DEVICE_CODECS, decode_frames, read_blosc
from gpustore.codecs.blosc.encode import BloscFrames
from gpustore.codecs.blosc.frame import (
    CODES,
    HEADER_NBYTES,
    BloscHeader,
    invalid,
    read_header,
    recode,
    take_blocks,
    with_code,
)
from gpustore.device.command_list import CommandList
from gpustore.device.encoding_list import EncodingList, cannot_compress
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import LimitError, MetadataError, UnsupportedError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    expect_int,
    expect_str,
    in_member,
    text,
)

_CNAMES: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_NATIVE_CNAMES: Final = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")  # As in kernels/host/encode.h.
_SNAPPY: Final = CODES.index("snappy")
_LZ4: Final = CODES.index("lz4")

_MAX_NBYTES: Final = 2**31 - 1 - 16
_MAX_TYPESIZE: Final = 255

# Below this a new bytes object that is then copied costs less than numcodecs' checks of `out`.
_SMALL_NBYTES: Final = 32 << 10

# Smaller blocks are decompressed in less time than it takes to find them.
_PART_NBYTES: Final = 256

# Highest levels that a device encodes, where those of the compressor inside are higher ones.
_HIGHEST_CLEVELS: Final = {
    "lz4": 9,
    "zlib": HIGHEST_LEVELS["deflate"],
    "zstd": (HIGHEST_LEVELS["zstd"] + 1) // 2,
}


@dataclass(frozen=True, slots=True)
class _Blosc(BytesCodec):
    name = "blosc"
    decode_ns = 0.35
    decodes_parts = True
    cname: str
    clevel: int
    shuffle: int
    typesize: int
    blocksize: int

    @property
    def native_codec(self) -> str:
        return "blosc"

    def native_options(self, decoded_nbytes: int) -> Mapping[str, int] | None:
        """Return the options of Blosc; the core has no Snappy."""
        if self.cname == "snappy" or decoded_nbytes > _MAX_NBYTES:
            return None
        return {
            "level": self.clevel,
            "shuffle": self.shuffle,
            "typesize": self.typesize,
            "blocksize": self.blocksize,
            "compressor": _NATIVE_CNAMES.index(self.cname),
        }

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of stored blocks in bytes, with room for other encoders."""
        return decoded_nbytes + (decoded_nbytes >> 8) + 4096

    def encode(self, decoded: Buffer) -> Buffer:
        if self.cname == "snappy" and not snappy.can_encode():
            raise UnsupportedError(
                'blosc: encoding with cname "snappy" needs cramjam: pip install gpustore[snappy]'
            )
        if len(decoded) > _MAX_NBYTES:
            raise LimitError(
                f"blosc: a chunk of {len(decoded)} bytes exceeds the format's limit of "
                f"{_MAX_NBYTES}: choose smaller chunks"
            )
        is_snappy = self.cname == "snappy"
        encoded: bytes = _library().compress(
            decoded,
            b"lz4" if is_snappy else self.cname.encode(),
            self.clevel,
            self.shuffle,
            self.blocksize,
            self.typesize,
        )
        return _to_snappy(encoded, decoded) if is_snappy else encoded

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one frame with any compressor."""
        header = _header(encoded, decoded_max, exact=exact)
        return self._decode(encoded, header, decoded_max, exact=exact, out=out)

    def decode_part(
        self, encoded: Buffer, nbytes: int, start: int, stop: int, out: memoryview
    ) -> tuple[Buffer, int]:
        """Decode the whole blocks that hold a range of the decoded bytes."""
        header = _header(encoded, nbytes, exact=True)
        if header.is_stored or header.nbytes == 0:
            return memoryview(encoded)[HEADER_NBYTES + start : HEADER_NBYTES + stop], start
        if header.blocksize < _PART_NBYTES:
            return self._decode(encoded, header, nbytes, exact=True, out=out), 0
        frame, begin = take_blocks(memoryview(encoded), header, start, stop)
        part = read_header(frame)
        return self._decode(frame, part, part.nbytes, exact=True, out=out[: part.nbytes]), begin

    @property
    def device_codec(self) -> str:
        return DEVICE_CODECS[self.cname]

    @property
    def device_outputs(self) -> int:
        """Return 1, and 1 more for the shuffled bytes."""
        return 1 if self.shuffle == 0 else 2

    def device_streams(self, decoded_nbytes: int) -> tuple[int, int]:
        """Return the streams of the blocks of a frame."""
        return streams_of(
            decoded_nbytes,
            cname=self.cname,
            clevel=self.clevel,
            typesize=self.typesize,
            blocksize=self.blocksize,
        )

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of frames with any compressor and shuffle."""
        columns = self._headers(commands, partial(read_blosc, decoded_max, exact=exact))
        if columns is not None:
            decode_frames(commands, device, columns)

    def encode_unsupported_reason(self, device: Decoders, decoded_nbytes: int) -> str | None:
        """Return why a device encodes no frames: compressor, level, size or a missing library."""
        highest = _HIGHEST_CLEVELS.get(self.cname)
        if highest is None:
            return f"blosc: the host encodes with {self.cname}"
        if self.clevel > highest:
            return f"blosc: the host encodes levels above {highest} with {self.cname}"
        if decoded_nbytes > _MAX_NBYTES:
            return f"blosc: a chunk of {decoded_nbytes} bytes is too long for a frame"
        block_nbytes = blocksize_of(
            self.cname, self.clevel, self.typesize, decoded_nbytes, self.blocksize
        )
        return cannot_compress(device, DEVICE_CODECS[self.cname], block_nbytes)

    def encode_device(self, commands: EncodingList) -> EncodedValues:
        """Record the encoding of each value as one frame."""
        return BloscFrames(
            *(commands, self.cname, self.clevel, self.shuffle, self.typesize, self.blocksize)
        )

    @staticmethod
    def _decode(
        encoded: Buffer,
        header: BloscHeader,
        decoded_max: int,
        *,
        exact: bool,
        out: memoryview | None,
    ) -> Buffer:
        nbytes = header.nbytes
        if header.is_stored or nbytes == 0:
            view = memoryview(encoded)[HEADER_NBYTES : HEADER_NBYTES + nbytes]
            return deliver(view, decoded_max, exact=exact, out=out)
        if header.flags >> 5 == _SNAPPY:
            encoded = recode(memoryview(encoded), header, _LZ4, _from_snappy)
        try:
            if out is None or nbytes <= _SMALL_NBYTES:
                decoded = _library().decompress(encoded)
                return deliver(decoded, decoded_max, exact=exact, out=out)
            _library().decompress(encoded, out[:nbytes])
        except (RuntimeError, ValueError) as error:
            raise invalid(str(error)) from error
        return out[:nbytes]


@cache
def _library() -> Any:
    """Import numcodecs' Blosc, on use: the package imports all of its codecs."""
    import numcodecs.blosc

    # numcodecs' default is Blosc's own threads when called from the main thread, behind one global
    # lock. Chunks are what this library runs in parallel. zarr-python sets the same.
    numcodecs.blosc.use_threads = False
    return numcodecs.blosc


def _header(encoded: Buffer, decoded_max: int, *, exact: bool) -> BloscHeader:
    """Return the header of a frame of an acceptable size."""
    header = read_header(encoded)
    check_nbytes(header.nbytes, decoded_max, exact=exact, codec="blosc")
    return header


def _from_snappy(stream: memoryview, nbytes: int, is_stored: bool) -> Buffer:
    if is_stored:
        return stream
    try:
        return snappy.decode(stream, nbytes)
    except ValueError as error:
        raise invalid(str(error)) from error


def _to_snappy(frame: bytes, decoded: Buffer) -> Buffer:
    """Convert a frame from LZ4 to Snappy."""
    header = read_header(frame)
    if not header.is_stored:
        recoded = recode(memoryview(frame), header, _SNAPPY, _snappy_of_lz4)
        if len(recoded) <= header.nbytes + HEADER_NBYTES:
            return recoded
        frame = _library().compress(decoded, b"lz4", 0, 0, 0, header.typesize)
    return with_code(frame, _SNAPPY)


def _snappy_of_lz4(stream: memoryview, nbytes: int, is_stored: bool) -> Buffer:
    decoded: Buffer = stream
    if not is_stored:
        import numcodecs.lz4

        decoded = numcodecs.lz4.decompress(nbytes.to_bytes(4, "little") + stream)
    encoded = snappy.encode(decoded)
    return encoded if len(encoded) < nbytes else decoded


# --------------------------------------------------------------------------- options

_SHUFFLE_WORDS: Final = ("noshuffle", "shuffle", "bitshuffle")


def _cname(separator: str) -> Callable[[JsonValue], str]:
    def convert(value: JsonValue) -> str:
        if isinstance(value, str) and value not in _CNAMES:
            expected = ",".join(_CNAMES)
            raise MetadataError(
                f"Expected one of {expected}{separator} but received: {text(value)}"
            )
        return expect_str(value)

    return convert


def _typesize_v2(value: JsonValue) -> int | None:
    return None if value is None else expect_int(value, 1, 2**31 - 1)


def _check_v3(options: Options) -> None:
    if options["shuffle"] != "noshuffle" and "typesize" not in options:
        with in_member("typesize"):
            _TYPESIZE(REQUIRED)


def _complete_v3(
    variant: CodecVariant, options: Options, itemsize: int | None
) -> dict[str, JsonValue]:
    """Choose the shuffle of elements where the stage has elements; the typesize is their length."""
    completed = fill_defaults(variant, options, itemsize)
    typesize = options.get("typesize")
    shuffle = options.get("shuffle")
    if typesize is None and shuffle != "noshuffle":
        if itemsize is not None and itemsize <= _MAX_TYPESIZE:
            typesize = itemsize
        elif shuffle is None:
            shuffle = "noshuffle"
        else:
            found = "unknown" if itemsize is None else itemsize
            raise MetadataError(
                f"typesize must be specified explicitly because inferred itemsize {found} is not "
                f"supported by Blosc"
            )
    if shuffle is None:
        shuffle = "bitshuffle" if typesize == 1 else "shuffle"
    completed["shuffle"] = shuffle
    completed.pop("typesize", None)
    if shuffle != "noshuffle":
        completed["typesize"] = typesize
    return completed


def _prepare_v3(options: Options, itemsize: int | None) -> _Blosc:
    del itemsize
    return _Blosc(
        options["cname"],
        options["clevel"],
        _SHUFFLE_WORDS.index(options["shuffle"]),
        options.get("typesize", 1),
        options["blocksize"],
    )


def _prepare_v2(options: Options, itemsize: int | None) -> _Blosc:
    typesize = options.get("typesize") or itemsize or 1
    if typesize > _MAX_TYPESIZE:
        typesize = 1  # As in Blosc.
    shuffle = options["shuffle"]
    if shuffle < 0:
        shuffle = 2 if typesize == 1 else 1
    blocksize = min(options["blocksize"], MAX_BLOCKSIZE)
    return _Blosc(options["cname"], options["clevel"], shuffle, typesize, blocksize)


_CLEVEL: Final = integer(0, 9)
_TYPESIZE: Final = integer(1, _MAX_TYPESIZE)

CODEC = Codec(
    name="blosc",
    v3=CodecVariant(
        options=(
            Option(name="cname", convert=_cname(""), default="lz4"),
            Option(name="clevel", convert=_CLEVEL, default=5),
            Option(name="shuffle", convert=choice(*_SHUFFLE_WORDS), default=ABSENT),
            Option(name="typesize", convert=_TYPESIZE, default=ABSENT, stored_default=ABSENT),
            Option(name="blocksize", convert=integer(0, MAX_BLOCKSIZE), default=0),
        ),
        check_stored=_check_v3,
        complete=_complete_v3,
        prepare=_prepare_v3,
    ),
    v2=CodecVariant(
        options=(
            Option(name="cname", convert=_cname(","), default="lz4", stored_default="lz4"),
            Option(name="clevel", convert=_CLEVEL, default=5, stored_default=5),
            Option(name="shuffle", convert=integer(-1, 2), default=-1, stored_default=-1),
            Option(name="blocksize", convert=integer(0, 2**64 - 1), default=0, stored_default=0),
            Option(name="typesize", convert=_typesize_v2, default=ABSENT, stored_default=ABSENT),
        ),
        prepare=_prepare_v2,
    ),
)
