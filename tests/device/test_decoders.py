"""Decoders prove themselves once, and what is missing or fails is told."""

import threading
import warnings

import numpy as np
import pytest

import gpustore
from gpustore.backends.decoders import GpuDecoders
from gpustore.codec_chain.device_streams import cannot
from gpustore.device import decoders, self_test
from gpustore.device.own_kernels import NO_KERNEL, OWN_KERNELS, can_decompress
from gpustore.errors import DeviceWarning
from tests.emulator import codecs
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host
from tests.streams import CODECS

ZSTD = list(self_test.STREAMS).index("zstd")


@pytest.fixture(autouse=True)
def _each_device_tests_itself(monkeypatch):
    monkeypatch.setattr(EmulatedDevice, "repeats_self_tests", True)


@pytest.fixture
def device():
    device = EmulatedDevice()
    yield device
    device.close()


@pytest.mark.parametrize("codec", CODECS)
def test_constant_streams_decode_to_the_same_bytes(codec):
    found = codecs.decompress(codec, self_test.STREAMS[codec], len(self_test.PLAIN))
    assert found == (self_test.PLAIN, codecs.SUCCESS)


def test_every_codec_of_a_library_has_a_stream():
    assert set(self_test.STREAMS) == set(GpuDecoders(has_nvcomp=True).decoders().codecs)
    assert set(self_test.STREAMS) == set(codecs.CODECS)


