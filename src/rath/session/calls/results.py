"""The result of a tool call, and the entry that the record has of it."""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path
from traceback import StackSummary, TracebackException, walk_tb
from typing import Any
from uuid import UUID

import rath
from rath._async.lanes import Key
from rath._async.runtime import runtime
from rath._async.workers import UserExit
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.text import cut_middle, valid_unicode
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.backend.start import WorkspaceStart
from rath.config.redaction import redact_content
from rath.session.bindings import Placement
from rath.session.calls.requests import INTERRUPTED
from rath.session.chunk import ChunkRow, RowId, tool_feedback_chunk
from rath.session.content import ResultText, ToolCall, TracebackInfo, encode_failure, full_blob
from rath.session.record import ToolRun, ToolStatus
from rath.session.tooling import InnerRun, Question, ToolOffer

_log = logging.getLogger("rath.session")

NOT_MADE = "the call was not made: the answer beside it used up the budget, and ended the run"
EDITED = "somebody changed the arguments of this call; it was made with these"
CALL_INTERRUPTED = encode_failure("interrupted", INTERRUPTED)
"""What is said of a call that was cut off."""

CALL_SUSPENDED = encode_failure("suspended", "the call waits for somebody, and is made again then")
"""What is said of a call that waits."""


MAX_FRAMES = 6
"""Frames of a traceback that the record keeps: the last ones; a guess at what is read."""

MAX_TRACEBACK_CHARS = 4_000
"""Characters of it, a message of any length included; a guess."""

_OURS = str(Path(rath.__file__).parent)
_STANDARD = str(Path(logging.__file__).parents[1])


def exception_result(
    exc: BaseException, tool: str, *, reads_source: bool, is_shown: bool = False
) -> ResultText:
    """Return the result of a call that raised; its traceback is logged at DEBUG.

    Secrets of the environment and keys of vendors are hidden in both.

    Args:
        exc: What it raised.
        tool: Its name.
        reads_source: Show lines of code, too; that reads files, so blocks.
        is_shown: Whether the model reads the traceback, too.
    """
    cause = exc.cause if isinstance(exc, UserExit) else exc
    kind = type(cause).__name__
    try:
        message = redact_content(f"{kind}: {cause}")
    except BaseException:  # noqa: BLE001  # an exception of a tool whose own text fails
        message = kind
    info = _traceback_info(cause, reads_source=reads_source)
    _log.debug("tool %r raised %s", tool, kind if info is None else f"{kind}\n{info.text}")
    detail = info.text if is_shown and info is not None else kind
    return replace(encode_failure("tool_execution_exception", message, detail), traceback=info)


def _is_library(file: str) -> bool:
    return file.startswith((_OURS, _STANDARD, "<frozen ")) or "site-packages" in file


def _traceback_info(exc: BaseException, *, reads_source: bool) -> TracebackInfo | None:
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in walk_tb(exc.__traceback__)
    ]
    if not frames:
        return None
    own = [frame for frame in frames if not _is_library(frame[0])]
    file, line, function = (own or frames)[-1]
    told = TracebackException.from_exception(exc, limit=-MAX_FRAMES, lookup_lines=False)
    shown = [*dropwhile(lambda each: each.filename.startswith(_OURS), told.stack)]
    told.stack[:] = shown or told.stack
    if not reads_source:
        told.stack = StackSummary.from_list(
            [(each.filename, each.lineno or 0, each.name, "") for each in told.stack]
        )
    text = redact_content(valid_unicode("".join(told.format())))
    return TracebackInfo(
        valid_unicode(file), line, function, cut_middle(text.rstrip(), MAX_TRACEBACK_CHARS)[0]
    )


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call that passed the checks, or the failure that the model reads instead."""

    call: ToolCall
    offer: ToolOffer | None
    arguments: dict[str, Any] | None = None
    key: Key = ()
    refusal: ResultText | None = None
    refused_as: ToolStatus = "failed"
    """What the record calls it where there is a refusal."""

    @property
    def lane(self) -> Key:
        """Its lane in the round; a refused call has one of its own."""
        return self.key if self.refusal is None else ("refused", self.call.id)

    @property
    def path(self) -> str | None:
        """The path that its lane stands for, as it was given; None where that is something else."""
        if self.refusal is not None or len(self.key) != 2 or self.key[0] != "fs":
            return None
        argument = (self.arguments or {}).get("path")
        is_unchanged = isinstance(argument, str) and posixpath.normpath(argument) == self.key[1]
        return argument if is_unchanged else self.key[1]

    @property
    def is_barrier(self) -> bool:
        """Whether nothing of the round may run beside it; a refused call disturbs nobody."""
        return self.refusal is None and self.offer is not None and not self.offer.parallel_safe

    def comes_after(self, earlier: CheckedCall) -> bool:
        """Tell whether an earlier call of the round must have ended before this one begins."""
        if self.refusal is not None:
            return False
        return earlier.is_barrier or self.is_barrier or earlier.key == self.key


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one call of a round."""

    prepared: CheckedCall
    result: ResultText
    status: ToolStatus
    elapsed_ms: float = 0.0
    effects: tuple[FileEffect, ...] = ()
    effect_gaps: tuple[str, ...] = ()
    sandbox: SandboxIdentity | None = None
    """Where it ran, as it was when it ended; None for a call that was never made."""

    start: WorkspaceStart | None = None
    """With what files its sandbox began, where no call of the run before it tells that."""

    is_cut_off: bool = False
    """Whether the run ended while it ran, or it waits: there is no result that a model could
    read."""

    decision: UUID | None = None
    """The decision by which it was made, or was not."""

    recorded: tuple[ToolRun, ChunkRow] | None = None
    """Entry and row of a call that was made before the run was cut off."""

    waits: Question | InnerRun | None = None
    """What a call waits for that was suspended."""

    @property
    def result_row(self) -> ChunkRow:
        """The row in which the model reads the result."""
        call = self.prepared.call
        result = self.result
        return tool_feedback_chunk(call.id, call.name, result.shown, images=result.images)


