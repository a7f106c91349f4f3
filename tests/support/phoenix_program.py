"""Sends the spans of a small workflow to a Phoenix on loopback; run in the environment of Phoenix.

The only argument is the address of the server. The trace id of the caller's span is printed.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from rath import tool
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.traces import trace_runs
from rath.testing import ScriptedClient, tool_call


@tool
def look() -> str:
    """Look around."""
    return "a harbour"


class Team(Workflow):
    """One agent with a tool."""

    def __init__(self) -> None:
        script = ScriptedClient([tool_call("look", {}), "I saw a harbour."])
        self.scout = Agent("You look around.", script.provider, [look], system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.scout(session)


def main() -> None:
    """Make one call below a span of the program's own, and send all spans."""
    # Only the environment of Phoenix has it.
    otlp: Any = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    processor = SimpleSpanProcessor(otlp.OTLPSpanExporter(endpoint=f"{sys.argv[1]}/v1/traces"))
    provider = TracerProvider()
    provider.add_span_processor(processor)
    with (
        trace_runs(processor, content=True),
        provider.get_tracer("program").start_as_current_span("request") as caller,
    ):
        Team()(Session.from_user_message("What is there?")).synchronize()
    sys.stdout.write(f"{caller.get_span_context().trace_id:032x}\n")


if __name__ == "__main__":
    main()