@pytest.mark.parametrize("order", ORDERS)
def test_what_works_passes_without_a_word(order):
    device = EmulatedDevice(order, seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = device.decoders()
    device.close()
    assert state.engine == "emulated library"
    assert set(state.codecs) == set(codecs.CODECS)
    assert (dict(state.missing), state.shortcoming) == ({}, None)


FAILURES = {
    "status": ({"statuses": {(ZSTD, 0): 12}}, "status 12 (cannot be decompressed)"),
    "unknown status": ({"statuses": {(ZSTD, 0): 77}}, "status 77 (unknown)"),
    "size": ({"sizes": {(ZSTD, 0): 3}}, "3 bytes instead of 432"),
    "bytes": ({"nonsense": {(ZSTD, 0)}}, "other bytes than were encoded"),
    "refused": ({"failing": {("decompress", ZSTD): False}}, "decompress failed: injected"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_codec_that_fails_is_absent_and_told(device, case):
    faults, reason = FAILURES[case]
    for name, value in faults.items():
        setattr(device.test_faults, name, value)
    with pytest.warns(DeviceWarning) as caught:
        assert device.codec("zstd") is None
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"{device.name}: emulated library fails its self-test (zstd: ")
    assert reason in text
    assert text.endswith("install it again, or another version; the host decodes zstd")
    state = device.decoders()
    assert state.shortcoming in text
    assert reason in state.missing["zstd"]
    assert [*state.missing] == ["zstd"]
    assert device.codec("gzip") == codecs.CODECS["gzip"]


def test_own_kernels_decode_what_a_library_fails_to(device):
    device.test_faults.statuses[0, 0] = 12
    with pytest.warns(DeviceWarning, match=r"lz4: status 12.*; own kernels decode lz4$"):
        assert device.codec("lz4") is None
    assert can_decompress(device, "lz4")


def test_a_device_without_a_library_says_what_to_install():
    device = EmulatedDevice(decodes=(), shortcoming="no library: install one")
    with pytest.warns(DeviceWarning) as caught:
        assert device.codec("zstd") is None
    assert str(caught[0].message) == (
        "emulated: no library: install one; own kernels decode lz4; "
        "the host decodes snappy, zstd, deflate, gzip"
    )
    state = device.decoders()
    assert (state.engine, state.codecs) == (None, ())
    assert set(state.missing.values()) == {"no library: install one"}
    device.close()


def test_a_slower_library_is_told_too():
    device = EmulatedDevice(shortcoming="the fast library cannot be loaded")
    with pytest.warns(DeviceWarning, match=r"^emulated: the fast library cannot be loaded$"):
        assert device.codec("zstd") is not None
    device.close()


def test_a_codec_that_the_library_lacks_is_no_shortcoming():
    device = EmulatedDevice(decodes=("zstd",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.codec("gzip") is None
    assert device.decoders().missing["gzip"] == "emulated library does not decode it"
    device.close()


def test_the_test_runs_once_for_all_threads(device, monkeypatch):
    calls = []
    library_failure = self_test.library_failure

    def noted(*arguments):
        calls.append(threading.get_ident())
        return library_failure(*arguments)

    monkeypatch.setattr(decoders, "library_failure", noted)
    threads = [threading.Thread(target=device.codec, args=("zstd",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    device.decoders()
    assert len(calls) == len(self_test.STREAMS)


def test_without_memory_for_the_test_it_is_repeated():
    device = EmulatedDevice()
    device.test_faults.allocations = {0}
    assert device.codec("zstd") is not None
    device.test_faults.allocations = set()
    device.test_faults.statuses = {(ZSTD, 0): 12}
    with pytest.warns(DeviceWarning):
        assert device.codec("zstd") is None
    device.close()


def test_a_device_that_is_lost_in_the_test_stays_lost(device):
    device.test_faults.lost_at = 0
    with pytest.warns(DeviceWarning, match="illegal memory access"):
        assert device.codec("zstd") is None or True
    with pytest.raises(gpustore.DeviceError, match="illegal memory access"):
        device.memory()


# --------------------------------------------------------------------------- own kernels


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
def test_own_kernels_pass_without_a_word(order):
    device = EmulatedDevice(order, seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [device.own_kernel_failure(codec) for codec in OWN_KERNELS] == [None, None]
        assert device.own_kernel_failure("zstd") == NO_KERNEL
    assert device.counts["launch"] == 0  # They are counted apart.
    device.close()


def test_every_own_kernel_has_a_stream():
    assert set(self_test.OWN_STREAMS) == set(OWN_KERNELS)


@needs_compiler
@pytest.mark.parametrize("codec", OWN_KERNELS)
@pytest.mark.parametrize("damage", ["bytes", "refused", "size"])
def test_a_kernel_that_fails_is_not_used_and_told_once(codec, damage, monkeypatch):
    device = EmulatedDevice(decodes=("zstd",))
    stream = self_test.OWN_STREAMS[codec]
    reason = "other bytes than were encoded"
    if damage == "bytes":
        stream = stream.replace(b"squared", b"cubed??")
    elif damage == "size":
        stream, reason = stream[:-1], "status"
    else:
        device.test_faults.failing = {("launch", 0): False}
        reason = "launch failed: injected"
    monkeypatch.setitem(self_test.OWN_STREAMS, codec, stream)
    with pytest.warns(
        DeviceWarning, match=f"own kernel fails .*{codec}: .*{reason}.*; the host"
    ) as caught:
        assert [can_decompress(device, codec) for _ in range(2)] == [False, False]
    assert len(caught) == 1
    assert cannot(device, codec, None).endswith(device.own_kernel_failure(codec))
    device.close()


@needs_compiler
def test_a_kernel_takes_its_test_once_for_all_threads(device, monkeypatch):
    calls = []
    own_kernel_failure = self_test.own_kernel_failure

    def noted(*arguments):
        calls.append(threading.get_ident())
        return own_kernel_failure(*arguments)

    monkeypatch.setattr(decoders, "own_kernel_failure", noted)
    threads = [threading.Thread(target=device.own_kernel_failure, args=("lz4",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


@needs_compiler
def test_without_memory_for_the_test_a_kernel_is_tested_later(device):
    device.test_faults.allocations = {0}
    assert can_decompress(device, "blosclz")
    device.test_faults.allocations = set()
    device.test_faults.failing = {("launch", 0): False}
    with pytest.warns(DeviceWarning):
        assert not can_decompress(device, "blosclz")


# --------------------------------------------------------------------------- reads


@needs_compiler
def test_the_host_decodes_what_an_own_kernel_fails_to(tmp_path):
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}"}
    spec["metadata"] = {"shape": [4000], "chunks": [1000], "dtype": "<u4"}
    spec["metadata"] |= {"compressor": {"id": "blosc", "cname": "blosclz", "clevel": 5}}
    elements = np.arange(4000, dtype="u4")
    gpustore.open(spec, create=True, device="cpu").result()[...] = elements
    with emulated() as device:
        device.test_faults.failing = {("launch", 0): False}
        there = gpustore.open(spec, device=device.name).result()
        with pytest.warns(DeviceWarning, match="the host decodes blosclz"):
            future = there.read()
        assert np.array_equal(on_host(device, future.result()), elements)
        assert future.statistics["missing_decoder_reads"] == 1
        assert future.statistics["host_fallbacks"] == 4
        assert there.explain().host_reason.startswith("blosclz: own kernels fail their self-test")
        del there, future


@needs_compiler
def test_reads_count_and_explain_what_is_missing(tmp_path):
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}"}
    spec["metadata"] = {"shape": [40], "chunks": [10], "dtype": "<u4"}
    spec["metadata"] |= {"compressor": {"id": "zstd", "level": 1}}
    elements = np.arange(40, dtype="u4")
    gpustore.open(spec, create=True, device="cpu").result()[...] = elements
    with emulated() as device:
        device.test_faults.statuses[ZSTD, 0] = 12
        there = gpustore.open(spec, device=device.name).result()
        with pytest.warns(DeviceWarning, match="fails its self-test") as caught:
            future = there.read()
        assert np.array_equal(on_host(device, future.result()), elements)
        assert future.statistics["missing_decoder_reads"] == 1
        assert future.statistics["few_stream_reads"] == 0
        assert future.statistics["host_fallbacks"] == 4
        again = there.read()
        assert np.array_equal(on_host(device, again.result()), elements)
        assert len(caught) == 1
        explanation = there.explain()
        assert explanation.counts["missing_decoder_reads"] == (1, 1)
        assert explanation.library == "emulated library"
        assert explanation.shortcoming in str(caught[0].message)
        assert explanation.shortcoming in str(explanation)
        assert explanation.host_reason == (
            "zstd: emulated library fails its self-test: status 12 (cannot be decompressed)"
        )
        del there, future, again


def test_reads_of_what_needs_no_library_ask_for_none(tmp_path):
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}"}
    gpustore.open(spec, create=True, dtype="uint8", shape=[9], device="cpu").result()[...] = 3
    with emulated(decodes=()) as device, warnings.catch_warnings():
        warnings.simplefilter("error")
        there = gpustore.open(spec, device=device.name).result()
        assert on_host(device, there.read().result()).sum() == 27
        assert there.explain().shortcoming is None
        del there
