"""A probe tells what an endpoint supports and what it does not, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rath.llm.probe import probe_providers
from tests.support import anthropic_replies, chat_replies
from tests.support.chat_replies import Gate, held
from tests.support.endpoints import AnthropicEndpoint, OpenAIEndpoint, Serve, Servers
from tests.support.probing import MODEL, at, finding, probe, verdicts

CLAUDE = anthropic_replies.MODEL
STEPS = ["models", "answer", "tool_call", "stream", "schema"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that are closed after the test."""
    with Servers() as servers:
        yield servers.start


# ---------------------------------------------------------------- what works


def test_an_endpoint_that_does_everything(serve: Serve) -> None:
    server = serve(OpenAIEndpoint(), models=["other", MODEL])
    report = probe(at(server))
    assert verdicts(report) == dict.fromkeys(STEPS, "works")
    assert report.is_usable
    assert report.endpoint == f"{server.base_url}/chat/completions"
    assert (report.model, report.model_origin) == (MODEL, "call")
    assert report.offered == ("other", MODEL)
    assert report.served_models == (MODEL,)
    assert report.usage is not None
    assert report.usage.total_tokens == 40
    assert len(report.calls) == len(server.calls) == 4


def test_the_other_dialect_is_asked_for_the_same(serve: Serve) -> None:
    server = serve(AnthropicEndpoint(), models=[CLAUDE])
    report = probe(at(server, provider_kind="anthropic", model=CLAUDE))
    assert verdicts(report) == dict.fromkeys(STEPS, "works")
    assert finding(report, "models").text == f"offers 1 model, {CLAUDE!r} among them"


def test_few_tokens_are_asked_for(serve: Serve) -> None:
    server = serve(OpenAIEndpoint(), models=[MODEL])
    probe(at(server, max_completion_tokens=4000))
    limits = [request.json()["max_completion_tokens"] for request in server.calls]
    assert limits == [16, 128, 16, 128]
    assert all("max_tokens" not in request.json() for request in server.calls)


def test_parameters_of_the_provider_are_sent_and_its_tools_are_not_forced(
    serve: Serve,
) -> None:
    server = serve(OpenAIEndpoint(), models=[MODEL])
    probe(at(server, temperature=0.5, tool_choice="none", n=3))
    bodies = [request.json() for request in server.calls]
    assert [body["temperature"] for body in bodies] == [0.5] * 4
    assert [body.get("tool_choice") for body in bodies] == [None, "required", None, None]
    assert all("n" not in body for body in bodies)


def test_a_model_that_refuses_so_few_tokens_gets_what_a_run_would_give(
    serve: Serve,
) -> None:
    server = serve(OpenAIEndpoint(least_tokens=64), models=[MODEL])
    report = probe(at(server, max_tokens=512))
    assert verdicts(report) == dict.fromkeys(STEPS, "works")
    assert [request.json()["max_tokens"] for request in server.calls] == [16, 512, 512, 512, 512]


def test_several_endpoints_are_asked_at_the_same_time(serve: Serve) -> None:
    gate = Gate()
    answer = chat_replies.completion("OK", usage=chat_replies.usage(9, 1))

    def slow(_: object) -> chat_replies.Reply:
        return held(answer, gate)

    def fast(_: object) -> chat_replies.Reply:
        gate.release()
        return answer

    first, second = serve(slow, models=[MODEL]), serve(fast, models=[MODEL])
    reports = probe_providers([at(first), at(second)], timeout=50.0)
    assert [finding(report, "answer").verdict for report in reports] == ["works", "works"]
    assert [report.endpoint for report in reports] == [
        f"{server.base_url}/chat/completions" for server in (first, second)
    ]


def test_the_adapter_that_asks_for_no_schema_is_asked_for_none(
    serve: Serve,
) -> None:
    server = serve(OpenAIEndpoint(), models=[MODEL])
    assert "schema" not in verdicts(probe(at(server, output_mode="tool")))
    assert len(server.calls) == 3


