"""`rath show` and `rath tail`: one session, row by row, with the evidence of each row in brief."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, assert_never
from uuid import UUID

import typer
from rich.text import Text

from rath._core.text import short_id
from rath.cli import render
from rath.cli.decisions import reply_commands, store_option, waiting_calls, waiting_text
from rath.cli.stores import SessionText, StoreUrl, locate, use_store
from rath.cli.terminal import (
    AsJson,
    Damaged,
    Exit,
    Misuse,
    NoPager,
    paged,
    say_json,
    say_json_line,
    say_part,
)
from rath.session import Session, events, record
from rath.session.body import Body
from rath.session.chunk import ChunkRow, RowId, readable_json
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText
from rath.session.graph.recording import lineage_extras_to_jsonable
from rath.session.loading import Loaded, load
from rath.session.log.index.database import OUTCOME_STATES
from rath.session.log.store import SessionStore
from rath.session.outcome import Cancelled, Completed, Outcome, OutputMissing, Suspended
from rath.session.questions.encode import entry_to_jsonable, outcome_to_jsonable
from rath.session.run.stored_programs import waiting_sessions

_MAX_PATHS = 3
_PIPE_CHARS = 400
"""Of a row's text where lines are not cut to a terminal, without --full."""

_INDENT = " " * 16
_REPLACED, _IN_FORCE = "replaced: ", "in force: "
"""Before decisions about one call."""

_KIND_STYLES = {"system": "magenta", "user": "green", "assistant": "cyan", "tool_result": "yellow"}