async def lane_keys(
    prepared: Sequence[CheckedCall], placement: Placement, stage: Sequence[int]
) -> list[Key]:
    """Return the lanes of calls that start now: one for each file, whatever its path says.

    Links are looked at here, and not when the round is prepared, since what ran before a barrier
    may have made them.
    """
    keys = [prepared[at].lane for at in stage]
    paths = [prepared[at].path for at in stage]
    if len({path for path in paths if path is not None}) < 2:
        return keys
    try:
        sandbox = placement.held()
    except RuntimeError:
        return keys  # without a place each call fails by itself

    def canonical() -> list[Key]:
        find = sandbox.backend.canonical_path
        pairs = zip(keys, paths, strict=True)
        return [key if path is None else ("fs", find(sandbox, path)) for key, path in pairs]

    try:
        return await runtime().call_in_worker(canonical)
    except Exception:  # noqa: BLE001  # a backend of others: one lane for all is always right
        _log.exception("backend %r could not name the files of a round", sandbox.backend.name)
        return [key if path is None else ("fs",) for key, path in zip(keys, paths, strict=True)]


def interrupted(call: ToolCall, offer: ToolOffer | None) -> CallResult:
    """Return the result of a call that was cut off with its run before it began."""
    return CallResult(CheckedCall(call, offer), CALL_INTERRUPTED, "interrupted", is_cut_off=True)


def deferred_call(prepared: CheckedCall) -> CallResult:
    """Return the result of a call that has not begun, since one before it waits."""
    return CallResult(prepared, CALL_SUSPENDED, "suspended", is_cut_off=True)


def with_arguments(result: ResultText, arguments: Mapping[str, Any] | None) -> ResultText:
    """Return a result that says with which arguments the call was made."""
    used = json.dumps(arguments, ensure_ascii=False, default=str)
    note = json.dumps(EDITED)
    text = f'{{"note": {note}, "arguments": {used}, "result": {result.shown}}}'
    return replace(result, shown=text)


def skipped_call(call: ToolCall, offer: ToolOffer | None) -> CallResult:
    """Return the result of a call that stands next to the last answer a budget allows."""
    return CallResult(
        CheckedCall(call, offer), encode_failure("interrupted", NOT_MADE), "interrupted"
    )


def tool_run_entry(
    finished: CallResult, *, operation: UUID, rows: tuple[RowId, ...] = ()
) -> ToolRun:
    """Return the record entry of a call."""
    prepared, result = finished.prepared, finished.result
    offer = prepared.offer
    return ToolRun(
        operation=operation,
        rows=rows,
        call_id=prepared.call.id,
        tool=prepared.call.name,
        origin="unknown" if offer is None else offer.origin,
        schema_digest=None if offer is None else offer.schema_digest,
        effects_declared="non_idempotent" if offer is None else offer.effects,
        arguments=prepared.arguments,
        sandbox=finished.sandbox,
        status=finished.status,
        error_kind=result.failure,
        exit_code=result.exit_code,
        signal=-result.exit_code if result.exit_code is not None and result.exit_code < 0 else None,
        duration_ms=finished.elapsed_ms,
        shown=Blob.from_bytes(result.shown.encode(), keep=0),
        full=None if result.full is None else full_blob(result.full),
        file_effects=finished.effects,
        effect_gaps=finished.effect_gaps,
        start=finished.start,
        decision=finished.decision,
        traceback=result.traceback,
    )


def recorded_call(finished: CallResult, operation: UUID) -> tuple[ToolRun, ChunkRow]:
    """Return the entry and the row of a call: those that it has, or new ones."""
    if finished.recorded is not None:
        return finished.recorded
    return tool_run_entry(finished, operation=operation), finished.result_row
