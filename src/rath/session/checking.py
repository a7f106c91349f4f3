"""Checks of a session's work: a command judges, and its verdict holds until files change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

from msgspec import structs

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function, lazy_modules
from rath._core.text import cut_middle, decode_output
from rath.backend.abc import BackendSandbox
from rath.backend.effects import observe_effects
from rath.backend.results import CommandResult, ToolExecutionFailure, ToolResult
from rath.backend.tool_types import BackendToolCommandRun
from rath.errors import BackendError
from rath.session.base import SessionBase
from rath.session.content import ToolCall, encode_result
from rath.session.operation import Place, next_place
from rath.session.record import (
    CHECK_ORIGIN,
    Entry,
    Operation,
    ToolRun,
    Verdict,
    parent_sink,
)
from rath.session.scope import collect_session, current_replay, current_source

if TYPE_CHECKING:
    import shlex

    from rath.session.calls import results
    from rath.session.files import changes
    from rath.session.files.changes import Step
else:
    shlex, results, changes = lazy_modules(
        __name__,
        "shlex",
        "rath.session.calls.results",
        "rath.session.files.changes",
    )


# Only where a program is resumed.
_find_verdict = lazy_function("rath.session.programs", "find_verdict")

MAX_REPORT_CHARS = 8000
"""Longest report of a verdict; the whole output is a blob of the tool run beside it. A guess."""


_GONE = "it judged other files: in another sandbox, or before an undo or a merge"


@dataclass(frozen=True, slots=True)
class VerdictStatus:
    """A verdict, and whether it still speaks of the files of now."""

    verdict: Verdict
    is_stale: bool
    why: str | None
    """Reason for being stale; None while it is not."""


class Checking(SessionBase):
    """The checks of a session's work, recorded as verdicts."""

    __slots__ = ()

    def check(
        self,
        name: str,
        cmd: str | Sequence[str],
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Verdict:
        """Run a command in the sandbox of this session and note whether it passed; waits.

        The run that makes this session is waited for first. The verdict becomes a late entry of the
        record, bound to a digest of the files as the command left them; the command itself and what
        it changed stand before it. A command that fails, or does not end in time, is a verdict too.

        Args:
            name: What is checked, for instance "tests".
            cmd: A line for the shell, or an argument list that no shell sees.
            timeout: Seconds until the command is ended; the backend's own deadline by default.
            env: Variables to add to those of the sandbox.
            cwd: Directory to start in; the root of the workspace by default.

        Raises:
            TypeError: `name` or `cmd` is no text.
            RuntimeError: The session has no sandbox, or it was closed.
            BackendError: The sandbox cannot be opened, or its backend runs no commands.
        """
        _require_texts(name, cmd)
        self.synchronize()
        place = next_place()
        judge = cmd if isinstance(cmd, str) else shlex.join(cmd)
        if current_source() is not None:
            earlier: Verdict | None = _find_verdict(place, self.record, name=name, judge=judge)
            if earlier is not None:
                return earlier
        context = current_replay()
        if context is not None:
            entries = context.check(self, name, judge)
        else:
            command = BackendToolCommandRun(cmd, env=env, cwd=cwd, timeout=timeout)
            sandbox = self.core.placement.held()
            where = (self.id, place)
            entries = runtime().run(
                lambda: _ajudge(name, command, sandbox, where), label=f"check {name!r}"
            )
        self.add_entry(*entries)
        collect_session(self)
        verdict = entries[-1]
        assert isinstance(verdict, Verdict)
        return verdict

    @property
    def verdicts(self) -> tuple[VerdictStatus, ...]:
        """The verdicts in the record, in order, and which of them the record shows to be stale.

        One is stale as soon as a call after it changed files or may have done so. What somebody
        else did is not in the record: `is_current` looks at the files. Waits for the run.
        """
        return _verdicts(self)

    def is_current(self, verdict: Verdict) -> bool:
        """Tell whether a verdict speaks of the files as they are now; looks at them, and waits.

        Raises:
            ValueError: The record does not hold the verdict.
            RuntimeError: The session has no sandbox, or it was closed.
        """
        entry = next((one for one in _verdicts(self) if one.verdict.id == verdict.id), None)
        if entry is None:
            raise ValueError(f"verdict {verdict.name!r} is not in the record of session {self.id}")
        if entry.is_stale:
            return False
        sandbox = self.core.placement.held()
        digest = runtime().run(sandbox.aworkspace_digest, label="a digest of the workspace")
        # A backend that has no digest leaves the record as the only witness.
        return None in (digest, verdict.workspace_digest) or digest == verdict.workspace_digest


def _verdicts(session: SessionBase) -> tuple[VerdictStatus, ...]:
    record = session.record
    line = changes.line_of(record, changes.here_of(session.core.placement)).current
    standing = {step.entry.id: at for at, step in enumerate(line)}
    inner = changes.inner_operations(record)
    return tuple(
        _status(entry, line, standing.get(entry.id))
        for entry in record
        if isinstance(entry, Verdict) and (entry.id in standing or entry.operation not in inner)
    )


async def _ajudge(
    name: str, command: BackendToolCommandRun, sandbox: BackendSandbox, where: tuple[UUID, Place]
) -> tuple[Entry, ...]:
    await sandbox.aopened()
    session, place = where
    operation = Operation(operation=uuid4(), kind="check", place=place, session=session)
    started = time.monotonic()
    with observe_effects() as log:
        result = await sandbox.adispatch(command)
    elapsed_ms = (time.monotonic() - started) * 1000
    if isinstance(result, ToolExecutionFailure) and result.kind == "unsupported_tool":
        raise BackendError(f"check {name!r} needs a backend that runs commands: {result.message}")
    result_text = encode_result(result)
    line = command.cmd if isinstance(command.cmd, str) else list(command.cmd)
    verdict_id = uuid4()
    call = ToolCall(f"check_{verdict_id}", "run_shell_command", "")
    finished = results.CallResult(
        results.CheckedCall(call, None, _arguments(command, line)),
        result_text,
        "failed" if result_text.failure else "done",
        elapsed_ms,
        tuple(log),
        tuple(log.gaps),
        sandbox.describe(),
    )
    run = results.tool_run_entry(finished, operation=operation.operation)
    run = structs.replace(run, origin=CHECK_ORIGIN)
    verdict = Verdict(
        operation=operation.operation,
        id=verdict_id,
        name=name,
        judge=line if isinstance(line, str) else shlex.join(line),
        passed=result_text.exit_code == 0,
        score=None,
        report=cut_middle(_report(result), MAX_REPORT_CHARS)[0],
        workspace_digest=await sandbox.aworkspace_digest(),
    )
    for entry in (operation, run, verdict):
        parent_sink()(entry, None)
    return operation, run, verdict


def _arguments(command: BackendToolCommandRun, line: str | list[str]) -> dict[str, Any]:
    """Return the arguments; of variables only the names, since values may be secret."""
    options = {"cwd": command.cwd, "env": sorted(command.env or ()), "timeout": command.timeout}
    return {"cmd": line} | {
        name: value for name, value in options.items() if value not in (None, [])
    }


def _require_texts(name: object, cmd: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a check is a str, not {type(name).__name__}: {name!r:.80}")
    words = cast("Sequence[object]", cmd) if isinstance(cmd, Sequence) else [cmd]
    if not isinstance(cmd, str) and not (words and all(isinstance(word, str) for word in words)):
        raise TypeError(
            f"cmd of check {name!r} is a line for the shell or a list of str, not {cmd!r:.80}"
        )


def _report(result: ToolResult | bool) -> str:
    """Return the output of a command, or why it did not come to an end."""
    if isinstance(result, CommandResult):
        return decode_output(result.stdout) + decode_output(result.stderr)
    if isinstance(result, ToolExecutionFailure):
        return "\n".join(filter(None, (result.message, result.detail)))
    return repr(result)


def _status(verdict: Verdict, line: Sequence[Step], at: int | None) -> VerdictStatus:
    if at is None:
        return VerdictStatus(verdict, True, _GONE)
    why = next((why for step in line[at:] for why in _changes(step)), None)
    return VerdictStatus(verdict, why is not None, why)


def _changes(step: Step) -> Iterator[str]:
    """Yield in what ways a step changed files, or may have done so."""
    for each in step.call_effects():
        assert isinstance(each.call, ToolRun)
        yield f"{each.call.tool} ({each.call.call_id}) {each.effect.kind} {each.effect.path!r}"
    for gap in step.gaps():
        yield f"{gap.call.tool} ({gap.call.call_id}) may have changed files: {gap.reason}"
