"""The arrays that the worked examples of TensorStore's pages are about, and how they are opened."""

import json

import gpustore

SHAPE = [1000, 2000, 3000]
CHUNKS = [100, 200, 300]

ZARR2 = {
    "zarr_format": 2,
    "shape": SHAPE,
    "chunks": CHUNKS,
    "dtype": "<u2",
    "compressor": None,
    "fill_value": 42,
    "order": "C",
    "filters": None,
}

ZARR3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": SHAPE,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNKS}},
    "chunk_key_encoding": {"name": "default"},
    "data_type": "uint16",
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": 42,
}

STRUCTURED = ZARR2 | {
    "dtype": [["x", "<u2", [2, 3]], ["y", "<f4", [5]]],
    "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
    "fill_value": "AQACAAMABAAFAAYAAAAgQQAAMEEAAEBBAABQQQAAYEE=",
    "order": "F",
}

KEYS = {"zarr": ".zarray", "zarr2": ".zarray", "zarr3": "zarr.json"}


def stored(driver, metadata, library=gpustore, **members):
    """Opens metadata that were stored with the driver `json`."""
    context = library.Context()
    document = {"driver": "json", "kvstore": {"driver": "memory"}, "path": KEYS[driver]}
    library.open(document, context=context).result().write(metadata).result()
    spec = {"driver": driver, "kvstore": {"driver": "memory"}, **members}
    return library.open(spec, context=context).result()


def document_of(library, spec):
    """The metadata that creating an array stores."""
    context = library.Context()
    library.open({"kvstore": "memory://a/", "create": True, **spec}, context=context).result()
    kvstore = library.KvStore.open("memory://a/", context=context).result()
    return json.loads(kvstore[KEYS[spec["driver"]]])
