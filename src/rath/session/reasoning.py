"""Reasoning texts of earlier answers, given back only to the model that wrote them."""

from __future__ import annotations

from collections.abc import Iterable

from rath.llm.call import CallFacts
from rath.llm.exchange import CallEvidence
from rath.session.chunk import RowId
from rath.session.record import Entry, ModelCall


class ReasoningIndex:
    """Finds the reasoning of a row, if it came from the endpoint and model that is asked now.

    Vendors that think between tool calls want their reasoning back; to any other it would be
    noise at best, so it never travels.
    """

    def __init__(self, facts: CallFacts, record: Iterable[Entry]) -> None:
        self._facts = facts
        self._texts: dict[RowId, str] = {}
        for entry in record:
            if isinstance(entry, ModelCall):
                self.learn(entry)

    def learn(self, entry: ModelCall) -> None:
        """Take in a call whose rows will be sent back."""
        reasoning = entry.evidence.reasoning
        if reasoning and self._is_ours(entry.evidence):
            self._texts |= dict.fromkeys(entry.rows, reasoning)

    def __call__(self, row: RowId) -> str | None:
        """Return the reasoning text to send back with `row`, or None."""
        return self._texts.get(row)

    def _is_ours(self, evidence: CallEvidence) -> bool:
        facts = self._facts
        return (evidence.provider_kind, evidence.requested_model) == (
            facts.provider_kind,
            facts.requested_model,
            # An embedded model has no endpoint before it is started; kind and model name it.
        ) and facts.endpoint in (None, evidence.endpoint)
