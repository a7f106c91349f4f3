"""The contract of sandbox backends: their life, files, commands and workspaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import registry, results, tool_types
from rath.backend import tool_types as tools
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec
from rath.backend.capabilities import IsolationLevel
from rath.backend.effects import FileEffect, observe_effects
from rath.backend.fallbacks import output_path
from rath.backend.snapshots import FrozenWorkspace, NewFile, Seed
from rath.conformance.contract import (
    Clauses,
    HandleSubject,
    Report,
    Skipped,
    Unlike,
    expect,
    expect_equal,
    expect_error,
    expect_failure,
    expect_kind,
    run_on_handles,
)
from rath.errors import BackendSandboxClosed

__all__ = ["check_backend"]

R = TypeVar("R")

FILE = (tools.BackendToolFilesRead, tools.BackendToolFilesWrite)
COMMAND = tools.BackendToolCommandRun
"""What most of the clauses on files and on commands need."""


class SandboxSubject(HandleSubject):
    """An open sandbox that no other clause uses."""

    def __init__(self, sandbox: BackendSandbox) -> None:
        self.sandbox = sandbox
        self.target: BackendSandbox = sandbox
        self.backend: Backend = sandbox.backend

    def count(self) -> int:
        return self.backend.sandbox_count()

    def supported(self) -> Collection[type]:
        return self.backend.supported_calls()

    def samples(self) -> list[tools.BackendTool]:
        calls = (tools.BackendToolFilesExists("a.txt"), tools.BackendToolCommandRun("echo x"))
        return [call for call in calls if type(call) in self.supported()]

    def flags(self) -> Mapping[str, type]:
        return {
            "supports_command": tools.BackendToolCommandRun,
            "supports_filesystem": tools.BackendToolFilesRead,
            "supports_code_interpreter": tool_types.BackendToolCodeRun,
        }

    def ask(self, call: tools.BackendTool, kind: type[R]) -> R:
        """Return the result of a call, which must be of that type."""
        return expect_kind(self.sandbox.dispatch(call), kind, call)

    def expect_refusal(self, kind: str, *calls: tools.BackendTool) -> None:
        """Make calls, each of which must fail in that way."""
        for call in calls:
            expect_failure(self.sandbox.dispatch(call), results.ToolExecutionFailure, kind, call)

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file, which must not fail."""
        found = self.sandbox.dispatch(tools.BackendToolFilesWrite(path, data))
        failed = isinstance(found, results.ToolExecutionFailure)
        expect(not failed, f"{path} to be written, got {found!r}")

    def read(self, path: str, encoding: str | None = "utf-8") -> str | bytes:
        """Return the content of a file, which must be there."""
        return self.ask(tools.BackendToolFilesRead(path, encoding), results.FileContent).data

    def expect_text(self, path: str, expected: str, place: str = "") -> None:
        """Read a file, which must hold that text."""
        expect_equal(self.read(path), expected, place or f"in {path}")

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return self.sandbox.dispatch(tools.BackendToolFilesExists(path)) is True

    def run(
        self,
        command: str | list[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> results.CommandResult:
        """Run a command, which must come to an end."""
        call = tools.BackendToolCommandRun(command, stdin=stdin, env=env, cwd=cwd)
        return self.ask(call, results.CommandResult)

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

for _name, _run in (
    ("an_open_sandbox_has_a_handle_and_no_holder", SandboxSubject.has_handle_and_no_holder),
    ("what_opens_lazily_opens_on_first_use", SandboxSubject.opens_on_first_use),
    ("closing_twice_is_closing_once", SandboxSubject.closes_once),
    ("the_last_holder_closes", SandboxSubject.last_holder_closes),
    ("capabilities_and_supported_calls_agree", SandboxSubject.capabilities_agree),
):
    LIFETIME.add("Opening, counting, closing", name=_name)(_run)


@LIFETIME.add("Opening, counting, closing")
def a_closed_sandbox_refuses_work(box: SandboxSubject) -> None:
    box.backend.close(box.sandbox)
    for call in box.samples()[:1]:
        found = box.backend.dispatch(box.sandbox, call)
        expect_failure(found, results.ToolExecutionFailure, "sandbox_closed", call)
        expect_error(BackendSandboxClosed, "work of a closed sandbox", box.sandbox.dispatch, call)


@LIFETIME.add("Opening, counting, closing")
def an_unknown_payload_is_a_failure_to_read(box: SandboxSubject) -> None:
    class Unknown(tools.BackendTool):
        pass

    box.expect_refusal("unsupported_tool", Unknown())


@LIFETIME.add("Says where it ran")
def it_says_where_it_is(box: SandboxSubject) -> None:
    identity, sandbox = box.sandbox.describe(), box.sandbox
    found = (identity.backend, identity.sandbox_id)
    expect_equal(found, (box.backend.name, sandbox.handle), "as its name and handle")


FILES = Clauses[SandboxSubject]()
WORKSPACES = Clauses[SandboxSubject]()

_TEXT = "first\nzweite Zeile: äöü €\n"
_ELSEWHERE = "/rath-conformance-elsewhere.txt"
_NOT_UTF8 = b"\xff\xfe\x00raw"
_LINES = [f"line {number}\n" for number in range(10)]


@FILES.add("Files", *FILE)
def text_comes_back_as_written(box: SandboxSubject) -> None:
    written = box.ask(tools.BackendToolFilesWrite("a.txt", _TEXT), results.FileWriteResult)
    expect_equal(written.bytes_written, len(_TEXT.encode()), "bytes written")
    box.expect_text("a.txt", _TEXT)


@FILES.add("Files", *FILE)
def bytes_come_back_as_written(box: SandboxSubject) -> None:
    box.write("a.bin", _NOT_UTF8)
    expect_equal(box.read("a.bin", None), _NOT_UTF8)


@FILES.add("Files", *FILE)
def what_is_not_text_is_a_failure_to_read(box: SandboxSubject) -> None:
    box.write("a.bin", _NOT_UTF8)
    box.expect_refusal("decode_error", tools.BackendToolFilesRead("a.bin"))


@FILES.add("Files", *FILE)
def a_write_replaces_the_file(box: SandboxSubject) -> None:
    box.write("a.txt", "a long first content")
    box.write("a.txt", "short")
    box.expect_text("a.txt", "short")


@FILES.add("Files", *FILE)
def a_write_makes_the_directories_above(box: SandboxSubject) -> None:
    box.write("deep/er/a.txt", "x")
    box.expect_text("deep/er/a.txt", "x")


@FILES.add("Files", *FILE)
def a_missing_file_is_a_failure_to_read(box: SandboxSubject) -> None:
    box.expect_refusal("file_not_found", tools.BackendToolFilesRead("missing.txt"))


@FILES.add("Files", *FILE, tools.BackendToolFilesList)
def a_listing_is_sorted_and_tells_directories(box: SandboxSubject) -> None:
    for path in ("b.txt", "a.txt", "c/d.txt"):
        box.write(path, path)
    entries = box.ask(tools.BackendToolFilesList("."), results.FileEntries).entries
    own = [(each.name, each.is_dir) for each in entries if each.name in ("a.txt", "b.txt", "c")]
    expect_equal(own, [("a.txt", False), ("b.txt", False), ("c", True)], "as entries")
    box.expect_text(next(each.path for each in entries if each.name == "a.txt"), "a.txt")


@FILES.add("Files", *FILE, tools.BackendToolFilesExists)
def a_path_exists_or_not(box: SandboxSubject) -> None:
    box.write("there/a.txt", "x")
    for path, expected in (("there/a.txt", True), ("there", True), ("nowhere.txt", False)):
        found = box.sandbox.dispatch(tools.BackendToolFilesExists(path))
        expect(found is expected, f"{expected} for {path!r}, got {found!r}")


# ---------------------------------------------------------------- the border of the workspace


@FILES.add("File tools stay inside", *FILE)
def a_path_that_leads_out_is_a_failure_to_read(box: SandboxSubject) -> None:
    path = "../outside.txt"
    calls = (tools.BackendToolFilesRead(path), tools.BackendToolFilesWrite(path, "x"))
    box.expect_refusal("path_outside_workspace", *calls)


@FILES.add("File tools stay inside", *FILE)
def an_absolute_path_that_leads_out_is_a_failure_to_read(box: SandboxSubject) -> None:
    _need_border(box)
    box.expect_refusal("path_outside_workspace", tools.BackendToolFilesRead(_ELSEWHERE))


@FILES.add("File tools stay inside", *FILE, COMMAND)
def a_link_that_leads_out_is_a_failure_to_read(box: SandboxSubject) -> None:
    _need_border(box)
    box.need_shell()
    link = new_name("link")
    if box.run(f"ln -s .. {link}").exit_code != 0:
        raise Skipped("its commands make no links")
    write = tools.BackendToolFilesWrite(f"{link}/{new_name('out')}", "x")
    calls = (tools.BackendToolFilesRead(f"{link}/missing.txt"), write)
    box.expect_refusal("path_outside_workspace", *calls)


def _need_border(box: SandboxSubject) -> None:
    """Skip a clause where the sandbox has a border of its own, and the workspace is none."""
    if box.backend.capabilities().isolation is IsolationLevel.PROCESS:
        return
    found = box.sandbox.dispatch(tools.BackendToolFilesRead(_ELSEWHERE))
    if not (
        isinstance(found, results.ToolExecutionFailure) and found.kind == "path_outside_workspace"
    ):
        raise Skipped("absolute paths are those of the sandbox; its border is another one")


# ---------------------------------------------------------------- parts and edits


@FILES.add("Reading in parts", *FILE)
def lines_are_read_in_parts(box: SandboxSubject) -> None:
    box.write("long.txt", "".join(_LINES))
    first = box.ask(tools.BackendToolFilesRead("long.txt", limit=4), results.FileContent)
    expect(first.data == "".join(_LINES[:4]), f"4 lines, got {first!r}")
    expect_equal((first.next_offset, first.total), (4, 10), "as the next offset and the total")
    rest = box.ask(tools.BackendToolFilesRead("long.txt", offset=4), results.FileContent)
    expect_equal(rest.data, "".join(_LINES[4:]), "as the rest of the file")
    expect_equal(rest.next_offset, None, "as the next offset after the last line")


@FILES.add("Reading in parts", *FILE)
def bytes_are_read_in_parts(box: SandboxSubject) -> None:
    box.write("long.bin", bytes(range(100)))
    part = box.ask(tools.BackendToolFilesRead("long.bin", None, 10, 5), results.FileContent)
    expect_equal(part.data, bytes(range(10, 15)), "as bytes 10 to 14")
    expect_equal((part.next_offset, part.total), (15, 100), "as the next offset and the total")


@FILES.add("Editing files", *FILE)
def a_text_is_replaced_where_it_stands_once(box: SandboxSubject) -> None:
    box.write("a.py", "one = 1\ntwo = 2\n")
    done = box.ask(tools.BackendToolFilesEdit("a.py", "two = 2", "two = 3"), results.FileEditResult)
    expect_equal(done.n_replaced, 1, "as the number of replacements")
    expect("-two = 2" in done.diff and "+two = 3" in done.diff, f"a unified diff, got {done!r}")
    box.expect_text("a.py", "one = 1\ntwo = 3\n")


@FILES.add("Editing files", *FILE)
def an_edit_that_is_not_clear_changes_nothing(box: SandboxSubject) -> None:
    box.write("a.py", "x\nx\n")
    box.expect_refusal("text_not_unique", tools.BackendToolFilesEdit("a.py", "x", "y"))
    box.expect_refusal("text_not_found", tools.BackendToolFilesEdit("a.py", "z", "y"))
    box.expect_refusal("file_not_found", tools.BackendToolFilesEdit("missing.py", "z", "y"))
    box.expect_text("a.py", "x\nx\n")


@FILES.add("Editing files", *FILE)
def replace_all_replaces_all_places(box: SandboxSubject) -> None:
    box.write("a.py", "x\nx\n")
    done = box.ask(
        tools.BackendToolFilesEdit("a.py", "x", "y", replace_all=True), results.FileEditResult
    )
    expect_equal(done.n_replaced, 2, "as the number of replacements")
    box.expect_text("a.py", "y\ny\n")


# ---------------------------------------------------------------- effects

_Expected = tuple[str, str, str | None, str | None]
"""Path and kind of an effect, and the texts before and after, None where there was no file."""


def _expect_effects(effects: Sequence[FileEffect], expected: Sequence[_Expected]) -> None:
    def digest(blob: Blob | None) -> str:
        return "" if blob is None else blob.digest

    def digest_of(text: str | None) -> str:
        return "" if text is None else Blob.from_bytes(text.encode()).digest

    found = [(each.path, each.kind, digest(each.before), digest(each.after)) for each in effects]
    wanted = [(path, kind, digest_of(old), digest_of(new)) for path, kind, old, new in expected]
    expect(found == wanted, f"the effects {expected}, got {effects}")


@WORKSPACES.add("Effects of file tools", *FILE)
def file_tools_tell_exactly_what_they_changed(box: SandboxSubject) -> None:
    path = new_name("told")
    with observe_effects() as creation:
        box.write(path, "one")
    if not creation and not box.backend.capabilities().observes_effects:
        raise Skipped("capabilities say observes_effects=False")
    with observe_effects() as changes:
        box.write(path, "two")
        box.sandbox.dispatch(tools.BackendToolFilesEdit(path, "two", "three"))
    with observe_effects() as nothing:
        box.read(path)
        box.expect_refusal("text_not_found", tools.BackendToolFilesEdit(path, "no such text", "x"))
    _expect_effects(creation, [(path, "created", None, "one")])
    _expect_effects(changes, [(path, "changed", "one", "two"), (path, "changed", "two", "three")])
    expect({each.attribution for each in changes} == {"exact"}, f"exact effects, got {changes}")
    expect(not nothing, f"no effect of what changes nothing, got {nothing}")


@WORKSPACES.add("Effects of commands", *FILE, COMMAND, offer="observes_effects")
def commands_tell_what_they_changed(box: SandboxSubject) -> None:
    box.need_shell()
    stays, changes, goes, moves = map(new_name, ("stays", "changes", "goes", "moves"))
    created, moved = new_name("created"), new_name("moved")
    for path in (stays, changes, goes, moves):
        box.write(path, f"{path} before")
    steps = (f"printf new > {created}", f"printf after > {changes}", f"rm {goes}",
             f"mv {moves} {moved}")  # fmt: skip
    with observe_effects() as effects:
        box.run(" && ".join(steps))
    expected = [
        (changes, "changed", f"{changes} before", "after"),
        (created, "created", None, "new"),
        (goes, "deleted", f"{goes} before", None),
        (moved, "renamed", f"{moves} before", f"{moves} before"),
    ]
    _expect_effects(sorted(effects, key=lambda each: each.path), sorted(expected))
    renamed = next(effect for effect in effects if effect.path == moved)
    expect_equal(renamed.renamed_from, moves, "as the earlier path")
    for effect in effects:
        expect(effect.attribution != "exact", f"no more than is known, got {effect!r}")


@WORKSPACES.add("Digest of the workspace", *FILE, offer="observes_effects")
def the_digest_of_the_workspace_follows_its_files(box: SandboxSubject) -> None:
    box.write("a.txt", "one")
    first = box.sandbox.workspace_digest()
    expect(first is not None, "a digest")
    expect(box.sandbox.workspace_digest() == first, "the same digest while nothing changes")
    box.write("a.txt", "two")
    expect(box.sandbox.workspace_digest() != first, "another digest for another content")
    box.write("a.txt", "one")
    expect(box.sandbox.workspace_digest() == first, "the same digest for the same files")


# ---------------------------------------------------------------- copies

_copies = WORKSPACES.add(
    "Workspace copies", *FILE, tools.BackendToolFilesExists, offer="supports_workspace_copy"
)


@contextmanager
def _copy(
    frozen: FrozenWorkspace,
    source: SandboxSubject,
    changes: dict[str, NewFile | None] | None = None,
) -> Generator[SandboxSubject]:
    async def origin() -> Seed:
        return Seed(frozen, changes or {})

    copy = source.backend.lazy(origin=origin)
    try:
        yield SandboxSubject(copy.ensure_open())
    finally:
        source.backend.close(copy)


@_copies
def neither_sees_what_the_other_writes_later(box: SandboxSubject) -> None:
    box.write("a.txt", "shared")
    with _copy(box.sandbox.freeze(), box) as copy:
        copy.expect_text("a.txt", "shared", "in the copy, as in its source")
        box.write("a.txt", "source")
        copy.expect_text("a.txt", "shared", "in the copy after a write to the source")
        copy.write("a.txt", "copy")
        copy.write("new.txt", "x")
        box.expect_text("a.txt", "source", "in the source after a write to the copy")
        expect(not box.exists("new.txt"), "the source not to see a file of the copy")


@_copies
def two_copies_are_independent(box: SandboxSubject) -> None:
    box.write("a.txt", "shared")
    frozen = box.sandbox.freeze()
    with _copy(frozen, box) as one, _copy(frozen, box) as two:
        one.write("a.txt", "one")
        two.expect_text("a.txt", "shared", "in one copy after a write to the other")
        two.write("a.txt", "two")
        one.expect_text("a.txt", "one", "in one copy after a write to the other")


@_copies
def a_copy_begins_with_its_changes(box: SandboxSubject) -> None:
    for path in ("stays.txt", "goes.txt"):
        box.write(path, "x")
    changes = {"goes.txt": None, "deep/new.txt": NewFile(b"new", 0o100644)}
    with _copy(box.sandbox.freeze(), box, changes) as copy:
        copy.expect_text("stays.txt", "x")
        copy.expect_text("deep/new.txt", "new")
        expect(not copy.exists("goes.txt"), "the removed file to be gone")
    expect(box.exists("goes.txt"), "the file to be there in the source")
    expect(not box.exists("deep/new.txt"), "the new file not to be in the source")


@_copies
def a_copy_of_a_copy_knows_where_it_came_from(box: SandboxSubject) -> None:
    box.write("a.txt", "x")
    with _copy(box.sandbox.freeze(), box) as copy:
        copy.write("a.txt", "copy")
        base = box.sandbox.freeze().base_with(copy.sandbox.freeze())
        if base is None:
            raise Unlike("expected the files that both came from, got None")
        data = runtime().run(lambda: base.aread("a.txt"), label="reading what both came from")
        expect_equal(data, b"x", "as the content that both came from")


COMMANDS = Clauses[SandboxSubject]()
CONFINEMENT = Clauses[SandboxSubject]()

_CANARY = "RATH_CONFORMANCE_CANARY"
_DEADLINES = "Deadlines, and nothing outlives them"

_ORPHAN = 'n=0; while [ $n -lt 80 ]; do echo alive >> "$1"; n=$((n + 1)); sleep 0.05; done\n'
"""Shows for some seconds that it is alive, and ends by itself where nobody ends it."""


@COMMANDS.add("Commands", COMMAND)
def a_command_tells_output_and_exit_code(box: SandboxSubject) -> None:
    found = box.run("echo hello")
    expect((found.exit_code, found.stdout) == (0, b"hello\n"), f"hello and 0, got {found!r}")
    expect_equal(box.run("exit 3").exit_code, 3, "as exit code")


@COMMANDS.add("Commands", COMMAND)
def a_command_gets_its_variables(box: SandboxSubject) -> None:
    found = box.run("printenv RATH_CHECK", env={"RATH_CHECK": "seen"})
    expect_equal(found.stdout, b"seen\n", "as its variable")


@COMMANDS.add("Commands", COMMAND)
def an_argument_list_meets_no_shell(box: SandboxSubject) -> None:
    box.expect_output(["echo", "$HOME", "a  b"], b"$HOME a  b\n")


@COMMANDS.add("Commands", COMMAND, tools.BackendToolFilesWrite)
def binary_output_is_unchanged(box: SandboxSubject) -> None:
    box.write("a.bin", b"\xff\xfe")
    box.expect_output("cat a.bin", b"\xff\xfe")


@COMMANDS.add("Commands", COMMAND)
def stdout_and_stderr_are_separate(box: SandboxSubject) -> None:
    box.need_shell()
    found = box.run("echo out; echo err >&2")
    expect_equal((found.stdout, found.stderr), (b"out\n", b"err\n"), "apart")


@COMMANDS.add("Commands", *FILE, COMMAND)
def a_command_starts_in_its_directory(box: SandboxSubject) -> None:
    box.need_shell()
    box.write("below/here.txt", "here")
    expect_equal(box.run("cat here.txt", cwd="below").stdout, b"here", "from its directory")
    box.ask(tools.BackendToolCommandRun("true", cwd="no-such-place"), results.ToolExecutionFailure)


@COMMANDS.add("Commands", *FILE, COMMAND)
def commands_and_files_share_the_workspace(box: SandboxSubject) -> None:
    box.write("a.txt", "shared\n")
    box.expect_output("cat a.txt", b"shared\n")


@COMMANDS.add("Long outputs to read in parts", *FILE, COMMAND)
def a_long_output_is_read_afterwards(box: SandboxSubject) -> None:
    box.need_shell()
    found = box.run("n=0; while [ $n -lt 9000 ]; do n=$((n + 1)); echo $n; done")
    if found.stdout_full is None:
        raise Unlike(f"expected stdout_full with {len(found.stdout)} bytes, got None")
    path = output_path(found.stdout_full.digest)
    part = box.ask(tools.BackendToolFilesRead(path, offset=8999), results.FileContent)
    expect_equal(part.data, "9000\n", "as its last line")


@COMMANDS.add("Input of commands", COMMAND)
def a_command_reads_its_input(box: SandboxSubject) -> None:
    found = box.sandbox.dispatch(tools.BackendToolCommandRun("cat", stdin=b"given"))
    if isinstance(found, results.ToolExecutionFailure) and found.kind == "unsupported_tool":
        raise Skipped(found.message)
    expect_equal(box.run("cat", stdin=b"given").stdout, b"given", "as its input")


@COMMANDS.add("Environment is not inherited", COMMAND)
def variables_of_this_process_are_hidden(box: SandboxSubject) -> None:
    os.environ[_CANARY] = "seen"
    try:
        found = box.run(f"printenv {_CANARY}")
    finally:
        del os.environ[_CANARY]
    expect(b"seen" not in found.stdout, f"no variable of this process, got {found!r}")


@COMMANDS.add(_DEADLINES, COMMAND)
def a_command_that_takes_too_long_is_a_failure_to_read(box: SandboxSubject) -> None:
    started = time.monotonic()
    box.expect_refusal("timeout", tools.BackendToolCommandRun("sleep 30", timeout=0.1))
    expect(time.monotonic() - started < 20, "the end of a command of 30 s soon after 0.1 s")
    box.run("echo still here")


@COMMANDS.add(_DEADLINES, *FILE, tools.BackendToolFilesExists, COMMAND)
def after_a_timeout_nothing_goes_on(box: SandboxSubject) -> None:
    box.need_shell()
    _expect_no_orphan(box, "sh")


@COMMANDS.add(_DEADLINES, *FILE, tools.BackendToolFilesExists, COMMAND)
def after_a_timeout_nothing_of_another_session_goes_on(box: SandboxSubject) -> None:
    box.need_shell()
    if box.run("setsid true").exit_code != 0:
        raise Skipped("its commands know no setsid, so that none can leave its group")
    _expect_no_orphan(box, "setsid sh")


def _expect_no_orphan(box: SandboxSubject, start: str) -> None:
    """Let a command reach its deadline while something that it started still writes."""
    for patience in (0.2, 2.0, 10.0):
        script, trace = new_name("orphan"), new_name("trace")
        box.write(script, _ORPHAN)
        line = f"({start} {script} {trace} </dev/null >/dev/null 2>&1 &); sleep 60"
        box.expect_refusal("timeout", tools.BackendToolCommandRun(line, timeout=patience))
        if box.exists(trace):
            break
    else:
        raise Unlike("expected a process in the background to begin within 10 s")
    written = box.read(trace)
    box.run("sleep 0.5")
    expect(box.read(trace) == written, f"no process that outlived its command: {start!r}")


@COMMANDS.add("Code", tools.BackendToolCodeRun)
def code_tells_output_and_error(box: SandboxSubject) -> None:
    found = box.ask(tools.BackendToolCodeRun("print(6 * 7)"), results.CodeResult)
    expect(found.stdout.strip() == b"42" and found.error is None, f"42, got {found!r}")
    broken = box.ask(tools.BackendToolCodeRun("raise ValueError('no')"), results.CodeResult)
    expect("ValueError" in (broken.error or ""), f"the error's name, got {broken!r}")


@COMMANDS.add("Code", tools.BackendToolCodeRun)
def a_language_it_cannot_run_is_a_failure_to_read(box: SandboxSubject) -> None:
    box.expect_refusal(
        "unsupported_tool", tools.BackendToolCodeRun("x", language="no-such-language")
    )


# ---------------------------------------------------------------- confinement

_confined = CONFINEMENT.add("Commands stay inside", COMMAND, offer="confines_commands")


@_confined
def files_of_this_host_are_not_written(box: SandboxSubject) -> None:
    with tempfile.TemporaryDirectory(prefix="rath-conformance-") as outside:
        target = Path(outside) / "reached.txt"
        box.run(f"mkdir -p {outside}; echo x > {target}")
        expect(not target.exists(), f"no write to {target}")


@_confined
def secrets_in_the_home_are_not_read(box: SandboxSubject) -> None:
    home = Path.home()
    if not os.access(home, os.W_OK):
        raise Skipped(f"the home {str(home)!r} cannot be written to")
    with tempfile.NamedTemporaryFile(dir=home, prefix=".rath-conformance-") as secret:
        secret.write(b"canary")
        secret.flush()
        found = box.run(f"cat {secret.name}; ls -a {home}")
    expect(b"canary" not in found.stdout, "no file of the home to be read")
    expect(os.path.basename(secret.name).encode() not in found.stdout, "the home to be hidden")


@_confined
def the_network_is_not_reached(box: SandboxSubject) -> None:
    if box.sandbox.spec is not None and box.sandbox.spec.network:
        raise Skipped("its spec says network=True")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = f"echo begun; exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
        found = box.sandbox.dispatch(tools.BackendToolCommandRun(["bash", "-c", line]))
    if not isinstance(found, results.CommandResult) or b"begun" not in found.stdout:
        raise Skipped("it has no bash that could try it")
    expect(b"reached" not in found.stdout, f"no connection to this host, got {found!r}")


@_confined
def processes_of_this_host_are_not_reached(box: SandboxSubject) -> None:
    name = f"rath-conformance-{token_hex(8)}"
    # Its name stands on its command line and in its environment, and nowhere in the search.
    pattern = f"[{name[0]}]{name[1:]}"
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, name], env=dict(os.environ, NAME=name), stdin=subprocess.PIPE
    ) as bystander:
        where = f"/proc/[0-9]*/cmdline /proc/{bystander.pid}/environ"
        visible = box.run(f"cat {where} | tr '\\0' '\\n' | grep {pattern}")
        # A process inside may have the same number; then /proc shows it.
        hidden = f"kill -0 {bystander.pid} && ! test -e /proc/{bystander.pid} && echo reached"
        reached = box.run(hidden)
        bystander.kill()
    expect(
        name.encode() not in visible.stdout, f"no process of this host to be seen, got {visible!r}"
    )
    expect(b"reached" not in reached.stdout, "no process of this host to be signalled")


