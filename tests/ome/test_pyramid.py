"""Pyramids, and whole images written in one call."""

import itertools

import numpy as np
import pytest

import gpustore
from gpustore import ome
from gpustore.ome import pyramid
from gpustore.runtime.statistics import STATISTICS
from tests.backends.host.test_gaussian import smoothed
from tests.matrix import each
from tests.ome.files import VALUES, write_image
from tests.on_device import emulated

RNG = np.random.default_rng(5)
VOLUME = RNG.integers(0, 60000, (2, 9, 40, 70)).astype("uint16")
SCALE = (2, 0.5, 0.5)


@pytest.fixture
def context():
    return gpustore.Context()


def levels_of(image):
    return [level.read().result() for level in image.levels]


@pytest.mark.matrix("costly")
@each("version", ["0.4", "0.5", "0.6"])
@each("method", ["mean", "nearest", "mode", "gaussian"])
def test_each_level_is_made_of_the_one_above(method, version):
    context = gpustore.Context()
    seen = []
    image = ome.write(
        "memory://new/", VOLUME, axes="czyx", scale=SCALE, units="um", levels=4, method=method,
        version=version, chunks=(1, 4, 16, 16), memory=40_000, context=context,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert [level.shape for level in image.levels] == [
        *((2, 9, 40, 70), (2, 9, 20, 35), (2, 9, 10, 18), (2, 5, 5, 9)),
    ]
    assert image.levels[3].chunks == (1, 4, 5, 9)
    again = ome.open("memory://new/", context=context)
    shift = 0 if method == "nearest" else 0.25
    assert list(again.level(1).translation.values()) == [0, 0, shift, shift]
    assert list(again.level(3).scale.values()) == [1, 4, 4, 4]
    levels = levels_of(again)
    for above, below in itertools.pairwise(levels):
        factors = [-(-n // m) for n, m in zip(above.shape, below.shape, strict=True)]
        if method == "gaussian":
            expected = smoothed(above, factors)
        else:
            word = {"nearest": "stride"}.get(method, method)
            view = gpustore.downsample(gpustore.array(above), factors, word)
            expected = view.read().result()
        assert np.array_equal(below, expected)
    assert seen[-1][0] == seen[-1][1] == sum(level.nbytes for level in levels[1:])
    keys = again.group.kvstore.list().result()
    assert not any(b"pyramid" in key for key in keys)
    stored = again.group.attrs.asdict()
    assert stored.get("ome", stored)["multiscales"][0]["type"] == method


@each("dtype", ["int8", "uint32", "float32", "float64", "float16"])
def test_gaussian_keeps_the_range_of_a_type(dtype):
    kind = np.dtype(dtype)
    high = np.iinfo(kind).max if kind.kind in "iu" else 2.0
    values = np.full((9, 7), high, kind)
    values[:, 3] = 0
    image = ome.write("memory://g/", values, axes="yx", levels=2, method="gaussian",
                      context=gpustore.Context())  # fmt: skip
    half = levels_of(image)[1]
    assert half.dtype == kind
    if kind.kind in "iu":
        assert np.array_equal(half, smoothed(values, (2, 2)))
    assert half[0, 0] == half.max() == high


def test_levels_that_are_there_are_made_again(context):
    write_image("memory://a/", context=context)
    image = ome.open("memory://a/", context=context)
    image.build_pyramid()
    assert len(image.levels) == 3
    expected = gpustore.downsample(gpustore.array(VALUES), [1, 1, 2, 2], "mean").read().result()
    assert np.array_equal(image.level(1).read().result(), expected)
    # The transform of the whole image stays out of those of its levels.
    assert image.level(2).scale == {"c": 1, "z": 2, "y": 2, "x": 2}


def test_group_transformations_stay_as_they_are(context):
    after = [{"type": "scale", "scale": [1, 1, 10, 10]}]
    write_image("memory://a/", context=context, coordinateTransformations=after)
    image = ome.open("memory://a/", context=context)
    image.build_pyramid(method="nearest")
    assert [level.scale["x"] for level in image.levels] == [5, 10, 20]
    assert [level.translation["x"] for level in image.levels] == [0, 0, 0]


def test_shards_and_chunks_of_the_finest_level_are_kept(context):
    options = {"axes": "yx", "chunks": (16, 16), "shards": (64, 64), "codec": "zstd:2"}
    image = ome.write("memory://s/", np.ones((200, 300), "uint8"), levels=2, **options,
                      context=context)  # fmt: skip
    below = image.level(1).store
    assert (below.chunks, below.shards) == ((16, 16), (64, 64))
    assert below.codec == image.level(0).store.codec


@pytest.mark.parametrize("killed_at", [1, 3, 6])
def test_a_build_that_ended_is_continued(killed_at, context, monkeypatch):
    image = ome.create("memory://k/", shape=VOLUME.shape, dtype="uint16", axes="czyx",
                       scale=SCALE, chunks=(1, 4, 16, 16), context=context)  # fmt: skip
    image.write(VOLUME)
    monkeypatch.setattr("gpustore.transfer.journal._EVERY_S", 0.0)
    calls = []

    def stop(done, total):
        calls.append(done)
        if len(set(calls)) > killed_at:
            raise RuntimeError("the end")

    options = {"levels": 3, "memory": 40_000}
    with pytest.raises(RuntimeError, match="the end"):
        image.build_pyramid(**options, progress=stop)
    image = ome.open("memory://k/", context=context)
    seen = []
    image.build_pyramid(**options, progress=lambda done, total: seen.append(done))
    assert seen[0] > 0 or killed_at == 1
    whole = ome.write("memory://w/", VOLUME, axes="czyx", scale=SCALE, levels=3, context=context)
    for one, other in zip(levels_of(image), levels_of(whole), strict=True):
        assert np.array_equal(one, other)
    assert pyramid.JOURNAL.encode() not in [key for key in image.group.kvstore.list().result()]


@pytest.mark.parametrize("levels", [4, None])
def test_a_build_that_ended_after_a_whole_level_is_continued(levels, context):
    image = ome.create("memory://k/", shape=(1200, 1200), dtype="uint8", axes="yx",
                       chunks=(300, 300), context=context)  # fmt: skip
    values = RNG.integers(0, 200, (1200, 1200)).astype("uint8")
    image.write(values)

    def stop(done, total):
        if done > 600 * 600:
            raise RuntimeError("the end")

    with pytest.raises(RuntimeError, match="the end"):
        image.build_pyramid(levels=levels, memory=100_000, progress=stop)
    image = ome.open("memory://k/", context=context)
    assert len(image.levels) == 2
    image.build_pyramid(levels=levels, memory=100_000)
    whole = ome.write("memory://w/", values, axes="yx", levels=levels, context=context)
    assert len(image.levels) == len(whole.levels) == 4
    for one, other in zip(levels_of(image), levels_of(whole), strict=True):
        assert np.array_equal(one, other)


def test_a_pyramid_of_other_elements_begins_again(context, monkeypatch):
    image = ome.create("memory://k/", shape=(64, 64), dtype="uint8", axes="yx", chunks=(16, 16),
                       context=context)  # fmt: skip
    image.write(np.ones((64, 64), "uint8"))
    monkeypatch.setattr("gpustore.transfer.journal._EVERY_S", 0.0)

    def stop(done, total):
        if done:
            raise RuntimeError("the end")

    with pytest.raises(RuntimeError, match="the end"):
        image.build_pyramid(levels=2, memory=1000, progress=stop)
    image.write(np.full((64, 64), 7, "uint8"))
    image.build_pyramid(levels=2, memory=1000)
    assert (image.level(1).read().result() == 7).all()


@pytest.mark.parametrize(
    "other", [{"dtype": "uint8"}, {"shape": (8, 8)}, {"shape": (2, 8, 16, 9)}, None]
)
def test_another_array_in_place_of_a_level_is_refused(other, context):
    image = ome.create("memory://k/", shape=(2, 8, 32, 32), dtype="uint16", axes="czyx",
                       scale=SCALE, context=context)  # fmt: skip
    if other is None:
        image.group.create_group("1").result()
    else:
        given = {"shape": (2, 8, 16, 16), "dtype": "uint16", **other}
        image.group.create_array("1", **given).result()
    with pytest.raises(gpustore.MetadataError, match="expected"):
        image.build_pyramid(levels=2)


def test_labels_have_no_mean(context):
    image = ome.create("memory://l/", shape=(64, 64), dtype="uint8", axes="yx", context=context)
    label = image.create_label("cells", levels=2)
    values = RNG.integers(0, 9, (64, 64)).astype("uint32")
    label.write(values)
    label.build_pyramid()
    expected = gpustore.downsample(gpustore.array(values), [2, 2], "mode").read().result()
    assert np.array_equal(label.level(1).read().result(), expected)
    with pytest.raises(ValueError, match="mean of labels is no label; take mode or nearest"):
        label.build_pyramid(method="mean")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"method": "median"}, ValueError, "expected one of mean, nearest, mode, gaussian"),
        ({"levels": 5}, ValueError, "levels: the image has 3, got 5"),
        ({"levels": 0}, ValueError, "levels: expected at least 1, got 0"),
        ({"levels": 1.5}, TypeError, "float"),
        ({"memory": "much"}, ValueError, "memory: expected bytes"),
    ],
)
def test_wrong_arguments(options, error, text, context):
    write_image("memory://a/", context=context)
    with pytest.raises(error, match=text):
        ome.open("memory://a/", context=context).build_pyramid(**options)
    if options != {"levels": 5}:
        with pytest.raises(error, match=text):
            ome.write("memory://b/", VOLUME, axes="czyx", context=context, **options)
        assert not gpustore.KvStore.open("memory://b/", context=context).result().list().result()


