"""The laws of runs: rendering, secrets, accounting, order and failure."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import pickle
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import AuthenticationError
from rath.llm import Provider, RathLLMAssistantMessage, chat_client_for
from rath.session import Session, run_session_compress, run_session_loop, select_session
from rath.session.record import ModelCall, RecalledNote
from rath.testing import ScriptedClient, tool_call
from tests.support import chat_replies as replies
from tests.support.chat_server import ChatServer
from tests.support.rendering import rerender_call
from tests.support.sessions import FunctionTool, run

AGENT = Session.from_agent_prompt("You are a test.")


def echo(_: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return dict(arguments)


def calls_with_ids(ids: list[str]) -> RathLLMAssistantMessage:
    return tool_call("f", {}, *[tool_call("f", {"n": 1}, id=one) for one in ids], id="same")


ECHO = FunctionTool("f", echo, parallel_safe=True)

turns = st.one_of(
    st.builds(RathLLMAssistantMessage, content=st.text(min_size=1, max_size=10)),
    st.builds(calls_with_ids, st.lists(st.sampled_from(["", "same", "other"]), max_size=2)),
    st.just(tool_call("f", "{broken", content="hm")),
)
scripts = st.lists(turns, max_size=4).map(lambda made: [*made, "the end"])


def model_calls(session: Session) -> list[ModelCall]:
    return [entry for entry in session.record if isinstance(entry, ModelCall)]


def total_tokens(session: Session) -> int:
    usage = session.cumulative_usage
    return 0 if usage is None else usage.total_tokens


# ---- 5: a stored call renders to its digest


def renders_again(session: Session, call: ModelCall, client: ScriptedClient) -> bool:
    sent = rerender_call(session, call, client=client, provider=client.provider)
    assert call.seen is not None
    return hashlib.sha256(sent).hexdigest() == call.seen.request_digest


@given(script=scripts, chain=st.integers(1, 3), with_notes=st.booleans())
def test_rendering_a_stored_call_again_gives_its_digest(
    script: list[Any], chain: int, with_notes: bool
) -> None:
    session = Session.from_user_message("go")
    for _ in range(chain):
        client = ScriptedClient(script)
        notes = [RecalledNote("memory://user/a", "a note")] if with_notes else []
        session = run_session_loop(
            session.fork(),
            AGENT,
            agent_provider=client.provider,
            tools=[ECHO],
            system_tools=False,
            recall=lambda _: notes,  # noqa: B023  # the run is over before the next one begins
        ).synchronize()
        for call in model_calls(session):
            if call.evidence.provider_kind == client.provider.provider_kind:
                assert renders_again(session, call, client)


def test_the_calls_of_both_sides_of_a_merge_render_again() -> None:
    client = ScriptedClient(["one", "two", "three"])
    root = Session.from_user_message("go")
    left = run([], user=root, agent_provider=client.provider).synchronize()
    right = run([], user=root, agent_provider=client.provider).synchronize()
    right = run([], user=right, agent_provider=client.provider).synchronize()
    merged = left.merge(right)
    assert [renders_again(merged, call, client) for call in model_calls(merged)] == [True] * 3
    apart = right.detach()
    assert [renders_again(apart, call, client) for call in model_calls(apart)] == [True] * 2


def test_the_calls_behind_a_compression_render_again_and_so_does_its_own() -> None:
    client = ScriptedClient(["one", tool_call("f"), "two", "short", "0", "three"])
    first = run([], agent_provider=client.provider).synchronize()
    second = run([], ECHO, user=first, agent_provider=client.provider).synchronize()
    short = run_session_compress(
        second, AGENT, agent_provider=client.provider, compress_instruction="In one word."
    )
    assert select_session(short, AGENT, "this", agent_provider=client.provider) == (0, "this")
    out = run([], user=short, agent_provider=client.provider)
    calls = model_calls(out)
    purposes = " ".join(call.purpose for call in calls)
    assert purposes == "turn turn turn compress select turn"
    assert [renders_again(out, call, client) for call in calls] == [True] * 6
    questions = [call.seen.question or "" for call in calls if call.seen]
    assert questions[3] == "In one word."
    assert "0: this" in questions[4]


def test_a_call_whose_rows_are_gone_is_refused() -> None:
    client = ScriptedClient(["one", "short"])
    first = run([], agent_provider=client.provider).synchronize()
    short = run_session_compress(first, AGENT, agent_provider=client.provider).detach()
    for call in model_calls(short):
        with pytest.raises(ValueError, match="neither in session"):
            rerender_call(short, call, client=client, provider=client.provider)


def test_a_call_of_another_session_is_refused() -> None:
    client = ScriptedClient(["one"])
    (call,) = model_calls(run([], agent_provider=client.provider))
    with pytest.raises(ValueError, match="does not hold"):
        rerender_call(AGENT, call, client=client, provider=client.provider)


def test_the_digest_is_that_of_the_bytes_on_the_wire() -> None:
    with ChatServer() as server:
        server.queue(
            replies.completion(tool_calls=(replies.tool_call("f"),)),
            replies.completion("done"),
        )
        provider = Provider(model="m", api_key="k", base_url=server.base_url)
        out = run([], ECHO, agent_provider=provider).synchronize()
        bodies = [request.body for request in server.requests]
    calls = model_calls(out)
    assert [hashlib.sha256(body).hexdigest() for body in bodies] == [
        call.seen.request_digest for call in calls if call.seen
    ]
    client = chat_client_for(provider)
    for body, call in zip(bodies, calls, strict=True):
        again = rerender_call(out, call, client=client, provider=provider)
        assert again == body


def test_reasoning_goes_back_to_the_model_that_wrote_it_and_to_no_other() -> None:
    with ChatServer() as server, ChatServer() as other:
        thinking = replies.completion(
            tool_calls=(replies.tool_call("f"),),
            message={"reasoning_content": "let me think"},
        )
        server.queue(thinking, replies.completion("one"))
        other.queue(replies.completion("two"))
        ours = Provider(model="m", api_key="k", base_url=server.base_url)
        first = run([], ECHO, agent_provider=ours).synchronize()
        theirs = Provider(model="m", api_key="k", base_url=other.base_url)
        run([], user=first, agent_provider=theirs).synchronize()
        assert server.requests[1].json()["messages"][2]["reasoning_content"] == "let me think"
        assert b"let me think" not in other.requests[0].body


# ---- 9: secrets


CANARY = "sk-canary-0123456789abcdef"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG)
    yield stream
    logging.getLogger().removeHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)


def test_no_secret_reaches_rows_record_files_logs_repr_or_errors(
    tmp_path: Path, logged: io.StringIO
) -> None:
    with ChatServer() as server:
        server.queue(
            replies.completion(tool_calls=(replies.tool_call("f"),)),
            replies.completion("done"),
            replies.status_error(401, f"Incorrect API key provided: {CANARY}."),
        )
        provider = Provider(model="m", api_key=CANARY, base_url=server.base_url)
        path = tmp_path / "run.jsonl"
        out = run([], ECHO, agent_provider=provider, persist_path=path).synchronize()
        failed = run([], user=out, agent_provider=provider)
        with pytest.raises(AuthenticationError) as caught:
            failed.text()
        assert CANARY in (server.requests[0].headers["authorization"])
    shown = [
        repr(provider),
        str(provider),
        repr(out),
        repr(list(out.record)),
        repr(list(failed.partial_record)),
        repr(chat_client_for(provider)),
        "".join(traceback.format_exception(caught.value)),
        repr(vars(caught.value)),
        path.read_text(),
        logged.getvalue(),
        repr(pickle.dumps(out.chunk_table)),
    ]
    assert [text for text in shown if CANARY in text] == []
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    assert [content for content in files if CANARY.encode() in content] == []


# ---- 10: accounting


@given(script=scripts, data=st.data())
def test_usage_is_the_sum_over_the_calls_that_can_be_reached_each_once(
    script: list[Any], data: st.DataObject
) -> None:
    pool = [Session.from_user_message("go")]
    calls: dict[UUID, set[UUID]] = {pool[0].id: set()}
    tokens: dict[UUID, int] = {}
    for _ in range(data.draw(st.integers(1, 5))):
        parent = data.draw(st.sampled_from(pool))
        operation = data.draw(st.sampled_from(["run", "fork", "detach", "merge", "compress"]))
        reached = set(calls[parent.id])
        if operation == "run":
            made = run(script, ECHO, user=parent)
        elif operation == "compress":
            client = ScriptedClient(["short"])
            made = run_session_compress(parent, AGENT, agent_provider=client.provider)
        elif operation == "merge":
            other = data.draw(st.sampled_from(pool))
            reached |= calls[other.id]
            made = parent.merge(other)
        else:
            made = parent.fork() if operation == "fork" else parent.detach()
        for call in model_calls(made):
            assert call.evidence.usage is not None
            tokens[call.id] = call.evidence.usage.total_tokens
            if call.id not in reached and operation in {"run", "compress"}:
                reached.add(call.id)
        calls[made.id] = reached
        pool.append(made)
        assert total_tokens(made) == sum(tokens[call] for call in reached)


def test_a_sub_agent_adds_to_the_usage_of_the_run_that_called_it() -> None:
    def ask(session: Session, _: object) -> str | None:
        return run(["one two three"], user=session).text()

    out = run([tool_call("ask"), "done"], FunctionTool("ask", ask)).synchronize()
    assert len(model_calls(out)) == 3
    assert total_tokens(out) == sum(
        call.evidence.usage.total_tokens for call in model_calls(out) if call.evidence.usage
    )


# ---- 11: order


@given(flags=st.lists(st.tuples(st.booleans(), st.sampled_from("ab")), min_size=1, max_size=6))
def test_rows_stand_in_call_order_and_unsafe_tools_run_alone(
    flags: list[tuple[bool, str]],
) -> None:
    running: list[int] = []
    overlaps: list[tuple[int, ...]] = []

    def tool(index: int, is_safe: bool) -> FunctionTool:
        def call(*_: object) -> int:
            running.append(index)
            overlaps.append(tuple(running))
            running.remove(index)
            return index

        return FunctionTool(f"t{index}", call, parallel_safe=is_safe)

    tools = [tool(index, is_safe) for index, (is_safe, _) in enumerate(flags)]
    calls = [tool_call(f"t{index}", {"key": key}) for index, (_, key) in enumerate(flags)]
    first, *more = calls
    assert first.tool_calls is not None
    asked = first.tool_calls[0].function
    out = run([tool_call(asked.name, asked.arguments, *more), "done"], *tools)
    results = [json.loads(row.payload["content"]) for row in list(out.chunk_table)[2:-1]]
    assert results == list(range(len(flags)))
    for together in overlaps:
        assert len(together) == 1 or all(flags[index][0] for index in together)


# ---- 12: failure


def test_a_failing_session_does_not_disturb_others_nor_the_runtime() -> None:
    def bad(*_: object) -> None:
        raise SystemExit(1)

    def bad_callback(_: object) -> None:
        raise KeyboardInterrupt

    sessions = [
        run([tool_call("bad"), "a"], FunctionTool("bad", bad)),
        run([ValueError("boom")]),
        run(["b"], on_event=bad_callback),
        run(["c"]),
    ]
    assert sessions[0].text() == "a"
    with pytest.raises(ValueError, match="boom"):
        sessions[1].text()
    assert sessions[2].text() == "b"
    assert sessions[3].text() == "c"
    assert run(["still there"]).text() == "still there"
