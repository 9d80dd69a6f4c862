"""Values that claim or hold far more than a chunk cost neither memory nor time.

In a process of its own, because the peak of a process only ever rises.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix import each

_WORKER = Path(__file__).with_name("bomb_worker.py")

NBYTES = 1 << 20


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")


@pytest.fixture(scope="module")
def outcomes():
    done = subprocess.run(
        [sys.executable, str(_WORKER), str(NBYTES)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@each(
    "name",
    [
        *("gzip", "zlib", "bz2", "gzip members", "bz2 streams"),
        *("zstd", "zstd claims 1 TiB", "zstd claims one chunk", "zstd frames", "zstd window"),
        *("blosc claims 1 GiB", "blosc claims 2 GiB block"),
        *("lzma", "lzma streams", "lzma empty streams", "lz4", "lz4 claims 4 GiB"),
        *("snappy", "snappy claims 4 GiB", "snappy blocks"),
    ],
)
def test_bomb(outcomes, name):
    outcome = outcomes[name]
    assert outcome["error"] == "CorruptChunkError"
    assert outcome["processor_seconds"] < 10
    # Twice the chunk, what the decoder itself needs (bzip2: 4 MB), and the allocator's slack.
    assert outcome["growth_nbytes"] < 2 * NBYTES + (6 << 20)