def test_levels_of_other_shapes_are_refused(context):
    group = write_image("memory://a/", context=context)
    group.delete("1").result()
    group.create_array("1", shape=(2, 8, 13, 16), dtype="uint16").result()
    with pytest.raises(ValueError, match=r"level 1 has the shape \(2, 8, 13, 16\), which no whole"):
        ome.open("memory://a/", context=context).build_pyramid()


def test_gaussian_of_wide_integers_is_refused(context):
    with pytest.raises(gpustore.UnsupportedError, match="integers of up to 32 bits"):
        ome.write("memory://a/", np.ones((512, 600), "int64"), axes="yx", method="gaussian",
                  context=context)  # fmt: skip


def test_sources_say_what_their_axes_are(context, tmp_path):
    units = ("2 um", "500 nm", "500 nm")
    store = gpustore.save(tmp_path / "a.zarr", VOLUME[0], dims=("z", "y", "x"), units=units)
    image = ome.write("memory://u/", store, context=context)
    assert image.axes == ("z", "y", "x")
    assert image.units == {"z": "micrometer", "y": "nanometer", "x": "nanometer"}
    assert list(image.level(0).scale.values()) == [2, 500, 500]
    np.save(tmp_path / "v.npy", VOLUME[0])
    assert ome.write("memory://n/", tmp_path / "v.npy", axes="zyx", context=context).axes
    with pytest.raises(TypeError, match="expected axes, such as 'zyx'"):
        ome.write("memory://v/", VOLUME[0], context=context)


