"""Where tools run: opened on first use, shared, given back once, and attached again when loaded."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath import backend
from rath._async.runtime import runtime
from rath.backend import BackendSandbox, BackendSandboxSpec
from rath.backend import registry as backends
from rath.backend.persistence import PersistentSandboxRegistry
from rath.errors import BackendError, BackendNotFound, BackendSandboxClosed, WorkspaceLost
from rath.session import Session
from rath.session.bindings import Placement
from rath.session.persistence import SessionWriter, load_session
from rath.testing import FakeBackend, FakeSandbox, tool_call
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


LOGGER = "rath.session.loading"


@pytest.fixture(autouse=True)
def far() -> Iterator[None]:
    """A backend whose sandboxes are somewhere else; the one named "gone" is not."""

    @backend.register("far")
    class Far(FakeBackend):
        def attach(
            self, remote_id: str, *, spec: BackendSandboxSpec | None = None
        ) -> BackendSandbox:
            if remote_id == "gone":
                raise BackendError("no such container")
            return BackendSandbox(self, remote_id, spec)

        def adopt(self, sandbox: BackendSandbox) -> FakeSandbox:
            return FakeSandbox(sandbox.handle)

        async def aclose(self, native: FakeSandbox) -> None:
            """Leave it where it is."""

    yield
    backends.unregister("far")


def stored(place: str | None, handle_id: str | None) -> UUID:
    """Write a closed session that ran in a sandbox of that id, and return its own id."""
    session = Session.from_user_message("go on")
    if place is not None:
        session.to(place)
    with SessionWriter(session, sandbox_handle_id=handle_id) as writer:
        writer.write_chunk(0, session.chunk_table[0])
    return session.id


def resumed(session_id: UUID) -> Session:
    """Return the user session of the resumable pair."""
    return load_session(session_id).to_resumable_pair()[0]


def test_session_is_attached_to_its_remote_sandbox_which_is_in_use_until_it_is_closed() -> None:
    spec, registry = BackendSandboxSpec(image="i"), PersistentSandboxRegistry()
    known = registry.record_remote("far", "c-1", spec)
    user = resumed(stored("far", str(known)))
    assert user.sandbox is not None
    assert (user.sandbox_backend, user.sandbox.handle, user.sandbox_spec) == ("far", "c-1", spec)
    assert user.require_sandbox() is user.sandbox
    assert registry.prunable_remote(older_than=timedelta()) == []
    backend.get("far").close(user.sandbox)
    assert registry.prunable_remote(older_than=timedelta()) == [known]


GONE, PRUNED = uuid4(), uuid4()


@pytest.mark.parametrize(
    ("known_as", "why"),
    [
        ("container-7", "'container-7' is no id of the registry"),
        ("{" + "0" * 31 + "}", "is no id of the registry"),
        (str(GONE), f"{GONE}.* cannot be attached|cannot be attached.*{GONE}"),
        (str(PRUNED), f"{PRUNED}.* cannot be attached|cannot be attached.*{PRUNED}"),
    ],
    ids=["free text", "no id", "gone", "pruned"],
)
def test_what_cannot_be_attached_is_read_and_becomes_no_other_sandbox(
    known_as: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    PersistentSandboxRegistry().record_remote("far", "gone", sandbox_id=GONE)
    with caplog.at_level(logging.WARNING, LOGGER):
        user = resumed(stored("far", known_as))
    assert re.search(why, caplog.text)
    assert user.chunk_table[0].payload["content"] == "go on"
    with pytest.raises(RuntimeError, match=r"closed; place the session again"):
        user.require_sandbox()


@pytest.mark.parametrize(
    ("place", "handle_id"),
    [
        pytest.param(None, str(UUID(int=1)), id="no backend"),
        pytest.param("far", None, id="no id"),
        pytest.param("far", "", id="empty id"),
        pytest.param("local", str(UUID(int=1)), id="backend that cannot attach"),
        pytest.param("local", "c-1", id="free text and a backend that cannot attach"),
    ],
)
def test_where_nothing_can_be_attached_the_placement_is_as_stored(
    place: str | None, handle_id: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    user = resumed(stored(place, handle_id))
    assert (user.sandbox_backend, user.sandbox) == (place, None)
    assert [each for each in caplog.records if each.name == LOGGER] == []


# A loaded session attaches when its sandbox is used.


def loaded(session_id: UUID) -> Session:
    return load_session(session_id).session()


def test_loaded_session_and_its_forks_attach_to_one_remote_sandbox_on_first_use() -> None:
    registry = PersistentSandboxRegistry()
    known = registry.record_remote("far", "c-1")
    session = loaded(stored("far", str(known)))
    fork = session.fork()
    assert (session.sandbox_backend, session.sandbox) == ("far", None)
    assert registry.prunable_remote(older_than=timedelta()) == [known]
    assert session.require_sandbox().handle == "c-1"
    assert fork.require_sandbox() is session.require_sandbox()
    assert registry.prunable_remote(older_than=timedelta()) == []
    assert isinstance(session.require_sandbox().native, FakeSandbox)
    backend.get("far").close(session.require_sandbox())
    assert registry.prunable_remote(older_than=timedelta()) == [known]


@pytest.mark.parametrize("known_as", ["gone", "no id", None])
def test_sandbox_that_is_gone_fails_the_first_use(known_as: str | None) -> None:
    handle = known_as or str(uuid4())
    if known_as == "gone":
        handle = str(PersistentSandboxRegistry().record_remote("far", "gone"))
    session = loaded(stored("far", handle))
    assert session.chunk_table[0].payload["content"] == "go on"
    with pytest.raises(WorkspaceLost, match=r"none that can be attached.* place the session"):
        session.require_sandbox()
    assert session.to("far").require_sandbox().handle
    session.close_sandbox()
