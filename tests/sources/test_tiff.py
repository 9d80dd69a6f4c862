"""TIFF files of all layouts as tifffile writes them, read region by region."""

import importlib.util
import struct
import zlib

import numpy as np
import pytest

import gpustore
from gpustore.sources import tiff
from gpustore.sources.files import open_file

tifffile = pytest.importorskip("tifffile")

STACK = np.arange(6 * 37 * 50, dtype="u2").reshape(6, 37, 50)
REST = (slice(0, 37), slice(0, 50))
IMAGE = np.random.default_rng(0).integers(0, 255, (37, 50, 3)).astype("u1")
LERC = 34887
ZLIB = {"compression": "zlib"}
RGB = {**ZLIB, "photometric": "rgb"}

LAYOUTS = {
    "plain": (STACK, {}, None),
    "strips": (STACK, {**ZLIB, "rowsperstrip": 7}, None),
    "tiles": (STACK, {**ZLIB, "tile": (16, 32)}, None),
    "big endian": (STACK, {**ZLIB, "byteorder": ">"}, None),
    "big endian, plain": (STACK, {"byteorder": ">"}, None),
    "one page": (STACK[0], ZLIB, "yx"),
    "differences": (STACK, {**ZLIB, "predictor": True}, None),
    "samples": (IMAGE, {**RGB, "tile": (16, 16)}, "yxs"),
    "separate samples": (
        np.moveaxis(IMAGE, 2, 0),
        {**RGB, "planarconfig": "separate", "rowsperstrip": 8},
        "syx",
    ),
    "stack of samples": (np.stack([IMAGE, IMAGE[::-1]]), RGB, None),
    "volumetric": (STACK, {**ZLIB, "volumetric": True, "tile": (2, 16, 32)}, None),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_region_is_that_of_tifffile(tmp_path, layout):
    values, options, dims = LAYOUTS[layout]
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(path, values, **options)
    source = open_file(path)
    assert (source.shape, np.dtype(source.dtype).newbyteorder("=")) == (values.shape, values.dtype)
    if dims is not None:
        assert source.dims == tuple(dims)
    rng = np.random.default_rng(1)
    for number in range(12):
        region = tuple(
            slice(*sorted(rng.integers(0, n + 1, 2))) if number else slice(0, n)
            for n in values.shape
        )
        np.testing.assert_array_equal(source.read(region), values[region])
    source.close()


def test_only_tiles_of_the_region_are_read(tmp_path, monkeypatch):
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(path, STACK, **ZLIB, tile=(16, 16))
    source = open_file(path)
    assert source.chunks == (1, 16, 16)
    read = []
    file_read = tifffile.FileHandle.read

    def counted(self, *arguments):
        read.append(arguments)
        return file_read(self, *arguments)

    monkeypatch.setattr(tifffile.FileHandle, "read", counted)
    source.read((slice(2, 4), slice(10, 20), slice(0, 16)))
    assert len(read) == 2 * 2
    source.close()


def test_ome_gives_names_and_sizes(tmp_path):
    path = str(tmp_path / "a.ome.tif")
    sizes = {"PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "nm", "PhysicalSizeZ": 2}
    tifffile.imwrite(path, STACK.reshape(2, 3, 37, 50), **ZLIB, metadata={"axes": "CZYX", **sizes})
    source = open_file(path)
    assert source.dims == ("c", "z", "y", "x")
    assert source.units == (None, "2 um", None, "0.5 nm")
    source.close()


def test_ome_gives_names_and_sizes_of_each_image(tmp_path):
    path = str(tmp_path / "a.ome.tif")
    with tifffile.TiffWriter(path, ome=True) as file:
        for size, name in ((1, "DAPI"), (2, "GFP")):
            about = {"axes": "CYX", "PhysicalSizeX": size, "Channel": {"Name": [name, "b"]}}
            file.write(STACK[:2], metadata=about, photometric="minisblack")
    for number, name in enumerate(("DAPI", "GFP")):
        source = open_file(f"{path}::{number}")
        assert source.units == (None, None, f"{number + 1} um")
        assert source.channels == (name, "b")
        source.close()


def test_imagej_gives_names_and_sizes(tmp_path):
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(
        path,
        STACK,
        imagej=True,
        resolution=(5, 4),
        metadata={"axes": "ZYX", "spacing": 2.0, "unit": "um"},
    )
    source = open_file(path)
    assert (source.dims, source.units) == (("z", "y", "x"), ("2 um", "0.25 um", "0.2 um"))
    assert source.chunks is None  # Mapped into memory.
    source.close()


@pytest.mark.parametrize("xml", ["", "<OME/>", "<OME><Image/></OME>", "<"])
def test_ome_without_sizes(xml):
    assert tiff._sizes_of_ome(xml, 0) == {}


def test_series_are_numbered(tmp_path):
    path = str(tmp_path / "a.tif")
    with tifffile.TiffWriter(path) as file:
        file.write(STACK[0], **ZLIB)
        file.write(IMAGE, **RGB)
    second = open_file(f"{path}::1")
    np.testing.assert_array_equal(second.read(tuple(slice(0, n) for n in IMAGE.shape)), IMAGE)
    second.close()
    for part in ("2", "-1", "x", ""):
        with pytest.raises(gpustore.CopyError, match="has 2 series"):
            open_file(f"{path}::{part}")


def test_damaged_files_are_errors(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, STACK, **ZLIB)
    with tifffile.TiffFile(path) as file:
        start = file.pages[1].dataoffsets[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:start] + b"?" * 9 + whole[start + 9 :])
    source = open_file(str(path))
    np.testing.assert_array_equal(source.read((slice(0, 1), *REST))[0], STACK[0])
    with pytest.raises(gpustore.CorruptChunkError, match=r"a\.tif, strip or tile 0"):
        source.read((slice(1, 2), *REST))
    source.close()


def test_a_compression_of_imagecodecs_is_named(tmp_path):
    path = tmp_path / "a.tif"
    if importlib.util.find_spec("imagecodecs") is not None:
        pytest.skip("imagecodecs decodes it")
    tifffile.imwrite(path, STACK[0], **ZLIB)
    written = path.read_bytes()
    tag = struct.pack("<HHIH", 259, 3, 1, 8)
    assert written.count(tag) == 1
    path.write_bytes(written.replace(tag, tag[:-2] + struct.pack("<H", LERC)))
    source = open_file(str(path))
    with pytest.raises(gpustore.UnsupportedError, match=r"a\.tif.*pip install 'gpustore\[tiff\]'"):
        source.read(REST)
    source.close()


def test_a_file_without_images_is_an_error(tmp_path):
    path = tmp_path / "a.tif"
    path.write_bytes(b"II*\0" + bytes(100))
    with pytest.raises(gpustore.StoreIOError, match="has no images"):
        open_file(str(path))


def test_a_truncated_file_is_an_error(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, STACK[0])
    nbytes = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(nbytes - 100)
    expected = rf"a\.tif has {nbytes - 100} bytes, but its elements end at byte {nbytes}"
    with pytest.raises(gpustore.StoreIOError, match=expected):
        open_file(str(path))


@pytest.mark.parametrize("tag", [273, 279])
def test_strips_that_are_not_listed_are_an_error(tmp_path, tag):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, STACK[0], **ZLIB, rowsperstrip=7)
    with tifffile.TiffFile(path) as file:
        entry = file.pages[0].tags[tag].offset
    with path.open("r+b") as file:
        file.seek(entry + 4)
        file.write(struct.pack("<I", 2))
        if tag == 279:  # Two of 2 bytes each lie in the entry itself.
            file.write(struct.pack("<HH", 1, 1))
    source = open_file(str(path))
    with pytest.raises(gpustore.CorruptChunkError, match=r"a\.tif, strip or tile \d: .*2 of 6"):
        source.read((slice(30, 37), slice(0, 50)))
    source.close()


