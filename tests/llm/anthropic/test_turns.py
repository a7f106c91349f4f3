"""Any conversation becomes turns that the Messages API accepts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.blobs import Blob
from rath.llm import RathLLMChatRequest, RathLLMMessage
from rath.llm.anthropic.create_kwargs import EMPTY, OPENING, MessagesWriter, build_anthropic_kwargs
from rath.llm.anthropic.normalize import decode_message
from rath.llm.body import RequestBody
from rath.llm.chat_response import tool_call_part
from rath.llm.image import Image
from rath.session import ChunkRow, ChunkTable, Session, assistant_turn_chunk
from tests.support import anthropic_replies as replies
from tests.support.anthropic_rules import check_body
from tests.support.api import Renderer, context_message
from tests.support.sessions import any_texts, row_lists
from tests.support.targets import request_target

Json = dict[str, Any]
ASKED = request_target("the server")
USER = RathLLMMessage("user", "hi")


def call(call_id: str, name: str = "f", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Json, text: str | None = None) -> RathLLMMessage:
    return RathLLMMessage("assistant", text, tool_calls=tuple(calls))


def result(call_id: str, text: str | None = "done") -> RathLLMMessage:
    return RathLLMMessage("tool", text, tool_call_id=call_id)


def body_of(messages: Iterable[RathLLMMessage], *, model: str = "m", **extra: Any) -> RequestBody:
    request = RathLLMChatRequest(messages=tuple(messages), extra_create_args=extra)
    body = RequestBody(MessagesWriter(request, model=model))
    body.append(request.messages)
    return body


def sent_by(*messages: RathLLMMessage, **asked: Any) -> Json:
    return check_body(body_of(messages, **asked).content(streaming=False))


def turns_of(*messages: RathLLMMessage) -> list[Json]:
    turns: list[Json] = check_body(body_of(messages).content(streaming=False))["messages"]
    return turns


def render(rows: Sequence[ChunkRow]) -> list[RathLLMMessage]:
    renderer = Renderer()
    return [*renderer.render(rows), *renderer.hand_over()]


# ---------------------------------------------------------------- what sessions render


odd_parts = st.builds(
    tool_call_part,
    any_texts,
    any_texts | st.just("n" * 200),
    st.sampled_from(['{"x": NaN}', '{"x": -1e999}', '{"x": 1.5}', "{}", "", "{broken"]),
)
odd_turns = st.builds(
    assistant_turn_chunk,
    tool_calls=st.lists(odd_parts, max_size=3).map(tuple),
    content=st.none() | st.sampled_from(["", " \n", "text", "ends blank \n"]),
)
odd_rows = st.lists(odd_turns | row_lists.map(lambda rows: rows[0] if rows else None), max_size=8)


@given(rows=row_lists)
def test_any_rows_become_a_valid_request(rows: list[ChunkRow]) -> None:
    check_body(body_of(render(rows)).content(streaming=False))


@given(rows=odd_rows)
def test_odd_ids_names_and_numbers_become_valid(rows: list[ChunkRow | None]) -> None:
    given_rows = [row for row in rows if row is not None]
    check_body(body_of(render(given_rows)).content(streaming=True))


@given(one=row_lists, left=row_lists, right=row_lists)
def test_any_merge_becomes_a_valid_request(
    one: list[ChunkRow], left: list[ChunkRow], right: list[ChunkRow]
) -> None:
    root = ChunkTable(one)
    merged = Session(root.extend(*left)).merge(Session(root.extend(*right)))
    check_body(body_of(render(merged.chunk_table.rows)).content(streaming=False))


@given(rows=row_lists, at=st.integers(0, 12))
def test_recalled_notes_keep_a_request_valid(rows: list[ChunkRow], at: int) -> None:
    renderer = Renderer()
    messages = [*renderer.render(rows[:at]), *renderer.close(), context_message(["a note"])]
    messages += [*renderer.render(rows[at:]), *renderer.hand_over()]
    check_body(body_of(messages).content(streaming=False))


@given(rows=row_lists, cuts=st.lists(st.integers(0, 20), max_size=4))
def test_a_body_that_grows_is_the_body_written_at_once(
    rows: list[ChunkRow], cuts: list[int]
) -> None:
    messages = render(rows)
    growing = body_of(())
    start = 0
    for cut in [*sorted(cuts), len(messages)]:
        growing.append(messages[start:cut])
        start = max(start, cut)
        growing.content(streaming=False)
    whole = body_of(messages)
    assert growing.content(streaming=True) == whole.content(streaming=True)
    assert growing.digest(streaming=False) == whole.digest(streaming=False)


@given(rows=row_lists)
def test_body_and_keyword_arguments_say_the_same(rows: list[ChunkRow]) -> None:
    request = RathLLMChatRequest(messages=tuple(render(rows)), model="m")
    arguments = build_anthropic_kwargs(request, default_model=None)
    turns: list[Json] = arguments["messages"]
    for turn in turns:
        if isinstance(turn["content"], str):
            turn["content"] = [{"type": "text", "text": turn["content"]}]
    sent = check_body(body_of(request.messages).content(streaming=False))
    assert json.loads(json.dumps(turns)) == sent["messages"]
    texts = [block["text"] for block in sent.get("system", ())]
    assert arguments.get("system", "") == "\n\n".join(texts)


# ---------------------------------------------------------------- answers that go back


MANUAL = {"type": "enabled", "budget_tokens": 2000}
ADAPTIVE = {"type": "adaptive"}
OFF = {"type": "disabled"}
asked = st.sampled_from(
    [{}, {"model": "claude-opus-4-1"}, *({"thinking": how} for how in (MANUAL, ADAPTIVE, OFF))]
)
blocks = st.one_of(
    st.builds(replies.text, st.sampled_from(["", "\n", "words", "blank behind "])),
    st.builds(replies.thinking, st.sampled_from(["", "hm"])),
    st.builds(replies.redacted),
    st.builds(replies.tool_use, st.just("f"), st.just({"x": 1}), id=st.sampled_from("ab")),
    st.builds(replies.search, st.just("q"), id=st.sampled_from(["srvtoolu_1", "srvtoolu_2"])),
    st.builds(replies.found, id=st.sampled_from(["srvtoolu_1", "srvtoolu_2"])),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[RathLLMMessage]:
    """Messages in which the model's own answers go back to it, beside those of others."""
    messages = [USER]
    for number in range(draw(st.integers(1, 4))):
        content = draw(st.lists(blocks, max_size=4))
        response, served = decode_message(replies.envelope(*content), ASKED)
        said = response.primary_choice.message
        ids = [f"{part.id}-{number}-{at}" for at, part in enumerate(said.tool_calls or ())]
        calls = tuple(call(call_id) for call_id in ids) or None
        own = draw(st.sampled_from([served.blocks or None, None]))
        messages.append(RathLLMMessage("assistant", said.content, tool_calls=calls, blocks=own))
        messages += [result(call_id) for call_id in ids]
        if not ids or draw(st.booleans()):
            messages.append(USER)
    if draw(st.booleans()):
        paused = (draw(blocks), draw(blocks), replies.search("q", id="srvtoolu_9"))
        _, served = decode_message(replies.envelope(*paused), ASKED)
        messages.append(RathLLMMessage("assistant", None, blocks=served.blocks))
    return messages


