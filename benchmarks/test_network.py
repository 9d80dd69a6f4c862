"""Many small reads over HTTP, HTTPS and S3 on loopback (gpustore, TensorStore).

4 000 ranges of 4 KiB of 100 keys: gpustore reads them in one call, TensorStore as Futures. Neither
merges any if they are 12 KiB apart; gpustore does if they are 4 KiB apart, and reads twice as much
then. And 1 000 crops of 8 x 8 x 8 of the sharded volume, which gpustore
reads with ``read_many`` and TensorStore in one ``Batch``.
"""

import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest

from benchmarks.conftest import random_boxes
from benchmarks.formats import READ_FORMATS
from benchmarks.test_batch import read_crops
from gpustore.kvstores.columns import ReadRequest
from tests.kvstores.http.tls import Authority

KEYS, RANGES, RANGE_NBYTES = 100, 40, 4096
APART = {"far": 4, "near": 2}
"""How many ranges further the next one begins."""

SHARDED = next(one for one in READ_FORMATS if str(one) == "zarr3-raw-64KiB-sharded")


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).bytes(KEYS * RANGES * max(APART.values()) * RANGE_NBYTES)


Addresses = namedtuple("Addresses", "http https")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory, stored, values):
    folder = tmp_path_factory.mktemp("served")
    (folder / "bucket").mkdir()
    nbytes = len(values) // KEYS
    for i in range(KEYS):
        (folder / "bucket" / f"k{i}").write_bytes(values[i * nbytes : (i + 1) * nbytes])
    (folder / "bucket" / "volume.zarr").symlink_to(stored(SHARDED))
    certificates = tmp_path_factory.mktemp("certificates")
    authority = Authority(certificates)
    authority.context()
    certificate = str(certificates / "localhost.pem")
    command = [sys.executable, "-m", "benchmarks.range_server", str(folder), certificate]
    with (
        pytest.MonkeyPatch.context() as environment,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        environment.setenv("SSL_CERT_FILE", str(authority.path))
        environment.setenv("TENSORSTORE_CA_BUNDLE", str(authority.path))
        plain, encrypted = process.stdout.readline().split()
        yield Addresses(f"http://127.0.0.1:{plain}", f"https://localhost:{encrypted}")
        process.terminate()


@pytest.fixture
def kvstore(protocol, addresses, monkeypatch):
    if protocol != "s3":
        return {"driver": "http", "base_url": f"{getattr(addresses, protocol)}/bucket/"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    json = {"driver": "s3", "bucket": "bucket", "endpoint": addresses.http}
    return {**json, "aws_region": "us-east-1"}


@pytest.fixture
def module(peer):
    if peer.name not in ("gpustore", "tensorstore"):
        pytest.skip("only what has kvstores")
    return peer.module


@pytest.mark.parametrize("apart", APART)
@pytest.mark.parametrize("protocol", ["http", "https", "s3"])
def test_4000_ranges(measure, peer, module, kvstore, protocol, apart, values):
    store = module.KvStore.open(kvstore).result()
    keys = [f"k{i}" for i in range(KEYS)] * RANGES
    starts = [j * APART[apart] * RANGE_NBYTES for j in range(RANGES) for _ in range(KEYS)]
    pairs = list(zip(keys, starts, strict=True))

    def read():
        if peer.name == "gpustore":
            stops = [start + RANGE_NBYTES for start in starts]
            columns = store.read_many(ReadRequest(keys, starts, stops))
            columns.raise_first()
            return columns.value
        futures = [
            store.read(key, byte_range=slice(start, start + RANGE_NBYTES)) for key, start in pairs
        ]
        return [future.result().value for future in futures]

    found = measure(read, nbytes=len(keys) * RANGE_NBYTES, rounds=25)
    nbytes = len(values) // KEYS
    for part, (key, start) in zip(found, pairs, strict=True):
        at = int(key[1:]) * nbytes + start
        assert part == values[at : at + RANGE_NBYTES]


@pytest.mark.parametrize("protocol", ["http", "https", "s3"])
def test_1000_crops_of_shards(measure, peer, module, kvstore, protocol, volume):
    name = "path" if kvstore["driver"] == "s3" else "base_url"
    there = {**kvstore, name: kvstore.get(name, "") + "volume.zarr/"}
    handle = module.open({"driver": "zarr3", "kvstore": there}).result()
    boxes = random_boxes(volume.shape, (8, 8, 8), 1000)
    expected = [volume[box] for box in boxes]
    result = measure(
        lambda: read_crops(peer, handle, boxes),
        nbytes=sum(crop.nbytes for crop in expected),
        rounds=25,
    )
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))
