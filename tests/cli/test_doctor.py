"""``gpustore doctor``: findings on a machine without a GPU, and on an emulated one."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from gpustore.cli import doctor
from gpustore.errors import DeviceWarning
from tests.on_device import emulated

ROOT = Path(__file__).parents[2]


@pytest.fixture
def findings(gpustore_command):
    code, out, err = gpustore_command("doctor", "--json")
    assert (code, err) == (0, "")
    return {one["name"]: one for one in json.loads(out)}


def test_what_works_is_said_in_sentences(findings, gpustore_command):
    assert findings["host"]["state"] == "ok"
    assert findings["packages"]["text"].startswith("numpy ")
    assert all(one["text"].endswith(".") for one in findings.values())
    assert all(one["remedy"] or one["state"] != "bad" for one in findings.values())
    code, out, _ = gpustore_command("doctor")
    assert code == 0
    assert "✓ host " in out


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")
def test_without_a_driver_there_is_one_line_about_gpus(findings):
    assert findings["GPU"]["state"] == "absent"
    assert not {"driver", "cupy", "nvcomp", "kvikio"} & findings.keys()


def test_a_device_is_tried(tmp_path):
    with emulated() as device:
        store = doctor._round_trip(tmp_path, device.name)
        assert store.device.startswith(device.name)
        assert store.explain().library == "emulated library"
        del store


def test_images_are_tried(tmp_path):
    with emulated() as device:
        texts = [(one.state, one.text) for one in doctor._images(tmp_path, device.name)]
    assert texts == [
        ("ok", "emulated images decodes jpeg on the GPU."),
        ("ok", "emulated images decodes tiff on the GPU."),
    ]


def test_a_library_of_images_that_fails_is_said(tmp_path):
    with emulated() as device:
        device.test_faults.images = {(0, 0)}
        with pytest.warns(DeviceWarning, match="does not decode an image of"):
            findings = [*doctor._images(tmp_path, device.name)]
    assert [one.state for one in findings] == ["bad", "bad"]
    for name, one in zip(("jpeg", "tiff"), findings, strict=True):
        assert one.text.endswith(f"the host decodes images of {name}.")


def test_extras_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name, (distributions, _) in doctor._EXTRAS.items():
        required = " ".join(extras[name])
        assert all(one in required for one in distributions)


def test_names_of_the_libraries_are_those_of_the_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for _, _, remedy in doctor._LIBRARIES.values():
        named = {name for name in extras if f"[{name}]" in remedy}
        assert len(named) == 2