@given(messages=conversations(), asked=asked)
def test_answers_that_go_back_keep_a_request_valid(
    messages: list[RathLLMMessage], asked: Json
) -> None:
    check_body(body_of(messages, **asked).content(streaming=False))


@given(messages=conversations(), asked=asked)
def test_a_body_with_thoughts_that_grows_is_the_body_written_at_once(
    messages: list[RathLLMMessage], asked: Json
) -> None:
    growing = body_of((), **asked)
    for message in messages:
        growing.append([message])
        digest = growing.digest(streaming=True)
        assert digest == sha256(growing.content(streaming=True)).hexdigest()
    assert growing.content(streaming=True) == body_of(messages, **asked).content(streaming=True)


@given(messages=conversations(), asked=asked)
def test_keyword_arguments_think_as_the_body_does(
    messages: list[RathLLMMessage], asked: Json
) -> None:
    model, extra = asked.get("model", "m"), {k: v for k, v in asked.items() if k != "model"}
    request = RathLLMChatRequest(messages=tuple(messages), model=model, extra_create_args=extra)
    arguments = build_anthropic_kwargs(request, default_model=None)
    sent = sent_by(*messages, **asked)
    assert arguments.get("thinking") == sent.get("thinking")


def test_signed_thoughts_go_back_as_they_came() -> None:
    own = (
        replies.thinking("first", "sig-1"),
        replies.redacted(),
        replies.text("Let me look. "),
        replies.tool_use("f", {"x": 1}, id="toolu_1"),
    )
    message = RathLLMMessage(
        "assistant", "Let me look.", tool_calls=(call("toolu_1"),), reasoning="first", blocks=own
    )
    assert turns_of(USER, message, result("toolu_1"))[1]["content"] == list(own)


