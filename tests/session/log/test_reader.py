"""Older files are brought up to date while they are read."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from rath.errors import PersistenceError, SessionDamaged
from rath.session import Session
from rath.session.log.reader import (
    register_chunk_migration,
    register_header_migration,
    upgrade_chunk,
    upgrade_header,
)
from rath.session.log.verify import verify
from rath.session.persistence.store import FileStore
from rath.session.record import Verdict
from tests.support.api import CURRENT_SCHEMA_VERSION

OLDEST = -1000
"""Far below any version that a file could have, so that registrations here disturb nothing."""


@pytest.mark.parametrize("version", [CURRENT_SCHEMA_VERSION, CURRENT_SCHEMA_VERSION + 1])
def test_current_and_newer_versions_cannot_be_migrated(version: int) -> None:
    with pytest.raises(ValueError, match="refusing to register"):
        register_header_migration(version, dict)
    with pytest.raises(ValueError, match="refusing to register"):
        register_chunk_migration(version, dict)


def test_header_without_a_step_on_its_way_is_refused() -> None:
    register_header_migration(OLDEST, lambda record: {**record, "step": 1})
    with pytest.raises(PersistenceError, match=f"from schema version {OLDEST + 1}"):
        upgrade_header({"schema_version": OLDEST})


def test_header_goes_through_every_step_in_order() -> None:
    register_header_migration(0, lambda record: {**record, "id": record["id"] + "+", "rows": []})
    upgraded = upgrade_header({"schema_version": 0, "id": "x"})
    assert upgraded == {"schema_version": CURRENT_SCHEMA_VERSION, "id": "x+"}


def test_chunk_needs_no_step_for_versions_that_did_not_change_it() -> None:
    register_chunk_migration(OLDEST + 2, lambda record: {**record, "payload": {}})
    record = {"kind": "user"}
    assert upgrade_chunk(record, header_version=OLDEST + 3) == record
    assert upgrade_chunk(record, header_version=OLDEST) == {"kind": "user", "payload": {}}


# Logs that version 2 wrote.

V2 = Path(__file__).parents[2] / "data" / "v2"
EXPECTED: dict[str, dict[str, Any]] = json.loads((V2 / "expected.json").read_text())
"""What that version told of three of its sessions: a merge, one cut off, one at its limit."""


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    copied = tmp_path / "sessions"
    shutil.copytree(V2, copied)
    return FileStore(copied)


@pytest.mark.parametrize("session", EXPECTED)
def test_a_log_of_version_2_is_gone_on_with_in_version_3(store: FileStore, session: str) -> None:
    live = Session.load(session, store=store)
    (old,) = [path.read_bytes() for path in store.directory.glob(f"{session}*")]
    verdict = Verdict(
        operation=live.id, name="good", judge="x", passed=True, report="\\ud800", score=math.inf
    )
    live.add_entry(verdict)
    log = store.read(live.id)
    assert log is not None
    assert log.data.startswith(old)
    *_, added = log.data.splitlines()
    assert added.startswith(b'{"event":"verdict",')
    again = Session.load(session, store=store)
    assert list(again.record) == list(live.record)
    assert again.record[len(again.record) - 1] == verdict
    assert verify(store, live.id).is_sound


def test_a_changed_line_of_either_version_is_named(store: FileStore) -> None:
    session = next(iter(EXPECTED))
    live = Session.load(session, store=store)
    for name in ("one", "two"):
        live.add_entry(Verdict(operation=live.id, name=name, judge="x", passed=True, report=""))
    (path,) = store.directory.glob(f"{session}*")
    data = path.read_bytes()
    n_lines = data.count(b"\n")
    for old, new, line in (
        (b'"name":"one"', b'"name":"six"', n_lines - 1),
        (b'"schema_version": 2', b'"schema_version": 3', 1),
        (b',"sum":"', b', "sum": "', n_lines - 1),
    ):
        path.write_bytes(data.replace(old, new, 1))
        with pytest.raises(SessionDamaged) as caught:
            Session.load(session, store=store)
        assert caught.value.line == line
