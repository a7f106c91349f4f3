"""Images in a session, from the first message to the bytes that a model's endpoint gets."""

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
from rath._async.lazy import Deferred
from rath.errors import InvalidRequestError, PersistenceError
from rath.flow import Compressor
from rath.llm import Provider, RathLLMStreamDelta, chat_client_for
from rath.session import ChunkRow, ChunkTable, Session, load_session, user_text_chunk
from rath.session.record import ModelCall, Summary
from rath.testing import ScriptedClient
from tests.support import anthropic_replies
from tests.support.asking import KEY
from tests.support.chat_replies import completion, status_error, text_stream
from tests.support.chat_server import ChatServer
from tests.support.images import picture
from tests.support.rendering import rerender_call
from tests.support.sessions import row_lists, run

CAT, DOG = picture(b"cat"), picture(b"dog", mime="image/jpeg")


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
    (tmp_path / "cat.png").write_bytes(CAT)
    with ChatServer() as server:
        server.queue(completion("a cat and a dog"))
        user = Session.from_user_message("What is it?", images=[tmp_path / "cat.png", DOG])
        out = agent(openai(server))(user)
        assert out.text() == "a cat and a dog"
        (request,) = server.requests
    assert request.json()["messages"] == [
        {"role": "system", "content": "Look closely."},
        {"role": "user", "content": [url(CAT), url(DOG, "image/jpeg"), words("What is it?")]},
    ]
    assert [digest_of(call) for call in calls_of(out)] == [sha256(request.body).hexdigest()]


def test_a_conversation_goes_on_with_another_image() -> None:
    with ChatServer() as server:
        server.queue(completion("a cat"), completion("a dog"))
        bound = agent(openai(server))
        first = bound(Session.from_user_message("What is it?", images=[CAT]))
        second = bound(first.merge(Session.from_user_message("And this?", images=[DOG])))
        assert second.text() == "a dog"
        said = server.requests[1].json()["messages"]
    assert said[1]["content"] == [url(CAT), words("What is it?")]
    assert said[2] == {"role": "assistant", "content": "a cat"}
    assert said[3]["content"] == [url(DOG, "image/jpeg"), words("And this?")]


def test_an_image_needs_no_words() -> None:
    deltas: list[RathLLMStreamDelta] = []
    with ChatServer() as server:
        server.queue(text_stream("a cat"))
        bound = agent(openai(server), on_event=deltas.append)
        bound(Session.from_user_message("", images=[CAT])).synchronize()
        (request,) = server.requests
    assert request.json()["messages"][1]["content"] == [url(CAT)]


def test_the_same_session_goes_to_anthropic() -> None:
    with ChatServer() as server:
        server.queue(anthropic_replies.message(anthropic_replies.text("a cat")))
        provider = replace(openai(server), provider_kind="anthropic", max_tokens=100)
        out = agent(provider)(Session.from_user_message("What is it?", images=[CAT, DOG]))
        assert out.text() == "a cat"
        (message,) = server.requests[0].json()["messages"]
    sources = [
        {"type": "base64", "media_type": mime, "data": base64.b64encode(content).decode()}
        for content, mime in ((CAT, "image/png"), (DOG, "image/jpeg"))
    ]
    shown = [
        {name: part[name] for name in part if name != "cache_control"}
        for part in message["content"]
    ]
    assert shown == [
        *({"type": "image", "source": source} for source in sources),
        words("What is it?"),
    ]


def test_a_client_of_others_gets_the_images_and_its_digest_names_them() -> None:
    client = ScriptedClient(["a cat"])
    user = Session.from_user_message("What is it?", images=[CAT])
    out = run([], user=user, agent_provider=client.provider).synchronize()
    (request,) = client.requests
    assert [image.blob.data for image in request.messages[-1].images or ()] == [CAT]
    (call,) = calls_of(out)
    body = rerender_call(out, call, client=client, provider=client.provider)
    assert json.loads(body)["messages"][1]["content"] == [
        {"type": "image", "mime": "image/png", "sha256": sha256(CAT).hexdigest()},
        words("What is it?"),
    ]
    assert sha256(body).hexdigest() == digest_of(call)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(before=row_lists)
def test_a_call_can_be_rendered_again_after_save_and_load(
    tmp_path_factory: pytest.TempPathFactory, before: list[ChunkRow]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    rows = [*before, user_text_chunk("What is it?", images=[CAT, DOG])]
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
    user = Session.from_user_message("What is it?", images=[CAT])
    client = ScriptedClient(["a cat"])
    run([], user=user, agent_provider=client.provider, persist_path=path).synchronize()
    resumed, _ = load_session(user.id, path=path).to_resumable_pair()
    with ChatServer() as server:
        server.queue(completion("still a cat"))
        again = resumed.merge(Session.from_user_message("Sure?"))
        agent(openai(server))(again).synchronize()
        (request,) = server.requests
    assert request.json()["messages"][1]["content"] == [url(CAT), words("What is it?")]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_an_image_that_is_lost_fails_the_run_that_would_show_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    user = Session.from_user_message("What is it?", images=[CAT])
    client = ScriptedClient(["a cat"])
    run([], user=user, agent_provider=client.provider, persist_path=path).synchronize()
    lost = tmp_path / "blobs" / sha256(CAT).hexdigest()
    lost.unlink()
    resumed, _ = load_session(user.id, path=path).to_resumable_pair()
    with ChatServer() as server:
        out = agent(replace(openai(server), provider_kind=kind))(resumed)
        for _ in range(2):
            with pytest.raises(PersistenceError, match=f"its bytes in {tmp_path} are missing"):
                out.text()
        assert server.requests == []


def test_a_refused_request_says_that_it_shows_images() -> None:
    with ChatServer() as server:
        server.queue(status_error(400, "no"), status_error(400, "no"))
        bound = agent(openai(server))
        for images, notes in (([CAT, DOG], 1), ([], 0)):
            with pytest.raises(InvalidRequestError) as caught:
                bound(Session.from_user_message("What is it?", images=images)).synchronize()
            said = [note for note in caught.value.__notes__ if "images: 2" in note]
            assert len(said) == notes


def test_a_compression_sees_the_images_and_says_what_it_replaced() -> None:
    digests: list[str] = []
    for images in ([CAT], [DOG]):
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


def test_the_first_parameter_keeps_its_documented_name() -> None:
    session = Session.from_user_message(message="hi", images=[])
    assert session.chunk_table[0].payload == {"content": "hi"}
