"""What a handle adds to any backend: parts, edits, long outputs to read later."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO

import pytest

from rath._async.lanes import gather
from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import (
    Backend,
    BackendSandbox,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesEdit,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    Capabilities,
    CodeResult,
    CommandResult,
    FileContent,
    FileEditResult,
    FileWriteResult,
    IsolationLevel,
    ToolExecutionFailure,
    ToolResult,
)
from rath.backend.fallbacks import (
    LONG_OUTPUT_BYTES,
    MAX_OUTPUTS,
    MAX_OUTPUTS_BYTES,
    StoredOutputs,
    output_path,
)
from rath.backend.host.process import MAX_OUTPUT_BYTES, MAX_WHOLE_BYTES, Capture, finish
from tests.support.api import MAX_STREAM_CHARS, ResultText, encode_result
from tests.support.waiting import at_a_deadline
from tests.support.workspaces import run


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
def plain_sandbox(plain: Plain) -> BackendSandbox:
    return plain.open()


def test_ranges_of_lines_are_read(plain_sandbox: BackendSandbox, plain: Plain) -> None:
    part = plain_sandbox.dispatch(BackendToolFilesRead("a.txt", offset=1, limit=1))
    assert part == FileContent("two\n", 2, 3)
    assert plain.calls == [BackendToolFilesRead("a.txt")]


def test_ranges_of_bytes_are_read(plain_sandbox: BackendSandbox) -> None:
    part = plain_sandbox.dispatch(BackendToolFilesRead("a.txt", None, 4, 3))
    assert part == FileContent(b"two", 7, 14)


def test_a_complete_file_is_passed_on_as_it_is(plain_sandbox: BackendSandbox) -> None:
    assert plain_sandbox.dispatch(BackendToolFilesRead("a.txt")) == FileContent("one\ntwo\nthree\n")


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
def test_what_fails_is_a_value(plain_sandbox: BackendSandbox, op: BackendTool, kind: str) -> None:
    failure = plain_sandbox.dispatch(op)
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == kind


def test_a_file_is_edited_by_reading_and_writing_it(
    plain_sandbox: BackendSandbox, plain: Plain
) -> None:
    result = plain_sandbox.dispatch(BackendToolFilesEdit("a.txt", "two", "2"))
    assert isinstance(result, FileEditResult)
    assert plain.files["a.txt"] == b"one\n2\nthree\n"
    assert "-two\n+2\n" in result.diff


def test_edits_of_one_sandbox_wait_for_each_other(
    plain_sandbox: BackendSandbox, plain: Plain
) -> None:
    edits = [BackendToolFilesEdit("a.txt", word, word * 2) for word in ("one", "two", "three")]
    makes = [partial(plain_sandbox.adispatch, edit) for edit in edits]
    runtime().run(lambda: gather(makes), label="three edits")
    assert plain.files["a.txt"] == b"oneone\ntwotwo\nthreethree\n"


def test_where_nothing_can_be_written_nothing_can_be_edited() -> None:
    plain_sandbox = ReadsAndRuns({"a.txt": b"one"}).open()
    failure = plain_sandbox.dispatch(BackendToolFilesEdit("a.txt", "one", "two"))
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == "unsupported_tool"


def test_a_long_output_of_any_backend_can_be_read(plain_sandbox: BackendSandbox) -> None:
    result = plain_sandbox.dispatch(BackendToolCommandRun("x"))
    assert isinstance(result, CommandResult)
    assert result.stdout_full is not None
    path = f"output:{result.stdout_full.digest[:12]}"
    part = plain_sandbox.dispatch(BackendToolFilesRead(path, None, 29_999))
    assert part == FileContent(b"x", None, 30_000)
    plain_sandbox.backend.close(plain_sandbox)


NOTE = b"\n[... output truncated: 5000000 bytes left out; all of it is in /tmp/x.out ...]\n"


class Cuts(Plain):
    async def adispatch(self, native: str, op: BackendTool) -> ToolResult | bool:
        return CommandResult(0, b"x" * 30_000 + NOTE + b"y" * 30_000, b"", 1.0)


def test_an_output_that_a_backend_has_cut_is_not_called_complete() -> None:
    plain_sandbox = Cuts().open()
    result = plain_sandbox.dispatch(BackendToolCommandRun("x"))
    assert isinstance(result, CommandResult)
    assert result.stdout_full is None
    plain_sandbox.backend.close(plain_sandbox)


def test_who_prints_words_as_of_a_cut_is_preserved_all_the_same() -> None:
    class Prints(Plain):
        async def adispatch(self, native: str, op: BackendTool) -> ToolResult | bool:
            return CommandResult(0, b"x" * 30_000 + NOTE + b"y" * 29_900, b"", 1.0)

    plain_sandbox = Prints().open()
    result = plain_sandbox.dispatch(BackendToolCommandRun("x"))
    assert isinstance(result, CommandResult)
    assert result.stdout_full is not None
    plain_sandbox.backend.close(plain_sandbox)


def test_where_the_disk_is_full_the_result_comes_all_the_same(
    plain_sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    result = plain_sandbox.dispatch(BackendToolCommandRun("x"))
    assert isinstance(result, CommandResult)
    assert (len(result.stdout), result.stdout_full) == (30_000, None)


def read(
    sandbox: BackendSandbox, path: str, *, offset: int = 0, limit: int | None = None
) -> FileContent:
    content = sandbox.dispatch(BackendToolFilesRead(path, offset=offset, limit=limit))
    assert isinstance(content, FileContent)
    return content


def directories(temporary: Path) -> list[str]:
    return [name for name in os.listdir(temporary) if name.startswith("rath-output-")]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


def test_a_short_output_is_not_preserved(sandbox: BackendSandbox, temporary: Path) -> None:
    result = run(sandbox, f"head -c {LONG_OUTPUT_BYTES} /dev/zero")
    assert (result.stdout_full, result.stderr_full) == (None, None)
    assert directories(temporary) == []


def test_a_long_output_is_read_in_parts_by_its_digest(sandbox: BackendSandbox) -> None:
    result = run(sandbox, "seq 10000; seq 20000 >&2")
    whole = "".join(f"{n}\n" for n in range(1, 10001))
    assert result.stdout_full is not None
    assert result.stdout_full.data == whole.encode()
    path = output_path(sha256(whole.encode()).hexdigest())
    assert read(sandbox, path) == FileContent(whole)
    assert read(sandbox, path, offset=500, limit=2) == FileContent("501\n502\n", 502, 10000)
    assert result.stderr_full is not None
    assert read(sandbox, f"output:{result.stderr_full.digest}", offset=19999).data == "20000\n"


def test_an_output_that_is_cut_is_preserved_complete(sandbox: BackendSandbox) -> None:
    result = run(sandbox, "echo BEGIN; head -c 3000000 /dev/zero | tr '\\0' x; echo END")
    whole = b"BEGIN\n" + b"x" * 3_000_000 + b"END\n"
    assert len(result.stdout) < MAX_OUTPUT_BYTES + 100
    assert (result.stdout[:6], result.stdout[-5:]) == (b"BEGIN\n", b"xEND\n")
    assert b"truncated: 1951434 bytes" in result.stdout
    assert result.stdout_full is not None
    assert result.stdout_full.data == whole
    assert result.stdout_full.digest == sha256(whole).hexdigest()
    assert read(sandbox, output_path(result.stdout_full.digest)).data == whole.decode()


def test_of_a_huge_output_the_digest_and_both_ends_are_preserved(sandbox: BackendSandbox) -> None:
    size = MAX_WHOLE_BYTES + 5
    result = run(sandbox, f"head -c {size - 4} /dev/zero; echo END")
    assert result.stdout_full is not None
    assert (result.stdout_full.size, result.stdout_full.data) == (size, None)
    assert result.stdout_full.digest == sha256(bytes(size - 4) + b"END\n").hexdigest()
    assert read(sandbox, output_path(result.stdout_full.digest)).data == result.stdout.decode()


_HUGE = """
import resource, sys
from rath.backend import BackendSandboxSpec, BackendToolCommandRun
from rath.backend.local import LocalBackend
backend = LocalBackend()
sandbox = backend.open(BackendSandboxSpec(working_dir=sys.argv[1]))
def peak(size):
    sandbox.dispatch(BackendToolCommandRun(f"head -c {size} /dev/zero"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
small = peak(1000)
print(peak(int(sys.argv[2])) - small)
backend.close(sandbox)
"""


def test_a_huge_output_takes_bounded_memory(tmp_path: Path) -> None:
    # In a process of its own: another test may have just given back more than this takes.
    size = 8 * MAX_WHOLE_BYTES
    argv = [sys.executable, "-c", _HUGE, str(tmp_path), str(size)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert int(said.stdout) * 1024 < 4 * MAX_WHOLE_BYTES


def test_output_of_code_is_preserved_too(sandbox: BackendSandbox) -> None:
    result = sandbox.dispatch(BackendToolCodeRun("print('y' * 30000)"))
    assert isinstance(result, CodeResult)
    assert result.stdout_full is not None
    assert read(sandbox, output_path(result.stdout_full.digest)).data == "y" * 30000 + "\n"


def test_output_that_is_no_text_is_read_all_the_same(sandbox: BackendSandbox) -> None:
    result = run(sandbox, "head -c 30000 /dev/zero | tr '\\0' '\\377'")
    assert result.stdout_full is not None
    path = output_path(result.stdout_full.digest)
    assert read(sandbox, path).data == "\ufffd" * 30000
    raw = sandbox.dispatch(BackendToolFilesRead(path, None, 0, 3))
    assert raw == FileContent(b"\xff\xff\xff", 3, 30000)


def test_an_output_that_is_not_preserved_is_a_failure(sandbox: BackendSandbox) -> None:
    failure = sandbox.dispatch(BackendToolFilesRead("output:0123456789ab"))
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == "output_not_kept"


def test_a_file_may_look_like_an_output(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "output:0123456789ab").write_text("a file")
    assert read(sandbox, "./output:0123456789ab").data == "a file"


def test_what_was_preserved_goes_with_its_sandbox(sandbox: BackendSandbox, temporary: Path) -> None:
    run(sandbox, "seq 10000")
    (kept,) = directories(temporary)
    assert (temporary / kept).stat().st_mode & 0o777 == 0o700
    sandbox.backend.close(sandbox)
    assert directories(temporary) == []


def test_what_was_preserved_goes_with_a_handle_that_nobody_closes(
    workspace: Path, temporary: Path
) -> None:
    program = """
import sys
from rath.backend import BackendSandbox, BackendToolCommandRun
from rath.backend.local import LocalBackend
sandbox = BackendSandbox(LocalBackend(), sys.argv[1])
print(sandbox.dispatch(BackendToolCommandRun("seq 10000")).stdout_full.size)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "-c", program, str(workspace)], env=env, check=True)
    assert directories(temporary) == []