@pytest.mark.parametrize("method", ["mean", "gaussian"])
def test_a_pyramid_on_a_device_is_that_of_the_host(method, context):
    options = {"axes": "czyx", "scale": SCALE, "chunks": (1, 4, 16, 16), "context": context}
    options |= {"levels": 3, "method": method}
    host = ome.write("memory://h/", VOLUME, **options)
    before = STATISTICS.snapshot()
    with emulated() as device:
        image = ome.write("memory://d/", VOLUME, device=device.name, **options)
        del image
    counted = {name: n - before.get(name, 0) for name, n in STATISTICS.snapshot().items()}
    for one, other in zip(levels_of(ome.open("memory://d/", context=context)), levels_of(host)):
        assert np.array_equal(one, other)
    assert not counted.get("host_conversions")
    assert not counted.get("host_encodings")
    assert counted["launches"] > 0


def read_of_chunks(function):
    """What a function returns, and the bytes of chunks that were decoded meanwhile."""
    before = STATISTICS["bytes_decoded"]
    return function(), STATISTICS["bytes_decoded"] - before


@pytest.mark.matrix("costly")
@each("method", ["mean", "nearest", "mode"])
@each("shape", [(96, 96), (97, 40), (1, 200)])
@each("cores", [1, 64])
def test_the_next_level_is_made_of_the_finest_in_memory(method, shape, cores, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    values = RNG.integers(0, 9, shape).astype("uint16")
    options = {"axes": "yx", "chunks": (16, 16), "context": gpustore.Context()}
    making = {"levels": 3, "method": method, "memory": 30_000}
    image, decoded = read_of_chunks(lambda: ome.write("memory://a/", values, **options, **making))
    other = ome.write("memory://b/", values, levels=1, **options)
    _, other_decoded = read_of_chunks(lambda: other.build_pyramid(**making))
    for one, two in zip(levels_of(image), levels_of(other), strict=True):
        assert np.array_equal(one, two)
    if method != "nearest":  # Which has no need of all elements.
        assert 2 * decoded < other_decoded


@pytest.mark.parametrize(
    ("values", "memory"),
    [
        (
            RNG.integers(0, 9, (96, 96)).astype(">u2"),
            30_000,
        ),  # Another type than that of the store.
        (RNG.integers(0, 9, (96, 96)).astype("u2"), 2_000),  # Chunks of both levels do not fit.
        (gpustore.array(RNG.integers(0, 9, (96, 96)).astype("u2")), 30_000),
    ],
)
def test_levels_of_other_sources_are_equal(values, memory, context):
    options = {"axes": "yx", "chunks": (16, 16), "levels": 3, "context": context}
    image = ome.write("memory://a/", values, **options, memory=memory)
    plain = np.asarray(values).astype("u2")
    for one, two in zip(levels_of(image), levels_of(ome.write("memory://b/", plain, **options))):
        assert np.array_equal(one, two)


def test_an_interrupted_write_of_both_levels_is_begun_again(context):
    values = RNG.integers(0, 9, (96, 96)).astype("uint16")
    options = {"axes": "yx", "chunks": (16, 16), "levels": 3, "memory": 2**13, "context": context}

    def stop(done, total):
        if done:
            raise RuntimeError("the end")

    with pytest.raises(RuntimeError, match="the end"):
        ome.write("memory://a/", values, **options, progress=stop)
    image = ome.open("memory://a/", context=context)
    assert len(image.levels) == 1
    image.write(values)
    image.build_pyramid(levels=3)
    again = ome.write("memory://a/", values, overwrite=True, **options)
    for one, two in zip(levels_of(image), levels_of(again), strict=True):
        assert np.array_equal(one, two)


def test_named_dimensions_are_put_in_order(context, tmp_path):
    values = RNG.integers(0, 9, (4, 2, 20, 30)).astype("uint16")
    expected = np.moveaxis(values, 1, 0)
    options = {"chunks": (1, 4, 16, 16), "context": context}
    store = gpustore.save(
        *(tmp_path / "a.zarr", values), dims=tuple("zcyx"), units=("2 um", None, "1 um", "1 um"),
        chunks=(2, 1, 16, 16),
    )  # fmt: skip
    for axes in (None, "czyx", [ome.Axis("c", "channel", None), "z", "y", "x"]):
        image = ome.write("memory://a/", store, axes=axes, overwrite=True, **options)
        assert image.axes == ("c", "z", "y", "x")
        assert image.level(0).scale == {"c": 1, "z": 2, "y": 1, "x": 1}
        assert np.array_equal(image.level(0).read().result(), expected)
    # Other names are those of the dimensions as they are.
    image = ome.write("memory://b/", store, axes="tcyx", **options)
    assert np.array_equal(image.level(0).read().result(), values)


@pytest.mark.parametrize("layout", ["contig", "separate"])
def test_samples_of_a_tiff_file_are_channels(layout, context, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    colours = RNG.integers(0, 255, (40, 50, 3)).astype("uint8")
    stored = colours if layout == "contig" else np.moveaxis(colours, 2, 0)
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", planarconfig=layout)
    image = ome.write("memory://a/", tmp_path / "a.tif", context=context)
    assert image.axes == ("c", "y", "x")
    assert np.array_equal(image.level(0).read().result(), np.moveaxis(colours, 2, 0))
    shown = [(one.name, one.color) for one in image.omero.channels]
    assert shown == [("red", "FF0000"), ("green", "00FF00"), ("blue", "0000FF")]


def test_channels_of_a_tiff_file_keep_their_names(context, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    values = RNG.integers(0, 9, (4, 2, 20, 30)).astype("uint16")
    about = {"axes": "ZCYX", "Channel": {"Name": ["DAPI", "GFP"]}}
    tifffile.imwrite(tmp_path / "a.ome.tif", values, ome=True, metadata=about)
    image = ome.write("memory://a/", tmp_path / "a.ome.tif", context=context)
    assert image.channels == ("DAPI", "GFP")
    assert np.array_equal(image.level(0).read().result(), np.moveaxis(values, 1, 0))
    for given, expected in ((["x", "y"], ("x", "y")), (None, ())):
        image = ome.write("memory://b/", tmp_path / "a.ome.tif", channels=given, context=context,
                          overwrite=True)  # fmt: skip
        assert image.channels == expected


def test_a_hyperstack_of_imagej_is_put_in_order(context, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    values = RNG.integers(0, 9, (3, 4, 2, 20, 30)).astype("uint16")
    tifffile.imwrite(
        *(tmp_path / "a.tif", values), imagej=True, resolution=(2, 2),
        metadata={"axes": "TZCYX", "spacing": 2, "unit": "um"},
    )  # fmt: skip
    image = ome.write("memory://a/", tmp_path / "a.tif", context=context)
    assert image.axes == ("t", "c", "z", "y", "x")
    assert image.level(0).scale == {"t": 1, "c": 1, "z": 2, "y": 0.5, "x": 0.5}
    assert np.array_equal(image.level(0).read().result(), np.moveaxis(values, 2, 1))
