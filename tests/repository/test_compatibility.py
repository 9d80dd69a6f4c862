"""docs/compatibility.md is what its script writes."""

import json
import re
import runpy
from importlib.metadata import version
from pathlib import Path

import pytest

from gpustore import registry
from gpustore.registry import is_installed
from tests.interop.libraries import FEATURES, PEERS, try_peer
from tests.matrix import each

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "compatibility.py"))


TEXT = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
KEPT = SCRIPT["kept"](TEXT)


@pytest.mark.matrix("costly")
def test_the_page_is_up_to_date():
    """The columns of other libraries are taken from it."""
    assert SCRIPT["page"](KEPT) == TEXT, "run: python docs/compatibility.py"


@pytest.mark.long
@pytest.mark.parametrize("name", PEERS)
def test_other_libraries_do_what_the_page_says(name):
    said, cells = KEPT[name]
    if not is_installed(name) or version(name) != said:
        pytest.skip(f"the page is about {name} {said}")
    assert cells == SCRIPT["column"](try_peer(name)), "run: python docs/compatibility.py"


def test_every_other_library_was_tried_with_every_feature():
    rows = {(feature.section, feature.name) for feature in FEATURES}
    for said, cells in KEPT.values():
        assert re.fullmatch(r"[0-9.]+", said)
        assert set(cells) == rows
        assert not {"", "not tried"} & set(cells.values())


def test_features_are_told_apart():
    assert len(FEATURES) == len({feature.id for feature in FEATURES}) >= 200


@each("name", registry.ids("codecs"))
def test_every_codec_is_a_feature(name):
    word = json.dumps(name).encode()
    assert any(word in value for feature in FEATURES for value in feature.files.values())
