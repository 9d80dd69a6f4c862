"""New images, label images and plates, and tiles of a level."""

import math
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore import ome
from gpustore.ome.layout import axes_of, coarser, default_chunks, level_factors
from gpustore.ome.transforms import AxisTransform
from tests.ome.files import VALUES, write_image

VERSIONS = ["0.4", "0.5", "0.6"]


@pytest.fixture
def context():
    return gpustore.Context()


def made(context, url="memory://new/", **properties):
    given = {"shape": (2, 20, 100, 64), "dtype": "uint16", "axes": "czyx"} | properties
    return ome.create(url, **given, context=context)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_image_opens_as_it_was_made(version, context):
    image = made(
        context, version=version, scale=(2, 0.5, 0.25), translation={"z": 7}, levels=4, name="new",
        units={"z": "um", "y": "micrometer", "x": "nm"}, channels=("DAPI", "GFP"),
        codec="zstd:3",
    )  # fmt: skip
    image.write(np.ones((2, 20, 100, 64), "uint16"))
    again = ome.open("memory://new/", context=context)
    assert (again.version, again.name, again.channels) == (version, "new", ("DAPI", "GFP"))
    assert again.units == {"c": None, "z": "micrometer", "y": "micrometer", "x": "nanometer"}
    assert [level.shape[1:] for level in again.levels] == [
        *((20, 100, 64), (20, 100, 32), (20, 50, 16), (20, 25, 8)),
    ]
    assert list(again.level(0).scale.values()) == [1, 2, 0.5, 0.25]
    assert list(again.level(0).translation.values()) == [0, 7, 0, 0]
    assert list(again.level(3).scale.values()) == [1, 2, 2, 2]
    assert list(again.level(3).translation.values()) == [0, 7, 0.75, 0.875]
    assert again.omero.channels[1].color == "00FF00"
    assert again.omero.window("DAPI") == ome.Window(0, 65535, 0, 65535)
    assert again.level(0).read().result().min() == 1
    assert again.group.zarr_format == (2 if version == "0.4" else 3)
    # The keys of 0.4 have `/` between numbers.
    keys = [key.decode() for key in again.group.kvstore.list().result()]
    assert any(key.startswith("0/0/0/0/0" if version == "0.4" else "0/c/0/0/0/0") for key in keys)


def test_properties_of_another_image(context):
    first = made(
        context, scale=(2, 0.5, 0.5), units="um", channels=("a", "b"), chunks=(1, 20, 9, 9)
    )
    other = made(context, url="memory://like/", like=first, dtype="float32", shape=None, axes=None)
    assert other.level(0).dtype == gpustore.dtype("float32")
    assert other.level(0).chunks == (1, 20, 9, 9)
    assert (other.channels, other.units) == (first.channels, first.units)
    part = ome.create("memory://part/", like=first, shape=(20, 10, 10), axes="zyx", scale=(2, 1, 1),
                      translation=0, version="0.4", context=context)  # fmt: skip
    assert (part.axes, part.channels, part.version) == (("z", "y", "x"), (), "0.4")


def test_properties_of_an_image_with_other_axes(context):
    first = made(context, scale=(2, 0.5, 0.5), units="um", channels=("a", "b"))
    plane = ome.create("memory://p/", like=first, shape=(10, 10), axes="yx", context=context)
    assert (plane.units, plane.level(0).scale) == (dict.fromkeys("yx", "micrometer"),
                                                   dict.fromkeys("yx", 0.5))  # fmt: skip
    three = ome.create("memory://3/", like=first, shape=(3, 20, 10, 10), context=context)
    assert (three.channels, three.axes) == ((), first.axes)


def test_default_chunks_fill_the_shards(context):
    image = made(context, shards=(1, 20, 400, 900), shape=(2, 20, 800, 900))
    store = image.level(0).store
    assert store.shards == (1, 20, 400, 900)
    assert all(side % n == 0 for side, n in zip(store.shards, store.chunks, strict=True))


