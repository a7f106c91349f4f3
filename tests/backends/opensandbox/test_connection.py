"""The server that is asked, the key it may see, and the errors of asking it."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
)
from rath.backend.opensandbox import (
    OpenSandboxBackend,
    resolve_opensandbox_domain,
    strict_workspace_bind,
)
from rath.backend.opensandbox.connection import (
    AnswerLost,
    Broken,
    NotReached,
    NotReady,
    RemoteError,
    RequestRefused,
    failure_of,
    find_connection,
)
from rath.errors import BackendError, ConfigError, MissingExtra, UntrustedConfig
from tests.support.machine import trust
from tests.support.opensandbox_calls import Remote, Service, failed
from tests.support.opensandbox_server import Answer, OpenSandboxServer

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


def test_a_server_that_the_project_names_gets_the_key_that_stands_next_to_it(
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
    assert 'install --reinstall "opensandbox' in str(OpenSandboxBackend.unavailable_reason())
    with pytest.raises(MissingExtra, match=r'install .*"opensandbox'):
        OpenSandboxBackend().open()


SECRET = "rath-canary-0123456789abcdef"


@pytest.fixture
def secret_backend(opensandbox_server: OpenSandboxServer) -> OpenSandboxBackend:
    pytest.importorskip("opensandbox")
    return OpenSandboxBackend(domain=opensandbox_server.domain, api_key=SECRET)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(401, {"code": "INVALID_API_KEY", "message": f"no such key: {SECRET}"}),
        Answer(500, f"<p>{SECRET}</p>".encode()),
    ],
    ids=["structured", "page"],
)
def test_a_key_that_the_server_repeats_is_hidden(
    secret_backend: OpenSandboxBackend,
    opensandbox_server: OpenSandboxServer,
    caplog: pytest.LogCaptureFixture,
    answer: Answer,
) -> None:
    opensandbox_server.inject("POST", "/v1/sandboxes", answer)
    with caplog.at_level(logging.DEBUG), pytest.raises(BackendError) as caught:
        secret_backend.open()
    assert SECRET not in "".join(format_exception(caught.value))
    assert SECRET not in caplog.text
    (sent,) = opensandbox_server.matching("POST", "/v1/sandboxes")
    assert sent.headers["open-sandbox-api-key"] == SECRET


def test_a_server_that_a_project_names_gets_no_key_of_the_environment(
    opensandbox_server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("opensandbox")
    entry = {"backend_kind": "opensandbox", "domain": opensandbox_server.domain}
    config = {"version": 1, "backend": {"providers": {"ours": entry}}}
    (tmp_path / "project" / ".openrath").mkdir(parents=True)
    (tmp_path / "project" / ".openrath" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OPENRATH_HOME")
    trust(tmp_path / "project" / ".openrath" / "config.json")
    monkeypatch.setenv("OPEN_SANDBOX_API_KEY", SECRET)
    with pytest.raises(BackendError, match="API"):
        OpenSandboxBackend().open()
    # The SDK would look into the environment itself.
    (sent,) = opensandbox_server.matching("POST", "/v1/sandboxes")
    assert "open-sandbox-api-key" not in sent.headers


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (NotReached("refused"), "dispatch_error", "the command was not sent"),
        (NotReady("still starting"), "dispatch_error", "is not ready"),
        (AnswerLost("reset"), "sandbox_sdk_error", "may have taken effect or not"),
        (RequestRefused("no", status=400, code="BAD"), "dispatch_error", "no"),
        (Broken("odd"), "sandbox_sdk_error", "odd"),
    ],
)
def test_a_fault_is_reported_in_words(fault: RemoteError, kind: str, words: str) -> None:
    failure = failure_of(fault, "the command")
    assert failure.kind == kind
    assert words in failure.message


@pytest.mark.parametrize(
    ("status", "code", "message", "expected"),
    [
        (422, "VALIDATION", "volumes", True),
        (400, "VOLUME::HOST_PATH_NOT_ALLOWED", "", True),
        (400, "X", "path is not under any allowed host prefix", True),
        (400, "X", "the image is odd", False),
        (500, "X", "host path", False),
    ],
)
def test_a_refused_mount_is_known_by_its_words(
    status: int, code: str, message: str, expected: bool
) -> None:
    assert RequestRefused(message, status=status, code=code).is_about_mounts is expected


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opensandbox")
    monkeypatch.setattr("rath.backend.opensandbox.client.RETRY_SECONDS", 0.01)


@pytest.mark.usefixtures("_soon")
def test_a_server_that_is_not_there_is_reported_at_opening(service: Service) -> None:
    service.server.close()
    with pytest.raises(BackendError, match="no sandbox could be opened on") as caught:
        service.backend.open()
    assert service.server.domain in str(caught.value)


@pytest.mark.usefixtures("_soon")
def test_a_server_that_went_away_is_reported_by_each_operation(service: Service) -> None:
    sandbox = service.backend.open()
    service.server.close()
    for call in (BackendToolCommandRun("true"), BackendToolFilesRead("a")):
        failure = failed(sandbox, call)
        assert (failure.kind, failure.detail) == ("dispatch_error", "not reached")
    with pytest.raises(BackendError, match="could not be ended on the server"):
        service.backend.close(sandbox)
    with pytest.raises(BackendError, match="cannot be reached"):
        service.backend.attach(sandbox.handle)


@pytest.mark.usefixtures("_soon")
def test_what_changes_nothing_is_asked_again(remote: Remote) -> None:
    remote.sandbox.dispatch(BackendToolFilesWrite("a", "x"))
    remote.server.inject("GET", "/files/*", Answer(503, b""), times=1)
    assert remote.sandbox.dispatch(BackendToolFilesRead("a")) == FileContent("x")
    assert remote.server.calls["GET", "/files/info"] == 2


def test_a_server_that_refuses_to_connect_says_why(remote: Remote) -> None:
    again = BackendSandbox(remote.backend, remote.sandbox.handle, BackendSandboxSpec())
    away = Answer(500, {"code": "AWAY", "message": "the engine is away"})
    remote.server.inject("GET", "/v1/sandboxes/*", away, times=None)
    failure = failed(again, BackendToolCommandRun("true"))
    remote.server.clear_faults()
    assert failure.message == "the engine is away"


def test_an_attached_sandbox_that_ended_does_not_guess_its_lifetime(remote: Remote) -> None:
    again = remote.backend.attach(remote.sandbox.handle)
    remote.server.advance(601)
    failure = failed(again, BackendToolCommandRun("true"))
    remote.backend.close(again)
    assert "or its lifetime was over" in failure.message
