"""Chunks that claim or hold far more than a chunk, read through an opened array.

In a process of its own, because only there the peak is known.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix import each

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")

NBYTES = 1 << 20
_ROOT = Path(__file__).parents[2]

NAMES = (
    *("gzip", "zlib", "bz2", "gzip members", "bz2 streams", "gzip, short", "zlib, short"),
    *("zstd", "zstd claims 1 TiB", "zstd claims one chunk", "zstd frames", "zstd window"),
    *("blosc claims 1 GiB", "blosc claims 2 GiB block", "zstd of gzip", "gzip of gzip"),
    *("lzma", "lzma streams", "lzma empty streams", "lz4", "lz4 claims 4 GiB"),
    *("snappy", "snappy claims 4 GiB", "snappy blocks"),
    *("raw, sparse", "gzip, sparse", "zstd, sparse", "crc32c, sparse"),
)
ACTIONS = ("part", "chunk", "out", "array", "write")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.reliability.bomb_worker"),
            *(str(tmp_path_factory.mktemp("bombs")), str(NBYTES)),
        ],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_bomb_was_tried(outcomes):
    assert set(outcomes) == {f"{name}: {action}" for name in NAMES for action in ACTIONS}


@each("name", NAMES)
def test_bomb_is_an_error_that_costs_little(outcomes, name):
    for action in ACTIONS:
        outcome = outcomes[f"{name}: {action}"]
        assert outcome["error"] == "CorruptChunkError", action
        assert outcome["names_key"], action
        assert outcome["processor_seconds"] < 10, action
        # Twice the chunk, what the decoder itself needs (bzip2: 4 MB) and the allocator's slack.
        assert outcome["growth_nbytes"] < 2 * NBYTES + (6 << 20), action