@pytest.mark.parametrize(
    "wrong",
    [{"codec": "zest"}, {"name": 5}, {"dtype": "json"}, {"chunks": (1, 2)}, {"scale": 1e308}],
)
def test_what_does_not_fit_neither_makes_nor_deletes_anything(wrong, context):
    wrong = {"levels": 4, **wrong}
    with pytest.raises(gpustore.GpustoreError):
        made(context, **wrong)
    made(context, name="kept")
    with pytest.raises(gpustore.GpustoreError):
        made(context, **wrong, overwrite=True)
    assert ome.open("memory://new/", context=context).name == "kept"


def test_files_named_ozx_are_archives(tmp_path):
    values = np.ones((8, 8), "uint8")
    ome.write(tmp_path / "a.ozx", values, axes="yx")
    assert zipfile.is_zipfile(tmp_path / "a.ozx")
    assert np.array_equal(ome.open(tmp_path / "a.ozx").level(0).read().result(), values)


def test_places_without_a_url(context):
    def at(path):
        return {"driver": "ocdbt", "base": "memory://data/", "manifest": "memory://m/",
                "path": path}  # fmt: skip

    image = made(context, url=at("a/"))
    image.create_label("n")
    image.build_pyramid(levels=2)
    again = ome.open(at("a/"), context=context)
    assert (len(again.levels), list(again.labels)) == (2, ["n"])
    assert "OCDBT" in repr(again)
    plate = ome.create_plate(at("p/"), rows="A", columns="1", context=context)
    plate.create_image("A/1/0", shape=(8, 8), dtype="uint8", axes="yx")
    assert len(plate.wells["A/1"].fields) == 1
    with pytest.raises(gpustore.NotFoundError, match="no well 'B'"):
        plate.wells["B"]


def test_images_that_are_open_twice_keep_all_labels(context):
    made(context)
    first, second = (ome.open("memory://new/", context=context) for _ in range(2))
    assert not first.labels
    assert not second.labels
    first.create_label("a")
    second.create_label("b")
    assert list(second.labels) == ["a", "b"]
    for name in ("", "/", 5):
        with pytest.raises(ValueError, match="name: expected a name, got"):
            first.create_label(name)


def test_plates_that_are_open_twice_keep_all_fields(context):
    ome.create_plate("memory://plate/", rows="A", columns="12", context=context)
    first, second = (ome.open("memory://plate/", context=context) for _ in range(2))
    properties = {"shape": (8, 8), "dtype": "uint8", "axes": "yx"}
    for plate, path in ((first, "A/1/0"), (second, "A/1/1"), (first, "A/2/0"), (second, "A/1/2")):
        plate.create_image(path, **properties)
    assert list(second.wells) == ["A/1", "A/2"]
    assert [len(well.fields) for well in second.wells.values()] == [3, 1]
    for field in ("", "..", "a b"):
        with pytest.raises(ValueError, match="expected a field of letters and digits"):
            first.create_image(f"A/1/{field}", **properties)


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_that_are_made_together(version, context):
    url = "memory://plate/"
    plate = ome.create_plate(url, rows="AB", columns="12", version=version, context=context)
    paths = ["A/1/0", "B/2/0", "A/1/1"]
    properties = {"shape": (2, 8, 8), "dtype": "uint16", "axes": "cyx", "channels": "ab"}
    with pytest.raises(ValueError, match="expected 2 names"):
        plate.create_images(paths, **properties)
    assert not plate.wells
    properties["channels"] = ("a", "b")
    made = plate.create_images(paths, levels=2, acquisition=3, **properties)
    assert [image.channels for image in made] == [("a", "b")] * 3
    again = ome.open(url, context=context)
    assert list(again.fields) == ["A/1/0", "A/1/1", "B/2/0"]
    assert again.wells["A/1"].acquisitions == (3, 3)
    with pytest.raises(gpustore.AlreadyExistsError):
        plate.create_images(["A/2/0", "A/1/1"], **properties)
    alone = ome.create("memory://alone/", version=version, levels=2, context=context, **properties)
    for image in again.fields.values():
        assert image.group.attrs == alone.group.attrs
        assert [level.store.spec().to_json()["metadata"] for level in image.levels] == [
            level.store.spec().to_json()["metadata"] for level in alone.levels
        ]
    assert not ome.validate(again.group)


