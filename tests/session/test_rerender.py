"""A stored call is rendered again only from a record that holds what it saw."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from rath.session.body import Body
from rath.session.record import ModelCall
from rath.session.rerender import rerender_turn
from rath.testing import ScriptedClient
from tests.support.sessions import run

CLIENT = ScriptedClient(["done"])


def body_and_call() -> tuple[Body, ModelCall]:
    client = ScriptedClient(["done"])
    out = run([], agent_provider=client.provider).synchronize()
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    return out.body.result(), call


@pytest.mark.parametrize(
    "spoil",
    [
        lambda call: replace(call, seen=None),
        lambda call: replace(call, id=uuid4()),
        lambda call: replace(call, operation=uuid4()),
    ],
    ids=["nothing seen", "another call", "another operation"],
)
def test_a_record_that_does_not_hold_what_a_call_saw_is_refused(spoil: object) -> None:
    body, call = body_and_call()
    assert callable(spoil)
    with pytest.raises(ValueError, match="the record does not hold what model call"):
        rerender_turn(body, spoil(call), client=CLIENT, provider=CLIENT.provider)
