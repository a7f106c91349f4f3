"""A stored call is rendered again only from a record that holds what it saw."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from rath.errors import ProviderServerError
from rath.llm import Provider, chat_client_for
from rath.session import ChunkTable, Session, run_session_compress
from rath.session.record import ModelCall
from rath.testing import ScriptedClient
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.rendering import rerender_call
from tests.support.sessions import FunctionTool, run

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


def test_a_call_of_a_fallback_is_rendered_with_the_fallback() -> None:
    def down(_: object) -> Says:
        raise ProviderServerError("down", status=503)

    answers = [Says(calls=("f",)), Says("done")]
    first, second = OfflineVendor(down), OfflineVendor(lambda _: answers.pop(0))
    fallback = replace(second.provider, temperature=0.7)
    provider = replace(first.provider, retry_max_attempts=1, fallbacks=[fallback])
    out = run([], FunctionTool("f", lambda *_: 1), agent_provider=provider)
    failed, *answered = [entry for entry in out.record if isinstance(entry, ModelCall)]
    assert digest_again(out, failed, provider) == failed.evidence.request_digest
    for call in answered:
        assert digest_again(out, call, fallback) == call.evidence.request_digest


def digest_again(session: Session, call: ModelCall, provider: Provider) -> str:
    client = chat_client_for(provider)
    return sha256(rerender_call(session, call, client=client, provider=provider)).hexdigest()
