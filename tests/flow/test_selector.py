"""A selector: a model names the workflow that runs next."""

from __future__ import annotations

import pytest

from rath import flow
from rath.session import Session
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, Turn


class Named(flow.Workflow):
    """A workflow with a description of its own."""

    def forward(self, session: Session) -> Session:
        return session


FIRST, SECOND = Named("repairs"), Named("sells")


def user() -> Session:
    return Session.from_user_message("My printer burns.")


def selector(*turns: Turn) -> tuple[flow.Selector, ScriptedClient]:
    client = ScriptedClient(turns)
    return flow.Selector(client.provider), client


@pytest.mark.parametrize(("answer", "chosen"), [("0", FIRST), ("Number 1.", SECOND)])
def test_the_model_chooses(answer: str, chosen: flow.Workflow) -> None:
    router, _ = selector(answer)
    assert router.forward(user(), FIRST, SECOND) is chosen


@pytest.mark.parametrize("turns", [["-1"], ["none of them"], ["7", "perhaps"]])
def test_anything_else_is_the_end(turns: list[Turn]) -> None:
    router, _ = selector(*turns)
    assert isinstance(router.forward(user(), FIRST, SECOND), flow.EmptyWorkflow)


def test_the_model_may_answer_with_the_name_that_it_was_shown() -> None:
    router, _ = selector("sells", "Named")
    assert router.forward(user(), FIRST, SECOND) is SECOND
    bare = Named()
    assert router.forward(user(), FIRST, bare) is bare


def test_without_candidates_no_model_is_asked() -> None:
    router, client = selector()
    assert isinstance(router.forward(user()), flow.EmptyWorkflow)
    assert client.requests == []


def test_the_model_reads_descriptions_or_class_names() -> None:
    router, client = selector("0")
    router.forward(user(), FIRST, Named())
    menu = client.requests[0].messages[-1].content or ""
    assert "0: repairs" in menu
    assert "1: Named" in menu


def test_the_call_is_kept_in_the_record_of_the_session() -> None:
    router, _ = selector("0")
    session = user()
    router.forward(session, FIRST)
    calls = [entry for entry in session.record if isinstance(entry, ModelCall)]
    assert [call.purpose for call in calls] == ["select"]


def test_an_empty_workflow_returns_the_session_itself() -> None:
    session = user()
    assert flow.EmptyWorkflow()(session) is session


def test_a_loop_ends_when_nothing_shall_run() -> None:
    router, client = selector("1", "0", "-1")
    session = user()
    ran: list[flow.Workflow] = []
    while not isinstance(nxt := router.forward(session, FIRST, SECOND), flow.EmptyWorkflow):
        ran.append(nxt)
        session = nxt(session)
    assert ran == [SECOND, FIRST]
    assert client.n_left == 0


def test_a_selector_is_not_called_like_a_layer() -> None:
    router, _ = selector()
    with pytest.raises(TypeError):
        router(user(), FIRST)  # type: ignore[call-arg]  # wrong on purpose
    with pytest.raises(TypeError, match=r"\.forward\(session, \*workflows\)"):
        router(user())
