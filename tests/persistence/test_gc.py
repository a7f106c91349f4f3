"""Housekeeping over everything that is stored."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from rath.persistence import GCReport, gc
from rath.session.chunk import ChunkTable
from rath.session.persistence import SessionWriter, list_persisted_sessions
from rath.session.session import Session


@pytest.fixture
def old_and_new() -> tuple[UUID, UUID]:
    """A session that was begun eight days ago, and one of now."""
    ids: list[UUID] = []
    for age in (timedelta(days=8), timedelta()):
        session = Session(ChunkTable())
        with SessionWriter(session) as writer:
            pass
        header, rest = writer.path.read_text().split("\n", 1)
        dated = {**json.loads(header), "created_at": (datetime.now(UTC) - age).isoformat()}
        writer.path.write_text(f"{json.dumps(dated)}\n{rest}")
        ids.append(session.id)
    return ids[0], ids[1]


def test_dry_run_is_the_default_and_deletes_nothing(old_and_new: tuple[UUID, UUID]) -> None:
    old, new = old_and_new
    assert gc(older_than=timedelta(days=7)) == GCReport(sessions=[old], dry_run=True)
    assert {meta.id for meta in list_persisted_sessions()} == {old, new}


def test_real_run_deletes_what_it_reports(old_and_new: tuple[UUID, UUID]) -> None:
    old, new = old_and_new
    report = gc(older_than=timedelta(days=7), dry_run=False)
    assert report == GCReport(sessions=[old], dry_run=False)
    assert [meta.id for meta in list_persisted_sessions()] == [new]


def test_home_without_anything_gives_an_empty_report() -> None:
    assert gc(older_than=timedelta()) == GCReport()
