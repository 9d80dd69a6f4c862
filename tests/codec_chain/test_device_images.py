"""Images decoded by the library of a device: what it decodes, what is left to the host, errors."""

import io
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import gpustore
from gpustore.errors import CorruptChunkError, DeviceError, DeviceWarning
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.matrix import each, share
from tests.on_device import emulated, on_host

pytestmark = needs_compiler


def elements(channels=3, height=37, width=52, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 255, (height, width, channels), dtype=np.uint8)


def encoded(name, array=None, **options):
    array = elements() if array is None else array
    image = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    return saved(image, name, **options)


def saved(image, name, **options):
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


def spec_of(root, name, value, **more):
    (root / "image").write_bytes(value)
    return {"driver": name, "kvstore": f"file://{root}/image", **more}


def counts_of(future, *names):
    return [future.statistics[name] for name in names]


SIDES = "chunks_decoded_device", "host_fallbacks", "retries"
ON_DEVICE, BY_HOST, AGAIN = [1, 0, 0], [0, 1, 0], [0, 1, 1]


def check(device, spec, sides, part=np.s_[...]):
    """Read a part of an image on the host and on a device, and compare who has decoded it."""
    expected = gpustore.open(spec).result()[part].read().result()
    store = gpustore.open(spec, device=device.name).result()
    future = store[part].read()
    found = on_host(device, future.result())
    assert np.array_equal(found, expected)
    assert counts_of(future, *SIDES) == sides
    explanation = store[part].explain()
    for name, bounds in explanation.counts.items():
        assert bounds.least <= future.statistics[name], name
        assert bounds.most is None or future.statistics[name] <= bounds.most, name
    return future.statistics, explanation


GRAY = elements(1)
PLAIN = {
    "jpeg 4:4:4": ("jpeg", encoded("jpeg", subsampling=0)),
    "jpeg 4:2:2": ("jpeg", encoded("jpeg", subsampling=1)),
    "jpeg 4:2:0": ("jpeg", encoded("jpeg", subsampling=2)),
    "jpeg gray": ("jpeg", encoded("jpeg", GRAY)),
    "jpeg with restarts": ("jpeg", encoded("jpeg", restart_marker_blocks=3)),
    "jpeg with a comment": ("jpeg", encoded("jpeg", comment=b"\xff\xd9\xff\xc0" * 9)),
    "tiff": ("tiff", encoded("tiff")),
    "tiff gray": ("tiff", encoded("tiff", GRAY)),
    "tiff deflate, gray": ("tiff", encoded("tiff", GRAY, compression="tiff_adobe_deflate")),
    "tiff deflate": ("tiff", encoded("tiff", compression="tiff_adobe_deflate")),
    "tiff of strips": (
        "tiff",
        encoded("tiff", compression="tiff_adobe_deflate", strip_size=800),
    ),
    "tiff, big": ("tiff", encoded("tiff", big_tiff=True)),
}


@pytest.mark.parametrize("order", ORDERS)
@each(("name", "value"), PLAIN.values(), PLAIN)
def test_plain_images_are_decoded_on_the_device(order, name, value, tmp_path):
    with emulated(order, seed=5) as device:
        counts, explanation = check(device, spec_of(tmp_path, name, value), ON_DEVICE)
        # Only statuses and checksums come to the host, and only the file goes to the device.
        assert counts["bytes_to_host"] < 128
        assert counts["bytes_to_device"] < len(value) + 512
        assert explanation.host_reason is None
        assert explanation.library == "emulated images"
        assert f"by           {name} by nvImageCodec" in str(explanation)


@each("part", [np.s_[5:30:2, 40:3:-3], np.s_[..., 1], np.s_[9, 8, 2], [3, 1, 30], np.s_[4:4]])
def test_parts_of_images_are_placed(part, tmp_path):
    with emulated() as device:
        sides = [0, 0, 0] if part == np.s_[4:4] else ON_DEVICE
        check(device, spec_of(tmp_path, *PLAIN["jpeg 4:2:0"]), sides, part)


