"""Files as sources: which are recognised, and what is said where a library is missing."""

import errno
import sys

import numpy as np
import pytest

import gpustore
from gpustore.sources.files import open_file

VALUES = np.arange(24, dtype=">u2").reshape(4, 6)


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_mapped(tmp_path, order):
    path = tmp_path / "a b.npy"
    np.save(path, np.asarray(VALUES, order=order))
    for place in (str(path), path.as_uri()):
        source = open_file(place)
        part = source.read((slice(1, 3), slice(0, 6)))
        assert isinstance(part, np.memmap)
        np.testing.assert_array_equal(part, VALUES[1:3])


def test_a_part_of_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run\.h5 does not exist$"):
        gpustore.copy(f"{tmp_path}/run.h5::/detector", f"{tmp_path}/copy.zarr")
    with pytest.raises(gpustore.PathNotFoundError, match=f"{tmp_path} is no file$"):
        gpustore.copy(f"{tmp_path}::/detector", f"{tmp_path}/copy.zarr")


def test_npy_with_objects_or_a_part(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(gpustore.CopyError, match=r"a\.npy cannot be copied"):
        open_file(str(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", VALUES)
    with pytest.raises(gpustore.CopyError, match="holds one array: leave out ::x"):
        open_file(f"{tmp_path}/b.npy::x")


def test_other_files_are_nobodys(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"text")
    for place in (tmp_path / "a.npy", tmp_path / "none.npy", tmp_path, "memory://a"):
        assert open_file(str(place)) is None


def test_a_changed_file_is_another_source(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    first = open_file(str(tmp_path / "a.npy"))
    np.save(tmp_path / "a.npy", VALUES[1:])
    assert open_file(str(tmp_path / "a.npy")).identity != first.identity


@pytest.mark.parametrize(
    ("begin", "library", "extra"),
    [(b"II*\0", "tifffile", "tiff"), (b"\x89HDF\r\n\x1a\n", "h5py", "hdf5")],
)
def test_a_missing_library_is_named(tmp_path, monkeypatch, begin, library, extra):
    (tmp_path / "a").write_bytes(begin)
    monkeypatch.setattr("gpustore.registry.is_installed", lambda module: module != library)
    with pytest.raises(ModuleNotFoundError) as info:
        gpustore.copy(tmp_path / "a", tmp_path / "b")
    text = f"{library} is not installed: python -m pip install 'gpustore[{extra}]'"
    assert (str(info.value), info.value.name) == (text, library)


def test_libraries_are_imported_on_use(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    before = set(sys.modules)
    assert open_file(str(tmp_path / "a.npy")) is not None
    assert {"h5py", "tifffile"}.isdisjoint(set(sys.modules) - before)


@pytest.fixture
def planes(tmp_path):
    """Planes in files whose names sort otherwise as texts."""
    for number in range(12):
        np.save(tmp_path / f"z{number}.npy", VALUES + np.uint16(number))
    return f"{tmp_path}/z*.npy"


def test_files_are_stacked_in_the_order_of_their_numbers(planes, tmp_path):
    copied = gpustore.copy(planes, tmp_path / "b.zarr", chunks=(4, 2, 6), dims=("z", "y", "x"))
    expected = VALUES + np.arange(12, dtype="u2")[:, None, None]
    np.testing.assert_array_equal(copied.read().result(), expected)
    source = open_file(planes)
    np.testing.assert_array_equal(
        source.read((slice(3, 11), slice(1, 2), slice(0, 3))), expected[3:11, 1:2, :3]
    )


def test_files_of_a_stack_are_alike(planes, tmp_path):
    np.save(tmp_path / "z10.npy", VALUES[1:])
    with pytest.raises(gpustore.CopyError, match=r"z10\.npy is no uint16 array of \(4, 6\)"):
        gpustore.copy(planes, tmp_path / "b.zarr")


def test_a_pattern_may_be_the_name_of_a_file(tmp_path):
    np.save(tmp_path / "a[1].npy", VALUES)
    assert open_file(f"{tmp_path}/a[1].npy").shape == VALUES.shape
    assert open_file(f"{tmp_path}/b*.npy") is None


def test_brackets_in_the_name_of_a_folder_are_no_pattern(tmp_path):
    for number, folder in enumerate(("exp1", "exp[1]")):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "i0.npy", VALUES + np.uint16(number))
    source = open_file(f"{tmp_path}/exp[1]/i*.npy")
    np.testing.assert_array_equal(
        source.read((slice(0, 1), slice(0, 4), slice(0, 6)))[0], VALUES + 1
    )
    (tmp_path / "exp1" / "i0.npy").rename(tmp_path / "a1")
    (tmp_path / "a[1]").mkdir()
    assert open_file(f"{tmp_path}/a[1]") is None


def test_names_of_no_file_are_typed_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gpustore.NotFoundError, match="~nobody-of-this-name/x"):
        gpustore.copy("~nobody-of-this-name/x", "b.zarr")
    with pytest.raises(gpustore.StoreIOError, match="aaa cannot be read: File name too long"):
        gpustore.copy("a" * 300, "b.zarr")
    assert open_file("s3://bucket/" + "a" * 300) is None


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="such a pattern is legal")
def test_a_wrong_pattern_is_named(tmp_path):
    with pytest.raises(gpustore.CopyError, match=r"a\*\*b is no file, and no pattern: Invalid"):
        gpustore.copy(f"{tmp_path}/a**b", tmp_path / "b.zarr")
    assert open_file("s3://bucket/a**b") is None


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", VALUES)

    def refused(path, mode):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.open", refused)
    with pytest.raises(gpustore.StoreIOError, match=r"a\.npy cannot be read: Permission") as info:
        open_file(f"{tmp_path}/a.npy")
    assert info.value.errno == errno.EACCES


@pytest.mark.parametrize(
    "header", [f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**70},)}}", "(("]
)
def test_a_damaged_header_is_an_error(tmp_path, header):
    written = b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header.encode()
    (tmp_path / "a.npy").write_bytes(written)
    with pytest.raises(gpustore.CopyError, match=r"a\.npy cannot be copied"):
        open_file(f"{tmp_path}/a.npy")
