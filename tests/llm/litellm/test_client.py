"""The LiteLLM client: who is called, with which key, and what is not installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import rath.llm
from rath.errors import MissingExtra
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    chat_client_for,
    open_draft,
    registered_kinds,
)
from rath.llm.litellm import RathLiteLLMChatClient
from tests.support.asking import HELLO, KEY, ask
from tests.support.litellm import needs_litellm
from tests.support.machine import trust


@pytest.fixture
def _absent(monkeypatch: pytest.MonkeyPatch) -> None:
    # The import system takes None for "there is no such module".
    monkeypatch.setitem(sys.modules, "litellm", None)


@pytest.mark.usefixtures("_absent")
def test_without_the_library_the_error_says_what_to_install() -> None:
    with pytest.raises(MissingExtra, match=r'install .*"litellm') as caught:
        chat_client_for(Provider(provider_kind="litellm", model="openai/m"))
    assert caught.value.extra == "litellm"


@pytest.mark.usefixtures("_absent")
def test_without_the_library_the_public_name_is_none() -> None:
    assert rath.llm.RathLiteLLMChatClient is None


@needs_litellm
def test_with_the_library_the_public_name_is_the_client() -> None:
    assert rath.llm.RathLiteLLMChatClient is RathLiteLLMChatClient


def test_the_kind_is_registered() -> None:
    assert "litellm" in registered_kinds()


@needs_litellm
def test_values_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_API_KEY", KEY)
    monkeypatch.setenv("LITELLM_API_BASE", "http://gateway.example/v1/")
    monkeypatch.setenv("LITELLM_MODEL", "openai/env")
    route = RathLiteLLMChatClient(Provider()).target(None)
    assert (route.model, route.endpoint, route.secret) == (
        "openai/env",
        "http://gateway.example/v1",
        KEY,
    )
    assert dict(route.origins) == {
        "model": "env LITELLM_MODEL",
        "base_url": "env LITELLM_API_BASE",
        "api_key": "env LITELLM_API_KEY",
    }


@needs_litellm
def test_the_call_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_API_KEY", "other")
    monkeypatch.setenv("LITELLM_MODEL", "openai/env")
    client = RathLiteLLMChatClient(Provider(api_key=KEY, model="openai/own"))
    assert (client.target(None).model, client.target(None).secret) == ("openai/own", KEY)
    assert client.target("openai/asked").model == "openai/asked"


@needs_litellm
def test_no_key_and_no_endpoint_are_left_to_litellm() -> None:
    route = RathLiteLLMChatClient(Provider(model="ollama/m")).target(None)
    assert (route.endpoint, route.secret) == (None, "")
    assert dict(route.origins) == {"model": "call", "base_url": "default", "api_key": "default"}


@needs_litellm
def test_a_model_is_required() -> None:
    with pytest.raises(ValueError, match="model is required"):
        open_draft(RathLiteLLMChatClient(Provider()), ask(model=None))


@needs_litellm
def test_a_base_url_must_be_one() -> None:
    with pytest.raises(ValueError, match="came from call"):
        RathLiteLLMChatClient(Provider(base_url="gateway.example", model="m"))


@needs_litellm
def test_extra_arguments_cannot_hold_a_secret() -> None:
    client = RathLiteLLMChatClient(Provider(model="openai/m"))
    request = RathLLMChatRequest(messages=HELLO, extra_create_args={"api_key": KEY})
    with pytest.raises(ValueError, match="use Provider") as caught:
        open_draft(client, request)
    assert KEY not in str(caught.value)


@needs_litellm
@pytest.mark.parametrize("variable", ["LITELLM_API_KEY", "OPENAI_API_KEY"])
def test_a_project_s_endpoint_never_gets_a_key_of_the_environment(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENRATH_HOME")
    (tmp_path / ".openrath").mkdir()
    entry = {"provider_kind": "litellm", "base_url": "http://evil.example", "model": "openai/m"}
    config = tmp_path / ".openrath" / "config.json"
    config.write_text(json.dumps({"llm": {"providers": {"p": entry}, "default_provider": "p"}}))
    config.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    trust(config)
    monkeypatch.setenv(variable, KEY)
    with pytest.raises(ValueError, match=r"evil\.example") as caught:
        RathLiteLLMChatClient(Provider.from_config("p"))
    assert KEY not in str(caught.value)
    own = RathLiteLLMChatClient(Provider.from_config("p", api_key="word"))
    assert own.target(None).secret == "word"


@needs_litellm
def test_a_typed_answer_is_asked_for_by_a_tool() -> None:
    client = RathLiteLLMChatClient(Provider(model="openai/m"))
    assert {client.output_mode(with_tools=each) for each in (True, False)} == {"tool"}
