"""The registry finds live sessions by id and keeps none alive."""

from __future__ import annotations

import gc
from uuid import uuid4

from rath.session import Session, SessionRegistry, session_registry
from tests.support.sessions import run


def test_a_registered_session_is_found_by_its_id() -> None:
    registry, session = SessionRegistry(), Session.from_user_message("hi")
    registry.register(session)
    assert registry.get(session.id) is session
    assert registry.get(uuid4()) is None


def test_a_session_that_nobody_holds_is_gone() -> None:
    registry, session = SessionRegistry(), Session.from_user_message("hi")
    session_id = session.id
    registry.register(session)
    del session
    gc.collect()
    assert registry.get(session_id) is None


def test_the_active_session_is_known_by_its_id_until_it_is_unset() -> None:
    registry, session = SessionRegistry(), Session.from_user_message("hi")
    assert registry.get_active_id() is None
    registry.set_active(session)
    assert registry.get_active_id() == session.id
    registry.set_active(None)
    assert registry.get_active_id() is None


def test_the_process_has_one_registry() -> None:
    assert session_registry() is session_registry()


def test_a_run_registers_its_sessions_and_makes_its_output_active() -> None:
    user, agent = Session.from_user_message("go"), Session.from_agent_prompt("x")
    out = run(["done"], user=user, agent=agent)
    registry = session_registry()
    assert [registry.get(one.id) for one in (user, agent, out)] == [user, agent, out]
    assert registry.get_active_id() == out.id
    out.synchronize()


def test_derivations_and_new_sessions_are_not_registered() -> None:
    session = Session.create("user", "hi")
    forked = session.fork()
    assert session_registry().get(session.id) is None
    assert session_registry().get(forked.id) is None
