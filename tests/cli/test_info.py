"""``gpustore info``: arrays that TensorStore wrote, described."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorstore

import gpustore
from gpustore.display import array_info
from tests.kvstores.http.http_server import HttpServer


def create(path, driver, **keywords):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}
    return tensorstore.open({**spec, **keywords}, create=True).result()


@pytest.fixture
def zarr3(tmp_path):
    metadata = {
        "shape": [10, 7],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "dimension_names": ["y", None],
        "fill_value": 3,
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "big"}},
            {"name": "gzip", "configuration": {"level": 4}},
        ],
    }
    store = create(tmp_path / "a.zarr", "zarr3", metadata=metadata)
    store[:4].write(np.arange(28, dtype="uint16").reshape(4, 7)).result()
    return tmp_path / "a.zarr"


@pytest.fixture
def zarr2(tmp_path):
    metadata = {
        "shape": [5],
        "dtype": "<f4",
        "chunks": [2],
        "fill_value": "NaN",
        "compressor": {"id": "zlib", "level": 2},
    }
    create(tmp_path / "b.zarr", "zarr", metadata=metadata)
    return tmp_path / "b.zarr"


def test_info_for_programs(gpustore_command, zarr3):
    code, out, err = gpustore_command("info", zarr3, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    stored = sum(p.stat().st_size for p in (zarr3 / "c").rglob("*") if p.is_file())
    assert facts["format"] == "Zarr v3"
    assert facts["shape"] == [10, 7]
    assert facts["labels"] == ["y", ""]
    assert facts["dtype"] == "uint16"
    assert facts["chunk"] == [4, 4]
    assert facts["shard"] is None
    assert [codec["name"] for codec in facts["codec"]["codecs"]] == ["bytes", "gzip"]
    assert facts["fill_value"] == 3
    assert facts["nbytes"] == 140
    assert facts["values_possible"] == 6
    assert facts["values_stored"] == 2
    assert facts["stored_nbytes"] == stored
    assert facts["device"] == "cpu"


def test_info_for_people(gpustore_command, zarr3):
    code, out, err = gpustore_command("info", zarr3)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.split("\n")]
    assert lines[0] == str(zarr3)
    for line in (
        "format Zarr v3",
        "shape 10 x 7 (y, 1)",
        "type uint16",
        "decoded size 140 B",
        "chunk 4 x 4",
        'codecs bytes (endian "big")',
        "gzip (level 4)",
        "fill value 3",
        "read on cpu",
    ):
        assert line in lines
    assert any(line.startswith("chunks stored 2 of 6, ") for line in lines)


def test_info_names_the_decoders_here_and_on_a_gpu(gpustore_command, zarr3):
    _, out, _ = gpustore_command("info", zarr3, "--json")
    facts = json.loads(out)
    assert facts["decoding"] == {
        "codecs": [{"codec": "gzip", "decoder": "host"}],
        "reason": None,
        "library": None,
        "shortcoming": None,
        "native": gpustore.native_core().in_use,
    }
    assert facts["encoding"] == {
        "codecs": [{"codec": "gzip", "encoder": "host"}],
        "reason": None,
        "library": None,
        "shortcoming": None,
        "native": gpustore.native_core().in_use,
    }
    assert facts["gpu"]["codecs"] == [{"codec": "gzip", "decoder": "nvcomp"}]
    assert facts["gpu"]["reason"] is None
    assert facts["gpu"]["encoders"] == [{"codec": "gzip", "encoder": "nvcomp"}]
    assert facts["gpu"]["encoder_reason"] is None
    _, out, _ = gpustore_command("info", zarr3, "--device", "cuda")
    lines = [" ".join(line.split()) for line in out.split("\n")]
    assert "on a GPU decoded by nvcomp (gzip)" in lines
    assert "encoded by nvcomp (gzip)" in lines
    for missing in facts["gpu"]["missing"]:
        assert f"no GPU here {missing}" in lines


@pytest.mark.parametrize(
    ("compressor", "text"),
    [
        ({"id": "bz2", "level": 1}, "the host: bz2 is not decoded on a device"),
        (None, "nobody: raw"),
        ({"id": "lz4", "acceleration": 1}, "nvcomp (lz4)"),
    ],
    ids=["bz2", "raw", "lz4"],
)
def test_info_says_why_a_gpu_would_not_decode(gpustore_command, tmp_path, compressor, text):
    metadata = {"shape": [5], "dtype": "<f4", "chunks": [2], "compressor": compressor}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    gpustore.open(spec, create=True).result()
    _, out, _ = gpustore_command("info", tmp_path, "--device", "auto")
    assert f"decoded by {text}" in out


def test_info_says_whether_the_native_core_is_in_use(gpustore_command, zarr3, monkeypatch):
    core = gpustore.native_core()
    _, out, _ = gpustore_command("info", zarr3, "--json")
    facts = json.loads(out)["native_core"]
    assert facts == {
        "in_use": core.in_use,
        "reason": core.reason,
        "decoders": list(core.decoders),
    }
    lines = {
        gpustore.NativeCore(True, None, ("raw", "zstd")): "in use, decodes raw, zstd",
        gpustore.NativeCore(False, "GPUSTORE_NATIVE is 0", ()): "not in use: GPUSTORE_NATIVE is 0",
    }
    for state, text in lines.items():
        monkeypatch.setattr(array_info, "native_core", lambda state=state: state)
        _, out, _ = gpustore_command("info", zarr3)
        assert re.search(rf"^  native core +{text}$", out, re.MULTILINE)


def test_info_of_a_cast_describes_the_stored_array(gpustore_command, zarr3):
    stored = json.loads(gpustore_command("info", zarr3, "--json")[1])
    code, out, err = gpustore_command("info", f"{zarr3}|cast:float32", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        **stored,
        "dtype": "float32",
        "fill_value": 3.0,
        "cast_from": "uint16",
    }
    code, out, err = gpustore_command("info", f"{zarr3}|cast:float32|cast:int8")
    assert (code, err) == (0, "")
    assert "type           int8, cast from float32\n" in out


def test_info_explains_a_read_of_the_whole(gpustore_command, zarr3):
    code, out, _ = gpustore_command("info", zarr3, "--explain")
    assert code == 0
    assert "6 of 4 x 4, in 6 stored values\n" in out
    _, out, _ = gpustore_command("info", zarr3, "--json", "--explain")
    explanation = json.loads(out)["explanation"]
    assert (explanation["chunks"], explanation["bytes_decoded"]) == (6, 6 * 32)


def test_info_of_zarr2_has_valid_json_for_nan(gpustore_command, zarr2):
    code, out, _ = gpustore_command("info", zarr2, "--json")
    facts = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert code == 0
    assert facts["format"] == "Zarr v2"
    assert facts["fill_value"] == "nan"
    assert facts["values_stored"] == 0
    assert facts["stored_nbytes"] == 0


def test_info_of_zarr2_shows_the_compressor(gpustore_command, zarr2):
    _, out, _ = gpustore_command("info", zarr2)
    assert "zlib (level 2)" in out
    assert "0 of 3" in out


def test_info_of_a_single_value(gpustore_command, tmp_path):
    create(tmp_path / "c.zarr", "zarr3", schema={"dtype": "bool", "domain": {"shape": []}})
    code, out, err = gpustore_command("info", tmp_path / "c.zarr")
    assert (code, err) == (0, "")
    assert "a single value" in out


def test_info_accepts_a_url(gpustore_command, zarr3):
    code, out, _ = gpustore_command("info", f"file://{zarr3}/|zarr3:")
    assert code == 0
    assert "uint16" in out


def test_info_json_does_not_need_rich(gpustore_command, zarr3, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    assert gpustore_command("info", zarr3, "--json")[0] == 0
    code, _, err = gpustore_command("info", zarr3)
    assert code == 1
    assert "pip install 'gpustore[cli]'" in err


@pytest.mark.parametrize("case", ["nothing", "empty folder", "bad json", "bad url"])
def test_info_fails_with_one_line_that_names_the_place(gpustore_command, tmp_path, case):
    path = tmp_path / "x.zarr"
    argument = str(path)
    if case == "empty folder":
        path.mkdir()
    elif case == "bad json":
        path.mkdir()
        (path / "zarr.json").write_text('{"zarr_format": 3, "shape": [1')
    elif case == "bad url":
        argument = "nonsense://x.zarr"
    code, out, err = gpustore_command("info", argument)
    assert (code, out) == (1, "")
    assert err.startswith("gpustore: error: ")
    assert err.count("\n") == 1
    assert "x.zarr" in err or "nonsense" in err


def test_chunks_that_differ(gpustore_command, tmp_path):
    inline = {"kind": "inline", "chunk_shapes": [3, [[2, 2], 3]]}
    metadata = {
        "shape": [5, 6],
        "data_type": "uint8",
        "chunk_grid": {"name": "rectilinear", "configuration": inline},
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    gpustore.open(spec, create=True).result()[:, 4:].write(1).result()
    code, out, err = gpustore_command("info", tmp_path, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert (facts["chunk"], facts["shard"]) == ([3, 3], None)
    assert facts["chunk_shapes"] == [3, [[2, 2], 3]]
    assert (facts["values_possible"], facts["values_stored"]) == (6, 2)
    code, out, _ = gpustore_command("info", tmp_path)
    assert "3 x 3 at most: [3, [[2, 2], 3]]" in out


def test_info_of_an_array_on_a_web_server_leaves_out_lists(gpustore_command, tmp_path):
    store = gpustore.open(f"{tmp_path}/a|zarr3:", create=True, dtype="uint8", shape=[4]).result()
    store[...] = 7
    files = {f"a/{name}": (tmp_path / "a" / name).read_bytes() for name in ("zarr.json", "c/0")}
    with HttpServer(files) as server:
        code, out, err = gpustore_command("info", f"{server.url}/a")
        assert (code, err) == (0, "")
        assert "unknown, of 1: the kvstore cannot list" in out
        _, out, _ = gpustore_command("info", "--json", f"{server.url}/a")
    assert (json.loads(out)["values_stored"], json.loads(out)["shape"]) == (None, [4])


def test_a_group_on_a_web_server_needs_consolidated_metadata(gpustore_command, tmp_path):
    group = gpustore.open_group(f"{tmp_path}/g|zarr3:", create=True).result()
    group.create_array("k", dtype="int8", shape=[4]).result()

    def served():
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return HttpServer({str(path.relative_to(tmp_path)): path.read_bytes() for path in files})

    with served() as server:
        code, _, err = gpustore_command("info", f"{server.url}/g")
        assert (code, err.count("\n")) == (1, 1)
        assert "does not support listing; what is in a group there is known from consol" in err
    group.consolidate().result()
    with served() as server:
        code, out, _ = gpustore_command("info", f"{server.url}/g")
        assert (code, "k (4,) int8" in out) == (0, True)


def test_attributes_units_and_no_word_of_gpus(gpustore_command, tmp_path):
    attributes = {"title": "x" * 90, "window": [-200, 400]}
    gpustore.open(
        f"{tmp_path}/a|zarr3:",
        create=True,
        dtype="uint8",
        shape=[4, 6],
        dims=["y", None],
        units=["0.5 um", None],
        attributes=attributes,
    ).result()
    code, out, err = gpustore_command("info", tmp_path / "a")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "units y: 0.5 um" in lines
    assert f'attributes title: "{"x" * 76}...' in lines
    assert "dimension_units" not in out
    assert "window: [-200, 400]" in lines
    if not Path("/dev/nvidiactl").exists():
        assert "GPU" not in out.replace("GPUSTORE_NATIVE", "")


def test_a_level_of_an_image_has_a_scale(gpustore_command, image):
    path, _ = image
    _, out, _ = gpustore_command("info", path / "1")
    assert "  scale          y 1 µm, x 0.5 µm (OME-Zarr 0.5, axes zyx, 2 levels)\n" in out
    _, out, _ = gpustore_command("info", "--json", path / "1")
    assert json.loads(out)["ome_scale"] == [1, 1, 0.5]
    _, out, _ = gpustore_command("info", path)
    assert "  image       OME-Zarr 0.5, axes zyx, 2 levels\n" in out