def test_ids_of_own_blocks_are_those_of_the_calls() -> None:
    own = tuple(
        MappingProxyType(block)
        for block in [
            replies.thinking("t"),
            replies.tool_use("f", {}, id="same"),
            replies.tool_use("g", {}, id="same"),
        ]
    )
    message = RathLLMMessage("assistant", tool_calls=(call("same"), call("same-2")), blocks=own)
    turns = turns_of(USER, message, result("same-2"), result("same"))
    assert [block.get("id") for block in turns[1]["content"]] == [None, "same", "same-2"]


# ---------------------------------------------------------------- with and without thinking


OWN = (replies.thinking("hm"), replies.tool_use("f", {}, id="a"))
THINKING = RathLLMMessage("assistant", tool_calls=(call("a"),), blocks=OWN)
FOREIGN = calling(call("b"))


PICTURE = Image("image/png", Blob.from_bytes(b"\x89PNG"))
PAUSED = RathLLMMessage(
    "assistant", "I search.", blocks=(replies.text("I search."), replies.search("q"))
)
PAUSED_THOUGHT = RathLLMMessage("assistant", blocks=(replies.thinking("hm"), replies.search("q")))


@pytest.mark.parametrize(
    ("messages", "asked", "is_sent"),
    [
        ((FOREIGN, result("b")), MANUAL, False),
        ((FOREIGN, result("b"), RathLLMMessage("user", " ")), MANUAL, False),
        ((FOREIGN, result("b"), USER), MANUAL, True),
        ((FOREIGN, result("b"), RathLLMMessage("user", "", images=(PICTURE,))), MANUAL, True),
        ((FOREIGN, result("b"), THINKING, result("a")), ADAPTIVE, True),
        ((PAUSED,), MANUAL, False),
        ((PAUSED_THOUGHT,), MANUAL, True),
    ],
    ids=["no thought", "blank", "user spoke", "picture", "as it likes", "paused", "paused thought"],
)
def test_the_model_may_think_where_its_answer_began_with_a_thought(
    messages: tuple[RathLLMMessage, ...], asked: Json, is_sent: bool
) -> None:
    assert sent_by(USER, *messages, thinking=asked).get("thinking") == (asked if is_sent else None)


@pytest.mark.parametrize(("asked", "first"), [(MANUAL, 1), (ADAPTIVE, 0)], ids=["budget", "free"])
def test_thoughts_behind_a_beginning_without_one_need_a_free_model(asked: Json, first: int) -> None:
    sent = sent_by(USER, FOREIGN, result("b"), THINKING, result("a"), thinking=asked)
    assert sent["messages"][3]["content"] == list(OWN[first:])


