"""OpenTelemetry spans from what sessions record, during a run or long afterwards."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit
from uuid import UUID

import rath
from rath.errors import MissingExtra
from rath.llm.endpoint import is_azure
from rath.llm.exchange import CallEvidence
from rath.session.chunk import ChunkTable, RowId
from rath.session.content import ToolFeedback
from rath.session.loop import on_run_end
from rath.session.operation import call_id
from rath.session.record import Entry, ModelCall, Operation, ToolRun
from rath.session.session import Session

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
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


Attributes = dict[str, Attribute]

_PARAMETERS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "temperature": ("gen_ai.request.temperature", (int, float)),
    "top_p": ("gen_ai.request.top_p", (int, float)),
    "max_tokens": ("gen_ai.request.max_tokens", (int,)),
    "max_completion_tokens": ("gen_ai.request.max_tokens", (int,)),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", (int, float)),
    "presence_penalty": ("gen_ai.request.presence_penalty", (int, float)),
    "seed": ("gen_ai.request.seed", (int,)),
    "n": ("gen_ai.request.choice.count", (int,)),
    "stream": ("gen_ai.request.stream", (bool,)),
}


def encode_operation(operation: Operation) -> Attributes:
    """Return what is said of a run as a whole."""
    said: Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": str(operation.session),
        "rath.operation": operation.kind,
        "rath.session.id": str(operation.session),
    }
    if operation.place.path:
        said["gen_ai.agent.name"] = operation.place.path.rpartition(".")[2]
        said["rath.place"] = f"{operation.place.path}#{operation.place.ordinal}"
    return said


def encode_call(call: ModelCall, operation: Operation) -> Attributes:
    """Return what is said of a model call."""
    evidence = call.evidence
    said: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_name(evidence),
        "gen_ai.conversation.id": str(operation.session),
        "rath.call.purpose": call.purpose,
        "rath.call.attempts": len(evidence.attempts),
        "rath.session.id": str(operation.session),
    }
    counts = evidence.usage
    _put(said, "gen_ai.request.model", evidence.requested_model)
    _put(said, "gen_ai.response.model", evidence.served_model)
    _put(said, "gen_ai.response.id", evidence.response_id)
    _put(said, "gen_ai.usage.input_tokens", None if counts is None else counts.prompt_tokens)
    _put(said, "gen_ai.usage.output_tokens", None if counts is None else counts.completion_tokens)
    _put(said, "gen_ai.usage.cache_read.input_tokens", evidence.cached_tokens)
    _put(said, "gen_ai.usage.cache_creation.input_tokens", evidence.cache_write_tokens)
    _put(said, "rath.fallback_from", evidence.fallback_from)
    if evidence.finish_reason is not None:
        said["gen_ai.response.finish_reasons"] = (evidence.finish_reason,)
    if evidence.first_token_ms is not None:
        said["gen_ai.response.time_to_first_chunk"] = evidence.first_token_ms / 1000
    return {**said, **_parameters(evidence), **_server(evidence.endpoint), **_error(call)}


def encode_tool(run: ToolRun, operation: Operation) -> Attributes:
    """Return what is said of a tool call."""
    said: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": run.tool,
        "gen_ai.tool.call.id": run.call_id,
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": str(operation.session),
        "rath.tool.origin": run.origin,
        "rath.tool.status": run.status,
        "rath.session.id": str(operation.session),
    }
    if run.sandbox is not None:
        said["rath.sandbox.backend"] = run.sandbox.backend
        said["rath.sandbox.isolation"] = run.sandbox.isolation
    _put(said, "process.exit.code", run.exit_code)
    if run.status != "done":
        said["error.type"] = run.error_kind or run.status
    return said


def provider_name(evidence: CallEvidence) -> str:
    """Return the conventions' name of the provider, else that of its kind here."""
    if evidence.provider_kind == "openai" and is_azure(evidence.endpoint):
        return "azure.ai.openai"
    return evidence.provider_kind


def _parameters(evidence: CallEvidence) -> Attributes:
    said: Attributes = {}
    for name, (attribute, kinds) in _PARAMETERS.items():
        value = evidence.parameters.get(name)
        if type(value) in kinds and isinstance(value, bool | int | float):
            said[attribute] = value
    return said


