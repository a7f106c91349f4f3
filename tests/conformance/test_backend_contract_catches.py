"""The contract of sandbox backends, run against broken ones: each fails the check it must fail."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import (
    Backend,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesEdit,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    Capabilities,
    CommandResult,
    EffectPolicy,
    FileContent,
    FileEffect,
    IsolationLevel,
    Seed,
    ToolExecutionFailure,
    ToolResult,
)
from rath.backend.effects import note_effect
from rath.backend.host.sandbox import HostSandbox
from rath.backend.local import LocalBackend
from rath.conformance import check_backend
from rath.testing import FakeBackend, FakeSandbox
from tests.support.contracts import failed_checks


def failures(backend: Backend, spec: BackendSandboxSpec | None = None) -> dict[str, str]:
    """The checks that fail, with what they say."""
    return failed_checks(check_backend, backend, spec=spec)


# ---------------------------------------------------------------- lifetime


class NeverForgets(FakeBackend):
    """Counts what was closed."""

    async def aclose(self, native: FakeSandbox) -> None:
        pass


def test_a_sandbox_that_is_counted_after_its_end_is_caught() -> None:
    assert list(failures(NeverForgets())) == ["closing_twice_is_closing_once"]


class Modest(FakeBackend):
    """Runs commands and says that it does not."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        return replace(super().capabilities(), supports_command=False)


def test_capabilities_that_contradict_the_calls_are_caught() -> None:
    assert list(failures(Modest())) == ["capabilities_and_supported_calls_agree"]


# ---------------------------------------------------------------- files


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


def test_a_broken_backend_is_reported_what_is_wrong() -> None:
    with pytest.raises(AssertionError) as caught:
        check_backend(Forgetful())
    text = str(caught.value)
    assert "failed  text_comes_back_as_written: OSError('disk full')" in text
    assert "failed  a_command_tells_output_and_exit_code: expected hello and 0" in text
    assert "passed  closing_twice_is_closing_once" in text


class ReadsOn(FakeBackend):
    """Says that it obeys `limit`, and does not."""

    reads_parts = True

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        if isinstance(op, BackendToolFilesRead):
            op = replace(op, limit=None)
        return await super().adispatch(native, op)


def test_a_limit_that_is_ignored_is_caught() -> None:
    found = failures(ReadsOn())
    assert list(found) == ["lines_are_read_in_parts", "bytes_are_read_in_parts"]
    assert found["lines_are_read_in_parts"].startswith("expected 4 lines")


class EditsAll(FakeBackend):
    """Replaces each place, whatever was asked for."""

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        if isinstance(op, BackendToolFilesEdit):
            op = replace(op, replace_all=True)
        return await super().adispatch(native, op)


def test_an_edit_of_more_than_one_place_is_caught() -> None:
    assert list(failures(EditsAll())) == ["an_edit_that_is_not_clear_changes_nothing"]


class FollowsLinks(LocalBackend):
    """Looks at the words of a path alone."""

    async def adispatch(self, native: HostSandbox, op: BackendTool) -> ToolResult | bool:
        if isinstance(op, BackendToolFilesRead) and _is_over_a_link(native, op.path):
            return ToolExecutionFailure("file_not_found", f"no file at {op.path!r}")
        return await super().adispatch(native, op)


def _is_over_a_link(native: HostSandbox, path: str) -> bool:
    return Path(native.workspace.root, Path(path).parts[0]).is_symlink()


def test_a_link_that_leads_out_is_caught() -> None:
    assert list(failures(FollowsLinks())) == ["a_link_that_leads_out_is_a_failure_to_read"]


# ---------------------------------------------------------------- commands


class LeavesOrphans(LocalBackend):
    """Ends a command that takes too long, and nothing that it started."""

    async def adispatch(self, native: HostSandbox, op: BackendTool) -> ToolResult | bool:
        if isinstance(op, BackendToolCommandRun) and op.timeout is not None:
            return await runtime().call_in_worker(partial(_ended_alone, native, op))
        return await super().adispatch(native, op)


