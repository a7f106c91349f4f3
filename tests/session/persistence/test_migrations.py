"""Older files are brought up to date while they are read."""

from __future__ import annotations

from typing import Any

import pytest

from rath.errors import PersistenceError
from rath.session.persistence.migrations import (
    CURRENT_SCHEMA_VERSION,
    register_chunk_migration,
    register_header_migration,
    upgrade_chunk,
    upgrade_header,
)

OLDEST = -1000
"""Far below any version that a file could have, so that registrations here disturb nothing."""


@pytest.mark.parametrize("version", [CURRENT_SCHEMA_VERSION, CURRENT_SCHEMA_VERSION + 1])
def test_current_and_newer_versions_cannot_be_migrated(version: int) -> None:
    with pytest.raises(ValueError, match="refusing to register"):
        register_header_migration(version, dict)
    with pytest.raises(ValueError, match="refusing to register"):
        register_chunk_migration(version, dict)


def test_current_header_stays_as_it_is() -> None:
    record = {"schema_version": CURRENT_SCHEMA_VERSION, "x": 1}
    assert upgrade_header(record) == record


def test_newer_header_is_refused() -> None:
    with pytest.raises(PersistenceError, match="newer than CURRENT_SCHEMA_VERSION"):
        upgrade_header({"schema_version": CURRENT_SCHEMA_VERSION + 1})


def test_header_without_a_step_on_its_way_is_refused() -> None:
    register_header_migration(OLDEST, lambda record: {**record, "step": 1})
    with pytest.raises(PersistenceError, match=f"from schema version {OLDEST + 1}"):
        upgrade_header({"schema_version": OLDEST})


def test_header_goes_through_every_step_in_order() -> None:
    register_header_migration(0, lambda record: {**record, "id": record["id"] + "+", "rows": []})
    upgraded = upgrade_header({"schema_version": 0, "id": "x"})
    assert upgraded == {"schema_version": CURRENT_SCHEMA_VERSION, "id": "x+"}


def test_what_version_1_did_not_know_means_nothing_in_its_files() -> None:
    header: dict[str, Any] = {
        "schema_version": 1,
        "id": "x",
        "rows": [["y", 0, 1, "z"]],
        "provider": {},
    }
    assert upgrade_header(header) == {"schema_version": CURRENT_SCHEMA_VERSION, "id": "x"}
    assert upgrade_chunk({"kind": "user", "born": "y:0"}, header_version=1) == {"kind": "user"}


def test_chunk_needs_no_step_for_versions_that_did_not_change_it() -> None:
    register_chunk_migration(OLDEST + 2, lambda record: {**record, "payload": {}})
    record = {"kind": "user"}
    assert upgrade_chunk(record, header_version=OLDEST + 3) == record
    assert upgrade_chunk(record, header_version=OLDEST) == {"kind": "user", "payload": {}}