def test_the_parameters_tell_whether_the_model_was_asked_to_think() -> None:
    body = body_of([USER], thinking=MANUAL)
    assert body.parameters(streaming=False)["thinking"] == MANUAL
    body.append([FOREIGN, result("b")])
    assert "thinking" not in body.parameters(streaming=False)


def test_an_answer_that_began_with_a_thought_may_go_on_without_one() -> None:
    # A model that does not think between its tools answers so itself.
    sent = sent_by(USER, THINKING, result("a"), FOREIGN, result("b"), thinking=MANUAL)
    assert sent["thinking"] == MANUAL
    assert sent["messages"][1]["content"] == list(OWN)


def test_thoughts_of_an_answer_stay_when_the_user_has_spoken() -> None:
    before = (USER, THINKING, result("a"))
    sent = sent_by(*before, USER, FOREIGN, result("b"), thinking=MANUAL)
    assert sent["messages"][:2] == sent_by(*before, thinking=MANUAL)["messages"][:2]


@pytest.mark.parametrize(
    ("asked", "is_sent"),
    [
        ({"thinking": OFF}, False),
        ({"thinking": {"type": "between_tools"}}, True),
        ({}, True),
        ({"model": "claude-opus-5"}, True),
        ({"model": "claude-opus-4-8"}, False),
        ({"model": "anthropic.claude-sonnet-4-5-20250929-v1:0"}, False),
        ({"model": "claude-opus-4@20250514"}, False),
        ({"model": "claude-3-7-sonnet-20250219"}, False),
        ({"model": "claude-3-7-sonnet-20250219", "thinking": MANUAL}, True),
    ],
    ids=str,
)
def test_thoughts_go_only_to_a_model_that_may_think(asked: Json, is_sent: bool) -> None:
    sent = sent_by(USER, THINKING, result("a"), **asked)
    assert sent["messages"][1]["content"] == list(OWN if is_sent else OWN[1:])
    assert sent.get("thinking") == asked.get("thinking")


# ---------------------------------------------------------------- turns that pause


def test_a_paused_turn_is_no_longer_sent_where_more_was_added() -> None:
    body = body_of([USER, PAUSED])
    assert b"server_tool_use" in body.content(streaming=False)
    body.append([USER])
    assert b"server_tool_use" not in body.content(streaming=False)


# ---------------------------------------------------------------- one rule each


def test_results_of_a_round_stand_in_one_turn_with_what_the_user_says() -> None:
    turns = turns_of(USER, calling(call("a"), call("b")), result("b"), result("a"), USER)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "b", "content": "done"},
        {"type": "tool_result", "tool_use_id": "a", "content": "done"},
        {"type": "text", "text": "hi"},
    ]


def assistant(text: str | None, *blocks: Json) -> RathLLMMessage:
    return RathLLMMessage("assistant", text, blocks=blocks or None)


def user(text: str, *images: Image) -> RathLLMMessage:
    return RathLLMMessage("user", text, images=images or None)


def turn(role: str, *content: str | Json) -> Json:
    blocks = [replies.text(each) if isinstance(each, str) else each for each in content]
    return {"role": role, "content": blocks}


