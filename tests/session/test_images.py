"""Images in messages and in results of tools, up to the bytes that a model's endpoint gets."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rath
from rath import flow
from rath._async.deferred import Deferred
from rath.errors import InvalidRequestError, PersistenceError
from rath.flow import Compressor
from rath.llm import Provider, chat_client_for
from rath.llm.image import Image
from rath.session import (
    ChunkRow,
    ChunkTable,
    Session,
    chunk_table_to_messages,
    format_chunk_row_brief,
    load_session,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.provider_builtin import DefaultSessionLoopExecutor
from rath.session.record import ModelCall, Summary
from rath.session.tooling import Tool
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import preview, texts_of
from tests.support.asking import KEY
from tests.support.chat_replies import completion, status_error
from tests.support.chat_server import ChatServer
from tests.support.cut_off import cut_off
from tests.support.images import picture
from tests.support.rendering import rerender_call
from tests.support.result_images import (
    CAMERA,
    CAT,
    CHECKS,
    CLOCK,
    DOG,
    KINDS,
    asked,
    digests,
    never,
    program,
    scripted,
    shown_in,
)
from tests.support.sessions import AsyncFunctionTool, FunctionTool, row_lists, run

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


def calls_of(session: Session) -> list[ModelCall]:
    return [entry for entry in session.record if isinstance(entry, ModelCall)]


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
    assert [digest_of(call) for call in calls_of(out)] == [sha256(request.body).hexdigest()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(before=row_lists)
def test_a_call_can_be_rendered_again_after_save_and_load(
    tmp_path_factory: pytest.TempPathFactory, before: list[ChunkRow]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    rows = [*before, user_text_chunk("What is it?", images=[CAT_PNG, DOG_JPEG])]
    with ChatServer(lambda _: completion("a cat")) as server:
        provider = openai(server)
        user = Session(ChunkTable(rows))
        out = run([], user=user, agent_provider=provider, persist_path=path).synchronize()
        (request,) = server.requests
    (call,), client = calls_of(out), chat_client_for(provider)
    table = load_session(out.id, path=path).chunk_table
    named = out.chunk_table.vector
    assert table == out.chunk_table
    body = replace(out.body.result(), table=ChunkTable(
        row.with_id(old.id) for row, old in zip(table, named, strict=True) if old.id
    ))  # fmt: skip
    loaded = Session.from_body(Deferred.of(body), out.provenance, id=out.id)
    for session in (out, loaded):
        again = rerender_call(session, call, client=client, provider=provider)
        assert again == request.body
        assert sha256(again).hexdigest() == digest_of(call)


def test_a_session_that_was_loaded_goes_on_with_its_images(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    user = Session.from_user_message("What is it?", images=[CAT_PNG])
    client = ScriptedClient(["a cat"])
    run([], user=user, agent_provider=client.provider, persist_path=path).synchronize()
    resumed, _ = load_session(user.id, path=path).to_resumable_pair()
    with ChatServer() as server:
        server.queue(completion("still a cat"))
        again = resumed.merge(Session.from_user_message("Sure?"))
        agent(openai(server))(again).synchronize()
        (request,) = server.requests
    assert request.json()["messages"][1]["content"] == [url(CAT_PNG), words("What is it?")]


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
    assert [each for each in out.partial_record if isinstance(each, ModelCall)] == calls_of(resumed)


def test_a_refused_request_says_that_it_shows_images() -> None:
    with ChatServer() as server:
        server.queue(status_error(400, "no"), status_error(400, "no"))
        bound = agent(openai(server))
        for images, notes in (([CAT_PNG, DOG_JPEG], 1), ([], 0)):
            with pytest.raises(InvalidRequestError) as caught:
                bound(Session.from_user_message("What is it?", images=images)).synchronize()
            said = [note for note in caught.value.__notes__ if "images: 2" in note]
            assert len(said) == notes


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
        (summary,) = [entry for entry in out.record if isinstance(entry, Summary)]
        digests.append(summary.replaced_digest)
    assert digests[0] != digests[1]


@given(contents=st.lists(st.binary(max_size=9), min_size=1, max_size=3))
def test_no_bytes_of_an_image_are_shown(contents: list[bytes]) -> None:
    user = Session.from_user_message(
        "x", images=[picture(b"canary" + content) for content in contents]
    )
    shown = repr(user) + repr(user.chunk_table) + repr(user.chunk_table[0].content)
    assert "canary" not in shown
    assert shown.count("[image/png ") == len(contents)


def test_what_is_wrong_with_an_image_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="an image cannot be read"):
        Session.from_user_message("x", images=[tmp_path / "gone.png"])
    with pytest.raises(ValueError, match="expected the bytes of a PNG"):
        Session.from_user_message("x", images=[b"no picture"])


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


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_endpoint_gets_breaks_no_rule_and_is_what_the_record_says(kind: str) -> None:
    out, _, bodies = asked(kind)
    for body in bodies:
        CHECKS[kind](body)
    assert digests(out) == [sha256(body).hexdigest() for body in bodies]


def test_a_client_of_others_gets_them_from_the_user() -> None:
    client = ScriptedClient([tool_call("camera", {}, id="c1"), "a cat"])
    run([], CAMERA, agent_provider=client.provider).synchronize()
    *before, last = client.requests[1].messages
    assert (last.role, last.images) == ("user", (CAT, DOG))
    assert "call 'c1' of tool 'camera'" in (last.content or "")
    assert all(message.images is None for message in before)


@pytest.mark.parametrize("kind", KINDS)
def test_its_program_replays_without_server_and_tools_are_not_run(kind: str) -> None:
    out, provider, _ = asked(kind)
    with rath.replay(out):
        assert program(provider).chunk_table == out.chunk_table


def test_a_result_outlives_a_crash_with_its_images() -> None:
    calls = tool_call("camera", {}, tool_call("clock", {}, id="c2"), id="c1")
    whole = scripted(calls, "a cat")
    cut = cut_off(whole, 0, begun=[0, 1], known=[0, 1])
    out = run(["a cat"], FunctionTool("camera", never), FunctionTool("clock", never), user=cut)
    assert out.chunk_table == whole.chunk_table
    assert shown_in(out) == [CAT.blob.data, DOG.blob.data]


async def take_a_picture(*_: object) -> Image:
    return CAT


class Taking(DefaultSessionLoopExecutor):
    """An executor whose calls of tools all give a picture."""

    def dispatch_tool(self, session: Session, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        return CAT


@pytest.mark.parametrize("how", ["async", "executor"])
def test_whoever_makes_the_call_may_give_an_image(how: str) -> None:
    turns: list[Turn] = [tool_call("f", {}), "ok"]
    if how == "async":
        out = run(turns, AsyncFunctionTool("f", take_a_picture))
    else:
        taking = Taking(ScriptedClient(turns))
        out = run([], FunctionTool("f", never), executor=taking)
    assert shown_in(out) == [CAT.blob.data]


def test_a_fork_a_merge_and_a_branch_show_the_same(tmp_path: Path) -> None:
    out = scripted()
    for made in (out.fork(), out.detach(), out.merge(Session.from_user_message("more"))):
        assert shown_in(made) == [CAT.blob.data, DOG.blob.data]


def test_a_result_that_is_given_to_a_replay_may_be_an_image() -> None:
    out = scripted(tool_call("camera", {}, tool_call("camera", {}, id="c2"), id="c1"), "two")
    client = ScriptedClient(["a dog"])
    branch = out.replay(tool_results={"c1": DOG}, provider=client.provider, tools=[CAMERA, CLOCK])
    assert branch.text() == "a dog"
    assert shown_in(branch) == [each.blob.data for each in (DOG, CAT, DOG)]


def test_where_a_row_is_shown_an_image_is_its_label() -> None:
    row = tool_feedback_chunk("c1", "camera", "look", images=[CAT])
    assert f"{CAT.label} name='camera'" in format_chunk_row_brief(0, row)
    assert f"{CAT.label} name='camera'" in repr(Session(ChunkTable([row])))
    assert preview(row, 80) == f"camera: {CAT.label} look"
    assert list(texts_of(row)) == ["look", f"{CAT.label} look"]
    (message,) = chunk_table_to_messages(ChunkTable([row]))
    assert (message.role, message.images) == ("tool", (CAT,))
