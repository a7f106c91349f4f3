"""`rath verify`: what is damaged, what is missing, and what is sound."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from rath.cli.terminal import Exit
from rath.errors import PersistenceError
from rath.session import user_text_chunk
from rath.session.persistence.store import StoredLog, stores
from tests.cli.conftest import Rath
from tests.support.images import picture
from tests.support.logs import LogMaker, MemoryStore
from tests.support.store_family import Family, damage, ident, save


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
