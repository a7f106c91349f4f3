"""Requests to a server: their wire, on one that only writes them down, and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openviking_sdk import errors

from rath import memory
from rath.memory.adapters.openviking.client import translate_error
from tests.support.chat_replies import Reply, dropped, json_body, raw, status_error
from tests.support.chat_server import CapturedRequest, ChatServer

HOME = {"status": "ok", "result": {"uri": "viking://user/alice"}}


KEY = "the-key-of-this-server"


def answer(request: CapturedRequest) -> Reply:
    if request.path.startswith("/api/v1/fs/stat"):
        return json_body(HOME)
    if request.path.endswith("/temp_upload"):
        return json_body({"status": "ok", "result": {"temp_file_id": "t1"}})
    return json_body({"status": "ok", "result": {"root_uri": "viking://resources/x"}})


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(answer) as running:
        yield running


def opened(server: ChatServer, **options: object) -> memory.MemoryStore:
    url = server.base_url.removesuffix("/v1")
    given = {"url": url, **options}
    spec = memory.MemoryStoreSpec(
        account_id="acme", user_id="bob", agent_id="helper", options=given
    )
    return memory.get("openviking").open(spec)


def test_who_asks_is_reported_by_what_was_given_alone(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "ACCOUNT", "USER", "ACTOR_PEER_ID", "OIDC_TOKEN", "PASSWORD"):
        monkeypatch.setenv(f"OPENVIKING_{name}", "of-the-environment")
    monkeypatch.setenv("OPENVIKING_AUTH_MODE", "oidc")
    store = opened(server, api_key=KEY)
    store.backend.close(store)
    sent = {name: value for name, value in server.requests[0].headers.items() if "-" in name}
    assert sent["x-api-key"] == KEY
    assert sent["x-openviking-account"] == "acme"
    assert sent["x-openviking-user"] == "bob"
    assert sent["x-openviking-actor-peer"] == "helper"
    assert "of-the-environment" not in str(server.requests[0].headers)
    assert "authorization" not in server.requests[0].headers


def test_a_store_without_a_key_sends_none(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENVIKING_API_KEY", "of-the-environment")
    store = opened(server)
    store.backend.close(store)
    assert "x-api-key" not in server.requests[0].headers


def test_a_file_is_uploaded_and_its_path_is_not_reported(
    server: ChatServer, tmp_path: Path
) -> None:
    source = tmp_path / "notes.md"
    source.write_text("The kingfisher dives.")
    store = opened(server)
    store.dispatch(memory.MemoryOpResource(str(source)))
    store.backend.close(store)
    upload, taken = server.requests[1:]
    assert b"The kingfisher dives." in upload.body
    assert taken.json()["temp_file_id"] == "t1"
    assert str(tmp_path) not in str(taken.json())


@pytest.mark.parametrize(
    "reply",
    [raw("<html>"), json_body({"status": "ok"}), json_body({"result": {"uri": 3}})],
    ids=["page", "no result", "odd"],
)
def test_what_is_no_server_of_openviking_is_reported(server: ChatServer, reply: Reply) -> None:
    server.queue(reply)
    with pytest.raises(
        memory.MemoryBackendError, match="no server of OpenViking; check host and port"
    ):
        opened(server)


def test_a_login_in_the_url_is_not_displayed(server: ChatServer) -> None:
    server.queue(status_error(502))
    url = server.base_url.removesuffix("/v1").replace("//", "//me:the-password@")
    with pytest.raises(memory.MemoryBackendError) as caught:
        opened(server, url=url)
    assert "the-password" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (dropped(), "transport"),
        (status_error(502), "internal"),
        (json_body({"status": "error", "error": {"code": "UNAVAILABLE"}}), "transport"),
        (json_body({"status": "error", "error": {"code": "VLM_FAILED"}}), "extraction_failed"),
        (json_body([]), "internal"),
    ],
    ids=["dropped", "bad gateway", "unavailable", "model", "odd"],
)
def test_a_call_that_goes_wrong_is_a_failure(server: ChatServer, reply: Reply, kind: str) -> None:
    store = opened(server, api_key=KEY)
    server.queue(reply)
    failed = store.dispatch(memory.MemoryOpFind("x"))
    store.backend.close(store)
    assert isinstance(failed, memory.MemoryExecutionFailure)
    assert failed.kind == kind
    assert len(server.requests) == 2


def test_a_key_that_the_server_repeats_is_in_no_failure(server: ChatServer) -> None:
    store = opened(server, api_key=KEY)
    told = {"code": "UNAUTHENTICATED", "message": f"{KEY} is no key"}
    server.queue(json_body({"status": "error", "error": told}, status=401))
    failed = store.dispatch(memory.MemoryOpFind("x"))
    store.backend.close(store)
    assert isinstance(failed, memory.MemoryExecutionFailure)
    assert failed.kind == "unauthorized"
    assert KEY not in repr(failed)
    assert KEY not in repr(store)


ERROR_KEY = "secret-key-0123456789"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.NotFoundError("x"), "not_found"),
        (errors.InvalidURIError("x"), "invalid_uri"),
        (errors.InvalidArgumentError("x"), "invalid_uri"),
        (errors.FailedPreconditionError("x"), "invalid_uri"),
        (errors.PermissionDeniedError("x"), "unauthorized"),
        (errors.UnauthenticatedError("x"), "unauthorized"),
        (errors.UnimplementedError("x"), "unsupported"),
        (errors.NotInitializedError("x"), "unsupported"),
        (errors.DeadlineExceededError("x"), "timeout"),
        (TimeoutError("x"), "timeout"),
        (httpx.ReadTimeout("x"), "timeout"),
        (httpx.ConnectTimeout("x"), "timeout"),
        (errors.UnavailableError("x"), "transport"),
        (errors.AbortedError("x"), "transport"),
        (errors.ResourceExhaustedError("x"), "transport"),
        (ConnectionResetError("x"), "transport"),
        (httpx.ConnectError("x"), "transport"),
        (httpx.RemoteProtocolError("x"), "transport"),
        (errors.ProcessingError("x"), "extraction_failed"),
        (errors.EmbeddingFailedError("x"), "extraction_failed"),
        (errors.VLMFailedError("x"), "extraction_failed"),
        (errors.SessionExpiredError("x"), "store_closed"),
        (errors.AlreadyExistsError("x"), "internal"),
        (errors.ConflictError("x"), "internal"),
        (errors.InternalError("x"), "internal"),
        (errors.OpenVikingError("x"), "internal"),
        (KeyError("x"), "internal"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_each_error_has_its_kind(error: Exception, kind: str) -> None:
    failure = translate_error(error).failure
    assert failure.kind == kind
    assert failure.detail == type(error).__name__
    assert failure.message


def test_the_key_is_not_repeated() -> None:
    fault = translate_error(errors.UnauthenticatedError(f"the key {ERROR_KEY} is wrong"), ERROR_KEY)
    assert ERROR_KEY not in str(fault)
    assert ERROR_KEY not in fault.failure.message


@pytest.mark.parametrize(
    ("error", "is_busy"),
    [
        (errors.ConflictError("x"), True),
        (errors.AlreadyExistsError("x"), False),
        (errors.NotFoundError("x"), False),
    ],
    ids=["conflict", "exists", "missing"],
)
def test_only_conflicts_are_worth_a_wait(error: Exception, is_busy: bool) -> None:
    assert translate_error(error).is_busy is is_busy


def test_a_conflict_that_will_last_is_not_waited_for() -> None:
    lasting = errors.ConflictError("x")
    vars(lasting)["details"] = {"retryable": False}
    assert not translate_error(lasting).is_busy