# ---------------------------------------------------------------- what is lacking


@pytest.mark.parametrize(
    ("endpoint", "step", "text"),
    [
        (OpenAIEndpoint(tools="ignores"), "tool_call", "takes no notice of tools"),
        (OpenAIEndpoint(tools="refuses"), "tool_call", "refuses tools: "),
        (OpenAIEndpoint(required="refuses"), "tool_call", 'but refuses tool_choice="required"'),
        (OpenAIEndpoint(streams="ignores"), "stream", "answers whole where a stream was asked"),
        (OpenAIEndpoint(streams="refuses"), "stream", "streaming is not supported"),
        (OpenAIEndpoint(stream_options="refuses"), "stream", '"stream_options": None'),
        (OpenAIEndpoint(schema="ignores"), "schema", "takes no notice of a JSON Schema"),
        (OpenAIEndpoint(schema="refuses"), "schema", 'Provider(output_mode="tool")'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_an_endpoint_does_not_support_is_named(
    serve: Serve, endpoint: OpenAIEndpoint, step: str, text: str
) -> None:
    report = probe(at(serve(endpoint, models=[MODEL])))
    assert verdicts(report) == dict.fromkeys(STEPS, "works") | {step: "lacking"}
    assert report.is_usable
    assert text in finding(report, step).text


def test_an_answer_that_is_cut_off_is_reported(serve: Serve) -> None:
    counts = chat_replies.usage(9, 1)
    cut = chat_replies.completion("I will", finish_reason="length", usage=counts)
    stream = chat_replies.text_stream("OK", counts=(9, 1))
    server = serve(models=[MODEL])
    server.queue(cut, cut, stream, cut)
    report = probe(at(server))
    assert finding(report, "answer").text.endswith("answered, cut off as asked")
    assert "cut off before it called" in finding(report, "tool_call").text
    assert "cut off before its JSON" in finding(report, "schema").text


def test_an_endpoint_that_counts_no_tokens(serve: Serve) -> None:
    report = probe(at(serve(OpenAIEndpoint(counts=False), models=[MODEL])))
    assert "without token counts" in finding(report, "answer").text
    assert "without token counts" in finding(report, "stream").text
    assert (report.usage, report.cost_usd) == (None, None)


@pytest.mark.parametrize("status", [404, 403, 405, 500])
def test_an_endpoint_without_a_list_of_models(serve: Serve, status: int) -> None:
    server = serve(OpenAIEndpoint(), models=chat_replies.status_error(status, "no list here"))
    report = probe(at(server))
    models = finding(report, "models")
    assert models.verdict == "lacking"
    assert models.text.startswith("lists no models: ")
    assert "no list here" in models.text
    assert report.offered == ()
    assert verdicts(report) == dict.fromkeys(STEPS, "works") | {"models": "lacking"}


def test_a_model_that_is_served_but_not_listed(serve: Serve) -> None:
    report = probe(at(serve(OpenAIEndpoint(), models=["other"])))
    assert finding(report, "models").verdict == "lacking"
    assert (
        finding(report, "models").text == f"does not list {MODEL!r}, which it serves all the same"
    )


@pytest.mark.parametrize(
    ("asked", "served", "verdict"),
    [
        ("gpt-9", "gpt-9-2026-10-01", "works"),
        ("vendor/gpt-9", "gpt-9", "works"),
        ("/models/gpt-9.gguf", "GPT-9", "works"),
        ("gpt-9-latest", "gpt-9-20261001", "works"),
        ("gpt-9", "gpt-9-mini", "lacking"),
        ("gpt-9", "gpt-9o", "lacking"),
    ],
)
def test_another_model_that_answers_is_named(
    serve: Serve, asked: str, served: str, verdict: str
) -> None:
    report = probe(at(serve(OpenAIEndpoint(model=served), models=[asked]), model=asked))
    answer = finding(report, "answer")
    assert answer.verdict == verdict
    assert repr(served) in answer.text
    assert report.served_models[0] == served
