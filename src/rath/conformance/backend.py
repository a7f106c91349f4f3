"""The contract of sandbox backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rath.backend import registry
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec
from rath.backend.results import (
    CodeResult,
    CommandResult,
    FileContent,
    FileEntries,
    FileWriteResult,
    ToolExecutionFailure,
)
from rath.backend.tool_types import (
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.conformance.report import Finding, Report, Unlike, expect
from rath.errors import BackendSandboxClosed

__all__ = ["check_backend"]

R = TypeVar("R")

_TEXT = "first\nzweite Zeile: äöü €\n"
_NOT_UTF8 = b"\xff\xfe\x00raw"


def check_backend(backend: Backend | str, *, spec: BackendSandboxSpec | None = None) -> Report:
    """Run the contract of a sandbox backend against it and return what was found.

    Every check opens a sandbox of its own and closes it. What `supported_calls` leaves out is
    skipped.

    Args:
        backend: An instance, or the name under which it is registered.
        spec: What to open; its workspace is written to.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
        BackendNotFound: No backend has that name.
    """
    subject = registry.get(backend) if isinstance(backend, str) else backend
    findings = tuple(_run(check, subject, spec) for check in _CHECKS)
    report = Report(f"{type(subject).__name__} {subject.name!r}", findings)
    if report.failed:
        raise AssertionError(str(report))
    return report


@dataclass(frozen=True, slots=True)
class _Check:
    run: Callable[[BackendSandbox], None]
    needs: Sequence[type[BackendTool]] = ()


def _run(check: _Check, backend: Backend, spec: BackendSandboxSpec | None) -> Finding:
    name = check.run.__name__.strip("_")
    missing = [each.__name__ for each in check.needs if each not in backend.supported_calls()]
    if missing:
        return Finding(name, "skipped", f"no {', '.join(missing)}")
    try:
        sandbox = backend.open(spec)
        try:
            check.run(sandbox)
        finally:
            backend.close(sandbox)
    except Exception as exc:  # noqa: BLE001  # whatever the subject raises is the finding
        return Finding(name, "failed", str(exc) if isinstance(exc, Unlike) else repr(exc))
    return Finding(name, "passed")


def _give(sandbox: BackendSandbox, call: BackendTool, kind: type[R]) -> R:
    result = sandbox.dispatch(call)
    if not isinstance(result, kind):
        raise Unlike(f"expected {kind.__name__} for {call!r}, got {result!r}")
    return result


def _fail(sandbox: BackendSandbox, call: BackendTool, kind: str) -> None:
    failure = _give(sandbox, call, ToolExecutionFailure)
    expect(failure.kind == kind, f"a failure of kind {kind!r} for {call!r}, got {failure!r}")
    expect(bool(failure.message), f"a failure with a message for {call!r}")


def _an_open_sandbox_has_a_handle_and_no_holder(sandbox: BackendSandbox) -> None:
    expect(bool(sandbox.handle), "a handle that is not empty")
    expect(not sandbox.closed, "an open sandbox")
    expect(sandbox.refcount == 0, f"refcount 0, got {sandbox.refcount}")
    expect(sandbox.backend.sandbox_count() >= 1, "sandbox_count to count it")


def _closing_twice_is_closing_once(sandbox: BackendSandbox) -> None:
    sandbox.backend.close(sandbox)
    sandbox.backend.close(sandbox)
    expect(sandbox.closed, "a closed sandbox")


def _a_closed_sandbox_refuses_work(sandbox: BackendSandbox) -> None:
    backend = sandbox.backend
    call = next(iter(_samples(backend)), None)
    backend.close(sandbox)
    if call is None:
        return
    result = backend.dispatch(sandbox, call)
    expect(
        isinstance(result, ToolExecutionFailure) and result.kind == "sandbox_closed",
        f"backend.dispatch to answer sandbox_closed, got {result!r}",
    )
    try:
        sandbox.dispatch(call)
    except BackendSandboxClosed:
        return
    raise Unlike("expected sandbox.dispatch to raise BackendSandboxClosed")


def _the_last_holder_closes(sandbox: BackendSandbox) -> None:
    with sandbox, sandbox:
        expect(sandbox.refcount == 2, f"refcount 2, got {sandbox.refcount}")
    expect(sandbox.closed, "a closed sandbox after the last release")


def _capabilities_and_supported_calls_agree(sandbox: BackendSandbox) -> None:
    offers, calls = sandbox.backend.capabilities(), sandbox.backend.supported_calls()
    expect(
        offers.supports_command == (BackendToolCommandRun in calls),
        "supports_command to say whether commands are supported",
    )
    expect(
        offers.supports_filesystem == (BackendToolFilesRead in calls),
        "supports_filesystem to say whether files are supported",
    )
    expect(
        offers.supports_code_interpreter == (BackendToolCodeRun in calls),
        "supports_code_interpreter to say whether code is supported",
    )


def _an_unknown_payload_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    class Unknown(BackendTool):
        pass

    _fail(sandbox, Unknown(), "unsupported_tool")


def _it_says_where_it_is(sandbox: BackendSandbox) -> None:
    place = sandbox.describe()
    expect(place.backend == sandbox.backend.name, f"its own name in {place!r}")
    expect(place.sandbox_id == sandbox.handle, f"its own handle in {place!r}")


def _text_comes_back_as_written(sandbox: BackendSandbox) -> None:
    written = _give(sandbox, BackendToolFilesWrite("a.txt", _TEXT), FileWriteResult)
    expect(written.bytes_written == len(_TEXT.encode()), f"the length in bytes, got {written!r}")
    content = _give(sandbox, BackendToolFilesRead("a.txt"), FileContent)
    expect(content.data == _TEXT, f"{_TEXT!r}, got {content.data!r}")


def _bytes_come_back_as_written(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.bin", _NOT_UTF8))
    content = _give(sandbox, BackendToolFilesRead("a.bin", None), FileContent)
    expect(content.data == _NOT_UTF8, f"{_NOT_UTF8!r}, got {content.data!r}")


def _a_write_replaces_the_whole_file(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "a long first content"))
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "short"))
    content = _give(sandbox, BackendToolFilesRead("a.txt"), FileContent)
    expect(content.data == "short", f"'short', got {content.data!r}")


def _a_write_makes_the_directories_above(sandbox: BackendSandbox) -> None:
    _give(sandbox, BackendToolFilesWrite("deep/er/a.txt", "x"), FileWriteResult)
    content = _give(sandbox, BackendToolFilesRead("deep/er/a.txt"), FileContent)
    expect(content.data == "x", f"'x', got {content.data!r}")


def _a_missing_file_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    _fail(sandbox, BackendToolFilesRead("missing.txt"), "file_not_found")


def _a_listing_is_sorted_and_tells_directories(sandbox: BackendSandbox) -> None:
    for path in ("b.txt", "a.txt", "c/d.txt"):
        sandbox.dispatch(BackendToolFilesWrite(path, path))
    found = _give(sandbox, BackendToolFilesList("."), FileEntries).entries
    mine = [(each.name, each.is_dir) for each in found if each.name in ("a.txt", "b.txt", "c")]
    expected = [("a.txt", False), ("b.txt", False), ("c", True)]
    expect(mine == expected, f"{expected!r}, got {mine!r}")
    entry = next(each for each in found if each.name == "a.txt")
    content = _give(sandbox, BackendToolFilesRead(entry.path), FileContent)
    expect(content.data == "a.txt", f"the entry's path to lead to it, got {content.data!r}")


def _a_path_exists_or_not(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("there/a.txt", "x"))
    for path, expected in (("there/a.txt", True), ("there", True), ("nowhere.txt", False)):
        found = sandbox.dispatch(BackendToolFilesExists(path))
        expect(found is expected, f"{expected} for {path!r}, got {found!r}")


def _a_command_tells_output_and_exit_code(sandbox: BackendSandbox) -> None:
    said = _give(sandbox, BackendToolCommandRun("echo hello"), CommandResult)
    expect((said.exit_code, said.stdout) == (0, b"hello\n"), f"hello and 0, got {said!r}")
    ended = _give(sandbox, BackendToolCommandRun("exit 3"), CommandResult)
    expect(ended.exit_code == 3, f"exit code 3, got {ended!r}")


def _a_command_gets_its_variables(sandbox: BackendSandbox) -> None:
    call = BackendToolCommandRun("printenv RATH_CHECK", env={"RATH_CHECK": "seen"})
    said = _give(sandbox, call, CommandResult)
    expect(said.stdout == b"seen\n", f"its variable, got {said!r}")


def _a_command_that_takes_too_long_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    _fail(sandbox, BackendToolCommandRun("sleep 30", timeout=0.1), "timeout")
    _give(sandbox, BackendToolCommandRun("echo still here"), CommandResult)


def _commands_and_files_share_the_workspace(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "shared\n"))
    said = _give(sandbox, BackendToolCommandRun("cat a.txt"), CommandResult)
    expect(said.stdout == b"shared\n", f"the file's content, got {said!r}")


def _code_tells_output_and_error(sandbox: BackendSandbox) -> None:
    said = _give(sandbox, BackendToolCodeRun("print(6 * 7)"), CodeResult)
    expect(said.stdout.strip() == b"42" and said.error is None, f"42, got {said!r}")
    broken = _give(sandbox, BackendToolCodeRun("raise ValueError('no')"), CodeResult)
    expect("ValueError" in (broken.error or ""), f"the error's name, got {broken!r}")


def _a_language_it_cannot_run_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    _fail(sandbox, BackendToolCodeRun("x", language="no-such-language"), "unsupported_tool")


def _samples(backend: Backend) -> list[BackendTool]:
    calls: list[BackendTool] = [BackendToolFilesExists("a.txt"), BackendToolCommandRun("echo x")]
    return [call for call in calls if type(call) in backend.supported_calls()]


_READ_WRITE = (BackendToolFilesRead, BackendToolFilesWrite)

_CHECKS = (
    _Check(_an_open_sandbox_has_a_handle_and_no_holder),
    _Check(_closing_twice_is_closing_once),
    _Check(_a_closed_sandbox_refuses_work),
    _Check(_the_last_holder_closes),
    _Check(_capabilities_and_supported_calls_agree),
    _Check(_an_unknown_payload_is_a_failure_to_read),
    _Check(_it_says_where_it_is),
    _Check(_text_comes_back_as_written, _READ_WRITE),
    _Check(_bytes_come_back_as_written, _READ_WRITE),
    _Check(_a_write_replaces_the_whole_file, _READ_WRITE),
    _Check(_a_write_makes_the_directories_above, _READ_WRITE),
    _Check(_a_missing_file_is_a_failure_to_read, _READ_WRITE),
    _Check(_a_listing_is_sorted_and_tells_directories, (*_READ_WRITE, BackendToolFilesList)),
    _Check(_a_path_exists_or_not, (*_READ_WRITE, BackendToolFilesExists)),
    _Check(_a_command_tells_output_and_exit_code, (BackendToolCommandRun,)),
    _Check(_a_command_gets_its_variables, (BackendToolCommandRun,)),
    _Check(_a_command_that_takes_too_long_is_a_failure_to_read, (BackendToolCommandRun,)),
    _Check(_commands_and_files_share_the_workspace, (*_READ_WRITE, BackendToolCommandRun)),
    _Check(_code_tells_output_and_error, (BackendToolCodeRun,)),
    _Check(_a_language_it_cannot_run_is_a_failure_to_read, (BackendToolCodeRun,)),
)
