"""Reads arrays whose chunks are bombs; prints the error, the time and the growth of each."""

import contextlib
import gzip
import json
import os
import sys
import time

import numpy as np

import gpustore
from gpustore.errors import GpustoreError
from tests.codecs.bomb_worker import bombs, deflated, memory_nbytes, reset_peak

_V2 = {name: {"id": name, "level": 1} for name in ("gzip", "zlib", "bz2")}
_V2 |= {"raw": None, "lzma": {"id": "lzma"}, "lz4": {"id": "lz4"}}
_V3 = {"zstd": ["zstd"], "crc32c": ["crc32c"], "zstd of gzip": ["gzip", "zstd"]}
_V3["gzip of gzip"] = ["gzip", "gzip"]
_BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 0, "blocksize": 0}


def metadata(codec, nbytes):
    """A row of four chunks of `nbytes` bytes each."""
    if codec in _V2 or codec == "blosc":
        compressor = _BLOSC if codec == "blosc" else _V2[codec]
        members = {"shape": [4 * nbytes], "chunks": [nbytes], "dtype": "|u1"}
        return {"driver": "zarr2", "metadata": {**members, "compressor": compressor}}
    options = {"gzip": {"level": 1}, "zstd": {"level": 1}}
    codecs = [{"name": "bytes"}]
    for name in _V3[codec]:
        codecs.append({"name": name, "configuration": options.get(name, {})})
    return {
        "driver": "zarr3",
        "metadata": {
            "shape": [4 * nbytes],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [nbytes]}},
            "data_type": "uint8",
            "codecs": codecs,
        },
    }


def all_bombs(nbytes):
    """Label -> codec and what is stored; a number is the size of a sparse file."""
    known = {*_V2, *_V3, "blosc"}
    found = {label: bomb for label, bomb in bombs(nbytes).items() if bomb[0] in known}
    # Short enough to pass for a legal encoding: only decoding shows what they are.
    found["gzip, short"] = ("gzip", deflated(31, 512 << 20))
    found["zlib, short"] = ("zlib", deflated(15, 512 << 20))
    found["zstd of gzip"] = ("zstd of gzip", found["zstd"][1])
    found["gzip of gzip"] = ("gzip of gzip", gzip.compress(found["gzip"][1]))
    for codec in ("raw", "gzip", "zstd", "crc32c"):
        found[f"{codec}, sparse"] = (codec, 1 << 40)
    return found


def actions(store, nbytes):
    """What is done to an array whose first chunk is a bomb."""
    out = np.ones(nbytes, np.uint8)
    return {
        "part": lambda: store[5:50].read().result(),
        "chunk": lambda: store[:nbytes].read().result(),
        "out": lambda: store[:nbytes].read(out=out).result(),
        "array": lambda: store.read().result(),
        "write": lambda: store[5:50].write(1).result(),
    }


def main(directory, nbytes):
    outcomes = {}
    for i, (label, (codec, encoded)) in enumerate(all_bombs(nbytes).items()):
        spec = {**metadata(codec, nbytes), "kvstore": f"file://{directory}/{i}/"}
        spec["context"] = {"data_copy_concurrency": {"limit": 1}}
        store = gpustore.open(spec, create=True).result()
        key = "0" if spec["driver"] == "zarr2" else "c/0"
        store[:nbytes] = 1  # What libraries allocate once is no matter of the bomb.
        for action in actions(store, nbytes).values():
            action()
        path = store.kvstore.path + key
        store.kvstore[key] = b"damaged"  # Nor is what Python imports to say what is wrong.
        for action in actions(store, nbytes).values():
            with contextlib.suppress(GpustoreError):
                action()
        if isinstance(encoded, int):
            os.truncate(path, encoded)
        else:
            store.kvstore[key] = encoded
        for name, action in actions(store, nbytes).items():
            reset_peak()
            before, start = memory_nbytes("VmRSS"), time.process_time()
            error, names_key = None, False
            try:
                action()
            except GpustoreError as caught:
                error = type(caught).__name__
                names_key = caught.key == path and path in str(caught)
            seconds = time.process_time() - start
            outcomes[f"{label}: {name}"] = {
                "error": error,
                "names_key": names_key,
                "processor_seconds": seconds,
                "growth_nbytes": memory_nbytes("VmHWM") - before,
            }
        store = None
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
