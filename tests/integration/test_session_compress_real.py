"""Compression by a real model that is served on this machine."""

from __future__ import annotations

import pytest

from rath.llm import Provider
from rath.session import Session, run_session_compress
from rath.session.record import Summary

pytestmark = pytest.mark.timeout(180)


def test_a_real_model_writes_a_summary(embedded: Provider) -> None:
    user = Session.from_user_message("My name is Ada. I live in Turin and I like green tea.")
    agent = Session.from_agent_prompt("You summarise conversations in one sentence.")
    out = run_session_compress(user, agent, agent_provider=embedded)
    assert len(out.chunk_table) == 1
    assert out.text()
    assert any(isinstance(entry, Summary) for entry in out.record)