def test_threads_add_fields_to_one_well(context):
    plates = [ome.create_plate("memory://p/", rows="A", columns="1", context=context)]
    plates += [ome.open("memory://p/", context=context) for _ in range(3)]

    def add(number):
        for field in range(4):
            plates[number].create_image(
                f"A/1/{4 * number + field}", shape=(8, 8), dtype="uint8", axes="yx"
            )

    with ThreadPoolExecutor(len(plates)) as threads:
        list(threads.map(add, range(len(plates))))
    fields = ome.open("memory://p/", context=context).wells["A/1"].fields
    assert sorted(map(int, fields.paths)) == list(range(16))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_codec_of_new_images(version, context):
    def codec(image):
        metadata = image.level(0).store.spec().to_json()["metadata"]
        found = metadata["compressor"] if version == "0.4" else metadata["codecs"][-1]
        return found.get("id", found.get("name")), found.get("configuration", found)

    camera = made(context, version=version)
    name, options = codec(camera)
    assert (name, options["cname"], options["shuffle"]) in [
        ("blosc", "lz4", 2), ("blosc", "lz4", "bitshuffle")
    ]  # fmt: skip
    assert codec(camera.create_label("cells", dtype="uint16"))[0] == "zstd"
    assert codec(made(context, "memory://f/", version=version, dtype="float32"))[0] == "zstd"
    assert codec(made(context, "memory://z/", version=version, codec="zstd:5"))[1]["level"] == 5


@pytest.mark.parametrize(
    ("properties", "error", "text"),
    [
        ({"level": 2}, TypeError, "unexpected keyword argument 'level'"),
        ({"levels": 1.5}, TypeError, "integer"),
        ({"shape": (2, 20.5, 100, 64)}, TypeError, "integer"),
        ({"axes": "xyzc"}, ValueError, "expected time, then channels, then space, got x, y, z, c"),
        ({"axes": "czyy"}, ValueError, "axes: expected different names, got c, z, y, y"),
        ({"axes": "x"}, ValueError, "axes: expected 2 to 5, 2 or 3 of them of space"),
        ({"axes": "zyx"}, ValueError, r"shape: expected 3 extents for z, y, x, got \(2, 20"),
        (
            {"scale": (1, 2)},
            ValueError,
            "scale: expected 4 numbers for c, z, y, x or 3 for z, y, x",
        ),
        ({"scale": {"q": 2}}, ValueError, "scale: no axis 'q'; axes are c, z, y, x"),
        ({"scale": (1, 0, 1)}, ValueError, "scale: expected positive numbers, got 0.0"),
        ({"translation": math.inf}, ValueError, "translation: expected finite numbers, got inf"),
        ({"units": {"q": "um"}}, ValueError, "units: no axis 'q'"),
        ({"units": {"z": 3}}, TypeError, "units: z: expected a name such as 'um', got 3"),
        ({"channels": ("a",)}, ValueError, "channels: expected 2 names"),
        ({"channels": "ab"}, ValueError, "channels: expected 2 names"),
        ({"levels": 0}, ValueError, "levels: expected at least 1, got 0"),
        ({"version": "0.3"}, gpustore.UnsupportedError, "expected 0.4, 0.5 or 0.6, got '0.3'"),
        ({"shape": None, "dtype": None}, TypeError, "expected shape, dtype, or an image"),
        ({"version": "0.4", "shards": (2, 20, 100, 64)}, gpustore.GpustoreError, "shard"),
    ],
)
def test_wrong_properties(properties, error, text, context):
    with pytest.raises(error, match=text):
        made(context, **properties)


def test_a_place_with_something_is_refused(context):
    made(context)
    with pytest.raises(gpustore.AlreadyExistsError):
        made(context)
    assert made(context, overwrite=True, name="second").name == "second"


