"""What was said stands in spans where that is asked for; verdicts, recall and metrics always."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.session.record import RecalledNote
from rath.session.traces import Span, spans_of, trace_runs
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import wait_until

KEY = "sk-proj-0123456789abcdef"


class Team(Workflow):
    """One agent with a tool."""

    def __init__(self) -> None:
        tool = FunctionTool("look", lambda *_: "found")
        provider = ScriptedClient([tool_call("look", {"at": KEY}), "the end"]).provider
        self.helper = Agent("be good", provider, [tool], system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.helper(session)


def by_name(spans: tuple[Span, ...]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def said(span: Any, name: str) -> Any:
    return json.loads(span.attributes[f"gen_ai.{name}"])


def test_messages_arguments_and_results_are_told_where_that_is_asked_for() -> None:
    out = Team()(Session.from_user_message("go")).synchronize()
    spans = by_name(spans_of(out, content=True))
    for name in ("invoke_workflow Team", "invoke_agent helper"):
        assert said(spans[name], "input.messages") == [
            {"role": "user", "parts": [{"type": "text", "content": "go"}]}
        ]
        assert said(spans[name], "output.messages") == [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "the end"}],
                "finish_reason": "stop",
            }
        ]
        assert said(spans[name], "system_instructions") == [{"type": "text", "content": "be good"}]
    roles = [each["role"] for each in said(spans["chat scripted"], "input.messages")]
    assert roles == ["user", "assistant", "tool"]
    assert said(spans["execute_tool look"], "tool.call.arguments") == {"at": "***"}
    assert "found" in spans["execute_tool look"].attributes["gen_ai.tool.call.result"]  # type: ignore[operator]  # a text


def test_secrets_are_hidden_in_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery-staple")
    user = Session.from_user_message(f"{KEY} and correct-horse-battery-staple")
    spans = repr(spans_of(run(["done"], user=user).synchronize(), content=True))
    assert "*** and ***" in spans
    assert KEY not in spans
    assert "correct-horse" not in spans


def test_the_root_is_told_live_with_input_and_output() -> None:
    exporter = InMemorySpanExporter()
    with trace_runs(SimpleSpanProcessor(exporter), content=True):
        Team()(Session.from_user_message("go")).synchronize()
    wait_until(lambda: len(exporter.get_finished_spans()) == 5)
    (root,) = [span for span in exporter.get_finished_spans() if "workflow" in span.name]
    assert said(root, "output.messages")[0]["parts"] == [{"type": "text", "content": "the end"}]


def test_a_verdict_is_an_event() -> None:
    user = Session.from_user_message("go").to("local")
    checked = run(["done"], user=user).synchronize()
    checked.check("tests", "true")
    (event,) = [event for span in spans_of(checked) for event in span.events]
    name, _, attributes = event
    assert name == "gen_ai.evaluation.result"
    assert attributes["gen_ai.evaluation.name"] == "tests"
    assert attributes["gen_ai.evaluation.score.label"] == "pass"
    assert "gen_ai.evaluation.explanation" not in attributes


def test_what_was_recalled_has_a_span() -> None:
    def recall(_: Session) -> list[RecalledNote]:
        return [RecalledNote("memory://n", "a note")]

    out = run(["done"], recall=recall).synchronize()
    (span,) = [span for span in spans_of(out) if span.name.startswith("retrieval")]
    (whole,) = [span for span in spans_of(out) if span.name.startswith("invoke_agent")]
    assert (span.parent, span.attributes["rath.recall.notes"]) == (whole.id, 1)
    assert "a note" not in repr(spans_of(out))
    assert "a note" in repr(spans_of(out, content=True))


def test_tokens_and_durations_are_measured() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    exporter = InMemorySpanExporter()
    with trace_runs(SimpleSpanProcessor(exporter), meter_provider=provider):
        Team()(Session.from_user_message("go")).synchronize()
    wait_until(lambda: len(exporter.get_finished_spans()) == 5)
    data: Any = reader.get_metrics_data()
    metrics = {
        metric.name: list(metric.data.data_points)
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    tokens = metrics["gen_ai.client.token.usage"]
    assert {point.attributes["gen_ai.token.type"] for point in tokens} == {"input", "output"}
    (duration,) = metrics["gen_ai.client.operation.duration"]
    assert duration.count == 2
    assert duration.attributes["gen_ai.operation.name"] == "chat"
    provider.shutdown()


def test_messages_of_a_run_inside_a_tool_call_come_from_its_store(tmp_path: Path) -> None:
    inside = Agent("be brief", ScriptedClient(["inner answer"]).provider, system_tools=False)
    tool = inside.as_tool("ask", "Asks.")
    client = ScriptedClient([tool_call("ask", {"task": "look"}), "the end"])
    outer = Agent("p", client.provider, [tool], system_tools=False)
    store = FileStore(tmp_path)
    out = outer.run(Session.from_user_message("go"), run="traced", store=store).synchronize()
    loaded = Session.load(out.id, store=store)
    answers = [
        [part["content"] for part in said(span, "output.messages")[0]["parts"]]
        for session, given in ((out, None), (loaded, None), (loaded, store))
        for span in spans_of(session, content=True, store=given)
        if span.name.startswith("chat")
        and span.parent is not None
        and "be brief" in str(span.attributes.get("gen_ai.system_instructions"))
    ]
    assert answers == [["inner answer"]] * 3
