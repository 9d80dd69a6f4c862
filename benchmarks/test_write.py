"""Writing a whole new array."""

import itertools
import os

import numpy as np
import pytest

from benchmarks.peers import TensorStorePeer


def test_full_write(measure, peer, array_format, volume, tmp_path):
    _write(measure, peer, peer.create, array_format, volume, tmp_path)


def test_full_write_fsync(measure, peer, array_format, volume, tmp_path):
    """With fsync of files and directories."""
    if not isinstance(peer, TensorStorePeer):
        pytest.skip("cannot call fsync")

    def create(*arguments):
        return peer.create_anew(*arguments, sync=True)

    _write(measure, peer, create, array_format, volume, tmp_path)


def _write(measure, peer, create, array_format, volume, tmp_path):
    number = itertools.count()

    def new_array():
        # Pages of earlier rounds that are not on the disk would add up, until the kernel makes
        # writers wait for it. Deleting is no help: ext4 then looks long for inodes not used lately.
        os.sync()
        path = tmp_path / str(next(number))
        return (create(path, array_format, volume.shape),), {}

    measure(lambda handle: peer.write(handle, volume), nbytes=volume.nbytes, setup=new_array)
    last = max(tmp_path.iterdir(), key=lambda path: int(path.name))
    reader = TensorStorePeer(threads=2)
    assert np.array_equal(reader.read(reader.open(last, array_format), ...), volume)