@pytest.mark.parametrize("missing", [100, 10])
def test_a_short_strip_is_an_error(tmp_path, missing):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, STACK[0], **ZLIB, rowsperstrip=7)
    short = zlib.compress(STACK[0, 7:14].tobytes()[:-missing])
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        start, nbytes = page.dataoffsets[1], page.databytecounts[1]
    if len(short) > nbytes:
        pytest.skip("imagecodecs encodes strips to fewer bytes than zlib")
    written = path.read_bytes()
    path.write_bytes(written[:start] + short.ljust(nbytes, b"\0") + written[start + nbytes :])
    source = open_file(str(path))
    with pytest.raises(gpustore.CorruptChunkError, match=r"a\.tif, strip or tile 1: .*reshape"):
        source.read(REST)
    source.close()


@pytest.mark.parametrize("width", [18, 32])
def test_tiles_that_end_at_the_edge_are_read(tmp_path, width):
    """Some writers cut the last row of tiles, some the last tile of a row, too."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, STACK[0], **ZLIB, tile=(16, 32))
    tile = np.zeros((5, width), "u2")
    tile[:, :18] = STACK[0, 32:, 32:]
    short = zlib.compress(tile.tobytes(), 9)
    with path.open("r+b") as file, tifffile.TiffFile(path) as found:
        for tag, value in ((324, path.stat().st_size), (325, len(short))):
            entry = found.pages[0].tags[tag]
            form = {3: "<H", 4: "<I"}[entry.dtype]
            file.seek(entry.valueoffset + 5 * struct.calcsize(form))
            file.write(struct.pack(form, value))
        file.seek(0, 2)
        file.write(short)
    np.testing.assert_array_equal(tifffile.imread(path), STACK[0])
    source = open_file(str(path))
    np.testing.assert_array_equal(source.read(REST), STACK[0])
    source.close()


JPEG = {"compression": "jpeg", "tile": (16, 16)}
COMPRESSIONS = {
    "lzw": (STACK, {"compression": "lzw", "rowsperstrip": 7}),
    "lzw, tiles": (STACK, {"compression": "lzw", "tile": (16, 32), "predictor": True}),
    "jpeg": (IMAGE[..., 0], JPEG),
    "jpeg, colours": (IMAGE, {**JPEG, "photometric": "ycbcr", "subsampling": (2, 2)}),
    "jpeg, strips": (IMAGE, {"compression": "jpeg", "photometric": "rgb", "rowsperstrip": 16}),
    "jpeg 2000": (IMAGE, {"compression": "jpeg2000", "tile": (16, 16)}),
    "zstd": (STACK, {"compression": "zstd"}),
}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressions_of_imagecodecs_are_those_of_tifffile(tmp_path, name):
    pytest.importorskip("imagecodecs")
    values, options = COMPRESSIONS[name]
    path = str(tmp_path / "a.tif")
    tifffile.imwrite(path, values, **options)
    expected = tifffile.imread(path)
    source = open_file(path)
    for cut in (0, 10):
        region = tuple(slice(cut if n > 10 else 0, n) for n in values.shape)
        np.testing.assert_array_equal(source.read(region), expected[region])
    source.close()


def test_a_spacing_of_imagej_that_is_text_is_none(tmp_path):
    path = str(tmp_path / "a.tif")
    facts = {"axes": "ZYX", "spacing": "wide", "unit": "um"}
    tifffile.imwrite(path, STACK, imagej=True, resolution=(5, 4), metadata=facts)
    source = open_file(path)
    assert source.units == (None, "0.25 um", "0.2 um")
    source.close()
