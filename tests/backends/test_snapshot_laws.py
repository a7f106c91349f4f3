"""Laws of frozen files, the same for every driver: who copies them, when, and what they hold."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from rath.backend import Backend, BackendError, BackendSandbox, BackendSandboxClosed, NewFile
from rath.backend.local import LocalBackend
from rath.backend.opensandbox import OpenSandboxBackend
from rath.testing import FakeBackend
from tests.support.opensandbox_calls import opensandbox_server
from tests.support.opensandbox_server import OpenSandboxServer
from tests.support.waiting import wait_until_let_go
from tests.support.workspaces import (
    begun,
    close_all,
    content_of,
    fork_directories,
    forked,
    has,
    opened,
    put,
    sh,
    text_of,
    wait_for,
)

__all__ = ["opensandbox_server"]


@dataclass(frozen=True)
class Driver:
    """A backend, and how many copies of frozen files it has made."""

    backend: Backend
    n_copies: Callable[[], int]


@pytest.fixture(params=["local", "opensandbox"])
def driver(request: pytest.FixtureRequest, _own_home: None) -> Iterator[Driver]:
    if request.param == "local":
        yield Driver(LocalBackend(), lambda: len(fork_directories()))
        close_all()
        return
    pytest.importorskip("opensandbox")
    server: OpenSandboxServer = request.getfixturevalue("opensandbox_server")
    remote = OpenSandboxBackend(domain=server.domain, api_key=server.api_key)
    yield Driver(remote, lambda: len(server.matching("POST", "/v1/sandboxes/*/snapshots")))
    close_all()
    wait_until_let_go(lambda: not server.sandbox_ids and not server.snapshot_ids)


@pytest.fixture
def source(driver: Driver) -> BackendSandbox:
    sandbox = opened(driver.backend)
    put(sandbox, "a", "one")
    return sandbox


def test_nothing_is_copied_before_somebody_writes(driver: Driver, source: BackendSandbox) -> None:
    frozen = source.freeze()
    assert (text_of(source, "a"), has(source, "b")) == ("one", False)
    assert source.freeze() is frozen
    assert content_of(frozen, "a") == b"one"
    assert driver.n_copies() == 0
    put(source, "a", "two")
    put(source, "a", "three")
    assert driver.n_copies() == 1
    assert content_of(frozen, "a") == b"one"


def test_what_nobody_holds_is_not_copied(driver: Driver, source: BackendSandbox) -> None:
    source.freeze()
    gc.collect()
    put(source, "a", "two")
    assert driver.n_copies() == 0


def test_each_version_has_a_copy_of_its_own(driver: Driver, source: BackendSandbox) -> None:
    versions = [source.freeze()]
    for text in ("two", "three"):
        put(source, "a", text)
        versions.append(source.freeze())
    put(source, "a", "four")
    assert [content_of(each, "a") for each in versions] == [b"one", b"two", b"three"]
    assert driver.n_copies() == 3
    assert versions[0].base_with(versions[2]) is versions[2].base_with(versions[0]) is versions[0]


@pytest.mark.parametrize("path", ["missing", "a/b", "d", "../outside", "d/../../x", "", "d/e/x"])
def test_what_is_no_file_is_not_found(source: BackendSandbox, path: str) -> None:
    sh(source, "mkdir d")
    with pytest.raises(FileNotFoundError):
        content_of(source.freeze(), path)


def test_a_link_is_read_as_its_target(source: BackendSandbox) -> None:
    sh(source, "ln -s /etc/hostname link; chmod 755 a")
    frozen = source.freeze()
    assert content_of(frozen, "link") == b"/etc/hostname"
    modes = {path: state.mode for path, state in wait_for(frozen.amanifest).items()}
    assert modes == {"a": 0o100755, "link": 0o120777}


def test_files_of_a_closed_sandbox_stay_while_they_are_held(source: BackendSandbox) -> None:
    frozen = source.freeze()
    source.backend.close(source)
    assert content_of(frozen, "a") == b"one"
    assert text_of(begun(source.backend, frozen), "a") == "one"
    with pytest.raises(BackendSandboxClosed):
        source.freeze()


def test_an_unopened_fork_is_frozen_as_its_seed(source: BackendSandbox) -> None:
    sh(source, "echo x > goes")
    fork = forked(source, {"b": NewFile(b"two", 0o100644), "goes": None})
    frozen = fork.freeze()
    assert fork.freeze() is frozen
    put(fork, "a", "three")
    found = {path: content_of(frozen, path) for path in wait_for(frozen.amanifest)}
    assert found == {"a": b"one", "b": b"two"}
    with pytest.raises(FileNotFoundError):
        content_of(frozen, "goes")
    below = begun(source.backend, frozen)
    assert text_of(below, "b") == "two"
    assert fork.freeze().base_with(below.freeze()) is frozen


def test_strangers_have_nothing_in_common(driver: Driver) -> None:
    one, other = driver.backend.lazy().freeze(), driver.backend.lazy().freeze()
    foreign = FakeBackend().lazy().freeze()
    assert one.base_with(other) is None
    assert one.base_with(foreign) is None
    with pytest.raises(BackendError, match="fork on the backend where the files are"):
        begun(driver.backend, foreign).ensure_open()
