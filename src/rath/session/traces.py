"""OpenTelemetry spans from what sessions record, during a run or long afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit
from uuid import UUID, uuid5

import rath
from rath._core.dataclasses import dataclass
from rath._core.trace_context import (
    exporting_spans,
    outgoing_traceparent,
    parse_traceparent,
    span_id_of,
)
from rath.errors import MissingExtra, PersistenceError
from rath.llm.credentials import is_azure
from rath.session.chunk import ChunkTable
from rath.session.graph.recording import Edge
from rath.session.loading import load
from rath.session.log.ancestors import writers_of
from rath.session.log.store import SessionStore, open_store
from rath.session.loop import on_run_end, on_run_submit
from rath.session.operation import current_call, on_call_end
from rath.session.record import Entry, ModelCall, Operation, ToolRun, Verdict
from rath.session.session import Session
from rath.session.timeline import Interval, intervals_of, is_in_call, trace_of
from rath.session.trace_content import SpanContent, of_notes, of_report

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import SpanContext


Attribute = str | bool | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time in which an agent ran, a model was asked, or a tool worked.

    Ids follow from those in the record: spans of one session, made twice, are the same spans.
    """

    name: str
    kind: Literal["client", "internal"]
    trace: UUID
    """The trace of the caller's span, else the outermost workflow call, or the session."""

    id: UUID
    parent: UUID | None
    """A span of ours, or the caller's, whose id stands in the last 64 bits."""

    links: tuple[tuple[UUID, UUID], ...] = ()
    """Trace and id of the spans of the runs that this one goes on from."""

    start: datetime
    end: datetime
    attributes: Mapping[str, Attribute]
    """By the names of the semantic conventions for generative AI."""

    error: str | None = None
    """The error; None without one."""

    events: tuple[tuple[str, datetime, Mapping[str, Attribute]], ...] = ()
    """Name, time and attributes of what happened within, such as a verdict."""


_NUMBERS = (int, float)
_PARAMETERS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "temperature": ("temperature", _NUMBERS),
    "top_p": ("top_p", _NUMBERS),
    "max_tokens": ("max_tokens", (int,)),
    "max_completion_tokens": ("max_tokens", (int,)),
    "frequency_penalty": ("frequency_penalty", _NUMBERS),
    "presence_penalty": ("presence_penalty", _NUMBERS),
    "seed": ("seed", (int,)),
    "n": ("choice.count", (int,)),
    "stream": ("stream", (bool,)),
}
"""Parameters that the conventions know, by what they call them, and the types they may have."""


def spans_of(
    session: Session, *, content: bool = False, store: SessionStore | str | None = None
) -> tuple[Span, ...]:
    """Return the spans of all runs that the record of a session tells, oldest first; waits for it.

    Those of its ancestors are among them. Each outermost workflow call has a span, and below it its
    runs; a run has one for each model call and each tool call; a run inside a tool call stands
    below that one. Where the record names the caller's span, all of it stands below that.

    Args:
        session: Whose record is told.
        content: Tell what was said, too: messages, instructions, arguments, results and notes.
            Keys of vendors and secrets of the environment are hidden. Messages of a run inside a
            tool call are those of its session, where `store` has that.
        store: Where sessions of runs inside tool calls are, or the URL of that; by default where
            `session` is stored. Read with `content` alone.
    """
    record = tuple(session.record)
    inner = _inner_tables(session, record, store) if content else ()
    return _spans(record, session.chunk_table, _conversation(session), content=content, inner=inner)


def _inner_tables(
    session: Session, record: Sequence[Entry], store: SessionStore | str | None
) -> list[ChunkTable]:
    """Return the rows of runs inside tool calls, as far as they are stored; blocks."""
    known = [writer.store for writer in writers_of(session.core.body)]
    opened = open_store(store) if isinstance(store, str) else store or next(iter(known), None)
    if opened is None:
        return []
    operations = (entry for entry in record if isinstance(entry, Operation))
    inner = dict.fromkeys(each.session for each in operations if is_in_call(each))
    tables: list[ChunkTable] = []
    for each in inner:
        with suppress(PersistenceError):
            tables.append(load(opened, each).session.partial_table)
    return tables


