"""The array formats of the report: each codec as Zarr v2 and v3 write it, and how chunks lie."""

from dataclasses import dataclass

_BLOSC2 = {"id": "blosc", "clevel": 5, "shuffle": 1, "blocksize": 0}
_BLOSC3 = {"clevel": 5, "shuffle": "shuffle", "blocksize": 0}
_BLOSC = ("lz4", "zstd", "blosclz")

ZARR2 = {
    "raw": None,
    "zstd": {"id": "zstd", "level": 3},
    "gzip": {"id": "gzip", "level": 5},
    "zlib": {"id": "zlib", "level": 5},
    "lz4": {"id": "lz4", "acceleration": 1},
    **{f"blosc-{cname}": {**_BLOSC2, "cname": cname} for cname in _BLOSC},
}
"""The compressor, by what the report calls the codec."""

ZARR3 = {
    "zstd": ("zstd", {"level": 3, "checksum": False}),
    "gzip": ("gzip", {"level": 5}),
    **{f"blosc-{cname}": ("blosc", {**_BLOSC3, "cname": cname}) for cname in _BLOSC},
}
"""Name and configuration of the bytes-to-bytes codec."""


@dataclass(frozen=True, slots=True)
class Format:
    """A codec, a Zarr version, a chunk shape by name, and whether chunks lie in shards."""

    codec: str
    version: int
    chunk: str
    sharded: bool = False

    def __str__(self):
        return f"zarr{self.version}-{self.codec}-{self.chunk}{'-sharded' if self.sharded else ''}"

    def chunk_shape(self, dtype, scale):
        return scale.shape_of(scale.chunks[self.chunk], dtype.itemsize)

    def stored_shape(self, dtype, scale):
        """Shape of what one key holds."""
        if self.sharded:
            return scale.shape_of(scale.shard, dtype.itemsize)
        return self.chunk_shape(dtype, scale)

    def metadata(self, shape, dtype, scale):
        """Zarr's own, of an array of such a shape and type."""
        chunk = self.chunk_shape(dtype, scale)
        if self.version == 2:
            return {
                "shape": list(shape),
                "dtype": dtype.str,
                "chunks": list(chunk),
                "compressor": ZARR2[self.codec],
                "fill_value": 0,
                "order": "C",
                "filters": None,
                "dimension_separator": "/",
            }
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
        if self.codec != "raw":
            name, configuration = ZARR3[self.codec]
            if name == "blosc":
                configuration = {**configuration, "typesize": dtype.itemsize}
            codecs.append({"name": name, "configuration": configuration})
        if self.sharded:
            inner = {"chunk_shape": list(chunk), "codecs": codecs}
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
            chunk = self.stored_shape(dtype, scale)
        grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
        return {
            "shape": list(shape),
            "data_type": dtype.name,
            "chunk_grid": grid,
            "codecs": codecs,
            "fill_value": 0,
        }

    def spec(self, path):
        driver = "zarr" if self.version == 2 else "zarr3"
        return {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}


def describe(name):
    """A format's codec with its options, and how many decoded bytes a chunk has, as text."""
    version, _, rest = name.partition("-")
    codec, chunk = rest.removesuffix("-sharded").rsplit("-", 1)
    found = ZARR2.get(codec) if version == "zarr2" else ZARR3.get(codec, (None, None))[1]
    options = ", ".join(f"{key} {value}" for key, value in (found or {}).items() if key != "id")
    sharded = " in shards" if name.endswith("-sharded") else ""
    return (
        f"Zarr v{version[4:]}, {codec}{f' ({options})' if options else ''}, {chunk} chunks{sharded}"
    )