def show(
    session: SessionText,
    is_full: Annotated[bool, typer.Option("--full", help="Whole texts, on many lines.")] = False,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows", metavar="A:B", help="Only rows A to B-1; 7 is one, -5: are the last five."
        ),
    ] = None,
    no_pager: NoPager = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a session: origin, state, rows, and the call behind each row.

    Of a run in progress it shows what was said so far. Of a damaged log it shows what can be
    believed, and ends with status 4.
    """
    with use_store(store_url) as store, paged(is_off=no_pager):
        ident, place = locate(session, store)
        loaded = load(place, ident, recover=True)
        shown = row_range(rows, len(loaded.session.chunk_table))
        state = _state_of(loaded, place)
        waiting = () if loaded.problem is not None else waiting_sessions(loaded.session)
        if as_json:
            say_json(_jsonable(loaded, state, waiting, shown))
        else:
            _say_head(loaded, state)
            render.say_lines(_row_lines(loaded, shown, is_full=is_full))
            _say_rest(loaded)
            for each in waiting:
                for call in each.open_calls:
                    if call.waits:
                        _say_marked("?", "magenta", render.one_line(waiting_text(call)))
                        commands = reply_commands(each, call, store_url)
                        render.say_lines(
                            render.line((f"      {each}", "dim"), is_whole=True)
                            for each in commands
                        )
            outcome = loaded.session.outcome if loaded.unfinished is None else None
            is_own = isinstance(outcome, Suspended) and outcome.session == ident
            if is_own and not waiting and not isinstance(outcome, Cancelled):
                resume = f"rath resume {store_option(store_url)}{ident} MODULE:WORKFLOW"
                render.say_lines(
                    [
                        render.line(("    ? ", "magenta"), "nothing waits any more; to resume:"),
                        render.line((f"      {resume}", "dim"), is_whole=True),
                    ]
                )
    if loaded.problem is not None:
        raise Damaged(
            f"{loaded.problem}; what is shown stands before it. `rath verify` tells where the "
            "damage begins"
        )


def tail(
    session: SessionText,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what is added, until the run ends.")
    ] = False,
    n_rows: Annotated[
        int, typer.Option("--rows", "-n", min=0, help="How many rows to begin with.")
    ] = 10,
    store_url: StoreUrl = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one line of JSON for each row or event.")
    ] = False,
) -> None:
    """Show the last rows of a session; with -f follow the run as it streams.

    It ends when the run does, or with Ctrl-C.
    """
    with use_store(store_url) as store:
        ident, place = locate(session, store)
        loaded = load(place, ident, recover=True)
        follower = _JsonFollower(loaded) if as_json else _Follower(loaded)
        follower.show_last(n_rows)
        if loaded.problem is not None:
            raise Damaged(str(loaded.problem))
        if is_followed:
            try:
                for data in place.follow(ident, loaded.size):
                    for event in loaded.reader.feed(data):
                        follower.show(event)
            except KeyboardInterrupt:
                raise typer.Exit(Exit.INTERRUPTED) from None
            finally:
                follower.end_text()
            loaded = load(place, ident, recover=True)
        follower.show_state(_state_of(loaded, place))
        if loaded.problem is not None:
            raise Damaged(str(loaded.problem))


def _state_of(loaded: Loaded, store: SessionStore) -> str:
    """Return the state of a session that was read, as an index has it."""
    unfinished = loaded.unfinished
    if loaded.problem is not None:
        return "damaged"
    if unfinished is None:
        return OUTCOME_STATES[type(loaded.session.outcome).__name__]
    if store.is_being_written(loaded.session.id):
        return "running"
    if unfinished.failure is not None:
        return unfinished.failure.how
    return "needs_decision" if unfinished.unknown_calls else "cut_off"


def _operation(loaded: Loaded) -> record.Operation | None:
    own = (entry for entry in loaded.session.record if isinstance(entry, record.Operation))
    return next((entry for entry in own if entry.session == loaded.session.id), None)


def _say_head(loaded: Loaded, state: str) -> None:
    session, operation = loaded.session, _operation(loaded)
    more = "" if loaded.unfinished is not None else outcome_text(session.outcome)
    parents = " and ".join(map(short_id, session.parent_session_ids))
    place = ""
    if operation is not None and operation.place.path:
        inside = "" if operation.place.run is None else f" in run {short_id(operation.place.run)}"
        place = f"{operation.place.path}#{operation.place.ordinal}{inside}"
    begin = loaded.header.created_at
    time = render.moment(begin)
    if session.record:
        end = max(begin, *(entry.at for entry in session.record))
        time += f" to {render.moment(end)}, {render.span((end - begin).total_seconds() * 1000)}"
    facts = {
        "session": Text(str(session.id), "bold"),
        "state": render.line(
            (": ".join(filter(None, (state, more))), render.STATE_STYLES.get(state, ""))
        ),
        "made by": render.line(session.lineage_operator + (f" from {parents}" if parents else "")),
        "place": render.line(place),
        "time": render.line(time),
        "backend": render.line(session.sandbox_backend or ""),
        "took": render.line(", ".join(_took(loaded))),
        "log": render.line((f"{loaded.where}, {render.size(loaded.size)}", "dim")),
    }
    for label, text in facts.items():
        if text:
            # What is copied from here stays in one piece.
            is_folded = label not in ("session", "log")
            render.say_table([[f"{label:<7}", text]], ["dim", ""], is_folded=is_folded)


def _took(loaded: Loaded) -> Iterator[str]:
    entries, usage = loaded.session.record, loaded.session.cumulative_usage
    n_calls = sum(isinstance(entry, record.ModelCall) for entry in entries)
    n_runs = sum(isinstance(entry, record.ToolRun) for entry in entries)
    if n_calls or n_runs:
        yield render.count_of(n_calls, "model call")
        yield render.count_of(n_runs, "tool call")
    if usage is not None:
        yield render.count_of(usage.total_tokens, "token")
    if n_calls:
        cost = Body(loaded.session.chunk_table, entries, given=loaded.header.given).cost()
        yield render.money(cost.usd, is_complete=cost.is_complete)


def row_range(text: str | None, n_rows: int) -> range:
    """Return the rows that `--rows` names, all of them without it.

    Raises:
        Misuse: It is no range.
    """
    if text is None:
        return range(n_rows)
    begin, colon, end = text.partition(":")
    try:
        start = int(begin) if begin or not colon else None
        stop = (int(end) if end else None) if colon else start
    except ValueError:
        raise Misuse(
            f"--rows {text!r} is no range of rows; expected A:B, A:, :B or one number"
        ) from None
    if colon:
        return range(n_rows)[start:stop]
    assert start is not None  # without a colon there is a number
    return range(n_rows)[start:] if start == -1 else range(n_rows)[start : start + 1]


def _row_lines(loaded: Loaded, shown: range, *, is_full: bool) -> Iterator[Text]:
    entry_of = makers(loaded.session.record)
    table = loaded.session.chunk_table
    if len(shown) < len(table):
        first = f"rows {shown.start} to {shown.stop - 1}" if len(shown) > 1 else "no such row"
        first = f"row {shown.start}" if len(shown) == 1 else first
        last = "" if shown else f": they are 0 to {len(table) - 1}"
        yield render.line((f"{first} of {len(table)}{last}", "dim"))
    for index in shown:
        row = table[index]
        if is_full:
            yield render.line((f"{index:>3} {row.kind_name}", _KIND_STYLES.get(row.kind_name, "")))
            text: Any = row.payload.get("content")
            texts = str(text).splitlines() if text else []
            texts += [
                f"→ {call.name}({call.arguments})" for call in getattr(row.content, "calls", ())
            ]
            yield from (
                render.line(f"    {each}", is_whole=True) for each in texts or [row_text(row)]
            )
        else:
            yield _row_line(index, row)
        entry = None if row.id is None else entry_of.get(row.id)
        if entry is not None:
            yield render.line((f"{_INDENT}{entry_text(entry)}", "dim"))


def _row_line(index: int, row: ChunkRow) -> Text:
    text = render.line(row_text(row))
    if render.room() is None:
        render.cut(text, _PIPE_CHARS)
    style = _KIND_STYLES.get(row.kind_name, "")
    return render.line((f"{index:>3} {row.kind_name:<11} ", style)).append_text(text)


def _say_rest(loaded: Loaded) -> None:
    """Show what belongs to no row: checks, decisions, failed calls, what is open."""
    validity = _decision_validity(loaded.session.record)
    for entry in loaded.session.record:
        has_row = isinstance(entry, record.ModelCall | record.ToolRun) and entry.rows
        if not has_row and not isinstance(entry, record.Operation):
            named = f"{entry.tool}: " if isinstance(entry, record.ToolRun) else ""
            valid = validity.get(entry.id, "")
            style = "dim" if valid == _REPLACED else ""
            shown = (named + entry_text(entry), style)
            render.say_lines([render.line(("    · ", "dim"), (valid, style or "bold"), shown)])
    if loaded.unfinished is None:
        return
    for intent in loaded.unfinished.intents:
        text = f"{intent.tool} was called ({intent.effects}), and nothing is known of its end"
        _say_marked("?", "magenta", f"{intent.call_id}: {text}")
    for result in loaded.unfinished.results:
        text = f"{result.run.tool}: {entry_text(result.run)}, and its round is not done"
        render.say_lines([render.line(("    … ", "dim"), text)])
    if loaded.unfinished.partial_text:
        render.say_lines(
            [render.line(("    … ", "cyan"), render.one_line(loaded.unfinished.partial_text))]
        )
    failure = loaded.unfinished.failure
    if failure is not None and failure.how == "failed":
        _say_marked("!", "red", render.one_line(failure.error))


def _decision_validity(entries: Iterable[record.Entry]) -> dict[UUID, str]:
    """Return which decision holds, where several were taken about one call; by entry id."""
    taken: dict[tuple[object, ...], list[UUID]] = {}
    for entry in entries:
        if isinstance(entry, record.Decision):
            about = (entry.interrupt, entry.rows, entry.call, entry.call_id)
            taken.setdefault(about, []).append(entry.id)
    several = [ids for ids in taken.values() if len(ids) > 1]
    replaced = dict.fromkeys((each for ids in several for each in ids[:-1]), _REPLACED)
    return replaced | dict.fromkeys((ids[-1] for ids in several), _IN_FORCE)


def _say_marked(mark: str, style: str, text: str) -> None:
    """Show a text that is too important to be cut off."""
    render.say_table([[f"    {mark}", text]], [style, ""], is_folded=True, gap=1)


def _jsonable(
    loaded: Loaded, state: str, waiting: Sequence[Session], shown: range
) -> dict[str, Any]:
    session, operation, unfinished = loaded.session, _operation(loaded), loaded.unfinished
    entry_of = makers(session.record)
    return {
        "id": session.id,
        "state": state,
        "outcome": None if unfinished is not None else outcome_to_jsonable(session.outcome),
        "problem": None if loaded.problem is None else str(loaded.problem),
        "created_at": loaded.header.created_at,
        "operator": session.lineage_operator,
        "kind": session.lineage_kind.value,
        "extras": lineage_extras_to_jsonable(session.lineage_extras),
        "parents": session.parent_session_ids,
        "run": None if operation is None else operation.place.run,
        "path": "" if operation is None else operation.place.path,
        "ordinal": 0 if operation is None else operation.place.ordinal,
        "backend": session.sandbox_backend,
        "where": loaded.where,
        "size": loaded.size,
        "rows": [
            {
                "index": index,
                "id": None if row.id is None else f"{row.id.session}:{row.id.index}",
                "kind": row.kind_name,
                "payload": dict(row.payload),
                "entry": entry_of[row.id].id if row.id in entry_of else None,
            }
            for index in shown
            for row in [session.chunk_table[index]]
        ],
        "entries": [entry_to_jsonable(entry) for entry in session.record],
        "waiting": waiting_calls(waiting),
        "open_calls": []
        if unfinished is None
        else [intent.call_id for intent in unfinished.intents],
        "partial_text": "" if unfinished is None else unfinished.partial_text,
        "error": None
        if unfinished is None or unfinished.failure is None
        else unfinished.failure.error,
    }


class _Follower:
    """Shows events of a log as they come, and words of an answer as they are streamed."""

    def __init__(self, loaded: Loaded) -> None:
        self._table = loaded.session.chunk_table
        self._n_rows = len(self._table)
        unfinished = loaded.unfinished
        self._results = (
            {} if unfinished is None else {each.run.id: each for each in unfinished.results}
        )
        self._is_in_text = False
        self._streamed = "" if unfinished is None else unfinished.partial_text

    def show_last(self, n_rows: int) -> None:
        """Show the last rows, and what was streamed after them."""
        start = max(0, self._n_rows - n_rows)
        rows = enumerate(self._table.since(start), start=start)
        render.say_lines(_row_line(index, row) for index, row in rows)
        if self._streamed:
            render.say_lines([render.line(_INDENT, (render.one_line(self._streamed), "cyan"))])

    def show_state(self, state: str) -> None:
        """Show the state at the end."""
        style = render.STATE_STYLES.get(state, "")
        render.say_lines([render.line(("state  ", "dim"), (state, style))])

    def show(self, event: events.Event) -> None:
        """Show a new event."""
        if isinstance(event, events.PartialText):
            say_part(event.text if self._is_in_text else f"{_INDENT}{event.text}")
            self._is_in_text = True
        else:
            self.end_text()
            render.say_lines(self._lines(event))

    def end_text(self) -> None:
        """End the line that streamed words stand on."""
        if self._is_in_text:
            say_part("\n")
        self._is_in_text = False

    def _lines(self, event: events.Event) -> Iterator[Text]:
        match event:
            case events.Row(index, row):
                self._n_rows = index + 1
                yield _row_line(index, row)
            case record.RecordEntry():
                style = "dim" if isinstance(event, record.ModelCall | record.ToolRun) else ""
                yield render.line(_INDENT, (entry_text(event), style))
            case events.Intent():
                yield render.line((f"{_INDENT}→ ", "yellow"), (f"{event.tool} …", "dim"))
            case events.PendingResult():
                self._results[event.run.id] = event
                text = f"{event.run.tool}: {entry_text(event.run)}"
                yield render.line((f"{_INDENT}← ", "yellow"), (text, "dim"))
            case events.RoundEnd(_, ids):
                for result in [self._results.pop(each, None) for each in ids]:
                    if result is not None and result.shown is not None:
                        yield _row_line(self._n_rows, result.shown)
                        self._n_rows += 1
            case events.Failed(how, error):
                yield render.line(
                    (f"{_INDENT}! {how}: {render.one_line(error)}", "red"), is_whole=True
                )
            case events.Reopened():
                yield render.line((f"{_INDENT}the run goes on", "dim"))
            case (
                events.Header()
                | events.AgentRows()
                | events.ToolSchemas()
                | events.CallSetup()
                | events.Finished()
                | events.OutcomeChange()
                | events.PlacementChange()
                | events.PartialText()
            ):
                pass  # The state is told at the end, and places with what ran there.
            case _:
                assert_never(event)


class _JsonFollower(_Follower):
    """Writes a line of JSON for each row and event."""

    def show_last(self, n_rows: int) -> None:
        start = max(0, self._n_rows - n_rows)
        for index, row in enumerate(self._table.since(start), start=start):
            self._say_row(index, row)
        if self._streamed:
            say_json_line({"event": "text", "text": self._streamed})

    def show_state(self, state: str) -> None:
        say_json_line({"event": "state", "state": state})

    def show(self, event: events.Event) -> None:
        match event:
            case events.PartialText():
                say_json_line({"event": "text", "text": event.text})
            case events.Row(index, row):
                self._n_rows = index + 1
                self._say_row(index, row)
            case record.RecordEntry():
                say_json_line({"event": "entry", **entry_to_jsonable(event)})
            case events.Intent():
                started = {"call": event.call_id, "tool": event.tool, "effects": event.effects}
                say_json_line({"event": "tool_start", **started})
            case events.PendingResult():
                self._results[event.run.id] = event
                ended = {"call": event.run.call_id, "tool": event.run.tool}
                say_json_line({"event": "tool_end", **ended, "status": event.run.status})
            case events.RoundEnd(_, ids):
                for result in [self._results.pop(each, None) for each in ids]:
                    if result is not None and result.shown is not None:
                        self._say_row(self._n_rows, result.shown)
                        self._n_rows += 1
            case events.Failed(how, error):
                say_json_line({"event": "failed", "state": how, "error": error})
            case events.Reopened():
                say_json_line({"event": "resumed"})
            case _:
                pass  # as in the text: what belongs to no row is told with the state

    def end_text(self) -> None:
        """Every text has a line of its own."""

    def _say_row(self, index: int, row: ChunkRow) -> None:
        facts = {"index": index, "kind": row.kind_name, "payload": dict(row.payload)}
        say_json_line({"event": "row", **facts})


def row_text(row: ChunkRow) -> str:
    """Return a row on one line: its text, and the calls that it asks for."""
    match row.content:
        case SystemText(text):
            return render.one_line(text)
        case UserText() as content:
            return render.one_line(content.described)
        case AssistantTurn(text, calls):
            wanted = [
                f"→ {call.name}({render.one_line(readable_json(call.arguments))})" for call in calls
            ]
            return "  ".join(filter(None, (render.one_line(text or ""), *wanted)))
        case ToolFeedback(_, name, body, images):
            labels = [image.label for image in images]
            return " ".join([f"{name}:", *labels, render.one_line(readable_json(body))])
        case Opaque(payload):
            return render.one_line(str(dict(payload)))
        case _:
            assert_never(row.content)


def entry_text(entry: record.Entry) -> str:
    """Return an entry of the record on one line; what was usual is left out."""
    match entry:
        case record.Operation():
            place = f" at {entry.place.path}#{entry.place.ordinal}" if entry.place.path else ""
            return f"{entry.kind}{place}"
        case record.ModelCall():
            return ", ".join(_of_call(entry))
        case record.ToolRun():
            return ", ".join(_of_run(entry))
        case record.Summary():
            return f"summary of {render.count_of(len(entry.replaced), 'row')}"
        case record.Verdict():
            score = "" if entry.score is None else f", score {entry.score:g}"
            if entry.error is not None:
                return f"check {entry.name}: no verdict: {render.one_line(entry.error)}"
            return f"check {entry.name}: {'passed' if entry.passed else 'failed'}{score}"
        case record.Interrupt():
            calls = f" on {', '.join(entry.calls)}" if entry.calls else ""
            inside = "" if entry.child is None else f", inside it session {entry.child}"
            question = "" if entry.question is None else f": {render.one_line(entry.question)}"
            return f"waits for {entry.reason}{calls}{inside}{question}"
        case record.Decision():
            call = "" if entry.call_id is None else f" {entry.call_id}"
            text = "" if entry.text is None else f": {render.one_line(entry.text)}"
            edited = (
                "" if entry.edited is None else f", with {render.one_line(str(dict(entry.edited)))}"
            )
            return f"{entry.by} decided: {render.one_line(entry.choice)}{call}{edited}{text}"
        case record.JobStart():
            return (
                f"job {render.one_line(entry.name)}: {render.count_of(entry.n_items, 'item')} with "
                f"{entry.workflow} on {entry.engine}"
            )
        case record.ItemRun():
            epoch = f" epoch {entry.epoch}" if entry.epoch else ""
            attempt = f" at attempt {entry.attempt}" if entry.attempt > 1 else ""
            error = "" if entry.error is None else f": {render.one_line(entry.error)}"
            return f"item {render.one_line(entry.key)}{epoch} {entry.status}{attempt}{error}"
        case record.Change():
            call = "" if entry.call_id is None else f" of {render.one_line(entry.call_id)}"
            return f"hook {render.one_line(entry.hook)} changed the {entry.what}{call}"
        case _:
            assert_never(entry)


def outcome_text(outcome: Outcome) -> str:
    """Return how a run ended, with what belongs to it."""
    if isinstance(outcome, Completed):
        problem = outcome.output.problem if isinstance(outcome.output, OutputMissing) else ""
        return f"completed without its typed answer: {render.one_line(problem)}" if problem else ""
    calls: Iterable[str] = getattr(outcome, "calls", ())
    question: str = getattr(outcome, "question", "")
    return render.one_line(" ".join((*calls, question)))


def _of_call(call: record.ModelCall) -> Iterator[str]:
    evidence = call.evidence
    yield evidence.served_model or evidence.requested_model or evidence.provider_kind
    if call.purpose != "turn":
        yield call.purpose
    if call.status != "done":
        yield f"{call.status}: {render.one_line(evidence.error or '')}".removesuffix(": ")
    if evidence.usage is not None:
        yield f"{evidence.usage.prompt_tokens:,} + {evidence.usage.completion_tokens:,} tokens"
    if evidence.cost is not None:
        yield render.money(evidence.cost.usd)
    if evidence.duration_ms:
        yield render.span(evidence.duration_ms)
    if len(evidence.attempts) > 1:
        yield f"{len(evidence.attempts)} tries"
    if evidence.fallback_from:
        yield f"instead of {evidence.fallback_from}"
    if evidence.finish_reason not in (None, "stop", "tool_calls"):
        yield f"ended by {evidence.finish_reason}"
    if call.seen is not None and call.seen.recalled:
        yield f"saw {render.count_of(len(call.seen.recalled), 'note')}"


def _of_run(run: record.ToolRun) -> Iterator[str]:
    yield run.status if run.error_kind is None else f"{run.status} ({run.error_kind})"
    if run.traceback is not None:
        yield f"raised at {render.one_line(run.traceback.place)}"
    if run.exit_code is not None:
        yield f"exit status {run.exit_code}"
    if run.signal is not None:
        yield f"signal {run.signal}"
    yield render.span(run.duration_ms)
    if run.sandbox is not None:
        yield f"in {run.sandbox.backend} {run.sandbox.root or ''}".rstrip()
    if run.file_effects:
        named = [f"{effect.kind} {effect.path}" for effect in run.file_effects[:_MAX_PATHS]]
        more = len(run.file_effects) - len(named)
        yield "; ".join(named) + (f" and {more} more" if more else "")
    if run.full is not None:
        yield "shown in part"


def makers(entries: Iterable[record.Entry]) -> dict[RowId | None, record.Entry]:
    """Return the first entry that made each row, by row id."""
    maker_of: dict[RowId | None, record.Entry] = {}
    for entry in entries:
        if isinstance(entry, record.ModelCall | record.ToolRun | record.Summary):
            for row in entry.rows:
                maker_of.setdefault(row, entry)
    return maker_of