def own_spans(session: Session, *, content: bool = False) -> tuple[Span, ...]:
    """Return the spans of the run that made a session, and the part of the call around it.

    Of a run that failed they are those of what it had done; never waits.
    """
    record, table = tuple(session.partial_record), session.partial_table
    return _spans(record, table, _conversation(session), session.id, content=content)


def _conversation(session: Session) -> UUID:
    """Return the first session of a conversation: the first parent of the first parent."""
    edge: Edge = session.core.as_parent()
    while edge.provenance is not None and edge.provenance.parents:
        edge = edge.provenance.parents[0]
    return edge.id


class _Context:
    """What spans of one record have in common."""

    def __init__(
        self, record: Sequence[Entry], conversation: UUID, content: SpanContent | None
    ) -> None:
        operations = [entry for entry in record if isinstance(entry, Operation)]
        self.conversation = conversation
        self.content = content
        self.verdicts = [entry for entry in record if isinstance(entry, Verdict)]
        self.latest = {operation.session: operation for operation in operations}
        self.callers: dict[UUID, tuple[int, int]] = {}
        # What goes on with a call belongs to the trace in which the call began.
        for operation in reversed(operations):
            known = parse_traceparent(operation.place.caller)
            if known is not None:
                self.callers[trace_of(operation)] = known

    def trace(self, operation: Operation) -> UUID:
        known = self.callers.get(trace_of(operation))
        return trace_of(operation) if known is None else UUID(int=known[0])

    def parent(self, interval: Interval) -> UUID | None:
        """Return the parent of a span; the caller's where it is the outermost one."""
        known = self.callers.get(interval.trace)
        if interval.parent is not None or known is None:
            return interval.parent
        return UUID(int=known[1])

    def events(
        self, operation: Operation
    ) -> tuple[tuple[str, datetime, Mapping[str, Attribute]], ...]:
        """Return the verdicts of an operation as events."""
        return tuple(
            ("gen_ai.evaluation.result", verdict.at, self._evaluation(verdict))
            for verdict in self.verdicts
            if verdict.operation == operation.operation
        )

    def _evaluation(self, verdict: Verdict) -> Mapping[str, Attribute]:
        attributes: dict[str, Attribute] = {
            "gen_ai.evaluation.name": verdict.name,
            "gen_ai.evaluation.score.label": "pass" if verdict.passed else "fail",
        }
        if verdict.error is not None:
            del attributes["gen_ai.evaluation.score.label"]
            attributes["error.type"] = verdict.error.partition(":")[0]
        if verdict.score is not None:
            attributes["gen_ai.evaluation.score.value"] = float(verdict.score)
        if self.content is not None:
            attributes |= of_report(verdict.report)
        return attributes

    def attributes(
        self, name: str, operation: Operation, attributes: Mapping[str, Attribute | None]
    ) -> Mapping[str, Attribute]:
        """Return the attributes that have a value, with those of every span."""
        # What runs inside a tool call is a conversation of its own, with the run around it.
        place = operation.place
        conversation = place.root if is_in_call(operation) and place.root else self.conversation
        every = {"gen_ai.operation.name": name, "gen_ai.conversation.id": str(conversation)}
        own = {key: value for key, value in attributes.items() if value is not None}
        workflow = place.path.partition(".")[0]
        if place.trace is not None and workflow and not workflow.startswith("call "):
            every["gen_ai.workflow.name"] = workflow
        return {**every, "rath.session.id": str(operation.session), **own}


