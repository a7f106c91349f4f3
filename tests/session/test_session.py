"""A session's constructors, bindings and pictures."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import pytest

from rath.errors import BackendNotFound
from rath.llm import Provider, RathLLMTokenUsage
from rath.session import ChunkKind, ChunkTable, LineageKind, Session, user_text_chunk
from rath.session.primitives import create_system_session, create_user_session
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import run
from tests.support.waiting import wait_until_let_go

USAGE = RathLLMTokenUsage(prompt_tokens=10, completion_tokens=5, total_tokens=15)


def test_from_user_message_is_one_user_row() -> None:
    (row,) = Session.from_user_message("hi").chunk_table
    assert (row.kind, row.payload["content"]) == (ChunkKind.USER, "hi")


@pytest.mark.parametrize(
    ("kind", "leaf", "n_rows"),
    [
        ("user", LineageKind.LEAF_USER, 1),
        ("system", LineageKind.LEAF_SYSTEM, 1),
        ("empty", LineageKind.UNKNOWN, 0),
    ],
)
def test_create(kind: str, leaf: LineageKind, n_rows: int) -> None:
    session = Session.create(kind, "text")
    assert session.lineage_kind is leaf
    assert len(session.chunk_table) == n_rows


def test_create_refuses_other_kinds() -> None:
    with pytest.raises(ValueError, match="unknown kind 'agent'"):
        Session.create("agent")


def test_leaves_name_their_operator() -> None:
    assert create_user_session("a").lineage_extras == (("source", "create_user_session"),)
    assert create_system_session("a").lineage_operator == "create_system_session"


@pytest.mark.parametrize("wrong", [None, 3, b"bytes"])
def test_text_must_be_text(wrong: object) -> None:
    with pytest.raises(TypeError, match="expected text as a str"):
        Session.from_user_message(wrong)  # type: ignore[arg-type]  # that is tested


def test_a_session_is_made_from_a_table() -> None:
    with pytest.raises(TypeError, match="from_user_message"):
        Session("hi")  # type: ignore[arg-type]  # that is tested


@pytest.mark.parametrize("name", [name for name in dir(Session) if not name.startswith("_")])
def test_no_public_attribute_can_be_set_or_deleted(name: str) -> None:
    session = Session.from_user_message("hi")
    shown = repr(session)
    with pytest.raises(AttributeError, match=f"session.{name} cannot be set; "):
        setattr(session, name, uuid4())
    with pytest.raises(AttributeError):
        delattr(session, name)
    assert repr(session) == shown


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("id", "Session(chunk_table, id=...)"),
        ("chunk_table", "Session(chunk_table)"),
        ("provider", "session.to(provider)"),
        ("sandbox", "session.bind_sandbox(sandbox)"),
        ("sandbox_backend", "session.to(backend, spec=...)"),
        ("lineage_operator", "LineageRecorder.stamp_new_session"),
    ],
)
def test_a_refused_setter_says_what_to_do_instead(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(instead)):
        setattr(Session.from_user_message("hi"), name, None)


def test_a_subclass_may_have_attributes_of_its_own() -> None:
    class Tagged(Session):
        tag = "none"

    session = Tagged(ChunkTable())
    session.tag = "mine"
    assert session.tag == "mine"


def test_identity_equality() -> None:
    session = Session.from_user_message("hi")
    assert session == session  # identity is what is tested
    assert session != Session.from_user_message("hi")


def test_given_usage_is_carried_once() -> None:
    session = Session(ChunkTable((user_text_chunk("a"),)), cumulative_usage=USAGE)
    assert session.fork().cumulative_usage == USAGE
    assert session.fork().merge(session.detach()).cumulative_usage == USAGE


def test_text_skips_turns_that_only_call_tools() -> None:
    out = run([tool_call("missing", {}), "  the end\n"])
    assert out.text() == "  the end\n"
    assert Session.from_user_message("hi").text() is None


def test_to_places_and_returns_the_same_session(tmp_path: Path) -> None:
    session = Session.from_user_message("hi")
    assert session.to("local", spec=str(tmp_path)) is session
    assert session.sandbox_backend == "local"
    assert session.sandbox_spec is not None
    assert session.sandbox_spec.working_dir == str(tmp_path)
    assert session.sandbox is None


def test_to_an_unknown_backend_raises_at_once() -> None:
    with pytest.raises(BackendNotFound, match="Did you mean 'local'"):
        Session.from_user_message("hi").to("locl")


def test_to_a_provider_leaves_the_placement_alone() -> None:
    provider = Provider(model="m")
    session = Session.from_user_message("hi").to(provider)
    assert session.provider is provider
    assert session.sandbox_backend is None
    assert Session.from_user_message("hi").to(provider=provider).sandbox_backend is None


def test_to_does_both() -> None:
    provider = Provider(model="m")
    session = Session.from_user_message("hi").to("local", provider=provider)
    assert (session.provider, session.sandbox_backend) == (provider, "local")


def test_to_refuses_two_providers() -> None:
    with pytest.raises(ValueError, match="two providers"):
        Session.from_user_message("hi").to(Provider(model="a"), provider="b")


def test_require_sandbox_without_a_place_teaches() -> None:
    with pytest.raises(RuntimeError, match=r'session\.to\("local"\)'):
        Session.from_user_message("hi").require_sandbox()


def test_the_sandbox_opens_on_first_use_and_is_shared_by_forks() -> None:
    session = Session.from_user_message("hi").to("local")
    fork = session.fork()
    sandbox = fork.require_sandbox()
    assert session.require_sandbox() is sandbox
    assert sandbox.refcount == 2


def test_a_dropped_fork_gives_its_count_back() -> None:
    session = Session.from_user_message("hi").to("local")
    sandbox = session.fork().require_sandbox()
    wait_until_let_go(lambda: sandbox.refcount == 1)
    assert not sandbox.closed


def test_close_sandbox_keeps_backend_and_spec(tmp_path: Path) -> None:
    session = Session.from_user_message("hi").to("local", spec=str(tmp_path))
    first = session.require_sandbox()
    assert session.close_sandbox() is session
    assert first.closed
    assert session.sandbox is None
    assert session.require_sandbox() is not first


def test_a_sandbox_closed_by_somebody_else_is_an_error_that_says_so() -> None:
    session = Session.from_user_message("hi").to("local")
    sandbox = session.require_sandbox()
    sandbox.backend.close(sandbox)
    with pytest.raises(RuntimeError, match="session sandbox is closed"):
        session.require_sandbox()


def test_with_opens_and_closes_and_may_be_nested() -> None:
    session = Session.from_user_message("hi").to("local")
    with session:
        sandbox = session.sandbox
        with session:
            assert session.sandbox is sandbox
        assert sandbox is not None
        assert not sandbox.closed
    assert session.sandbox is None
    assert sandbox.closed


def test_with_replaces_a_closed_sandbox() -> None:
    session = Session.from_user_message("hi").to("local")
    first = session.require_sandbox()
    first.backend.close(first)
    with session:
        assert session.require_sandbox() is not first


def test_bind_sandbox_holds_the_new_and_releases_the_old() -> None:
    owner = Session.from_user_message("a").to("local")
    old = owner.require_sandbox()
    session = Session.from_user_message("hi").to("local")
    before = session.require_sandbox()
    assert session.bind_sandbox(old) is session
    assert session.sandbox is old
    assert before.closed
    count = old.refcount
    session.bind_sandbox(old)
    assert old.refcount == count


def test_the_output_of_a_run_shares_the_sandbox() -> None:
    user = Session.from_user_message("hi").to("local")
    sandbox = user.require_sandbox()
    out = run(["done"], user=user).synchronize()
    assert out.sandbox is sandbox
    wait_until_let_go(lambda: sandbox.refcount == 2)


def test_the_output_of_a_run_keeps_the_input_sessions_provider() -> None:
    bound = ScriptedClient(["done"]).provider
    out = run(["done"], user=Session.from_user_message("hi").to(bound))
    assert out.provider is bound


def test_repr_of_a_short_session() -> None:
    session = Session.from_user_message("hi")
    assert repr(session) == (
        f"Session(id={str(session.id).split('-')[0]},\n"
        "  chunks=[\n"
        "    [0] user: 'hi'\n"
        "  ],\n"
        "  operator='implicit',\n"
        ")"
    )


def test_repr_of_an_empty_session() -> None:
    assert "chunks=[]," in repr(Session.create("empty"))


def test_repr_leaves_out_the_middle_of_a_long_session() -> None:
    session = Session(ChunkTable(user_text_chunk(str(index)) for index in range(20)))
    picture = repr(session)
    assert "... (12 chunks omitted) ..." in picture
    assert "[3] user: '3'" in picture
    assert "[16] user: '16'" in picture
    assert "[4] user" not in picture


def test_repr_shows_calls_and_results() -> None:
    picture = repr(run([tool_call("missing", {"x": 1}, id="c9"), "done"]).synchronize())
    assert "tools=[missing('{\"x\": 1}')]" in picture
    assert "tool_result: name='missing', id='c9', body=" in picture
