"""How Sphinx builds these pages."""

import builtins
import importlib
import pkgutil
import pydoc
import re
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import get_origin

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import rath
from rath.config.env import env_reference_rows

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "OpenRath"
author = "The OpenRath authors"
copyright = "2026, The OpenRath authors"
release = version = rath.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "drawings",
    "notebooks",
    "reference_tables",
    "search_words",
]
html_theme = "furo"
# The default of the theme underlines names of modules and classes, as if they were links.
pygments_dark_style = "github-dark"
html_title = f"OpenRath {release}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2447c9", "color-brand-content": "#2447c9"},
    "dark_css_variables": {"color-brand-primary": "#8fb0ff", "color-brand-content": "#8fb0ff"},
    "navigation_with_keys": True,
}
html_static_path = ["_static"]
html_css_files = ["pages.css"]

# Without prompts, and without what a command has printed.
copybutton_prompt_text = "$ "
copybutton_selector = "div.highlight:not(.highlight-text) pre"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Unions with names of their own are shown by name, not taken apart.
autodoc_type_aliases = {
    name: name
    for name in (
        "AfterAnswer", "AfterToolHook", "Answer", "BeforeAnswer", "BeforeToolHook", "CommandAnswer",
        "Content", "Entry", "JsonValue", "MemoryAnswer", "ModelAnswer", "ModelHook", "OnEventCb",
        "Outcome", "Recall", "Record", "SystemTools", "ToolEffects", "Turn",
    )
}  # fmt: skip
maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"

# Members of a public class that come from a private base are shown with it; those of these
# classes are not: they have an entry of their own, or belong to Python or pydantic.
BASES_WITHOUT_MEMBERS = (
    "object", "str", "Enum", "BaseException", "ImportError", "OSError", "BaseModel", "ABC",
    "RathError", "ProviderError", "BackendError", "MemoryBackendError", "Workflow",
    "WorkflowList", "Mapping", "Sequence", "FlowToolCall", "SandboxTool",
)  # fmt: skip
autodoc_default_options = {
    "undoc-members": True,
    "show-inheritance": True,
    "inherited-members": ", ".join(BASES_WITHOUT_MEMBERS),
}

INNER_BASES = {
    "ABC",
    "Bindings",
    "CompletionsClient",
    "Generic",
    "Protocol",
    "Sampling",
    "SessionFile",
    "TaskTaking",
    "TypedReading",
}

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COLON = "\ue000"
NAPOLEON_PRIORITY = 500
log = logging.getLogger(__name__)

ENVIRONMENT = "<!-- the environment variables stand here -->"


def public_packages() -> Iterator[ModuleType]:
    """Give every package that says what it exports."""
    for found in pkgutil.walk_packages(rath.__path__, "rath."):
        if found.ispkg and "._" not in found.name:
            package = importlib.import_module(found.name)
            if hasattr(package, "__all__"):
                yield package


def load_what_is_late(_app: Sphinx) -> None:
    """Let autodoc see the names that a package loads on first use."""
    for package in public_packages():
        vars(package).update({name: getattr(package, name) for name in package.__all__})


def report_what_is_missing(_app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of every exported name that no page describes."""
    described = {
        name
        for name, entry in env.domains["py"].data["objects"].items()
        if entry.objtype in {"class", "exception", "function", "data", "type"}
    }
    for package in public_packages():
        for name in package.__all__:
            # A name may be exported by several packages and is described in one of them.
            namesakes = [path for path in described if path.endswith(f".{name}")]
            if not any(locate(path) is getattr(package, name) for path in namesakes):
                log.warning("%s.%s stands on no page of the reference", package.__name__, name)


def locate(path: str) -> object:
    """Find what a dotted name of the library stands for; a function comes before its module."""
    return reduce(lambda owner, part: getattr(owner, part, None), path.split(".")[1:], rath)


def write_as_rst(
    _app: Sphinx, what: str, _name: str, obj: object, _options: object, lines: list[str]
) -> None:
    """Turn what our docstrings write, code in single backticks and drawings, into RST."""
    lines[:] = [CODE.sub(r"``\1``", line) for line in lines]
    if what == "data" and pydoc.getdoc(type(obj)).startswith("\n".join(lines).strip()):
        lines.clear()  # what Python says of every str and tuple
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


def fill_in_environment(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Put the declared environment variables where a page asks for them."""
    if ENVIRONMENT in source[0]:
        source[0] = source[0].replace(ENVIRONMENT, environment_table())


def environment_table() -> str:
    lines = ["| Variable | Kind | Read by |", "| --- | --- | --- |"]
    for row in env_reference_rows():
        also = ", ".join(f"`{alias}`" for alias in row["aliases"].split(", ") if alias)
        default = f"; `{row['default']}` by default" if row["default"] else ""
        reader = row["consumers"] + default + (f"; also as {also}" if also else "")
        lines.append(f"| `{row['name']}` | {row['kind']} | {reader} |")
    return "\n".join(lines)


def leave_out_inner_bases(
    _app: Sphinx, _name: str, _obj: object, _options: object, bases: list[type]
) -> None:
    """Name the bases that a reader may use; the members of the others are shown anyway."""
    public = [base for base in bases if is_public(get_origin(base) or base)]
    bases[:] = public or [object]


def is_public(cls: type) -> bool:
    parts = f"{cls.__module__}.{cls.__name__}".split(".")
    return cls.__name__ not in INNER_BASES and not any(part.startswith("_") for part in parts)


def make_readable(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object,
    signature: str | None, returns: str | None,
) -> tuple[str | None, str | None]:  # fmt: skip
    """Write a default that is made anew each time so that the signature can be parsed."""
    return (signature.replace("<factory>", "...") if signature else signature), returns


def leave_out_object(_app: Sphinx, doctree: nodes.document) -> None:
    """Say nothing of the base that every class has."""
    for paragraph in list(doctree.findall(nodes.paragraph)):
        if paragraph.astext() == "Bases: object":
            paragraph.parent.remove(paragraph)


def leave_builtins_alone(_app: Sphinx, doctree: nodes.document) -> None:
    """Keep `type` in a signature from leading to an attribute of that name."""
    for reference in list(doctree.findall(pending_xref)):
        if reference.get("refdomain") == "py" and hasattr(builtins, reference["reftarget"]):
            reference.replace_self(reference.children)


def skip_knobs_of_pydantic(
    _app: Sphinx, _what: str, name: str, _obj: object, _skip: bool, _options: object
) -> bool | None:
    return True if name in {"model_config", "model_post_init"} else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", write_as_rst, priority=NAPOLEON_PRIORITY - 100)
    app.connect("autodoc-process-docstring", restore_colons, priority=NAPOLEON_PRIORITY + 100)
    app.connect("builder-inited", load_what_is_late)
    app.connect("env-check-consistency", report_what_is_missing)
    app.connect("source-read", fill_in_environment)
    app.connect("autodoc-process-bases", leave_out_inner_bases)
    app.connect("autodoc-process-signature", make_readable)
    app.connect("autodoc-skip-member", skip_knobs_of_pydantic)
    app.connect("doctree-read", leave_out_object)
    app.connect("doctree-read", leave_builtins_alone)
