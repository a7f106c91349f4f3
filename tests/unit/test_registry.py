"""The registry of sandbox backends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

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