def pages():
    images = [Image.fromarray(elements(seed=seed)) for seed in range(3)]
    return saved(
        images[0], "tiff", save_all=True, append_images=images[1:], compression="tiff_adobe_deflate"
    )


@each("page", [0, 1, 2])
def test_pages_are_decoded_on_the_device(page, tmp_path):
    with emulated() as device:
        check(device, spec_of(tmp_path, "tiff", pages(), page=page), ON_DEVICE)


def adobe(value, transform):
    """A JPEG file whose colours are said to be transformed or not."""
    segment = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([transform])
    return value[:2] + segment + value[2:]


def oriented(name):
    exif = Image.Exif()
    exif[274] = 3
    return encoded(name, exif=exif)


JPEG, TIFF = PLAIN["jpeg 4:2:0"][1], PLAIN["tiff of strips"][1]
ODD = {
    "jpeg, progressive": ("jpeg", encoded("jpeg", progressive=True)),
    "jpeg without transform": ("jpeg", adobe(encoded("jpeg"), 0)),
    "jpeg with bytes behind": ("jpeg", JPEG + b"more"),
    "tiff LZW": ("tiff", encoded("tiff", compression="tiff_lzw")),
    "tiff deflate of differences": (
        "tiff",
        encoded("tiff", compression="tiff_adobe_deflate", tiffinfo={317: 2}),
    ),
    "tiff packbits": ("tiff", encoded("tiff", compression="packbits")),
    "tiff of JPEG": ("tiff", encoded("tiff", compression="jpeg")),
    "tiff, rotated": ("tiff", oriented("tiff")),
    "tiff with alpha": ("tiff", encoded("tiff", elements(4))),
    "tiff gray with alpha": ("tiff", encoded("tiff", elements(2))),
    **{
        name: (name, encoded(name))
        for name in ("png", "bmp", "webp", "avif")
        if Image.init() or name.upper() in Image.SAVE
    },
    "png with alpha": ("png", encoded("png", elements(4))),
    "png of a palette": ("png", saved(Image.fromarray(elements()).convert("P"), "png")),
    "animated png": (
        "png",
        saved(
            Image.fromarray(elements()),
            "png",
            save_all=True,
            append_images=[Image.fromarray(elements(seed=1))],
        ),
    ),
}


@each(("name", "value"), ODD.values(), ODD)
def test_odd_images_are_decoded_by_the_host_and_counted(name, value, tmp_path):
    with emulated() as device, warnings.catch_warnings():
        warnings.simplefilter("error")
        check(device, spec_of(tmp_path, name, value), BY_HOST)


def test_the_orientation_that_exif_tells_is_not_applied_to_jpeg(tmp_path):
    with emulated() as device:
        check(device, spec_of(tmp_path, "jpeg", oriented("jpeg")), ON_DEVICE)


# --------------------------------------------------------------------------- damage and failures


def outcome(spec, device=None):
    """What a read gives: elements, or class, key and text of its error."""
    name = "cpu" if device is None else device.name
    try:
        found = gpustore.open(spec, device=name).result().read().result()
    except gpustore.GpustoreError as error:
        return type(error), error.key, str(error)
    return (found if device is None else on_host(device, found)).tobytes()


