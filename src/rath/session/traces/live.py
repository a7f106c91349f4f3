"""Spans of runs while a program goes on: those of each run as soon as it has ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rath.session.ended import on_run_end
from rath.session.session import Session
from rath.session.traces.otel import export_spans
from rath.session.traces.spans import own_spans

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor


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