def test_elements_of_another_shape_are_refused(context):
    with pytest.raises(ValueError, match=r"expected elements of shape \(2, 20, 100, 64\), got"):
        made(context).write(np.ones((2, 20, 100, 6), "uint16"))


@pytest.mark.parametrize("version", VERSIONS)
def test_label_images(version, context):
    image = made(context, version=version, scale=(2, 0.5, 0.5), units="um")
    cells = image.create_label("cells", levels=2, colors={1: (255, 0, 0, 255)})
    image.create_label("nuclei", dtype="uint8", axes="yx")
    assert list(image.labels) == ["cells", "nuclei"]
    again = ome.open("memory://new/", context=context)
    assert list(again.labels) == ["cells", "nuclei"]
    label = again.labels["cells"]
    assert (label.axes, label.level(1).shape) == (("z", "y", "x"), (20, 50, 32))
    assert label.units["z"] == "micrometer"
    attributes = cells.group.attrs
    described = attributes.get("ome", attributes)["image-label"]
    assert described["colors"] == [{"label-value": 1, "rgba": [255, 0, 0, 255]}]
    assert described["source"] == {"image": "../../"}
    inner = image.create_label("round/cells").group.attrs
    assert inner.get("ome", inner)["image-label"]["source"] == {"image": "../../../"}
    assert np.array_equal(image.labels["round/cells"].level(0).shape, image.level(0).shape[-3:])
    assert again.labels["nuclei"].axes == ("y", "x")
    with pytest.raises(gpustore.AlreadyExistsError):
        image.create_label("cells")
    with pytest.raises(ValueError, match="labels are integers, got float32"):
        image.create_label("more", dtype="float32")
    with pytest.raises(ValueError, match="axes: no axis 't'"):
        image.create_label("more", axes="tyx")


@pytest.mark.parametrize("version", VERSIONS)
def test_plates(version, context):
    plate = ome.create_plate(
        "memory://plate/", rows="AB", columns=range(1, 4), name="screen", version=version,
        acquisitions=[{"id": 0}], context=context,
    )  # fmt: skip
    assert len(plate.wells) == 0
    properties = {"shape": (8, 8), "dtype": "uint8", "axes": "yx"}
    plate.create_image("B/2/0", acquisition=0, **properties).write(np.full((8, 8), 5, "uint8"))
    plate.create_image("B/2/1", **properties)
    plate.create_image("A/1/0", **properties)
    again = ome.open("memory://plate/", context=context)
    assert list(again.wells) == list(plate.wells) == ["B/2", "A/1"]
    assert again.json["wells"][0] == {"path": "B/2", "rowIndex": 1, "columnIndex": 1}
    well = again.wells["B/2"]
    assert (len(well.fields), well.acquisitions) == (2, (0, None))
    assert well.fields[0].level(0).read().result().min() == 5
    assert well.fields[0].version == version
    for path in ("C/1/0", "A/9/0", "A/1", "A/1/0/0"):
        with pytest.raises(ValueError, match="a row of A, B and a column of 1, 2, 3, got"):
            plate.create_image(path, **properties)
    with pytest.raises(gpustore.AlreadyExistsError):
        plate.create_image("A/1/0", **properties)


def test_wrong_plates(context):
    with pytest.raises(ValueError, match=r"rows: expected names of letters and digits, got 'A\.'"):
        ome.create_plate("memory://p/", rows=["A."], columns="1", context=context)
    with pytest.raises(ValueError, match="columns: expected different names"):
        ome.create_plate("memory://p/", rows="A", columns=(), context=context)
    with pytest.raises(gpustore.MetadataError, match=r"acquisitions\[0\].id: expected an integer"):
        ome.create_plate("memory://p/", rows="A", columns="1", acquisitions=[{}], context=context)
    assert ome.create_plate("memory://p/", rows="A", columns="1", context=context).name == ""