def _spans(
    record: Sequence[Entry],
    table: ChunkTable,
    conversation: UUID,
    only: UUID | None = None,
    *,
    content: bool = False,
    inner: Sequence[ChunkTable] = (),
) -> tuple[Span, ...]:
    intervals = intervals_of(record, table, only)
    context = _Context(record, conversation, SpanContent(table, *inner) if content else None)
    failures: dict[UUID, str | None] = {}
    for each in intervals:
        if each.kind == "model" and isinstance(each.entry, ModelCall):
            failures[each.operation.operation] = _problem(each.entry)
    made = [_span(each, context, failures) for each in intervals]
    made += _retrievals(intervals, context)
    ordered = sorted(made, key=lambda span: span.start)
    return tuple(_with_messages(ordered) if content else ordered)


def _span(interval: Interval, context: _Context, failures: Mapping[UUID, str | None]) -> Span:
    if isinstance(interval.entry, ModelCall):
        return _of_call(interval, interval.entry, context)
    if isinstance(interval.entry, ToolRun):
        return _of_tool(interval, interval.entry, context)
    if interval.kind == "workflow":
        return _of_workflow(interval, context)
    return _of_run(interval, context, failures.get(interval.id))


def _retrievals(intervals: Sequence[Interval], context: _Context) -> list[Span]:
    """Return a span for each run that recalled notes, from its beginning to its first call."""
    starts = {each.id: each.start for each in intervals if each.kind == "run"}
    spans: dict[UUID, Span] = {}
    for each in intervals:
        call, operation = each.entry, each.operation
        if not isinstance(call, ModelCall) or call.seen is None or not call.seen.recalled:
            continue
        notes, run = call.seen.recalled, operation.operation
        attributes: dict[str, Attribute | None] = {"rath.recall.notes": len(notes)}
        if context.content is not None:
            attributes |= of_notes(notes)
        if run not in spans and run in starts:
            spans[run] = Span(
                name="retrieval memory",
                kind="internal",
                trace=context.trace(operation),
                id=uuid5(run, "retrieval"),
                parent=run,
                start=starts[run],
                end=each.start,
                attributes=context.attributes(
                    "retrieval", operation, {"gen_ai.data_source.id": "memory", **attributes}
                ),
            )
    return list(spans.values())


_INPUT = ("gen_ai.input.messages", "gen_ai.system_instructions")
_OUTPUT = ("gen_ai.output.messages",)


def _with_messages(spans: Sequence[Span]) -> list[Span]:
    """Return the spans with the first input and the last output inside of runs and workflows."""
    known = {span.id: span for span in spans}
    for operation in ("invoke_agent", "invoke_workflow"):
        for span in spans:
            if span.attributes["gen_ai.operation.name"] == operation:
                inner = [each for each in known.values() if each.parent == span.id]
                known[span.id] = _with_ends(span, inner)
    return [known[span.id] for span in spans]


def _with_ends(span: Span, inner: Sequence[Span]) -> Span:
    """Return a span with the input of the first and the output of the last inside of it."""
    talks = [each for each in inner if _OUTPUT[0] in each.attributes]
    if not talks:
        return span
    first, last = (
        min(talks, key=lambda each: each.start).attributes,
        max(talks, key=lambda each: each.end).attributes,
    )
    said = {name: first[name] for name in _INPUT if name in first}
    said |= {name: last[name] for name in _OUTPUT}
    return replace(span, attributes={**span.attributes, **said})


def _of_workflow(interval: Interval, context: _Context) -> Span:
    operation, name = interval.operation, interval.path
    attributes: dict[str, Attribute | None] = {"gen_ai.workflow.name": name}
    return Span(
        name=f"invoke_workflow {name}",
        kind="internal",
        trace=context.trace(operation),
        id=interval.id,
        parent=context.parent(interval),
        start=interval.start,
        end=interval.end,
        attributes=context.attributes("invoke_workflow", operation, attributes),
    )


