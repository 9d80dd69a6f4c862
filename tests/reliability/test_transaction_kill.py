"""A killed commit leaves all of an atomic transaction or nothing, and no half of a value."""

import json

import numpy as np
import pytest

import gpustore
from tests.killed_process import deaths, needs_compiler
from tests.matrix import each
from tests.reliability.scales import scales
from tests.reliability.worker import QUICK

pytestmark = pytest.mark.matrix("costly")

KILLS, LONG_KILLS = 4, 300
SHAPE, CHUNK = (12, 12), (4, 4)


FORMS = {
    "chunks": {"chunk_layout": gpustore.ChunkLayout(chunk_shape=CHUNK)},
    "shards": {
        "chunk_layout": gpustore.ChunkLayout(write_chunk_shape=CHUNK, read_chunk_shape=[2, 2])
    },
    "one shard": {
        "chunk_layout": gpustore.ChunkLayout(write_chunk_shape=SHAPE, read_chunk_shape=CHUNK)
    },
    "strings": {"chunk_layout": gpustore.ChunkLayout(chunk_shape=CHUNK), "dtype": "ustring"},
}


def array_of(form, url, context):
    """Specs that open an array: all fields of records."""
    if form == "records":
        metadata = {"dtype": [["x", "<u4"], ["y", "<u8"]], "shape": SHAPE, "chunks": CHUNK}
        kvstore = url.removesuffix("|zarr3:")
        spec = {"driver": "zarr2", "kvstore": kvstore}
        made = {**spec, "metadata": metadata, "field": "x"}
        gpustore.open(made, create=True, context=context).result()
        return [{**spec, "field": "x"}, {**spec, "field": "y"}]
    options = {"dtype": "uint32", "shape": SHAPE, **FORMS[form]}
    gpustore.open(url, create=True, context=context, **options).result()
    return [url]


@needs_compiler
@pytest.mark.slow
@each(
    ("url", "atomic", "form"),
    [
        ("file://{}/a|ocdbt:", True, "chunks"),
        ("file://{}/a|ocdbt:", True, "records"),
        ("file://{}/a.zip|zip:", True, "shards"),
        ("file://{}/a", True, "one shard"),
        *[("file://{}/a/", False, form) for form in ("chunks", "shards", "strings", "records")],
    ],
)
@pytest.mark.parametrize("kills", scales(KILLS, LONG_KILLS))
def test_killed_commit_leaves_all_or_nothing(tmp_path, url, atomic, form, kills):
    context = gpustore.Context(QUICK)
    specs = array_of(form, f"{url.format(tmp_path)}|zarr3:", context)
    stores = [gpustore.open(one, context=context).result() for one in specs]
    for i in deaths(
        *("tests.reliability.worker", "commit", json.dumps(specs), atomic),
        kills=kills,
        most=60,
        seed=5,
    ):
        found = np.stack([store.read().result().astype("uint64") for store in stores], -1)
        assert found.min() >= 1000 * (i + 1)
        if atomic:
            assert (found == found[0, 0, 0]).all(), "a part of a transaction"
        for row in range(0, SHAPE[0], CHUNK[0]):
            for column in range(0, SHAPE[1], CHUNK[1]):
                chunk = found[row : row + CHUNK[0], column : column + CHUNK[1]]
                assert (chunk == chunk[0, 0, 0]).all(), "a part of a chunk"
        assert found.max() - found.min() <= 1
