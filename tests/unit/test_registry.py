"""Registries of all planes: explicit names, built-in paths, plug-ins and their errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from uuid import uuid4

import pytest

from rath._core.registry import EntryDescription, Registry
from rath.backend import (
    Backend,
    BackendNotFound,
    current,
    get,
    get_class,
    is_available,
    list_names,
    preferred,
    register,
    set_default,
)
from rath.backend.local import LocalBackend
from rath.backend.registry import unregister
from rath.testing import FakeBackend


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


class Unavailable(FakeBackend):
    @classmethod
    def is_available(cls) -> bool:
        return False


class Fake(FakeBackend):
    """A class of its own: registering one gives it its name, for the whole process."""


@pytest.fixture
def name() -> Iterator[str]:
    chosen = f"fake-{uuid4().hex}"
    yield chosen
    unregister(chosen)


def test_local_is_there_from_the_start() -> None:
    assert list_names()[0] == "local"
    assert get_class("local") is LocalBackend
    assert is_available("local")


def test_a_registered_class_bears_its_name(name: str) -> None:
    class Mine(FakeBackend):
        pass

    assert register(name)(Mine).name == name
    assert get(name).name == name
    assert name in list_names()


def test_names_stand_in_the_order_of_registration(name: str) -> None:
    later = name + "-later"
    register(name)(Fake)
    register(later)(Fake)
    # Those of installed packages follow.
    assert [each for each in list_names() if each in (name, later)] == [name, later]
    unregister(later)


@pytest.mark.parametrize("taken", ["local", None])
def test_a_taken_name_is_refused(name: str, taken: str | None) -> None:
    register(name)(Fake)
    with pytest.raises(ValueError, match="already registered"):
        register(taken or name)(Fake)


def test_what_is_no_backend_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="subclass"):
        register(name)(str)  # type: ignore[type-var]  # the mistake under test


def test_there_is_one_instance_in_the_process(name: str) -> None:
    register(name)(Fake)
    with ThreadPoolExecutor(8) as pool:
        instances = set(pool.map(get, [name] * 32))
    assert len(instances) == 1


def test_one_class_under_two_names_has_two_instances(name: str) -> None:
    second = name + "-second"
    register(name)(Fake)
    register(second)(Fake)
    assert (get(name).name, get(second).name) == (name, second)
    unregister(second)


def test_an_unknown_name_is_an_error_that_helps() -> None:
    with pytest.raises(BackendNotFound, match="Did you mean 'local'") as caught:
        get("locale")
    assert caught.value.name == "locale"
    assert "local" in caught.value.available
    with pytest.raises(BackendNotFound):
        get_class("no-such")
    assert not is_available("no-such")


def test_the_first_that_can_work_is_preferred(name: str) -> None:
    register(name)(Unavailable)
    assert preferred(["no-such", name, "local"]) is get("local")
    with pytest.raises(BackendNotFound, match=f"no-such, {name}"):
        preferred(["no-such", name])


def test_there_is_no_default_until_one_is_set(name: str) -> None:
    with pytest.raises(BackendNotFound, match="<default>"):
        current()
    register(name)(Fake)
    set_default(name)
    assert current() is get(name)
    unregister(name)
    with pytest.raises(BackendNotFound, match="<default>"):
        current()


def test_an_unknown_default_is_refused() -> None:
    with pytest.raises(BackendNotFound):
        set_default("no-such")


def test_every_known_class_is_a_backend() -> None:
    assert all(issubclass(get_class(name), Backend) for name in list_names())