def test_the_oldest_go_first(temporary: Path) -> None:
    outputs = StoredOutputs()
    for n in range(MAX_OUTPUTS + 2):
        outputs.store(f"{n:064x}", b"data")
    (kept,) = directories(temporary)
    assert len(os.listdir(temporary / kept)) == MAX_OUTPUTS
    assert isinstance(outputs.read(BackendToolFilesRead(f"output:{1:064x}")), ToolExecutionFailure)
    assert outputs.read(BackendToolFilesRead(f"output:{2:064x}")) == FileContent("data")
    outputs.store("f" * 64, bytes(MAX_OUTPUTS_BYTES))
    assert os.listdir(temporary / kept) == ["f" * 64]
    outputs.close()
    outputs.store("e" * 64, b"too late")
    assert directories(temporary) == []


def test_the_model_learns_where_the_rest_is(sandbox: BackendSandbox) -> None:
    result = run(sandbox, "seq 10000")
    told = encode_result(result)
    shown = json.loads(told.shown)
    assert len(shown["stdout"]) <= MAX_STREAM_CHARS
    assert shown["truncated"] is True
    assert read(sandbox, shown["kept"]["stdout"]).data == result.stdout.decode()
    assert "read_workspace_file" in shown["how_to_read"]
    assert json.loads(told.full or "")["stdout"] == result.stdout.decode()


