"""The guide keeps its promises: its Python runs page by page, and every page is listed."""

import os
import re
import subprocess
import sys
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


@pytest.fixture
def environment(page):
    """What a page finds on the machine of its reader: the bucket that `gcs` is about."""
    if page.stem != "gcs":
        yield {}
        return
    with GcsServer(buckets={"my-bucket"}) as server:
        yield {"STORAGE_EMULATOR_HOST": server.url}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_runs(page, environment, tmp_path):
    code = [text for language, text in blocks(page) if language == "python"]
    assert len(code) >= 4
    program = tmp_path / f"{page.stem}_page.py"
    # One program, as a reader would type it, from one block to the next.
    program.write_text("\n".join(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


@each("page", PAGES)
def test_blocks_name_their_language(page):
    found = blocks(page)
    assert {language for language, _ in found} <= {"console", "python", "text"}
    assert len(found) == page.read_text(encoding="utf-8").count("\n```") / 2


def test_pages_are_listed_and_links_lead_somewhere():
    listed = re.findall(r"\]\((\w+\.md)\)", INDEX.read_text(encoding="utf-8"))
    assert sorted(set(listed)) == [page.name for page in PAGES]
    for page in (INDEX, *PAGES):
        links = re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_links_to_the_guide():
    readme = (GUIDE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert "](docs/guide/README.md)" in readme