@_confined
def more_privileges_are_not_had(box: SandboxSubject) -> None:
    if box.backend.capabilities().isolation in (IsolationLevel.MICROVM, IsolationLevel.VM):
        raise Skipped("whoever rules a machine of its own rules nothing outside")
    found = box.run("grep -E '^(NoNewPrivs|CapEff)' /proc/self/status")
    expect(b"NoNewPrivs:\t1" in found.stdout, f"no new privileges, got {found!r}")
    expect(b"CapEff:\t0000000000000000" in found.stdout, f"no capabilities, got {found!r}")


CLAUSES = (*LIFETIME, *FILES, *COMMANDS, *WORKSPACES, *CONFINEMENT)


def check_backend(backend: Backend | str, *, spec: BackendSandboxSpec | None = None) -> Report:
    """Run the contract of a sandbox backend against it and return what was found.

    Every check opens a sandbox of its own and closes it. What `supported_calls` or `capabilities`
    leave out is skipped.

    Args:
        backend: An instance, or the name under which it is registered.
        spec: What to open; its workspace is written to.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
        BackendNotFound: No backend has that name.
    """
    driver = registry.get(backend) if isinstance(backend, str) else backend
    supported = driver.supported_calls()
    return run_on_handles(driver, CLAUSES, SandboxSubject, spec=spec, supported=supported)
