"""Which conversations a chat client can take to its endpoint, as sessions render them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rath.conformance.chat.subject import Subject
from rath.conformance.report import Unlike, expect
from rath.errors import ProviderError
from rath.llm.base import ChatDraft
from rath.llm.chat_request import RathLLMMessage
from rath.llm.chat_response import tool_call_part
from rath.session.calls.requests import Renderer
from rath.session.chunk import (
    ChunkRow,
    assistant_turn_chunk,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)

__all__ = ["HISTORIES"]

_HEAD = (system_text_chunk("You are brief."),)
_END = (user_text_chunk("Say hello."),)


def _calls(*calls: tuple[str, str], text: str | None = None) -> ChunkRow:
    """Return a turn that calls `add`, each call with an id and the text of its arguments."""
    parts = tuple(tool_call_part(call_id, "add", arguments) for call_id, arguments in calls)
    return assistant_turn_chunk(tool_calls=parts, content=text)


def _result(call_id: str, body: str) -> ChunkRow:
    return tool_feedback_chunk(call_id, "add", body)


def _says(text: str) -> ChunkRow:
    return assistant_turn_chunk(tool_calls=None, content=text)


_PARTS: Mapping[str, Sequence[ChunkRow]] = {
    "a call with its result, and text beyond ASCII": (
        user_text_chunk("Straße 🦩 二\u2028"),
        _calls(("call_1", '{"a": "鷺"}')),
        _result("call_1", "e\u0301 \u202b€"),
        _says("🦩"),
    ),
    "a call that was interrupted": (
        user_text_chunk("Add 3."),
        _calls(("call_2", '{"a": 3}')),
        user_text_chunk("Never mind."),
        _says("Fine."),
    ),
    "several calls in one turn, with ids of other vendors and beside a text": (
        user_text_chunk("Add twice."),
        _calls(("functions.add:0", '{"a": 1}'), ("toolu_01Abc/é", '{"a": 2}'), text="I add."),
        _result("functions.add:0", "1"),
        _result("toolu_01Abc/é", "2"),
    ),
    "calls without arguments, and with some that are no JSON": (
        user_text_chunk("Add."),
        _calls(("call_1", ""), ("call_1", '{"a": 5')),
        _result("call_1", ""),
        _result("call_1", "bad arguments"),
    ),
}


def _histories_with_tool_calls_are_accepted(subject: Subject) -> None:
    everything = [row for rows in _PARTS.values() for row in rows]
    try:
        _ask(subject, everything)
    except Exception as first:  # whatever the subject raises; which part was it?
        refused = [f"{name} ({problem})" for name in _PARTS if (problem := _problem(subject, name))]
        together = f"all of it together ({_told(first)}), as after each part alone"
        raise Unlike(f"expected an answer after {', '.join(refused) or together}") from first


def _a_draft_that_grows_is_one_that_was_opened_whole(subject: Subject) -> None:
    messages = _rendered([row for rows in _PARTS.values() for row in rows])
    for how in subject.hows:
        whole = subject.open(subject.request(*messages), how=how)
        grown = subject.open(subject.request(*messages[:1]), how=how)
        for message in messages[1:]:
            _touch(grown)
            grown.append([message])
        expect(grown.body() == whole.body(), "the same body, message by message or at once")
        expect(grown.digest == whole.digest, "the same digest, message by message or at once")


def _problem(subject: Subject, name: str) -> str | None:
    try:
        _ask(subject, _PARTS[name])
    except Exception as exc:  # noqa: BLE001  # see above
        return _told(exc)
    return None


def _told(exc: Exception) -> str:
    return str(exc) if isinstance(exc, ProviderError | Unlike) else repr(exc)


def _ask(subject: Subject, rows: Sequence[ChunkRow]) -> None:
    subject.ask(subject.request(*_rendered(rows), max_tokens=1))


def _rendered(rows: Sequence[ChunkRow]) -> list[RathLLMMessage]:
    renderer = Renderer()
    return [*renderer.render([*_HEAD, *rows, *_END]), *renderer.hand_over()]


def _touch(draft: ChatDraft) -> None:
    """Have a draft write what it is about to send, as each round of a run does."""
    _ = draft.body(), draft.digest


HISTORIES = (
    _histories_with_tool_calls_are_accepted,
    _a_draft_that_grows_is_one_that_was_opened_whole,
)
