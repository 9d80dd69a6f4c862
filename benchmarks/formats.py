"""The array formats that are compared, as each library names them."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ArrayFormat:
    """A Zarr version, a codec and a chunk shape."""

    version: int
    codec: str
    chunk: tuple[int, ...]

    def __str__(self) -> str:
        return f"zarr{self.version}-{self.codec}-{int(np.prod(self.chunk)) * 2 >> 10}KiB"

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
            }
            return {"driver": "zarr", "kvstore": kvstore, "metadata": metadata}
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
        if self.codec != "raw":
            codecs.append({"name": self.codec, "configuration": {"level": LEVEL}})
        metadata = {
            "shape": shape,
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self.chunk}},
            "codecs": codecs,
            "fill_value": 0,
        }
        return {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}


BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": 1}
LEVEL = 1

SHAPE = (64, 512, 512)
"""Of the volume all benchmarks read and write: uint16, 32 MiB."""

_CODECS = [(2, "blosc"), (2, "raw"), (3, "zstd"), (3, "gzip"), (3, "raw")]
_CHUNKS = [(32, 32, 32), (32, 128, 128)]

FORMATS = [ArrayFormat(version, codec, chunk) for version, codec in _CODECS for chunk in _CHUNKS]
"""64 KiB and 1 MiB chunks of each."""
