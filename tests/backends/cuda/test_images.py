"""Images on a real GPU that has nvImageCodec, and on an emulated one, against the host."""

import io
from types import SimpleNamespace

import numpy as np
import pytest

import gpustore
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

Image = pytest.importorskip("PIL.Image")

SHAPE = (301, 463, 3)
PARTS = np.s_[...], np.s_[20:301:3, 400:7:-2], np.s_[100:164, 200:264]


@pytest.fixture(
    params=[
        pytest.param("emulated", marks=needs_compiler),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def gpu(request):
    """Name of a device, and how its arrays are copied to the host."""
    if request.param == "cuda":
        import cupy  # Only a machine with a GPU has it.

        pytest.importorskip("nvidia.nvimgcodec")
        yield SimpleNamespace(name="cuda", to_host=cupy.asnumpy)
        return
    with emulated() as device:
        yield SimpleNamespace(name=device.name, to_host=lambda array: on_host(device, array))


def picture(seed=0):
    """A smooth image with noise, as from a camera."""
    y, x, channel = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
    smooth = 110 + 60 * np.sin(x / (31 + 9 * channel)) + 50 * np.cos(y / (23 + 5 * channel))
    noise = np.random.default_rng(seed).normal(0, 3, SHAPE)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def saved(path, name, array, **options):
    image = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    stream = io.BytesIO()
    image.save(stream, name, **options)
    path.write_bytes(stream.getvalue())
    return {"driver": name, "kvstore": f"file://{path}"}


def compare(spec, gpu, most):
    """Compare parts of an image with those of the host; all must be decoded on the device."""
    expected = gpustore.open(spec, device="cpu").result().read().result().astype(int)
    store = gpustore.open(spec, device=gpu.name).result()
    for part in PARTS:
        future = store[part].read()
        difference = np.abs(gpu.to_host(future.result()) - expected[part])
        assert difference.max() <= most
        assert difference.mean() <= most / 4
        counts = future.statistics
        assert (counts["chunks_decoded_device"], counts["host_fallbacks"]) == (1, 0)


@pytest.mark.parametrize("subsampling", [0, 1, 2], ids=["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [75, 95])
def test_jpeg_is_as_on_the_host_but_for_rounding(tmp_path, gpu, subsampling, quality):
    options = {"quality": quality, "subsampling": subsampling}
    compare(saved(tmp_path / "a", "jpeg", picture(), **options), gpu, 4)


def test_gray_jpeg_is_as_on_the_host_but_for_rounding(tmp_path, gpu):
    compare(saved(tmp_path / "a", "jpeg", picture()[..., :1]), gpu, 2)


@pytest.mark.parametrize("compression", ["raw", "tiff_adobe_deflate"])
@pytest.mark.parametrize("channels", [1, 3])
def test_tiff_has_the_elements_of_the_host(tmp_path, gpu, compression, channels):
    array = picture()[..., :channels]
    compare(saved(tmp_path / "a", "tiff", array, compression=compression), gpu, 0)


@pytest.mark.matrix("costly")
def test_many_images_are_read_at_once(tmp_path, gpu):
    specs = [saved(tmp_path / f"{i}", "tiff", picture(i)) for i in range(12)]
    stores = [gpustore.open(spec, device=gpu.name).result() for spec in specs]
    futures = [store.read() for store in stores]
    for i, future in enumerate(futures):
        assert np.array_equal(gpu.to_host(future.result()), picture(i))


@pytest.mark.parametrize("name", ["jpeg", "tiff"])
def test_a_file_cut_short_is_the_error_of_the_host(tmp_path, gpu, name):
    spec = saved(tmp_path / "a", name, picture())
    store = gpustore.open(spec, device=gpu.name).result()
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(gpustore.CorruptChunkError) as caught:
        store.read().result()
    assert caught.value.key.endswith("/a")
    (tmp_path / "a").write_bytes(whole)
    store.read().result()
