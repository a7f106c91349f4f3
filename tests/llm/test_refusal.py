"""Refused models: what the endpoint offers instead, and names that may mean the same."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath import flow
from rath._async.runtime import runtime
from rath.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    ProviderConnectionError,
    ProviderError,
    ProviderServerError,
    ProviderStatusError,
)
from rath.llm import Provider, evidence_of
from rath.llm.credentials import RequestTarget
from rath.llm.errors import explain_refusal, may_mean_the_same, near_model, status_error
from rath.session import Session, run_session_loop
from tests.support import chat_replies as replies
from tests.support.asking import KEY, ask, exchange, openai_client
from tests.support.chat_server import ChatServer
from tests.support.targets import request_target
from tests.support.virtual_time import run_virtually
from tests.support.waiting import at_a_deadline

ASKED = request_target(model="gpt-9", model_from="env OPENAI_DEFAULT_MODEL", secret=KEY)


def explain(
    error: ProviderStatusError, *offered: str, failing: Exception | None = None
) -> ProviderStatusError:
    async def list_models(_: RequestTarget) -> Sequence[str]:
        if failing is not None:
            raise failing
        return offered

    return asyncio.run(explain_refusal(error, ASKED, list_models))


# ---------------------------------------------------------------- what a refusal says


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (404, "Not Found", None),
        (404, "The model `gpt-9` does not exist", "model_not_found"),
        (400, "gpt-9 is not a valid model ID", None),
        (400, "no", "model_not_found"),
        (403, "Project does not have access to model `gpt-9`", "model_not_found"),
        (422, "Unknown Model", None),
    ],
)
def test_a_name_that_is_not_offered_is_not_found(
    status: int, message: str, code: str | None
) -> None:
    error = status_error(ASKED, status, message, code=code)
    explained = explain(error, "gpt-8", "o-1")
    assert isinstance(explained, ModelNotFoundError)
    assert (explained.model, explained.offered) == ("gpt-9", ("gpt-8", "o-1"))
    assert (explained.status, explained.code) == (status, code)
    assert explained.endpoint == "http://h/v1"


def test_the_text_holds_the_answer_the_origin_a_near_name_and_the_offer() -> None:
    text = str(explain(status_error(ASKED, 404, "no such model."), "gpt-8", "o-1"))
    assert text == (
        "http://h/v1 answered with status 404: no such model. The model 'gpt-9' came from env "
        "OPENAI_DEFAULT_MODEL; check that it and base_url exist there. The endpoint does not "
        "offer it. Did you mean 'gpt-8'? It offers 'gpt-8', 'o-1'"
    )


def test_where_no_name_is_near_another_vendor_may_be_meant() -> None:
    text = str(explain(status_error(ASKED, 404, "no"), "claude-x"))
    assert "Did you mean" not in text
    assert "Provider(provider_kind=...)" in text


def test_a_long_list_is_cut_in_the_text_alone() -> None:
    offered = tuple(f"m-{number:03}" for number in range(50))
    explained = explain(status_error(ASKED, 404, "no"), *offered)
    assert isinstance(explained, ModelNotFoundError)
    assert explained.offered == offered
    assert str(explained).endswith("'m-019' and 30 more")


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "this model takes no tools", InvalidRequestError),
        (403, "your key may not use this model", AuthenticationError),
        (404, "Not Found", ModelNotFoundError),
    ],
)
def test_a_name_that_is_offered_keeps_the_class_of_its_status(
    status: int, message: str, kind: type[ProviderStatusError]
) -> None:
    error = status_error(ASKED, status, message)
    assert explain(error, "gpt-9") is error
    assert type(error) is kind


PATH = (
    "the endpoint lists 'gpt-9', so the path is probably not served there; check base_url and "
    "provider_kind"
)
RIGHT = "the endpoint lists 'gpt-9'; the key may lack the right to it"


@pytest.mark.parametrize(
    ("status", "message", "code", "note"),
    [
        (404, "Not Found", None, PATH),
        (404, "The model `gpt-9` does not exist", None, "the endpoint lists 'gpt-9' all the same"),
        (404, "The model `gpt-9` does not exist", "model_not_found", RIGHT),
        (403, "not for this model", None, RIGHT),
    ],
)
def test_an_endpoint_that_lists_what_it_denies_is_quoted(
    status: int, message: str, code: str | None, note: str
) -> None:
    error = status_error(ASKED, status, message, code=code)
    assert explain(error, "gpt-9") is error
    assert error.__notes__ == [note]


@pytest.mark.parametrize(
    "message",
    [
        "gpt-9 is not a valid model ID",
        "Invalid model: gpt-9",
        "Model Not Exist",
        "No such model",
        "The model `gpt-9` does not exist or you have no access to it",
        "model 'gpt-9' not found",
        "The provided model identifier is invalid",
        "Not found the model gpt-9",
    ],
)
def test_words_of_an_unknown_model_are_known(message: str) -> None:
    error = status_error(ASKED, 400, message)
    assert isinstance(explain(error, "o-1"), ModelNotFoundError)


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "message",
    [
        "adaptive thinking is not supported on this model",
        "gpt-9 does not take the parameter temperature; the model is new",
        "This model does not support image input",
    ],
)
def test_another_reason_keeps_its_class_and_gets_a_note(status: int, message: str) -> None:
    error = status_error(ASKED, status, message)
    assert explain(error, "gpt-8") is error
    assert type(error) is InvalidRequestError
    assert error.__notes__ == [
        "the endpoint does not list the model 'gpt-9'. Did you mean 'gpt-8'?"
    ]


def test_a_list_that_takes_long_is_not_waited_for() -> None:
    waited: list[float] = []

    async def list_models(_: RequestTarget) -> Sequence[str]:
        try:
            await asyncio.sleep(60)
        finally:
            waited.append(asyncio.get_running_loop().time())
        return ["gpt-8"]

    error = status_error(ASKED, 404, "no")
    assert run_virtually(explain_refusal(error, ASKED, list_models)) is error
    assert waited == [3.0]


class Name(str):
    """A name that remembers which threads looked at its letters."""

    __slots__ = ()
    readers: ClassVar[set[str]] = set()

    def casefold(self) -> str:
        self.readers.add(threading.current_thread().name)
        return super().casefold()


def test_near_names_are_not_looked_for_on_the_loop() -> None:
    error = status_error(ASKED, 404, "no such model")
    assert isinstance(explain(error, Name("gpt-8")), ModelNotFoundError)
    assert Name.readers
    assert threading.current_thread().name not in Name.readers


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "temperature is too high"),
        (400, "This model's maximum context length is 8192 tokens"),
        (401, "no key for this model"),
        (429, "the model is busy"),
        (500, "the model crashed"),
    ],
)
def test_what_is_not_about_the_name_asks_for_no_list(status: int, message: str) -> None:
    error = status_error(ASKED, status, message)
    assert explain(error, failing=AssertionError("it was asked")) is error
    assert error.model is None


@pytest.mark.parametrize(
    "failing", [ProviderConnectionError("x"), ProviderServerError("x", status=500)]
)
def test_a_list_that_cannot_be_had_hides_nothing(failing: Exception) -> None:
    error = status_error(ASKED, 400, "unknown model")
    assert explain(error, failing=failing) is error
    assert "'gpt-9' came from env OPENAI_DEFAULT_MODEL" in str(error)


def test_an_empty_list_says_nothing() -> None:
    error = status_error(ASKED, 404, "no")
    assert explain(error) is error


# ---------------------------------------------------------------- an agent that is refused


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(models=["scripted-large", "scripted-model"]) as running:
        yield running


REFUSAL = replies.status_error(
    404, "The model `claude-opus` does not exist", code="model_not_found"
)


def from_call(server: ChatServer, _: pytest.MonkeyPatch) -> Provider:
    return Provider(model="claude-opus", base_url=server.base_url, api_key=KEY)


def from_env(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> Provider:
    monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "claude-opus")
    return Provider(base_url=server.base_url, api_key=KEY)


def from_config(server: ChatServer, _: pytest.MonkeyPatch) -> Provider:
    home = Path(os.environ["OPENRATH_HOME"])
    home.mkdir()
    entry = {"provider_kind": "openai", "model": "claude-opus", "base_url": server.base_url}
    path = home / "config.json"
    path.write_text(json.dumps({"llm": {"providers": {"p": entry}, "default_provider": "p"}}))
    path.chmod(0o600)
    return Provider.from_config(api_key=KEY)


@pytest.mark.parametrize(
    ("make", "origin"),
    [
        (from_call, "the call"),
        (from_env, "env OPENAI_DEFAULT_MODEL"),
        (from_config, "config {home}/config.json"),
    ],
    ids=["call", "env", "config"],
)
def test_an_agent_pinned_to_another_vendors_model_fails_at_once(
    server: ChatServer,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[ChatServer, pytest.MonkeyPatch], Provider],
    origin: str,
) -> None:
    server.queue(REFUSAL)
    agent = flow.Agent("You help.", provider=make(server, monkeypatch))
    with pytest.raises(ModelNotFoundError) as caught:
        agent(Session.from_user_message("hello")).text()
    text = str(caught.value)
    assert f"{server.base_url}/chat/completions" in text
    assert f"'claude-opus' came from {origin.format(home=os.environ['OPENRATH_HOME'])}" in text
    assert "'scripted-large', 'scripted-model'" in text
    assert caught.value.offered == ("scripted-large", "scripted-model")
    assert [request.method for request in server.requests] == ["POST", "GET"]


def test_the_sessions_provider_is_an_origin_too(server: ChatServer) -> None:
    server.queue(REFUSAL)
    session = Session.from_user_message("hello").to(
        "local", provider=Provider(model="claude-opus", base_url=server.base_url, api_key=KEY)
    )
    with pytest.raises(ModelNotFoundError, match="'claude-opus' came from the session"):
        run_session_loop(session, Session.from_agent_prompt("You help.")).text()


# ---------------------------------------------------------------- the question


def test_the_question_is_no_try_of_the_call(server: ChatServer) -> None:
    server.queue(REFUSAL)
    with pytest.raises(ModelNotFoundError) as caught:
        exchange(openai_client(server))
    evidence = evidence_of(caught.value)
    assert evidence is not None
    assert [attempt.status for attempt in evidence.attempts] == [404]
    assert evidence.error is not None
    assert "It offers 'scripted-large'" in evidence.error


def test_the_list_has_a_limit_of_its_own(server: ChatServer) -> None:
    server.models = replies.held(replies.model_list("a"), replies.Gate())

    def run_until(deadline: float) -> ProviderError:
        server.queue(REFUSAL)
        provider = Provider(timeout=deadline, retry_max_attempts=1)
        with pytest.raises(ProviderError) as caught:
            exchange(openai_client(server, provider=provider))
        return caught.value

    error = at_a_deadline(run_until, lambda error: isinstance(error, ModelNotFoundError))
    assert isinstance(error, ModelNotFoundError)
    assert "status 404: The model" in str(error)
    assert error.offered == ()


def test_the_question_ends_with_the_run(server: ChatServer) -> None:
    gate = replies.Gate()
    server.queue(REFUSAL)
    server.models = replies.held(replies.model_list("a"), gate)
    draft = openai_client(server).open_draft(ask(), streaming=False, provider_origin="call")
    running = runtime().submit(draft.asend, label="a test call")
    assert gate.reached.wait(50)
    runtime().cancel(running)
    assert gate.abandoned.wait(50)
    evidence = draft.last_evidence()
    assert evidence is not None
    assert evidence.status == "cancelled"


names = st.text("ab-/:@0*", max_size=8)


@given(names)
def test_a_name_means_itself(name: str) -> None:
    assert may_mean_the_same(name, name)


@given(names.filter(lambda name: "*" not in name), names, names)
def test_a_star_stands_for_anything(name: str, before: str, after: str) -> None:
    before, after = before.replace("*", ""), after.replace("*", "")
    assert may_mean_the_same(f"{before}{name}{after}", f"{before}*{after}")


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet-20250219"),
        ("claude-opus-4-0", "claude-opus-4-20250514"),
        ("claude-3-7-sonnet@20250219", "claude-3-7-sonnet"),
        ("gpt-4", "gpt-4-0613"),
        ("openai/gpt-4o:online", "openai/gpt-4o"),
        ("openai/gpt-4o:nitro", "openai/gpt-4o:free"),
        ("openai/gpt-oss-120b:some-vendor", "openai/gpt-oss-120b"),
        ("gpt-4o", "openai/gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("gemini-9", "models/gemini-9"),
        ("google/gemini-9", "models/gemini-9"),
        ("accounts/f/models/x", "models/x"),
        ("llama3", "llama3:latest"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("openai/gpt-4o", "openai/*"),
        ("gpt-4o", "openai/gpt-*"),
        ("anything", "*"),
    ],
)
def test_names_that_may_mean_the_same(name: str, listed: str) -> None:
    assert may_mean_the_same(name, listed)


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("gpt-9", "gpt-9-mini"),
        ("gpt-9-mini", "gpt-9"),
        ("gpt-9", "gpt-90"),
        ("gpt-9", "xgpt-9"),
        ("gpt-4o-2024-08-06", "gpt-4o-2024-05-13"),
        ("openai/gpt-9", "azure/gpt-9"),
        ("llama3", "llama3:70b"),
        ("llama3:8b", "llama3:latest"),
        ("ft:gpt-4o:org::1", "ft:gpt-4o:org::2"),
        ("claude-9", "openai/*"),
        ("ab", "ab*b"),
    ],
)
def test_names_that_mean_two_models(name: str, listed: str) -> None:
    assert not may_mean_the_same(name, listed)


def test_a_near_name_in_the_same_folder_comes_first() -> None:
    offered = ["a/model-12-instruct", "b/model-1-instruct", "model-12-instruct"]
    assert near_model("b/model-12-instruct", offered) == " Did you mean 'b/model-1-instruct'?"
    assert near_model("c/model-12-instruct", offered) == " Did you mean 'a/model-12-instruct'?"
    assert near_model("zzz", offered) == ""
