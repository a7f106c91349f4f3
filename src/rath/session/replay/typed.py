"""Typed answers of a recorded run, read as the run read them: its own type is not needed."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rath.llm.tool_args import parse_tool_arguments
from rath.session.content import AssistantTurn, ToolCall, ToolFeedback, UserText
from rath.session.outcome import Completed, OutputMissing
from rath.session.output.form import OutputForm
from rath.session.output.schema import OutputSpec, Unfit
from rath.session.record import ModelCall, ToolRun
from rath.session.replay.history import RecordedRun

_BEFORE = "cannot be used: "
_AFTER = (". Give the whole answer", ". Call ")
MANY = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class RecordedForm(OutputForm):
    """Reads each answer as the record says it was read."""

    def read_said(self, text: str) -> Any:
        """Return what the run read in a text.

        Raises:
            Unfit: It did not fit.
        """
        return self.read(text)


def recorded_form(run: RecordedRun, spec: OutputSpec) -> tuple[RecordedForm, int]:
    """Return the form of a run's typed answer, and how many tries may follow one that fails."""
    reads = deque(_reads(run, spec))

    def read(text: str) -> Any:
        found = reads.popleft() if reads else None
        if isinstance(found, Unfit):
            raise found
        return found

    form = RecordedForm(spec.name, spec.schema, spec, False, read)
    outcome = run.outcome
    is_missing = isinstance(outcome, Completed) and isinstance(outcome.output, OutputMissing)
    n_turns = sum(1 for _ in _judged(run, spec))
    return form, n_turns - 1 if is_missing else MANY


def _judged(
    run: RecordedRun, spec: OutputSpec
) -> Iterator[tuple[ModelCall, AssistantTurn, list[ToolCall]]]:
    """Yield the turns that were taken for answers, with the calls that gave them."""
    for call in run.calls:
        row = run.rows.get(call.rows[0]) if call.rows else None
        turn = None if row is None else row.content
        if not isinstance(turn, AssistantTurn) or call.evidence.finish_reason == "pause_turn":
            continue
        own = [each for each in turn.calls if each.name == spec.tool.name]
        if own or not turn.calls:
            yield call, turn, own


def _reads(run: RecordedRun, spec: OutputSpec) -> Iterator[Any]:
    runs = deque(entry for entry in run.own if isinstance(entry, ToolRun))
    for call, turn, own in _judged(run, spec):
        if not own:
            yield _read_text(run, call, turn)
        for each in own:
            arguments, is_error = parse_tool_arguments(each.arguments)
            made = next((r for r in runs if (r.call_id, r.tool) == (each.id, each.name)), None)
            if made is not None:
                runs.remove(made)
            if not is_error:
                yield _read_call(run, made, arguments)


def _read_call(run: RecordedRun, made: ToolRun | None, arguments: object) -> Any:
    if made is None or made.status == "done":
        return arguments
    row = run.rows.get(made.rows[0]) if made.rows else None
    body = row.content.body if row is not None and isinstance(row.content, ToolFeedback) else "{}"
    return Unfit(_problem(str(json.loads(body).get("message", ""))))


def _read_text(run: RecordedRun, call: ModelCall, turn: AssistantTurn) -> Any:
    after = call.rows[0].index + 1
    following = run.rows.get(type(call.rows[0])(call.rows[0].session, after))
    if following is not None and isinstance(following.content, UserText):
        return Unfit(_problem(following.content.text))
    outcome = run.outcome
    if isinstance(outcome, Completed) and isinstance(outcome.output, OutputMissing):
        return Unfit("it did not fit")
    return turn.text


def _problem(said: str) -> str:
    """Return what was wrong, out of what the model was told of it."""
    _, _, told = said.partition(_BEFORE)
    ends = [at for end in _AFTER if (at := told.rfind(end)) >= 0]
    return told[: min(ends)] if ends else told.removesuffix(".")
