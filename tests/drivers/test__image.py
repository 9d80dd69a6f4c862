"""Drivers of images, with TensorStore's as oracle."""

import io

import numpy as np
import pytest
import tensorstore as ts
from PIL import Image

import gpustore
from tests.drivers import parity
from tests.matrix import each
from tests.on_device import emulated, on_host

CHANNELS = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4}
FORMATS = {
    "png": ["L", "P", "LA", "RGB", "RGBA"],
    "jpeg": ["L", "RGB"],
    "bmp": ["L", "P", "RGB"],
    "tiff": ["L", "RGB"],
    "webp": ["RGB", "RGBA"],
    "avif": ["L", "RGB", "RGBA"],
}
CELLS = [(name, mode) for name, modes in FORMATS.items() for mode in modes]


def pixels(channels, height=5, width=7, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 255, (height, width, channels), dtype=np.uint8)


def encoded(name, mode, **options):
    elements = pixels(CHANNELS[mode])
    if mode == "P":
        image = Image.fromarray(elements[..., 0]).convert("P")
    else:
        image = Image.fromarray(elements[..., 0] if mode == "L" else elements)
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


def opened(library, root, name, value, suffix="", **more):
    (root / f"a{suffix}").write_bytes(value)
    spec = {"driver": name, "kvstore": {"driver": "file", "path": f"{root}/a{suffix}"}, **more}
    return library.open(spec).result()


@each(("name", "mode"), CELLS)
def test_images_are_those_of_tensorstore(name, mode, tmp_path):
    value = encoded(name, mode)

    def run(library, root):
        store = opened(library, root, name, value)
        facts = parity.description(store)
        facts.pop("codec")
        part = store[3:0:-2, 1:5].read().result()
        return [facts, store.read().result(), part]

    parity.check(run, tmp_path)


def test_alpha_of_tiff_is_a_channel(tmp_path):
    """TensorStore 0.1.86 counts it twice."""
    for mode in ("LA", "RGBA"):
        store = opened(gpustore, tmp_path, "tiff", encoded("tiff", mode))
        assert np.array_equal(store.read().result(), pixels(CHANNELS[mode]))


def tiff_of_pages(count):
    images = [Image.fromarray(pixels(1, seed=i)[..., 0]) for i in range(count)]
    stream = io.BytesIO()
    images[0].save(stream, "tiff", save_all=True, append_images=images[1:])
    return stream.getvalue()


@each("page", [None, 0, 2, 3])
def test_pages_of_tiff(page, tmp_path):
    more = {} if page is None else {"page": page}

    def run(library, root):
        store = opened(library, root, "tiff", tiff_of_pages(3), **more)
        assert library is ts or store.spec().to_json().get("page") == page  # TensorStore drops it.
        return store.read().result()

    ours, theirs = parity.both(run, tmp_path)
    if isinstance(theirs, str):
        assert ours == theirs
    else:
        assert set(theirs[0]) <= set(ours[0])


KEYWORDS = [
    *({"dtype": "uint8"}, {"dtype": "int8"}, {"rank": 3}, {"rank": 2}, {"shape": [5, 7, 3]}),
    *({"shape": [5, 8, 3]}, {"create": True}, {"fill_value": 1}),
    *({"dimension_units": ["1nm", None, None]},),
]


@each("keywords", KEYWORDS)
def test_keywords(keywords, tmp_path):
    def run(library, root):
        opened(library, root, "png", encoded("png", "RGB"))
        spec = {"driver": "png", "kvstore": f"file://{root}/a"}
        return library.open(spec, **keywords).result().domain

    ours, theirs = parity.both(run, tmp_path)
    if keywords == {"shape": [5, 8, 3]}:
        assert isinstance(theirs, str)  # TensorStore opens what is there.
        assert set(ours[0]) & {"ValueError", "NotImplementedError"}
    elif isinstance(theirs, str):
        assert ours == theirs
    else:
        assert "ValueError" in ours[0] or set(theirs[0]) <= set(ours[0])


@each("members", [{"page": 1}, {"foo": 1}, {"metadata": {}}, {"dtype": "int8"}, {"rank": 4}])
def test_members(members, tmp_path):
    spec = {"driver": "png", "kvstore": "memory://a", **members}
    ours, theirs = parity.both(lambda library, root: library.Spec(spec), tmp_path)
    assert theirs[0] == ["ValueError"]
    assert "ValueError" in ours[0]


