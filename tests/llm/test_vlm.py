"""Pictures described over real HTTP."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.errors import AuthenticationError, ModelNotFoundError, ProviderProtocolError
from rath.llm import RathOpenAIVLMClient, VLMProvider, evidence_of
from tests.support.asking import KEY, NoSleep
from tests.support.chat_replies import completion, json_body, status_error, usage
from tests.support.chat_server import ChatServer
from tests.support.images import picture

PICTURE = picture(b"rest")


def client_of(server: ChatServer, **fields: Any) -> RathOpenAIVLMClient:
    given: dict[str, Any] = {"model": "m", "base_url": server.base_url, "api_key": KEY, **fields}
    provider = VLMProvider(**given)
    return RathOpenAIVLMClient(provider, sleep=NoSleep())


def test_what_is_sent(server: ChatServer) -> None:
    server.queue(completion("a cat"))
    assert client_of(server).describe(PICTURE, prompt="What is it?") == "a cat"
    (request,) = server.requests
    assert (request.path, request.headers["authorization"]) == (
        "/v1/chat/completions",
        f"Bearer {KEY}",
    )
    url = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    assert request.json() == {
        "model": "m",
        "max_tokens": 512,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": url}},
                ],
            }
        ],
    }


def test_the_fields_of_the_provider_are_sent(server: ChatServer) -> None:
    server.queue(completion("a cat"))
    client_of(server, max_tokens=9, temperature=0.5).describe(PICTURE, prompt="?")
    sent = server.requests[0].json()
    assert (sent["max_tokens"], sent["temperature"]) == (9, 0.5)


@pytest.mark.parametrize(
    ("name", "mime"),
    [("a.png", "image/png"), ("a.JPG", "image/jpeg"), ("a.unknown", "application/octet-stream")],
)
def test_the_name_of_a_file_tells_its_type(
    server: ChatServer, tmp_path: Path, name: str, mime: str
) -> None:
    server.queue(completion("a cat"))
    (tmp_path / name).write_bytes(PICTURE)
    assert client_of(server).describe_path(tmp_path / name, prompt="?") == "a cat"
    (_, part) = server.requests[0].json()["messages"][0]["content"]
    assert part["image_url"]["url"].startswith(f"data:{mime};base64,")


def test_a_file_that_is_not_there(server: ChatServer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        client_of(server).describe_path(str(tmp_path / "gone.png"), prompt="?")


@pytest.mark.parametrize(
    "body",
    [
        {"id": "x", "choices": []},
        {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": None}}]},
    ],
    ids=["no choices", "no text"],
)
def test_an_answer_that_says_nothing(server: ChatServer, body: dict[str, Any]) -> None:
    server.queue(json_body(body))
    assert client_of(server).describe(PICTURE, prompt="?") == ""


def test_what_is_no_answer_is_an_error(server: ChatServer) -> None:
    server.queue(json_body({"detail": "hello"}))
    with pytest.raises(ProviderProtocolError, match="without any choices"):
        client_of(server).describe(PICTURE, prompt="?")


def test_no_bytes_are_no_picture(server: ChatServer) -> None:
    with pytest.raises(ValueError, match="no bytes"):
        client_of(server).describe(b"", prompt="?")
    assert server.requests == []


def test_a_failed_call_is_tried_again_and_hides_the_key(server: ChatServer) -> None:
    server.queue(status_error(503, "busy"), status_error(401, f"no {KEY}"))
    with pytest.raises(AuthenticationError) as caught:
        client_of(server).describe(PICTURE, prompt="?")
    assert len(server.requests) == 2
    assert KEY not in str(caught.value)


def test_a_refused_model_is_explained_once_the_tries_are_over(server: ChatServer) -> None:
    server.models = ["sees-1"]
    server.queue(status_error(404, "no such model", code="model_not_found"))
    with pytest.raises(ModelNotFoundError, match="It offers 'sees-1'") as caught:
        client_of(server, model="sees-2").describe(PICTURE, prompt="?")
    evidence = evidence_of(caught.value)
    assert evidence is not None
    (attempt,) = evidence.attempts
    assert "It offers" not in (attempt.error or "")
    assert "It offers 'sees-1'" in (evidence.error or "")


def test_what_is_known_of_a_call(server: ChatServer) -> None:
    server.queue(completion("a cat", usage=usage(90, 2)))
    client = client_of(server)
    exchange = runtime().run(
        lambda: client.adescribe(PICTURE, prompt="?", mime="image/png"), label="a test"
    )
    evidence = exchange.evidence
    assert (evidence.status, evidence.endpoint) == ("done", f"{server.base_url}/chat/completions")
    assert evidence.usage is not None
    assert evidence.usage.total_tokens == 92
    assert evidence.parameters == {"model": "m", "max_tokens": 512}


# ---------------------------------------------------------------- provider


def write_config(llm: dict[str, Any]) -> None:
    home = Path(os.environ["OPENRATH_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.json").write_text(json.dumps({"llm": llm}))
    (home / "config.json").chmod(0o600)


def test_it_reads_as_its_model_and_never_as_its_key() -> None:
    provider = VLMProvider(model="m", api_key=KEY)
    assert (str(provider), repr(provider), provider.max_tokens) == ("m", "m", 512)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": ""}, ValueError),
        ({"model": "m", "max_tokens": 0}, ValueError),
        ({"model": "m", "temperature": "hot"}, TypeError),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_is_refused(fields: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        VLMProvider(**fields)


def test_from_a_config() -> None:
    entry = {"model": "v", "base_url": "http://v.example/v1", "api_key": "k", "max_tokens": 7}
    write_config({"providers": {"v": entry}, "vlm_provider": "v"})
    for name in (None, "v"):
        provider = VLMProvider.from_config(name, temperature=0.5)
        assert (provider.model, provider.base_url, provider.api_key) == (
            "v",
            "http://v.example/v1",
            "k",
        )
        assert (provider.max_tokens, provider.temperature) == (7, 0.5)


def test_a_provider_for_chat_never_stands_in() -> None:
    write_config({"providers": {"c": {"model": "c"}}, "default_provider": "c"})
    with pytest.raises(KeyError, match="vlm_provider"):
        VLMProvider.from_config()


def test_an_entry_without_a_model() -> None:
    write_config({"providers": {"v": {}}, "vlm_provider": "v"})
    with pytest.raises(KeyError, match=r"'v' of llm\.providers names no model"):
        VLMProvider.from_config()
    assert VLMProvider.from_config(model="m").model == "m"


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="'q'"):
        VLMProvider.from_config("q")


def test_no_key() -> None:
    with pytest.raises(ValueError, match="No API key for VLMProvider"):
        RathOpenAIVLMClient(VLMProvider(model="m"))


def test_a_key_of_the_environment(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    server.queue(completion("a cat"))
    client = RathOpenAIVLMClient(VLMProvider(model="m"), sleep=NoSleep())
    assert client.describe(PICTURE, prompt="?") == "a cat"
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
