"""The public names of the library: what packages export, and what the reference documents."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import rath

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "source" / "reference"
DOCUMENTED_NAMES: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests" / "data" / "documented_names.json").read_text("utf-8")
)
"""The documented names of 1.3 by module, as `tests/test_documented_names.py` holds them."""
DROPPED = {
    "rath.backend.dedicated_loop": "one runtime serves all planes, so no backend has its own loop",
    "rath.utils": "its helpers were those of the test suite",
    "rath.utils.decoding": "its helpers were those of the test suite",
    "rath.utils.env": "its helpers were those of the test suite",
}
"""Documented modules that are gone on purpose, each with its reason."""

DIRECTIVE = re.compile(r"^\.\. (?:py:)?(auto\w+|currentmodule):: ([\w.]+)$")
MEMBERS = re.compile(r"^   :members: *(.*)$")


def exporting_packages() -> Iterator[tuple[str, set[str]]]:
    """Every package that says what it exports, with those names."""
    packages = [
        found.name for found in pkgutil.walk_packages(rath.__path__, "rath.") if found.ispkg
    ]
    for name in ("rath", *packages):
        package = importlib.import_module(name)
        if "._" not in name and hasattr(package, "__all__"):
            yield name, {*package.__all__}


def reference_names() -> Iterator[tuple[str, set[str]]]:
    """The module and the names of every directive in the pages of the reference."""
    for page in sorted(REFERENCE.glob("*.md")):
        current = module = ""
        for line in page.read_text("utf-8").splitlines():
            directive = DIRECTIVE.match(line)
            if directive is None:
                members = MEMBERS.match(line)
                if members and module:
                    listed = {name.strip() for name in members[1].split(",")} - {""}
                    yield module, listed or exported(importlib.import_module(module))
                continue
            kind, dotted = directive.groups()
            module = dotted if kind == "automodule" else ""
            if kind == "currentmodule":
                current = dotted
            elif kind != "automodule":
                owner, _, name = dotted.rpartition(".")
                yield owner or current, {name}


def exported(module: ModuleType) -> set[str]:
    """What autodoc takes for the members of a module."""
    if hasattr(module, "__all__"):
        return {*module.__all__}
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


@cache
def public_names() -> dict[str, frozenset[str]]:
    """The public names of every public module."""
    names: dict[str, set[str]] = defaultdict(set)
    for module, facts in DOCUMENTED_NAMES.items():
        if module not in DROPPED:
            names[module].update(facts.get("names", ()))
    for module, found in (*exporting_packages(), *reference_names()):
        names[module].update(found)
    return {module: frozenset(found) for module, found in sorted(names.items())}
