"""conda-recipe/recipe.yaml says the same as pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import gpustore

ROOT = Path(__file__).parents[2]

# Packages that conda-forge calls otherwise than the Python package index does.
CONDA_NAMES = {"python-isal": "isal"}

REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*([^;]*)")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recipe():
    text = (ROOT / "conda-recipe" / "recipe.yaml").read_text(encoding="utf-8")
    context = yaml.safe_load(text)["context"]
    for name, value in context.items():
        text = text.replace("${{ " + name + " }}", value)
    return yaml.safe_load(text)


def parse(requirements):
    """Normalised name -> set of version clauses."""
    found = {}
    for requirement in requirements:
        name, versions = REQUIREMENT.match(requirement).groups()
        clauses = {clause.strip() for clause in versions.split(",") if clause.strip()}
        name = name.lower().replace("_", "-")
        found[CONDA_NAMES.get(name, name)] = clauses
    return found


def test_recipe_is_in_the_current_format(recipe):
    assert recipe["schema_version"] == 1
    assert recipe["package"]["name"] == "gpustore"
    assert recipe["about"]["license_file"] == "LICENSE"


def test_recipe_compiles_the_native_core_for_every_python(recipe):
    build = recipe["build"]
    assert build["python"]["version_independent"] is True
    assert "noarch" not in build
    assert build["script"]["env"] == {"GPUSTORE_NATIVE": "require"}
    assert recipe["requirements"]["build"] == ["${{ compiler('cxx') }}", "${{ stdlib('c') }}"]
    commands = [line for test in recipe["tests"] for line in test.get("script", ())]
    assert any("assert gpustore.native_core().in_use" in line for line in commands)


def test_recipe_has_the_version(recipe):
    assert recipe["package"]["version"] == gpustore.__version__


def test_recipe_has_the_licence_and_summary(recipe, project):
    assert recipe["about"]["license"] == project["project"]["license"]
    assert recipe["about"]["summary"] == project["project"]["description"]


def test_recipe_has_the_dependencies(recipe, project):
    # A conda package has no extras, so the command line's libraries come along.
    extras = project["project"]["optional-dependencies"]
    expected = parse(project["project"]["dependencies"] + extras["cli"])
    # conda-forge has libdeflate itself, and no Python package around it.
    assert expected.pop("deflate")
    assert "sed -i.orig '/\"deflate>=/d' pyproject.toml" in recipe["build"]["script"]["content"]
    expected["libdeflate"] = {">=1.20"}
    expected["python"] = {project["project"]["requires-python"]}
    assert parse(recipe["requirements"]["run"]) == expected
    assert parse(recipe["requirements"]["host"])["hatchling"] == {
        clause for need in project["build-system"]["requires"] for clause in parse([need])[need[:9]]
    }


def test_gpu_libraries_are_constraints_only(recipe, project):
    constraints = parse(recipe["requirements"]["run_constraints"])
    extra = parse(project["project"]["optional-dependencies"]["cuda13"])
    assert constraints == {
        "cupy": extra["cupy-cuda13x"],
        "libnvcomp": extra["nvidia-nvcomp-cu13"],
    }
    assert "kvikio" not in str(recipe)


def test_recipe_has_the_entry_points(recipe, project):
    scripts = [f"{name} = {target}" for name, target in project["project"]["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


def test_cuda_extras_differ_only_in_the_cuda_version(project):
    extras = project["project"]["optional-dependencies"]
    for kind in ("cuda", "gds", "image"):
        twelve = [need.replace("12", "13", 1) for need in extras[f"{kind}12"]]
        assert twelve == extras[f"{kind}13"]
