"""Chains of filters: the whole array read, and written again, where zarr-python has them too.

The data are those of the other benchmarks as the type of the chain. TensorStore has no filters, and
zarrs is the one of zarr-python there.
"""

import numpy as np
import pytest

import gpustore
from benchmarks.formats import ArrayFormat

CHUNK = (32, 128, 128)


def _filter(id, **options):
    return {"id": id, **options}


CHAINS = {
    "delta": ("<u2", [_filter("delta", dtype="<u2")]),
    "delta-shuffle": ("<u2", [_filter("delta", dtype="<u2"), _filter("shuffle", elementsize=2)]),
    "scaled": (
        "<f4",
        [_filter("fixedscaleoffset", scale=1, offset=5, dtype="<f4", astype="<i4")],
    ),
    "scaled-delta": (
        "<f8",
        [
            _filter("fixedscaleoffset", scale=1, offset=5, dtype="<f8", astype="<i4"),
            _filter("delta", dtype="<i4"),
        ],
    ),
    "quantize": ("<f8", [_filter("quantize", digits=2, dtype="<f8", astype="<f4")]),
    "astype": ("<f4", [_filter("astype", encode_dtype="<u2", decode_dtype="<f4")]),
    "bitround": ("<f4", [_filter("bitround", keepbits=16)]),
    "packbits": ("|b1", [_filter("packbits")]),
    "crc32": ("<u2", [_filter("crc32")]),
    "fletcher32": ("<u2", [_filter("fletcher32")]),
}


@pytest.fixture(scope="session")
def filtered(tmp_path_factory, volume):
    """Give the folder of the volume behind a chain, and its elements."""
    folder = tmp_path_factory.mktemp("filtered")

    def path_of(name):
        path, (dtype, filters) = folder / name, CHAINS[name]
        elements = (volume & 1 if dtype == "|b1" else volume).astype(dtype)
        if not path.exists():
            metadata = {
                "shape": volume.shape,
                "chunks": CHUNK,
                "dtype": dtype,
                "filters": filters,
                "compressor": None,
            }
            spec = {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}
            gpustore.open(spec, create=True).result()[...] = elements
        return path, elements

    return path_of


@pytest.mark.parametrize("operation", ["read", "write"])
@pytest.mark.parametrize("chain", CHAINS)
def test_filters(measure, peer, chain, operation, filtered):
    """Read the whole array, or write it again."""
    if peer.name not in ("gpustore", "zarr"):
        pytest.skip("has no filters")
    path, elements = filtered(chain)
    handle = peer.open(path, ArrayFormat(2, "raw", CHUNK))
    if operation == "write":
        measure(lambda: peer.write(handle, elements), nbytes=elements.nbytes, rounds=3)
        result = peer.read(handle, ...)
    else:
        result = measure(lambda: peer.read(handle, ...), nbytes=elements.nbytes)
    assert np.array_equal(result, elements)
