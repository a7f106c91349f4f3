"""Spans say what the record says, live and later alike."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rath.errors import MissingExtra
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.loop import on_run_end
from rath.session.traces import Span, export_spans, spans_of, trace_runs
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE

RESOURCE = Resource({"service.name": "tests"})


def by_name(spans: Sequence[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def worked() -> Session:
    """A run of two model calls and a tool call, made by an agent of a workflow."""
    client = ScriptedClient([tool_call("look", {}), "done"])
    agent = Agent(
        "be good", client.provider, [FunctionTool("look", lambda *_: "x")], system_tools=False
    )

    class Team(Workflow):
        def __init__(self) -> None:
            self.helper = agent

        def forward(self, session: Session) -> Session:
            return self.helper(session)

    return Team()(Session.from_user_message("go")).synchronize()


def test_a_run_has_a_span_with_one_below_it_for_each_call() -> None:
    out = worked()
    spans = spans_of(out)
    root, complete = by_name(spans)["invoke_workflow Team"], by_name(spans)["invoke_agent helper"]
    assert [(span.name.split()[0], span.kind, span.parent) for span in spans] == [
        ("invoke_workflow", "internal", None),
        ("invoke_agent", "internal", root.id),
        ("chat", "client", complete.id),
        ("execute_tool", "internal", complete.id),
        ("chat", "client", complete.id),
    ]
    assert len({span.trace for span in spans}) == 1
    assert all(complete.start <= span.start <= span.end <= complete.end for span in spans[1:])
    # They bear the names of the conventions.
    assert complete.attributes["gen_ai.conversation.id"] == str(out.provenance.parent_ids[0])
    assert {span.attributes["gen_ai.workflow.name"] for span in spans} == {"Team"}
    assert complete.attributes["gen_ai.agent.name"] == "helper"
    tool = by_name(spans)["execute_tool look"].attributes
    assert (tool["gen_ai.operation.name"], tool["gen_ai.tool.name"]) == ("execute_tool", "look")
    chat: Mapping[str, Any] = spans[-1].attributes
    assert chat["gen_ai.operation.name"] == "chat"
    assert chat["gen_ai.response.finish_reasons"] == ("stop",)
    assert chat["rath.session.id"] == str(out.id)


def test_no_text_of_the_session_stands_in_a_span() -> None:
    client = ScriptedClient([tool_call("look", {"at": "secret-a"}), "secret-b"])
    tool = FunctionTool("look", lambda *_: "secret-c")
    out = run([], tool, user=Session.from_user_message("secret-d"), agent_provider=client.provider)
    assert "secret" not in repr(spans_of(out))


def test_a_run_inside_a_tool_call_stands_below_that_call() -> None:
    inner = ScriptedClient(["inner"]).provider

    def ask(session: Session, _: object) -> str | None:
        return Agent("sub", inner, system_tools=False)(session).text()

    spans = spans_of(run([tool_call("ask", {}), "done"], FunctionTool("ask", ask)))
    call = by_name(spans)["execute_tool ask"]
    nested = [span for span in spans if span.parent == call.id]
    assert [span.name for span in nested] == ["invoke_agent Agent"]
    assert len({span.trace for span in spans}) == 1


def test_a_failed_call_says_what_went_wrong() -> None:
    def broken(*_: object) -> str:
        raise ValueError("no")

    spans = by_name(spans_of(run([tool_call("look", {}), "x"], FunctionTool("look", broken))))
    assert spans["execute_tool look"].error == "tool_execution_exception"
    assert spans["execute_tool look"].attributes["error.type"] == "tool_execution_exception"


def test_what_is_exported_live_is_what_is_exported_later() -> None:
    live, later = Collected(), Collected()
    with trace_runs(live, resource=RESOURCE):
        out = worked()
        came = [live.spans.get(timeout=PATIENCE) for _ in range(5)]
    export_spans(spans_of(out), later, resource=RESOURCE)
    assert sorted(came) == sorted(later.spans.get() for _ in range(5))
    assert live.spans.empty()


class Collected(SpanProcessor):
    """Spans as they come, as text."""

    def __init__(self) -> None:
        self.spans: SimpleQueue[str] = SimpleQueue()

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.put(span.to_json())


def test_a_span_of_the_sdk_says_what_ours_says() -> None:
    exporter = InMemorySpanExporter()
    ours = spans_of(worked())
    export_spans(ours, SimpleSpanProcessor(exporter), resource=RESOURCE)
    made: tuple[ReadableSpan, ...] = exporter.get_finished_spans()
    assert [span.name for span in made] == [span.name for span in ours]
    for theirs, own in zip(made, ours, strict=True):
        assert dict(theirs.attributes or {}) == dict(own.attributes)
        assert theirs.start_time == int(own.start.timestamp() * 1e6) * 1000


def test_a_run_goes_on_from_the_one_before_it_by_a_link() -> None:
    class Two(Workflow):
        def __init__(self) -> None:
            self.first = Agent("a", ScriptedClient(["1"]).provider, system_tools=False)

        def forward(self, session: Session) -> Session:
            return self.first(session)

    before = run(["0"])
    spans = by_name(spans_of(Two()(before)))
    linked = spans["invoke_agent first"].links
    assert [span for _, span in linked] == [spans["invoke_agent loop"].id]


def test_who_watches_and_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    reports: SimpleQueue[Session] = SimpleQueue()

    def watch(_: Session) -> None:
        raise ValueError("a watcher")

    take_back = [on_run_end(watch), on_run_end(reports.put)]
    with caplog.at_level(logging.ERROR):
        out = run(["done"])
        assert reports.get(timeout=PATIENCE) is out
    for each in take_back:
        each()
    assert out.text() == "done"
    run(["more"]).synchronize()
    assert reports.empty()


def test_without_the_sdk_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match="opentelemetry-sdk"), trace_runs(None):  # type: ignore[arg-type]  # never used
        pass
