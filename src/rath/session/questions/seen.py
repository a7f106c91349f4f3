"""What did the model see? For each model call: the exact request, and proof that it is that one."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from rath.llm.chat_request import RathLLMFunctionTool
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.questions.lineage import lineage_of
from rath.session.questions.missing import Missing, find_missing
from rath.session.questions.rendering import Proof, Renderings
from rath.session.questions.turns import require_turn, turns_of
from rath.session.record import ModelCall, RecalledNote
from rath.session.session import Session


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One model call and all that the model read."""

    turn: int | None
    call: ModelCall
    session: UUID | None
    """The session that the call worked for, None where its operation is missing."""

    head: tuple[ChunkRow, ...]
    """The agent's rows, which stood first."""

    rows: ChunkTable | None
    """The rows of the session that stood after them; None where they are nowhere any more."""

    context_at: int | None
    """Index of the row before which the recalled notes stood."""

    recalled: tuple[RecalledNote, ...]
    question: str | None
    """The closing message of a side call."""

    tools: tuple[RathLLMFunctionTool, ...]
    proof: Proof
    problem: str
    """Why the request is not proved, "" for one that is."""

    body: bytes | None
    """The exact body as JSON, where a single turn was asked for and it can be rendered."""


@dataclass(frozen=True, slots=True)
class WhatWasSeen:
    """The answer."""

    session: UUID
    calls: tuple[SeenCall, ...]
    missing: tuple[Missing, ...]


def what_was_seen(session: Session, *, turn: int | None = None) -> WhatWasSeen:
    """Return what each model call saw; O(rows and entries). Waits for the run.

    The request is rendered again, without a key and without a network, and compared with the
    sha256 of what was sent.

    Args:
        session: In memory or loaded.
        turn: Only the calls of this turn, and with the bodies of their requests.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session)
    require_turn(lineage, turn)
    turns, renderings = turns_of(lineage), Renderings(session, lineage.operations)
    calls: list[SeenCall] = []
    for entry in lineage.record:
        if not isinstance(entry, ModelCall):
            continue
        its_turn, seen = turns.get(entry.id), entry.seen
        if turn is not None and its_turn != turn:
            continue
        rendered = renderings.of(entry, with_body=turn is not None)
        begun = lineage.operations.get(entry.operation)
        calls.append(
            SeenCall(
                turn=its_turn,
                call=entry,
                session=None if begun is None else begun.session,
                head=() if begun is None else begun.head,
                rows=rendered.rows,
                context_at=None if seen is None else seen.context_at,
                recalled=() if seen is None else seen.recalled,
                question=None if seen is None else seen.question,
                tools=rendered.tools,
                proof=rendered.proof,
                problem=rendered.problem,
                body=rendered.body,
            )
        )
    return WhatWasSeen(session.id, tuple(calls), find_missing(lineage, "seen"))
