"""The site shows every public name and every page. `.ci/run` builds it; see docs/conf.py."""

import re
import tomllib
from pathlib import Path

import gpustore
import gpustore.loader
import gpustore.ome

ROOT = Path(__file__).parents[2]
API = ROOT / "docs" / "api"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in API.glob("*.rst")}
DIRECTIVE = re.compile(r"^\.\. auto(?!module)\w+:: (\w+)$", re.MULTILINE)
MODULE = re.compile(r"^\.\. automodule:: gpustore\.([\w.]+)$", re.MULTILINE)
TREE = re.compile(r"^   (\w+)$", re.MULTILINE)


def test_every_public_name_is_in_the_reference():
    ome = PAGES["ome"]
    assert sorted(DIRECTIVE.findall(ome)) == sorted(gpustore.ome.__all__)
    shown = [name for text in PAGES.values() if text != ome for name in DIRECTIVE.findall(text)]
    types = re.findall(r"``(\w+)``", PAGES["data_types"].partition("\n* ")[2])
    public = {*gpustore.__all__, *gpustore.loader.__all__}
    assert {*shown, *types, "ocdbt"} ^ public == set()
    assert len(shown) == len({*shown})


def test_every_guest_is_in_the_reference():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = {path.stem for path in (ROOT / "gpustore" / "interop").iterdir()}
    guests = modules & set(project["optional-dependencies"])
    shown = {name for text in PAGES.values() for name in MODULE.findall(text)}
    assert {"errors", "loader", "ocdbt", "ome", *(f"interop.{name}" for name in guests)} == shown


def test_every_page_of_the_reference_is_in_its_menu():
    assert sorted(TREE.findall(PAGES["index"])) == sorted(PAGES.keys() - {"index"})
