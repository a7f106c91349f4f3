"""How Sphinx builds these pages."""

import re

from sphinx.application import Sphinx

import rath

project = "OpenRath"
author = "The OpenRath authors"
copyright = "2026, The OpenRath authors"
release = version = rath.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"OpenRath {release}"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COLON = "\ue000"
NAPOLEON_PRIORITY = 500


def write_as_rst(
    _app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Turn what our docstrings write, code in single backticks and drawings, into RST."""
    lines[:] = [CODE.sub(r"``\1``", line) for line in lines]
    if what == "module":
        lines[:] = with_literal_drawings(lines)
    if what in {"attribute", "data", "property"} and lines:
        # Napoleon would take what stands before a colon for a type.
        lines[0] = lines[0].replace(":", COLON)


def restore_colons(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def with_literal_drawings(lines: list[str]) -> list[str]:
    """Mark each indented block that follows a paragraph as literal."""
    marked: list[str] = []
    is_inside = False
    for line in lines:
        is_indented = line.startswith("  ")
        if is_indented and not is_inside and marked and not marked[-1]:
            marked += ["::", ""]
        is_inside = is_indented or (is_inside and not line)
        marked.append(line)
    return marked


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", write_as_rst, priority=NAPOLEON_PRIORITY - 100)
    app.connect("autodoc-process-docstring", restore_colons, priority=NAPOLEON_PRIORITY + 100)
