"""What a run has left open that was cut off: calls that were made, and results without a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rath.session.chunk import RowId
from rath.session.persistence.lines import FailureLine, IntentLine, ResultLine
from rath.session.record import Decision, ToolRun

NON_IDEMPOTENT = "non_idempotent"

_Key = tuple[int, int]
"""Index of the row in which a model asked, and which of its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Where a run goes on that has no trailer yet."""

    operation: UUID | None
    """Id of the operation that makes the session; None where it was cut off before it said so."""

    intents: tuple[IntentLine, ...] = ()
    """Calls that were about to be made and whose end is not known, in the order of their rows."""

    results: tuple[ResultLine, ...] = ()
    """What became of calls whose round was not done: they are no rows and no entries yet."""

    decided: tuple[str, ...] = ()
    """Ids of calls of `intents` about which a `Decision` has been made since."""

    partial_text: str = ""
    """What a streamed answer had said when it broke off."""

    failure: FailureLine | None = None
    """Why the run ended, where its writer could still tell."""

    has_ended: bool = False
    """Whether the run has ended, and waits: its log has a trailer."""

    inner: tuple[Any, ...] = ()
    """Sessions inside its calls that wait, where this process has them."""

    @property
    def unknown_calls(self) -> tuple[str, ...]:
        """Ids of the calls that may have taken effect and must not be repeated undecided."""
        return tuple(
            intent.call_id
            for intent in self.intents
            if intent.effects == NON_IDEMPOTENT and intent.call_id not in self.decided
        )


class OpenCalls:
    """Follows the calls of a run through the lines of its log."""

    def __init__(self, session: UUID) -> None:
        self._session = session
        self._intents: dict[_Key, IntentLine] = {}
        self._results: dict[_Key, ResultLine] = {}
        self._decided: set[_Key] = set()

    @property
    def intents(self) -> tuple[IntentLine, ...]:
        """Calls without a result, by row and place in it."""
        return tuple(self._intents[key] for key in sorted(self._intents))

    @property
    def results(self) -> tuple[ResultLine, ...]:
        """Results without a row, by row and place in it."""
        return tuple(self._results[key] for key in sorted(self._results))

    @property
    def decided(self) -> tuple[str, ...]:
        """Calls without a result about which somebody has decided."""
        undecided = {
            each.call_id for key, each in self._intents.items() if key not in self._decided
        }
        decided = [self._intents[key].call_id for key in sorted(self._decided)]
        return tuple(call_id for call_id in decided if call_id not in undecided)

    def intend(self, line: IntentLine) -> None:
        """Note a call that is about to be made, perhaps once more; a decision on it is used up."""
        key = line.row, line.call
        self._intents[key] = line
        # One that had stopped to wait is made from its start.
        self._results.pop(key, None)
        self._decided.discard(key)

    def decide(self, decision: Decision) -> None:
        """Note that somebody has decided about a call of which it was not known what it did."""
        if decision.choice not in ("retry", "skip", "done"):
            return
        for key, intent in self._intents.items():
            asked_in = RowId(self._session, intent.row)
            same_tool = decision.tool in (None, intent.tool) and decision.call in (
                None,
                intent.call,
            )
            same_row = asked_in in decision.rows or not decision.rows
            if decision.call_id == intent.call_id and same_tool and same_row:
                self._decided.add(key)

    def keep(self, line: ResultLine) -> None:
        """Note what became of a call."""
        self._close(line.row, line.call)
        self._results[line.row, line.call] = line

    def end_call(self, run: ToolRun) -> None:
        """Forget a call that has its entry, unless that says that it was cut off."""
        for key in [key for key, line in self._results.items() if line.run.id == run.id]:
            del self._results[key]
        if run.status == "interrupted" and not run.rows:
            return
        for key in sorted(self._intents):
            intent = self._intents[key]
            # A run inside a call has calls of its own, perhaps under the same ids.
            if (intent.operation, intent.call_id) == (run.operation, run.call_id):
                self._close(*key)
                return

    def end_round(self, row: int, results: Iterable[UUID]) -> list[ResultLine]:
        """Forget the calls of a row, and return what became of those that are named.

        Raises:
            KeyError: A result that is named is not there.
        """
        known = {line.run.id: line for line in self._results.values()}
        done = [known[entry] for entry in results]
        for key in [key for key in {*self._intents, *self._results} if key[0] == row]:
            self._results.pop(key, None)
            self._close(*key)
        return done

    def _close(self, row: int, call: int) -> None:
        self._intents.pop((row, call), None)
        self._decided.discard((row, call))
