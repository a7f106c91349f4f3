"""W3C trace context: the caller's span that comes in, and the header that goes out.

OpenTelemetry is asked only where the program has loaded it; nothing here imports it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from uuid import UUID

_HEADER = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
_SPAN_BITS = (1 << 64) - 1


def ambient_span() -> str | None:
    """Return the `traceparent` of the span of OpenTelemetry around the current code, or None."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    flags = int(context.trace_flags)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def parse_traceparent(header: str | None) -> tuple[int, int] | None:
    """Return trace id and span id of a header, None for one that cannot be believed."""
    found = _HEADER.fullmatch(header or "")
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def span_id_of(ident: UUID) -> int:
    """Return the span id of an id in the record: 64 bits of it that are random or a hash."""
    return ident.int & _SPAN_BITS or 1


def traceparent(trace: UUID, span: UUID, caller: str | None) -> str:
    """Return the header that names a span of ours.

    Args:
        trace: The outermost call, whose id is that of the trace where nobody called it.
        span: The id of the span in the record.
        caller: The header of the caller's span, whose trace goes on.
    """
    known = parse_traceparent(caller)
    trace_id = trace.int or 1 if known is None else known[0]
    return f"00-{trace_id:032x}-{span_id_of(span):016x}-01"


_current: Callable[[], str | None] = lambda: None  # noqa: E731  # replaced where spans are known
_n_exporting = 0


def provide_span(current: Callable[[], str | None]) -> None:
    """Say who knows the `traceparent` of the span around the current code."""
    global _current  # one for the process
    _current = current


@contextmanager
def exporting_spans() -> Generator[None]:
    """Name spans of ours to others inside, since they are exported there."""
    global _n_exporting  # known to the whole process
    _n_exporting += 1
    try:
        yield
    finally:
        _n_exporting -= 1


def outgoing_traceparent() -> str | None:
    """Return the header for a request to somebody else, None where no spans are exported.

    Where none are but the caller has a span, that one is named.
    """
    return (_current() if _n_exporting else None) or ambient_span()
