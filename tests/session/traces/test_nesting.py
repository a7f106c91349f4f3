"""Spans nest below the caller's, over agents, tools, branches, items and resumed runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from rath import flow
from rath.flow import Agent, Workflow
from rath.mcp import MCPClient
from rath.serving import ServerOptions, TokenFile, asgi
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.session.traces import Span, export_spans, spans_of, trace_runs, traceparent
from rath.testing import ScriptedClient, tool_call
from tests.support.serving import listening
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import wait_until


def agent(*script: Any, tools: tuple[FunctionTool, ...] = ()) -> Agent:
    return Agent("be good", ScriptedClient(script).provider, list(tools), system_tools=False)


class Team(Workflow):
    """A helper with a tool that asks an agent, and a writer after it."""

    def __init__(self) -> None:
        sub = agent("inner")

        def answer(session: Session, _: object) -> str | None:
            return sub(session).text()

        ask = FunctionTool("ask", answer)
        self.helper = agent(tool_call("ask", {}), "helped", tools=(ask,))
        self.writer = agent("written")

    def forward(self, session: Session) -> Session:
        return self.writer(self.helper(session))


class Both(Workflow):
    """Two agents at the same time, and their answers together."""

    def __init__(self) -> None:
        self.left, self.right = agent("l"), agent("r")

    def forward(self, session: Session) -> Session:
        return self.left(session.fork()).merge(self.right(session.fork()))


def exported(spans: Sequence[Span]) -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    export_spans(spans, SimpleSpanProcessor(exporter))
    return exporter.get_finished_spans()


def own(span: ReadableSpan) -> SpanContext:
    """The ids of a span."""
    context = span.get_span_context()
    assert context is not None
    return context


def parents(spans: Sequence[ReadableSpan]) -> set[tuple[str, str | None]]:
    """Each span with the span below which it stands; None for one that is not among them."""
    names = {own(span).span_id: span.name for span in spans}
    return {
        (span.name, None if span.parent is None else names.get(span.parent.span_id))
        for span in spans
    }


TREE = {
    ("invoke_workflow Team", None),
    ("invoke_agent helper", "invoke_workflow Team"),
    ("chat scripted", "invoke_agent helper"),
    ("execute_tool ask", "invoke_agent helper"),
    ("invoke_agent Agent", "execute_tool ask"),
    ("chat scripted", "invoke_agent Agent"),
    ("invoke_agent writer", "invoke_workflow Team"),
    ("chat scripted", "invoke_agent writer"),
}


def test_a_workflow_an_agent_a_tool_and_its_agent_nest() -> None:
    out = Team()(Session.from_user_message("go")).synchronize()
    spans = exported(spans_of(out))
    assert parents(spans) == TREE
    assert len({own(span).trace_id for span in spans}) == 1


def test_all_of_it_stands_below_the_span_of_the_caller_live_and_later() -> None:
    exporter = InMemorySpanExporter()
    tracer = TracerProvider().get_tracer("tests")
    with (
        trace_runs(SimpleSpanProcessor(exporter)),
        tracer.start_as_current_span("request") as caller,
    ):
        out = Team()(Session.from_user_message("go")).synchronize()
    wait_until(lambda: len(exporter.get_finished_spans()) == len(spans_of(out)))
    out.save()
    for spans in (exporter.get_finished_spans(), exported(spans_of(Session.load(out.id)))):
        context = caller.get_span_context()
        assert {own(span).trace_id for span in spans} == {context.trace_id}
        (root,) = [span for span in spans if span.name == "invoke_workflow Team"]
        assert root.parent is not None
        assert root.parent.span_id == context.span_id
        assert parents(spans) == TREE


def test_without_a_caller_nothing_of_it_is_recorded() -> None:
    out = Team()(Session.from_user_message("go")).synchronize()
    assert "caller" not in Path(out.save()).read_text("utf-8")


def test_parallel_branches_stand_below_one_root() -> None:
    out = Both()(Session.from_user_message("go")).synchronize()
    assert parents(exported(spans_of(out))) == {
        ("invoke_workflow Both", None),
        ("invoke_agent left", "invoke_workflow Both"),
        ("invoke_agent right", "invoke_workflow Both"),
        ("chat scripted", "invoke_agent left"),
        ("chat scripted", "invoke_agent right"),
    }


def test_each_item_of_a_job_has_a_root_below_the_caller() -> None:
    exporter = InMemorySpanExporter()
    tracer = TracerProvider().get_tracer("tests")
    with (
        trace_runs(SimpleSpanProcessor(exporter)),
        tracer.start_as_current_span("batch") as caller,
    ):
        flow.map(agent("a", "b", "c"), "xyz", job="items", concurrency=2).synchronize()
    wait_until(lambda: len(exporter.get_finished_spans()) == 9)
    roots = [span for span in exporter.get_finished_spans() if "workflow" in span.name]
    assert len({own(span).span_id for span in roots}) == 3
    context = caller.get_span_context()
    assert {own(span).trace_id for span in roots} == {context.trace_id}
    assert {span.parent.span_id for span in roots if span.parent} == {context.span_id}


def test_a_resumed_call_is_of_the_trace_in_which_it_began() -> None:
    tracer = TracerProvider().get_tracer("tests")

    class Two(Workflow):
        def __init__(self, *script: Any) -> None:
            self.first, self.second = agent("1"), agent(*script)

        def forward(self, session: Session) -> Session:
            return self.second(self.first(session))

    with tracer.start_as_current_span("request") as caller, pytest.raises(ValueError, match="no"):
        Two(ValueError("no")).run(Session.from_user_message("go"), run="k").synchronize()
    out = Two("2").run(Session.from_user_message("go"), run="k").synchronize()
    spans = exported(spans_of(out))
    assert len({own(span).span_id for span in spans if "workflow" in span.name}) == 1
    assert {own(span).trace_id for span in spans} == {caller.get_span_context().trace_id}


def test_all_turns_of_a_conversation_have_its_id() -> None:
    first = run(["1"]).synchronize()
    second = run(["2"], user=first.merge(Session.from_user_message("more"))).synchronize()
    ids = {span.attributes["gen_ai.conversation.id"] for span in spans_of(second)}
    assert ids == {span.attributes["gen_ai.conversation.id"] for span in spans_of(first)}
    assert len(ids) == 1


def test_a_tool_names_its_span_to_others() -> None:
    seen: list[str | None] = []
    tool = FunctionTool("ask", lambda *_: seen.append(traceparent()))
    with trace_runs(Nothing()):
        out = run([tool_call("ask", {}), "done"], tool).synchronize()
    run([tool_call("ask", {}), "done"], tool).synchronize()
    (call,) = [span for span in exported(spans_of(out)) if span.name == "execute_tool ask"]
    assert seen == [
        f"00-{own(call).trace_id:032x}-{own(call).span_id:016x}-01",
        None,  # no spans are exported
    ]


def test_a_tool_server_over_http_reads_the_span_in_a_header(tmp_path: Path) -> None:
    seen: list[str] = []
    options = ServerOptions(
        tokens=TokenFile(tmp_path / "tokens.json"),
        store=FileStore(tmp_path),
        openai=False,
        a2a=False,
    )
    app = asgi({"helper": agent("helped")}, options)

    async def note_header(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if b"traceparent" in headers:
            seen.append(headers[b"traceparent"].decode())
        await app(scope, receive, send)

    with listening(note_header) as url, MCPClient(f"{url}/mcp/helper") as server:
        ask = FunctionTool("ask", lambda *_: str(server.call_tool("helper", {"message": "hi"})))
        with trace_runs(Nothing()):
            out = run([tool_call("ask", {}), "done"], ask).synchronize()
    (call,) = [span for span in exported(spans_of(out)) if span.name == "execute_tool ask"]
    assert seen == [f"00-{own(call).trace_id:032x}-{own(call).span_id:016x}-01"]


class Nothing(SpanProcessor):
    """A processor that drops all spans."""


def test_a_span_of_the_program_around_is_named_where_ours_are_not_exported() -> None:
    with TracerProvider().get_tracer("tests").start_as_current_span("request") as caller:
        context = caller.get_span_context()
        named = f"00-{context.trace_id:032x}-{context.span_id:016x}-"
        assert (traceparent() or "").startswith(named)
    assert traceparent() is None
