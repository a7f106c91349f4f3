"""What an import gives and what it costs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
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


FIRST_LINES = "import rath\nfrom rath import flow\nfrom rath.session import Session"
"""How most programs begin."""

MOST_MODULES = 148
"""How many modules these lines may load; an interpreter of 3.11 has 32 before."""

SHOW_HELP = """
import contextlib, io
from rath.cli import main
sys.argv = ["rath", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
"""

LOADED_LATE = {"asyncio", "email", "importlib.metadata", "jsonschema", "pydantic", "rich",
               "sqlite3", "ssl", "subprocess", "typer", "urllib.request"}  # fmt: skip
"""What is needed only where something runs."""

WATCHED = """
import sys

class Watch:
    found = {}

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame is not None:
            importer = frame.f_globals.get("__name__", "")
            if importer.startswith("rath") and importer != "rath._core.lazy_imports":
                break
            frame = frame.f_back
        where = "the program" if frame is None else f"{importer}, line {frame.f_lineno}"
        self.found[name] = where

before = set(sys.modules)
sys.meta_path.insert(0, Watch())
%s
for name, where in Watch.found.items():
    if name in sys.modules and name not in before:
        print(name, where, sep="\\t")
"""


def imports_of(statement: str) -> dict[str, str]:
    """The modules that `statement` loads in a fresh interpreter, in order, with who imports each.

    It is the line of rath that is at work, also where a module of others imports the next.
    """
    code = WATCHED % statement
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(line.split("\t") for line in run.stdout.splitlines())


def modules_loaded_by(statement: str) -> set[str]:
    """Top-level names of the modules that `statement` loads in a fresh interpreter."""
    return {name.partition(".")[0] for name in imports_of(statement)}


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


def test_the_first_lines_of_a_program_load_only_what_they_use() -> None:
    imports = imports_of(FIRST_LINES)
    late = [f"{name} by {imports[name]}" for name in imports if name in {*VENDORS, *LOADED_LATE}]
    assert late == []
    beyond = [f"{name} by {imports[name]}" for name in [*imports][MOST_MODULES:]]
    weights = Counter(imports.values()).most_common(12)
    assert not beyond, f"too many modules: {beyond}; most are imported by {weights}"


def test_help_of_the_command_imports_no_verb() -> None:
    imports = imports_of(SHOW_HELP)
    late = {"asyncio", "jsonschema", "pydantic", "rath.flow", "rath.session", "rich", "sqlite3"}
    assert [f"{name} by {imports[name]}" for name in imports if name in late] == []
    assert {name for name in imports if name.startswith("rath.cli.")} == {
        "rath.cli.app",
        "rath.cli.terminal",
        "rath.cli.verbs",
    }


def test_a_module_that_should_not_load_is_named_with_its_importer() -> None:
    imports = imports_of("import rath.config.schema")
    assert imports["pydantic"].startswith("rath.config.schema, line ")
    assert imports["pydantic.main"].startswith("rath.config.schema, line ")


@pytest.mark.parametrize("name", rath.__all__)
def test_a_public_name_loads_no_vendor_sdk(name: str) -> None:
    assert modules_loaded_by(f"from rath import {name}") & set(VENDORS) == set()


def test_an_unknown_attribute_of_rath_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_package"):
        rath.no_such_package  # noqa: B018  reading it is the test


def test_dir_lists_the_public_names_and_only_these() -> None:
    assert sorted(dir(rath)) == sorted([*rath.__all__, "__version__"])


def test_ipython_finds_the_extension() -> None:
    assert callable(getattr(rath, "load_ipython_extension"))  # noqa: B009  # IPython does so