def _ended_alone(native: HostSandbox, op: BackendToolCommandRun) -> ToolResult:
    assert isinstance(op.cmd, str)
    try:
        subprocess.run(["/bin/sh", "-c", f"exec 3>&- ; {op.cmd}"], cwd=native.workspace.root,
                       timeout=op.timeout, check=False)  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        return ToolExecutionFailure("timeout", str(exc))
    raise AssertionError("no command of the contract with a deadline ends before it")


def test_a_process_that_outlives_its_deadline_is_caught() -> None:
    found = failures(LeavesOrphans())
    assert found.keys() <= {
        "after_a_timeout_nothing_goes_on",
        "after_a_timeout_nothing_of_another_session_goes_on",
    }
    assert "outlived its command" in found["after_a_timeout_nothing_goes_on"]


class PassesOn(LocalBackend):
    """Gives commands every variable of this process."""

    async def adispatch(self, native: HostSandbox, op: BackendTool) -> ToolResult | bool:
        if isinstance(op, BackendToolCommandRun):
            op = replace(op, env={**os.environ, **(op.env or {})})
        return await super().adispatch(native, op)


def test_variables_that_are_passed_on_are_caught() -> None:
    assert list(failures(PassesOn())) == ["variables_of_this_process_are_hidden"]


# ---------------------------------------------------------------- effects


class SaysCreated(FakeBackend):
    """Says of each write that it created the file."""

    async def adispatch(self, native: FakeSandbox, op: BackendTool) -> ToolResult | bool:
        if not isinstance(op, BackendToolFilesWrite):
            return await super().adispatch(native, op)
        data = op.data.encode() if isinstance(op.data, str) else op.data
        native.put(op.path, data)
        note_effect(FileEffect(op.path, "created", None, Blob.from_bytes(data)))
        return await super().adispatch(native, op)


def test_effects_that_are_not_true_are_caught() -> None:
    found = failures(SaysCreated())
    assert "file_tools_tell_exactly_what_they_changed" in found


class SeesNothing(LocalBackend):
    """Says that it observes effects, and tells none of commands."""

    async def aopen(self, spec: BackendSandboxSpec | None) -> HostSandbox:
        policy = EffectPolicy(is_on=False)
        return await super().aopen(replace(spec or BackendSandboxSpec(), effects=policy))


def test_effects_that_are_not_reported_are_caught() -> None:
    assert list(failures(SeesNothing())) == ["commands_tell_what_they_changed"]


# ---------------------------------------------------------------- workspaces


class Shares(FakeBackend):
    """Gives a copy the very files of its source."""

    async def aopen_copy(self, seed: Seed, spec: BackendSandboxSpec | None) -> FakeSandbox:
        copy = await super().aopen_copy(seed, spec)
        copy.is_frozen = False
        return copy


def test_a_copy_that_shares_its_files_is_caught() -> None:
    found = failures(Shares())
    assert "two_copies_are_independent" in found
    assert all("cop" in name or "other" in name for name in found)


# ---------------------------------------------------------------- confinement


class Boasts(LocalBackend):
    """Says that commands are confined, and confines none."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        return replace(super().capabilities(), confines_commands=True)


def test_a_confinement_that_is_none_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(failures(Boasts())) == [
        "files_of_this_host_are_not_written",
        "secrets_in_the_home_are_not_read",
        "the_network_is_not_reached",
        "processes_of_this_host_are_not_reached",
        "more_privileges_are_not_had",
    ]


class Machine(Boasts):
    """Says the same of a machine of its own."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        return replace(super().capabilities(), isolation=IsolationLevel.VM)


def test_what_a_spec_or_a_machine_allows_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "no-such-home"))
    assert list(failures(Machine(), BackendSandboxSpec(network=True))) == [
        "files_of_this_host_are_not_written",
        "processes_of_this_host_are_not_reached",
    ]