def check_damaged(data, root, **settings):
    """Damage a file, and compare what a read into a device gives with what the host gives."""
    name, value = data.draw(st.sampled_from([*PLAIN.values()]), "file")
    damaged = bytearray(value)
    for _ in range(data.draw(st.integers(0, 3), "changes")):
        damaged[data.draw(st.integers(0, len(value) - 1), "place")] = data.draw(
            st.sampled_from([0, 1, 127, 255, 0xDA, 0xD9]), "byte"
        )
    damaged = damaged[: data.draw(st.sampled_from([len(value), len(value) // 2, len(value) - 1]))]
    spec = spec_of(root, name, bytes(damaged))
    with emulated(**settings) as device, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow tells of odd TIFF files.
        assert outcome(spec, device) == outcome(spec)


@settings(max_examples=share(200), deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_files_have_the_outcome_of_the_host(data, tmp_path_factory):
    check_damaged(data, tmp_path_factory.mktemp("damaged"))


def test_wrong_elements_of_deflate_are_seen_by_its_checksums(tmp_path):
    with emulated() as device:
        device.faults.strange_images = {(0, 0)}
        check(device, spec_of(tmp_path, "tiff", TIFF), AGAIN)


@each("name", ["jpeg", "tiff"])
@each("cut", [1, 2, 100, 2000])
def test_a_file_cut_short_since_it_was_opened_is_an_error_by_key(name, cut, tmp_path):
    value = {"jpeg": JPEG, "tiff": TIFF}[name]
    spec = spec_of(tmp_path, name, value)
    with emulated() as device:
        store = gpustore.open(spec, device=device.name).result()
        (tmp_path / "image").write_bytes(value[:-cut])
        expected = outcome(spec)
        if isinstance(expected, bytes):
            assert on_host(device, store.read().result()).tobytes() == expected
        else:
            with pytest.raises(CorruptChunkError) as caught:
                store.read().result()
            assert (type(caught.value), caught.value.key) == expected[:2]
            assert caught.value.codec == name
        del store


def test_another_image_in_its_place_is_an_error_before_it_is_decoded(tmp_path):
    spec = spec_of(tmp_path, "jpeg", JPEG)
    with emulated() as device:
        store = gpustore.open(spec, device=device.name).result()
        spec_of(tmp_path, "jpeg", encoded("jpeg", elements(3, 90, 80)))
        with pytest.raises(CorruptChunkError, match=r"\[90, 80, 3\], opened as one of \[37, 52"):
            store.read().result()
        assert device.counts["decode_images"] == 0
        del store


def test_a_much_longer_file_in_its_place_is_decoded_by_the_host(tmp_path):
    spec = spec_of(tmp_path, "jpeg", JPEG)
    with emulated() as device:
        store = gpustore.open(spec, device=device.name).result()
        longer = encoded("jpeg", comment=bytes(60_000))
        assert len(longer) > elements().nbytes
        spec_of(tmp_path, "jpeg", longer)
        future = store.read()
        expected = gpustore.open(spec).result().read().result()
        assert np.array_equal(on_host(device, future.result()), expected)
        assert counts_of(future, *SIDES) == BY_HOST
        del store, future


def test_memory_is_taken_for_the_file_there_is_and_not_for_the_longest(tmp_path):
    taken = []
    with emulated() as device:
        allocate = device.allocate_pinned
        device.allocate_pinned = lambda nbytes: taken.append(nbytes) or allocate(nbytes)
        for name, value in (PLAIN["jpeg 4:2:0"], ODD["png"]):
            check(device, spec_of(tmp_path, name, value), ON_DEVICE if name == "jpeg" else BY_HOST)
    assert max(taken) <= 1 << 20


@pytest.mark.parametrize("order", ORDERS)
@each("name", ["jpeg", "tiff"])
def test_what_the_library_does_not_decode_the_host_does(order, name, tmp_path):
    with emulated(order, seed=2) as device:
        device.faults.images = {(0, 0)}
        check(device, spec_of(tmp_path, name, {"jpeg": JPEG, "tiff": TIFF}[name]), AGAIN)


@each("call", range(12))
@each("kind", ["allocations", "pinned"])
def test_reads_with_little_memory_are_right_or_say_so(call, kind, tmp_path):
    spec = spec_of(tmp_path, "jpeg", JPEG)
    with emulated() as device:
        store = gpustore.open(spec, device=device.name).result()
        setattr(device.faults, kind, {call})
        future = store.read()
        error = future.exception()
        device.faults.allocations = device.faults.pinned = set()
        if error is None:
            expected = gpustore.open(spec).result().read().result()
            assert np.array_equal(on_host(device, future.result()), expected)
        else:
            assert isinstance(error, gpustore.LimitError)
        del store, future, error


def test_a_device_that_is_lost_while_it_decodes_is_an_error(tmp_path):
    spec = spec_of(tmp_path, "jpeg", JPEG)
    with emulated() as device:
        store = gpustore.open(spec, device=device.name).result()
        store.read().result()
        device.faults.lost_at = device.counts["calls"] + 1
        with pytest.raises(DeviceError, match="illegal memory access"):
            store.read().result()
        del store


# --------------------------------------------------------------------------- what chooses the host


def absent():
    raise DeviceError("no library of images: install one")


def test_reads_count_and_explain_a_library_that_is_missing(tmp_path):
    spec = spec_of(tmp_path, "jpeg", JPEG)
    with emulated(images=absent) as device:
        with pytest.warns(
            DeviceWarning, match="install one; the host decodes images of jpeg$"
        ) as caught:
            counts, explanation = check(device, spec, BY_HOST)
        check(device, spec, BY_HOST)
        assert len(caught) == 1
        assert counts["missing_decoder_reads"] == 1
        assert explanation.counts["missing_decoder_reads"] == (1, 1)
        assert explanation.library is None
        assert explanation.host_reason == "no library of images: install one"
        assert explanation.shortcoming in str(explanation)
        assert explanation.shortcoming in str(caught[0].message)


def test_reads_of_other_images_ask_for_no_library(tmp_path):
    with emulated(images=absent) as device, warnings.catch_warnings():
        warnings.simplefilter("error")
        counts, explanation = check(device, spec_of(tmp_path, *ODD["png"]), BY_HOST)
        assert counts["missing_decoder_reads"] == 0
        assert explanation.shortcoming is None
        assert explanation.host_reason == "png is not decoded on a device"


@each(
    ("resource", "value", "reason"),
    [
        ("gpu_decode_choice", "host", 'gpu_decode_choice is "host"'),
        ("gpu_decode_trust", "never", 'gpu_decode_trust is "never"'),
        ("gpu_decode_trust", "verified", 'gpu_decode_trust is "verified"'),
    ],
)
def test_contexts_keep_images_from_the_device(resource, value, reason, tmp_path):
    spec = spec_of(tmp_path, "jpeg", JPEG, context={resource: value})
    with emulated() as device:
        _, explanation = check(device, spec, BY_HOST)
        assert explanation.host_reason.startswith(reason)


def test_explanations_on_the_host_name_the_library_of_a_gpu(tmp_path):
    for name, (driver, value) in {"jpeg": PLAIN["jpeg gray"], "png": ODD["png"]}.items():
        explanation = gpustore.open(spec_of(tmp_path, driver, value)).result().explain()
        by = {"jpeg": "jpeg by nvImageCodec", "png": "the host: png is not decoded on a device"}
        assert f"on a GPU     {by[name]}" in str(explanation)


# --------------------------------------------------------------------------- together, caches


def test_images_of_a_stack_are_decoded_on_the_device(tmp_path):
    layers = []
    for i in range(3):
        (tmp_path / f"{i}").write_bytes(encoded("jpeg", elements(seed=i)))
        layers.append({"driver": "jpeg", "kvstore": f"file://{tmp_path}/{i}"})
    with emulated() as device:
        expected = gpustore.stack([gpustore.open(one).result() for one in layers]).read().result()
        there = [gpustore.open(one, device=device.name).result() for one in layers]
        future = gpustore.stack(there).read()
        assert np.array_equal(on_host(device, future.result()), expected)
        assert counts_of(future, *SIDES) == [3, 0, 0]
        del there, future


@each("content", ["decoded", "encoded"])
def test_images_stay_in_a_cache_of_the_device(content, tmp_path):
    pool = {"total_bytes_limit": 10**6, "content": content}
    spec = spec_of(tmp_path, "tiff", TIFF, context={"device_cache_pool": pool})
    with emulated() as device:
        expected = gpustore.open(spec).result().read().result()
        store = gpustore.open(spec, device=device.name, recheck_cached_data=False).result()
        for _ in range(3):
            future = store.read()
            assert np.array_equal(on_host(device, future.result()), expected)
        assert future.statistics["device_cache_hits"] == 1
        assert future.statistics["key_reads"] == 0
        del store, future


def volume(root, channels, encoding="jpeg", **more):
    """A Neuroglancer precomputed volume of 4 chunks."""
    array = elements(channels, 64, 8 * 6).reshape(16, 16, 12, channels)
    spec = {"driver": "neuroglancer_precomputed", "kvstore": f"file://{root}/volume"}
    spec["multiscale_metadata"] = {"type": "image", "data_type": "uint8", "num_channels": channels}
    spec["scale_metadata"] = {
        "size": [16, 16, 12],
        "chunk_size": [8, 8, 12],
        "encoding": encoding,
        "resolution": [1, 1, 1],
        **more,
    }
    store = gpustore.open(spec, create=True, device="cpu").result()
    store[...] = array
    return {"driver": spec["driver"], "kvstore": spec["kvstore"]}


SHARDED = {
    "@type": "neuroglancer_uint64_sharded_v1",
    **{"preshift_bits": 1, "minishard_bits": 1, "shard_bits": 0, "hash": "identity"},
}


@each(
    ("channels", "encoding", "more", "sides"),
    [
        (1, "jpeg", {}, [4, 0, 0]),
        (1, "jpeg", {"sharding": {**SHARDED, "data_encoding": "raw"}}, [4, 0, 0]),
        (1, "jpeg", {"sharding": {**SHARDED, "data_encoding": "gzip"}}, [0, 4, 0]),
        (3, "jpeg", {}, [0, 4, 0]),
        (1, "png", {}, [0, 4, 0]),
    ],
)
def test_chunks_of_precomputed_volumes_are_decoded_on_the_device(
    channels, encoding, more, sides, tmp_path
):
    spec = volume(tmp_path, channels, encoding, **more)
    with emulated() as device:
        expected = gpustore.open(spec).result().read().result()
        store = gpustore.open(spec, device=device.name).result()
        future = store.read()
        assert np.array_equal(on_host(device, future.result()), expected)
        assert counts_of(future, *SIDES) == sides
        assert device.counts["decode_images"] == (sides[0] > 0)  # One call for all chunks.
        assert np.array_equal(
            on_host(device, store[3:9, 5:, ::5].read().result()), expected[3:9, 5:, ::5]
        )
        del store, future


def test_damaged_chunks_of_precomputed_volumes_are_named(tmp_path):
    spec = volume(tmp_path, 1)
    path = next((tmp_path / "volume").glob("*/8-16_0-8_0-12"))
    path.write_bytes(path.read_bytes()[:-30])
    with emulated() as device:
        store = gpustore.open(spec, device=device.name).result()
        with pytest.raises(CorruptChunkError) as caught:
            store.read().result()
        assert caught.value.key.endswith("8-16_0-8_0-12")
        future = store[:8].read()
        future.result()
        assert counts_of(future, *SIDES) == [2, 0, 0]
        del store, future


def test_writes_to_a_part_of_precomputed_chunks_decode_them_on_the_device(tmp_path):
    found = []
    for side in ("host", "device"):
        (tmp_path / side).mkdir()
        spec = volume(tmp_path / side, 1)
        if side == "host":
            store = gpustore.open(spec, read=True, write=True).result()
            store[3:12, 2:9] = store[1:10, 5:12].read().result()
        else:
            with emulated() as device:
                store = gpustore.open(spec, device=device.name, read=True, write=True).result()
                part = store[1:10, 5:12].read().result()
                calls = device.counts["decode_images"]
                future = store[3:12, 2:9].write(part)
                future.result()
                assert device.counts["decode_images"] == calls + 1
                assert counts_of(future, "host_fallbacks", "host_encodings") == [0, 4]
                del store, part, future
        found.append(gpustore.open(spec).result().read().result())
    assert np.array_equal(*found)