def test_the_record_has_the_full_text_of_a_cut_output(sandbox: BackendSandbox) -> None:
    told = encode_result(run(sandbox, "seq 300000"))
    assert json.loads(told.full or "")["stdout"] == "".join(f"{n}\n" for n in range(1, 300_001))


def test_the_record_names_what_is_too_long_for_it_by_its_digest(sandbox: BackendSandbox) -> None:
    result = run(sandbox, "head -c 5000000 /dev/zero | tr '\\0' x")
    full = json.loads(encode_result(result).full or "")
    assert full["stdout_bytes"] == 5_000_000
    assert full["stdout_sha256"] == sha256(b"x" * 5_000_000).hexdigest()


def test_what_a_late_command_had_printed_is_cut_for_the_model(sandbox: BackendSandbox) -> None:
    def run_until(deadline: float) -> ResultText:
        call = BackendToolCommandRun("seq 20000; sleep 30", timeout=deadline)
        return encode_result(sandbox.dispatch(call))

    told = at_a_deadline(run_until, lambda told: "\\n20000\\n" in (told.full or ""))
    shown = json.loads(told.shown)
    assert (shown["error_kind"], shown["truncated"]) == ("timeout", True)
    assert len(shown["detail"]) <= MAX_STREAM_CHARS
    assert json.loads(told.full or "")["detail"].endswith("\n20000\n")


