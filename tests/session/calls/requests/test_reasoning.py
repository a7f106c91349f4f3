"""Which rows a model wrote itself: it gets its reasoning back with them, and no other does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath._core.vector import Vector
from rath.llm import chat_client_for
from rath.llm.call import CallFacts
from rath.llm.exchange import CallEvidence
from rath.session import RowId, Session, run_session_compress
from rath.session.calls.requests import OwnAnswers
from rath.session.operation import Place
from rath.session.record import ModelCall, Operation
from tests.support.answered import EVIDENCE, FACTS, call_of
from tests.support.api import Entry
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.rendering import rerender_call
from tests.support.sessions import FunctionTool, run

SESSION = UUID(int=1)


def call(evidence: CallEvidence = EVIDENCE, row: int = 0) -> ModelCall:
    return call_of(RowId(SESSION, row), evidence)


def own(facts: CallFacts, *entries: Entry) -> OwnAnswers:
    answers = OwnAnswers(facts)
    answers.learn(Vector(entries))
    return answers


@pytest.mark.parametrize(
    ("evidence", "is_own"),
    [
        (EVIDENCE, True),
        (structs.replace(EVIDENCE, served_model="m-2026-01-01"), True),
        (structs.replace(EVIDENCE, endpoint="https://two.example/v1"), False),
        (structs.replace(EVIDENCE, endpoint=None), False),
        (structs.replace(EVIDENCE, requested_model="other"), False),
        (structs.replace(EVIDENCE, provider_kind="other"), False),
    ],
    ids=["ours", "served", "other endpoint", "no endpoint", "other model", "other kind"],
)
def test_an_answer_belongs_to_one_kind_endpoint_and_model(
    evidence: CallEvidence, is_own: bool
) -> None:
    found = own(FACTS, call(evidence))(RowId(SESSION, 0))
    assert found is (evidence if is_own else None)


@pytest.mark.parametrize(
    ("evidence", "is_own"),
    [(EVIDENCE, True), (structs.replace(EVIDENCE, adapter="b"), False)],
    ids=["same adapter", "other adapter"],
)
def test_a_model_without_an_endpoint_is_known_by_adapter_kind_and_name(
    evidence: CallEvidence, is_own: bool
) -> None:
    answers = own(replace(FACTS, endpoint=None), call(evidence))
    assert (answers(RowId(SESSION, 0)) is not None) == is_own


def test_a_row_of_another_call_has_none() -> None:
    answers = own(FACTS, call(row=3))
    assert answers(RowId(SESSION, 3)) is EVIDENCE
    assert answers(RowId(SESSION, 0)) is None
    assert answers(RowId(UUID(int=2), 3)) is None


def test_other_entries_are_passed_over() -> None:
    other = Operation(operation=uuid4(), kind="fork", place=Place("", 0), session=SESSION)
    assert own(FACTS, other, call())(RowId(SESSION, 0)) is EVIDENCE


@given(n_entries=st.integers(0, 6), split=st.integers(0, 6))
def test_what_is_learned_later_counts_like_what_was_there(n_entries: int, split: int) -> None:
    entries = [call(structs.replace(EVIDENCE, reasoning=str(row)), row) for row in range(n_entries)]
    answers = OwnAnswers(FACTS)
    answers.learn(Vector(entries[:split]))
    answers.learn(Vector(entries))
    assert [answers(RowId(SESSION, row)) for row in range(n_entries)] == [
        entry.evidence for entry in entries
    ]


# ---- between vendors


NOTHING = FunctionTool("nothing", lambda *_: None)
AGENT = Session.from_agent_prompt("You are a test.")


def signer(name: str) -> OfflineVendor:
    """A vendor that signs every turn: one with a tool call, and then one that ends the run."""
    count = iter(range(1000))

    def answer(messages: Sequence[Mapping[str, Any]]) -> Says:
        number = next(count)
        blocks = ({"type": "thinking", "signature": f"{name} {number}"},)
        calls = ("nothing",) if messages[-1]["role"] == "user" else ()
        return Says(f"{name} said {number}", calls, blocks)

    return OfflineVendor(answer)


def compressed(session: Session) -> Session:
    short = OfflineVendor(lambda _: Says("short"))
    return run_session_compress(session, AGENT, agent_provider=short.provider)


STEPS: dict[str, Callable[[Session], Session]] = {
    "fork": Session.fork,
    "detach": Session.detach,
    "merge": lambda session: session.fork().merge(session.detach()),
    "join": lambda session: session.merge(Session.from_user_message("and now?")),
    "compress": compressed,
}


@given(steps=st.lists(st.sampled_from(["one", "two", *STEPS]), min_size=1, max_size=7))
def test_a_session_that_moves_between_vendors_shows_each_only_its_own_blocks(
    steps: list[str],
) -> None:
    vendors = {name: signer(name) for name in ("one", "two")}
    session = Session.from_user_message("go")
    for step in steps:
        if step in STEPS:
            session = STEPS[step](session)
        else:
            provider = vendors[step].provider
            session = run([], NOTHING, user=session, agent_provider=provider)
    session.synchronize()
    for name, vendor in vendors.items():
        for message in (message for request in vendor.requests for message in request):
            said = str(message.get("content"))
            signed = [block["signature"] for block in message.get("blocks", ())]
            is_own = message["role"] == "assistant" and said.startswith(name)
            assert signed == ([said.replace(" said", "")] if is_own else [])


@given(steps=st.lists(st.sampled_from(["one", "two", "fork", "join"]), min_size=1, max_size=6))
def test_what_each_vendor_saw_can_be_rendered_again(steps: list[str]) -> None:
    vendors = {name: signer(name) for name in ("one", "two")}
    session = Session.from_user_message("go")
    for step in steps:
        if step in STEPS:
            session = STEPS[step](session)
        else:
            provider = vendors[step].provider
            session = run([], NOTHING, user=session, agent_provider=provider)
    providers = {one.provider.model: one.provider for one in vendors.values()}
    for entry in session.record:
        if isinstance(entry, ModelCall):
            assert entry.seen is not None
            provider = providers[entry.evidence.requested_model]
            client = chat_client_for(provider)
            body = rerender_call(session, entry, client=client, provider=provider)
            assert hashlib.sha256(body).hexdigest() == entry.seen.request_digest


def test_blocks_go_to_no_other_model_of_the_same_endpoint() -> None:
    first = signer("one")
    other = OfflineVendor(lambda _: Says("two"), endpoint=first.endpoint)
    out = run([], NOTHING, agent_provider=first.provider)
    run([], user=out, agent_provider=other.provider).synchronize()
    assert all("blocks" not in message for message in other.requests[0])
