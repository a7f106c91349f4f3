"""A recorded request is rendered again from the record alone, for every adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from msgspec import structs

from rath._core.vector import Vector
from rath.llm import Provider
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.evidence import CallEvidence
from rath.llm.recorded import RecordedClient, can_write_again
from rath.session import ChunkTable, Session, run_session_compress
from rath.session.questions import WhatWasSeen, what_was_seen
from rath.session.record import ModelCall, Operation, Seen
from rath.testing import ScriptedClient
from tests.support import chat_replies
from tests.support.api import Entry
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer
from tests.support.images import picture
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.rendering import rerender_call
from tests.support.sessions import run


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def test_an_image_whose_bytes_are_gone_proves_nothing(server: ChatServer) -> None:
    server.queue(chat_replies.completion("a cat"))
    provider = Provider(base_url=server.base_url, api_key=KEY, model="m")
    user = Session.from_user_message("what is it?", images=[picture(b"1")])
    out = run([], user=user, agent_provider=provider)
    bare = Session(ChunkTable(replace(row) for row in out.chunk_table), id=out.id)
    for entry in out.record:
        bare.add_entry(entry)
    (call,) = what_was_seen(bare).calls
    assert call.proof == "none"
    assert call.rows is not None


def test_what_an_unknown_adapter_wrote_cannot_be_proved() -> None:
    vendor = OfflineVendor(lambda _: Says("done"))
    out = run([], agent_provider=vendor.provider)
    (call,) = what_was_seen(out).calls
    assert (call.proof, call.problem) == ("none", "it was written by 'rath-rows/2 offline/1'")
    assert call.rows is not None
    assert [row.kind_name for row in call.rows] == ["user"]


def with_entries(session: Session, change: Callable[[Entry], Entry]) -> Session:
    """Return a session whose entries are others."""
    made = Session(session.chunk_table, id=session.id)
    made.add_entries(*Vector(change(entry) for entry in session.record))
    return made


def call_with(seen: Callable[[Seen], Seen | None]) -> WhatWasSeen:
    def change(entry: Entry) -> Entry:
        if isinstance(entry, ModelCall):
            assert entry.seen is not None
            return structs.replace(entry, seen=seen(entry.seen))
        return entry

    return what_was_seen(with_entries(run(["done"]), change))


@pytest.mark.parametrize(
    ("changes", "proof", "problem"),
    [
        ({"head_digest": "0"}, "none", "the agent's rows"),
        ({"request_digest": "0"}, "different", "another sha256"),
        ({"n_rows": 9}, "none", "neither in session"),
        ({"renderer": "old/1 x"}, "none", "written by 'old/1 x'"),
    ],
    ids=["head", "digest", "rows", "renderer"],
)
def test_what_does_not_fit_is_not_proved(changes: dict[str, Any], proof: str, problem: str) -> None:
    (call,) = call_with(lambda seen: structs.replace(seen, **changes)).calls
    assert call.proof == proof
    assert problem in call.problem


def test_a_call_that_tells_nothing_of_what_it_saw_is_not_proved() -> None:
    (call,) = call_with(lambda _: None).calls
    assert (call.proof, call.rows, call.recalled) == ("none", None, ())


def test_without_its_rows_or_its_operation_a_call_is_not_proved() -> None:
    out = run(["done"])
    other, bare = Session.from_user_message("something else"), Session(out.chunk_table)
    other.add_entries(*out.record)
    bare.add_entries(*(entry for entry in out.record if not isinstance(entry, Operation)))
    (call,) = what_was_seen(other).calls
    assert (call.proof, call.rows) == ("none", None)
    (call,) = what_was_seen(bare).calls
    assert (call.proof, call.head, call.session) == ("none", (), None)


def test_a_recorded_call_is_never_sent(evidence: CallEvidence) -> None:
    client = RecordedClient(evidence)
    request = RathLLMChatRequest(messages=())
    with pytest.raises(RuntimeError, match="never sent"):
        client.complete(request)
    draft = client.open_draft(request, streaming=True, provider_origin="call")
    assert draft.last_evidence() is None
    with pytest.raises(RuntimeError, match="never sent"):
        draft.asend().send(None)
    assert client.provider.api_key is None


@pytest.fixture
def evidence() -> CallEvidence:
    (call,) = [entry for entry in run(["done"]).record if isinstance(entry, ModelCall)]
    return call.evidence


@pytest.mark.parametrize("renderer", ["openai-chat/1", "anthropic-messages/1", "litellm-chat/1"])
def test_our_own_adapters_can_be_written_again(renderer: str) -> None:
    assert can_write_again(renderer)


CLIENT = ScriptedClient(["done"])


def session_and_call() -> tuple[Session, ModelCall]:
    client = ScriptedClient(["done"])
    out = run([], agent_provider=client.provider).synchronize()
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    return out, call


def test_rows_are_found_wherever_they_still_are_among_those_that_a_session_came_from() -> None:
    client = ScriptedClient(["an answer"])
    told = run([], agent_provider=client.provider)
    (call,) = [entry for entry in told.record if isinstance(entry, ModelCall)]
    both = told.fork().merge(told.detach().merge(told))
    short = ScriptedClient(["short"])
    compressed = run_session_compress(both, told, agent_provider=short.provider)
    body = rerender_call(compressed, call, client=client, provider=client.provider)
    assert call.seen is not None
    assert sha256(body).hexdigest() == call.seen.request_digest


def test_rows_that_are_nowhere_any_more_are_refused() -> None:
    session, call = session_and_call()
    elsewhere = Session.create("user", "other rows")
    for entry in session.record:
        elsewhere.add_entry(entry)
    orphan = Session(ChunkTable(), parent_session_ids=(session.id,))
    for entry in session.record:
        orphan.add_entry(entry)
    diamond = elsewhere.fork().merge(elsewhere.fork())
    for lost in (elsewhere, orphan, diamond):
        with pytest.raises(ValueError, match="neither in session"):
            rerender_call(lost, call, client=CLIENT, provider=CLIENT.provider)
