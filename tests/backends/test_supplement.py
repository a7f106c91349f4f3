"""What a handle adds to a backend that can only read and write whole files."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest

from rath._async.lanes import gather
from rath._async.runtime import runtime
from rath.backend import (
    Backend,
    BackendSandbox,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesEdit,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    Capabilities,
    CommandResult,
    FileContent,
    FileEditResult,
    FileWriteResult,
    IsolationLevel,
    ToolExecutionFailure,
    ToolResult,
)


@dataclass
class Plain(Backend):
    """Reads and writes whole files, and knows nothing of parts and edits."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    calls: list[BackendTool] = field(default_factory=list[BackendTool])

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(IsolationLevel.VM, True, True, False)

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return frozenset({BackendToolFilesRead, BackendToolFilesWrite, BackendToolCommandRun})

    def sandbox_count(self) -> int:
        return 0

    async def aopen(self, spec: BackendSandboxSpec | None) -> str:
        return "plain"

    async def aclose(self, native: str) -> None:
        self.files.clear()

    async def adispatch(self, native: str, op: BackendTool) -> ToolResult | bool:
        self.calls.append(op)
        match op:
            case BackendToolFilesRead(path, encoding):
                if path not in self.files:
                    return ToolExecutionFailure("file_not_found", f"no file at {path!r}", path)
                data = self.files[path]
                return FileContent(data if encoding is None else data.decode(encoding))
            case BackendToolFilesWrite(path, new):
                if path == "locked":
                    return ToolExecutionFailure("os_error", "read-only", path)
                self.files[path] = new.encode() if isinstance(new, str) else new
                return FileWriteResult(len(self.files[path]))
            case _:
                return CommandResult(0, b"x" * 30_000, b"", 1.0)


class ReadsAndRuns(Plain):
    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return frozenset({BackendToolFilesRead, BackendToolCommandRun})


@pytest.fixture
def plain() -> Plain:
    return Plain({"a.txt": b"one\ntwo\nthree\n", "locked": b"x"})


@pytest.fixture
def sandbox(plain: Plain) -> BackendSandbox:
    return plain.open()


def test_lines_are_cut_out_of_the_whole(sandbox: BackendSandbox, plain: Plain) -> None:
    part = sandbox.dispatch(BackendToolFilesRead("a.txt", offset=1, limit=1))
    assert part == FileContent("two\n", 2, 3)
    assert plain.calls == [BackendToolFilesRead("a.txt")]


def test_bytes_are_cut_out_of_the_whole(sandbox: BackendSandbox) -> None:
    part = sandbox.dispatch(BackendToolFilesRead("a.txt", None, 4, 3))
    assert part == FileContent(b"two", 7, 14)


def test_a_whole_file_is_passed_on_as_it_is(sandbox: BackendSandbox) -> None:
    assert sandbox.dispatch(BackendToolFilesRead("a.txt")) == FileContent("one\ntwo\nthree\n")


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (BackendToolFilesRead("a.txt", offset=-1), "bad_range"),
        (BackendToolFilesRead("none", limit=1), "file_not_found"),
        (BackendToolFilesEdit("none", "a", "b"), "file_not_found"),
        (BackendToolFilesEdit("a.txt", "four", "b"), "text_not_found"),
        (BackendToolFilesEdit("locked", "x", "b"), "os_error"),
    ],
)
def test_what_fails_is_a_value(sandbox: BackendSandbox, op: BackendTool, kind: str) -> None:
    failure = sandbox.dispatch(op)
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == kind


def test_a_file_is_edited_by_reading_and_writing_it(sandbox: BackendSandbox, plain: Plain) -> None:
    result = sandbox.dispatch(BackendToolFilesEdit("a.txt", "two", "2"))
    assert isinstance(result, FileEditResult)
    assert plain.files["a.txt"] == b"one\n2\nthree\n"
    assert "-two\n+2\n" in result.diff


def test_edits_of_one_sandbox_wait_for_each_other(sandbox: BackendSandbox, plain: Plain) -> None:
    edits = [BackendToolFilesEdit("a.txt", word, word * 2) for word in ("one", "two", "three")]
    makes = [partial(sandbox.adispatch, edit) for edit in edits]
    runtime().run(lambda: gather(makes), label="three edits")
    assert plain.files["a.txt"] == b"oneone\ntwotwo\nthreethree\n"


def test_where_nothing_can_be_written_nothing_can_be_edited() -> None:
    sandbox = ReadsAndRuns({"a.txt": b"one"}).open()
    failure = sandbox.dispatch(BackendToolFilesEdit("a.txt", "one", "two"))
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == "unsupported_tool"


def test_a_long_output_of_any_backend_can_be_read(sandbox: BackendSandbox) -> None:
    result = sandbox.dispatch(BackendToolCommandRun("x"))
    assert isinstance(result, CommandResult)
    assert result.stdout_full is not None
    path = f"output:{result.stdout_full.digest[:12]}"
    part = sandbox.dispatch(BackendToolFilesRead(path, None, 29_999))
    assert part == FileContent(b"x", None, 30_000)
    sandbox.backend.close(sandbox)


NOTE = b"\n[... output truncated: 5000000 bytes left out; all of it is in /tmp/x.out ...]\n"


class Cuts(Plain):
    async def adispatch(self, native: str, op: BackendTool) -> ToolResult | bool:
        return CommandResult(0, b"x" * 30_000 + NOTE + b"y" * 30_000, b"", 1.0)


def test_what_a_backend_has_cut_is_not_called_the_whole() -> None:
    sandbox = Cuts().open()
    result = sandbox.dispatch(BackendToolCommandRun("x"))
    assert isinstance(result, CommandResult)
    assert result.stdout_full is None
    sandbox.backend.close(sandbox)


def test_who_prints_words_as_of_a_cut_is_kept_all_the_same() -> None:
    class Prints(Plain):
        async def adispatch(self, native: str, op: BackendTool) -> ToolResult | bool:
            return CommandResult(0, b"x" * 30_000 + NOTE + b"y" * 29_900, b"", 1.0)

    sandbox = Prints().open()
    result = sandbox.dispatch(BackendToolCommandRun("x"))
    assert isinstance(result, CommandResult)
    assert result.stdout_full is not None
    sandbox.backend.close(sandbox)


def test_where_the_disk_is_full_the_result_comes_all_the_same(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    result = sandbox.dispatch(BackendToolCommandRun("x"))
    assert isinstance(result, CommandResult)
    assert (len(result.stdout), result.stdout_full) == (30_000, None)
