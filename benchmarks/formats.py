"""The array formats that are compared, as each library names them."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ArrayFormat:
    """A Zarr version, a codec, a chunk shape, and how the chunks lie.

    `layout` is ``"C"``, ``"F"`` (Zarr v2: ``order``; v3: a transpose) or ``"sharded"``, with chunks
    inside shards of :data:`SHARD`.
    """

    version: int
    codec: str
    chunk: tuple[int, ...]
    layout: str = "C"

    def __str__(self) -> str:
        name = f"zarr{self.version}-{self.codec}-{int(np.prod(self.chunk)) * 2 >> 10}KiB"
        return name if self.layout == "C" else f"{name}-{self.layout}"

    def tensorstore_spec(self, path: str, shape: tuple[int, ...]) -> dict[str, Any]:
        """Spec of a new array, for TensorStore and gpustore."""
        kvstore = {"driver": "file", "path": path}
        if self.version == 2:
            compressor = None if self.codec == "raw" else {"id": "blosc", **BLOSC}
            metadata = {
                "shape": shape,
                "dtype": "<u2",
                "chunks": self.chunk,
                "compressor": compressor,
                "fill_value": 0,
                "dimension_separator": "/",
                "order": self.layout,
            }
            return {"driver": "zarr", "kvstore": kvstore, "metadata": metadata}
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
        if self.codec == "blosc":
            shuffle = {"shuffle": "shuffle", "typesize": 2, "blocksize": 0}
            codecs.append({"name": "blosc", "configuration": {**BLOSC, **shuffle}})
        elif self.codec != "raw":
            codecs.append({"name": self.codec, "configuration": {"level": LEVEL}})
        chunk = self.chunk
        if self.layout == "F":
            codecs.insert(0, {"name": "transpose", "configuration": {"order": [2, 1, 0]}})
        elif self.layout == "sharded":
            inner = {"chunk_shape": self.chunk, "codecs": codecs}
            codecs, chunk = [{"name": "sharding_indexed", "configuration": inner}], SHARD
        metadata = {
            "shape": shape,
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "codecs": codecs,
            "fill_value": 0,
        }
        return {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}


BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": 1}
LEVEL = 1

SHAPE = (256, 256, 512)
"""Of the volume all benchmarks read and write: uint16, 64 MiB."""

SHARD = (256, 256, 256)
"""32 MiB."""

_CODECS = [(2, "blosc"), (2, "raw"), (3, "zstd"), (3, "gzip"), (3, "raw")]
_CHUNKS = [(32, 32, 32), (32, 128, 128)]

FORMATS = [ArrayFormat(version, codec, chunk) for version, codec in _CODECS for chunk in _CHUNKS]
"""64 KiB and 1 MiB chunks of each."""

_OTHER_CHUNKS = [(8, 16, 16), (16, 16, 32), (64, 256, 256)]

READ_FORMATS = [
    *FORMATS,
    *(
        ArrayFormat(version, codec, chunk)
        for version, codec in _CODECS[:4]
        for chunk in _OTHER_CHUNKS
    ),
    *(ArrayFormat(3, codec, _CHUNKS[0], "sharded") for codec in ("blosc", "zstd", "gzip", "raw")),
    *(ArrayFormat(2, codec, _CHUNKS[1], "F") for codec in ("blosc", "raw")),
    ArrayFormat(3, "raw", _CHUNKS[1], "F"),
]
"""Those, chunks of 4 KiB, 16 KiB and 8 MiB, chunks of 64 KiB in shards, and chunks in F order."""

PLANE_FORMATS = [one for one in FORMATS if (one.version, one.codec) in _CODECS[:3]]
"""64 KiB and 1 MiB chunks, raw, Blosc and zstd."""
