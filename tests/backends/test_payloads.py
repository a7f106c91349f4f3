"""Payloads, results and errors are plain values."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from rath.backend import (
    BackendError,
    BackendNotFound,
    BackendSandboxClosed,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    Capabilities,
    CodeResult,
    CommandResult,
    FileContent,
    FileEntries,
    FileEntry,
    FileWriteResult,
    IsolationLevel,
    ToolExecutionFailure,
    ToolResult,
    UnsupportedBackendTool,
)
from rath.backend.results import tool_failure_from

PAYLOADS = [
    BackendToolCommandRun("ls", cwd="a", stdin=b"x", timeout=1.0),
    BackendToolFilesRead("a"),
    BackendToolFilesWrite("a", b"x"),
    BackendToolFilesList("a"),
    BackendToolFilesExists("a"),
    BackendToolCodeRun("1"),
]
RESULTS = [
    CommandResult(0, b"", b"", 1.0),
    FileContent("x"),
    FileEntries((FileEntry("a", "/a", False),)),
    FileWriteResult(1),
    CodeResult(None, b"", b"", None),
    ToolExecutionFailure("timeout", "too slow"),
]


@pytest.mark.parametrize("value", [*PAYLOADS, *RESULTS], ids=lambda value: type(value).__name__)
def test_a_value_survives_pickling_and_can_be_hashed(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert len({value, pickle.loads(pickle.dumps(value))}) == 1


@pytest.mark.parametrize("value", [*PAYLOADS, *RESULTS], ids=lambda value: type(value).__name__)
def test_a_value_is_frozen_and_marked(value: object) -> None:
    assert isinstance(value, (BackendTool, ToolResult))
    assert not hasattr(value, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, None)  # type: ignore[arg-type]  # all are dataclasses


@pytest.mark.parametrize(
    "error",
    [
        BackendNotFound("x", ["local"], " Did you mean 'y'?"),
        BackendSandboxClosed("h"),
        UnsupportedBackendTool(BackendToolCodeRun, "x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling(error: BackendError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_spec_can_be_changed_and_is_empty_at_first() -> None:
    spec = BackendSandboxSpec()
    spec.image = "x"
    assert spec == BackendSandboxSpec(image="x")


def test_capabilities_can_be_compared_and_hashed() -> None:
    offers = Capabilities(IsolationLevel.CONTAINER, True, True, False)
    assert {offers} == {Capabilities(IsolationLevel.CONTAINER, True, True, False)}
    assert offers.isolation == "container"


def test_a_failure_is_made_from_an_error() -> None:
    assert tool_failure_from("os_error", OSError("full")) == ToolExecutionFailure(
        "os_error", "full", "OSError"
    )
    assert tool_failure_from("os_error", OSError("full"), "disk").detail == "disk"
