"""Volumes on disk: writing them, their size, and the streams that nvcomp is given of them."""

import concurrent.futures
import itertools
import os
import shutil
import struct

import gpustore
from benchmarks.gpu.stream import decode
from gpustore.codecs.blosc.columns import read_columns
from gpustore.device.encoded_columns import EncodedColumns

_OF_BLOSC = ("blosclz", "lz4", "snappy", "deflate", "zstd")


def write(path, array_format, volume, scale):
    """Write a volume: its base with gpustore on the host, then the repetitions as copies of files.

    Chunks do not reach from one repetition into the next, so their encoded bytes are the same.
    """
    spec = array_format.spec(path)
    spec["metadata"] = array_format.metadata(volume.shape, volume.base.dtype, scale)
    context = {"file_io_sync": False}
    store = gpustore.open(spec, create=True, context=gpustore.Context(context), device="cpu")
    store.result()[: len(volume.base)] = volume.base
    root = _root(path, array_format)
    count = len(volume.base) // array_format.stored_shape(volume.base.dtype, scale)[0]

    def copy(i):
        source = root / str(i % count)
        shutil.copytree(source, root / str(i), copy_function=shutil.copyfile)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(copy, i) for i in range(count, count * volume.repeats)]:
            done.result()


def _root(path, array_format):
    """The folder of the first dimension's indices."""
    return path / "c" if array_format.version == 3 else path


def _values(path):
    """Files of chunks or shards."""
    for folder, _, names in os.walk(path):
        for name in names:
            if name != "zarr.json" and not name.startswith("."):
                yield os.path.join(folder, name)  # noqa: PTH118  there may be 16 384


def encoded_nbytes(path):
    """Bytes of all chunks as they are stored, and how many files they are in."""
    sizes = [os.path.getsize(value) for value in _values(path)]  # noqa: PTH202
    return sum(sizes), len(sizes)


def chunks_of_base(path, array_format, volume, scale):
    """Values of the chunks that the base of a volume is in, in the order of the grid."""
    chunk = array_format.chunk_shape(volume.base.dtype, scale)
    counts = [size // extent for size, extent in zip(volume.base.shape, chunk)]
    root = _root(path, array_format)
    places = itertools.product(*map(range, counts))
    return [root.joinpath(*map(str, place)).read_bytes() for place in places]


def streams(codec, values, chunk_nbytes):
    """Streams within encoded chunks, as nvcomp wants them.

    Parameters
    ----------
    codec : str
        As in :class:`benchmarks.gpu.format.Format`.
    values : list of bytes
        Chunks.
    chunk_nbytes : int
        Decoded bytes of each.

    Returns
    -------
    str or None
        nvcomp's codec; None where it has none.
    list of bytes
        Compressed streams. Those that Blosc stores as they are are left out.
    list of int
        Decoded bytes of each.
    """
    whole = [chunk_nbytes] * len(values)
    if codec in ("zstd", "gzip"):
        return codec, values, whole
    if codec == "zlib":
        return "deflate", [value[2:-4] for value in values], whole
    if codec == "lz4":
        sizes = [struct.unpack_from("<I", value)[0] for value in values]
        return "lz4", [value[4:] for value in values], sizes
    if not codec.startswith("blosc"):
        return None, [], []
    columns, reasons = read_columns(EncodedColumns.joined(values), chunk_nbytes, exact=True)
    if reasons:
        raise ValueError(f"frames that were just written: {reasons}")
    kind = _OF_BLOSC[int(columns.code[0])]
    if kind == "blosclz":
        return None, [], []
    packed = columns.streams.take(~columns.streams.is_stored)
    cut = (2, 4) if kind == "deflate" else (0, 0)
    found = [
        values[frame][src + cut[0] : src + nbytes - cut[1]]
        for frame, src, nbytes in zip(
            packed.frame.tolist(), packed.src.tolist(), packed.src_nbytes.tolist()
        )
    ]
    return kind, found, packed.dst_nbytes.tolist()


def decoded(codec, encoded, sizes):
    """What the streams decode to, one after the other, by the host's libraries."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return b"".join(pool.map(decode, itertools.repeat(codec), encoded, sizes))
