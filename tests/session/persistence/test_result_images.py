"""Images in results of tools, back from a store, a file and a bundle."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath.errors import PersistenceError
from rath.llm import chat_client_for
from rath.llm.image import Image
from rath.session import (
    Session,
    load_session,
    tool_feedback_chunk,
)
from rath.session.events import PendingResult, Row
from rath.session.loading import load
from rath.session.log.verify import verify
from rath.session.persistence.store import FileStore
from rath.session.record import ModelCall, ToolRun
from tests.support.chat_server import ChatServer
from tests.support.images import pictures
from tests.support.rendering import rerender_call
from tests.support.result_images import (
    ANSWERS,
    CAT,
    CHECKS,
    DOG,
    KINDS,
    digests,
    one_call,
    provider_of,
    scripted,
    shown_in,
)
from tests.support.sessions import FunctionTool, run
from tests.support.stored_lines import lines_for, write_lines

NOON = "2026-11-21T12:00:00+00:00"

items = st.one_of(st.text(max_size=5), st.integers(), pictures.map(Image.from_bytes))
results = st.one_of(items, st.lists(items, max_size=4), st.dictionaries(st.text(max_size=3), items))


def test_a_result_of_a_round_that_is_not_done_keeps_its_images(tmp_path: Path) -> None:
    whole, store = scripted(), FileStore(tmp_path)
    (entry,) = [each for each in whole.record if isinstance(each, ToolRun)]
    row = tool_feedback_chunk("c1", "camera", "look", images=[CAT, DOG])
    known = PendingResult(row=1, call=0, run=entry, shown=row)
    lines = lines_for(whole)
    at = next(n for n, line in enumerate(lines) if isinstance(line, Row) and line.index == 2)
    write_lines(store, [*lines[:at], known], is_finished=False)
    unfinished = load(store, whole.id).unfinished
    assert unfinished is not None
    (result,) = unfinished.results
    assert result.shown is not None
    assert [image.blob.data for image in result.shown.images] == [CAT.blob.data, DOG.blob.data]
    (store.directory / "blobs" / DOG.blob.digest).unlink()
    problems = verify(store, whole.id).problems
    assert [DOG.blob.digest in each.text for each in problems if each.kind == "blob"] == [True]


def test_a_file_of_the_first_version_may_have_images_of_others_in_a_result(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    payload = {"tool_call_id": "c1", "name": "f", "content": "1"}
    own = [{"sha256": CAT.blob.digest, "mime": "image/png", "size": CAT.blob.size}]
    records: list[dict[str, Any]] = [
        {"record_type": "header", "schema_version": 1, "id": str(UUID(int=1)), "created_at": NOON},
        *(
            {
                "record_type": "chunk",
                "index": n,
                "kind": "tool_result",
                "payload": payload | {"images": images},
            }
            for n, images in enumerate((["cat.png"], own))
        ),
        {"record_type": "trailer", "closed_at": NOON, "final_chunk_count": 2},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / CAT.blob.digest).write_bytes(CAT.blob.data or b"")
    loaded = load_session(UUID(int=1), path=path)
    assert [row.images for row in loaded.chunk_table] == [(), (CAT,)]
    assert loaded.chunk_table[1].images[0].blob.data == CAT.blob.data


def test_a_lost_image_fails_the_run_that_would_show_it(tmp_path: Path) -> None:
    out = scripted()
    out.save(store=(store := FileStore(tmp_path)))
    (tmp_path / "blobs" / CAT.blob.digest).unlink()
    assert [each.kind for each in verify(store, out.id).problems] == ["blob"]
    loaded = Session.load(out.id, store=store)
    with ChatServer() as server:
        provider = provider_of("openai", server)
        with pytest.raises(PersistenceError, match="are missing or damaged"):
            run([], user=loaded, agent_provider=provider).synchronize()
        assert server.requests == []


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
    calls = [entry for entry in loaded.record if isinstance(entry, ModelCall)]
    again = [rerender_call(loaded, call, client=client, provider=provider) for call in calls]
    assert again == bodies
    assert loaded.replay().chunk_table == out.chunk_table
    assert shown_in(loaded.replay()) == shown_in(out)
    assert verify(store, out.id).problems == ()
    assert digests(loaded) == [sha256(body).hexdigest() for body in bodies]
