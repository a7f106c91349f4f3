"""What a replay that differs is told: where, what was recorded, what was found, in few words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rath._core.text import one_line_preview, short_id
from rath.errors import ReplayDifference
from rath.llm.chat_request import RathLLMFunctionTool
from rath.session.chunk import ChunkRow, format_chunk_row_brief
from rath.session.record import Operation

MAX_SHOWN = 200
"""Characters of a row or of parameters that an error shows."""

_KINDS: Mapping[str, str] = {
    "loop": "run_session_loop",
    "compress": "run_session_compress",
    "select": "select_session",
    "check": "check",
}


def name_of(operation: Operation) -> str:
    """Return how a recorded operation is named in an error."""
    return named(operation.kind, operation.place.path, operation.place.ordinal, operation.session)


def named(kind: str, path: str, ordinal: int, session: object = None) -> str:
    """Return how an operation is named in an error: its kind, place and session."""
    place = f" at {path}#{ordinal}" if path else ""
    of = "" if session is None else f" of session {short_id(session)}"  # type: ignore[arg-type]  # a UUID
    return f"{_KINDS.get(kind, kind)}{place}{of}"


def rows_differ(
    recorded: Sequence[ChunkRow], found: Sequence[ChunkRow], *, where: str, what: str
) -> ReplayDifference | None:
    """Return the error for the first row that differs, None where all are equal.

    Args:
        recorded: Rows of the record.
        found: Rows of the replay.
        where: The session.
        what: Whose rows they are, such as "the input".
    """
    for index, (mine, theirs) in enumerate(zip_longest(recorded, found)):
        if mine != theirs:
            return ReplayDifference(
                f"row {index} of {what} is not the recorded one",
                where=f"{where}, row {index}",
                expected=shown_row(index, mine, theirs),
                found=shown_row(index, theirs, mine),
            )
    return None


def tools_differ(
    recorded: Sequence[RathLLMFunctionTool],
    found: Sequence[RathLLMFunctionTool],
    *,
    where: str,
) -> ReplayDifference | None:
    """Return the error for the first tool schema that differs, None where all are equal."""
    mine, theirs = ({tool.name: tool for tool in tools} for tools in (recorded, found))
    for name in sorted({*mine, *theirs}):
        expected, given = mine.get(name), theirs.get(name)
        if expected != given:
            first, second = _schema(expected), _schema(given)
            return ReplayDifference(
                f"the schema of tool {name!r} is not the recorded one",
                where=where,
                expected=excerpt(first, second),
                found=excerpt(second, first),
            )
    return None


def parameters_differ(
    recorded: Mapping[str, Any], found: Mapping[str, Any], *, where: str
) -> ReplayDifference | None:
    """Return the error for the first parameter of a request that differs, None without any."""
    for name in dict.fromkeys((*recorded, *found)):
        expected, given = _json(recorded.get(name)), _json(found.get(name))
        if expected != given:
            return ReplayDifference(
                f"the parameter {name!r} of the request is not the recorded one",
                where=where,
                expected=excerpt(expected, given),
                found=excerpt(given, expected),
            )
    return None


def shown_row(index: int, row: ChunkRow | None, other: ChunkRow | None) -> str:
    """Return a row as an error shows it: where it begins to differ from `other`."""
    if row is None:
        return "no such row"
    mine = format_chunk_row_brief(index, row, max_payload=1 << 20)
    theirs = "" if other is None else format_chunk_row_brief(index, other, max_payload=1 << 20)
    return excerpt(mine, theirs)


def excerpt(text: str, other: str) -> str:
    """Return the part of `text` around the first character in which it differs from `other`."""
    at = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), None)
    at = min(len(text), len(other)) if at is None else at
    start = max(0, at - MAX_SHOWN // 2) if len(text) > MAX_SHOWN else 0
    shown = text[start : start + MAX_SHOWN]
    before = "..." if start else ""
    after = "..." if start + MAX_SHOWN < len(text) else ""
    return one_line_preview(f"{before}{shown}{after}", MAX_SHOWN + 6)


def _schema(tool: RathLLMFunctionTool | None) -> str:
    if tool is None:
        return "no such tool"
    return _json({"description": tool.description, "parameters": tool.parameters})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr, sort_keys=True)
