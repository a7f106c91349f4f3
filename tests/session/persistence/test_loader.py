"""Reading, listing and deleting session files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath.backend.abc import BackendSandboxSpec
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session import RowId, run_session_compress
from rath.session.chunk import ChunkKind, ChunkRow, ChunkTable, system_text_chunk, user_text_chunk
from rath.session.graph import ancestors_bfs, session_to_jsonl_row
from rath.session.graph.kind import LineageKind
from rath.session.log.index import StoreIndex
from rath.session.log.verify import verify
from rath.session.persistence import (
    PersistedSession,
    PersistedSessionMeta,
    SessionWriter,
    ensure_sessions_dir,
    list_persisted_sessions,
    load_session,
    session_file,
    session_partial_file,
    sessions_dir,
)
from rath.session.persistence.store import FileStore, stores
from rath.session.questions import what_was_seen, where_from
from rath.session.session import Session
from rath.testing import FakeSessionStore, ScriptedClient, tool_call
from tests.support.sessions import FunctionTool, run
from tests.support.stored_lines import write

GOLDEN = Path(__file__).parents[2] / "data" / "v1"
ANY = UUID(int=0)
HEADER: dict[str, Any] = {
    "record_type": "header",
    "schema_version": 1,
    "id": str(UUID(int=1)),
    "created_at": "2026-11-21T21:36:38+00:00",
}
CHUNK: dict[str, Any] = {
    "record_type": "chunk",
    "index": 0,
    "kind": "user",
    "payload": {"content": "a"},
}
TRAILER: dict[str, Any] = {
    "record_type": "trailer",
    "closed_at": "2026-11-21T21:36:39+00:00",
    "final_chunk_count": 1,
}


def lines_of(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def stored(*texts: str, created_at: datetime | None = None) -> UUID:
    """Write a closed session with these user rows, perhaps begun at another time."""
    session = Session(ChunkTable(map(user_text_chunk, texts)))
    write(FileStore(), session, at=created_at)
    return session.id


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.jsonl"


def test_golden_plain_session_loads_exactly() -> None:
    path = GOLDEN / "plain.jsonl"
    loaded = load_session(ANY, path=path)
    header = loaded.header
    assert (header.schema_version, header.id, header.created_at) == (
        3,
        UUID("333e789d-c4d8-493a-9b9a-7717152dccbc"),
        datetime(2026, 11, 21, 21, 36, 38, 440597, tzinfo=UTC),
    )
    assert header.parent_session_ids == (
        UUID("cdac8b10-aa45-41a0-be59-5328cbc9679a"),
        UUID("71812a21-d027-4e72-8dcf-c35580527637"),
    )
    assert (header.lineage_operator, header.lineage_kind, header.lineage_extras) == (
        "run_session_loop",
        LineageKind.OP_SESSION_LOOP,
        (),
    )
    assert (header.sandbox_backend, header.sandbox_spec, header.sandbox_handle_id) == (None,) * 3
    assert loaded.chunk_table.rows == (
        user_text_chunk("What is 2+2?"),
        ChunkRow(ChunkKind.ASSISTANT, {"content": "4", "tool_calls": None}),
    )
    assert loaded.cumulative_usage == RathLLMTokenUsage(10, 5, 15)
    assert (loaded.closed, loaded.path) == (True, path)
    assert loaded.trailer_raw is not None
    assert loaded.trailer_raw["final_chunk_count"] == 2


def test_golden_session_with_tools_loads_exactly() -> None:
    path = GOLDEN / "tools.jsonl"
    loaded = load_session(ANY, path=path)
    written = [json.loads(line) for line in path.read_bytes().split(b"\n")[1:-2]]
    assert [(row.kind, dict(row.payload)) for row in loaded.chunk_table] == [
        (record["kind"], record["payload"]) for record in written
    ]
    assert loaded.chunk_table[9].payload["content"] == "Done: 世界 😀"
    assert json.loads(loaded.chunk_table[6].payload["content"])["exit_code"] == 3
    assert loaded.header.sandbox_backend == "local"
    assert loaded.cumulative_usage == RathLLMTokenUsage(50, 25, 75)


def test_golden_session_with_line_separators_in_its_text_loads_exactly() -> None:
    loaded = load_session(ANY, path=GOLDEN / "separators.jsonl")
    texts = [row.payload["content"] for row in loaded.chunk_table]
    assert texts == ["Line\u2028sep\u2029para\x85nel\x0cff", "ok\u2028ok"]


def test_golden_merge_loads_exactly() -> None:
    loaded = load_session(ANY, path=GOLDEN / "merged.jsonl")
    assert loaded.header.lineage_kind is LineageKind.OP_MERGE
    assert loaded.chunk_table.rows == (user_text_chunk("root"), user_text_chunk("other"))
    assert loaded.cumulative_usage is None
    assert loaded.closed


def test_golden_crashed_session_loads_its_rows() -> None:
    loaded = load_session(ANY, path=GOLDEN / "crashed.jsonl.__partial__")
    assert (len(loaded.chunk_table), loaded.closed, loaded.trailer_raw) == (3, False, None)
    assert loaded.chunk_table[2].payload["content"] == '{"bytes_written": 1}'


@pytest.mark.parametrize("name", ["plain.jsonl", "separators.jsonl", "crashed.jsonl.__partial__"])
def test_file_cut_at_any_byte_gives_its_whole_lines(path: Path, name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    whole = load_session(ANY, path=GOLDEN / name).chunk_table.rows
    for size in range(data.index(b"\n") + 1, len(data)):
        path.write_bytes(data[:size])
        n_rows = min(data[:size].count(b"\n") - 1, len(whole))
        assert load_session(ANY, path=path).chunk_table.rows == whole[:n_rows]


def test_file_cut_in_its_first_line_is_an_error_with_path_and_line(path: Path) -> None:
    data = (GOLDEN / "plain.jsonl").read_bytes()
    for size in range(data.index(b"\n")):
        path.write_bytes(data[:size])
        with pytest.raises(PersistenceError, match=r"f\.jsonl:1: missing header"):
            load_session(ANY, path=path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.data())
def test_damage_anywhere_is_an_error_with_path_and_line_or_loads(
    path: Path, noise: bytes, data: st.DataObject
) -> None:
    whole = (GOLDEN / "plain.jsonl").read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    path.write_bytes(whole[:start] + noise + whole[end:])
    try:
        load_session(ANY, path=path)
    except PersistenceError as exc:
        text = str(exc)
    else:
        text = f"{path}:1: "
    assert text.startswith(f"{path}:")


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (lines_of(HEADER) + b"{x}\n", 2, "invalid JSON"),
        (lines_of(HEADER) + b"\n", 2, "invalid JSON"),
        (lines_of(HEADER) + b'{"a": "\xff"}\n', 2, "invalid JSON"),
        (lines_of(HEADER, [1]), 2, "expected a JSON object"),
        (lines_of(HEADER, HEADER), 2, "duplicate header"),
        (lines_of(CHUNK), 1, "chunk before header"),
        (lines_of(TRAILER), 1, "trailer before header"),
        (lines_of(HEADER, {"record_type": "x"}), 2, "unknown record_type 'x'"),
        (lines_of(HEADER, {**CHUNK, "kind": 1}), 2, "malformed row: kind: expected str"),
        (
            lines_of(HEADER, CHUNK, {**CHUNK, "payload": []}),
            3,
            "malformed row: payload: expected object",
        ),
        (lines_of(HEADER, TRAILER, CHUNK), 3, "after the trailer"),
        (lines_of({**HEADER, "id": "x"}), 1, "malformed header"),
        (lines_of({**HEADER, "schema_version": "1"}), 1, "malformed header"),
        (lines_of({**HEADER, "schema_version": True}), 1, "malformed header"),
        (lines_of({**HEADER, "schema_version": 99}), 1, "newer than CURRENT_SCHEMA_VERSION"),
        (lines_of({**HEADER, "schema_version": -7}), 1, "no header migration"),
        (b"", 1, "missing header"),
    ],
)
def test_damaged_line_is_an_error_with_path_and_line(
    path: Path, content: bytes, line: int, words: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(PersistenceError, match=words) as caught:
        load_session(ANY, path=path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("session_id", [uuid4(), str(uuid4())], ids=["uuid", "text"])
def test_missing_session_is_not_found(session_id: UUID | str) -> None:
    with pytest.raises(PersistenceError, match="not found"):
        load_session(session_id)


def test_missing_path_is_not_found_even_with_a_partial_file_beside_it(path: Path) -> None:
    path.with_name("f.jsonl.__partial__").write_bytes(lines_of(HEADER))
    with pytest.raises(PersistenceError, match="not found"):
        load_session(ANY, path=path)


def test_file_that_cannot_be_read_is_a_persistence_error(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="cannot be read"):
        load_session(ANY, path=tmp_path)


def test_finished_file_hides_the_partial_one() -> None:
    session_id = stored("a")
    shutil.copy(session_file(session_id), session_partial_file(session_id))
    assert load_session(session_id).path == session_file(session_id)


def test_file_of_another_session_is_refused_under_the_wrong_name() -> None:
    session_id, other = stored("a"), uuid4()
    session_file(session_id).rename(session_file(other))
    with pytest.raises(PersistenceError, match=str(session_id)):
        load_session(other)
    assert load_session(other, path=session_file(other)).header.id == session_id


def test_rows_are_named_after_the_file_and_keep_unknown_kinds(path: Path) -> None:
    odd = {**CHUNK, "kind": "verdict", "payload": {"content": "b", "new": [1]}}
    path.write_bytes(lines_of(HEADER, CHUNK, odd))
    table = load_session(ANY, path=path).chunk_table
    assert [row.id for row in table] == [RowId(UUID(int=1), 0), RowId(UUID(int=1), 1)]
    assert table[1] == ChunkRow("verdict", {"content": "b", "new": [1]})


def test_resumed_user_session_has_rows_place_and_usage() -> None:
    spec = BackendSandboxSpec(image="i", entrypoint=("a", "b"), timeout=timedelta(seconds=1.5))
    session = Session(
        ChunkTable((user_text_chunk("a"),)),
        sandbox_backend="local",
        sandbox_spec=spec,
        cumulative_usage=RathLLMTokenUsage(1, 2, 3),
    )
    with SessionWriter(session) as writer:
        writer.write_chunk(0, session.chunk_table[0])
    user, agent = load_session(session.id).to_resumable_pair()
    assert user.id != session.id
    assert user.chunk_table == session.chunk_table
    assert (user.sandbox_backend, user.sandbox_spec) == ("local", spec)
    assert user.cumulative_usage == RathLLMTokenUsage(1, 2, 3)
    assert (user.parent_session_ids, user.lineage_kind) == ((), LineageKind.UNKNOWN)
    assert len(agent.chunk_table) == 0


def test_usage_of_one_file_counts_once_when_two_pairs_of_it_meet(path: Path) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    path.write_bytes(lines_of(HEADER, CHUNK, {**TRAILER, "cumulative_usage": usage}))
    loaded = load_session(ANY, path=path)
    (one, _), (other, _) = loaded.to_resumable_pair(), loaded.to_resumable_pair()
    merged = one.merge(other)
    assert merged.cumulative_usage == one.cumulative_usage == RathLLMTokenUsage(1, 2, 3)
    assert len(merged.chunk_table) == 1


@pytest.mark.parametrize(
    ("name", "operator", "kind", "parents"),
    [
        (
            "plain.jsonl",
            "run_session_loop",
            LineageKind.OP_SESSION_LOOP,
            ["cdac8b10-aa45-41a0-be59-5328cbc9679a", "71812a21-d027-4e72-8dcf-c35580527637"],
        ),
        (
            "merged.jsonl",
            "Session.merge",
            LineageKind.OP_MERGE,
            ["5c9c7f0c-8425-406e-ad7e-560a108f7d88", "1a693789-f3c4-4831-9098-0f35c4afd6a2"],
        ),
        (
            "crashed.jsonl.__partial__",
            "run_session_loop",
            LineageKind.OP_SESSION_LOOP,
            ["276c37f6-dbd1-4482-9fbd-2ceea0bed36f", "71812a21-d027-4e72-8dcf-c35580527637"],
        ),
    ],
)
def test_resumed_user_session_of_version_1_names_its_parents(
    name: str, operator: str, kind: LineageKind, parents: list[str]
) -> None:
    loaded = load_session(ANY, path=GOLDEN / name)
    user, agent = loaded.to_resumable_pair()
    assert user.id != loaded.header.id
    assert list(map(str, user.parent_session_ids)) == parents
    exported = session_to_jsonl_row(user)
    assert (exported["id"], exported["parent_session_ids"]) == (str(user.id), parents)
    assert (exported["lineage_operator"], exported["lineage_kind"]) == (operator, kind.value)
    by_id = {
        each.id: each for each in (user, *(Session(ChunkTable(), id=UUID(p)) for p in parents))
    }
    assert list(map(str, ancestors_bfs(by_id, user.id))) == parents
    assert agent.chunk_table.rows == ()
    user.save()
    assert Session.load(user.id).parent_session_ids == user.parent_session_ids
    with StoreIndex(FileStore()) as index:
        assert list(map(str, index.ancestors(user.id))) == parents


PROMPT = (system_text_chunk("Be brief."), system_text_chunk("Be kind."))


def instructions() -> Session:
    return Session(ChunkTable(PROMPT))


def test_resumed_agent_has_the_rows_of_the_agent_of_the_run() -> None:
    out = run(["a"], agent=instructions(), persist=True).synchronize()
    user, agent = load_session(out.id).to_resumable_pair()
    assert agent.chunk_table.rows == PROMPT
    again = run(["b"], user=user, agent=agent, persist=True).synchronize()
    _, agent = load_session(again.id).to_resumable_pair()
    assert agent.chunk_table.rows == PROMPT
    assert Session.load(again.id).chunk_table == again.chunk_table


def test_resumed_user_session_has_the_lineage_of_the_run() -> None:
    out = run(["a"], agent=instructions(), persist=True).synchronize()
    user, _ = load_session(out.id).to_resumable_pair()
    assert user.parent_session_ids == out.parent_session_ids
    assert (user.lineage, user.lineage_kind) == (out.lineage, LineageKind.OP_SESSION_LOOP)
    assert user.lineage_operator == "run_session_loop"
    assert user.lineage_extras == (*out.lineage_extras, ("resumed_from", str(out.id)))
    family = [user, *map(Session.load, user.parent_session_ids)]
    assert ancestors_bfs({each.id: each for each in family}, user.id) == out.parent_session_ids
    user.save()
    with StoreIndex(FileStore()) as index:
        assert index.ancestors(user.id) == out.parent_session_ids
    assert verify(FileStore(), user.id).problems == ()


DERIVATIONS: dict[str, Callable[[Session], Session]] = {
    "run": lambda out: out,
    "fork": lambda out: out.fork(),
    "fork of a fork": lambda out: out.fork().fork(),
    "merge": lambda out: out.merge(Session.from_user_message("b")),
    "second of a merge": lambda out: Session.from_user_message("b").merge(out),
    "compress": lambda out: run_session_compress(
        out,
        Session.from_agent_prompt("Sum up."),
        agent_provider=ScriptedClient(["so far"]).provider,
    ),
}


@pytest.mark.parametrize("derive", DERIVATIONS.values(), ids=DERIVATIONS)
def test_resumed_agent_of_what_was_derived_has_the_rows_of_the_last_run(
    derive: Callable[[Session], Session],
) -> None:
    made = derive(run(["a"], agent=instructions()).synchronize())
    made.save()
    _, agent = load_session(made.id).to_resumable_pair()
    assert agent.chunk_table.rows == PROMPT


@pytest.mark.parametrize("derive", DERIVATIONS.values(), ids=DERIVATIONS)
def test_what_goes_on_from_a_resumed_pair_lacks_no_evidence_and_is_replayed(
    derive: Callable[[Session], Session],
) -> None:
    made = derive(run(["a"], agent=instructions()).synchronize())
    made.save()
    user, agent = load_session(made.id).to_resumable_pair()
    again = run(["b"], user=user, agent=agent, persist=True).synchronize()
    loaded = Session.load(again.id)
    assert where_from(loaded).missing == what_was_seen(loaded).missing == ()
    assert loaded.replay().chunk_table == again.chunk_table


def test_resumed_agent_of_a_run_without_instructions_has_none() -> None:
    first = run(["a"], agent=instructions()).synchronize()
    out = run(["b"], user=first, agent=Session(ChunkTable()), persist=True).synchronize()
    _, agent = load_session(out.id).to_resumable_pair()
    assert agent.chunk_table.rows == ()


def test_resumed_agent_of_a_run_inside_a_run_is_that_of_the_outer_one() -> None:
    def ask(*_: object) -> str:
        inner = run(["b"], agent=Session.from_agent_prompt("Inside."))
        return inner.text() or ""

    ask_then_end = (tool_call("ask"), "a")
    out = run(ask_then_end, FunctionTool("ask", ask), agent=instructions(), persist=True)
    out.synchronize()
    _, agent = load_session(out.id).to_resumable_pair()
    assert agent.chunk_table.rows == PROMPT


def test_resumed_agent_of_a_file_without_record_is_the_stored_agent() -> None:
    agent = instructions()
    out = run(["a"], agent=agent).synchronize()
    agent.save()
    SessionWriter(out).abandon()
    _, resumed = load_session(out.id).to_resumable_pair()
    assert resumed.chunk_table.rows == PROMPT


def test_a_writer_keeps_the_agent_and_the_parents_of_a_run() -> None:
    out = run(["a"], agent=instructions()).synchronize()
    with SessionWriter(out) as writer:
        for index, row in enumerate(out.chunk_table):
            writer.write_chunk(index, row)
    user, agent = load_session(out.id).to_resumable_pair()
    assert user.parent_session_ids == out.parent_session_ids
    assert agent.chunk_table.rows == PROMPT


@pytest.mark.parametrize(
    ("given_prompt", "expected"), [(None, "stored"), ("given", "given"), ("", "")]
)
def test_resumed_agent_has_the_given_prompt_or_the_first_system_row(
    path: Path, given_prompt: str | None, expected: str
) -> None:
    system = [{**CHUNK, "kind": "system", "payload": {"content": t}} for t in ("stored", "later")]
    path.write_bytes(lines_of(HEADER, CHUNK, *system))
    _, agent = load_session(ANY, path=path).to_resumable_pair(agent_prompt=given_prompt)
    assert agent.chunk_table.rows == (system_text_chunk(expected),)


def test_list_of_a_home_without_sessions_is_empty(home: Path) -> None:
    assert list_persisted_sessions() == []
    assert not home.exists()


def test_list_has_finished_and_partial_files_oldest_first() -> None:
    day = datetime(2026, 1, 2, tzinfo=UTC)
    later, earlier = stored("a", "b", created_at=day), stored(created_at=day - timedelta(days=1))
    newest = Session(ChunkTable(), lineage_operator="op", lineage_kind=LineageKind.OP_FORK)
    SessionWriter(newest).abandon()
    metas = list_persisted_sessions()
    assert [(m.id, m.chunk_count, m.closed) for m in metas] == [
        (earlier, 0, True),
        (later, 2, True),
        (newest.id, 0, False),
    ]
    assert metas[1].created_at == day
    assert (metas[2].lineage_operator, metas[2].lineage_kind) == ("op", LineageKind.OP_FORK)
    assert metas[2].path == session_partial_file(newest.id)


def test_list_leaves_out_what_it_cannot_read_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    kept = stored("a")
    directory = ensure_sessions_dir()
    (directory / "notes.jsonl").write_bytes(lines_of(HEADER))
    (directory / f"{uuid4()}.jsonl").write_bytes(b"x\n")
    (directory / f"{uuid4()}.jsonl").write_bytes(lines_of(HEADER))
    (directory / "other.txt").touch()
    assert [meta.id for meta in list_persisted_sessions()] == [kept]
    assert caplog.text.count("left out of the list") == 2
    assert [meta.id for meta in list_persisted_sessions()] == [kept]
    assert caplog.text.count("left out of the list") == 4


def test_list_has_a_damaged_file_again_once_it_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = session_file(stored("a"))
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"a"', b'"b"'))
    assert list_persisted_sessions() == list_persisted_sessions() == []
    assert caplog.text.count(f"{file}:2: the checksum does not fit") == 2
    file.write_bytes(whole)
    assert [meta.path for meta in list_persisted_sessions()] == [file]


def listed_of(session_id: UUID) -> PersistedSessionMeta:
    """Return what a listing says of a session, as its log says it."""
    loaded = load_session(session_id)
    header = loaded.header
    return PersistedSessionMeta(
        id=header.id,
        path=loaded.path,
        created_at=header.created_at,
        lineage_operator=header.lineage_operator,
        lineage_kind=header.lineage_kind,
        chunk_count=len(loaded.chunk_table),
        closed=loaded.closed,
    )


def stored_in_all_states() -> list[UUID]:
    """Store sessions that ended, failed, were cut off and go on, and one of version 1."""
    out = run(["a"], persist=True).synchronize()
    fork = out.fork()
    fork.save()
    failed = run([tool_call("f"), RuntimeError("gone")], FunctionTool("f", str), persist=True)
    with pytest.raises(RuntimeError, match="gone"):
        failed.synchronize()
    cut_off = Session.from_user_message("cut off")
    with suppress(ZeroDivisionError), SessionWriter(cut_off) as writer:
        writer.write_chunk(0, cut_off.chunk_table[0])
        raise ZeroDivisionError
    old = UUID("9531c84d-17b6-47a6-b9ad-3e625f957dac")
    shutil.copy(GOLDEN / "tools.jsonl", session_file(old))
    runs = (*out.parent_session_ids, out.id, *failed.parent_session_ids, failed.id)
    return [*runs, fork.id, cut_off.id, old]


def as_it_is(index: Path) -> None:
    """Leave the index as it is."""


def put_noise(index: Path) -> None:
    index.write_bytes(b"no index" * 500)


def put_directory(index: Path) -> None:
    index.unlink()
    index.mkdir()


@pytest.mark.parametrize("harm", [as_it_is, Path.unlink, put_noise, put_directory])
def test_list_says_the_same_whatever_the_index_is(harm: Callable[[Path], None]) -> None:
    stored_ids = stored_in_all_states()
    going_on = Session.from_user_message("goes on")
    with SessionWriter(going_on) as writer:
        expected = {id_: listed_of(id_) for id_ in (*stored_ids, going_on.id)}
        first = list_persisted_sessions()
        harm(sessions_dir() / "index.sqlite3")
        again = list_persisted_sessions()
        writer.write_chunk(0, going_on.chunk_table[0])
        written = {meta.id: meta for meta in list_persisted_sessions()}[going_on.id]
    ended = {meta.id: meta for meta in list_persisted_sessions()}[going_on.id]
    assert {meta.id: meta for meta in first} == expected
    assert first == again == sorted(first, key=lambda meta: meta.created_at)
    assert (written.chunk_count, written.closed) == (1, False)
    assert (ended.chunk_count, ended.closed) == (1, True)
    assert ended.path == session_file(going_on.id)


def test_list_of_a_directory_that_was_moved_has_its_paths(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = stored("a")
    list_persisted_sessions()
    moved = home.rename(home.with_name("elsewhere"))
    monkeypatch.setenv("OPENRATH_HOME", str(moved))
    assert [meta.path for meta in list_persisted_sessions()] == [session_file(session_id)]


def test_list_of_another_store_has_the_addresses_there(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeSessionStore()
    stores.register("listed", lambda url: store)
    try:
        monkeypatch.setenv("OPENRATH_STORE", f"listed://{uuid4()}")
        session = Session.from_user_message("a")
        session.save()
        expected = [listed_of(session.id)]
        assert list_persisted_sessions() == list_persisted_sessions() == expected
    finally:
        stores.unregister("listed")


LIST_AND_COUNT = """if True:
    import sys

    opened = []
    sys.addaudithook(
        lambda event, args: opened.append(str(args[0])) if event == "open" else None
    )
    from rath.session.persistence import list_persisted_sessions

    n_listed = len(list_persisted_sessions())
    print(n_listed, *(path for path in opened if ".jsonl" in path), sep="\\n")
