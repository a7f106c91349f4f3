"""Where did a text come from? Rows, notes and files that hold it, from the first one on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from rath.session.chunk import RowId
from rath.session.content import AssistantTurn
from rath.session.questions.hooked import changes_by_row
from rath.session.questions.lineage import Birth, Lineage, lineage_of
from rath.session.questions.missing import EvidenceKind, Missing, find_missing
from rath.session.questions.origin import By, made_by
from rath.session.questions.texts import Needle
from rath.session.questions.turns import turns_of
from rath.session.record import Change, Entry, ModelCall, Operation, Summary, ToolRun, Verdict
from rath.session.session import Session

Place = Literal["instructions", "note", "row", "file", "result", "verdict", "replaced"]
"""The agent's rows, a recalled note, a row, a file as a tool left it, the whole result of a tool
where the model was shown a part, the report of a check, what a hook put something else for."""


@dataclass(frozen=True, slots=True)
class Source:
    """Something that a model had read and that holds the text."""

    place: Place
    row: RowId | None = None
    """A row of the session; None for instructions and notes."""

    uri: str = ""
    score: float | None = None
    """Of a note: how near it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearance:
    """A place that holds the text and did not have it before."""

    place: Place
    by: By | None
    """Who made it; None for instructions and notes."""

    session: UUID | None
    """The session in which it was born."""

    row: RowId | None
    turn: int | None
    entry: Entry | None
    """The model call or tool run that made it, or that read it first; None where it was written by
    hand, and where that is missing."""

    excerpt: str
    path: str = ""
    """Of a file."""

    uri: str = ""
    """Of a note."""

    seen: tuple[Source, ...] = ()
    """What the model had read by then that holds the text; for its own words nothing."""

    hook: str = ""
    """The hook that put the text there, or that took it away."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The answer."""

    session: UUID
    text: str
    """With single blanks between words: other blanks do not count."""

    appearances: tuple[Appearance, ...]
    """In the order in which they came; the first one is where the text first appeared."""

    missing: tuple[Missing, ...]


def blame(session: Session, text: str) -> Blame:
    """Return where a text of an answer, or a line of a file, came from; waits for the run.

    Args:
        session: In memory or loaded.
        text: Some words, or a line; blanks at its ends and between words do not count.

    Raises:
        ValueError: The text is blank.
    """
    search = _Search(lineage_of(session), Needle(text))
    found = tuple(search.appearances())
    return Blame(session.id, search.needle.text, found, tuple(search.missing(found)))


