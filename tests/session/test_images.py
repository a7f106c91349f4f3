"""Images in messages and in results of tools, up to the bytes that a model's endpoint gets."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath import flow
from rath.errors import PersistenceError
from rath.flow import Compressor
from rath.llm import Provider, chat_client_for
from rath.llm.image import Image
from rath.session import (
    ChunkTable,
    Session,
    chunk_table_to_messages,
    format_chunk_row_brief,
    load_session,
    tool_feedback_chunk,
)
from rath.session.events import PendingResult, Row
from rath.session.loading import load
from rath.session.log.verify import verify
from rath.session.persistence.store import FileStore
from rath.session.record import ModelCall, Summary, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.api import preview, texts_of
from tests.support.asking import KEY
from tests.support.chat_replies import completion
from tests.support.chat_server import ChatServer
from tests.support.cut_off import cut_off
from tests.support.images import picture, pictures
from tests.support.rendering import rerender_call
from tests.support.result_images import (
    ANSWERS,
    CAMERA,
    CAT,
    CHECKS,
    CLOCK,
    DOG,
    KINDS,
    asked,
    digests,
    never,
    one_call,
    provider_of,
    scripted,
    shown_in,
)
from tests.support.sessions import FunctionTool, entries_of, run
from tests.support.store_lines import lines_for, write_lines

CAT_PNG, DOG_JPEG = picture(b"cat"), picture(b"dog", mime="image/jpeg")


def url(content: bytes, mime: str = "image/png") -> dict[str, Any]:
    text = base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{text}"}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def openai(server: ChatServer) -> Provider:
    return Provider(base_url=server.base_url, api_key=KEY, model="m")


def agent(provider: Provider, **options: Any) -> flow.Agent:
    return flow.Agent("Look closely.", provider, system_tools=False, **options)


def digest_of(call: ModelCall) -> str:
    assert call.seen is not None
    return call.seen.request_digest


def test_the_endpoint_gets_images_and_text(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(CAT_PNG)
    with ChatServer() as server:
        server.queue(completion("a cat and a dog"))
        user = Session.from_user_message("What is it?", images=[tmp_path / "cat.png", DOG_JPEG])
        out = agent(openai(server))(user)
        assert out.text() == "a cat and a dog"
        (request,) = server.requests
    assert request.json()["messages"] == [
        {"role": "system", "content": "Look closely."},
        {
            "role": "user",
            "content": [url(CAT_PNG), url(DOG_JPEG, "image/jpeg"), words("What is it?")],
        },
    ]
    assert [digest_of(call) for call in entries_of(out, ModelCall)] == [
        sha256(request.body).hexdigest()
    ]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_an_image_that_is_lost_fails_the_run_that_would_show_it_before_a_call(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    user = Session.from_user_message("What is it?", images=[CAT_PNG])
    client = ScriptedClient(["a cat"])
    run([], user=user, agent_provider=client.provider, persist_path=path).synchronize()
    (tmp_path / "blobs" / sha256(CAT_PNG).hexdigest()).unlink()
    resumed, _ = load_session(user.id, path=path).to_resumable_pair()
    with ChatServer() as server:
        out = agent(replace(openai(server), provider_kind=kind))(resumed)
        for _ in range(2):
            with pytest.raises(PersistenceError, match=f"its bytes in {tmp_path} are missing"):
                out.text()
        assert server.requests == []
    assert [each for each in out.partial_record if isinstance(each, ModelCall)] == entries_of(
        resumed, ModelCall
    )


def test_a_compression_sees_the_images_and_says_what_it_replaced() -> None:
    digests: list[str] = []
    for images in ([CAT_PNG], [DOG_JPEG]):
        with ChatServer() as server:
            server.queue(completion("They showed a picture."))
            user = Session.from_user_message("Keep this.", images=images)
            out = Compressor("Make it short.", openai(server))(user).synchronize()
            (request,) = server.requests
        assert request.json()["messages"][1]["content"][0]["type"] == "image_url"
        assert [row.images for row in out.chunk_table] == [()]
        (summary,) = entries_of(out, Summary)
        digests.append(summary.replaced_digest)
    assert digests[0] != digests[1]


@given(contents=st.lists(st.binary(max_size=9), min_size=1, max_size=3))
def test_a_repr_holds_no_bytes_of_an_image(contents: list[bytes]) -> None:
    user = Session.from_user_message(
        "x", images=[picture(b"canary" + content) for content in contents]
    )
    shown = repr(user) + repr(user.chunk_table) + repr(user.chunk_table[0].content)
    assert "canary" not in shown
    assert shown.count("[image/png ") == len(contents)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_names_the_images_and_holds_their_bytes(kind: str) -> None:
    out, _, _ = asked(kind)
    row = out.chunk_table[2]
    assert row.payload["content"] == json.dumps(["a cat", CAT.label, {"and": DOG.label}])
    assert [each["sha256"] for each in row.payload["images"]] == [
        CAT.blob.digest, DOG.blob.digest,
    ]  # fmt: skip
    assert row.images == (CAT, DOG)
    assert dict(out.chunk_table[3].payload) == {
        "tool_call_id": "c2", "name": "clock", "content": '"noon"',
    }  # fmt: skip


def test_a_result_outlives_a_crash_with_its_images() -> None:
    calls = tool_call("camera", {}, tool_call("clock", {}, id="c2"), id="c1")
    complete = scripted(calls, "a cat")
    cut = cut_off(complete, 0, begun=[0, 1], known=[0, 1])
    out = run(["a cat"], FunctionTool("camera", never), FunctionTool("clock", never), user=cut)
    assert out.chunk_table == complete.chunk_table
    assert shown_in(out) == [CAT.blob.data, DOG.blob.data]


def test_a_result_that_is_given_to_a_replay_may_be_an_image() -> None:
    out = scripted(tool_call("camera", {}, tool_call("camera", {}, id="c2"), id="c1"), "two")
    client = ScriptedClient(["a dog"])
    branch = out.replay(tool_results={"c1": DOG}, provider=client.provider, tools=[CAMERA, CLOCK])
    assert branch.text() == "a dog"
    assert shown_in(branch) == [each.blob.data for each in (DOG, CAT, DOG)]


def test_the_text_of_a_row_has_a_label_for_each_image() -> None:
    row = tool_feedback_chunk("c1", "camera", "look", images=[CAT])
    assert f"{CAT.label} name='camera'" in format_chunk_row_brief(0, row)
    assert f"{CAT.label} name='camera'" in repr(Session(ChunkTable([row])))
    assert preview(row, 80) == f"camera: {CAT.label} look"
    assert list(texts_of(row)) == ["look", f"{CAT.label} look"]
    (message,) = chunk_table_to_messages(ChunkTable([row]))
    assert (message.role, message.images) == ("tool", (CAT,))


items = st.one_of(st.text(max_size=5), st.integers(), pictures.map(Image.from_bytes))
results = st.one_of(items, st.lists(items, max_size=4), st.dictionaries(st.text(max_size=3), items))


def test_a_result_of_a_round_that_is_not_done_keeps_its_images(tmp_path: Path) -> None:
    complete, store = scripted(), FileStore(tmp_path)
    (entry,) = entries_of(complete, ToolRun)
    row = tool_feedback_chunk("c1", "camera", "look", images=[CAT, DOG])
    known = PendingResult(row=1, call=0, run=entry, shown=row)
    lines = lines_for(complete)
    at = next(n for n, line in enumerate(lines) if isinstance(line, Row) and line.index == 2)
    write_lines(store, [*lines[:at], known], is_finished=False)
    unfinished = load(store, complete.id).unfinished
    assert unfinished is not None
    (result,) = unfinished.results
    assert result.shown is not None
    assert [image.blob.data for image in result.shown.images] == [CAT.blob.data, DOG.blob.data]
    (store.directory / "blobs" / DOG.blob.digest).unlink()
    problems = verify(store, complete.id).problems
    assert [DOG.blob.digest in each.text for each in problems if each.kind == "blob"] == [True]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(given_back=st.lists(results, min_size=1, max_size=3), kind=st.sampled_from(KINDS))
def test_any_mix_comes_back_from_a_store_and_renders_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, given_back: list[Any], kind: str
) -> None:
    store = FileStore(tmp_path_factory.mktemp("store"))
    left = list(given_back)
    tool = FunctionTool("camera", lambda *_: left.pop(0))
    last = ANSWERS[kind][-1]
    with ChatServer() as server:
        server.queue(*(one_call(kind, number) for number in range(len(given_back))), last)
        provider = provider_of(kind, server)
        out = run([], tool, agent_provider=provider).synchronize()
        bodies = [request.body for request in server.requests]
    for body in bodies:
        CHECKS[kind](body)
    out.save(store=store)
    loaded = Session.load(out.id, store=store)
    assert loaded.chunk_table == out.chunk_table
    assert shown_in(loaded) == shown_in(out)
    client = chat_client_for(provider)
    calls = entries_of(loaded, ModelCall)
    again = [rerender_call(loaded, call, client=client, provider=provider) for call in calls]
    assert again == bodies
    assert loaded.replay().chunk_table == out.chunk_table
    assert shown_in(loaded.replay()) == shown_in(out)
    assert verify(store, out.id).problems == ()
    assert digests(loaded) == [sha256(body).hexdigest() for body in bodies]
