"""Small reads and openings pass few modules, so that a newcomer can follow their way."""

import sys
import threading
from pathlib import Path

import numpy as np

import gpustore

PACKAGE = str(Path(gpustore.__file__).parent)


def modules_of(call):
    """Modules of the package whose functions run in a call that has run before."""
    call()
    found = set()

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            found.add(name.removeprefix(PACKAGE))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def test_a_small_read_passes_20_modules_and_an_opening_35(tmp_path):
    path = str(tmp_path / "a.zarr")
    store = gpustore.open(f"{path}|zarr3:", create=True, dtype="uint16", shape=[64, 64]).result()
    store.write(np.arange(64 * 64, dtype="uint16").reshape(64, 64)).result()
    opened = modules_of(lambda: gpustore.open(path).result())
    crop = gpustore.open(path).result()[5:9, 5:9]
    read = modules_of(lambda: crop.read().result())
    assert len(opened) <= 35, sorted(opened)
    assert len(read) <= 20, sorted(read)
