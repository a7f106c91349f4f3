"""How much work each row does: the sizes of the design's budgets, and small ones for CI."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work of every row, and how often it is repeated."""

    repeats: int
    """Interleaved repeats of a row; its numbers are medians."""
    rounds: int
    """Tool rounds of the run that is compared with loops by hand."""
    depth: int
    """Rounds of the long run whose last rounds are compared with its 10th."""
    deltas: int
    sessions: int
    crowd: int
    """Sessions in flight at once, more than there are connections."""
    items: int
    """Items of a job."""
    table_rows: int
    notes: int
    turns: int
    """Turns of the session file that is loaded."""
    stored_sessions: int
    """Sessions of the store that is listed."""
    workspace_files: tuple[int, ...]
    """Files of the workspaces in which effects are looked for."""
    commands: int
    """Commands in a sandbox, one after another."""
    commands_at_once: int
    server_calls: int
    """Calls of a tool server."""
    page_rows: int
    """Rows of the session whose page is opened in a browser."""


FULL = Sizes(
    repeats=5,
    rounds=50,
    depth=400,
    deltas=2000,
    sessions=200,
    crowd=5000,
    items=2000,
    table_rows=100_000,
    notes=100_000,
    turns=1000,
    stored_sessions=10_000,
    workspace_files=(5000, 50_000),
    commands=50,
    commands_at_once=50,
    server_calls=500,
    page_rows=10_000,
)
SMALL = Sizes(
    repeats=1,
    rounds=10,
    depth=60,
    deltas=200,
    sessions=20,
    crowd=100,
    items=50,
    table_rows=2000,
    notes=500,
    turns=50,
    stored_sessions=300,
    workspace_files=(500,),
    commands=5,
    commands_at_once=8,
    server_calls=50,
    page_rows=500,
)
