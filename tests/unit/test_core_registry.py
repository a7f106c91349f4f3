"""Registries find explicit names, built-in paths and plug-ins, and teach when they do not."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from rath._core.registry import EntryDescription, Registry


def make() -> Registry[object]:
    return Registry("colour", group="rath.test_colours", builtins={"green": "fractions:Fraction"})


def test_register_then_get() -> None:
    registry = make()
    registry.register("red", 1)
    assert registry.get("red") == 1


def test_taken_name_is_refused() -> None:
    registry = make()
    registry.register("red", 1)
    with pytest.raises(ValueError, match="'red' is already registered"):
        registry.register("red", 2)


def test_built_in_name_is_taken_too() -> None:
    with pytest.raises(ValueError, match="replace=True"):
        make().register("green", 2)


def test_replace_wins_over_a_built_in() -> None:
    registry = make()
    registry.register("green", 2, replace=True)
    assert registry.get("green") == 2


def test_unregister_brings_the_built_in_back() -> None:
    registry = make()
    registry.register("green", 2, replace=True)
    registry.unregister("green")
    assert getattr(registry.get("green"), "__name__", None) == "Fraction"


def test_unknown_name_teaches() -> None:
    with pytest.raises(LookupError) as caught:
        make().get("gren")
    text = str(caught.value)
    assert "no colour named 'gren'" in text
    assert "Did you mean 'green'?" in text
    assert "rath.test_colours" in text


def test_names_list_everything_and_load_nothing() -> None:
    code = (
        "import sys\n"
        "from rath._core.registry import Registry\n"
        "r = Registry('x', group='g', builtins={'wave': 'wave:open'})\n"
        "assert r.names() == ('wave',)\n"
        "assert 'wave' not in sys.modules\n"
        "r.get('wave')\n"
        "assert 'wave' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plug_ins_come_from_entry_points() -> None:
    registry: Registry[object] = Registry("plug-in", group="console_scripts")
    assert "pytest" in registry.names()
    assert callable(registry.get("pytest"))


@pytest.mark.parametrize(
    ("entry", "problem", "capabilities"),
    [
        (SimpleNamespace(capabilities=lambda: {"copies"}), None, {"copies"}),
        (SimpleNamespace(is_available=lambda: True), None, None),
        (
            SimpleNamespace(is_available=lambda: False, capabilities=lambda: 1 / 0),
            "says that it cannot work here: is_available() is False",
            None,
        ),
        (SimpleNamespace(unavailable_reason=lambda: "install it"), "install it", None),
        (SimpleNamespace(unavailable_reason=lambda: None), None, None),
    ],
    ids=["capabilities", "available", "not available", "reason", "no reason"],
)
def test_a_description_tells_availability_and_capabilities(
    entry: object, problem: str | None, capabilities: object
) -> None:
    registry = make()
    registry.register("red", entry)
    assert registry.describe("red") == EntryDescription("red", problem, capabilities)
    with pytest.raises(LookupError, match="no colour named 'blue'"):
        registry.describe("blue")
