"""How sandboxes are opened, counted, described and closed."""

from __future__ import annotations

from rath.backend.abc import Backend, BackendSandbox
from rath.backend.results import ToolExecutionFailure
from rath.backend.tool_types import (
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
)
from rath.conformance.report import Unlike, expect
from rath.conformance.sandbox.subject import Check, fail
from rath.errors import BackendSandboxClosed

__all__ = ["CHECKS"]


def an_open_sandbox_has_a_handle_and_no_holder(sandbox: BackendSandbox) -> None:
    expect(bool(sandbox.handle), "a handle that is not empty")
    expect(not sandbox.closed, "an open sandbox")
    expect(sandbox.refcount == 0, f"refcount 0, got {sandbox.refcount}")
    expect(sandbox.backend.sandbox_count() >= 1, "sandbox_count to count it")


def closing_twice_is_closing_once(sandbox: BackendSandbox) -> None:
    backend = sandbox.backend
    before = backend.sandbox_count()
    backend.close(sandbox)
    backend.close(sandbox)
    expect(sandbox.closed, "a closed sandbox")
    after = backend.sandbox_count()
    expect(after == before - 1, f"sandbox_count {before - 1} afterwards, got {after}")


def a_closed_sandbox_refuses_work(sandbox: BackendSandbox) -> None:
    backend = sandbox.backend
    call = next(iter(samples(backend)), None)
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


def the_last_holder_closes(sandbox: BackendSandbox) -> None:
    with sandbox, sandbox:
        expect(sandbox.refcount == 2, f"refcount 2, got {sandbox.refcount}")
    expect(sandbox.closed, "a closed sandbox after the last release")


def capabilities_and_supported_calls_agree(sandbox: BackendSandbox) -> None:
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


def an_unknown_payload_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    class Unknown(BackendTool):
        pass

    fail(sandbox, Unknown(), "unsupported_tool")


def it_says_where_it_is(sandbox: BackendSandbox) -> None:
    place = sandbox.describe()
    expect(place.backend == sandbox.backend.name, f"its own name in {place!r}")
    expect(place.sandbox_id == sandbox.handle, f"its own handle in {place!r}")


def samples(backend: Backend) -> list[BackendTool]:
    """Return one payload of each of two kinds, where the backend supports them."""
    calls: list[BackendTool] = [BackendToolFilesExists("a.txt"), BackendToolCommandRun("echo x")]
    return [call for call in calls if type(call) in backend.supported_calls()]


def what_opens_lazily_opens_on_first_use(sandbox: BackendSandbox) -> None:
    backend = sandbox.backend
    lazy = backend.lazy(sandbox.spec)
    expect(lazy.handle == "", f"no handle before the first use, got {lazy.handle!r}")
    for call in samples(backend)[:1]:
        lazy.dispatch(call)
        expect(bool(lazy.handle), "a handle after the first use")
    backend.close(lazy)


_FEATURE = "Opening, counting, closing"

CHECKS = (
    Check(_FEATURE, an_open_sandbox_has_a_handle_and_no_holder),
    Check(_FEATURE, what_opens_lazily_opens_on_first_use),
    Check(_FEATURE, closing_twice_is_closing_once),
    Check(_FEATURE, a_closed_sandbox_refuses_work),
    Check(_FEATURE, the_last_holder_closes),
    Check(_FEATURE, capabilities_and_supported_calls_agree),
    Check(_FEATURE, an_unknown_payload_is_a_failure_to_read),
    Check("Says where it ran", it_says_where_it_is),
)
