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


GUESTS = {name: name for name in ("dask", "jax", "ray", "torch", "xarray")}
"""Pages that need a library which is not there for every run of the tests."""

ENTRY_POINTS = {"zarr-python": ("zarr.codec_pipeline", "gpustore")}
"""Pages that need an entry point of gpustore, which it has where it is installed."""

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


def is_installed(code):
    """Whether the libraries are there that are in none but the extra `dev`."""
    libraries = ("dask", "matplotlib", "torch")
    needed = [name for name in libraries if re.search(rf"\b(to_)?{name}\b", code)]
    return all(importlib.util.find_spec(name) for name in needed)


def test_first_scripts_are_shorter_than_with_zarr_python():
    _, *tasks = first_scripts()
    assert len(tasks) == 3
    for theirs, ours, check in tasks:
        lines = [[line for line in one.splitlines() if line.strip()] for one in (theirs, ours)]
        assert "import zarr" in lines[0]
        assert "import gpustore" in lines[1]
        assert len(lines[1]) < len(lines[0]) * 3 / 4
        assert "assert " in check


def as_python(language, text):
    """What a block does: of a console, the lines with commands of gpustore."""
    if language != "console":
        return text if language == "python" else ""
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("gpustore ")]
    run = "from gpustore.cli.main import main\n"
    return run + "\n".join(f"assert main({words[1:]}) == 0" for words in lines)


@pytest.mark.matrix
@each("page", PAGES)
def test_every_python_block_runs(page, runner, tmp_path):
    code = [text for language, text in blocks(page) if language == "python"]
    assert len(code) >= 4
    if page.stem == "first-scripts":
        tasks = ("\n".join(blocks) for blocks in first_scripts())
        code = [task for task in tasks if is_installed(task)]
    if page.stem in {"command-line", "copy"}:
        code = [as_python(language, text) for language, text in blocks(page)]
    if page.stem == "ray":  # It warns of settings of its own.
        code.insert(0, "import warnings\n\nwarnings.simplefilter('default')\n")
    guest = GUESTS.get(page.stem)
    if guest is not None and importlib.util.find_spec(guest) is None:
        return
    if page.stem in ENTRY_POINTS:
        group, name = ENTRY_POINTS[page.stem]
        if not importlib.metadata.entry_points(group=group, name=name):
            return
    program = tmp_path / f"{page.stem}_page.py"
    # One program, as a reader would type it, from one block to the next.
    program.write_text("\n".join(code), encoding="utf-8")
    with machine_of(page) as environment:
        status, said = runner(tmp_path, program, environment)
    assert status == "0\n", said.read_text()


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
