"""What an import gives and what it costs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rath

# The first import of a vendor's SDK may take long on a busy machine.
pytestmark = pytest.mark.timeout(120)

PACKAGE = Path(rath.__file__).parent
VENDORS = (
    "anthropic",
    "httpx",
    "httpx2",
    "litellm",
    "mcp",
    "numpy",
    "onnxruntime",
    "openai",
    "opensandbox",
    "openviking",
    "tokenizers",
    "xllamacpp",
)
OPTIONAL = {"litellm", "numpy", "onnxruntime", "tokenizers"}
"""Packages of extras that modules import at their top."""

ASYNC_NAME = re.compile(r"^a(run|complete|forward|dispatch|open|close)_?|Async[A-Z]")


def public_modules() -> list[str]:
    """Names of the modules that a user may import, from the files, so that none need load."""
    paths = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))
    dotted = (".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return sorted(name for name in dotted if "._" not in name)


def modules_loaded_by(statement: str) -> set[str]:
    """Top-level names in `sys.modules` after `statement` ran in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@contextmanager
def skipped_without_extra() -> Generator[None]:
    """Skip the test where what runs in it needs a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name not in OPTIONAL:
            raise
        pytest.skip(f"{exc.name} is not installed; it belongs to an extra")


@pytest.mark.parametrize("name", public_modules())
def test_every_name_in_all_can_be_imported(name: str) -> None:
    with skipped_without_extra():
        module = importlib.import_module(name)
        missing = [each for each in getattr(module, "__all__", ()) if not hasattr(module, each)]
    assert missing == []


@pytest.mark.parametrize("name", public_modules())
def test_public_names_are_synchronous(name: str) -> None:
    with skipped_without_extra():
        module = importlib.import_module(name)
    asynchronous = [each for each in getattr(module, "__all__", ()) if ASYNC_NAME.search(each)]
    assert asynchronous == []


def test_import_rath_loads_no_vendor_sdk() -> None:
    loaded = modules_loaded_by("import rath")
    assert loaded & {*VENDORS, "jsonschema", "pydantic"} == set()


@pytest.mark.parametrize("name", rath.__all__)
def test_a_public_name_loads_no_vendor_sdk(name: str) -> None:
    assert modules_loaded_by(f"from rath import {name}") & set(VENDORS) == set()


def test_an_unknown_attribute_of_rath_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_package"):
        rath.no_such_package  # noqa: B018  reading it is the test
