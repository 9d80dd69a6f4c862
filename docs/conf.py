"""Settings of the site, which Sphinx builds from these pages and the docstrings of the package.

    python -m pip install '.[docs]'
    python -m sphinx -W --keep-going -b html docs build/docs

All links between pages are checked; nothing is fetched from the network.
"""

import re
from pathlib import Path

from docutils import nodes
from pygments.lexers.shell import BashLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import gpustore

project = "gpustore"
author = "The gpustore authors"
release = version = gpustore.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
# References of docstrings have to lead somewhere, but for types, attributes, and names of others.
nitpicky = True
nitpick_ignore_regex = [
    ("py:(class|obj)", ".*"),
    ("py:attr", r"\w+"),
    ("py:.*", r"(asyncio|ray|xarray)\..*"),
]

# Libraries of guests, which need not be installed.
autodoc_mock_imports = ["dask", "jax", "ray", "torch", "xarray", "zarr"]
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "gpustore"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

_GUIDE = Path(__file__).parent / "guide" / "README.md"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def _source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Show pages by their titles, and give the guide a menu of the pages in its table."""
    text = re.sub(r"\]\(\.\./((?:\.\./)?)README\.md", r"](\1index.md", source[0])
    source[0] = re.sub(r"\[[\w./-]+\.md\]\(([\w./#-]+)\)", r"[](\1)", text)
    if docname == "guide/README":
        pages = re.findall(r"^\| \[[^\]]*\]\(([\w-]+)\.md\)", _GUIDE.read_text("utf-8"), re.M)
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def _include_read(app: Sphinx, path: Path, docname: str, source: list[str]) -> None:
    """Make the links of the README right for the site; what is not on it is shown without link."""

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if re.match(r"https?:|#", target):
            return match[0]
        page = target.removeprefix("docs/")
        if page == target:
            return text
        return f"[{'' if text == target else text}]({page})"

    source[0] = _LINK.sub(link, source[0])


def _doctree_read(app: Sphinx, doctree: nodes.document) -> None:
    """Show type variables as text: several classes have a property T."""
    for reference in doctree.findall(pending_xref):
        if reference.get("reftarget") == "T" and reference.get("reftype") == "class":
            reference.replace_self(nodes.Text(reference.astext()))


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("source-read", _source_read)
    app.connect("include-read", _include_read)
    app.connect("doctree-read", _doctree_read)
    app.add_lexer("console", BashLexer)
