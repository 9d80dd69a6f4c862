"""docs/compatibility.md is what its script writes."""

import runpy
from pathlib import Path

import pytest

import gpustore
from gpustore import registry

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "compatibility.py"))


def test_the_page_is_up_to_date():
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert text == SCRIPT["page"](), "run: python docs/compatibility.py"


@pytest.mark.parametrize("title", ["Drivers", "Kvstores", "Codecs"])
def test_the_page_knows_everything_that_is_there(title):
    (folder, names), *_ = [(f, n) for t, f, n in SCRIPT["TABLES"] if t == title]
    assert set(registry.ids(folder)) <= set(names.values())


@pytest.mark.parametrize("name", ["n5", "cast", "stack", "neuroglancer_precomputed"])
def test_an_absent_driver_raises_an_error_that_names_it(name):
    if name in registry.ids("drivers"):
        pytest.skip(f"{name} is there by now")
    with pytest.raises(gpustore.GpustoreError, match=name):
        gpustore.open({"driver": name, "kvstore": "memory://"}).result()


@pytest.mark.parametrize("name", ["s3", "zip", "ocdbt", "gcs"])
def test_an_absent_kvstore_raises_an_error_that_names_it(name):
    if name in registry.ids("kvstores"):
        pytest.skip(f"{name} is there by now")
    with pytest.raises(gpustore.GpustoreError, match=name):
        gpustore.open({"driver": "zarr3", "kvstore": {"driver": name}}).result()
