"""Differences between a recorded run and its resume: tools, models, files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Literal

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.backend.abc import BackendSandbox
from rath.backend.effects import FileEffect
from rath.backend.results import FileContent
from rath.backend.tool_types import BackendToolFilesRead
from rath.errors import BackendError, ResumeMismatch
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.client import open_draft
from rath.llm.provider import Provider
from rath.session.calls.requests import ProviderCandidate, side_request
from rath.session.content import json_digest
from rath.session.files.changes import net_changes
from rath.session.files.session_files import SessionFiles
from rath.session.open_calls import REPEATABLE, own_operation
from rath.session.programs import ResumePoint
from rath.session.provider_builtin import candidates_for
from rath.session.record import ModelCall, Operation, Record, ToolRun
from rath.session.session import Session
from rath.session.tooling import (
    SystemTools,
    Tool,
    ToolOffer,
    tool_digest,
    tool_schemas,
    tool_table,
    without_sandbox_tools,
)


@dataclass(frozen=True, slots=True)
class FileDiffers:
    """A file that the session changed is not as the session left it."""

    path: str
    expected: str | None
    """sha256 of the content by the record, None for no file."""

    found: str | None
    """sha256 of the content that is there, None for no file."""

    def __str__(self) -> str:
        return f"file {self.path!r} is {_differs(self.expected, self.found)}"


@dataclass(frozen=True, slots=True)
class WorkspaceUnknown:
    """The files that the session changed cannot be looked at."""

    why: str

    def __str__(self) -> str:
        return f"the files that the session changed cannot be looked at: {self.why}"


@dataclass(frozen=True, slots=True)
class ToolDiffers:
    """A tool is offered otherwise than before, or now, or no more."""

    name: str
    expected: str | None
    """sha256 of its schema by the record, None where it was not offered."""

    found: str | None
    """sha256 of its schema now, None where it is not offered."""

    def __str__(self) -> str:
        return f"tool {self.name!r} is {_differs(self.expected, self.found)}"


@dataclass(frozen=True, slots=True)
class ProviderDiffers:
    """Another model, or the same one elsewhere, is asked."""

    what: Literal["provider_kind", "endpoint", "model"]
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        return f"{self.what} is {self.found!r}, not {self.expected!r}"


ResumeDifference = FileDiffers | WorkspaceUnknown | ToolDiffers | ProviderDiffers


def tool_differences(
    operation: Operation, tools: Iterable[RathLLMFunctionTool]
) -> tuple[ToolDiffers, ...]:
    """Return which tools are offered otherwise than by the operation of a run."""
    before, now = _digests(operation.tools), _digests(tools)
    names = sorted({*before, *now})
    differences = (ToolDiffers(name, before.get(name), now.get(name)) for name in names)
    return tuple(each for each in differences if each.expected != each.found)


def provider_differences(
    record: Record, operation: Operation, candidate: ProviderCandidate
) -> tuple[ProviderDiffers, ...]:
    """Return in what the model that is asked differs from the one that a run asked last."""
    calls = (entry for entry in reversed(record) if isinstance(entry, ModelCall))
    own = (call.evidence for call in calls if call.operation == operation.operation)
    before = next((evidence for evidence in own if evidence.fallback_from is None), None)
    if before is None:
        return ()
    facts = open_draft(candidate.client, side_request(candidate)).facts
    # A model on this machine has an endpoint once it is asked, and another one each time.
    endpoint = before.endpoint if facts.endpoint is None else facts.endpoint
    pairs = (
        ProviderDiffers("provider_kind", before.provider_kind, facts.provider_kind),
        ProviderDiffers("endpoint", before.endpoint, endpoint),
        ProviderDiffers("model", before.requested_model, facts.requested_model),
    )
    return tuple(each for each in pairs if each.expected != each.found)


def file_differences(session: Session) -> tuple[FileDiffers | WorkspaceUnknown, ...]:
    """Return which files are not as the session left them; opens its sandbox, and blocks.

    Nothing is opened for a session that changed none.
    """
    if not any(isinstance(entry, ToolRun) and entry.file_effects for entry in session.record):
        return ()
    try:
        changes = SessionFiles(session).changes(scope="whole")
        if not changes:
            return ()
        return tuple(_differing(session.core.placement.held(), changes))
    except (BackendError, RuntimeError) as exc:
        return (WorkspaceUnknown(str(exc)),)


def require_same_tools(
    before: ResumePoint, schemas: Iterable[RathLLMFunctionTool], offers: Mapping[str, ToolOffer]
) -> None:
    """Refuse to make open calls with other tools than they were asked of.

    Args:
        before: Where the run goes on.
        schemas: What the model is told of the tools.
        offers: The tools.

    Raises:
        ResumeMismatch: The tool of such a call is gone, or takes other arguments; or somebody was
            asked about the call, and schema, description or origin of its tool are others; or the
            call was begun and may be repeated by its record, and not by its tool, and nobody has
            decided about it.
    """
    recorded, now = _digests(before.operation.tools), _digests(schemas)
    for each in before.open_calls:
        name = each.call.name
        tool, offer = f"tool {name!r}", offers.get(name)
        mismatch = partial(_mismatch, before.operation, f"call {each}")
        if each.is_made and name in recorded and recorded[name] != now.get(name):
            raise mismatch(
                "{} is open, and its tool is another one",
                expected=f"{tool} with the schema {recorded[name][:12]}",
                found=f"schema {now[name][:12]}" if name in now else "no such tool",
            )
        bound = each.said.bound_to(each.index) if each.is_made else None
        if bound is not None and (offer is None or tool_digest(offer) != bound):
            raise mismatch(
                "somebody was asked about {}, and its tool is another one",
                expected=f"{tool} as it was: schema, description and origin {bound[:12]}",
                found="no such tool"
                if offer is None
                else f"{tool_digest(offer)[:12]}, {offer.origin}",
            )
        is_repeated = each.state == "begun" and each.decision is None
        if not is_repeated or offer is None or each.effects not in REPEATABLE:
            continue
        if offer.effects not in REPEATABLE:
            raise mismatch(
                "{} was begun, and may have taken effect; say what became of it with "
                "session.decide(...), or give its tool as it was",
                expected=f"{tool} with effects {each.effects!r}",
                found=repr(offer.effects),
            )


def _mismatch(
    operation: Operation, call: str, problem: str, *, expected: str, found: str
) -> ResumeMismatch:
    where = f"{operation.place.path}#{operation.place.ordinal}"
    return ResumeMismatch(problem.format(call), where=where, expected=expected, found=found)


def _digests(tools: Iterable[RathLLMFunctionTool]) -> dict[str, str]:
    return {tool.name: json_digest(tool.parameters) for tool in tools}


def _differing(sandbox: BackendSandbox, changes: Iterable[FileEffect]) -> Iterator[FileDiffers]:
    for change in net_changes(changes):
        gone = change.renamed_from
        if gone is not None and (digest := _digest_of(sandbox, gone)) is not None:
            yield FileDiffers(gone, None, digest)
        expected = None if change.after is None else change.after.digest
        digest = _digest_of(sandbox, change.path)
        if digest != expected:
            yield FileDiffers(change.path, expected, digest)


def _digest_of(sandbox: BackendSandbox, path: str) -> str | None:
    """Return the sha256 of a file, None where there is none that can be read."""
    content = sandbox.dispatch(BackendToolFilesRead(path, encoding=None))
    if not isinstance(content, FileContent):
        return None
    assert isinstance(content.data, bytes)
    return sha256(content.data).hexdigest()


def _differs(expected: str | None, found: str | None) -> str:
    """Return in what a file or tool is another one, by the digests of both."""
    if found is None:
        return "not there any more"
    if expected is None:
        return "there now, and was not before"
    return f"another one than before: {found[:12]}, not {expected[:12]}"


_log = logging.getLogger("rath.session.loop")


def resume_differences(
    session: Session,
    *,
    tools: Sequence[Tool] | None = None,
    system_tools: SystemTools = True,
    provider: Provider | None = None,
) -> tuple[ResumeDifference, ...]:
    """Return the differences from the end of a session's run; a run that goes on logs them.

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
    differences: list[ResumeDifference] = list(file_differences(session))
    record = session.record
    operation = own_operation(record, session.id)
    if operation is not None and tools is not None:
        table = tool_table(tools, system_tools=system_tools)
        if not session.core.placement.is_chosen:
            before = [tool.name for tool in operation.tools]
            table = without_sandbox_tools(table, recorded=before)
        differences += tool_differences(operation, tool_schemas(table))
    if operation is not None and provider is not None:
        (candidate, *_) = candidates_for(provider, None, None)
        differences += provider_differences(record, operation, candidate)
    return tuple(differences)


def check_compatible(
    before: ResumePoint,
    tools: Sequence[RathLLMFunctionTool],
    candidate: ProviderCandidate,
    offers: Mapping[str, ToolOffer],
) -> ResumePoint:
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
    require_same_tools(before, tools, offers)
    operation = before.operation
    differences = (
        *tool_differences(operation, tools),
        *provider_differences(before.body.record, operation, candidate),
    )
    return replace(before, differences=differences)


async def log_differences(before: ResumePoint, snapshot: Session) -> None:
    """Log what is not as it was when a run goes on: once, and together."""
    files = await runtime().call_in_worker(partial(file_differences, snapshot))
    differences = (*before.differences, *files)
    if differences:
        _log.warning(
            "session %s goes on, and not all is as it was: %s",
            snapshot.id,
            "; ".join(map(str, differences)),
        )
