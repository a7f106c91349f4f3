"""Which server is asked, and which key it may see."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rath.backend.opensandbox import (
    OpenSandboxBackend,
    resolve_opensandbox_domain,
    strict_workspace_bind,
)
from rath.backend.opensandbox.connection import find_connection
from rath.errors import BackendError, ConfigError, MissingExtra, UntrustedConfig
from tests.support.machine import trust

KEY = "a-key-of-the-environment"


@pytest.fixture(autouse=True)
def _no_server_on_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def _write(directory: Path, **entry: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    providers = {"sandboxes": {"backend_kind": "opensandbox", **entry}}
    config = {"version": 1, "backend": {"providers": providers}}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture
def user_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the config of the user is, who works in no project."""
    monkeypatch.delenv("OPENRATH_HOME")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / ".openrath"


@pytest.fixture
def project_config(user_config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the config of the project is in which the user works."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project / ".openrath"


def test_nobody_names_a_server() -> None:
    assert resolve_opensandbox_domain() is None
    with pytest.raises(BackendError, match="set OPEN_SANDBOX_DOMAIN=host:port"):
        find_connection()


@pytest.mark.parametrize("name", ["OPEN_SANDBOX_DOMAIN", "OPENSANDBOX_DOMAIN"])
def test_the_environment_names_the_server(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "sandboxes.example:1")
    monkeypatch.setenv("OPEN_SANDBOX_API_KEY", KEY)
    found = find_connection()
    assert resolve_opensandbox_domain() == "sandboxes.example:1"
    assert (found.domain, found.origin) == ("sandboxes.example:1", f"env {name}")
    assert found.api_key == KEY


def test_a_server_that_was_set_up_here_is_asked_where_nobody_names_one(tmp_path: Path) -> None:
    (tmp_path / "home" / ".sandbox.toml").touch()
    assert find_connection().domain == "localhost:8080"


def test_the_config_of_the_user_names_server_and_key(user_config: Path) -> None:
    _write(user_config, domain="https://sandboxes.example/", api_key="a-key-of-the-user")
    found = find_connection()
    assert (found.domain, found.protocol) == ("https://sandboxes.example", "https")
    assert found.api_key == "a-key-of-the-user"
    assert found.origin == f"config {user_config / 'config.json'}"


def test_the_key_of_the_environment_goes_to_the_server_of_the_user(
    user_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(user_config, domain="sandboxes.example", options={"use_server_proxy": True})
    monkeypatch.setenv("OPEN_SANDBOX_API_KEY", KEY)
    found = find_connection()
    assert (found.api_key, found.use_server_proxy) == (KEY, True)


def test_a_server_that_the_project_names_never_gets_the_key_of_the_environment(
    project_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(project_config, domain="evil.example")
    trust(project_config / "config.json")
    monkeypatch.setenv("OPEN_SANDBOX_API_KEY", KEY)
    found = find_connection()
    assert (found.domain, found.api_key) == ("evil.example", "")


def test_a_server_that_the_project_names_gets_the_key_that_stands_beside_it(
    project_config: Path,
) -> None:
    _write(project_config, domain="sandboxes.example", api_key="a-key-of-the-project")
    trust(project_config / "config.json")
    assert find_connection().api_key == "a-key-of-the-project"


def test_a_server_that_the_project_names_is_not_asked_before_it_is_trusted(
    project_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(project_config, domain="evil.example")
    for ask in (find_connection, resolve_opensandbox_domain):
        with pytest.raises(UntrustedConfig, match=r"evil\.example"):
            ask()
    assert "rath config trust" in str(OpenSandboxBackend.unavailable_reason())
    assert find_connection("given.example").domain == "given.example"
    monkeypatch.setenv("OPEN_SANDBOX_DOMAIN", "mine.example")
    assert find_connection().domain == "mine.example"


def test_a_key_of_the_config_goes_to_no_other_server(
    user_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(user_config, domain="sandboxes.example", api_key="a-key-of-the-user")
    monkeypatch.setenv("OPEN_SANDBOX_DOMAIN", "other.example")
    assert find_connection().api_key == ""
    assert find_connection("third.example").api_key == ""


def test_what_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPEN_SANDBOX_DOMAIN", "sandboxes.example")
    monkeypatch.setenv("OPEN_SANDBOX_API_KEY", KEY)
    found = find_connection("given.example", "a-given-key")
    assert (found.domain, found.api_key, found.origin) == ("given.example", "a-given-key", "call")


def test_a_key_is_in_no_repr() -> None:
    assert "a-given-key" not in repr(find_connection("given.example", "a-given-key"))
    assert "a-given-key" not in repr(vars(OpenSandboxBackend(api_key="a-given-key")))


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("YES", True), ("0", False)])
def test_the_strict_flag_is_read(
    text: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND", text)
    assert strict_workspace_bind() is expected


def test_it_says_why_it_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opensandbox")
    assert "OPEN_SANDBOX_DOMAIN" in str(OpenSandboxBackend.unavailable_reason())
    assert not OpenSandboxBackend.is_available()
    monkeypatch.setenv("OPEN_SANDBOX_DOMAIN", "sandboxes.example")
    assert OpenSandboxBackend.unavailable_reason() is None
    assert OpenSandboxBackend.is_available()


def test_a_broken_config_makes_it_unavailable_and_says_so(user_config: Path) -> None:
    pytest.importorskip("opensandbox")
    user_config.mkdir(parents=True)
    (user_config / "config.json").write_text("{", encoding="utf-8")
    assert str(user_config) in str(OpenSandboxBackend.unavailable_reason())
    with pytest.raises(ConfigError):
        OpenSandboxBackend().open()


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPEN_SANDBOX_DOMAIN", "sandboxes.example")
    monkeypatch.setitem(sys.modules, "opensandbox", None)
    assert 'pip install "openrath[opensandbox]"' in str(OpenSandboxBackend.unavailable_reason())
    with pytest.raises(MissingExtra, match=r'pip install "openrath\[opensandbox\]"'):
        OpenSandboxBackend().open()
