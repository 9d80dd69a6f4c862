"""The library of a device that decodes images proves itself once for each format."""

import io
import threading
import warnings

import numpy as np
import pytest

import gpustore
from gpustore.device.image_decoders import FORMATS, IMAGES, LARGEST_DIFFERENCE, pixels
from gpustore.errors import DeviceError, DeviceWarning
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS


class Shifted:
    """Library whose elements are a little off."""

    name = "shifted images"

    def __init__(self, by):
        self._by = by

    def decode(self, batch, stream):
        return [pixels() + np.uint8(self._by)]


def absent():
    raise DeviceError("no library of images: install one")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("order", ORDERS)
def test_what_works_passes_without_a_word(order, name):
    device = EmulatedDevice(order, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = device.image_decoder(name)
    assert (state.engine, state.codecs) == ("emulated images", (name,))
    assert (dict(state.missing), state.shortcoming) == ({}, None)
    assert device.counts["decode_images"] == 0  # Those of a self-test are counted apart.
    device.close()


FAILURES = {
    "status": ({"images": {(0, 0)}}, "it does not decode an image of {name}"),
    "elements": ({"strange_images": {(0, 0)}}, "elements of {name} differ by up to 21"),
    "refused": ({"failing": {("decode_images", 0): False}}, "decode_images failed: injected"),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", FAILURES)
def test_a_format_that_fails_is_absent_and_told_once(case, name):
    faults, reason = FAILURES[case]
    device = EmulatedDevice()
    for fault, value in faults.items():
        setattr(device.test_faults, fault, value)
    with pytest.warns(DeviceWarning) as caught:
        states = [device.image_decoder(name) for _ in range(2)]
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"{device.name}: emulated images fails its self-test (")
    assert reason.format(name=name) in text
    assert text.endswith(f"or another version; the host decodes images of {name}")
    assert states[0] == states[1]
    assert (states[0].engine, states[0].codecs) == (None, ())
    assert text == f"{device.name}: {states[0].shortcoming}"
    assert states[0].shortcoming.startswith(states[0].missing[name])
    device.close()


def test_a_device_without_a_library_says_what_to_install_for_each_format():
    device = EmulatedDevice(images=absent)
    for name in FORMATS:
        with pytest.warns(DeviceWarning) as caught:
            states = [device.image_decoder(name) for _ in range(2)]
        assert [str(one.message) for one in caught] == [
            f"emulated: no library of images: install one; the host decodes images of {name}"
        ]
        assert states[1].missing == {name: "no library of images: install one"}
    device.close()


@pytest.mark.parametrize("name", FORMATS)
def test_elements_may_differ_by_as_much_as_the_format_leaves_open(name):
    most = LARGEST_DIFFERENCE[name]
    device = EmulatedDevice(images=lambda: Shifted(most))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.image_decoder(name).engine == "shifted images"
    device.close()
    device = EmulatedDevice(images=lambda: Shifted(most + 1))
    with pytest.warns(DeviceWarning, match=f"differ by up to {most + 1} from the right ones"):
        assert device.image_decoder(name).engine is None
    device.close()


def test_the_library_is_loaded_at_the_first_question_and_once_for_all_threads():
    loads = []

    def load():
        loads.append(threading.get_ident())
        return Shifted(0)

    device = EmulatedDevice(images=load)
    assert not loads
    threads = [threading.Thread(target=device.image_decoder, args=("tiff",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.image_decoder("jpeg").engine == "shifted images"
    assert len(loads) == 1
    device.close()


@pytest.mark.parametrize("lack", ["device", "pinned"])
def test_without_memory_for_the_test_it_is_repeated(lack):
    device = EmulatedDevice()
    device.test_faults.allocations = {0} if lack == "device" else set()
    device.test_faults.pinned = {0} if lack == "pinned" else set()
    assert device.image_decoder("jpeg").engine == "emulated images"
    device.test_faults.allocations = device.test_faults.pinned = set()
    device.test_faults.images = {(0, 0)}
    with pytest.warns(DeviceWarning):
        assert device.image_decoder("jpeg").engine is None
    device.close()


def test_a_device_that_is_lost_in_the_test_stays_lost():
    device = EmulatedDevice()
    device.test_faults.lost_at = 0
    with pytest.warns(DeviceWarning, match="illegal memory access"):
        assert device.image_decoder("jpeg").engine is None
    with pytest.raises(gpustore.DeviceError, match="illegal memory access"):
        device.memory()


def test_constant_images_have_the_right_elements():
    image = pytest.importorskip("PIL.Image")
    for name in FORMATS:
        with image.open(io.BytesIO(IMAGES[name])) as opened:
            found = np.asarray(opened).astype(int)
        assert np.abs(found - pixels()).max() <= {"jpeg": 1, "tiff": 0}[name]
