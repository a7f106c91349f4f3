"""Sessions go from store to store in one file, of which nothing is believed once it is damaged."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import PersistenceError, SessionBusy, SessionDamaged
from rath.session import Session
from rath.session.loading import load
from rath.session.log.bundle import from_bytes, to_bytes
from rath.session.outcome import Completed
from rath.session.persistence.bundle import (
    Bundle,
    BundleStore,
    import_bundle,
    pack,
    read_bundle,
    write_bundle,
)
from rath.session.persistence.store import FileStore, StoredLog
from rath.session.record import Operation
from rath.testing import tool_call
from tests.support.api import chained, recording_scope, save
from tests.support.images import picture
from tests.support.session_files import operation
from tests.support.sessions import FunctionTool, run


def stored(store: FileStore) -> Session:
    """A merge of two branches, with an image and a result that stands aside, in a store."""
    tool = FunctionTool("f", lambda *_: "long " * 20_000)
    user = Session.from_user_message("go", images=[picture(b"seen")])
    first = run([tool_call("f"), "done"], tool, user=user).synchronize()
    merged = run(["left"], user=first.fork()).merge(run(["right"], user=first)).synchronize()
    save(merged, store=store)
    return merged


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "here")


def test_a_bundle_holds_the_session_and_all_it_came_from(store: FileStore, tmp_path: Path) -> None:
    session = stored(store)
    path = tmp_path / "b.jsonl"
    bundle = pack(store, [session.id])
    assert write_bundle(bundle, path) == path.stat().st_size
    again = read_bundle(path)
    assert again == replace(bundle, logs=again.logs)
    assert {log.data for log in again.logs.values()} == {log.data for log in bundle.logs.values()}
    assert list(again.logs)[-1] == session.id
    assert len(again.blobs) == 2
    loaded = load(BundleStore(again, str(path)), session.id).session
    assert loaded.chunk_table.rows == session.chunk_table.rows
    assert [row.images[0].blob.data for row in loaded.chunk_table if row.images]
    assert loaded.replay().chunk_table == session.chunk_table


def test_what_is_imported_is_what_was_exported_once(store: FileStore, tmp_path: Path) -> None:
    session, there = stored(store), FileStore(tmp_path / "there")
    bundle = pack(store, [session.id])
    reports: list[tuple[int, int]] = []
    done = import_bundle(bundle, there, report=lambda n, m: reports.append((n, m)))
    assert (set(done.added), done.grown, done.kept) == (set(bundle.logs), (), ())
    assert reports[-1] == (len(bundle.logs), len(bundle.logs))
    again = replace(pack(there, [session.id]), created_at=bundle.created_at)
    assert to_bytes(again) == to_bytes(bundle)
    assert load(there, session.id).session.chunk_table == session.chunk_table
    stamps = dict(there.stamps())
    twice = import_bundle(bundle, there)
    assert (twice.added, twice.grown, set(twice.kept)) == ((), (), set(bundle.logs))
    assert dict(there.stamps()) == stamps


@pytest.mark.parametrize("is_finished", [True, False])
def test_what_the_store_holds_in_part_grows(
    store: FileStore, tmp_path: Path, is_finished: bool
) -> None:
    session, there = stored(store), FileStore(tmp_path / "there")
    session.add_entry(operation(kind="check"))  # so that a beginning has an end, too
    bundle = pack(store, [session.id])
    complete = bundle.logs[session.id]
    lines = complete.data.splitlines(keepends=True)
    started = StoredLog(session.id, b"".join(lines[:-1]), is_finished, complete.where)
    short = replace(bundle, logs={**bundle.logs, session.id: started})
    import_bundle(short, there)
    done = import_bundle(bundle, there)
    assert done.grown == (session.id,)
    log = there.read(session.id)
    assert log is not None
    assert (log.data, log.is_finished) == (complete.data, True)
    back = import_bundle(short, there)
    assert (back.added, back.grown) == ((), ())


def test_another_session_of_the_same_id_stays(store: FileStore, tmp_path: Path) -> None:
    session, there = stored(store), FileStore(tmp_path / "there")
    other = Session(Session.from_user_message("other").chunk_table, id=session.id)
    save(other, store=there)
    before = dict(there.stamps())
    with pytest.raises(PersistenceError, match=r"another session .* nothing was imported"):
        import_bundle(pack(store, [session.id]), there)
    assert dict(there.stamps()) == before


def test_nothing_is_imported_while_a_log_is_written(store: FileStore, tmp_path: Path) -> None:
    session, there = stored(store), FileStore(tmp_path / "there")
    bundle = pack(store, [session.id])
    log, started = (
        there.create(session.id),
        bundle.logs[session.id].data.splitlines(keepends=True)[0],
    )
    log.append(started)
    with pytest.raises(SessionBusy, match=r"is being written .* nothing was imported"):
        import_bundle(bundle, there)
    log.abandon()
    found = there.read(session.id)
    assert found is not None
    assert (found.data, set(there.stamps())) == (started, {session.id})


def test_a_log_of_another_session_is_refused(store: FileStore) -> None:
    session, other = stored(store), uuid4()
    bundle = pack(store, [session.id])
    moved = replace(bundle.logs[session.id], session=other)
    with pytest.raises(SessionDamaged, match=f"not of {other}"):
        import_bundle(replace(bundle, logs={other: moved}), store)


def test_what_is_damaged_or_not_there_is_not_packed(store: FileStore) -> None:
    session, missing = stored(store), uuid4()
    path = store.path(session.id)
    path.write_bytes(path.read_bytes().replace(b"Session.merge", b"Session.fork!"))
    with pytest.raises(SessionDamaged, match=r"jsonl:1: "):
        pack(store, [session.id])
    with pytest.raises(PersistenceError, match=f"holds no session {missing}"):
        pack(store, [missing])
    orphan = Session(Session.from_user_message("a").chunk_table, parent_session_ids=(missing,))
    save(orphan, store=store)
    assert list(pack(store, [orphan.id]).logs) == [orphan.id]


LOG = StoredLog(uuid4(), b'{"a": 1}\n{"b": 2}\n', True, "here")
DIGEST = sha256(b"x").hexdigest()
SMALL = to_bytes(Bundle(sessions=(LOG.session,), logs={LOG.session: LOG}, blobs={DIGEST: b"x"}))


def line_file(*records: object, log: bytes = b"") -> bytes:
    """Return a file of version 1, with a log after its second line."""
    made, after = list[bytes](), ""
    for record in records:
        line, after = chained([json.dumps(record).encode()], after)
        made += [line, log if len(made) == 2 else b""]
    return b"".join(made)


def head(*sessions: UUID) -> dict[str, object]:
    named = [str(session) for session in sessions]
    created_at = "2026-01-01T00:00:00+00:00"
    return {"record_type": "bundle", "bundle_version": 1, "created_at": created_at,
            "sessions": named}  # fmt: skip


def of_log(log: StoredLog) -> dict[str, object]:
    digest = sha256(log.data).hexdigest()
    return {"record_type": "log", "session": str(log.session), "finished": log.is_finished,
            "size": len(log.data), "sha256": digest}  # fmt: skip


BLOB = {"record_type": "blob", "sha256": DIGEST, "data": "eA=="}
END = {"record_type": "end", "n_logs": 1, "n_blobs": 1}
LINES = line_file(head(LOG.session), of_log(LOG), BLOB, END, log=LOG.data)


def resummed(data: bytes) -> bytes:
    """Return a forged file whose sum fits again."""
    return data[:-64] + sha256(data[:-64]).hexdigest().encode()


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
        file.comment = b"0" * 64
    return resummed(target.getvalue())


def manifest(**changes: object) -> dict[str, bytes]:
    known: dict[str, object] = {
        "version": 2,
        "created_at": "2026-01-01",
        "sessions": [],
        "logs": {},
        "blobs": [],
    }
    return {"manifest.json": json.dumps(known | changes).encode()}


@pytest.mark.parametrize("data", [SMALL, LINES], ids=["zip", "lines"])
def test_both_formats_are_read(data: bytes) -> None:
    bundle = from_bytes(data, "f")
    (log,) = bundle.logs.values()
    assert (log.data, log.is_finished, bundle.blobs) == (LOG.data, True, {DIGEST: b"x"})
    assert bundle.sessions == (LOG.session,)
    with pytest.raises(SessionDamaged, match=r"something follows|changed or cut off"):
        from_bytes(data + b"\n", "f")


@given(data=st.sampled_from([SMALL, LINES]), at=st.integers(0), bit=st.integers(0, 7))
def test_any_bit_that_flips_is_noticed(data: bytes, at: int, bit: int) -> None:
    damaged = bytearray(data)
    damaged[at % len(data)] ^= 1 << bit
    with pytest.raises(PersistenceError, match=r"^f(:\d+)?: "):
        from_bytes(bytes(damaged), "f")


@given(at=st.integers(0, len(SMALL) - 65), byte=st.integers(0, 255))
def test_a_forged_file_is_read_or_refused(at: int, byte: int) -> None:
    forged = bytearray(SMALL)
    forged[at] = byte
    try:
        bundle = from_bytes(resummed(bytes(forged)), "f")
    except PersistenceError:
        return
    assert {log.data for log in bundle.logs.values()} == {LOG.data}


@pytest.mark.parametrize(
    ("at", "problem"), [(26, "it is no bundle of sessions: "), (28, "EOFError|Overlapped entries")]
)
def test_a_length_that_reaches_past_the_file_is_refused(at: int, problem: str) -> None:
    data = bytearray(zipped(manifest()))
    data[at : at + 2] = (60_000).to_bytes(2, "little")  # of the first name, or its extra field
    with pytest.raises(SessionDamaged, match=problem):
        from_bytes(resummed(bytes(data)), "file")


def test_a_newer_bundle_is_refused_and_one_that_is_compressed() -> None:
    with pytest.raises(PersistenceError, match="version 3; this version of rath reads 2 and 1"):
        from_bytes(zipped(manifest(version=3)), "f")
    bomb = zipped(manifest() | {"bomb": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(SessionDamaged, match="compressed, or larger than the file"):
        from_bytes(bomb, "f")


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({}, "no item named 'manifest.json'"),
        ({"manifest.json": b"[]"}, "indices"),
        ({"manifest.json": b"{"}, "Expecting"),
        (manifest(created_at=1), "fromisoformat"),
        (manifest(sessions=[str(LOG.session)]), "named and not there"),
        (manifest(logs={"../x": {"finished": True, "sha256": DIGEST}}), "badly formed"),
        (manifest(logs={str(LOG.session): {}}), "no item named"),
        (manifest(blobs=["../x"]) | {"blobs/../x": b"x"}, "content has sha256"),
        (manifest() | {"../x": b"x"}, "not those of the manifest"),
    ],
)
def test_a_zip_that_is_no_bundle_is_refused(members: dict[str, bytes], problem: str) -> None:
    with pytest.raises(SessionDamaged, match=rf"^f: .*({problem})"):
        from_bytes(zipped(members), "f")


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([{"record_type": "header"}], "no bundle of sessions"),
        ([{"record_type": 1}], "no bundle of sessions"),
        ([{"record_type": "bundle", "bundle_version": 2}], "or version"),
        ([{"record_type": "bundle", "bundle_version": 1}, END], "does not fit"),
        ([head(), {"record_type": "odd"}], "unknown record_type 'odd'"),
        ([head(), {**BLOB, "sha256": "0"}], "content has sha256"),
        ([head(), {**BLOB, "data": "*"}], "malformed"),
        ([head(), {**of_log(LOG), "session": "x"}], "badly formed"),
        ([head(), {**of_log(LOG), "size": 9}], "it was cut or changed"),
        ([head(LOG.session), {**END, "n_logs": 0, "n_blobs": 0}], "named and not there"),
        ([head(), END], "does not fit"),
    ],
)
def test_lines_that_are_no_bundle_are_refused(records: list[object], problem: str) -> None:
    with pytest.raises(SessionDamaged, match=rf"^f:\d+: .*({problem})"):
        from_bytes(line_file(*records), "f")


def test_a_file_that_cannot_be_read_or_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="bundle not found"):
        read_bundle(tmp_path / "none")
    with pytest.raises(PersistenceError, match="cannot be read"):
        read_bundle(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(PersistenceError, match="cannot be written"):
        write_bundle(pack(FileStore(tmp_path / "s"), []), tmp_path / "file" / "b")


def test_a_bundle_as_a_store_is_only_read(store: FileStore) -> None:
    session = stored(store)
    bundle = pack(store, [session.id])
    there = BundleStore(bundle, "b.jsonl")
    assert set(there.stamps()) == set(bundle.logs)
    assert there.read(uuid4()) is None
    assert there.blob("0" * 64) is None
    assert not there.is_being_written(session.id)
    assert there.empty_trash() == 0
    data = bundle.logs[session.id].data
    assert b"".join(there.follow(session.id, 5)) == data[5:]
    assert list(there.follow(uuid4(), 0)) == []
    refused: list[Callable[[], object]] = [
        lambda: there.create(session.id),
        lambda: there.reopen(session.id, 0),
        lambda: there.append_to_finished(session.id, 0, b""),
        lambda: there.delete(session.id),
        lambda: there.restore(session.id),
    ]
    for call in refused:
        with pytest.raises(PersistenceError, match="only read; import it"):
            call()


def test_what_agents_did_inside_calls_is_taken_along(store: FileStore) -> None:
    def ask(session: Session, _: object) -> str | None:
        def below(inner: Session, _: object) -> str | None:
            return run(["deep"], user=inner.delegate("on"), persist=True).text()

        tools = [FunctionTool("below", below)]
        task = session.delegate("look")
        return run([tool_call("below"), "found"], *tools, user=task, persist=True).text()

    with recording_scope(store):
        out = run([tool_call("ask"), "done"], FunctionTool("ask", ask)).synchronize()
    made = {entry.session for entry in out.record if isinstance(entry, Operation)}
    assert len(made) == 3
    bundle = pack(store, [out.id])
    assert made <= set(bundle.logs)
    assert bundle.lacks == ()
    for session in made:
        assert load(BundleStore(bundle, "b"), session).session.replay().outcome == Completed()
