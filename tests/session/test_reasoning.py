"""Reasoning goes back to the endpoint and model that wrote it, and to no other."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm.call import CallFacts
from rath.llm.exchange import CallEvidence
from rath.session.chunk import RowId
from rath.session.operation import Place
from rath.session.reasoning import ReasoningIndex
from rath.session.record import ModelCall, Operation

SESSION = UUID(int=1)
FACTS = CallFacts(
    provider_kind="openai",
    adapter="a",
    adapter_version="1",
    renderer="r",
    endpoint="https://one.example/v1",
    requested_model="m",
)
EVIDENCE = CallEvidence(
    provider_kind="openai", adapter="a", adapter_version="1", sdk=None, sdk_version=None,
    endpoint="https://one.example/v1", requested_model="m", served_model=None, response_id=None,
    service_tier=None, fingerprint=None, parameters={}, origins=(), credential=None, attempts=(),
    started=datetime.now(UTC), first_token_ms=None, duration_ms=1.0, finish_reason="stop",
    finish_reason_raw="stop", usage=None, cached_tokens=None, cache_write_tokens=None,
    reasoning_tokens=None, reasoning="let me think", reasoning_blocks=(), request_digest="d",
    tools_digest=None, renderer="r", status="done", error=None, partial_text="",
)  # fmt: skip


def call(evidence: CallEvidence = EVIDENCE, row: int = 0) -> ModelCall:
    return ModelCall(
        operation=uuid4(),
        rows=(RowId(SESSION, row),),
        purpose="turn",
        status="done",
        seen=None,
        evidence=evidence,
    )


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (EVIDENCE, "let me think"),
        (replace(EVIDENCE, endpoint="https://two.example/v1"), None),
        (replace(EVIDENCE, requested_model="other"), None),
        (replace(EVIDENCE, provider_kind="other"), None),
        (replace(EVIDENCE, reasoning=None), None),
        (replace(EVIDENCE, reasoning=""), None),
    ],
    ids=["ours", "other endpoint", "other model", "other kind", "none", "empty"],
)
def test_only_our_own_reasoning_goes_back(evidence: CallEvidence, found: str | None) -> None:
    assert ReasoningIndex(FACTS, [call(evidence)])(RowId(SESSION, 0)) == found


def test_a_model_without_an_endpoint_is_known_by_kind_and_name() -> None:
    index = ReasoningIndex(replace(FACTS, endpoint=None), [call()])
    assert index(RowId(SESSION, 0)) == "let me think"


def test_a_row_of_another_call_has_none() -> None:
    index = ReasoningIndex(FACTS, [call(row=3)])
    assert index(RowId(SESSION, 3)) == "let me think"
    assert index(RowId(SESSION, 0)) is None
    assert index(RowId(UUID(int=2), 3)) is None


def test_other_entries_are_passed_over() -> None:
    other = Operation(operation=uuid4(), kind="fork", place=Place("", 0), session=SESSION)
    assert ReasoningIndex(FACTS, [other, call()])(RowId(SESSION, 0)) == "let me think"


@given(texts=st.lists(st.text(max_size=3), max_size=6), split=st.integers(0, 6))
def test_what_is_learned_later_counts_like_what_was_there(texts: list[str], split: int) -> None:
    calls = [call(replace(EVIDENCE, reasoning=text), row) for row, text in enumerate(texts)]
    index = ReasoningIndex(FACTS, calls[:split])
    for one in calls[split:]:
        index.learn(one)
    assert [index(RowId(SESSION, row)) for row in range(len(texts))] == [
        text or None for text in texts
    ]
