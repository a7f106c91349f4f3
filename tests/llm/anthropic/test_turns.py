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


def test_own_blocks_that_do_not_fit_the_calls_stay_away() -> None:
    own = (replies.thinking("t"), replies.tool_use("f", {}, id="a"))
    message = RathLLMMessage("assistant", "text", blocks=own)
    assert turns_of(USER, message, USER)[1]["content"] == [replies.text("text")]


@pytest.mark.parametrize("thought", [replies.thinking("cut", ""), replies.redacted()])
def test_a_thought_that_nothing_follows_is_left_out(thought: Json) -> None:
    message = RathLLMMessage("assistant", "text", blocks=(replies.text("text"), thought))
    assert turns_of(USER, message, USER)[1]["content"] == [replies.text("text")]


def test_an_answer_of_thoughts_alone_makes_no_turn() -> None:
    message = RathLLMMessage("assistant", None, blocks=(replies.thinking("cut", ""),))
    assert len(turns_of(USER, message, USER)) == 1


# ---------------------------------------------------------------- with and without thinking


OWN = (replies.thinking("hm"), replies.tool_use("f", {}, id="a"))
THINKING = RathLLMMessage("assistant", tool_calls=(call("a"),), blocks=OWN)
FOREIGN = calling(call("b"))


def test_an_answer_that_began_without_a_thought_goes_on_without_any() -> None:
    sent = sent_by(USER, FOREIGN, result("b"), thinking=MANUAL)
    assert "thinking" not in sent


def test_the_parameters_tell_whether_the_model_was_asked_to_think() -> None:
    body = body_of([USER], thinking=MANUAL)
    assert body.parameters(streaming=False)["thinking"] == MANUAL
    body.append([FOREIGN, result("b")])
    assert "thinking" not in body.parameters(streaming=False)


@pytest.mark.parametrize(
    "spoken",
    [USER, RathLLMMessage("user", "", images=(Image("image/png", Blob.from_bytes(b"\x89")),))],
    ids=["text", "image"],
)
def test_the_model_thinks_again_when_the_user_has_spoken(spoken: RathLLMMessage) -> None:
    assert sent_by(USER, FOREIGN, result("b"), spoken, thinking=MANUAL)["thinking"] == MANUAL


def test_a_blank_message_beside_results_does_not_count_as_spoken() -> None:
    blank = RathLLMMessage("user", " ")
    assert "thinking" not in sent_by(USER, FOREIGN, result("b"), blank, thinking=MANUAL)


def test_an_answer_that_began_with_a_thought_may_go_on_without_one() -> None:
    # A model that does not think between its tools answers so itself.
    sent = sent_by(USER, THINKING, result("a"), FOREIGN, result("b"), thinking=MANUAL)
    assert sent["thinking"] == MANUAL
    assert sent["messages"][1]["content"] == list(OWN)


def test_thoughts_behind_a_beginning_without_one_are_left_out() -> None:
    sent = sent_by(USER, FOREIGN, result("b"), THINKING, result("a"), thinking=MANUAL)
    assert sent["messages"][3]["content"] == [OWN[1]]


def test_thoughts_of_an_answer_stay_when_the_user_has_spoken() -> None:
    before = (USER, THINKING, result("a"))
    sent = sent_by(*before, USER, FOREIGN, result("b"), thinking=MANUAL)
    assert sent["messages"][:2] == sent_by(*before, thinking=MANUAL)["messages"][:2]


def test_a_model_that_thinks_as_it_likes_needs_no_thought_first() -> None:
    sent = sent_by(USER, FOREIGN, result("b"), THINKING, result("a"), thinking=ADAPTIVE)
    assert sent["thinking"] == ADAPTIVE
    assert sent["messages"][3]["content"] == list(OWN)


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


def test_a_paused_turn_without_a_thought_goes_on_without_any() -> None:
    assert "thinking" not in sent_by(USER, PAUSED, thinking=MANUAL)


def test_a_paused_turn_that_began_with_a_thought_goes_on_thinking() -> None:
    own = (replies.thinking("hm"), replies.search("q"))
    sent = sent_by(USER, RathLLMMessage("assistant", blocks=own), thinking=MANUAL)
    assert sent["thinking"] == MANUAL
    assert sent["messages"][1]["content"] == list(own)


# ---------------------------------------------------------------- turns that pause


PAUSED = RathLLMMessage(
    "assistant", "I search.", blocks=(replies.text("I search."), replies.search("q"))
)


def test_a_paused_turn_goes_back_as_it_is() -> None:
    turns = turns_of(USER, PAUSED)
    assert turns[-1]["content"] == list(PAUSED.blocks or ())


