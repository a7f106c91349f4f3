"""`rath rm` and `rath prune`: what goes to the trash, and what comes back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rath.cli.terminal import Exit
from rath.session import Session
from rath.session.log.index import StoreIndex
from rath.session.persistence.store import FileStore
from tests.cli.conftest import Rath
from tests.support.logs import LogMaker
from tests.support.store_family import Family, ident, save


def test_a_session_goes_to_the_trash_and_comes_back(rath: Rath, family: Family) -> None:
    user = family.user.session
    result = rath("rm 1111")
    assert (result.exit_code, result.stdout) == (Exit.ANSWERED, f"moved to the trash: {user}\n")
    assert result.stderr == f"note: `rath rm --restore {user}` brings it back\n"
    assert "11111111" not in rath("ls").stdout
    restored = rath("rm --restore", str(user))
    assert (restored.exit_code, restored.stdout) == (Exit.ANSWERED, f"brought back: {user}\n")
    assert "11111111" in rath("ls").stdout


def test_what_was_made_of_it_loads_as_before(rath: Rath, family: Family) -> None:
    before = Session.load(family.plan.session).chunk_table
    assert rath("rm 1111").exit_code == Exit.ANSWERED
    assert Session.load(family.plan.session).chunk_table == before


def test_several_at_once(rath: Rath, family: Family) -> None:
    result = rath("rm 5555 3333 3333", ends=Exit.ANSWERED)
    assert len(result.stdout.splitlines()) == 2
    assert "brings them back" in result.stderr


def test_where_one_is_not_there_none_goes(rath: Rath, family: Family) -> None:
    assert rath("rm 5555 9999").exit_code == Exit.WORLD
    assert "55555555" in rath("ls").stdout


def test_one_that_is_being_written_stays(rath: Rath, sessions: Path) -> None:
    log = LogMaker().begun()
    writer = FileStore(sessions).create(log.session)
    writer.append(log.data)
    result = rath("rm", str(log.session))
    writer.abandon()
    assert result.exit_code == Exit.WORLD
    assert "is being written" in result.stderr


def test_another_store_is_named_in_the_way_back(rath: Rath, tmp_path: Path) -> None:
    save(tmp_path / "other", log := LogMaker().ended())
    result = rath("rm", str(log.session), "--store", str(tmp_path / "other"))
    assert f"--restore {log.session} --store {tmp_path / 'other'}`" in result.stderr


@pytest.mark.parametrize(("text", "status"), [("1111", Exit.MISUSE), (str(ident(9)), Exit.WORLD)])
def test_only_what_is_in_the_trash_comes_back(
    rath: Rath, family: Family, text: str, status: Exit
) -> None:
    rath("rm --restore", text, ends=status, out="")


@pytest.fixture
def aged(sessions: Path) -> tuple[LogMaker, LogMaker]:
    """An old session and a new one."""
    now = datetime.now(UTC)
    old = LogMaker(ident(1), at=now - timedelta(days=40)).said("old words").ended()
    new = LogMaker(ident(2), at=now - timedelta(days=2)).said("new words").ended()
    save(sessions, old, new)
    return old, new


def test_a_dry_run_says_what_would_go(rath: Rath, aged: tuple[LogMaker, LogMaker]) -> None:
    result = rath("prune --older-than 30d --dry-run", ends=Exit.ANSWERED)
    (line,) = result.stdout.splitlines()
    assert line.startswith("11111111  ")
    assert line.endswith("old words")
    assert result.stderr == "note: 1 session would go to the trash\n"
    assert "11111111" in rath("ls").stdout


def test_what_is_old_goes_and_can_come_back(rath: Rath, aged: tuple[LogMaker, LogMaker]) -> None:
    old, new = aged
    result = rath("prune --older-than 30d --json")
    assert json.loads(result.stdout) == {"dry_run": False, "sessions": [str(old.session)]}
    assert "1 session moved to the trash" in result.stderr
    assert str(new.session)[:8] in (listed := rath("ls").stdout)
    assert "11111111" not in listed
    assert rath("rm --restore", str(old.session)).exit_code == Exit.ANSWERED


@pytest.mark.parametrize("columns", [20, 30])
def test_no_id_is_cut_on_a_narrow_terminal(
    rath: Rath, aged: tuple[LogMaker, LogMaker], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    # A session that no index knows is named by its whole id.
    monkeypatch.setattr(StoreIndex, "summaries", lambda _: ())
    monkeypatch.setenv("COLUMNS", str(columns))
    rath("prune --older-than 30d --dry-run", ends=Exit.ANSWERED, out=f"{aged[0].session}\n")


def test_nothing_is_old(rath: Rath, aged: tuple[LogMaker, LogMaker]) -> None:
    result = rath("prune --older-than 52w")
    assert (result.stdout, result.stderr) == ("", "note: 0 sessions moved to the trash\n")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "Missing option '--older-than'"),
        (("--older-than", "old"), "--older-than 'old' is no time"),
        (("--older-than", "99999999999w"), "is too long"),
    ],
)
def test_an_age_is_needed(rath: Rath, args: tuple[str, ...], problem: str) -> None:
    rath("prune", *args, ends=Exit.MISUSE, out="", err=problem)
