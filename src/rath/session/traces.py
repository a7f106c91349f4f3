"""OpenTelemetry spans from what sessions record, during a run or long afterwards."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit
from uuid import UUID

import rath
from rath._core.dataclasses import dataclass
from rath.errors import MissingExtra
from rath.llm.credentials import is_azure
from rath.session.chunk import ChunkTable, RowId
from rath.session.content import ToolFeedback
from rath.session.loop import on_run_end
from rath.session.operation import call_id
from rath.session.record import Entry, ModelCall, Operation, ToolRun
from rath.session.session import Session

if TYPE_CHECKING:
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
    """The outermost workflow call, or the session, where there is none."""

    id: UUID
    parent: UUID | None
    links: tuple[tuple[UUID, UUID], ...] = ()
    """Trace and id of the spans of the runs that this one goes on from."""

    start: datetime
    end: datetime
    attributes: Mapping[str, Attribute]
    """By the names of the semantic conventions for generative AI."""

    error: str | None = None
    """What went wrong, None where nothing did."""


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


def spans_of(session: Session) -> tuple[Span, ...]:
    """Return the spans of all runs that the record of a session tells, oldest first; waits for it.

    Those of its ancestors are among them. A run has a span, and below it one for each model call
    and each tool call; a run inside a tool call stands below that one.
    """
    return _spans(tuple(session.record), session.chunk_table, None)


def own_spans(session: Session) -> tuple[Span, ...]:
    """Return the spans of the run that made a session, and no others; never waits.

    Of a run that failed they are those of what it had done.
    """
    return _spans(tuple(session.partial_record), session.partial_table, session.id)


def _spans(record: Sequence[Entry], table: ChunkTable, only: UUID | None) -> tuple[Span, ...]:
    operations = {
        entry.operation: entry
        for entry in record
        if isinstance(entry, Operation) and only in (None, entry.session)
    }
    calls = _calls_of_rows(table)
    of_runs: dict[UUID, list[Span]] = {run: [] for run in operations}
    for entry in record:
        operation = operations.get(entry.operation)
        if operation is not None and isinstance(entry, ModelCall):
            of_runs[entry.operation].append(_of_call(entry, operation))
        elif operation is not None and isinstance(entry, ToolRun):
            of_runs[entry.operation].append(_of_tool(entry, operation, calls))
    latest = {operation.session: operation for operation in operations.values()}
    spans: list[Span] = []
    for run, operation in operations.items():
        inner = of_runs[run]
        if inner or operation.kind in ("loop", "compress"):
            spans += [_of_run(operation, inner, latest), *inner]
    return tuple(sorted(spans, key=lambda span: span.start))


def _of_run(operation: Operation, inner: Sequence[Span], runs: dict[UUID, Operation]) -> Span:
    place = operation.place
    agent = place.path.rpartition(".")[2] if place.path else None
    root = None if place.root is None else runs.get(place.root)
    links = () if root is None or _is_in_call(operation) else ((_trace(root), root.operation),)
    attributes: dict[str, Attribute | None] = {
        "rath.operation": operation.kind,
        "gen_ai.agent.name": agent,
        "rath.place": f"{place.path}#{place.ordinal}" if place.path else None,
    }
    return Span(
        name=f"invoke_agent {agent or operation.kind}",
        kind="internal",
        trace=_trace(operation),
        id=operation.operation,
        parent=place.run if _is_in_call(operation) else None,
        links=links,
        start=min([operation.at, *(span.start for span in inner)]),
        end=max([operation.at, *(span.end for span in inner)]),
        attributes=_attributes("invoke_agent", operation, attributes),
        error=next((span.error for span in reversed(inner) if span.kind == "client"), None),
    )


def _of_call(call: ModelCall, operation: Operation) -> Span:
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
    if server.hostname:
        attributes["server.port"] = server.port or (443 if server.scheme == "https" else 80)
    return Span(
        name=f"chat {model}" if model else "chat",
        kind="client",
        trace=_trace(operation),
        id=call.id,
        parent=operation.operation,
        start=evidence.started,
        end=evidence.started + timedelta(milliseconds=evidence.duration_ms),
        attributes=_attributes("chat", operation, attributes),
        error=None if is_done else (evidence.error or call.status),
    )


def _of_tool(run: ToolRun, operation: Operation, calls: dict[RowId, UUID]) -> Span:
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
    return Span(
        name=f"execute_tool {run.tool}",
        kind="internal",
        trace=_trace(operation),
        id=next((calls[row] for row in run.rows if row in calls), run.id),
        parent=operation.operation,
        start=run.at - timedelta(milliseconds=run.duration_ms),
        end=run.at,
        attributes=_attributes("execute_tool", operation, attributes),
        error=problem,
    )


def _attributes(
    name: str, operation: Operation, attributes: Mapping[str, Attribute | None]
) -> Mapping[str, Attribute]:
    """Return the attributes that have a value, with those of every span."""
    session = str(operation.session)
    every = {"gen_ai.operation.name": name, "gen_ai.conversation.id": session}
    own = {key: value for key, value in attributes.items() if value is not None}
    return {**every, "rath.session.id": session, **own}


def _trace(operation: Operation) -> UUID:
    return operation.place.trace or operation.place.run or operation.session


def _is_in_call(operation: Operation) -> bool:
    """Tell whether a run was made inside a tool call, which is what its place names as its run."""
    return operation.place.run not in (None, operation.place.trace)


def _calls_of_rows(table: ChunkTable) -> dict[RowId, UUID]:
    """Return by the row of its result which tool call it was; results stand in call order."""
    call_ids: dict[RowId, UUID] = {}
    turn, index = None, 0
    for row in table:
        if isinstance(row.content, ToolFeedback):
            if turn is not None and row.id is not None:
                call_ids[row.id] = call_id(turn.session, turn.index, index)
            index += 1
        else:
            turn, index = row.id, 0
    return call_ids


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
        # A span id has 64 bits, never all zero: those of a UUID that are random or a hash.
        short = span_id.int & ((1 << 64) - 1) or 1
        return trace.SpanContext(trace_id.int or 1, short, False, flags)

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
                kind=kinds[span.kind],
                status=trace.Status(code, span.error),
                start_time=int(span.start.timestamp() * 1e6) * 1000,
                end_time=int(span.end.timestamp() * 1e6) * 1000,
                instrumentation_scope=scope,
            )
        )


@contextmanager
def trace_runs(processor: SpanProcessor, *, resource: Resource | None = None) -> Generator[None]:
    """Export the spans of every run that is submitted inside, each when it has ended.

    They are the same spans that `spans_of` makes of the session later. The processor is called on a
    worker thread.

    Args:
        processor: A `BatchSpanProcessor` with the exporter of your choice, for example; who made
            it shuts it down.
        resource: What the spans are about; by default what the SDK finds out by itself.

    Raises:
        MissingExtra: The SDK is not installed.
    """
    export_spans((), processor)  # says at once what is missing

    def export(session: Session) -> None:
        export_spans(own_spans(session), processor, resource=resource)

    take_back = on_run_end(export)
    try:
        yield
    finally:
        take_back()


__all__ = ["Span", "export_spans", "spans_of", "trace_runs"]