def _of_run(interval: Interval, context: _Context, error: str | None) -> Span:
    operation = interval.operation
    place = operation.place
    agent = place.path.rpartition(".")[2] if place.path else None
    root = None if place.root is None else context.latest.get(place.root)
    is_linked = root is not None and not is_in_call(operation)
    attributes: dict[str, Attribute | None] = {
        "rath.operation": operation.kind,
        "gen_ai.agent.name": agent,
        "rath.place": f"{place.path}#{place.ordinal}" if place.path else None,
    }
    return Span(
        name=f"invoke_agent {agent or operation.kind}",
        kind="internal",
        trace=context.trace(operation),
        id=operation.operation,
        parent=context.parent(interval),
        links=((context.trace(root), root.operation),) if root and is_linked else (),
        start=interval.start,
        end=interval.end,
        attributes=context.attributes("invoke_agent", operation, attributes),
        error=error,
        events=context.events(operation),
    )


def _problem(call: ModelCall) -> str | None:
    return None if call.status == "done" else (call.evidence.error or call.status)


def _of_call(interval: Interval, call: ModelCall, context: _Context) -> Span:
    operation = interval.operation
    evidence, usage = call.evidence, call.evidence.usage
    model = evidence.requested_model or evidence.served_model
    is_done, reason, ttft = call.status == "done", evidence.finish_reason, evidence.first_token_ms
    is_hosted = evidence.provider_kind == "openai" and is_azure(evidence.endpoint)
    server = urlsplit(evidence.endpoint or "")
    refusals = [attempt.status for attempt in evidence.attempts if attempt.status is not None]
    attributes: dict[str, Attribute | None] = {
        "gen_ai.provider.name": "azure.ai.openai" if is_hosted else evidence.provider_kind,
        "rath.call.purpose": call.purpose,
        "rath.call.attempts": len(evidence.attempts),
        "gen_ai.request.model": evidence.requested_model,
        "gen_ai.response.model": evidence.served_model,
        "gen_ai.response.id": evidence.response_id,
        "gen_ai.usage.input_tokens": None if usage is None else usage.prompt_tokens,
        "gen_ai.usage.output_tokens": None if usage is None else usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": evidence.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": evidence.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": evidence.reasoning_tokens,
        "rath.fallback_from": evidence.fallback_from,
        "gen_ai.response.finish_reasons": None if reason is None else (reason,),
        "gen_ai.response.time_to_first_chunk": None if ttft is None else ttft / 1000,
        "server.address": server.hostname or None,
        "error.type": None if is_done else str(refusals[-1]) if refusals else call.status,
    }
    for name, (attribute, kinds) in _PARAMETERS.items():
        value = evidence.parameters.get(name)
        if type(value) in kinds and isinstance(value, bool | int | float):
            attributes[f"gen_ai.request.{attribute}"] = value
    if context.content is not None:
        attributes |= context.content.of_call(call, operation)
    if server.hostname:
        attributes["server.port"] = server.port or (443 if server.scheme == "https" else 80)
    return Span(
        name=f"chat {model}" if model else "chat",
        kind="client",
        trace=context.trace(operation),
        id=interval.id,
        parent=interval.parent,
        start=interval.start,
        end=interval.end,
        attributes=context.attributes("chat", operation, attributes),
        error=_problem(call),
    )


def _of_tool(interval: Interval, run: ToolRun, context: _Context) -> Span:
    operation = interval.operation
    problem = None if run.status == "done" else run.error_kind or run.status
    attributes: dict[str, Attribute | None] = {
        "gen_ai.tool.name": run.tool,
        "gen_ai.tool.call.id": run.call_id,
        "gen_ai.tool.type": "function",
        "rath.tool.origin": run.origin,
        "rath.tool.status": run.status,
        "rath.sandbox.backend": None if run.sandbox is None else run.sandbox.backend,
        "rath.sandbox.isolation": None if run.sandbox is None else run.sandbox.isolation,
        "process.exit.code": run.exit_code,
        "error.type": problem,
    }
    if context.content is not None:
        attributes |= context.content.of_tool(run)
    return Span(
        name=f"execute_tool {run.tool}",
        kind="internal",
        trace=context.trace(operation),
        id=interval.id,
        parent=interval.parent,
        start=interval.start,
        end=interval.end,
        attributes=context.attributes("execute_tool", operation, attributes),
        error=problem,
    )