class _Search:
    """One text, and all that may hold it."""

    def __init__(self, lineage: Lineage, needle: Needle) -> None:
        self.needle = needle
        self._lineage = lineage
        self._turns = turns_of(lineage)
        self._heads: set[UUID] = set()
        self._notes: set[tuple[str, str]] = set()
        self._makers: dict[RowId, Entry] = {}
        self._summaries: dict[RowId, Summary] = {}
        self._changes = changes_by_row(lineage)
        self._loose: list[Entry] = []
        """Entries that made no row of the lineage."""

        for entry in lineage.record:
            rows = [row for row in entry.rows if row in lineage.births]
            if isinstance(entry, Summary):
                self._summaries |= dict.fromkeys(rows, entry)
            elif isinstance(entry, ModelCall | ToolRun) and rows:
                self._makers |= dict.fromkeys(rows, entry)
            else:
                self._loose.append(entry)

    def appearances(self) -> Iterator[Appearance]:
        for row_id, birth in self._lineage.births.items():
            maker = self._makers.get(row_id)
            if maker is not None:
                yield from self._around(maker, birth.turn)
            yield from self._row(row_id, birth, maker)
        for entry in self._loose:
            yield from self._around(entry, self._turns.get(entry.id))

    def missing(self, found: tuple[Appearance, ...]) -> Iterator[Missing]:
        """Yield the evidence without which what was found is not told to the end."""
        kinds: set[EvidenceKind] = set() if found else {"model calls", "tool runs"}
        for each in found:
            is_untold = each.entry is None and each.row and self._lineage.is_of_run(each.row)
            if is_untold and each.by in ("model", "summary"):
                kinds.add("model calls")
            elif is_untold and each.by == "tool":
                kinds.add("tool runs")
            if isinstance(each.entry, ModelCall) and self._begun(each.entry) is None:
                kinds.add("operations")
        told = (*find_missing(self._lineage, "seen"), *find_missing(self._lineage, "where"))
        yield from (each for each in told if each.kind in kinds)

    def _row(self, row_id: RowId, birth: Birth, maker: Entry | None) -> Iterator[Appearance]:
        excerpt = self.needle.in_row(birth.row)
        if excerpt is None:
            return
        is_answer = isinstance(birth.row.content, AssistantTurn) or row_id in self._summaries
        yield Appearance(
            place="row",
            by=made_by(self._lineage, birth.row),
            session=row_id.session,
            row=row_id,
            turn=birth.turn,
            entry=maker,
            excerpt=excerpt,
            seen=tuple(self._read(row_id, birth, maker)) if is_answer else (),
            hook=self._put_there(row_id),
        )

    def _put_there(self, row: RowId) -> str:
        """Return the hook by which a row came to hold the text, "" where none did that."""
        for change in reversed(self._changes.get(row, ())):
            if change.what != "arguments" and self.needle.in_blob(change.before) is None:
                return change.hook if self.needle.in_blob(change.after) is not None else ""
        return ""

    def _read(self, row_id: RowId, birth: Birth, maker: Entry | None) -> Iterator[Source]:
        """Yield what the model had read before it wrote a row."""
        needle, births = self.needle, self._lineage.births
        if isinstance(maker, ModelCall):
            begun = self._begun(maker)
            if begun is not None and any(map(needle.in_row, begun.head)):
                yield Source("instructions")
            for note in () if maker.seen is None else maker.seen.recalled:
                if needle.found_in(iter((note.text,))) is not None:
                    yield Source("note", uri=note.uri, score=note.score)
        summary = self._summaries.get(row_id)
        if summary is not None:
            before = [births[row].row for row in summary.replaced if row in births]
        else:
            before = list(self._lineage.nodes[birth.session].table.prefix(birth.index))
        yield from (Source("row", row.id) for row in before if needle.in_row(row) is not None)

    def _around(self, entry: Entry, turn: int | None) -> Iterator[Appearance]:
        """Yield what an entry brought with it beside its row."""
        if isinstance(entry, ModelCall):
            yield from self._instructions(entry, turn)
            yield from self._recalled(entry, turn)
        elif isinstance(entry, ToolRun):
            yield from self._files(entry, turn)
        elif isinstance(entry, Verdict):
            excerpt = self.needle.found_in(iter((entry.report,)))
            if excerpt is not None:
                yield self._brought("verdict", entry, turn, excerpt)
        elif isinstance(entry, Change) and entry.what not in ("input", "output"):
            excerpt = self.needle.in_blob(entry.before)
            if excerpt is not None and self.needle.in_blob(entry.after) is None:
                yield self._brought("replaced", entry, turn, excerpt)

    def _instructions(self, call: ModelCall, turn: int | None) -> Iterator[Appearance]:
        begun = self._begun(call)
        if begun is None or begun.id in self._heads:
            return
        self._heads.add(begun.id)
        for row in begun.head:
            excerpt = self.needle.in_row(row)
            # The agent's session is a parent of the run: mostly its rows are there already.
            if excerpt is not None and row.id not in self._lineage.births:
                yield self._brought("instructions", call, turn, excerpt, row=row.id)

    def _recalled(self, call: ModelCall, turn: int | None) -> Iterator[Appearance]:
        for note in () if call.seen is None else call.seen.recalled:
            excerpt = self.needle.found_in(iter((note.text,)))
            if excerpt is not None and (note.uri, note.text) not in self._notes:
                self._notes.add((note.uri, note.text))
                yield self._brought("note", call, turn, excerpt, uri=note.uri)

    def _files(self, run: ToolRun, turn: int | None) -> Iterator[Appearance]:
        for effect in run.file_effects:
            excerpt = self.needle.in_blob(effect.after)
            if excerpt is not None and self.needle.in_blob(effect.before) is None:
                yield self._brought("file", run, turn, excerpt, path=effect.path)
        excerpt = self.needle.in_blob(run.full)
        if excerpt is not None:
            yield self._brought("result", run, turn, excerpt)

    def _brought(
        self,
        place: Place,
        entry: Entry,
        turn: int | None,
        excerpt: str,
        *,
        row: RowId | None = None,
        path: str = "",
        uri: str = "",
    ) -> Appearance:
        begun = self._begun(entry)
        return Appearance(
            place=place,
            by="tool" if isinstance(entry, ToolRun) else None,
            hook=entry.hook if isinstance(entry, Change) else "",
            session=None if begun is None else begun.session,
            row=row,
            turn=turn,
            entry=entry,
            excerpt=excerpt,
            path=path,
            uri=uri,
        )

    def _begun(self, entry: Entry) -> Operation | None:
        return self._lineage.operations.get(entry.operation)
