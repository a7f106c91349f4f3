"""Memory backends by name."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from rath import memory
from rath.memory import MemoryBackend, MemoryBackendNotFound
from rath.memory.adapters.local import LocalMemoryBackend
from rath.testing import FakeMemory


class Mine(FakeMemory):
    """A backend to register."""


@pytest.fixture
def name() -> str:
    """A name that nobody else registers."""
    return f"m-{uuid4().hex}"


@pytest.fixture
def _default_again() -> Iterator[None]:
    yield
    memory.set_default("local")


def test_local_is_known_and_the_default() -> None:
    assert "local" in memory.list_names()
    assert isinstance(memory.current(), LocalMemoryBackend)
    assert memory.get_class("local") is LocalMemoryBackend


def test_a_class_is_registered_by_decoration(name: str) -> None:
    assert memory.register(name)(Mine) is Mine
    assert Mine.name == name
    assert isinstance(memory.get(name), Mine)
    names = [each for each in memory.list_names() if each in {"local", name}]
    assert names == ["local", name]


def test_a_name_is_given_once(name: str) -> None:
    memory.register(name)(Mine)
    with pytest.raises(ValueError, match="already registered"):
        memory.register(name)(Mine)


def test_an_unknown_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(MemoryBackendNotFound, match="Did you mean 'local'") as caught:
        memory.get("locl")
    assert caught.value.available == memory.list_names()


def test_the_first_that_is_available_is_preferred(name: str) -> None:
    @memory.register(name)
    class Absent(FakeMemory):
        @classmethod
        def is_available(cls) -> bool:
            return False

    assert isinstance(memory.preferred([name, "no-such", "local"]), LocalMemoryBackend)
    with pytest.raises(MemoryBackendNotFound, match="None of them is available"):
        memory.preferred([name, "no-such"])


@pytest.mark.usefixtures("_default_again")
def test_the_default_can_be_set(name: str) -> None:
    memory.register(name)(Mine)
    memory.set_default(name)
    assert isinstance(memory.current(), Mine)
    with pytest.raises(MemoryBackendNotFound):
        memory.set_default("no-such")
    assert isinstance(memory.current(), Mine)


def test_an_incomplete_class_cannot_be_made() -> None:
    class Incomplete(MemoryBackend):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete()  # type: ignore[abstract]  # this is what must not work