def test_a_paused_turn_and_what_follows_are_one_turn() -> None:
    rest = (replies.found(), replies.text("Found."))
    more = RathLLMMessage("assistant", "Found.", blocks=rest)
    turns = turns_of(USER, PAUSED, more, USER)
    assert turns[1]["content"] == [*(PAUSED.blocks or ()), *rest]


def test_a_paused_turn_that_the_user_ends_keeps_its_text() -> None:
    turns = turns_of(USER, PAUSED, USER)
    assert turns[1]["content"] == [replies.text("I search.")]


def test_white_space_behind_own_blocks_is_left_out() -> None:
    message = RathLLMMessage("assistant", "so", blocks=(replies.redacted(), replies.text("so \n")))
    assert turns_of(USER, message)[-1]["content"][-1] == replies.text("so")


def test_a_paused_turn_is_no_longer_sent_where_more_was_added() -> None:
    body = body_of([USER, PAUSED])
    assert b"server_tool_use" in body.content(streaming=False)
    body.append([USER])
    assert b"server_tool_use" not in body.content(streaming=False)


def test_own_blocks_that_wait_for_our_result_are_not_paused() -> None:
    own = (replies.search("q"), replies.tool_use("f", {}, id="a"))
    message = RathLLMMessage("assistant", tool_calls=(call("a"),), blocks=own)
    assert turns_of(USER, message, result("a"))[1]["content"] == list(own)


# ---------------------------------------------------------------- one rule each


def test_results_of_a_round_stand_in_one_turn_with_what_the_user_says() -> None:
    turns = turns_of(USER, calling(call("a"), call("b")), result("b"), result("a"), USER)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "b", "content": "done"},
        {"type": "tool_result", "tool_use_id": "a", "content": "done"},
        {"type": "text", "text": "hi"},
    ]


def test_text_stands_before_the_calls() -> None:
    message = calling(call("a", "f", '{"x": [1, null]}'), text="I look.")
    assert turns_of(USER, message, result("a"))[1]["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": [1, None]}},
    ]


@pytest.mark.parametrize("text", [None, "", " \n\t"])
def test_a_result_without_text_has_no_content(text: str | None) -> None:
    turns = turns_of(USER, calling(call("a")), result("a", text))
    assert turns[2]["content"] == [{"type": "tool_result", "tool_use_id": "a"}]


def test_turns_of_one_role_are_one_turn() -> None:
    turns = turns_of(USER, RathLLMMessage("user", "there?"), RathLLMMessage("assistant", "yes"))
    assert turns == [
        {"role": "user", "content": [replies.text("hi"), replies.text("there?")]},
        {"role": "assistant", "content": [replies.text("yes")]},
    ]


def test_the_user_begins() -> None:
    turns = turns_of(RathLLMMessage("assistant", "Welcome."), USER)
    assert turns[0] == {"role": "user", "content": [replies.text(OPENING)]}
    assert len(turns) == 3


@pytest.mark.parametrize("messages", [[], [RathLLMMessage("system", "s")]])
def test_a_conversation_in_which_nobody_spoke_begins(messages: list[RathLLMMessage]) -> None:
    assert turns_of(*messages) == [{"role": "user", "content": [replies.text(OPENING)]}]


def test_a_blank_message_where_the_user_must_speak_says_so() -> None:
    turns = turns_of(USER, RathLLMMessage("assistant", "yes"), RathLLMMessage("user", " "))
    assert turns[-1] == {"role": "user", "content": [replies.text(EMPTY)]}


def test_a_blank_message_beside_others_is_left_out() -> None:
    assert turns_of(USER, RathLLMMessage("user", "")) == turns_of(USER)


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_blank_turn_of_the_assistant_is_left_out(text: str | None) -> None:
    assert turns_of(USER, RathLLMMessage("assistant", text)) == turns_of(USER)


def test_white_space_behind_an_answer_is_left_out() -> None:
    turns = turns_of(USER, RathLLMMessage("assistant", " so \n"))
    assert turns[-1]["content"] == [replies.text(" so")]


def test_images_stand_before_the_text() -> None:
    image = Image("image/png", Blob.from_bytes(b"\x89PNG"))
    turns = turns_of(RathLLMMessage("user", "what is it?", images=(image, image)))
    shown = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    assert turns[0]["content"] == [
        {"type": "image", "source": shown},
        {"type": "image", "source": shown},
        replies.text("what is it?"),
    ]


def test_an_image_needs_no_text() -> None:
    image = Image("image/png", Blob.from_bytes(b"\x89PNG"))
    (turn,) = turns_of(RathLLMMessage("user", "", images=(image,)))
    assert [block["type"] for block in turn["content"]] == ["image"]


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


def test_an_unknown_role_speaks_as_the_user() -> None:
    assert turns_of(RathLLMMessage("critic", "no"))[0]["role"] == "user"
