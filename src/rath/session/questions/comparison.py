"""Comparison of two sessions, and blame of a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import zip_longest
from typing import Literal, NamedTuple, assert_never, cast
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.text import one_line_preview
from rath.backend.effects import FileEffect
from rath.session.body import sum_costs
from rath.session.chunk import ChunkRow, RowId
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText
from rath.session.files.diff import is_text
from rath.session.questions.lineage import (
    Birth,
    EvidenceKind,
    Lineage,
    Missing,
    find_missing,
    lineage_of,
)
from rath.session.questions.origin import By, author_of, what_changed
from rath.session.record import (
    CHECK_ORIGIN,
    Change,
    Entry,
    ModelCall,
    Operation,
    Summary,
    ToolRun,
    Verdict,
)
from rath.session.session import Session

_AROUND = 40
"""Characters on either side of a find that an excerpt shows."""


def texts_of(row: ChunkRow) -> Iterator[str]:
    """Yield the texts of a row; of JSON first the texts in it, unescaped, and then the whole."""
    content = row.content
    match content:
        case SystemText(text):
            yield text
        case UserText() as said:
            yield said.described
        case AssistantTurn(text, calls):
            yield text or ""
            for call in calls:
                yield from _of_json(call.arguments)
                yield call.name
        case ToolFeedback(_, _, body) as result:
            yield from _of_json(body)
            if result.images:
                yield result.described
        case Opaque(payload):
            yield from _leaves(dict(payload))
        case _:
            assert_never(content)


def preview(row: ChunkRow, max_chars: int) -> str:
    """Return the beginning of what a row says, on one line."""
    match row.content:
        case AssistantTurn(text, calls):
            called = " ".join(f"{call.name}({call.arguments})" for call in calls)
            return one_line_preview(" ".join(filter(None, (text, called))), max_chars)
        case ToolFeedback(_, name) as result:
            return one_line_preview(f"{name}: {result.described}", max_chars)
        case _:
            return one_line_preview(next(texts_of(row), ""), max_chars)


def _of_json(text: str) -> Iterator[str]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    yield from _leaves(value)
    yield text


def _leaves(value: object) -> Iterator[str]:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            todo += reversed(list(cast("Mapping[str, object]", item).values()))
        elif isinstance(item, list | tuple):
            todo += reversed(cast("list[object]", item))


def _plain(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Counts:
    """The totals of a session and its ancestors, each thing counted once."""

    rows: int
    turns: int
    """Answers of models among its rows."""

    model_calls: int
    retries: int
    """Tries after the first one of a call, and calls that another model had to answer."""

    tool_runs: int
    failed_tool_runs: int
    branches: int
    """Forks, detached copies and merges."""

    checks: int
    failed_checks: int
    tokens: int
    usd: Decimal
    is_priced: bool
    """Whether `usd` is the cost of all calls."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """Rows that stand beside each other; None where one session has no more."""

    index: int
    left: ChunkRow | None
    right: ChunkRow | None

    @property
    def is_same(self) -> bool:
        """Whether both say the same."""
        return self.left == self.right


@dataclass(frozen=True, slots=True)
class FilePair:
    """The changes of a file in each session; None where it was not touched."""

    path: str
    left: FileEffect | None
    right: FileEffect | None

    @property
    def is_same(self) -> bool:
        """Whether both left the same content."""
        after = [None if side is None else side.after for side in (self.left, self.right)]
        return self.left is not None and self.right is not None and after[0] == after[1]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions, and where they differ."""

    left: UUID
    right: UUID
    n_common: int
    """Rows at the beginning that are the very same."""

    rows: tuple[RowPair, ...]
    """From there on."""

    files: tuple[FilePair, ...]
    """All that either touched, by path."""

    left_counts: Counts
    right_counts: Counts


