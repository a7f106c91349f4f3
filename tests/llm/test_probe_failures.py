"""Whatever fails in a probe is told, and so is what other clients and models do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rath.errors import RateLimitError
from rath.llm import Provider, RathLLMChatRequest, RathLLMChatResponse, register_chat_client
from rath.llm.credentials import RequestTarget
from rath.llm.embedding import EmbeddingProvider
from rath.llm.local.server import LocalEndpoint, RathLocalChatClient
from rath.llm.openai import RathOpenAIChatClient
from rath.llm.probe import ProbeFinding, find_obstacle, probe_providers
from rath.llm.transport import Transport
from rath.llm.vlm import VLMProvider
from rath.testing import ScriptedClient, tool_call
from tests.support import chat_replies
from tests.support.asking import KEY
from tests.support.chat_replies import Gate, held
from tests.support.endpoints import OpenAIEndpoint, Serve, Servers
from tests.support.probing import MODEL, at, finding, probe, verdicts
from tests.support.waiting import at_a_deadline

STEPS = ["models", "answer", "tool_call", "stream", "schema"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that are closed after the test."""
    with Servers() as servers:
        yield servers.start


# ---------------------------------------------------------------- what fails


def test_a_refused_model_is_reported_with_its_origin_and_the_offer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(models=["gpt-8", "o-1"])
    server.queue(chat_replies.status_error(404, "no such model", code="model_not_found"))
    monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "gpt-9")
    report = probe(at(server, model=None))
    answer = finding(report, "answer")
    assert verdicts(report) == {"models": "works", "answer": "failed"}
    assert finding(report, "models").text == "offers 2 models, 'gpt-9' is not among them"
    assert "The model 'gpt-9' came from env OPENAI_DEFAULT_MODEL" in answer.text
    assert "Did you mean 'gpt-8'? It offers 'gpt-8', 'o-1'" in answer.text
    assert report.model_origin == "env OPENAI_DEFAULT_MODEL"
    assert not report.is_usable


def test_a_probe_without_an_answer_tells_the_endpoint_that_it_reached(serve: Serve) -> None:
    server = serve(lambda _: chat_replies.json_body({"choices": []}), models=[MODEL])
    endpoint = LocalEndpoint(server.base_url, "random-key", MODEL, Path("m.gguf"), "1")
    register_chat_client(
        "started-late", lambda one: RathLocalChatClient(one, serve=lambda _: endpoint)
    )
    report = probe(Provider(provider_kind="started-late", model=MODEL, retry_base_seconds=0.0))
    assert "without any choices" in finding(report, "answer").text
    assert report.endpoint == f"{server.base_url}/chat/completions"


def test_a_refused_key_ends_the_probe(serve: Serve) -> None:
    refused = chat_replies.status_error(401, f"bad key {KEY}")
    server = serve(lambda _: refused, models=refused)
    report = probe(at(server))
    assert verdicts(report) == {"models": "skipped", "answer": "failed"}
    assert "bad key ***" in finding(report, "answer").text
    assert KEY not in repr(report)


@pytest.mark.parametrize("status", [400, 500])
def test_a_model_that_is_not_listed_and_fails_otherwise_is_reported_both(
    serve: Serve, status: int
) -> None:
    refused = chat_replies.status_error(status, "something else")
    report = probe(at(serve(lambda _: refused, models=["other"])))
    assert verdicts(report) == {"models": "failed", "answer": "failed"}
    assert "does not offer the model" in finding(report, "models").text
    assert "something else" in finding(report, "answer").text


def test_what_is_noted_on_an_error_is_reported(serve: Serve) -> None:
    refused = chat_replies.status_error(404, "Not Found")
    report = probe(at(serve(lambda _: refused, models=[MODEL])))
    assert "so the path is probably not served there" in finding(report, "answer").text


