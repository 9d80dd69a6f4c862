"""What nvcomp's library answers without a GPU, and that the emulated device answers the same."""

import os
import re
from pathlib import Path

import pytest

from gpustore.backends.nvcomp import engine as load_engine
from gpustore.backends.nvcomp.library import Library
from gpustore.errors import DeviceError
from tests.backends.cuda.wheels import installed_nvcomp, skip
from tests.emulator import codecs
from tests.matrix import each


@pytest.fixture(scope="module")
def library():
    if installed_nvcomp() is None:
        skip("nvidia-nvcomp is not installed")
    return Library()


def test_alignments_and_limits_of_the_emulated_device_are_the_librarys(library):
    for name, emulated in codecs.CODECS.items():
        assert library.codec(name) == emulated
    assert library.codec("bz2") is None


@each("codec", codecs.CODECS)
@each(("count", "nbytes"), [(1, 1), (1000, 1 << 20), (100_000, 4096)])
def test_scratch_memory_of_the_emulated_device_is_about_the_librarys(library, codec, count, nbytes):
    asked = library.decompress_temp_nbytes(codec, count, nbytes, count * nbytes)
    emulated = codecs.decompress_temp_nbytes(codec, count * nbytes)
    assert (asked == 0) == (emulated == 0)
    if nbytes == 1 << 20:
        assert 0.9 * asked <= emulated <= 1.1 * asked


@pytest.mark.parametrize("codec", ["lz4", "snappy", "deflate", "gzip"])  # zstd asks the driver.
def test_room_to_compress_is_larger_than_the_stream(library, codec):
    if codec == "gzip" and library.version < 6000:
        skip("nvcomp 5 does not say how gzip is to be aligned")
    bound, temp = library.compress_nbytes(codec, 10, 65_536)
    assert 65_536 < bound < 4 * 65_536
    assert temp >= 0


def test_engine_is_the_library_where_its_version_is_known(library):
    engine, shortcoming = load_engine()
    assert isinstance(engine, Library)
    assert shortcoming is None
    assert re.fullmatch(r"nvcomp [56]\.\d, C library", engine.name)
    assert engine.version == library.version


def test_another_library_than_nvcomp_is_refused():
    with pytest.raises(DeviceError, match=r"libc\.so\.6 cannot be used: .*nvcompGetProperties"):
        Library(Path("libc.so.6"))


def test_a_library_that_is_none_is_said_so(tmp_path):
    path = tmp_path / "libnvcomp.so.9"
    path.write_bytes(b"no library")
    with pytest.raises(DeviceError, match=r"libnvcomp\.so\.9 cannot be used"):
        Library(path)
    path = Path(os.__file__).parent / "nothing.so"
    with pytest.raises(DeviceError, match=r"nothing\.so cannot be used"):
        Library(path)
