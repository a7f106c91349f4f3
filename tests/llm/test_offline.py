"""While the switch is on nothing is sent, and what needs nobody answers as ever."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from rath._async.runtime import runtime
from rath.errors import OfflineError
from rath.llm import (
    EmbeddingProvider,
    Provider,
    RathOpenAIVLMClient,
    VLMProvider,
    embedding_client_for,
)
from rath.llm.offline import is_offline, offline
from rath.session.provider_builtin import DefaultSessionLoopExecutor
from rath.session.record import ModelCall
from rath.testing import ScriptedClient
from tests.support.asking import KEY, ask, exchange, openai_client
from tests.support.chat_server import ChatServer
from tests.support.images import picture
from tests.support.sessions import run


def chat(server: ChatServer) -> object:
    return exchange(openai_client(server))


def stream(server: ChatServer) -> object:
    return exchange(openai_client(server), on_delta=print)


def models(server: ChatServer) -> object:
    return runtime().run(openai_client(server).amodels, label="a test")


def embedding(server: ChatServer) -> object:
    provider = EmbeddingProvider(model="m", base_url=server.base_url, api_key=KEY)
    return embedding_client_for(provider).embed_one("a text")


def vlm(server: ChatServer) -> object:
    provider = VLMProvider(model="m", base_url=server.base_url, api_key=KEY)
    return RathOpenAIVLMClient(provider).describe(picture(b"x"), prompt="What?")


@pytest.mark.parametrize("call", [chat, stream, models, embedding, vlm])
def test_no_call_reaches_its_endpoint(
    server: ChatServer, call: Callable[[ChatServer], object]
) -> None:
    with offline(), pytest.raises(OfflineError, match=r"'m' at http://127.*rath\.offline") as told:
        call(server)
    assert told.value.model == "m"
    assert told.value.endpoint.startswith(server.base_url)
    assert server.requests == []


def test_the_run_keeps_the_refused_call_as_one_that_was_not_sent(server: ChatServer) -> None:
    with offline():
        out = run([], agent_provider=openai_client(server).provider)
        with pytest.raises(OfflineError):
            out.synchronize()
    (call,) = [entry for entry in out.partial_record if isinstance(entry, ModelCall)]
    assert (call.status, call.evidence.was_sent) == ("failed", False)
    assert "OfflineError" in str(call.evidence.error)


def test_a_client_of_somebody_else_is_taken_for_a_live_one() -> None:
    client = foreign()
    with offline(), pytest.raises(OfflineError, match=r"https://models\.example"):
        exchange(client, ask())
    assert exchange(client, ask()).response.primary_choice.message.content == "an answer"


def test_a_client_that_says_it_asks_nobody_answers() -> None:
    client = foreign()
    client.answers_offline = True
    with offline():
        assert exchange(client, ask()).response.primary_choice.message.content == "an answer"


def test_a_script_answers_directly_and_through_an_executor() -> None:
    client = ScriptedClient(["one", "two"])
    with offline():
        assert run([], agent_provider=client.provider).text() == "one"
        executor = DefaultSessionLoopExecutor(client)
        assert run([], agent_provider=Provider(model="m"), executor=executor).text() == "two"


def test_an_executor_around_a_live_client_is_refused() -> None:
    executor = DefaultSessionLoopExecutor(foreign())
    with offline(), pytest.raises(OfflineError):
        run([], agent_provider=Provider(model="m"), executor=executor).text()


def test_the_switch_holds_without_a_block_until_it_is_ended() -> None:
    switch = offline()
    try:
        assert is_offline()
        with switch:
            assert is_offline()
    finally:
        switch.end()
    switch.end()
    assert not is_offline()


def test_each_switch_is_taken_back_by_itself() -> None:
    with offline() as outer:
        with offline():
            outer.end()
            assert is_offline()
        assert not is_offline()


def test_the_error_survives_pickling() -> None:
    error = OfflineError("https://v.example", None)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.endpoint, copy.model) == (str(error), error.endpoint, None)


class Foreign:
    """A client that only knows `complete`."""

    answers_offline = False

    def __init__(self, inner: ScriptedClient, provider: Provider) -> None:
        self.inner = inner
        self.provider = provider
        self.complete = inner.complete


def foreign() -> Foreign:
    provider = Provider(model="m", base_url="https://models.example/v1")
    return Foreign(ScriptedClient(["an answer"]), provider)
