"""Where tools run: chosen at once, opened on first use, shared by derivations, given back once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.errors import BackendNotFound, BackendSandboxClosed
from rath.session import Session
from rath.session.bindings import Placement
from rath.testing import FakeBackend, tool_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import wait_until_let_go


class Here(FakeBackend):
    """A backend with a name that no other test gives away."""

    name = "here"


@given(n_shares=st.integers(0, 6))
def test_each_share_holds_one_count_also_before_first_use(n_shares: int) -> None:
    placement = Placement(sandbox=Here().lazy())
    sandbox = placement.held()
    shares = [placement.share() for _ in range(n_shares)]
    assert [share.held() for share in shares] == [sandbox] * n_shares
    assert sandbox.refcount == 1 + n_shares
    for left, share in zip(reversed(range(n_shares)), shares, strict=True):
        share.drop()
        share.drop()
        assert sandbox.refcount == 1 + left
    placement.drop()
    assert sandbox.closed


def test_a_closed_sandbox_is_refused_with_a_way_out() -> None:
    backend = Here()
    placement = Placement(sandbox=backend.open())
    backend.close(placement.held())
    with pytest.raises(RuntimeError, match=r"closed; place the session again.*to\('here'\)"):
        placement.held()


def test_only_a_sandbox_that_was_closed_is_forgotten() -> None:
    backend = Here()
    placement = Placement(sandbox=backend.open())
    sandbox = placement.held()
    placement.drop_if_closed()
    assert placement.sandbox is sandbox
    backend.close(sandbox)
    placement.drop_if_closed()
    with pytest.raises(BackendNotFound, match="'here'"):
        placement.held()  # the place is kept, and no backend of that name is registered


def test_a_run_holds_the_sandbox_until_it_ends() -> None:
    backend = Here()
    counts: list[int] = []
    sandbox = backend.open()
    user = Session.from_user_message("go").bind_sandbox(sandbox)
    note = FunctionTool("note", lambda *_: counts.append(sandbox.refcount))
    out = run([tool_call("note"), "done"], note, user=user).synchronize()
    wait_until_let_go(lambda: sandbox.refcount == 2)
    assert counts[0] > 2
    user.close_sandbox()
    assert sandbox.refcount == 1
    out.close_sandbox()
    assert sandbox.closed
    with pytest.raises(BackendSandboxClosed):
        runtime().run(sandbox.aopened, label="a use")
