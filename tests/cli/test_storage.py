"""`rath rm`, `prune`, `verify`, `export` and `import`: the stored form of sessions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from rath.cli.terminal import Exit
from rath.errors import PersistenceError
from rath.session import Session, user_text_chunk
from rath.session.log.index import StoreIndex
from rath.session.persistence.store import FileStore, StoredLog, stores
from tests.cli.conftest import Rath
from tests.support.images import picture
from tests.support.logs import LogMaker, MemoryStore
from tests.support.store_family import Family, damage, ident, save


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
    def nothing(_: StoreIndex) -> tuple[()]:
        return ()

    # A session that no index knows is named by its whole id.
    monkeypatch.setattr(StoreIndex, "summaries", nothing)
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


def test_a_sound_session(rath: Rath, family: Family) -> None:
    result = rath("verify 33333333", ends=Exit.ANSWERED, out="")
    assert result.stderr == "note: sound: 1 session with all it came from, 15 lines\n"


def test_all_sessions_of_a_store(rath: Rath, family: Family) -> None:
    result = rath("verify --all", ends=Exit.ANSWERED)
    lines = result.stdout.splitlines()
    assert {line.split()[1] for line in lines} == {"44444444", "77777777"}
    assert all(line.startswith("note") and "the run has not ended" in line for line in lines)


def test_each_problem_is_named_once(rath: Rath, family: Family) -> None:
    damage(family.directory, family.user)
    result = rath("verify --all", ends=Exit.DAMAGED)
    said = [line for line in result.stdout.splitlines() if "checksum does not fit" in line]
    (line,) = [line for line in said if line.startswith("damaged  11111111")]
    assert f"{family.user.session}.jsonl:2" in line


def test_a_finished_log_that_lost_its_end_is_damaged_and_not_resumed(
    rath: Rath, sessions: Path
) -> None:
    log = LogMaker().begun().said("send it").intended("a").ran("a").ended()
    save(sessions, log)
    assert rath("verify", str(log.session)).exit_code == Exit.ANSWERED
    file = sessions / f"{log.session}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for n_lines in range(1, len(lines)):
        file.write_bytes(b"".join(lines[:n_lines]))
        result = rath("verify", str(log.session))
        assert (result.exit_code, "what followed was cut off" in result.stdout) == (4, True)
        resumed = rath("resume", str(log.session), "nothing:needed")
        assert (resumed.exit_code, "what followed was cut off" in resumed.stderr) == (4, True)


def test_what_is_missing_ends_with_three(rath: Rath, sessions: Path) -> None:
    log = LogMaker().row(user_text_chunk("look", images=[picture()])).ended()
    save(sessions, log)
    assert rath("verify", str(log.session)).exit_code == Exit.ANSWERED
    (digest,) = log.blobs
    (sessions / "blobs" / digest).unlink()
    rath("verify", str(log.session), ends=Exit.MISSING, out=digest, err="something is missing")


def test_json(rath: Rath, family: Family) -> None:
    damage(family.directory, family.user)
    told = json.loads(rath("verify 2222 --json").stdout)
    assert told["sessions"] == [str(family.plan.session)]
    (problem,) = [p for p in told["problems"] if p["severity"] == "damaged" and p["kind"] == "line"]
    assert problem["session"] == str(family.user.session)
    assert set(problem) == {"severity", "kind", "session", "text"}


def test_sessions_that_came_from_one_another_are_looked_at_too(rath: Rath, sessions: Path) -> None:
    one, other = LogMaker(), LogMaker()
    first = LogMaker(one.session, parents=(other.session,)).ended()
    save(sessions, first, LogMaker(other.session, parents=(one.session,)).ended())
    rath("verify --all", ends=Exit.DAMAGED, out="builds on a session that builds on itself")


class Unreadable(MemoryStore):
    """A store that has lost one of its logs."""

    def read(self, session: UUID) -> StoredLog | None:
        if session == ident(1):
            raise PersistenceError("the disk is gone")
        return super().read(session)


def test_a_log_that_cannot_be_read_does_not_hide_the_others(rath: Rath) -> None:
    store = Unreadable().put(LogMaker(ident(1)), LogMaker(ident(2)).ended())
    store.put_bytes(ident(3), b"nonsense\n")
    url = "unreadable" + ident(1).hex
    stores.register(url, lambda _: store, replace=True)
    result = rath("verify --all --store", f"{url}://", ends=Exit.DAMAGED)
    assert "damaged  11111111  line: the disk is gone" in result.stdout
    assert "damaged  33333333  line: " in result.stdout
    assert "3 sessions with all they came from" in result.stderr


@pytest.mark.parametrize("args", [(), ("1111", "--all")])
def test_it_takes_one_session_or_all(rath: Rath, family: Family, args: tuple[str, ...]) -> None:
    rath("verify", *args, ends=Exit.MISUSE, out="", err="expected one of SESSION and --all")


def test_a_session_goes_to_another_store(rath: Rath, family: Family, tmp_path: Path) -> None:
    file, there = tmp_path / "packed.zip", str(tmp_path / "there")
    result = rath("export 33333333", str(file), ends=Exit.ANSWERED, out="", err="sessions in all")
    result = rath("import", str(file), "--store", there, ends=Exit.ANSWERED)
    (ident,) = result.stdout.split()
    assert ident.startswith("33333333")
    assert rath("verify", ident, "--store", there).exit_code == Exit.ANSWERED
    log = family.directory / f"{ident}.jsonl"
    assert (Path(there) / log.name).read_bytes() == log.read_bytes()
    rath("import", str(file), "--store", there, err="0 sessions added, 0 grown")


def test_a_file_that_is_there_is_replaced_only_by_force(
    rath: Rath, family: Family, tmp_path: Path
) -> None:
    file = tmp_path / "packed.zip"
    file.write_text("mine")
    result = rath("export 33333333", str(file))
    assert (result.exit_code, file.read_text()) == (Exit.MISUSE, "mine")
    assert rath("export 33333333", str(file), "--force").exit_code == Exit.ANSWERED
    assert file.read_bytes() != b"mine"


def test_a_damaged_file_is_refused_by_name(rath: Rath, family: Family, tmp_path: Path) -> None:
    file, there = tmp_path / "packed.zip", tmp_path / "there"
    rath("export 33333333", str(file))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    rath("import", str(file), "--store", str(there), ends=Exit.DAMAGED, err="packed.zip:")
    assert not list(there.glob("*.jsonl"))


def test_a_damaged_session_is_not_exported(rath: Rath, family: Family, tmp_path: Path) -> None:
    damage(family.directory, family.user)
    rath("export 33333333", str(tmp_path / "packed.zip"), ends=Exit.DAMAGED)
    assert not (tmp_path / "packed.zip").exists()


def test_what_the_store_lacks_of_a_session_is_named(
    rath: Rath, family: Family, tmp_path: Path
) -> None:
    (family.directory / f"{family.user.session}.jsonl").unlink()
    result = rath("export 33333333", str(tmp_path / "packed.zip"), ends=Exit.MISSING)
    assert str(family.user.session) in result.stderr
    assert (tmp_path / "packed.zip").exists()


def test_a_file_that_is_not_there(rath: Rath, tmp_path: Path) -> None:
    result = rath("import", str(tmp_path / "none"))
    assert (result.exit_code, "bundle not found" in result.stderr) == (Exit.WORLD, True)


def test_garbage_of_all_planes_is_listed_and_removed_after_a_question(
    rath: Rath, aged: tuple[LogMaker, LogMaker]
) -> None:
    old, new = aged
    told = rath("gc --older-than 30d --dry-run", ends=Exit.ANSWERED, err="1 item would be removed")
    assert told.stdout == f"session  {old.session}\n"
    rath("gc --older-than 30d", input="n\n", ends=Exit.WORLD, err="nothing is removed")
    assert set(rath("ls").stdout.split()) >= {"11111111", "22222222"}
    gone = json.loads(rath("gc --older-than 30d --yes --json", ends=Exit.ANSWERED).stdout)
    assert (gone["sessions"], gone["dry_run"]) == ([str(old.session)], False)
    assert rath("ls").stdout.startswith(str(new.session)[:8])
    assert "11111111" not in rath("ls").stdout
