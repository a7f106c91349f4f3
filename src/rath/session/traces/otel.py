"""Spans handed to OpenTelemetry; the only module that knows its SDK."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

import rath
from rath.errors import MissingExtra
from rath.session.traces.span import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.trace import SpanContext


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
