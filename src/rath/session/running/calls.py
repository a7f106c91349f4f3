"""One model call of a run, and the entry that it leaves whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal
from uuid import UUID

from rath.errors import ProviderProtocolError
from rath.llm.chat_request import RathLLMMessage
from rath.llm.draft import ChatDraft, OnDelta
from rath.llm.exchange import CallEvidence, Exchange, evidence_of
from rath.session.chunk import RowId
from rath.session.record import ModelCall, Purpose, RecalledNote, Seen
from rath.session.request import RENDERER


@dataclass(frozen=True, slots=True)
class Context:
    """Recalled notes and where they stand in the requests of a run."""

    at: int
    """Index of the row before which the context message stands."""

    message: RathLLMMessage
    notes: tuple[RecalledNote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a model call is for, and what it sees."""

    operation: UUID
    purpose: Purpose
    head_digest: str
    n_rows: int
    context: Context | None = None
    question: str | None = None
    """The closing message of a side call."""

    row: RowId | None = None
    """The row that the answer will become, if it becomes one."""

    fallback_from: str | None = None
    """The model whose failure led to this call."""


async def call_model(
    draft: ChatDraft,
    call: Call,
    note: Callable[[ModelCall], None],
    *,
    on_delta: OnDelta | None = None,
) -> Exchange:
    """Send the draft and return what came back; `note` gets the entry also of a failed call."""
    try:
        exchange = await draft.asend(on_delta=on_delta)
    except asyncio.CancelledError:
        _note_unanswered(draft.last_evidence(), call, note, "cancelled")
        raise
    except Exception as exc:
        _note_unanswered(evidence_of(exc) or draft.last_evidence(), call, note, "failed")
        raise
    entry = _entry(exchange.evidence, call, "done")
    if call.row is None and exchange.response.choices:
        entry = replace(entry, answer=exchange.response.primary_choice.message.content)
    note(entry)
    if not exchange.response.choices:
        raise ProviderProtocolError(
            "the model's answer holds no choices; expected at least one",
            endpoint=exchange.evidence.endpoint,
        )
    return exchange


def bytes_digest(data: bytes) -> str:
    """Return the sha256 of `data` in hex."""
    return sha256(data).hexdigest()


def _note_unanswered(
    evidence: CallEvidence | None,
    call: Call,
    note: Callable[[ModelCall], None],
    status: Literal["failed", "cancelled"],
) -> None:
    if evidence is not None:
        note(_entry(replace(evidence, status=status), replace(call, row=None), status))


def _entry(
    evidence: CallEvidence, call: Call, status: Literal["done", "failed", "cancelled"]
) -> ModelCall:
    context = call.context
    if call.fallback_from is not None:
        evidence = replace(evidence, fallback_from=call.fallback_from)
    return ModelCall(
        operation=call.operation,
        rows=() if call.row is None else (call.row,),
        purpose=call.purpose,
        status=status,
        evidence=evidence,
        seen=Seen(
            head_digest=call.head_digest,
            n_rows=call.n_rows,
            context_at=None if context is None else context.at,
            context=None if context is None else context.message.content,
            recalled=() if context is None else context.notes,
            tools_digest=evidence.tools_digest,
            renderer=f"{RENDERER} {evidence.renderer}",
            request_digest=evidence.request_digest,
            question=call.question,
        ),
    )
