"""A replay goes on live from any row, with another prompt, provider or tool result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath._async.deferred import Deferred
from rath.errors import PersistenceError
from rath.flow import Agent
from rath.llm import Provider, chat_client_for, register_chat_client
from rath.session import Session
from rath.session.graph import LineageKind
from rath.session.record import ModelCall, Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.sessions import FunctionTool, run


def echo(_: Session, arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


TOOL = FunctionTool("f", echo)


def a_session() -> Session:
    """user, two calls in one turn, two results, another call, its result, the answer."""
    turn = tool_call("f", {"x": 1}, tool_call("f", {"x": 2}, id="c2"), id="c1")
    client = ScriptedClient([turn, tool_call("f", {"x": 3}, id="c3"), "the end"])
    return run([], TOOL, agent_provider=client.provider).synchronize()


def contents(client: ScriptedClient) -> list[str | None]:
    return [message.content for message in client.requests[-1].messages]


@given(at=st.integers(-7, 7), with_prompt=st.booleans())
def test_any_row_can_be_gone_on_from(at: int, with_prompt: bool) -> None:
    session, client = a_session(), ScriptedClient(["another end"])
    prompt = "and now?" if with_prompt else None
    out = session.replay(at=at, prompt=prompt, provider=client.provider, tools=[TOOL])
    n_rows = at if at >= 0 else at + len(session.chunk_table)
    assert out.text() == "another end"
    table = out.chunk_table
    assert table.common_prefix(session.chunk_table) == n_rows
    assert [row.id for row in table][:n_rows] == [row.id for row in session.chunk_table][:n_rows]
    assert len(table) == n_rows + with_prompt + 1
    assert contents(client)[0] == "You are a test."
    assert (contents(client)[-1] == "and now?") == with_prompt


def test_the_branch_is_a_child_made_by_the_replay() -> None:
    session = a_session()
    out = session.replay(at=1, provider=ScriptedClient(["x"]).provider, tools=[TOOL])
    branch = out.provenance.parents[0].provenance
    assert branch is not None
    assert (branch.operator, branch.kind) == ("Session.replay", LineageKind.OP_FORK)
    assert branch.parent_ids == (session.id,)
    assert branch.extras == (("at", 1),)
    kinds = [entry.kind for entry in out.record if isinstance(entry, Operation)]
    assert kinds == ["loop", "fork", "loop"]


def test_a_branch_replays_strictly_with_all_it_came_from() -> None:
    out = a_session().replay(at=3, provider=ScriptedClient(["x"]).provider, tools=[TOOL])
    assert out.replay().chunk_table.rows == out.chunk_table.rows


def test_another_result_of_a_tool_stands_in_its_place() -> None:
    session, client = a_session(), ScriptedClient(["so"])
    out = session.replay(tool_results={"c1": {"x": 9}}, provider=client.provider, tools=[TOOL])
    assert out.text() == "so"
    assert contents(client)[-2:] == ['{"x": 9}', '{"x": 2}']
    rows = out.chunk_table.rows
    assert [row.payload["tool_call_id"] for row in rows[2:4]] == ["c1", "c2"]


def test_results_may_be_given_for_a_turn_whose_calls_were_not_answered() -> None:
    session, client = a_session(), ScriptedClient(["so"])
    results = {"c1": "one", "c2": "two"}
    session.replay(at=2, tool_results=results, provider=client.provider, tools=[TOOL]).text()
    assert contents(client)[-2:] == ['"one"', '"two"']
    session.replay(at=3, tool_results={"c2": 2}, provider=ScriptedClient(["x"]).provider,
                   tools=[TOOL]).text()  # fmt: skip


def test_another_agent_goes_on_with_its_own() -> None:
    client = ScriptedClient(["by another"])
    agent = Agent("Another.", client.provider, system_tools=False)
    out = a_session().replay(at=1, prompt="you?", agent=agent)
    assert out.text() == "by another"
    assert contents(client) == ["Another.", "go", "you?"]


def test_the_recorded_model_is_asked_again_where_this_machine_would_ask_it_there() -> None:
    reply = iter([Says("one"), Says("two"), Says("three")])
    vendor = OfflineVendor(lambda _: next(reply))
    session = run([], agent_provider=replace(vendor.provider, temperature=0.5)).synchronize()
    out = session.replay(at=1)
    assert out.text() == "two"
    moved = OfflineVendor(lambda _: next(reply))
    kind = str(vendor.provider.provider_kind)
    register_chat_client(
        kind, lambda p: chat_client_for(replace(p, provider_kind=moved.provider.provider_kind))
    )
    with pytest.raises(ValueError, match=r"asked 'm-\d+' at https.*would ask it at https"):
        session.replay(at=1)
    assert len(moved.requests) == 0


def passes(session: Session) -> Session:
    return session


@pytest.mark.parametrize(
    ("options", "error", "reply"),
    [
        ({"at": 8}, ValueError, "at=8 is no row of a session of 7 rows"),
        ({"at": -8}, ValueError, "at=-8 is no row"),
        ({"at": "1"}, TypeError, "integer"),
        ({"prompt": "x"}, ValueError, "say at which row"),
        ({"at": 2, "tool_results": {"c9": 1}}, ValueError, "no open call 'c9'.*c1, c2"),
        ({"tool_results": {"c9": 1}}, ValueError, "no open call 'c9'"),
        ({"at": 7, "tool_results": {"c3": 1}}, ValueError, "no open call 'c3'"),
        ({"at": 1}, ValueError, "the tools 'f', which are not built in"),
        ({"at": 1, "tools": [TOOL], "agent": passes}, ValueError, "tools cannot be given"),
        ({"at": 1, "agent": passes, "provider": Provider(model="m")}, ValueError,
         "provider cannot be given beside agent="),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    options: dict[str, Any], error: type[Exception], reply: str
) -> None:
    given: dict[str, Any] = {"provider": ScriptedClient([]).provider, **options}
    with pytest.raises(error, match=reply):
        a_session().replay(**given if "agent" not in options else options)


def test_a_kind_that_is_not_known_here_must_be_replaced() -> None:
    session = a_session()
    record = session.record
    changed = type(record)(
        structs.replace(entry, evidence=structs.replace(entry.evidence, provider_kind="gone"))
        if isinstance(entry, ModelCall)
        else entry
        for entry in record
    )
    body = replace(session.core.body.result(), record=changed)
    other = Session.from_body(Deferred.of(body), session.provenance, id=session.id)
    with pytest.raises(ValueError, match=r"'gone' cannot be asked here.*provider="):
        other.replay(at=1, tools=[TOOL])


def test_rows_without_a_record_need_an_agent() -> None:
    session = Session.from_user_message("go")
    with pytest.raises(PersistenceError, match=r"no run in its record.*agent="):
        session.replay(at=1, provider=Provider(model="m"))


def test_a_run_that_asked_nobody_needs_a_provider() -> None:
    session = run(["never"], max_tool_rounds=0).synchronize()
    with pytest.raises(ValueError, match="asked no model"):
        session.replay(at=1)