def test_without_a_model_only_the_list_is_asked_for(serve: Serve) -> None:
    server = serve(OpenAIEndpoint(), models=["a", "b"])
    report = probe(at(server, model=None))
    assert verdicts(report) == {"models": "works", "answer": "skipped"}
    assert finding(report, "models").text == "offers 2 models, such as 'a', 'b'"
    assert report.model is None
    assert server.calls == []


def test_an_endpoint_that_is_not_there(serve: Serve) -> None:
    server = serve()
    server.close()
    report = probe(at(server))
    assert verdicts(report) == {"models": "skipped", "answer": "failed"}
    assert "Check that base_url is right" in finding(report, "answer").text


def test_a_silent_endpoint_costs_the_timeout_and_no_more(
    serve: Serve,
) -> None:
    server = serve(lambda _: held(chat_replies.completion("OK"), Gate()), models=[MODEL])

    def run_until(deadline: float) -> ProbeFinding:
        answer = finding(probe(at(server), timeout=deadline), "answer")
        assert answer.verdict == "failed"
        assert f"within {deadline:g} s" in answer.text
        return answer

    answer = at_a_deadline(run_until, lambda answer: bool(answer.calls))
    assert answer.calls[0].status in {"cancelled", "failed"}


@pytest.mark.parametrize("error", [TimeoutError("its own clock"), LookupError("no such thing")])
def test_what_a_client_of_the_program_raises_is_reported(error: Exception) -> None:
    answer = finding(probe(ScriptedClient([error]).provider), "answer")
    assert answer.verdict == "failed"
    assert type(error).__name__ in answer.text
    assert str(error.args[0]) in answer.text


def test_a_busy_moment_is_tried_again_once(serve: Serve) -> None:
    server = serve(OpenAIEndpoint(), models=[MODEL])
    server.queue(chat_replies.status_error(429, "slow down", retry_after=0))
    report = probe(at(server))
    assert verdicts(report) == dict.fromkeys(STEPS, "works")
    assert len(finding(report, "answer").calls[0].attempts) == 2


def test_a_failure_after_the_answer_is_no_lack(serve: Serve) -> None:
    server = serve(models=[MODEL])
    server.queue(chat_replies.completion("OK", usage=chat_replies.usage(9, 1)))
    server.queue(*[chat_replies.status_error(503, "overloaded")] * 6)
    report = probe(at(server))
    assert verdicts(report) == {
        "models": "works", "answer": "works", "tool_call": "failed", "stream": "failed",
        "schema": "failed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "text"),
    [
        (Provider(model="m"), "No API key found"),
        (Provider(model="m", provider_kind="smoke"), "unknown provider_kind"),
        (Provider(model="m", api_key=KEY, base_url="nowhere"), "base_url must begin with"),
    ],
)
def test_what_is_not_set_up_is_reported_without_a_call(provider: Provider, text: str) -> None:
    report = probe(provider)
    assert find_obstacle(provider) == report.findings[0].text
    assert find_obstacle(Provider(model="m", api_key=KEY)) is None
    assert verdicts(report) == {"setup": "failed"}
    assert text in report.findings[0].text
    assert report.endpoint is None


def test_the_key_of_a_client_that_repeats_it_stays_hidden() -> None:
    class Leaky:
        provider = Provider(model="m", api_key=KEY)

        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            raise KeyError(KEY)

    register_chat_client("leaky", lambda _: Leaky())
    report = probe(Provider(provider_kind="leaky", model="m", api_key=KEY))
    assert "KeyError: '***'" in finding(report, "answer").text


def test_an_adapter_that_fails_in_its_own_way_is_reported() -> None:
    class Odd(RathOpenAIChatClient):
        async def connect(self, target: RequestTarget) -> Transport:
            raise LookupError(f"no wire for {KEY}")

    register_chat_client("odd-adapter", Odd)
    report = probe(Provider(provider_kind="odd-adapter", model="m", api_key=KEY))
    assert verdicts(report) == {"models": "skipped", "answer": "failed"}
    assert finding(report, "answer").text == "LookupError: no wire for ***"


