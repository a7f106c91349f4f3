"""Any rows become a request that every provider accepts, and each row is rendered once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath._async.runtime import runtime
from rath._core.vector import Vector
from rath.llm import Provider, RathLLMFunctionTool, RathLLMMessage
from rath.llm.evidence import CallEvidence, DraftFacts
from rath.session import (
    ChunkRow,
    ChunkTable,
    RowId,
    Session,
    assistant_turn_chunk,
    chunk_table_to_messages,
    run_session_compress,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.calls.requests import (
    BYTES_PER_ROW,
    HANDOVER,
    OwnAnswers,
    Renderer,
)
from rath.session.chat_request_build import provider_into_chat_request
from rath.session.record import ModelCall
from rath.testing import tool_call
from tests.support.api import MANY_ROWS, Entry
from tests.support.evidence import EVIDENCE, FACTS, call_of
from tests.support.images import picture
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.sessions import AGENT, FunctionTool, run


def render(rows: Sequence[ChunkRow]) -> list[RathLLMMessage]:
    renderer = Renderer()
    return [*renderer.render(rows), *renderer.hand_over()]


def turn(*ids: str) -> ChunkRow:
    calls = [tool_call("f", {}, id=call_id) for call_id in ids]
    merged = tuple(part for call in calls for part in call.tool_calls or ())
    return assistant_turn_chunk(tool_calls=merged)


def test_unknown_rows_are_skipped() -> None:
    assert render([ChunkRow("new", {"x": 1})]) == []
    assert chunk_table_to_messages(ChunkTable((ChunkRow("new", {"x": 1}),))) == ()


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


def reply(messages: Sequence[RathLLMMessage]) -> list[str]:
    """Each message in a word."""
    return [
        "handover" if message.content == HANDOVER else message.content or "(blocks)"
        for message in messages
    ]


@pytest.mark.parametrize(
    ("steps", "expected", "to_others"),
    [
        (["user", "paused"], ["go on", "paused"], ["go on", "paused", "handover"]),
        (
            ["user", "paused", "own"],
            ["go on", "paused", "own", "handover"],
            ["go on", "paused", "handover", "own", "handover"],
        ),
        (["user", "paused", "paused"], ["go on", "paused", "paused"], None),
        (["user", "paused", "own empty"], ["go on", "paused"], None),
        (
            ["user", "paused", "other"],
            ["go on", "paused", "handover", "other", "handover"],
            None,
        ),
        (["user", "paused", "user"], ["go on", "paused", "go on"], None),
        (["own", "paused"], ["own", "handover", "paused"], None),
        (["paused without a word"], ["(blocks)"], []),
        (["own empty"], [], None),
    ],
)
def test_a_paused_turn_goes_on_without_a_handover_but_to_others_it_is_one_like_all(
    steps: list[str], expected: list[str], to_others: list[str] | None
) -> None:
    rows, renderer = named(steps)
    assert reply([*renderer.render(rows), *renderer.hand_over()]) == expected
    if to_others is not None:
        assert reply(render(rows)) == to_others


@pytest.mark.parametrize("place", ["user", "agent"])
def test_images_are_encoded_next_to_the_runtime(place: str) -> None:
    threads: list[threading.Thread] = []

    class Noting(OfflineVendor):
        def encode(self, message: RathLLMMessage) -> dict[str, Any]:
            threads.append(threading.current_thread())
            return super().encode(message)

    async def where() -> threading.Thread:
        return threading.current_thread()

    large = picture(bytes(BYTES_PER_ROW * MANY_ROWS))
    given: dict[str, Any] = {place: Session.from_user_message("look", images=[large])}
    vendor = Noting(lambda _: Says("done"))
    assert run([], agent_provider=vendor.provider, **given).text() == "done"
    assert threads
    assert runtime().run(where, label="a test") not in threads


def call(evidence: CallEvidence = EVIDENCE, row: int = 0) -> ModelCall:
    return call_of(RowId(SESSION, row), evidence)


def own(facts: DraftFacts, *entries: Entry) -> OwnAnswers:
    answers = OwnAnswers(facts)
    answers.learn(Vector(entries))
    return answers


@pytest.mark.parametrize(
    ("evidence", "is_own"),
    [
        (EVIDENCE, True),
        (structs.replace(EVIDENCE, served_model="m-2026-01-01"), True),
        (structs.replace(EVIDENCE, endpoint="https://two.example/v1"), False),
        (structs.replace(EVIDENCE, endpoint=None), False),
        (structs.replace(EVIDENCE, requested_model="other"), False),
        (structs.replace(EVIDENCE, provider_kind="other"), False),
    ],
    ids=["ours", "served", "other endpoint", "no endpoint", "other model", "other kind"],
)
def test_an_answer_belongs_to_one_kind_endpoint_and_model(
    evidence: CallEvidence, is_own: bool
) -> None:
    found = own(FACTS, call(evidence))(RowId(SESSION, 0))
    assert found is (evidence if is_own else None)


# ---- between vendors


NOTHING = FunctionTool("nothing", lambda *_: None)


def signer(name: str) -> OfflineVendor:
    """A vendor that signs every turn: one with a tool call, and then one that ends the run."""
    count = iter(range(1000))

    def answer(messages: Sequence[Mapping[str, Any]]) -> Says:
        number = next(count)
        blocks = ({"type": "thinking", "signature": f"{name} {number}"},)
        calls = ("nothing",) if messages[-1]["role"] == "user" else ()
        return Says(f"{name} said {number}", calls, blocks)

    return OfflineVendor(answer)


def compressed(session: Session) -> Session:
    short = OfflineVendor(lambda _: Says("short"))
    return run_session_compress(session, AGENT, agent_provider=short.provider)


DERIVED: dict[str, Callable[[Session], Session]] = {
    "fork": Session.fork,
    "detach": Session.detach,
    "merge": lambda session: session.fork().merge(session.detach()),
    "join": lambda session: session.merge(Session.from_user_message("and now?")),
    "compress": compressed,
}


@given(steps=st.lists(st.sampled_from(["one", "two", *DERIVED]), min_size=1, max_size=7))
def test_a_session_that_moves_between_vendors_shows_each_only_its_own_blocks(
    steps: list[str],
) -> None:
    vendors = {name: signer(name) for name in ("one", "two")}
    session = Session.from_user_message("go")
    for step in steps:
        if step in DERIVED:
            session = DERIVED[step](session)
        else:
            provider = vendors[step].provider
            session = run([], NOTHING, user=session, agent_provider=provider)
    session.synchronize()
    for name, vendor in vendors.items():
        for message in (message for request in vendor.requests for message in request):
            reply = str(message.get("content"))
            signed = [block["signature"] for block in message.get("blocks", ())]
            is_own = message["role"] == "assistant" and reply.startswith(name)
            assert signed == ([reply.replace(" said", "")] if is_own else [])


def test_one_message_per_row_in_order() -> None:
    call = tool_call("f", {"x": 1}, id="c1", content="let me see")
    table = ChunkTable(
        (
            system_text_chunk("s"),
            user_text_chunk("u"),
            assistant_turn_chunk(tool_calls=call.tool_calls, content=call.content),
            tool_feedback_chunk("c1", "f", "result"),
            assistant_turn_chunk(tool_calls=None, content="done"),
        )
    )
    messages = chunk_table_to_messages(table)
    assert [message.role for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert messages[2].tool_calls == (
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
    )
    assert (messages[3].tool_call_id, messages[3].name) == ("c1", None)
    assert messages[4].tool_calls is None


def test_the_images_of_a_row_come_with_its_message() -> None:
    display, plain = user_text_chunk("u", images=[picture()]), user_text_chunk("v")
    one, other = chunk_table_to_messages(ChunkTable((display, plain)))
    assert one.images == display.images
    assert other.images is None


TOOL = RathLLMFunctionTool(name="f", parameters={"type": "object"})


def test_a_request_has_messages_tools_sampling_and_the_tool_choice_of_the_provider() -> None:
    messages = (RathLLMMessage("user", "hi"),)
    prefs = Provider(model="m", temperature=0.5, max_tokens=7, extra_create_args={"x": 1})
    request = provider_into_chat_request(messages, (TOOL,), prefs, default_tool_choice="auto")
    assert (request.messages, request.tools) == (messages, (TOOL,))
    assert (request.model, request.temperature, request.max_tokens) == ("m", 0.5, 7)
    assert request.extra_create_args == {"x": 1}
    choices: list[tuple[Any, Any, Any]] = [
        ("none", "auto", "none"), (None, "auto", "auto"), ("required", None, "required"),
    ]  # fmt: skip
    for preferred, default, chosen in choices:
        prefs = Provider(model="m", tool_choice=preferred)
        request = provider_into_chat_request((), (TOOL,), prefs, default_tool_choice=default)
        assert request.tool_choice == chosen
    for tools in (None, ()):
        request = provider_into_chat_request((), tools, prefs, default_tool_choice=None)
        assert request.tools is None
