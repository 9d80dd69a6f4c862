"""nvImageCodec itself, with its decoders for the host, by the module that drives it on a GPU."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import gpustore
from gpustore import registry
from gpustore.backends import nvimgcodec
from gpustore.backends.decoders import GpuDecoders
from gpustore.backends.nvimgcodec import GPU, NO_IMAGE_LIBRARY
from gpustore.device.image_batch import ImageBatch
from gpustore.device.image_decoders import FORMATS, IMAGES, pixels
from gpustore.errors import DeviceError
from tests.backends.cuda.wheels import skip
from tests.codec_chain.test_device_images import (
    GRAY,
    ON_DEVICE,
    PLAIN,
    check,
    check_damaged,
    encoded,
    spec_of,
)
from tests.emulator.images import HostLibrary
from tests.kernels.execution import needs_compiler
from tests.matrix import each, share
from tests.on_device import emulated


@pytest.fixture(scope="module")
def library():
    if not registry.is_installed("nvidia.nvimgcodec"):
        skip("nvidia.nvimgcodec is not installed")
    return HostLibrary()


def batch(name, files, shapes, page=0):
    return ImageBatch(name, files, shapes, page, np.zeros(len(files), np.uint64), 0)


@each("name", FORMATS)
def test_constant_images_decode_to_the_same_elements(name, library):
    (found,) = library.decode(batch(name, [IMAGES[name]], [(16, 16, 3)]), 0)
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - pixels()).max() <= {"jpeg": 1, "tiff": 0}[name]


@each("name", PLAIN)
def test_plain_images_decode_as_pillow_decodes_them(name, library):
    driver, value = PLAIN[name]
    with Image.open(io.BytesIO(value)) as image:
        expected = np.atleast_3d(np.asarray(image))
    for found in library.decode(batch(driver, [memoryview(value)] * 3, [expected.shape] * 3), 0):
        assert np.array_equal(found, expected)


@each("page", [0, 1, 2])
def test_pages_are_numbered_as_pillow_numbers_them(page, library):
    images = [Image.fromarray(GRAY[..., 0] + np.uint8(i)) for i in range(2)]
    stream = io.BytesIO()
    images[0].save(stream, "tiff", save_all=True, append_images=images[1:])
    (found,) = library.decode(batch("tiff", [stream.getvalue()], [GRAY.shape], page), 0)
    if page < 2:
        assert np.array_equal(found, GRAY + np.uint8(page))
    else:
        assert found is None


@each("bad", [b"", b"x" * 99, PLAIN["jpeg 4:2:0"][1][:900], encoded("jpeg", GRAY)])
def test_an_image_that_is_not_decoded_does_not_touch_the_others(bad, library):
    _, value = PLAIN["jpeg 4:2:0"]
    shape = (*GRAY.shape[:2], 3)
    found = library.decode(batch("jpeg", [value, bad, value], [shape] * 3), 0)
    assert [one is None for one in found] == [False, True, False]


def test_an_image_of_another_size_than_was_said_is_not_decoded(library):
    _, value = PLAIN["jpeg 4:2:0"]
    assert library.decode(batch("jpeg", [value], [(52, 37, 3)]), 0) == [None]


@needs_compiler
@each("name", PLAIN)
def test_reads_into_a_device_take_their_elements_from_it(name, tmp_path, library):
    with emulated(images=lambda: library) as device:
        _, explanation = check(device, spec_of(tmp_path, *PLAIN[name]), ON_DEVICE)
        assert explanation.library == library.name
        assert library.name.startswith(nvimgcodec.IMAGE_LIBRARY)


@needs_compiler
@settings(max_examples=share(200), deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_files_have_the_outcome_of_the_host(data, tmp_path_factory, library):
    """nvImageCodec takes a wrong bit of LZW and deflate for none: checksums are compared."""
    check_damaged(data, tmp_path_factory.mktemp("damaged"), images=lambda: library)


@each("cut", [9, 20, 30])
def test_headers_that_it_does_not_read_are_left_to_the_host(cut, library):
    value = PLAIN["tiff"][1]
    damaged = value[:cut] + bytes(20) + value[cut + 20 :]
    assert library.decode(batch("tiff", [damaged], [(*GRAY.shape[:2], 3)]), 0) == [None]


_KINDS = """
from nvidia import nvimgcodec
print(*[name for name in dir(nvimgcodec.BackendKind) if name.isupper()], end="")
print(":", nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY)
print(*[hasattr(nvimgcodec.Image, "__cuda_array_interface__")])
"""


def test_names_and_numbers_that_only_a_gpu_needs_exist(library):
    command = [sys.executable, "-c", _KINDS]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=100)
    kinds, has_interface = done.stdout.splitlines()
    names, _, device = kinds.partition(":")
    assert {*GPU, "CPU_ONLY"} <= {*names.split()}
    assert int(device) == -99999
    assert has_interface == "True"


def test_without_it_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia", None)
    monkeypatch.setattr(registry, "is_installed", lambda name: False)
    with pytest.raises(DeviceError) as caught:
        nvimgcodec.Library(0)
    assert caught.value.text == NO_IMAGE_LIBRARY


def test_without_a_gpu_its_decoder_of_a_gpu_says_what_is_wrong(library):
    from tests import gpu

    if gpu.answers():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match=r"^nvImageCodec [\d.]+ cannot be used: "):
        nvimgcodec.Library(0)


def test_a_gpu_without_it_is_said_to_lack_it(tmp_path):
    chain = gpustore.open(spec_of(tmp_path, *PLAIN["tiff"])).result()._driver.array.chain
    assert chain.unsupported_reason(GpuDecoders(has_nvcomp=True)) == NO_IMAGE_LIBRARY
    everything = GpuDecoders(has_nvcomp=True, has_image_library=True)
    assert chain.unsupported_reason(everything) is None
