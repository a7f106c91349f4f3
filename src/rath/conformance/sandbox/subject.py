"""A sandbox under its contract: how it is asked, and what is true of every open one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from secrets import token_hex
from typing import TypeVar

from rath.backend import tool_types
from rath.backend.abc import Backend, BackendSandbox
from rath.backend.results import CommandResult, FileContent, ToolExecutionFailure
from rath.backend.tool_types import (
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.conformance.contract import (
    Clauses,
    HandleSubject,
    Skipped,
    expect,
    expect_equal,
    expect_error,
    expect_failure,
    expect_kind,
)
from rath.errors import BackendSandboxClosed

__all__ = ["LIFETIME"]

R = TypeVar("R")

FILE = (BackendToolFilesRead, BackendToolFilesWrite)
COMMAND = BackendToolCommandRun
"""What most of the clauses on files and on commands need."""


class SandboxSubject(HandleSubject):
    """An open sandbox that no other clause uses."""

    def __init__(self, sandbox: BackendSandbox) -> None:
        self.sandbox = self.target = sandbox
        self.backend: Backend = sandbox.backend

    def count(self) -> int:
        return self.backend.sandbox_count()

    def supported(self) -> Collection[type]:
        return self.backend.supported_calls()

    def samples(self) -> list[BackendTool]:
        calls = (BackendToolFilesExists("a.txt"), BackendToolCommandRun("echo x"))
        return [call for call in calls if type(call) in self.supported()]

    def flags(self) -> Mapping[str, type]:
        return {
            "supports_command": BackendToolCommandRun,
            "supports_filesystem": BackendToolFilesRead,
            "supports_code_interpreter": tool_types.BackendToolCodeRun,
        }

    def ask(self, call: BackendTool, kind: type[R]) -> R:
        """Return the result of a call, which must be of that type."""
        return expect_kind(self.sandbox.dispatch(call), kind, call)

    def expect_refusal(self, kind: str, *calls: BackendTool) -> None:
        """Make calls, each of which must fail in that way."""
        for call in calls:
            expect_failure(self.sandbox.dispatch(call), ToolExecutionFailure, kind, call)

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file, which must not fail."""
        found = self.sandbox.dispatch(BackendToolFilesWrite(path, data))
        failed = isinstance(found, ToolExecutionFailure)
        expect(not failed, f"{path} to be written, got {found!r}")

    def read(self, path: str, encoding: str | None = "utf-8") -> str | bytes:
        """Return the content of a file, which must be there."""
        return self.ask(BackendToolFilesRead(path, encoding), FileContent).data

    def expect_text(self, path: str, expected: str, place: str = "") -> None:
        """Read a file, which must hold that text."""
        expect_equal(self.read(path), expected, place or f"in {path}")

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return self.sandbox.dispatch(BackendToolFilesExists(path)) is True

    def run(
        self,
        command: str | list[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        """Run a command, which must come to an end."""
        call = BackendToolCommandRun(command, stdin=stdin, env=env, cwd=cwd)
        return self.ask(call, CommandResult)

    def expect_output(self, command: str | list[str], expected: bytes) -> None:
        """Run a command, which must write that."""
        expect_equal(self.run(command).stdout, expected, f"as output of {command!r}")

    def need_shell(self) -> None:
        """Skip a clause where no shell runs the command lines, as where they are scripted."""
        if self.run("test $((1 + 1)) = 2 && printf shell").stdout != b"shell":
            raise Skipped("its command lines are not those of a shell")


def new_name(stem: str) -> str:
    """Return the name of a file that no earlier run on the same workspace has left."""
    return f"{stem}-{token_hex(4)}.txt"


LIFETIME = Clauses[SandboxSubject]()

for name, run in (
    ("an_open_sandbox_has_a_handle_and_no_holder", SandboxSubject.has_handle_and_no_holder),
    ("what_opens_lazily_opens_on_first_use", SandboxSubject.opens_on_first_use),
    ("closing_twice_is_closing_once", SandboxSubject.closes_once),
    ("the_last_holder_closes", SandboxSubject.last_holder_closes),
    ("capabilities_and_supported_calls_agree", SandboxSubject.capabilities_agree),
):
    LIFETIME.add("Opening, counting, closing", name=name)(run)


@LIFETIME.add("Opening, counting, closing")
def a_closed_sandbox_refuses_work(box: SandboxSubject) -> None:
    box.backend.close(box.sandbox)
    for call in box.samples()[:1]:
        found = box.backend.dispatch(box.sandbox, call)
        expect_failure(found, ToolExecutionFailure, "sandbox_closed", call)
        expect_error(BackendSandboxClosed, "work of a closed sandbox", box.sandbox.dispatch, call)


@LIFETIME.add("Opening, counting, closing")
def an_unknown_payload_is_a_failure_to_read(box: SandboxSubject) -> None:
    class Unknown(BackendTool):
        pass

    box.expect_refusal("unsupported_tool", Unknown())


@LIFETIME.add("Says where it ran")
def it_says_where_it_is(box: SandboxSubject) -> None:
    identity, sandbox = box.sandbox.describe(), box.sandbox
    found = (identity.backend, identity.sandbox_id)
    expect_equal(found, (box.backend.name, sandbox.handle), "as its name and handle")
