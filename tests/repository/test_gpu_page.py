"""docs/gpu.md is what its script writes."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "gpu.py"))


def test_the_page_is_up_to_date():
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert text == SCRIPT["page"](), "run: python docs/gpu.py"