def export_spans(
    spans: Iterable[Span], processor: SpanProcessor, *, resource: Resource | None = None
) -> None:
    """Hand finished spans to a span processor, as a tracer would at their ends.

    Args:
        spans: As `spans_of` gives them.
        processor: A `BatchSpanProcessor` with the exporter of your choice, for example.
        resource: What the spans are about; by default what the SDK finds out by itself.

    Raises:
        MissingExtra: The SDK is not installed.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415  # the optional SDK
        from opentelemetry.sdk import resources  # noqa: PLC0415
        from opentelemetry.sdk import trace as sdk  # noqa: PLC0415
        from opentelemetry.sdk.util import instrumentation  # noqa: PLC0415
    except ImportError as exc:
        raise MissingExtra("otel", "exporting spans") from exc
    about = resource or resources.Resource.create()
    scope = instrumentation.InstrumentationScope("rath", rath.__version__)
    kinds = {"client": trace.SpanKind.CLIENT, "internal": trace.SpanKind.INTERNAL}

    def context(trace_id: UUID, span_id: UUID) -> SpanContext:
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        return trace.SpanContext(trace_id.int or 1, span_id_of(span_id), False, flags)

    for span in spans:
        code = trace.StatusCode.UNSET if span.error is None else trace.StatusCode.ERROR
        processor.on_end(
            sdk.ReadableSpan(
                name=span.name,
                context=context(span.trace, span.id),
                parent=None if span.parent is None else context(span.trace, span.parent),
                resource=about,
                attributes=dict(span.attributes),
                links=[trace.Link(context(*link)) for link in span.links],
                events=[
                    sdk.Event(name, dict(attributes), int(at.timestamp() * 1e6) * 1000)
                    for name, at, attributes in span.events
                ],
                kind=kinds[span.kind],
                status=trace.Status(code, span.error),
                start_time=int(span.start.timestamp() * 1e6) * 1000,
                end_time=int(span.end.timestamp() * 1e6) * 1000,
                instrumentation_scope=scope,
            )
        )


class _CallSpan:
    """The span of an outermost workflow call, which ends when its last run has."""

    __slots__ = ("is_returned", "n_running", "spans")

    def __init__(self) -> None:
        self.n_running = 0
        self.is_returned = False
        self.spans: list[Span] = []


class _LiveExport:
    """Exports the spans of runs at their end, and those of workflow calls after them."""

    def __init__(self, export: Callable[[Sequence[Span]], None], *, content: bool) -> None:
        self._export = export
        self._content = content
        self._lock = threading.Lock()
        self._calls: dict[UUID, _CallSpan] = {}
        self._call_of: dict[UUID, UUID] = {}

    def submitted(self, session: Session) -> None:
        """Note in which workflow call a run was submitted."""
        call = current_call()
        if call is not None:
            with self._lock:
                self._call_of[session.id] = call
                self._calls.setdefault(call, _CallSpan()).n_running += 1

    def ended(self, session: Session) -> None:
        """Export the spans of a run."""
        spans = own_spans(session, content=self._content)
        roots = [span for span in spans if _is_root(span)]
        self._export([span for span in spans if not _is_root(span)])
        with self._lock:
            call = self._call_of.pop(session.id, None)
            found = None if call is None else self._calls.get(call)
            if found is not None:
                found.spans += roots
                found.n_running -= 1
        if call is not None:
            self._finish(call)

    def returned(self, call: UUID) -> None:
        """Note that a workflow call has returned; its runs may go on."""
        with self._lock:
            if call in self._calls:
                self._calls[call].is_returned = True
        self._finish(call)

    def close(self) -> None:
        """Wait for no return of a call any more."""
        for call in tuple(self._calls):
            self.returned(call)

    def _finish(self, call: UUID) -> None:
        with self._lock:
            found = self._calls.get(call)
            if found is None or found.n_running or not found.is_returned:
                return
            del self._calls[call]
        if found.spans:
            first = min(found.spans, key=lambda span: span.start)
            whole = replace(first, end=max(span.end for span in found.spans))
            self._export([_with_ends(whole, found.spans)])


_TOKEN_BUCKETS = [float(4**power) for power in range(14)]
_SECOND_BUCKETS = [0.01 * 2**power for power in range(14)]
"""Bounds of the histograms, as the conventions advise them."""

_DIMENSIONS = (
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model",
    "gen_ai.response.model", "gen_ai.workflow.name", "server.address", "server.port",
)  # fmt: skip
"""Attributes of a span by which metrics are told apart; none of them names a session."""


def _measuring(provider: MeterProvider) -> Callable[[Span], None]:
    """Return what records the metrics of a span of a model call."""
    meter = provider.get_meter("rath", rath.__version__)
    tokens = meter.create_histogram(
        "gen_ai.client.token.usage",
        unit="{token}",
        description="Number of input and output tokens used.",
        explicit_bucket_boundaries_advisory=_TOKEN_BUCKETS,
    )
    seconds = meter.create_histogram(
        "gen_ai.client.operation.duration",
        unit="s",
        description="GenAI operation duration.",
        explicit_bucket_boundaries_advisory=_SECOND_BUCKETS,
    )

    def measure(span: Span) -> None:
        said = span.attributes
        if said["gen_ai.operation.name"] != "chat":
            return
        told = {name: said[name] for name in _DIMENSIONS if name in said}
        for kind in ("input", "output"):
            number = said.get(f"gen_ai.usage.{kind}_tokens")
            if isinstance(number, int):
                tokens.record(number, {**told, "gen_ai.token.type": kind})
        failure = {"error.type": said["error.type"]} if "error.type" in said else {}
        seconds.record((span.end - span.start).total_seconds(), {**told, **failure})

    return measure


def _is_root(span: Span) -> bool:
    return span.attributes["gen_ai.operation.name"] == "invoke_workflow"


@contextmanager
def trace_runs(
    processor: SpanProcessor,
    *,
    resource: Resource | None = None,
    content: bool = False,
    meter_provider: MeterProvider | None = None,
) -> Generator[None]:
    """Export the spans of every run that is submitted inside, each when it has ended.

    They are the same spans that `spans_of` makes of the session later; that of a workflow call is
    exported when the call has returned and its last run has ended. The processor is called on a
    worker thread.

    Args:
        processor: A `BatchSpanProcessor` with the exporter of your choice, for example; who made
            it shuts it down.
        resource: What the spans are about; by default what the SDK finds out by itself.
        content: Tell what was said, too, as in `spans_of`.
        meter_provider: Gets the metrics of model calls: `gen_ai.client.token.usage` and
            `gen_ai.client.operation.duration`.

    Raises:
        MissingExtra: The SDK is not installed.
    """
    export_spans((), processor)  # says at once what is missing
    measure = None if meter_provider is None else _measuring(meter_provider)

    def export(spans: Sequence[Span]) -> None:
        export_spans(spans, processor, resource=resource)
        if measure is not None:
            for span in spans:
                measure(span)

    live = _LiveExport(export, content=content)
    with ExitStack() as stack, exporting_spans():
        stack.callback(live.close)
        stack.callback(on_run_submit(live.submitted))
        stack.callback(on_run_end(live.ended))
        stack.callback(on_call_end(live.returned))
        yield


def traceparent() -> str | None:
    """Return the W3C `traceparent` for a request that a tool makes to somebody else.

    Inside a tool call it names the span of that call, so that the spans of the other side stand
    below it; calls of MCP servers carry it by themselves. None where no spans are exported and no
    span of OpenTelemetry is around.
    """
    return outgoing_traceparent()


__all__ = ["Span", "export_spans", "spans_of", "trace_runs", "traceparent"]
