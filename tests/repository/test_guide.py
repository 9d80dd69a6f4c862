"""The guide keeps its promises: its Python runs page by page, and every page is listed."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kvstores.gcs.gcs_server import GcsServer
from tests.matrix import each

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDEX = GUIDE / "README.md"
PAGES = sorted(path for path in GUIDE.glob("*.md") if path != INDEX)


def blocks(page):
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def test_there_is_a_guide():
    named = {"open", "create", "read", "write", "groups", "schema", "contexts"}
    assert named <= {page.stem for page in PAGES}


GUESTS = {name: name for name in ("dask", "jax", "ray", "torch", "xarray")} | {"train": "torch"}
"""Pages that need a library which is not there for every run of the tests, and its name."""

ENTRY_POINTS = {"zarr-python": ("zarr.codec_pipeline", "gpustore")}
"""Pages that need an entry point of gpustore, which it has where it is installed."""

OWN = [page for page in PAGES if page.stem not in {*GUESTS, *ENTRY_POINTS, "first-scripts"}]

_RUN = """
import json, os, runpy, sys
from gpustore import registry
# Modules are loaded once for all programs, each of which goes on in a process of its own.
for folder in ("drivers", "kvstores", "codecs"):
    for name in registry.ids(folder):
        registry.find(folder, name)
for line in sys.stdin:
    folder, program, environment = json.loads(line)
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        os.environ.update(environment)
        os.chdir(folder)
        runpy.run_path(program, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """Run programs one after the other; gives the exit status, and the file of what they said."""
    said = tmp_path_factory.mktemp("guide") / "said"
    # Threads of OpenBLAS would make Python warn of the fork.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with (
        said.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _RUN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            env=environment,
            text=True,
        ) as process,
    ):

        def run(folder, program, environment):
            json.dump([str(folder), str(program), environment], process.stdin)
            print(file=process.stdin, flush=True)
            return process.stdout.readline(), said

        yield run
        process.stdin.close()


@contextmanager
def machine_of(page):
    """What a page finds on the machine of its reader: the bucket that `gcs` is about."""
    if page.stem != "gcs":
        yield {}
        return
    with GcsServer(buckets={"my-bucket"}) as server:
        yield {"STORAGE_EMULATOR_HOST": server.url}


def first_scripts():
    """Sections of the page of first scripts: lists of their blocks of Python."""
    text = (GUIDE / "first-scripts.md").read_text(encoding="utf-8")
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        yield [code for _, code in BLOCK.findall(section)]


FIRST_SCRIPTS = [*first_scripts()]
TASKS = ("mean", "crops", "bricks")


def test_first_scripts_are_shorter_than_with_zarr_python():
    _, *tasks = FIRST_SCRIPTS
    assert len(tasks) == len(TASKS)
    for theirs, ours, check in tasks:
        lines = [[line for line in one.splitlines() if line.strip()] for one in (theirs, ours)]
        assert "import zarr" in lines[0]
        assert "import gpustore" in lines[1]
        assert len(lines[1]) < len(lines[0]) * 3 / 4
        assert "assert " in check


def test_a_file_becomes_a_segmented_image_with_a_pyramid_in_25_lines():
    page = GUIDE / "ome.md"
    [code] = [text for _, text in blocks(page) if "ome.write(" in text and "tiles(overlap" in text]
    assert "labels.build_pyramid()" in code
    assert len([line for line in code.splitlines() if line.strip()]) <= 25


def as_python(language, text):
    """What a block does: of a console, the lines with commands of gpustore."""
    if language != "console":
        return text if language == "python" else ""
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("gpustore ")]
    run = "from gpustore.cli.main import main\n"
    return run + "\n".join(f"assert main({words[1:]}) == 0" for words in lines)


def check_runs(runner, folder, name, code, environment):
    """Run blocks as one program, as a reader would type it, from one block to the next."""
    program = folder / f"{name}_page.py"
    program.write_text("\n".join(code), encoding="utf-8")
    status, said = runner(folder, program, environment)
    assert status == "0\n", said.read_text()


def check_page_runs(page, runner, folder):
    code = [text for language, text in blocks(page) if language == "python"]
    assert len(code) >= 4
    if page.stem == "loader" and importlib.util.find_spec("torch") is None:
        code = [block for block in code if "import torch" not in block]
    if page.stem in {"command-line", "copy", "ome", "train"}:
        code = [as_python(language, text) for language, text in blocks(page)]
    if page.stem == "ray":  # It warns of settings of its own.
        code.insert(0, "import warnings\n\nwarnings.simplefilter('default')\n")
    with machine_of(page) as environment:
        check_runs(runner, folder, page.stem, code, environment)


@pytest.mark.matrix
@each("page", OWN)
def test_every_python_block_runs(page, runner, tmp_path):
    check_page_runs(page, runner, tmp_path)


@pytest.mark.parametrize("name", GUESTS)
def test_every_python_block_runs_with_a_library(name, runner, tmp_path):
    if importlib.util.find_spec(GUESTS[name]) is None:  # Not imported here: JAX starts threads.
        pytest.skip(f"{GUESTS[name]} is not installed")
    check_page_runs(GUIDE / f"{name}.md", runner, tmp_path)


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_every_python_block_runs_with_an_entry_point(name, runner, tmp_path):
    group, entry_point = ENTRY_POINTS[name]
    if not importlib.metadata.entry_points(group=group, name=entry_point):
        pytest.skip(f"there is no entry point {entry_point} of {group}")
    check_page_runs(GUIDE / f"{name}.md", runner, tmp_path)


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("task", TASKS)
def test_first_scripts_run(task, runner, tmp_path):
    code = [block for number in (0, TASKS.index(task) + 1) for block in FIRST_SCRIPTS[number]]
    libraries = ("dask", "matplotlib", "torch")
    needed = [name for name in libraries if re.search(rf"\b(to_)?{name}\b", "\n".join(code))]
    for library in needed:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    check_runs(runner, tmp_path, task, code, {})


@each("page", PAGES)
def test_blocks_name_their_language(page):
    found = blocks(page)
    assert {language for language, _ in found} <= {"console", "python", "text"}
    assert len(found) == page.read_text(encoding="utf-8").count("\n```") / 2


def test_pages_are_listed_and_links_lead_somewhere():
    listed = re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text(encoding="utf-8"))
    assert sorted(set(listed)) == [page.name for page in PAGES]
    for page in (INDEX, *PAGES):
        links = re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_links_to_the_guide():
    readme = (GUIDE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert "](docs/guide/README.md)" in readme