def _server(endpoint: str | None) -> Attributes:
    parts = urlsplit(endpoint or "")
    said: Attributes = {}
    if parts.hostname:
        said["server.address"] = parts.hostname
        said["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    return said


def _error(call: ModelCall) -> Attributes:
    if call.status == "done":
        return {}
    tries = [attempt for attempt in call.evidence.attempts if attempt.status is not None]
    return {"error.type": str(tries[-1].status) if tries else call.status}


def _put(said: Attributes, name: str, value: Attribute | None) -> None:
    if value is not None:
        said[name] = value


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
        if operation is not None and isinstance(entry, ModelCall | ToolRun):
            of_runs[entry.operation].append(_span_of(entry, operation, calls))
    latest = {operation.session: operation for operation in operations.values()}
    made: list[Span] = []
    for run, operation in operations.items():
        inner = of_runs[run]
        if inner or operation.kind in ("loop", "compress"):
            made += [_of_run(operation, inner, latest), *inner]
    return tuple(sorted(made, key=lambda span: span.start))


def _of_run(operation: Operation, inner: Sequence[Span], known: dict[UUID, Operation]) -> Span:
    place = operation.place
    root = None if place.root is None else known.get(place.root)
    links = () if root is None or _is_in_call(operation) else ((_trace(root), root.operation),)
    failed = next((span.error for span in reversed(inner) if span.kind == "client"), None)
    name = place.path.rpartition(".")[2] if place.path else operation.kind
    return Span(
        name=f"invoke_agent {name}",
        kind="internal",
        trace=_trace(operation),
        id=operation.operation,
        parent=place.run if _is_in_call(operation) else None,
        links=links,
        start=min([operation.at, *(span.start for span in inner)]),
        end=max([operation.at, *(span.end for span in inner)]),
        attributes=encode_operation(operation),
        error=failed,
    )


def _span_of(entry: ModelCall | ToolRun, operation: Operation, calls: dict[RowId, UUID]) -> Span:
    if isinstance(entry, ModelCall):
        model = entry.evidence.requested_model or entry.evidence.served_model
        start, elapsed_ms = entry.evidence.started, entry.evidence.duration_ms
        return Span(
            name=f"chat {model}" if model else "chat",
            kind="client",
            trace=_trace(operation),
            id=entry.id,
            parent=operation.operation,
            start=start,
            end=start + timedelta(milliseconds=elapsed_ms),
            attributes=encode_call(entry, operation),
            error=(entry.evidence.error or entry.status) if entry.status != "done" else None,
        )
    return Span(
        name=f"execute_tool {entry.tool}",
        kind="internal",
        trace=_trace(operation),
        id=next((calls[row] for row in entry.rows if row in calls), entry.id),
        parent=operation.operation,
        start=_began(entry),
        end=entry.at,
        attributes=encode_tool(entry, operation),
        error=(entry.error_kind or entry.status) if entry.status != "done" else None,
    )


def _began(run: ToolRun) -> datetime:
    return run.at - timedelta(milliseconds=run.duration_ms)


def _trace(operation: Operation) -> UUID:
    return operation.place.trace or operation.place.run or operation.session


def _is_in_call(operation: Operation) -> bool:
    """Tell whether a run was made inside a tool call, which is what its place names as its run."""
    return operation.place.run not in (None, operation.place.trace)


def _calls_of_rows(table: ChunkTable) -> dict[RowId, UUID]:
    """Return by the row of its result which tool call it was; results stand in call order."""
    found: dict[RowId, UUID] = {}
    turn, index = None, 0
    for row in table:
        if isinstance(row.content, ToolFeedback):
            if turn is not None and row.id is not None:
                found[row.id] = call_id(turn.session, turn.index, index)
            index += 1
        else:
            turn, index = row.id, 0
    return found


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
    make = _Maker(resource)
    for span in spans:
        processor.on_end(make.readable(span))


class _Maker:
    """Makes spans of the SDK."""

    def __init__(self, resource: Resource | None) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415  # the optional SDK
            from opentelemetry.sdk import resources  # noqa: PLC0415
            from opentelemetry.sdk import trace as sdk  # noqa: PLC0415
            from opentelemetry.sdk.util import instrumentation  # noqa: PLC0415
        except ImportError as exc:
            raise MissingExtra("otel", "exporting spans") from exc
        self._trace, self._sdk = trace, sdk
        self._resource = resource or resources.Resource.create()
        self._scope = instrumentation.InstrumentationScope("rath", rath.__version__)

    def readable(self, span: Span) -> ReadableSpan:
        trace = self._trace
        kinds = {"client": trace.SpanKind.CLIENT, "internal": trace.SpanKind.INTERNAL}
        code = trace.StatusCode.UNSET if span.error is None else trace.StatusCode.ERROR
        return self._sdk.ReadableSpan(
            name=span.name,
            context=self._context(span.trace, span.id),
            parent=None if span.parent is None else self._context(span.trace, span.parent),
            resource=self._resource,
            attributes=dict(span.attributes),
            links=[trace.Link(self._context(*link)) for link in span.links],
            kind=kinds[span.kind],
            status=trace.Status(code, span.error),
            start_time=int(span.start.timestamp() * 1e6) * 1000,
            end_time=int(span.end.timestamp() * 1e6) * 1000,
            instrumentation_scope=self._scope,
        )

    def _context(self, trace_id: UUID, span_id: UUID) -> SpanContext:
        flags = self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED)
        # A span id has 64 bits, never all zero: those of a UUID that are random or a hash.
        short = span_id.int & ((1 << 64) - 1) or 1
        return self._trace.SpanContext(trace_id.int or 1, short, False, flags)


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
