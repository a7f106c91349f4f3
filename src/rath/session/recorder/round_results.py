"""A round of tool calls as it is written: what is about to be made, and what comes of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from rath.session.content import ToolCall
from rath.session.persistence.lines import IntentLine, ResultLine
from rath.session.recorder.recorder import Recorder
from rath.session.running.finished import Finished, tool_run_entry
from rath.session.tooling import Offer


class RoundResults(dict[int, Finished]):
    """What became of the calls of a row, by place; each is written as soon as it is set.

    Args:
        recorder: Writes the run.
        operation: The run.
        row: Index of the row in which the model asked.
        known: What is known from before.
    """

    def __init__(
        self, recorder: Recorder, operation: UUID, row: int, known: Mapping[int, Finished]
    ) -> None:
        super().__init__(known)
        self._recorder = recorder
        self._operation = operation
        self._row = row

    def __setitem__(self, place: int, finished: Finished) -> None:
        run = tool_run_entry(finished, operation=self._operation)
        shown = finished.shown_row
        # The entry is made once, so that log and memory hold the same one.
        super().__setitem__(place, replace(finished, recorded=(run, shown)))
        self._recorder.tell(
            ResultLine(
                row=self._row, call=place, run=run, shown=None if finished.is_cut_off else shown
            )
        )


def intents(
    calls: Mapping[int, ToolCall], offers: Mapping[str, Offer], *, operation: UUID, row: int
) -> list[IntentLine]:
    """Return the lines that say of calls that they are about to be made.

    Args:
        calls: The calls by their place among those of the row.
        offers: The tools; a call of one that is not there is never made.
        operation: The run.
        row: Index of the row in which the model asked.
    """
    now = datetime.now(UTC)
    return [
        IntentLine(
            operation=operation,
            row=row,
            call=place,
            call_id=call.id,
            tool=call.name,
            effects=offers[call.name].effects,
            at=now,
        )
        for place, call in calls.items()
        if call.name in offers
    ]