"""


def opened_by_a_listing(home: Path) -> tuple[int, list[str]]:
    """Return how many sessions another process lists, and which logs it opens for that."""
    listed = subprocess.run(
        [sys.executable, "-c", LIST_AND_COUNT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENRATH_HOME": str(home)},
        check=True,
        capture_output=True,
        text=True,
    )
    n_listed, *paths = listed.stdout.splitlines()
    return int(n_listed), paths


def test_list_opens_no_log_that_the_index_knows(home: Path) -> None:
    first, second = stored("a"), stored("b")
    cut_off = Session.from_user_message("cut off")
    SessionWriter(cut_off).abandon()
    list_persisted_sessions()
    assert opened_by_a_listing(home) == (3, [])
    new = stored("c")
    assert opened_by_a_listing(home) == (4, [str(session_file(new))])
    assert opened_by_a_listing(home) == (4, [])
    assert {meta.id for meta in list_persisted_sessions()} == {first, second, cut_off.id, new}


def test_list_is_whole_while_another_process_writes(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = """if True:
        from rath.session import Session
        from rath.session.persistence import SessionWriter

        for number in range(40):
            session = Session.from_user_message(str(number))
            with SessionWriter(session) as writer:
                writer.write_chunk(0, session.chunk_table[0])
    """
    before = stored("a")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENRATH_HOME": str(home)}
    with subprocess.Popen([sys.executable, "-c", code], env=env) as writing:
        while writing.poll() is None:
            assert before in {meta.id for meta in list_persisted_sessions()}
    assert writing.returncode == 0
    after = list_persisted_sessions()
    assert {meta.id: meta for meta in after} == {meta.id: listed_of(meta.id) for meta in after}
    assert (len(after), caplog.records) == (41, [])


def test_a_persisted_session_can_be_made_by_hand(path: Path) -> None:
    path.write_bytes(lines_of(HEADER, CHUNK, TRAILER))
    read = load_session(UUID(int=1), path=path)
    made = PersistedSession(
        header=read.header,
        chunk_table=read.chunk_table,
        cumulative_usage=RathLLMTokenUsage(1, 2, 3),
        closed=True,
        path=read.path,
    )
    assert (made.session().id, made.session().chunk_table) == (read.header.id, read.chunk_table)
    assert (len(made.record), made.outcome) == (0, read.outcome)
    user, _ = made.to_resumable_pair()
    assert user.chunk_table == read.chunk_table
    assert user.cumulative_usage == RathLLMTokenUsage(1, 2, 3)
