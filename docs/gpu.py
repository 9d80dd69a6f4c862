"""Writes docs/gpu.md: where each codec is decoded and encoded, with each optional package.

    python docs/gpu.py

asks the codecs of the package; no GPU is needed. A test fails while the page is out of date.
"""

from pathlib import Path
from typing import Any

from gpustore import registry
from gpustore.backends.decoders import GpuDecoders, decoder_of, encoder_of
from gpustore.backends.device.direct_read import LEAST_NBYTES
from gpustore.backends.nvimgcodec import IMAGE_LIBRARY
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.device_segments import HIGHEST_LEVELS
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.data_types.dtype import dtype
from gpustore.drivers._image import ImageFormat
from gpustore.metadata.component import Component
from gpustore.metadata.named_configuration import NamedConfiguration

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Codecs on a GPU

The tables show where each codec is decoded in reads into GPU memory, and encoded in writes of
arrays that are there. The script `docs/gpu.py`, which writes this page, asks the codecs. The GPU
path is tested on an emulated device and has [never run on a
GPU](../README.md#untested-platforms-and-services).

`device="cuda"` needs an NVIDIA driver and CuPy. nvcomp and kvikio are optional. Without nvcomp,
gpustore's own kernels decode some codecs and the host the others; the host's results are copied to
the GPU and counted (`host_fallbacks` in `future.statistics`). gpustore's kernels place the elements
in every case: byte order, transposes, fields, steps and index arrays.

nvcomp decodes a small constant stream of each codec before its first use, and so does each kernel
of gpustore that decodes LZ4 or blosclz; nvImageCodec decodes a small image of each format. What is
missing or fails this test counts as absent, and a `gpustore.DeviceWarning` names it once for each
GPU, with what to install; so do `store.explain()` and `gpustore info`. `missing_decoder_reads`
counts the reads that the host decodes for that.

```sh
python -m pip install cupy-cuda13x                # own kernels alone
python -m pip install 'gpustore[cuda13]'          # with nvcomp
python -m pip install 'gpustore[gds13]'           # with nvcomp and kvikio
python -m pip install 'gpustore[image13]'         # with nvcomp and nvImageCodec
```

In a clone, three commands of less than five minutes each try all of it on a machine with a GPU.
`benchmarks/README.md` describes them; `--device emulated` runs them without one.

```sh
python -m benchmarks.gpu_report health   # engines, the tests of a GPU, a sanitizer, no retries
python -m benchmarks.gpu_report limits   # rates of copies, decoders and kernels; the best setting
python -m benchmarks.gpu_report reads    # with that setting, beside other libraries
```
"""

FILES = """\
`bytes`, `transpose` and `sharding_indexed` are part of the layout; inner chunks of shards are
decoded as other chunks are. kvikio reads parts of at least {read} KiB, of files of at least {file}
KiB, straight to the GPU where the system supports it. The host checks the headers of most codecs,
so their values pass through its memory.
"""

TAIL = """\
With every codec, the host decodes some values: several gzip members in one value, zstd frames
without a size or with a dictionary, and values that `gpu_decode_trust` withholds from the GPU. It
decodes whole reads of few and long streams, by the rule of `gpu_decode_choice` (see the guide,
`guide/contexts.md`); `store.explain()` gives the figures.

The host decodes `zfp`, `zfpy`, `pcodec` and `n5_default`.

Blocks of the driver `n5` are decoded as their compression is in the table, without any as raw
bytes; `gzip` with `useZlib` is `zlib`, and `xz` the host's. The host reads their headers, and
decodes blocks that a writer has cut off at the edge of the array.

Chunks of `neuroglancer_precomputed` are raw bytes to the GPU, those in shards as their
`data_encoding`; the host decodes PNG, compressed segmentation, and JPEG of several channels or in
gzip.

Strings and bytes of any length (`vlen-utf8`, `vlen-bytes`) are Python objects: their arrays are
NumPy arrays on every device, and each decoded chunk counts as a host fallback.
"""

IMAGES = """\
## Images

nvImageCodec decodes plain images of gray and RGB. Everything else is the host's and counted: images
with a palette or alpha, JPEG that is progressive, of several scans or with colours that are not
transformed, JPEG with bytes behind its end, TIFF with a compression other than deflate in strips
(LZW, tiles), whose checksums the GPU compares, or in another order than rows from top to bottom.
The host reads each header first, and compares the size with that of the opened image; a file that
the GPU does not decode it decodes again, or says what is wrong. Lossless images have the same
elements everywhere. **Elements of JPEG may differ by a few units** from those of the host, which
has TensorStore's: decoders may round its transform and its colours in several ways.
`gpu_decode_choice: "host"` gives the host's.

| images | without nvImageCodec | with it |
| --- | --- | --- |
"""

CHUNKS = """| chunks of `neuroglancer_precomputed` in JPEG, one channel | host | {jpeg} |

nvImageCodec also has decoders for JPEG 2000, of which there is no driver. Of PNG, BMP and WebP it
has decoders for the host alone, which save nothing here. Its decoder for the fixed-function unit of
a GPU is not used: how that one samples colours up is not known.
"""

MEMORY = """\
## Memory

Device memory comes from a pool of gpustore's own, that of new arrays from CuPy's pool; with
`device_allocator` `"torch"` (see the guide, `guide/device.md`) all of it comes from PyTorch's
caching allocator. What `device_cache_pool` keeps lies in device memory, or in pinned memory of the
host. `device_allocator` and the speed of pinned memory wait for a GPU: both were only tried on the
emulated device.
"""

WRITES = """\
## Writes

The elements of a CuPy, PyTorch or JAX array are gathered on the GPU, in any layout and also into
parts of stored chunks, which are decoded there first. The last column of the table above names who
encodes the chunks. nvcomp has one level of each codec: the host encodes zstd levels above {zstd},
gzip and zlib levels above {deflate} and level 0, Blosc levels that stand for those, zstd frames
with a content checksum, and LZ4 chunks of more than 16 MiB. Only encoded bytes are copied to the
host; chunks that the host encodes are copied as they are, and counted (`host_encodings` in the
statistics of the write); `store.explain_write()` and `gpustore info` say why. A codec other than
`crc32c` behind a compressor is the host's, too.

nvcomp encodes a small constant stream of each codec before its first use, and the host decodes it.
A codec that fails is left to the host, which a `gpustore.DeviceWarning` tells once. Who decodes the
stored chunks of which a write changes a part is chosen by `gpu_decode_choice`, as for reads.

Arrays that have to be cast are copied to the host as a whole. So are those with elements that are
not whole steps apart.
"""

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}

# Codec as users know it -> how metadata name it. A list is Zarr v3, anything else Zarr v2.
CODECS: dict[str, Any] = {
    "none": None,
    "zstd": {"id": "zstd", "level": 1},
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "lz4": {"id": "lz4", "acceleration": 1},
    **{
        f"blosc {cname}": {
            "id": "blosc",
            "cname": cname,
            "clevel": 5,
            "shuffle": 1,
            "blocksize": 0,
        }
        for cname in ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
    },
    "bz2": {"id": "bz2", "level": 1},
    "lzma": {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None},
    "crc32c": [BYTES, {"name": "crc32c"}],
    "shuffle (filter)": {"id": "shuffle", "elementsize": 4},
    "delta (filter)": {"id": "delta", "dtype": "<u2"},
    "fixedscaleoffset (filter)": {
        "id": "fixedscaleoffset",
        "scale": 2,
        "offset": 1,
        "dtype": "<u2",
    },
    "quantize (filter)": {"id": "quantize", "digits": 1, "dtype": "<f2"},
    "astype (filter)": {"id": "astype", "encode_dtype": "|u1", "decode_dtype": "<u2"},
    "categorize (filter)": {"id": "categorize", "labels": ["a"], "dtype": "<U1"},
    "packbits": [{"name": "packbits"}],
    "bitround": [{"name": "bitround", "configuration": {"keepbits": 3}}, BYTES],
    "cast_value": [{"name": "cast_value", "configuration": {"data_type": "uint8"}}, BYTES],
    "scale_offset": [
        {"name": "scale_offset", "configuration": {"scale": 2, "offset": 1}},
        BYTES,
    ],
    **{
        f"{id} (filter)": {"id": id}
        for id in ("adler32", "crc32", "fletcher32", "jenkins_lookup3", "base64")
    },
}

# Part of the layout: no decoding, with and without a GPU.
LAYOUT = {"bytes", "reshape", "transpose", "sharding_indexed"}

# Codecs of elements that no device can hold.
OBJECTS = {"vlen-bytes", "vlen-utf8"}

# Codecs without device code; some need optional libraries.
ON_HOST = {"n5_default", "pcodec", "zfp", "zfpy"}

# Drivers of images.
FORMATS = ["avif", "bmp", "jpeg", "png", "tiff", "webp"]

TYPES = ["uint8", "uint16", "float32", "bfloat16", "complex128", "bool", "int4"]

ALONE, WITH_NVCOMP = GpuDecoders(has_nvcomp=False), GpuDecoders(has_nvcomp=True)
WITH_ALL = GpuDecoders(has_nvcomp=True, has_image_library=True)


def is_filter(codec: Any) -> bool:
    """Return whether a codec is a filter of Zarr v2."""
    return codec is not None and registry.find("codecs", codec["id"]).v2 is None


def chain_of(codec: Any, name: str) -> CodecChain:
    """Return the chain of a codec for chunks of 64 elements."""
    if isinstance(codec, list):
        named = [NamedConfiguration(one["name"], one.get("configuration", {})) for one in codec]
        return resolve_v3(named, dtype(name), (64,))
    if is_filter(codec):
        return resolve_v2(None, [codec], Component.whole(dtype(name)), (64,), "C")
    return resolve_v2(codec, None, Component.whole(dtype(name)), (64,), "C")


def decoded_by(chain: CodecChain, decoders: GpuDecoders) -> str:
    """Return the decoder of a chain's chunks."""
    if chain.unsupported_reason(decoders) is not None:
        return "host"
    if chain.is_raw:
        return "nothing to decode"
    (stage,) = chain.stages
    return decoder_of(stage, decoders).replace("nothing", "nothing to decode")


def encoded_by(chain: CodecChain, decoders: GpuDecoders) -> str:
    """Return the encoder of a chain's chunks."""
    if chain.encode_unsupported_reason(decoders) is not None:
        return "host"
    if chain.is_raw:
        return "nothing to encode"
    (stage,) = chain.stages
    return encoder_of(stage).replace("nothing", "nothing to encode")


def codec_row(name: str, chain: CodecChain) -> str:
    direct = "no: the host reads headers" if chain.needs_bytes else "straight to the GPU"
    cells = [name, decoded_by(chain, ALONE), decoded_by(chain, WITH_NVCOMP)]
    if "host" in cells[2:]:
        direct = "no: the host decodes"
    return f"| {' | '.join([*cells, direct, encoded_by(chain, WITH_NVCOMP)])} |"


def image_row(name: str) -> str:
    """Return who decodes files of images of a format, of RGB."""
    chain = ImageFormat(name).description((8, 8, 3), 100).chain
    return f"| {name} | {decoded_by(chain, ALONE)} | {decoded_by(chain, WITH_ALL)} |"


def type_row(name: str) -> str:
    reason = chain_of(CODECS["zstd"], name).unsupported_reason(WITH_NVCOMP)
    return f"| {name} | {'GPU' if reason is None else f'host: {reason}'} |"


def page() -> str:
    """Return the text of docs/gpu.md."""
    files = {name.split()[0] for name in CODECS} - {"none"}
    left_out = {
        one for one in registry.ids("codecs") if one not in files | LAYOUT | OBJECTS | ON_HOST
    }
    assert not left_out, f"say what a GPU does with {left_out}"
    lines = [
        HEAD,
        "## Codecs\n",
        FILES.format(**{what: nbytes >> 10 for what, nbytes in LEAST_NBYTES.items()}),
        "| codec | decoded by CuPy alone | with nvcomp | with kvikio, values come | encoded by |",
        "| --- | --- | --- | --- | --- |",
        *(codec_row(name, chain_of(codec, "uint16")) for name, codec in CODECS.items()),
        "",
        IMAGES + "\n".join(map(image_row, FORMATS)),
        CHUNKS.format(jpeg=IMAGE_LIBRARY),
        WRITES.format(**HIGHEST_LEVELS),
        MEMORY,
        "## Data types\n",
        "The table is about chunks with a codec that the GPU decodes.\n",
        "| data type | decoded by |",
        "| --- | --- |",
        *map(type_row, TYPES),
        "",
        TAIL,
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
