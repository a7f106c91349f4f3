"""The contract of sandbox backends, run against ours and against broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from rath.backend import (
    Backend,
    BackendNotFound,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    CommandResult,
    FileContent,
    ToolResult,
)
from rath.backend.local import LocalBackend
from rath.conformance import check_backend
from rath.testing import FakeBackend, FakeSandbox


@pytest.mark.parametrize("backend", [LocalBackend(), FakeBackend()], ids=lambda each: each.name)
def test_our_backends_keep_the_contract(backend: Backend) -> None:
    report = check_backend(backend)
    assert report.failed == ()
    assert backend.sandbox_count() == 0


def test_a_backend_is_found_by_its_name(tmp_path: Path) -> None:
    report = check_backend("local", spec=BackendSandboxSpec(working_dir=str(tmp_path)))
    assert report.subject == "LocalBackend 'local'"
    assert all(finding.status == "passed" for finding in report.findings)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(BackendNotFound):
        check_backend("no-such")


def test_what_is_not_supported_is_skipped_and_said() -> None:
    skipped = [each for each in check_backend(FakeBackend()).findings if each.status == "skipped"]
    assert {each.detail for each in skipped} == {"no BackendToolCodeRun"}


class Forgetful(FakeBackend):
    """Reads nothing back, and raises where it should answer."""

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        if isinstance(op, BackendToolFilesRead):
            return FileContent("")
        if isinstance(op, BackendToolFilesWrite):
            raise OSError("disk full")
        if isinstance(op, BackendToolCommandRun):
            return CommandResult(0, b"", b"", 0.0)
        return await super().adispatch(native, op)


def test_a_broken_backend_is_told_what_is_wrong() -> None:
    with pytest.raises(AssertionError) as caught:
        check_backend(Forgetful())
    text = str(caught.value)
    assert "failed  text_comes_back_as_written: OSError('disk full')" in text
    assert "failed  a_command_tells_output_and_exit_code: expected hello and 0" in text
    assert "passed  closing_twice_is_closing_once" in text
