"""Where tools run: chosen at once, opened on first use, shared by derivations, given back once."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.backend import BackendSandboxSpec
from rath.errors import BackendNotFound, BackendSandboxClosed
from rath.session import Session
from rath.session.bindings import Placement
from rath.testing import FakeBackend, tool_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import wait_until_let_go


class Here(FakeBackend):
    """A backend with a name that no other test gives away."""

    name = "here"


SPEC = BackendSandboxSpec(working_dir="here")


def test_a_placement_is_chosen_or_not() -> None:
    assert not Placement().is_chosen
    assert Placement("local").is_chosen
    assert Placement(sandbox=Here().lazy()).is_chosen


def test_a_sandbox_brings_its_backend_and_spec() -> None:
    placement = Placement("ignored", sandbox=Here().lazy(SPEC))
    assert (placement.backend, placement.spec) == ("here", SPEC)


def test_nothing_is_held_or_opened_before_it_is_needed() -> None:
    placement = Placement("local", SPEC)
    sandbox = placement.held()
    assert (sandbox.refcount, sandbox.is_open, sandbox.spec) == (1, False, SPEC)
    assert placement.held() is sandbox
    assert placement.sandbox is None


def test_a_sandbox_is_seen_once_it_is_open_and_also_when_it_was_closed() -> None:
    backend = Here()
    placement = Placement(sandbox=backend.lazy())
    sandbox = placement.held().ensure_open()
    assert placement.sandbox is sandbox
    backend.close(sandbox)
    assert placement.sandbox is sandbox


def test_without_a_place_there_is_no_sandbox() -> None:
    with pytest.raises(RuntimeError, match=r'place it first, for example session\.to\("local"\)'):
        Placement().held()
    assert not Placement().share().is_chosen


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


def test_a_placement_that_nobody_holds_gives_its_count_back() -> None:
    placement = Placement(sandbox=Here().lazy())
    share, sandbox = placement.share(), placement.held()
    assert sandbox.refcount == 2
    del share
    gc.collect()
    assert sandbox.refcount == 1


def test_a_closed_sandbox_is_refused_with_a_way_out() -> None:
    backend = Here()
    placement = Placement(sandbox=backend.open())
    backend.close(placement.held())
    with pytest.raises(RuntimeError, match=r"closed; place the session again.*to\('here'\)"):
        placement.held()


def test_a_closed_sandbox_is_closed_for_what_is_derived_too() -> None:
    backend = Here()
    placement = Placement(sandbox=backend.open(SPEC))
    backend.close(placement.held())
    share = placement.share()
    assert (share.backend, share.spec) == ("here", SPEC)
    with pytest.raises(RuntimeError, match="session sandbox is closed"):
        share.held()


def test_dropping_keeps_the_place_so_that_the_next_use_holds_a_new_sandbox() -> None:
    placement = Placement("local")
    first = placement.held()
    placement.drop()
    assert first.closed
    second = placement.held()
    assert second is not first
    assert not second.closed
    placement.drop()


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


def test_where_nothing_is_held_nothing_is_forgotten() -> None:
    placement = Placement("local", SPEC)
    placement.drop_if_closed()
    assert (placement.backend, placement.spec) == ("local", SPEC)


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
