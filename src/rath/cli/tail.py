"""`rath tail`: the end of a session, and what comes as it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, assert_never

import typer

from rath.cli.evidence import brief
from rath.cli.layout import cut, one_line, room
from rath.cli.sessions import Damaged, SessionText, StoreUrl, find_session, opened_store, store_of
from rath.cli.show import Line, row_line
from rath.cli.states import STATE_STYLES, state_of
from rath.cli.terminal import say_lines, say_part
from rath.session.events import (
    AgentRows,
    CallSetup,
    Event,
    Failed,
    Finished,
    Header,
    Intent,
    OutcomeChange,
    PartialText,
    PendingResult,
    PlacementChange,
    Reopened,
    RoundEnd,
    Row,
    ToolSchemas,
)
from rath.session.loading import Loaded, load
from rath.session.record import ModelCall, RecordEntry, ToolRun

__all__ = ["app"]

_DEFAULT_ROWS = 10
_INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended."""

_INDENT = " " * 16

app = typer.Typer(add_completion=False)


@app.command()
def tail(
    session: SessionText,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what is added, until the run ends.")
    ] = False,
    n_rows: Annotated[
        int, typer.Option("--rows", "-n", min=0, help="How many rows to begin with.")
    ] = _DEFAULT_ROWS,
    store_url: StoreUrl = None,
) -> None:
    """Show the last rows of a session; with -f also each new one, and words as they are streamed.

    It ends when the run does, or with Ctrl-C.
    """
    with opened_store(store_url) as store:
        ident, place = store_of(find_session(session, store), store)
        loaded = load(place, ident, recover=True)
        following = _Following(loaded)
        say_lines(following.last_rows(n_rows))
        if loaded.problem is not None:
            raise Damaged(str(loaded.problem))
        if is_followed:
            try:
                for data in place.follow(ident, loaded.size):
                    for line in loaded.reader.feed(data):
                        following.show(line)
            except KeyboardInterrupt:
                following.end_text()
                raise typer.Exit(_INTERRUPTED) from None
            following.end_text()
            loaded = load(place, ident, recover=True)
        state = state_of(loaded, is_running=place.is_being_written(ident))
        say_lines([[("state  ", "dim"), (state, STATE_STYLES.get(state, ""))]])
        if loaded.problem is not None:
            raise Damaged(str(loaded.problem))


class _Following:
    """Shows lines of a log as they come, and words of an answer as they are streamed."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._n_rows = len(loaded.session.chunk_table)
        left = loaded.unfinished
        self._results = {} if left is None else {each.run.id: each for each in left.results}
        self._is_in_text = False
        self._streamed = "" if left is None else left.partial_text

    def last_rows(self, n_rows: int) -> Iterator[Line]:
        """Yield the lines of the last rows, and of what was streamed after them."""
        start = max(0, self._n_rows - n_rows)
        for index, row in enumerate(self._loaded.session.chunk_table.since(start), start=start):
            yield row_line(index, row, columns=room())
        if self._streamed:
            yield [(_INDENT, ""), (cut(one_line(self._streamed), _columns()), "cyan")]

    def show(self, line: Event) -> None:
        """Show what a new line says."""
        if isinstance(line, PartialText):
            self._stream(line.text)
            return
        self.end_text()
        say_lines(self._lines(line))

    def end_text(self) -> None:
        """End the line that streamed words stand on."""
        if self._is_in_text:
            say_part("\n")
        self._is_in_text = False

    def _stream(self, text: str) -> None:
        if not self._is_in_text:
            say_part(_INDENT)
            self._is_in_text = True
        say_part(text)

    def _lines(self, line: Event) -> Iterator[Line]:
        match line:
            case Row(index, row):
                self._n_rows = index + 1
                yield row_line(index, row, columns=room())
            case ModelCall() | ToolRun():
                yield [(_INDENT, ""), (cut(brief(line), _columns()), "dim")]
            case RecordEntry():
                yield [(_INDENT, ""), (cut(brief(line), _columns()), "")]
            case Intent():
                yield [(f"{_INDENT}→ ", "yellow"), (f"{line.tool} …", "dim")]
            case PendingResult():
                self._results[line.run.id] = line
                yield [(f"{_INDENT}← ", "yellow"), (f"{line.run.tool}: {brief(line.run)}", "dim")]
            case RoundEnd(_, results):
                yield from self._round([self._results.pop(each, None) for each in results])
            case Failed(how, error):
                yield [(f"{_INDENT}! ", "red"), (f"{how}: {one_line(error)}", "red")]
            case Reopened():
                yield [(f"{_INDENT}the run goes on", "dim")]
            case (
                Header() | AgentRows() | ToolSchemas() | CallSetup() | Finished() | OutcomeChange()
            ):
                pass  # The state is told at the end.
            case PlacementChange():
                pass  # What runs there tells where it ran.
            case PartialText():
                pass  # It has no line of its own.
            case _:
                assert_never(line)

    def _round(self, results: list[PendingResult | None]) -> Iterator[Line]:
        for result in results:
            if result is not None and result.shown is not None:
                yield row_line(self._n_rows, result.shown, columns=room())
                self._n_rows += 1


def _columns() -> int | None:
    columns = room()
    return None if columns is None else columns - len(_INDENT)
