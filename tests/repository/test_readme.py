"""README.md keeps its promises: its Python runs, its set-up commands are exactly two."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)
SET_UP = [
    "python -m pip install '.[cli]' && gpustore demo",
    "python -m pip install -e '.[test]' && python -m pytest",
]


def test_the_set_up_commands_are_exactly_two_lines_of_shell_blocks():
    found = [line for line in README.splitlines() if re.search(r"pip install .*&&", line)]
    assert found == SET_UP
    shell = [
        line for language, text in BLOCKS if language == "console" for line in text.split("\n")
    ]
    assert [line for line in shell if line in SET_UP] == SET_UP


def test_the_ci_script_takes_the_commands_from_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
    assert not any(command in script for command in SET_UP)


def test_every_python_block_runs(tmp_path):
    blocks = [text for language, text in BLOCKS if language == "python"]
    assert len(blocks) >= 4
    program = tmp_path / "readme.py"
    # One program, as a reader would type it, from one block to the next.
    program.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


def test_every_file_the_readme_links_to_exists():
    links = re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", README)
    assert len(links) >= 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_blocks_name_their_language():
    assert {language for language, _ in BLOCKS} <= {"console", "python", "text"}
    assert len(BLOCKS) == README.count("\n```") / 2
