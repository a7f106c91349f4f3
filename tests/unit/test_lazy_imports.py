"""Packages that load their names late: what they give, and what they do not load."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rath
from rath._core.lazy_imports import lazy_names
from tests.support.api import format_module

LATE = (
    "rath.llm",
    "rath.session",
    "rath.session.graph",
    "rath.session.persistence",
    "rath.session.log",
    "rath.session.log.index",
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with a late name, another module, and one that cannot be imported."""
    folder = tmp_path / "a_late_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from rath._core.lazy_imports import lazy_names\n"
        '__getattr__, __dir__ = lazy_names(__name__, {"given": ("ANSWER",)})\n'
    )
    (folder / "given.py").write_text("ANSWER = 42\n")
    (folder / "other.py").write_text("")
    (folder / "broken.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(folder.name)


def test_a_name_is_loaded_on_first_use(package: ModuleType) -> None:
    assert "a_late_package.given" not in sys.modules
    assert package.ANSWER == 42
    assert "a_late_package.given" in sys.modules


def test_a_module_of_the_package_is_one_of_its_attributes(package: ModuleType) -> None:
    assert package.other is sys.modules["a_late_package.other"]


def test_a_package_that_a_module_misses_is_told(package: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        package.broken  # noqa: B018  reading it is the test


@pytest.mark.parametrize("name", ["nothing", "_private", "__wrapped__"])
def test_an_unknown_name_is_an_attribute_error(package: ModuleType, name: str) -> None:
    with pytest.raises(AttributeError, match=f"'a_late_package' has no attribute '{name}'"):
        getattr(package, name)


def test_dir_names_what_is_not_loaded_yet(package: ModuleType) -> None:
    assert {"ANSWER", "__name__"} <= {*dir(package)}


def test_a_name_that_a_module_would_hide_is_refused() -> None:
    with pytest.raises(ValueError, match="'load'"):
        lazy_names("some.package", {"load": ("load",), "other": ("fine",)})


@pytest.mark.parametrize("name", LATE)
def test_dir_of_a_package_names_all_that_is_public(name: str) -> None:
    module = importlib.import_module(name)
    assert {*module.__all__} <= {*dir(module)}


@pytest.mark.parametrize("name", LATE)
def test_no_module_of_a_package_hides_one_of_its_names(name: str) -> None:
    module = importlib.import_module(name)
    folder = Path(rath.__file__).parent.joinpath(*name.split(".")[1:])
    modules = {path.name.removesuffix(".py") for path in folder.iterdir()}
    assert modules & {*module.__all__} == set()


def test_listing_loads_neither_a_model_nor_what_reads_logs() -> None:
    code = "import rath.cli.ls, json, sys; print(json.dumps([*sys.modules]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {*json.loads(run.stdout)}
    assert (
        loaded
        & {
            "asyncio",
            "rath.llm.provider",
            format_module.__name__,
            "rath.session.loading",
            "rath.session.session",
            "rich.progress",
        }
        == set()
    )