def test_a_capture_that_is_dropped_leaves_nothing_open() -> None:
    async def capture() -> None:
        held = Capture()
        writer = os.dup(held.writer)
        held.drop()
        held.drop()
        with pytest.raises(BrokenPipeError):
            os.write(writer, b"x")
        os.close(writer)

    runtime().run(capture, label="a capture")


def full_file(**_: object) -> IO[bytes]:
    return open("/dev/full", "r+b", buffering=0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_where_the_disk_is_full_the_command_goes_on_and_its_output_says_so(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", full_file)
    result = run(sandbox, "yes aaaaaaa | head -c 12000000; echo END")
    assert (result.exit_code, result.stderr) == (0, b"")
    assert result.stdout.endswith(b"aaaaaaa\nEND\n")
    assert b"left out, and not kept: the temporary directory is full" in result.stdout
    assert result.stdout_full is not None
    whole = b"aaaaaaa\n" * 1_500_000 + b"END\n"
    assert result.stdout_full == Blob(sha256(whole).hexdigest(), len(whole))
    assert result.stdout_full.data is None


def test_without_a_temporary_directory_the_command_goes_on(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    result = run(sandbox, "head -c 3000000 /dev/zero; echo END")
    assert (result.exit_code, result.stdout[-4:]) == (0, b"END\n")
    assert result.stdout_full == Blob(sha256(bytes(3_000_000) + b"END\n").hexdigest(), 3_000_004)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_where_the_second_stream_cannot_be_read_the_first_is_let_go(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sandbox, "true")
    first = os.pipe()
    pipes, known_as = iter([first]), os.path.realpath(f"/proc/self/fd/{first[0]}")

    def pipe() -> tuple[int, int]:
        for made in pipes:
            return made
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.pipe", pipe)
    failed = sandbox.dispatch(BackendToolCommandRun("true"))
    monkeypatch.undo()
    assert isinstance(failed, ToolExecutionFailure)
    assert known_as not in {os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()}


def test_a_flood_that_never_ends_is_read_no_longer_than_wanted() -> None:
    async def capture() -> int:
        held = Capture()
        process = await runtime().call_in_worker(lambda: os.posix_spawn(
            "/bin/cat", ["cat", "/dev/zero"], {},
            file_actions=[(os.POSIX_SPAWN_DUP2, held.writer, 1)], setsigdef=[signal.SIGPIPE],
        ))  # fmt: skip
        held.close_writer()
        await finish(held)
        held.drop()
        return process

    pid = runtime().run(capture, label="a capture")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -13