@each(("name", "mode"), CELLS)
def test_formats_are_detected(name, mode, tmp_path):
    store = opened(gpustore, tmp_path, name, encoded(name, mode), suffix=f".{name}")
    found = gpustore.open(tmp_path / f"a.{name}").result()
    assert found.spec().to_json()["driver"] == name
    assert np.array_equal(found.read().result(), store.read().result())
    assert gpustore.open(found.url).result().domain == store.domain
    assert found.url == f"file://{tmp_path}/a.{name}|{name}:"


@each("name", FORMATS)
@each("damage", ["empty", "begin", "half", "noise"])
def test_damaged_images(name, damage, tmp_path):
    value = encoded(name, FORMATS[name][0])
    noise = np.random.default_rng(1).bytes(200)
    damaged = {"empty": b"", "begin": value[:9], "half": value[: len(value) // 2], "noise": noise}

    def read():
        return opened(gpustore, tmp_path, name, damaged[damage]).read().result()

    with pytest.raises(gpustore.CorruptChunkError) as caught:
        read()
    assert caught.value.key.endswith("/a")
    assert caught.value.codec == name
    assert caught.value.status == "DATA_LOSS"


def huge_png(width, height):
    value = bytearray(encoded("png", "L"))
    value[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    header = bytes(value[12:29])
    value[29:33] = __import__("zlib").crc32(header).to_bytes(4, "big")
    return bytes(value)


@each("size", [20_000, 100_000, 2**31 - 1])
def test_a_header_that_promises_too_much_takes_no_memory(size, tmp_path):
    with pytest.raises(gpustore.LimitError, match="chunk_nbytes"):
        opened(
            gpustore,
            tmp_path,
            "png",
            huge_png(size, size),
            context={"limits": {"chunk_nbytes": 1 << 28}},
        )


def test_another_image_in_its_place_is_not_placed(tmp_path):
    store = opened(gpustore, tmp_path, "png", encoded("png", "RGB"))
    (tmp_path / "a").write_bytes(encoded("png", "LA"))
    with pytest.raises(gpustore.CorruptChunkError, match="opened as one of"):
        store.read().result()
    (tmp_path / "a").unlink()
    with pytest.raises(gpustore.NotFoundError):
        store.read().result()


def test_images_are_not_written(tmp_path):
    store = opened(gpustore, tmp_path, "png", encoded("png", "RGB"))
    assert store.mode == "r"
    with pytest.raises(gpustore.MetadataError, match="does not support writing"):
        store[...] = 1
    with pytest.raises(gpustore.MetadataError, match="does not support writing"):
        store.resize(exclusive_max=[1, 1, 1]).result()


@each("mode", ["1", "I;16"])
def test_other_elements_are_refused_by_name(mode, tmp_path):
    stream = io.BytesIO()
    elements = np.zeros((4, 4), np.uint16 if mode == "I;16" else np.bool_)
    Image.fromarray(elements).save(stream, "png")
    with pytest.raises(gpustore.UnsupportedError, match="only supports uint8") as caught:
        opened(gpustore, tmp_path, "png", stream.getvalue())
    assert isinstance(caught.value, NotImplementedError)
    with pytest.raises(NotImplementedError):
        opened(ts, tmp_path, "png", stream.getvalue())


@pytest.mark.matrix("costly")
def test_devices_have_the_elements_of_the_host(tmp_path):
    stores = [
        opened(gpustore, tmp_path, name, encoded(name, modes[-1]), suffix=name)
        for name, modes in FORMATS.items()
    ]
    with emulated() as device:
        for store in stores:
            there = gpustore.open(store.spec(), device=device.name).result()
            read = there.read()
            assert np.array_equal(on_host(device, read.result()), store.read().result())
            by_host = there.spec().to_json()["driver"] not in ("jpeg", "tiff")
            assert bool(there.explain().host_reason) == by_host
            assert read.statistics["host_fallbacks"] == by_host
            del read, there


def test_crops_explanations_and_copies(tmp_path):
    store = opened(gpustore, tmp_path, "png", encoded("png", "RGB"))
    crops = store.read_many([[0, 0, 0], [2, 3, 1]], (2, 2, 2)).result()
    assert np.array_equal(crops[1], pixels(3)[2:4, 3:5, 1:3])
    assert "png" in str(store.explain())
    copy = gpustore.copy(store, tmp_path / "a.zarr")
    assert np.array_equal(copy.read().result(), pixels(3))
