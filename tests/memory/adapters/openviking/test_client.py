"""What goes over the wire to a server, on one that only writes down what it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.memory import (
    MemoryBackendError,
    MemoryExecutionFailure,
    MemoryOpFind,
    MemoryOpResource,
    MemoryStore,
    MemoryStoreSpec,
    get,
)
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


def opened(server: ChatServer, **options: object) -> MemoryStore:
    url = server.base_url.removesuffix("/v1")
    given = {"url": url, **options}
    spec = MemoryStoreSpec(account_id="acme", user_id="bob", agent_id="helper", options=given)
    return get("openviking").open(spec)


def test_who_asks_is_told_by_what_was_given_alone(
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


def test_a_file_is_uploaded_and_its_path_is_not_told(server: ChatServer, tmp_path: Path) -> None:
    source = tmp_path / "notes.md"
    source.write_text("The kingfisher dives.")
    store = opened(server)
    store.dispatch(MemoryOpResource(str(source)))
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
def test_what_is_no_server_of_openviking_is_told(server: ChatServer, reply: Reply) -> None:
    server.queue(reply)
    with pytest.raises(MemoryBackendError, match="no server of OpenViking"):
        opened(server)


def test_a_login_in_the_url_is_not_shown(server: ChatServer) -> None:
    server.queue(status_error(502))
    url = server.base_url.removesuffix("/v1").replace("//", "//me:the-password@")
    with pytest.raises(MemoryBackendError) as caught:
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
    failed = store.dispatch(MemoryOpFind("x"))
    store.backend.close(store)
    assert isinstance(failed, MemoryExecutionFailure)
    assert failed.kind == kind
    assert len(server.requests) == 2


def test_a_key_that_the_server_repeats_is_in_no_failure(server: ChatServer) -> None:
    store = opened(server, api_key=KEY)
    told = {"code": "UNAUTHENTICATED", "message": f"{KEY} is no key"}
    server.queue(json_body({"status": "error", "error": told}, status=401))
    failed = store.dispatch(MemoryOpFind("x"))
    store.backend.close(store)
    assert isinstance(failed, MemoryExecutionFailure)
    assert failed.kind == "unauthorized"
    assert KEY not in repr(failed)
    assert KEY not in repr(store)
