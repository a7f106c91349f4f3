"""Answers of earlier calls, of which only the model that gave them gets its reasoning back."""

from __future__ import annotations

from dataclasses import replace

from rath.llm.call import CallFacts
from rath.llm.exchange import CallEvidence
from rath.session.chunk import RowId
from rath.session.record import Change, ModelCall, Record
from rath.session.running.calls import Context

_Before = tuple[str, str | None, int | None, str | None]
"""Digest of the agent's rows, digest of the tools, place and text of the recalled notes."""


class OwnAnswers:
    """Knows the rows that the model which is asked now wrote itself, and how.

    Vendors that think between tool calls want their reasoning back, as a text or as blocks that
    they have signed; for any other it is noise at best and an error at worst, so it never travels.
    A signature may hold for all that stood before the answer, so blocks go back only behind the
    same agent, tools and recalled notes.
    """

    def __init__(self, facts: CallFacts) -> None:
        self._facts = facts
        self._before: _Before | None = None
        self._answers: dict[RowId, CallEvidence] = {}
        self._n_entries = 0

    def stand_behind(self, head_digest: str, context: Context | None) -> None:
        """Say what stands before and among the rows of the session, for what is learned later."""
        at, text = (None, None) if context is None else (context.at, context.message.content)
        self._before = (head_digest, self._facts.tools_digest, at, text)

    def learn(self, record: Record) -> None:
        """Take in what came to the record since; O(new entries)."""
        for entry in record.since(self._n_entries):
            if isinstance(entry, Change) and entry.what == "answer":
                # What a hook changed is the model's own word no more: nothing of it is signed.
                for row in entry.rows:
                    self._answers.pop(row, None)
            if isinstance(entry, ModelCall) and entry.rows and self._is_own(entry.evidence):
                evidence = self._sendable(entry)
                for row in entry.rows:
                    self._answers[row] = evidence
        self._n_entries = len(record)

    def __call__(self, row: RowId) -> CallEvidence | None:
        """Return the evidence of the call that wrote `row`, None for a row of somebody else."""
        return self._answers.get(row)

    def _sendable(self, entry: ModelCall) -> CallEvidence:
        """Return the evidence of a call, without blocks that something else stood before."""
        evidence, seen = entry.evidence, entry.seen
        if not evidence.reasoning_blocks or self._before is None:
            return evidence
        if seen is not None:
            before = (seen.head_digest, seen.tools_digest, seen.context_at, seen.context)
            if before == self._before:
                return evidence
        # What was paused cannot go on without its blocks.
        finish = "stop" if evidence.finish_reason == "pause_turn" else evidence.finish_reason
        return replace(evidence, reasoning_blocks=(), finish_reason=finish)

    def _is_own(self, evidence: CallEvidence) -> bool:
        facts = self._facts
        if evidence.requested_model != facts.requested_model:
            return False
        if evidence.provider_kind != facts.provider_kind:
            return False
        # An embedded model has no endpoint before it is started; adapter and model name it.
        is_unknown = facts.endpoint is None and evidence.adapter == facts.adapter
        return is_unknown or evidence.endpoint == facts.endpoint
