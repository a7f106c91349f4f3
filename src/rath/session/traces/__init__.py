"""Spans of OpenTelemetry, made from what sessions record, during a run or long afterwards."""

from __future__ import annotations

from rath.session.traces.live import trace_runs
from rath.session.traces.otel import export_spans
from rath.session.traces.span import Span
from rath.session.traces.spans import spans_of

__all__ = ["Span", "export_spans", "spans_of", "trace_runs"]
