"""The sandbox in memory that tests use."""

from __future__ import annotations

import pytest

from rath.backend import (
    BackendToolCommandRun,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    CommandResult,
    ToolExecutionFailure,
)
from rath.testing import CommandAnswer, FakeBackend

FAILED = CommandResult(2, b"", b"no", 1.0)


def where(call: BackendToolCommandRun) -> CommandAnswer:
    return call.cwd or ""


LOST = ToolExecutionFailure("timeout", "too slow")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param("text", CommandResult(0, b"text", b"", 0.0), id="text"),
        pytest.param(FAILED, FAILED, id="result"),
        pytest.param(LOST, LOST, id="failure"),
        pytest.param(where, CommandResult(0, b"sub", b"", 0.0), id="function"),
    ],
)
def test_a_scripted_command_answers_as_scripted(
    answer: CommandAnswer, expected: CommandResult | ToolExecutionFailure
) -> None:
    backend = FakeBackend({"make 'it": answer})
    with backend.open() as sandbox:
        assert sandbox.dispatch(BackendToolCommandRun("make 'it", cwd="sub")) == expected


def test_a_command_that_nobody_scripted_is_not_found() -> None:
    with FakeBackend().open() as sandbox:
        result = sandbox.dispatch(BackendToolCommandRun(["rm", "-rf", "/"]))
    assert result == CommandResult(127, b"", b"not scripted: rm -rf /\n", 0.0)


def test_every_payload_is_preserved() -> None:
    backend = FakeBackend()
    calls = [BackendToolFilesWrite("a", "x"), BackendToolFilesRead("a")]
    with backend.open() as sandbox:
        for call in calls:
            sandbox.dispatch(call)
    assert backend.calls == calls


@pytest.mark.parametrize(
    ("path", "encoding", "kind"),
    [
        ("missing", "utf-8", "file_not_found"),
        ("../out", "utf-8", "path_outside_workspace"),
        ("raw", "utf-8", "decode_error"),
    ],
)
def test_what_goes_wrong_is_a_failure(path: str, encoding: str, kind: str) -> None:
    with FakeBackend().open() as sandbox:
        sandbox.dispatch(BackendToolFilesWrite("raw", b"\xff"))
        result = sandbox.dispatch(BackendToolFilesRead(path, encoding))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == kind
