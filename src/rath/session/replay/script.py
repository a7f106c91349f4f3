"""One recorded run as its replay reads it: what the model said, what the tools gave, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from uuid import UUID

from rath._core.text import short_id
from rath.errors import ReplayDifference
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.draft import ChatDraft
from rath.llm.tool_args import parse_tool_arguments
from rath.session.approvals.asking import CurrentCall
from rath.session.body import Body
from rath.session.chunk import ChunkRow, RowId
from rath.session.content import ToolCall, ToolFeedback
from rath.session.encode import ResultText
from rath.session.operation import Place
from rath.session.outcome import BudgetExceeded, DeadlineExceeded, Suspended
from rath.session.recall import HoldingRecall, Recall
from rath.session.record import (
    Change,
    Decision,
    Entry,
    Interrupt,
    ModelCall,
    RecalledNote,
    ToolRun,
)
from rath.session.replay.differences import excerpt, name_of, parameters_differ, tools_differ
from rath.session.replay.history import RecordedRun
from rath.session.replay.records import body_parameters
from rath.session.running.finished import Finished, Prepared
from rath.session.running.rounds import ToolRounds
from rath.session.running.uplink import uplink
from rath.session.session import Session

_NOTHING_GIVEN: Mapping[int, CurrentCall] = MappingProxyType({})


class RecordEnds(asyncio.CancelledError):
    """The recorded run was ended from outside at this point."""


class Script:
    """Serves the entries of one run in their order; used on the runtime loop only.

    Args:
        run: What was recorded.
        found: Is told of the first difference, also where nobody reads the run.
    """

    def __init__(
        self, run: RecordedRun, *, found: Callable[[ReplayDifference], object] | None = None
    ) -> None:
        self.run = run
        self._entries: Sequence[Entry] = run.entries[1:]
        self._at = 0
        self._own = run.operation.operation
        self._found = found
        self._served: set[UUID] = set()
        self._is_cut = False
        self._rewritten = frozenset(
            entry.call_id
            for entry in run.own
            if isinstance(entry, Change)
            or (isinstance(entry, Decision) and entry.edited is not None)
        )
        """Ids of calls to which hooks or somebody gave other arguments, or another result."""

        self._answers_changed = run.answers_changed
        self.n_calls = 0
        """Model calls that were served so far."""

        self.where = f"session {short_id(run.operation.session)}"

    @property
    def place(self) -> Place:
        """Where the recorded run was made; it gives its id to the session that is made."""
        operation = self.run.operation
        return replace(operation.place, made=operation.session)

    @property
    def run_id(self) -> UUID:
        """The operation of the recorded run."""
        return self._own

    @property
    def rounds(self) -> Callable[..., ToolRounds]:
        """Makes what stands for the tools of the run."""
        return partial(ServedRounds, script=self)

    def recall(self, given: Recall | None) -> Recall | None:
        """Return what gives the recorded notes; the one that was given is let go."""
        waiting: object = given
        if isinstance(waiting, HoldingRecall):
            waiting.close()
        seen = next((call.seen for call in self.run.calls if call.seen is not None), None)
        notes: tuple[RecalledNote, ...] = () if seen is None else seen.recalled
        return (lambda _: notes) if notes else None

    def next_call(self) -> ModelCall | None:
        """Return the model call that comes next, None where there is none."""
        return next((call for _, call in self._calls_ahead()), None)

    def serve_call(
        self, written: ChatDraft, request: RathLLMChatRequest
    ) -> tuple[ModelCall, ChunkRow | None]:
        """Return the next call and the row that it made, once the request is the recorded one.

        Args:
            written: The request, as the replay would send it.
            request: What it was made of, without the messages.

        Raises:
            ReplayDifference: The request is another one, or the record has no further call.
        """
        digest = written.digest
        call = self._take_call()
        if call is None:
            raise self.end("the run asks for another model call than the record has")
        where = f"{self.where}, model call {self.n_calls}"
        seen = call.seen
        if seen is not None and seen.request_digest != digest:
            raise self.differs(self._explained(call, written, request, where))
        row = self.run.rows.get(call.rows[0]) if call.rows else None
        return call, row

    def serve_round(
        self, calls: Sequence[ToolCall], places: Sequence[int], rounds: ToolRounds
    ) -> dict[int, Finished]:
        """Return what became of the calls of a turn, by their place in it.

        Raises:
            ReplayDifference: A call is not in the record, or its result is not the recorded one.
            CancelledError: The recorded run was cut off before all of them had a result.
        """
        left = self._runs_of_turn()
        done: dict[int, Finished] = {}
        cut: list[str] = []
        for at, call in zip(places, calls, strict=True):
            # One that was cut off may have been made again when the run went on.
            made = [each for each in left if self._is_of(each, call)]
            run = next((each for each in made if each.rows), made[0] if made else None)
            if run is None:
                raise self.end(f"the run makes tool call {call.id!r} ({call.name}) which is new")
            left.remove(run)
            self._served.add(run.id)
            finished = self._finished(call, run, rounds)
            if finished is None:
                cut.append(call.id)
            else:
                done[at] = finished
        if cut:
            calls_cut = ", ".join(map(repr, cut))
            end = self.end(f"the record has no result of tool calls {calls_cut}")
            raise _Cut(done, end)
        return done

    def end(self, problem: str = "") -> BaseException:
        """Return what ends a run that asks for more than the record has."""
        outcome = self.run.outcome
        ended_outside = isinstance(outcome, BudgetExceeded | DeadlineExceeded | Suspended)
        if ended_outside or outcome is None:
            self._is_cut = True
            return RecordEnds()
        return self.differs(
            ReplayDifference(problem, where=f"{self.where}, {name_of(self.run.operation)}")
        )

    def differs(self, difference: ReplayDifference) -> ReplayDifference:
        """Note a difference and return it."""
        if self._found is not None:
            self._found(difference)
        return difference

    def changes_of(self, row: RowId) -> Sequence[Change]:
        """Return what hooks had made of the answer that a row holds."""
        return self._answers_changed.get(row, ())

    def cut_off(self, latest: Body, session: UUID) -> Body:
        """Return the content of the replay where it was ended, as the recorded run was."""
        outcome = self.run.outcome
        if not self._is_cut or outcome is None:
            return latest.cancelled(session)
        if not isinstance(outcome, Suspended):
            return replace(latest, outcome=outcome)
        # It waits as the recorded one did: for the same things, with the same results kept.
        ours = latest.with_entries(*self._waited_for())
        return replace(ours, outcome=outcome, unfinished=self.run.node.body.unfinished)

    def left(self) -> ReplayDifference | None:
        """Return the error for what the record has and the replay did not ask for, if anything."""
        for entry in self._entries[self._at :]:
            if entry.operation != self._own or entry.id in self._served:
                continue
            if isinstance(entry, ModelCall):
                return ReplayDifference(
                    "the record has a model call that the replay did not make",
                    where=self.where,
                    expected=f"{entry.purpose} call of {entry.evidence.requested_model!r}",
                    found="the end of the run",
                )
        return None

    def _waited_for(self) -> list[Entry]:
        """Return what the record says of waiting since its last model call."""
        told: list[Entry] = []
        for entry in reversed(self._entries):
            if entry.operation != self._own:
                continue
            if isinstance(entry, ModelCall):
                break
            if isinstance(entry, Interrupt | Decision):
                told.append(entry)
        return told[::-1]

    def _take_call(self) -> ModelCall | None:
        """Step to the next model call of the run; what happened before it is noted again."""
        for at, call in self._calls_ahead():
            self._note_inner(at)
            self._at = at + 1
            self.n_calls += 1
            later = (after.evidence.fallback_from for _, after in self._calls_ahead())
            # The run may have ended here and gone on later: then the question was asked again.
            if call.purpose == "compress":
                is_past = None in later
            else:
                is_past = call.status != "done" and next(later, "") is None
            if not is_past:
                return call
            uplink()(call, None)
        return None

    def _calls_ahead(self) -> Iterator[tuple[int, ModelCall]]:
        for at in range(self._at, len(self._entries)):
            entry = self._entries[at]
            if isinstance(entry, ModelCall) and entry.operation == self._own:
                yield at, entry

    def _note_inner(self, until: int) -> None:
        """Tell the run again of what others had done inside it."""
        note = uplink()
        for entry in self._entries[self._at : until]:
            if entry.operation != self._own or _is_beside(entry):
                note(entry, None)
        self._at = until

    def _runs_of_turn(self) -> list[ToolRun]:
        """Return the tool runs before the next model call; what happened inside is noted again."""
        runs: list[ToolRun] = []
        until = self._at
        for at in range(self._at, len(self._entries)):
            entry = self._entries[at]
            if entry.operation != self._own:
                continue
            if isinstance(entry, ModelCall):
                break
            if isinstance(entry, ToolRun):
                runs.append(entry)
                until = at + 1
        self._note_inner(until)
        return runs

    def _finished(self, call: ToolCall, run: ToolRun, rounds: ToolRounds) -> Finished | None:
        """Return what became of a call, None where it was cut off."""
        offer = rounds.table.get(call.name)
        where = f"{self.where}, tool call {call.id!r}"
        schemas = (run.schema_digest, None if offer is None else offer.schema_digest)
        if None not in schemas and schemas[0] != schemas[1]:
            raise self.differs(
                ReplayDifference(
                    f"the schema of tool {call.name!r} is not the recorded one",
                    where=where,
                    expected=f"sha256 {schemas[0]}",
                    found=f"sha256 {schemas[1]}",
                )
            )
        if not run.rows:
            return None
        row = self.run.rows.get(run.rows[0])
        if row is None or not isinstance(row.content, ToolFeedback):
            raise self.differs(
                ReplayDifference("the record has no row with the result", where=where)
            )
        self._check_result(run, row, where)
        said = row.content
        shown = ResultText(
            said.body, failure=run.error_kind, exit_code=run.exit_code, images=said.images
        )
        return Finished(
            Prepared(call, offer, None if run.arguments is None else dict(run.arguments)),
            shown,
            run.status,
            run.duration_ms,
            run.file_effects,
            run.effect_gaps,
            run.sandbox,
            decision=run.decision,
            recorded=(run, row),
        )

    def _is_of(self, run: ToolRun, call: ToolCall) -> bool:
        """Tell whether a recorded run is that of a call."""
        if (run.call_id, run.tool) != (call.id, call.name):
            return False
        if run.arguments is None or call.id in self._rewritten:
            return True
        return dict(run.arguments) == (parse_tool_arguments(call.arguments)[0] or {})

    def _check_result(self, run: ToolRun, row: ChunkRow, where: str) -> None:
        assert isinstance(row.content, ToolFeedback)
        digest = sha256(row.content.body.encode()).hexdigest()
        if digest != run.shown.digest:
            index = run.rows[0].index
            raise self.differs(
                ReplayDifference(
                    f"the result of tool {run.tool!r} in row {index} is not what its run gave",
                    where=f"{where}, row {index}",
                    expected=f"{run.shown.size} bytes with sha256 {run.shown.digest}",
                    found=f"sha256 {digest}: {excerpt(row.content.body, '')}",
                )
            )

    def _explained(
        self, call: ModelCall, written: ChatDraft, request: RathLLMChatRequest, where: str
    ) -> ReplayDifference:
        """Say what of a request is another than what was sent, as far as that is known."""
        seen = call.seen
        assert seen is not None
        offered = request.tools or ()
        recorded = self.run.operation.tools if self.run.operation.kind == "loop" else ()
        output = self.run.operation.output
        if output is not None:
            offered = tuple(tool for tool in offered if tool.name != output.tool.name)
        tools = tools_differ(recorded, offered, where=where)
        said = body_parameters(written.body())
        parameters = call.evidence.parameters
        differ = None if said is None else parameters_differ(parameters, said, where=where)
        return (
            tools
            or differ
            or ReplayDifference(
                f"the request is not the one that was sent: the agent's rows, rows 0 to "
                f"{seen.n_rows} of the session, recalled notes, or how they are written, changed",
                where=where,
                expected=f"sha256 {seen.request_digest}",
                found=f"sha256 {written.digest}",
            )
        )


class _Cut(RecordEnds):
    """A round that was cut off, with what had come by then."""

    def __init__(self, done: dict[int, Finished], end: BaseException) -> None:
        super().__init__()
        self.done = done
        self.end = end


@dataclass(slots=True)
class ServedRounds(ToolRounds):
    """The tool rounds of a replay: no tool is called."""

    script: Script | None = None

    async def run(
        self,
        calls: Sequence[ToolCall],
        session: Session,
        done: dict[int, Finished],
        *,
        row: int = 0,
        places: Sequence[int] | None = None,
        given: Mapping[int, CurrentCall] = _NOTHING_GIVEN,
    ) -> list[Finished]:
        """Give the recorded results; see `ToolRounds.run`."""
        assert self.script is not None
        at = range(len(calls)) if places is None else places
        try:
            served = self.script.serve_round(calls, at, self)
        except _Cut as cut:
            done.update(cut.done)
            raise cut.end from None
        done.update(served)
        return [served[place] for place in at]


def _is_beside(entry: Entry) -> bool:
    """Tell whether an entry of a run is told again with what others had done inside it.

    What hooks made of an answer is told with that answer.
    """
    return isinstance(entry, Change) and entry.what != "answer"