def compare(left: Session, right: Session) -> Comparison:
    """Return two sessions side by side; O(rows and entries). Waits for both runs."""
    n_common = left.chunk_table.common_prefix(right.chunk_table)
    pairs = zip_longest(left.chunk_table.since(n_common), right.chunk_table.since(n_common))
    ours = {each.path: each for each in what_changed(left).files}
    others = {each.path: each for each in what_changed(right).files}
    return Comparison(
        left=left.id,
        right=right.id,
        n_common=n_common,
        rows=tuple(RowPair(at, *pair) for at, pair in enumerate(pairs, start=n_common)),
        files=tuple(
            FilePair(path, ours.get(path), others.get(path))
            for path in sorted(ours.keys() | others.keys())
        ),
        left_counts=_count(left),
        right_counts=_count(right),
    )


def _count(session: Session) -> Counts:
    table, record = session.chunk_table, session.record
    calls = [entry for entry in record if isinstance(entry, ModelCall)]
    runs = [e for e in record if isinstance(e, ToolRun) and e.origin != CHECK_ORIGIN]
    verdicts = [entry for entry in record if isinstance(entry, Verdict)]
    usage, cost = session.cumulative_usage, sum_costs(calls)
    return Counts(
        rows=len(table),
        turns=sum(isinstance(row.content, AssistantTurn) for row in table),
        model_calls=len(calls),
        retries=sum(
            max(0, len(call.evidence.attempts) - 1) + (call.status == "failed") for call in calls
        ),
        tool_runs=len(runs),
        failed_tool_runs=sum(run.status != "done" for run in runs),
        branches=sum(
            isinstance(e, Operation) and e.kind in ("fork", "detach", "merge") for e in record
        ),
        checks=len(verdicts),
        failed_checks=sum(not verdict.passed for verdict in verdicts),
        tokens=0 if usage is None else usage.total_tokens,
        usd=cost.usd,
        is_priced=cost.is_complete,
    )


Place = Literal["instructions", "note", "row", "file", "result", "verdict", "replaced"]
"""The agent's rows, a recalled note, a row, a file as a tool left it, the whole result of a tool
where the model was shown a part, the report of a check, what a hook put something else for."""


@dataclass(frozen=True, slots=True)
class TextSource:
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
    """The author; None for instructions and notes."""

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

    seen: tuple[TextSource, ...] = ()
    """Sources of the text that the model had read by then; none for its own words."""

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
    search = _Search(lineage_of(session), text)
    appearances = tuple(search.appearances())
    return Blame(session.id, search.text, appearances, tuple(search.missing(appearances)))


class _Find(NamedTuple):
    """A place that an entry brought, what names it, and an excerpt if it holds the text."""

    place: Place
    excerpt: str | None
    row: RowId | None = None
    path: str = ""
    uri: str = ""