def test_a_kind_whose_factory_fails_is_reported() -> None:
    def broken(_: Provider) -> ScriptedClient:
        raise OSError("no such device")

    register_chat_client("broken-factory", broken)
    report = probe(Provider(provider_kind="broken-factory", model="m"))
    assert [each.text for each in report.findings] == ["no such device"]


def test_seconds_must_be_more_than_none() -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        probe_providers([], timeout=0)


# ---------------------------------------------------------------- clients of others, embeddings


def test_a_client_of_others_is_asked_as_far_as_it_goes() -> None:
    model = ScriptedClient(["OK", tool_call("report_word", {"word": "OK"}), "OK"])
    report = probe(model.provider)
    assert verdicts(report) == {
        "models": "skipped", "answer": "works", "tool_call": "works", "stream": "works",
    }  # fmt: skip
    assert "ScriptedClient has no way to ask for models" in finding(report, "models").text


def test_a_client_of_others_that_cannot_stream_or_fails() -> None:
    model = ScriptedClient(["OK", RateLimitError("too many", status=429)])

    class Whole:
        provider = Provider(model="m")

        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            return model.complete(req)

    register_chat_client("whole-only", lambda _: Whole())
    report = probe(Provider(provider_kind="whole-only", model="m"))
    assert verdicts(report) == {
        "models": "skipped", "answer": "works", "tool_call": "failed", "stream": "lacking",
    }  # fmt: skip
    assert finding(report, "stream").text == "Whole cannot stream"


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (tool_call("other", {}), "a tool that was not offered"),
        (tool_call("report_word", "{oops"), "no JSON object"),
    ],
)
def test_a_wrong_tool_call_is_lacking(turn: Any, text: str) -> None:
    report = probe(ScriptedClient(["OK", turn, "OK"]).provider)
    assert finding(report, "tool_call").verdict == "lacking"
    assert text in finding(report, "tool_call").text


def test_an_embedding_model_gives_one_vector(serve: Serve) -> None:
    vector = {"object": "embedding", "index": 0, "embedding": [0.6, 0.8, 0.0]}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    server = serve()
    server.queue(chat_replies.json_body({"data": [vector], "model": "e", "usage": usage}))
    report = probe(EmbeddingProvider(model="e", base_url=server.base_url, api_key=KEY))
    assert verdicts(report) == {"embedding": "works"}
    assert report.findings[0].text == "'e' gave a vector of 3 dimensions"
    assert len(report.calls) == 1


def test_a_model_that_sees_is_displayed_a_picture(serve: Serve) -> None:
    server = serve(OpenAIEndpoint())
    report = probe(VLMProvider(model=MODEL, base_url=server.base_url, api_key=KEY))
    assert verdicts(report) == {"picture": "works"}
    assert report.findings[0].text == f"{MODEL!r} answered, shown a picture"
    (request,) = server.calls
    body = request.json()
    assert body["max_tokens"] == 128
    url = body["messages"][0]["content"][1]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,iVBORw0KGgo")


def test_a_model_that_does_not_see(serve: Serve) -> None:
    server = serve(lambda _: chat_replies.status_error(400, "image_url is not supported"))
    report = probe(VLMProvider(model=MODEL, base_url=server.base_url, api_key=KEY))
    assert verdicts(report) == {"picture": "failed"}
    assert "image_url is not supported" in report.findings[0].text
    assert report.calls[0].status == "failed"
    assert probe(VLMProvider(model=MODEL)).findings[0].step == "setup"


def test_an_embedding_model_that_is_refused(serve: Serve) -> None:
    server = serve(lambda _: chat_replies.status_error(401, "who are you"))
    report = probe(EmbeddingProvider(model="e", base_url=server.base_url, api_key=KEY))
    assert verdicts(report) == {"embedding": "failed"}
    assert probe(EmbeddingProvider(model="e")).findings[0].step == "setup"
