"""Calls that were answered in a test's imagination only: facts, evidence and entries."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from rath.llm.evidence import CallEvidence, CallFacts
from rath.session import RowId
from rath.session.record import ModelCall

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
"""A call of the model that `FACTS` name."""


def call_of(row: RowId, evidence: CallEvidence = EVIDENCE) -> ModelCall:
    """The entry of the call that wrote `row`."""
    return ModelCall(
        operation=UUID(int=7),
        rows=(row,),
        purpose="turn",
        status="done",
        seen=None,
        evidence=evidence,
    )
