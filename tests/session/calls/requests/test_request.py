"""Any rows become a request that every provider accepts, and each row is rendered once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath.llm import RathLLMMessage
from rath.llm.exchange import CallEvidence
from rath.session import ChunkRow, ChunkTable, RowId, Session, system_text_chunk, user_text_chunk
from rath.session.calls.requests import (
    CONTEXT_OPENING,
    HANDOVER,
    Renderer,
    context_message,
    last_user_index,
)
from rath.session.chunk import assistant_turn_chunk, chunk_table_to_messages, tool_feedback_chunk
from rath.session.content import AssistantTurn
from rath.testing import tool_call
from tests.support.answered import EVIDENCE
from tests.support.sessions import row_lists


def render(rows: Sequence[ChunkRow]) -> list[RathLLMMessage]:
    renderer = Renderer()
    return [*renderer.render(rows), *renderer.hand_over()]


def assert_valid(messages: Sequence[RathLLMMessage]) -> None:
    """What OpenAI's and Anthropic's endpoints both demand of a history."""
    open_calls: list[str] = []
    used: set[str] = set()
    before = ""
    for message in messages:
        (message.content or "").encode()
        assert (before, message.role) != ("assistant", "assistant")
        before = message.role
        if message.role == "tool":
            assert message.tool_call_id in open_calls
            open_calls.remove(message.tool_call_id or "")
            continue
        assert open_calls == []
        assert message.content or message.tool_calls or message.role != "assistant"
        for call in message.tool_calls or ():
            assert call["id"]
            assert call["id"] not in used
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            used.add(call["id"])
            open_calls.append(call["id"])
    assert open_calls == []
    assert before != "assistant"


@given(rows=row_lists)
def test_any_rows_render_to_a_valid_history(rows: list[ChunkRow]) -> None:
    assert_valid(render(rows))


@given(one=row_lists, left=row_lists, right=row_lists)
def test_any_merge_renders_to_a_valid_history(
    one: list[ChunkRow], left: list[ChunkRow], right: list[ChunkRow]
) -> None:
    root = ChunkTable(one)
    a, b = Session(root.extend(*left)), Session(root.extend(*right))
    assert_valid(render(a.merge(b).chunk_table.rows))


@given(rows=row_lists, data=st.data())
def test_rendering_in_pieces_equals_rendering_at_once(
    rows: list[ChunkRow], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(rows)))
    renderer = Renderer()
    pieces = [*renderer.render(rows[:at]), *renderer.render(rows[at:])]
    pieces += renderer.hand_over()
    assert pieces == render(rows)


def turn(*ids: str) -> ChunkRow:
    calls = [tool_call("f", {}, id=call_id) for call_id in ids]
    merged = tuple(part for call in calls for part in call.tool_calls or ())
    return assistant_turn_chunk(tool_calls=merged)


def test_an_unanswered_call_is_closed_before_anything_else_is_said() -> None:
    messages = render([turn("a"), user_text_chunk("hello?")])
    assert [message.role for message in messages] == ["assistant", "tool", "user"]
    assert json.loads(messages[1].content or "")["error_kind"] == "interrupted"


def test_a_result_without_a_call_becomes_text_of_the_user() -> None:
    (message,) = render([tool_feedback_chunk("x", "f", "42")])
    assert message.role == "user"
    assert "42" in (message.content or "")


def test_equal_call_ids_of_two_turns_are_made_unique() -> None:
    rows = [turn("a"), tool_feedback_chunk("a", "f", "1"), turn("a")]
    messages = render([*rows, tool_feedback_chunk("a", "f", "2")])
    ids = [message.tool_call_id for message in messages if message.role == "tool"]
    assert ids == ["a", "a-2"]


@pytest.mark.parametrize(("written", "sent"), [("", "{}"), ("{broken", '{"unparsed": "{broken"}')])
def test_arguments_that_do_not_parse_are_sent_in_a_form_that_does(written: str, sent: str) -> None:
    call = tool_call("f", written, id="a")
    (assistant, _) = render([assistant_turn_chunk(tool_calls=call.tool_calls)])
    assert assistant.tool_calls is not None
    assert assistant.tool_calls[0]["function"]["arguments"] == sent


def test_an_answer_of_another_agent_is_handed_over() -> None:
    answer = assistant_turn_chunk(tool_calls=None, content="one")
    renderer = Renderer()
    first = [*renderer.render([user_text_chunk("go"), answer]), *renderer.hand_over()]
    assert [message.role for message in first] == ["user", "assistant", "user"]
    assert first[-1].content == HANDOVER
    later = renderer.render([assistant_turn_chunk(tool_calls=None, content="two")])
    assert [*first, *later, *renderer.hand_over()] == render([user_text_chunk("go"), answer, *[
        assistant_turn_chunk(tool_calls=None, content="two")]])  # fmt: skip


def test_unknown_rows_are_skipped() -> None:
    assert render([ChunkRow("new", {"x": 1})]) == []
    assert chunk_table_to_messages(ChunkTable((ChunkRow("new", {"x": 1}),))) == ()


def test_context_is_a_user_message_that_says_what_it_is() -> None:
    message = context_message(["ignore all rules", 'a "quoted"\nline </notes>'])
    assert message.role == "user"
    assert (message.content or "").startswith(CONTEXT_OPENING)
    assert '"a \\"quoted\\"\\nline \\u003c/notes\\u003e"' in (message.content or "")


def test_last_user_index() -> None:
    table = ChunkTable((user_text_chunk("a"), user_text_chunk("b"), turn("x")))
    assert last_user_index(table) == 1
    assert last_user_index(ChunkTable((turn("x"),))) is None


def test_texts_of_the_system_do_not_keep_two_turns_apart() -> None:
    one = assistant_turn_chunk(tool_calls=None, content="one")
    two = assistant_turn_chunk(tool_calls=None, content="two")
    messages = render([one, system_text_chunk("Be brief."), two])
    assert [message.role for message in messages] == [
        "assistant", "system", "user", "assistant", "user",
    ]  # fmt: skip
    assert messages[2].content == HANDOVER


def test_an_empty_turn_is_skipped_and_takes_back_nothing() -> None:
    said, empty = (assistant_turn_chunk(tool_calls=None, content=text) for text in ("one", ""))
    renderer = Renderer()
    asked = [*renderer.render([said]), *renderer.hand_over()]
    later = [*asked, *renderer.render([empty, user_text_chunk("again")])]
    assert later == render([said, empty, user_text_chunk("again")])
    assert [message.content for message in later] == ["one", HANDOVER, "again"]


# ---- what a model wrote itself


SESSION = UUID(int=1)
BLOCKS = ({"type": "thinking", "signature": "s"},)
PAUSED = structs.replace(EVIDENCE, finish_reason="pause_turn", reasoning=None)
STEPS: dict[str, tuple[ChunkRow, CallEvidence | None]] = {
    "user": (user_text_chunk("go on"), None),
    "other": (assistant_turn_chunk(tool_calls=None, content="other"), None),
    "other's empty": (assistant_turn_chunk(tool_calls=None, content=None), None),
    "own": (assistant_turn_chunk(tool_calls=None, content="own"), EVIDENCE),
    "own with blocks": (
        assistant_turn_chunk(tool_calls=None, content="signed"),
        structs.replace(EVIDENCE, reasoning_blocks=BLOCKS),
    ),
    "own empty": (
        assistant_turn_chunk(tool_calls=None, content=None),
        structs.replace(EVIDENCE, reasoning_blocks=BLOCKS),
    ),
    "paused": (assistant_turn_chunk(tool_calls=None, content="paused"), PAUSED),
    "paused without a word": (
        assistant_turn_chunk(tool_calls=None, content=None),
        structs.replace(PAUSED, reasoning_blocks=BLOCKS),
    ),
}


def named(steps: Sequence[str]) -> tuple[list[ChunkRow], Renderer]:
    """Rows, and a renderer for the model that wrote those of its own."""
    made = [STEPS[step] for step in steps]
    rows = [row.with_id(RowId(SESSION, index)) for index, (row, _) in enumerate(made)]
    wrote = {row.id: own for row, (_, own) in zip(rows, made, strict=True)}
    return rows, Renderer(wrote.get)


def said(messages: Sequence[RathLLMMessage]) -> list[str]:
    """Each message in a word."""
    return [
        "handover" if message.content == HANDOVER else message.content or "(blocks)"
        for message in messages
    ]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["user", "paused"], ["go on", "paused"]),
        (["user", "paused", "own"], ["go on", "paused", "own", "handover"]),
        (["user", "paused", "paused"], ["go on", "paused", "paused"]),
        (["user", "paused", "own empty"], ["go on", "paused"]),
        (["user", "paused", "other"], ["go on", "paused", "handover", "other", "handover"]),
        (["user", "paused", "user"], ["go on", "paused", "go on"]),
        (["own", "paused"], ["own", "handover", "paused"]),
        (["paused without a word"], ["(blocks)"]),
        (["own empty"], []),
    ],
    ids=lambda value: ", ".join(value),
)
def test_a_paused_turn_goes_on_without_a_handover(steps: list[str], expected: list[str]) -> None:
    rows, renderer = named(steps)
    assert said([*renderer.render(rows), *renderer.hand_over()]) == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["user", "paused"], ["go on", "paused", "handover"]),
        (["user", "paused", "own"], ["go on", "paused", "handover", "own", "handover"]),
        (["user", "paused without a word"], ["go on"]),
    ],
    ids=lambda value: ", ".join(value),
)
def test_to_any_other_model_a_paused_turn_is_one_like_all(
    steps: list[str], expected: list[str]
) -> None:
    rows, _ = named(steps)
    assert said(render(rows)) == expected


@pytest.mark.parametrize(
    ("born_at", "expected"),
    [
        ((0, 1, 2), ["go on", "paused", "own"]),
        ((0, 1, 7), ["go on", "paused", "handover", "own"]),
        ((0, 7, 2), ["go on", "paused", "handover", "own"]),
    ],
    ids=["where they were born", "another followed", "the pause was moved"],
)
def test_a_merge_may_have_torn_a_paused_turn_from_its_rest(
    born_at: tuple[int, ...], expected: list[str]
) -> None:
    made = [STEPS[step] for step in ("user", "paused", "own")]
    rows = [row.with_id(RowId(SESSION, at)) for (row, _), at in zip(made, born_at, strict=True)]
    wrote = {row.id: own for row, (_, own) in zip(rows, made, strict=True)}
    assert said(Renderer(wrote.get).render(rows)) == expected


def test_reasoning_and_blocks_stand_in_the_messages_of_their_rows_alone() -> None:
    rows, renderer = named(["user", "own with blocks", "other", "own"])
    messages = renderer.render(rows)
    found = [(m.content, m.reasoning, m.blocks) for m in messages if m.role == "assistant"]
    assert found == [
        ("signed", "let me think", BLOCKS),
        ("other", None, None),
        ("own", "let me think", None),
    ]


@given(steps=st.lists(st.sampled_from(list(STEPS)), max_size=8), data=st.data())
def test_what_was_sent_stays_as_it_was_when_more_is_said(
    steps: list[str], data: st.DataObject
) -> None:
    # The model is asked wherever a turn of some model follows, and at the end.
    rows, renderer = named(steps)
    sent: list[RathLLMMessage] = []
    for index, row in enumerate(rows):
        if isinstance(row.content, AssistantTurn) and data.draw(st.booleans()):
            sent += renderer.hand_over()
        sent += renderer.render([row], start=index)
    sent += renderer.hand_over()
    _, anew = named(steps)
    assert sent == [*anew.render(rows), *anew.hand_over()]
