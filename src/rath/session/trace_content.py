"""Message content of spans, by the conventions for generative AI; secrets are hidden in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rath.config.redaction import redact_content
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText
from rath.session.record import ModelCall, Operation, RecalledNote, ToolRun


class SpanContent:
    """The content of spans, by the rows that calls and tools have made.

    Args:
        tables: The rows that are known: those of the session, and those of runs inside its calls.
    """

    def __init__(self, *tables: ChunkTable) -> None:
        self._index: dict[RowId, tuple[ChunkTable, int]] = {}
        for table in tables:
            for at, row in enumerate(table):
                if row.id is not None:
                    self._index.setdefault(row.id, (table, at))

    def of_call(self, call: ModelCall, operation: Operation) -> Mapping[str, str]:
        """Return what a model read and what it answered."""
        found = next((self._index[row] for row in call.rows if row in self._index), None)
        if found is None:
            return {}
        table, at = found
        answer = table[at]
        content: dict[str, str] = {
            "gen_ai.input.messages": _json([_message(row) for row in table[:at]]),
            "gen_ai.output.messages": _json(
                [{**_message(answer), "finish_reason": call.evidence.finish_reason or "stop"}]
            ),
        }
        instructions = [part for row in operation.head for part in _message(row)["parts"]]
        return (
            {**content, "gen_ai.system_instructions": _json(instructions)}
            if instructions
            else content
        )

    def of_tool(self, run: ToolRun) -> Mapping[str, str]:
        """Return the arguments and the result of a tool call, as the model reads it."""
        arguments = run.arguments
        content = {} if arguments is None else {"gen_ai.tool.call.arguments": _json(arguments)}
        for row in run.rows:
            if row in self._index:
                table, at = self._index[row]
                shown = table[at].content
                if isinstance(shown, ToolFeedback):
                    content["gen_ai.tool.call.result"] = _text(shown.described)
        return content


def of_notes(notes: Iterable[RecalledNote]) -> Mapping[str, str]:
    """Return the notes that were recalled."""
    listed = [{"id": note.uri, "score": note.score, "content": note.text} for note in notes]
    return {"gen_ai.retrieval.documents": _json(listed)}


def of_report(report: str) -> Mapping[str, str]:
    """Return the reasons of a verdict."""
    return {"gen_ai.evaluation.explanation": _text(report)} if report else {}


def _message(row: ChunkRow) -> dict[str, Any]:
    content = row.content
    parts: Sequence[dict[str, Any]]
    match content:
        case SystemText(text):
            role, parts = "system", [_text_part(text)]
        case UserText():
            role, parts = "user", [_text_part(content.described)]
        case AssistantTurn(text, calls):
            role = "assistant"
            parts = [_text_part(text)] if text else []
            parts += [
                {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
                for call in calls
            ]
        case ToolFeedback(call_id):
            role = "tool"
            parts = [{"type": "tool_call_response", "id": call_id, "response": content.described}]
        case Opaque(payload):
            role, parts = row.kind_name, [{"type": "opaque", "content": payload}]
    return {"role": role, "parts": list(parts)}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _json(value: object) -> str:
    return json.dumps(_redacted(value), ensure_ascii=False, default=str)


def _redacted(value: Any) -> Any:
    """Return JSON values with the secrets of each text hidden, before they are escaped."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        return {key: _redacted(inner) for key, inner in table.items()}
    if isinstance(value, list | tuple):
        return [_redacted(inner) for inner in cast("Iterable[object]", value)]
    return value


def _text(text: str) -> str:
    # An exporter encodes it as UTF-8.
    return redact_content(text).encode(errors="replace").decode()