FIRST = turn("user", "hi")
SHOWN = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
}
SEARCHED = tuple(dict(block) for block in PAUSED.blocks or ())
FOUND = (replies.found(), replies.text("Found."))
USES_A = replies.tool_use("f", {}, id="a")
TURNS: dict[str, tuple[tuple[RathLLMMessage, ...], list[Json]]] = {
    "turns of one role": (
        (USER, user("there?"), assistant("yes")),
        [turn("user", "hi", "there?"), turn("assistant", "yes")],
    ),
    "the user begins": (
        (assistant("Welcome."), USER),
        [turn("user", OPENING), turn("assistant", "Welcome."), FIRST],
    ),
    "nobody spoke": ((), [turn("user", OPENING)]),
    "the system alone": ((RathLLMMessage("system", "s"),), [turn("user", OPENING)]),
    "a blank question": (
        (USER, assistant("yes"), user(" ")),
        [FIRST, turn("assistant", "yes"), turn("user", EMPTY)],
    ),
    "a blank text beside another": ((USER, user("")), [FIRST]),
    "no answer": ((USER, assistant(None)), [FIRST]),
    "a blank answer": ((USER, assistant(" \n")), [FIRST]),
    "white space behind": ((USER, assistant(" so \n")), [FIRST, turn("assistant", " so")]),
    "white space behind own blocks": (
        (USER, assistant("so", replies.redacted(), replies.text("so \n"))),
        [FIRST, turn("assistant", replies.redacted(), "so")],
    ),
    "images before the text": (
        (user("what is it?", PICTURE, PICTURE),),
        [turn("user", SHOWN, SHOWN, "what is it?")],
    ),
    "an image alone": ((user("", PICTURE),), [turn("user", SHOWN)]),
    "an unknown role": ((RathLLMMessage("critic", "no"),), [turn("user", "no")]),
    "own blocks that do not fit": (
        (USER, assistant("text", replies.thinking("t"), USES_A), USER),
        [FIRST, turn("assistant", "text"), FIRST],
    ),
    "a thought that nothing follows": (
        (USER, assistant("text", replies.text("text"), replies.thinking("cut", "")), USER),
        [FIRST, turn("assistant", "text"), FIRST],
    ),
    "thoughts alone": (
        (USER, assistant(None, replies.thinking("cut", "")), USER),
        [turn("user", "hi", "hi")],
    ),
    "a paused turn": ((USER, PAUSED), [FIRST, turn("assistant", *SEARCHED)]),
    "a paused turn that goes on": (
        (USER, PAUSED, assistant("Found.", *FOUND), USER),
        [FIRST, turn("assistant", *SEARCHED, *FOUND), FIRST],
    ),
    "a paused turn that the user ends": (
        (USER, PAUSED, USER),
        [FIRST, turn("assistant", "I search."), FIRST],
    ),
    "text before the calls": (
        (USER, calling(call("a"), text="I look."), result("a", " \n\t")),
        [
            FIRST,
            turn("assistant", "I look.", USES_A),
            turn("user", {"type": "tool_result", "tool_use_id": "a"}),
        ],
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_a_conversation_becomes_turns_that_the_api_accepts(name: str) -> None:
    messages, turns = TURNS[name]
    assert turns_of(*messages) == turns


def test_own_blocks_that_wait_for_our_result_are_not_paused() -> None:
    own = (replies.search("q"), USES_A)
    message = RathLLMMessage("assistant", tool_calls=(call("a"),), blocks=own)
    assert turns_of(USER, message, result("a"))[1]["content"] == list(own)


def test_ids_of_other_vendors_are_made_fit_and_stay_apart() -> None:
    asked = calling(call("functions.f:0"), call("functions.f_0"), call("functions_f_0"))
    results = [result(name) for name in ("functions_f_0", "functions.f:0", "functions.f_0")]
    turns = turns_of(USER, asked, *results)
    used = [block["id"] for block in turns[1]["content"]]
    answered = [block["tool_use_id"] for block in turns[2]["content"]]
    assert used == ["functions_f_0", "functions_f_0-2", "functions_f_0-3"]
    assert answered == [used[2], used[0], used[1]]


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("", {}),
        ("{broken", {}),
        ("[1]", {}),
        ('{"x": NaN}', {"x": "NaN"}),
        ('{"x": -1e999}', {"x": "-1e999"}),
        ('{"x": 1.5}', {"x": 1.5}),
    ],
)
def test_arguments_are_sent_as_an_object(written: str, sent: Json) -> None:
    turns = turns_of(USER, calling(call("a", "f", written)), result("a"))
    assert turns[1]["content"][0]["input"] == sent
