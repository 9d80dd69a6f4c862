"""Small reads and openings pass few modules, so that a newcomer can follow their way."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gpustore

PACKAGE = str(Path(gpustore.__file__).parent)


def modules_of(call):
    """Modules of the package whose functions run in a call, and its result."""
    found = set()

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            found.add(name.removeprefix(PACKAGE))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found, result


@pytest.mark.parametrize("driver", ["zarr2", "zarr3", "zarr3 with shards"])
def test_a_small_read_passes_20_modules_and_an_opening_35(tmp_path, driver):
    layout = {"write_chunk": {"shape": [64, 64]}, "read_chunk": {"shape": [16, 16]}}
    for name in "ab":  # The first one of many arrays with the same metadata takes more.
        store = gpustore.open(
            f"{tmp_path / name}|{driver[:5]}:",
            create=True,
            dtype="uint16",
            shape=[64, 64],
            chunk_layout=gpustore.ChunkLayout(layout) if "shards" in driver else None,
        ).result()
        store.write(np.arange(64 * 64, dtype="uint16").reshape(64, 64)).result()
    gpustore.open(str(tmp_path / "a")).result().read().result()
    opened, store = modules_of(lambda: gpustore.open(str(tmp_path / "b")).result())
    first, values = modules_of(lambda: store.read().result())
    again, _ = modules_of(lambda: store[5:9, 5].read().result())
    np.testing.assert_array_equal(values, np.arange(64 * 64).reshape(64, 64))
    assert len(opened) <= 35, sorted(opened)
    assert len(first) <= 20, sorted(first)
    assert len(again) <= 20, sorted(again)