def test_tiles_cover_a_level_once(context):
    write_image("memory://a/", context=context)
    level = ome.open("memory://a/", context=context).level(0)
    seen = np.zeros(VALUES.shape, int)
    for tile in level.tiles(overlap=3):
        elements = tile.read().result()
        assert np.array_equal(elements, VALUES[tile.outer])
        assert np.array_equal(elements[tile.core], VALUES[tile.inner])
        assert tile.outer[0] == tile.inner[0]  # no halo along channels
        seen[tile.inner] += 1
    assert seen.min() == seen.max() == 1
    assert tile.outer[3] == slice(13, 32)
    assert len(list(level.tiles(shape=(1, 8, 20, 32)))) == 2 * 1 * 1 * 1
    assert next(level.tiles(overlap={"z": 2})).outer[1:] == np.s_[0:6, 0:16, 0:16]


def test_tiles_are_written_with_or_without_their_halo(context):
    write_image("memory://a/", context=context)
    image = ome.open("memory://a/", context=context)
    out = ome.create("memory://out/", like=image, context=context)
    for number, tile in enumerate(image.level(0).tiles(overlap=3)):
        elements = tile.read().result() + 1
        tile.write(elements[tile.core] if number % 2 else elements, out.level(0)).result()
    assert np.array_equal(out.level(0).read().result(), VALUES + 1)
    with pytest.raises(ValueError, match=r"expected elements of shape \(1, 7, 19, 19\) or \(1, 4"):
        tile.write(np.zeros((1, 1, 1, 1)), out.level(0))
    for wrong, text in (
        ({"overlap": -1}, "expected at least 0 elements"),
        ({"overlap": {"q": 1}}, "overlap: no axis 'q'"),
        ({"shape": (1, 2)}, "shape: expected 4 positive extents"),
    ):
        with pytest.raises(ValueError, match=text):
            image.level(0).tiles(**wrong)


def test_tiles_are_whole_shards(context):
    image = made(context, chunks=(1, 5, 25, 16), shards=(1, 10, 50, 32))
    assert next(image.level(0).tiles(overlap=1)).inner == np.s_[0:1, 0:10, 0:50, 0:32]


AXES = st.sampled_from(["yx", "zyx", "czyx", "tczyx"])


@given(axes=AXES, data=st.data(), itemsize=st.sampled_from([1, 2, 4, 8]))
def test_default_chunks_take_at_most_a_mebibyte(axes, data, itemsize):
    shape = data.draw(st.tuples(*[st.integers(1, 5000)] * len(axes)))
    chunks = default_chunks(shape, axes_of(axes, None), itemsize)
    assert all(1 <= c <= n for c, n in zip(chunks, shape, strict=True))
    assert math.prod(chunks) * itemsize <= 1 << 20
    assert all(c == 1 for c, name in zip(chunks, axes, strict=True) if name in "tc")
    space = math.prod(n for n, name in zip(shape, axes, strict=True) if name in "zyx")
    assert math.prod(chunks) * itemsize * 8 >= min(1 << 20, space * itemsize)


@given(axes=AXES, data=st.data())
def test_chosen_levels_end_small_and_tend_to_cubes(axes, data):
    described = axes_of(axes, None)
    shape = data.draw(st.tuples(*[st.integers(1, 10000)] * len(axes)))
    scale = data.draw(st.tuples(*[st.floats(0.01, 100)] * len(axes)))
    factors = level_factors(shape, described, scale, None)
    here, transform = shape, AxisTransform(scale, (0.0,) * len(axes))
    for one in factors:
        assert max(here[-2:]) > 256
        assert max(one) == 2
        space = [d for d, axis in enumerate(described) if axis.type == "space" and here[d] > 1]
        assert all(factor == 1 for d, factor in enumerate(one) if d not in space)
        finest = min(transform.scale[d] for d in space)
        transform = coarser(transform, one)
        assert all(transform.scale[d] < 4 * finest for d in space if one[d] == 2)
        here = tuple(-(-n // f) for n, f in zip(here, one, strict=True))
        # The centre of the first element is that of the block it stands for.
        first = [t - s / 2 for t, s in zip(transform.translation, transform.scale, strict=True)]
        assert np.allclose(first, [-s / 2 for s in scale])
    assert max(here[-2:]) <= 256
    assert len(level_factors(shape, described, scale, 3)) <= 2
