"""Images in results of tools, on the wire of each protocol."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rath.llm.anthropic.create_kwargs import build_anthropic_kwargs
from rath.llm.body import ListWriter, RequestBody, encode_message, images_apart
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.image import Image
from rath.llm.openai.create_kwargs import to_create_kwargs
from tests.support.images import picture, pictures

CAT = Image.from_bytes(picture(b"cat"))
DOG = Image.from_bytes(picture(b"dog", mime="image/jpeg"))
BIRD = Image.from_bytes(picture(b"bird"))


def call(call_id: str, name: str = "camera") -> Mapping[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def turn(*calls: Mapping[str, Any]) -> RathLLMMessage:
    return RathLLMMessage("assistant", tool_calls=calls)


def result(call_id: str, text: str, *images: Image) -> RathLLMMessage:
    return RathLLMMessage("tool", text, tool_call_id=call_id, images=images or None)


def url(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.to_data_url()}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


ROUND = [
    RathLLMMessage("user", "look"),
    turn(call("a"), call("b"), call("c", "scanner")),
    result("a", '"cat"', CAT),
    result("b", '"nothing"'),
    result("c", '"both"', DOG, BIRD),
]
SHOWN = [
    words(f"Image 1 of 1 in the result of call 'a' of tool 'camera': {CAT.label}"),
    url(CAT),
    words(f"Image 1 of 2 in the result of call 'c' of tool 'scanner': {DOG.label}"),
    url(DOG),
    words(f"Image 2 of 2 in the result of call 'c' of tool 'scanner': {BIRD.label}"),
    url(BIRD),
]


def asked(messages: Sequence[RathLLMMessage]) -> RathLLMChatRequest:
    return RathLLMChatRequest(messages=tuple(messages), model="m")


def written(messages: Sequence[RathLLMMessage]) -> list[dict[str, Any]]:
    body = RequestBody(ListWriter({}, None))
    body.append(messages)
    said: list[dict[str, Any]] = json.loads(body.content(streaming=False))["messages"]
    return said


def test_openai_gets_the_images_of_a_round_in_one_message_behind_its_last_result() -> None:
    said = written([*ROUND, RathLLMMessage("assistant", "I see")])
    assert [each["role"] for each in said] == [
        "user", "assistant", "tool", "tool", "tool", "user", "assistant",
    ]  # fmt: skip
    assert [each["content"] for each in said[2:5]] == ['"cat"', '"nothing"', '"both"']
    assert said[5] == {"role": "user", "content": SHOWN}


def test_a_round_that_stands_last_ends_with_its_images() -> None:
    assert written(ROUND)[-1] == {"role": "user", "content": SHOWN}


def test_arguments_of_the_sdk_say_what_the_body_says() -> None:
    assert to_create_kwargs(asked(ROUND), default_model=None)["messages"] == written(ROUND)


def test_each_round_shows_its_own_images() -> None:
    second = [turn(call("d")), result("d", "again", CAT), RathLLMMessage("user", "thanks")]
    said = written([*ROUND, *second])
    assert [each["role"] for each in said[5:]] == ["user", "assistant", "tool", "user", "user"]
    assert said[8]["content"][1:] == [url(CAT)]


def test_a_call_that_nobody_made_has_no_tool_to_name() -> None:
    (_, shown) = images_apart([result("x", "1", CAT)])
    assert shown.content == f"Image 1 of 1 in the result of call 'x': {CAT.label}"


def test_who_knows_no_captions_reads_the_same_in_one_text() -> None:
    (*_, shown) = images_apart(ROUND)
    assert (shown.role, shown.images) == ("user", (CAT, DOG, BIRD))
    assert shown.content == "\n".join(shown.captions or ())
    assert all(message.images is None for message in images_apart(ROUND)[:-1])


def test_anthropic_gets_them_inside_the_results() -> None:
    turns = build_anthropic_kwargs(asked(ROUND), default_model=None)["messages"]
    first, second, third = turns[-1]["content"]

    def block(image: Image) -> dict[str, Any]:
        data = base64.b64encode(image.blob.data or b"").decode()
        source = {"type": "base64", "media_type": image.mime, "data": data}
        return {"type": "image", "source": source}

    assert first["content"] == [words('"cat"'), words(CAT.label), block(CAT)]
    assert second["content"] == '"nothing"'
    assert third["content"] == [
        words('"both"'), words(DOG.label), block(DOG), words(BIRD.label), block(BIRD),
    ]  # fmt: skip


def test_anthropic_gets_no_blank_text_next_to_an_image() -> None:
    messages = [turn(call("a")), result("a", " ", CAT)]
    turns = build_anthropic_kwargs(asked(messages), default_model=None)["messages"]
    assert [part["type"] for part in turns[-1]["content"][0]["content"]] == ["text", "image"]


shown = st.lists(pictures.map(Image.from_bytes), max_size=2).map(tuple)
ids = st.sampled_from("ab")
messages = st.lists(
    st.one_of(
        st.builds(RathLLMMessage, st.sampled_from(["user", "system"]), st.text(max_size=5)),
        st.builds(lambda *made: turn(*map(call, made)), ids, ids),
        st.builds(
            lambda *made: result(made[0], made[1], *made[2]), ids, st.text(max_size=5), shown
        ),
    ),
    max_size=8,
)


@given(messages, messages)
def test_a_body_that_grows_is_one_that_was_written_at_once(
    first: list[RathLLMMessage], more: list[RathLLMMessage]
) -> None:
    grown, whole = (RequestBody(ListWriter({}, None)) for _ in range(2))
    for message in first + more:
        _ = grown.content(streaming=False), grown.digest(streaming=False)
        grown.append([message])
    whole.append(first + more)
    assert grown.content(streaming=False) == whole.content(streaming=False)
    assert grown.digest(streaming=False) == whole.digest(streaming=False)
    assert grown.n_images == whole.n_images


@given(messages)
def test_a_body_says_what_the_messages_say_apart(said: list[RathLLMMessage]) -> None:
    assert written(said) == json.loads(json.dumps([*map(encode_message, images_apart(said))]))


@given(messages)
def test_every_image_is_displayed_once_and_in_order(said: list[RathLLMMessage]) -> None:
    before = [image for message in said for image in message.images or ()]
    after = images_apart(said)
    assert [image for message in after for image in message.images or ()] == before
    assert all(message.role == "user" for message in after if message.images)
