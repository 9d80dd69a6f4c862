"""Encoders of a device prove themselves before their first use."""

import warnings

import numpy as np
import pytest

from gpustore.backends.device.proven_encoders import ProvenEncoders
from gpustore.errors import DeviceError, DeviceWarning
from tests.backends.device.test_encoding import CODECS, create, elements, written
from tests.emulator import codecs
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.on_device import emulated


@pytest.mark.parametrize("order", ORDERS)
def test_what_works_passes_without_a_word(order):
    device = EmulatedDevice(order, seed=4)
    encoders = ProvenEncoders(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in codecs.CODECS:
            assert encoders.codec(name) == codecs.CODECS[name]
            assert encoders.codec(name) == codecs.CODECS[name]
    assert device.counts["compress"] == 3
    device.close()


@pytest.mark.parametrize("name", ["lz4", "zstd", "deflate"])
def test_wrong_streams_are_not_written(name, monkeypatch):
    device = EmulatedDevice()
    encode = codecs.compress
    monkeypatch.setattr(codecs, "compress", lambda codec, data: encode(codec, data[:-1] + b"?"))
    encoders = ProvenEncoders(device)
    with pytest.warns(DeviceWarning, match=f"the test of its {name} encoder .*; the host encodes"):
        assert encoders.codec(name).encodes_max_nbytes == 0
    assert encoders.codec(name).encodes_max_nbytes == 0
    device.close()


def test_a_status_is_told():
    device = EmulatedDevice()
    device.faults.compressions = {(0, 0): 10}
    with pytest.warns(DeviceWarning, match=r"status 10 \(invalid argument\)"):
        assert ProvenEncoders(device).codec("zstd").encodes_max_nbytes == 0
    device.close()


def test_an_encoder_is_not_used_where_memory_for_its_test_lacks():
    device = EmulatedDevice()
    encoders = ProvenEncoders(device)
    device.faults.pinned = {0}
    assert encoders.codec("zstd").encodes_max_nbytes == 0
    device.faults.allocations = {device.counts["allocations"]}
    assert encoders.codec("zstd").encodes_max_nbytes == 0
    assert device.counts["compress"] == 0
    assert encoders.codec("zstd") == codecs.CODECS["zstd"]
    assert device.counts["compress"] == 1
    device.close()


def test_errors_of_the_device_are_passed_on():
    device = EmulatedDevice()
    device.faults.failing = {("compress", 0): False}
    with pytest.raises(DeviceError, match="compress failed"):
        ProvenEncoders(device).codec("zstd")
    device.close()


def test_the_host_encodes_where_the_test_fails(tmp_path):
    with emulated() as device:
        device.faults.compressions = {(0, 0): 10}
        host, there = create(tmp_path, device, compressor=CODECS["zstd"])
        with pytest.warns(DeviceWarning):
            counts = written(device, there, np.s_[...], elements("u4") + 1)
        assert counts["host_encodings"] == 20
        assert np.array_equal(host.read().result(), elements("u4") + 1)
