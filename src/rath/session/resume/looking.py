"""Looking at what is not as it was, before a run goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from rath._async.runtime import runtime
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.provider import Provider
from rath.session.resume.differences import (
    ResumeDifference,
    file_differences,
    provider_differences,
    require_as_careful,
    require_bound_tools,
    require_open_tools,
    tool_differences,
)
from rath.session.resume.going_on import GoingOn
from rath.session.resume.open_calls import own_operation
from rath.session.running.candidates import Candidate
from rath.session.running.executors import candidates_for
from rath.session.session import Session
from rath.session.tooling import Offer, SystemTools, Tool, tool_schemas, tool_table

__all__ = ["resume_differences"]

_log = logging.getLogger("rath.session.loop")


def resume_differences(
    session: Session,
    *,
    tools: Sequence[Tool] | None = None,
    system_tools: SystemTools = True,
    provider: Provider | None = None,
) -> tuple[ResumeDifference, ...]:
    """Return what is not as it was when the run of a session ended; a run that goes on logs it.

    Waits for the session, and opens its sandbox where it changed files.

    Args:
        session: One that waits, or any other whose run has ended.
        tools: The tools that it will be offered beside the built-in ones; None leaves them out.
        system_tools: Which built-in ones, where `tools` is given.
        provider: The model that will be asked; None leaves it out.

    Returns:
        Files that are not as the session left them, tools with another schema, and in what the
        model's provider is another one.
    """
    found: list[ResumeDifference] = list(file_differences(session))
    record = session.record
    made = own_operation(record, session.id)
    if made is not None and tools is not None:
        table = tool_table(tools, system_tools=system_tools)
        found += tool_differences(made, tool_schemas(table))
    if made is not None and provider is not None:
        (candidate, *_) = candidates_for(provider, None, None)
        found += provider_differences(record, made, candidate)
    return tuple(found)


def looked_at(
    before: GoingOn,
    tools: Sequence[RathLLMFunctionTool],
    candidate: Candidate,
    offers: Mapping[str, Offer],
) -> GoingOn:
    """Return where a run goes on, with what its tools and its provider differ in.

    Args:
        before: Where it goes on.
        tools: What the model is told of the tools.
        candidate: Who is asked.
        offers: The tools.

    Raises:
        ResumeMismatch: The tool of an open call is gone, or takes other arguments; or it is in
            any way another one than the one that somebody has allowed to be called, or answered;
            or it does not say any more that a call which was begun may be repeated.
    """
    require_open_tools(before, tools)
    require_bound_tools(before, offers)
    require_as_careful(before, offers)
    made = before.operation
    differences = (
        *tool_differences(made, tools),
        *provider_differences(before.body.record, made, candidate),
    )
    return replace(before, differences=differences)


async def warn_of_differences(before: GoingOn, snapshot: Session) -> None:
    """Log what is not as it was when a run goes on: once, and together."""
    files = await runtime().call_in_worker(partial(file_differences, snapshot))
    found = (*before.differences, *files)
    if found:
        _log.warning(
            "session %s goes on, and not all is as it was: %s",
            snapshot.id,
            "; ".join(map(str, found)),
        )
