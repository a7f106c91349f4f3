"""Modules that are imported when one of their names is first read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rath._core.lazy_imports import lazy_modules


@pytest.fixture
def importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """A module beside which `lazily_loaded` and `package.inner` can be imported."""
    (tmp_path / "lazily_loaded.py").write_text("ANSWER = 42\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "inner.py").write_text("ANSWER = 43\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    module = ModuleType("the_importer")
    monkeypatch.setitem(sys.modules, "the_importer", module)
    yield module
    for name in ("lazily_loaded", "package", "package.inner"):
        sys.modules.pop(name, None)


def test_a_module_is_imported_by_the_first_read(importer: Any) -> None:
    (importer.lazily_loaded,) = lazy_modules("the_importer", "lazily_loaded")
    assert "lazily_loaded" not in sys.modules
    assert importer.lazily_loaded.ANSWER == 42
    assert importer.lazily_loaded is sys.modules["lazily_loaded"]


def test_modules_stand_under_their_last_part_or_their_alias(importer: Any) -> None:
    importer.inner, importer.other = lazy_modules(
        "the_importer", "package.inner", other="lazily_loaded"
    )
    assert (importer.inner.ANSWER, importer.other.ANSWER) == (43, 42)
    assert importer.inner is sys.modules["package.inner"]
    assert importer.other is sys.modules["lazily_loaded"]


def test_a_name_that_is_not_there_is_named(importer: Any) -> None:
    importer.lazily_loaded, importer.nothing = lazy_modules(
        "the_importer", "lazily_loaded", "no_such_module"
    )
    with pytest.raises(AttributeError, match="'lazily_loaded' has no attribute 'QUESTION'"):
        _ = importer.lazily_loaded.QUESTION
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = importer.nothing.ANSWER


def test_threads_may_read_first_at_the_same_time(importer: Any) -> None:
    (importer.lazily_loaded,) = lazy_modules("the_importer", "lazily_loaded")
    stand_in, start = importer.lazily_loaded, threading.Barrier(8)
    answers: list[int] = []

    def read() -> None:
        start.wait()
        answers.append(stand_in.ANSWER)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [42] * 8