class _Search:
    """One text, and all that may hold it."""

    def __init__(self, lineage: Lineage, text: str) -> None:
        self.text = _plain(text)
        if not self.text:
            raise ValueError("there is nothing to look for: the text is blank")
        self._lineage = lineage
        self._heads: set[UUID] = set()
        self._notes: set[tuple[str, str]] = set()
        self._makers: dict[RowId, Entry] = {}
        self._summaries: dict[RowId, Summary] = {}
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
            excerpt = self._in_row(birth.row)
            if excerpt is not None:
                yield self._row(row_id, birth, maker, excerpt)
        for entry in self._loose:
            yield from self._around(entry, self._lineage.turns.get(entry.id))

    def missing(self, found: tuple[Appearance, ...]) -> Iterator[Missing]:
        """Yield the evidence without which what was found is not told to the end."""
        kinds: set[EvidenceKind] = set() if found else {"model calls", "tool runs"}
        for each in found:
            is_untold = each.entry is None and each.row and self._lineage.is_of_run(each.row)
            if is_untold and each.by in ("model", "summary"):
                kinds.add("model calls")
            elif is_untold and each.by == "tool":
                kinds.add("tool runs")
            if isinstance(each.entry, ModelCall) and self._operation_of(each.entry) is None:
                kinds.add("operations")
        gaps = (*find_missing(self._lineage, "seen"), *find_missing(self._lineage, "where"))
        yield from (each for each in gaps if each.kind in kinds)

    def _row(self, row_id: RowId, birth: Birth, maker: Entry | None, excerpt: str) -> Appearance:
        is_answer = isinstance(birth.row.content, AssistantTurn) or row_id in self._summaries
        return Appearance(
            place="row",
            by=author_of(self._lineage, birth.row),
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
        for change in reversed(self._lineage.changes.get(row, ())):
            if change.what != "arguments" and self._in_blob(change.before) is None:
                return change.hook if self._in_blob(change.after) is not None else ""
        return ""

    def _read(self, row_id: RowId, birth: Birth, maker: Entry | None) -> Iterator[TextSource]:
        """Yield the texts that the model had read before it wrote a row."""
        births = self._lineage.births
        if isinstance(maker, ModelCall):
            operation = self._operation_of(maker)
            if operation is not None and any(map(self._in_row, operation.head)):
                yield TextSource("instructions")
            for note in () if maker.seen is None else maker.seen.recalled:
                if self._in_text(note.text) is not None:
                    yield TextSource("note", uri=note.uri, score=note.score)
        summary = self._summaries.get(row_id)
        if summary is not None:
            before = [births[row].row for row in summary.replaced if row in births]
        else:
            before = list(self._lineage.nodes[birth.session].table.prefix(birth.index))
        yield from (TextSource("row", row.id) for row in before if self._in_row(row) is not None)

    def _around(self, entry: Entry, turn: int | None) -> Iterator[Appearance]:
        """Yield the finds that an entry brought with it beside its row."""
        operation = self._operation_of(entry)
        for find in self._brought(entry, operation):
            if find.excerpt is not None:
                yield Appearance(
                    place=find.place,
                    by="tool" if isinstance(entry, ToolRun) else None,
                    hook=entry.hook if isinstance(entry, Change) else "",
                    session=None if operation is None else operation.session,
                    row=find.row,
                    turn=turn,
                    entry=entry,
                    excerpt=find.excerpt,
                    path=find.path,
                    uri=find.uri,
                )

    def _brought(self, entry: Entry, operation: Operation | None) -> Iterator[_Find]:
        if isinstance(entry, ModelCall):
            if operation is not None and operation.id not in self._heads:
                self._heads.add(operation.id)
                # The agent's session is a parent of the run: mostly its rows are there already.
                new = (row for row in operation.head if row.id not in self._lineage.births)
                yield from (_Find("instructions", self._in_row(row), row.id) for row in new)
            for note in () if entry.seen is None else entry.seen.recalled:
                if (note.uri, note.text) not in self._notes:
                    self._notes.add((note.uri, note.text))
                    yield _Find("note", self._in_text(note.text), uri=note.uri)
        elif isinstance(entry, ToolRun):
            for effect in entry.file_effects:
                excerpt = self._in_blob(effect.after)
                if excerpt is not None and self._in_blob(effect.before) is None:
                    yield _Find("file", excerpt, path=effect.path)
            yield _Find("result", self._in_blob(entry.full))
        elif isinstance(entry, Verdict):
            yield _Find("verdict", self._in_text(entry.report))
        elif isinstance(entry, Change) and entry.what not in ("input", "output"):
            excerpt = self._in_blob(entry.before)
            if excerpt is not None and self._in_blob(entry.after) is None:
                yield _Find("replaced", excerpt)

    def _operation_of(self, entry: Entry) -> Operation | None:
        return self._lineage.operations.get(entry.operation)

    def _excerpt_of(self, texts: Iterable[str]) -> str | None:
        """Return an excerpt of the first of `texts` that holds it, else None."""
        for text in texts:
            plain = _plain(text)
            at = plain.find(self.text)
            if at >= 0:
                start, end = max(0, at - _AROUND), at + len(self.text) + _AROUND
                before, after = "…" * (start > 0), "…" * (end < len(plain))
                return f"{before}{plain[start:end]}{after}"
        return None

    def _in_text(self, text: str) -> str | None:
        return self._excerpt_of((text,))

    def _in_row(self, row: ChunkRow) -> str | None:
        return self._excerpt_of(texts_of(row))

    def _in_blob(self, blob: Blob | None) -> str | None:
        if blob is None or blob.data is None or not is_text(blob.data):
            return None
        return self._in_text(blob.data.decode())
