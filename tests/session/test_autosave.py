"""Every run is recorded where that was said: by the program, the environment or a config."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from uuid import UUID

import pytest

from rath.errors import ConfigError, PersistenceError
from rath.session import Session, run_session_compress
from rath.session.autosave import autosave, is_autosaving, is_autosaving_lately, look_again
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient
from tests.support.api import default_durability, open_logs_of
from tests.support.sessions import run
from tests.support.waiting import PATIENCE


def stored() -> set[UUID]:
    open_logs_of(FileStore()).lane.put(lambda: None).result(timeout=PATIENCE)
    return set(FileStore().stamps())


def say(home: Path, **sessions: object) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.json").write_text(json.dumps({"version": 1, "sessions": sessions}))


class Clock:
    """A clock that stands still until it is moved: a busy machine may take longer than a look."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("rath.session.autosave.time", made)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "openrath-home"


def test_inside_the_block_every_run_is_recorded() -> None:
    with autosave():
        inside = run(["one"]).synchronize()
    run(["two"]).synchronize()
    assert inside.id in stored()
    assert len(stored()) == 3  # with the user's and the agent's session
    assert not is_autosaving()
    off = autosave(False)
    with off:
        assert repr(off) == "Autosave(off)"


@pytest.mark.parametrize(
    ("config", "word", "said", "is_on"),
    [
        (None, "1", None, True),
        (None, "yes", None, True),
        (True, "0", None, False),
        (None, "", None, False),
        (True, None, None, True),
        (False, None, None, False),
        (True, "1", False, False),
        (False, "0", True, True),
    ],
)
def test_the_program_stands_above_the_environment_and_that_above_the_config(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: bool | None,
    word: str | None,
    said: bool | None,
    is_on: bool,
) -> None:
    say(home, **({} if config is None else {"persist": config}))
    if word is not None:
        monkeypatch.setenv("OPENRATH_PERSIST", word)
    with nullcontext() if said is None else autosave(said):
        assert is_autosaving() is is_on
        with autosave(False):
            autosave()
            assert is_autosaving()
            autosave(False)
            assert not is_autosaving()


def test_settings_are_not_read_each_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_autosaving()
    monkeypatch.setenv("OPENRATH_PERSIST", "1")
    assert not is_autosaving_lately()
    assert is_autosaving()
    assert is_autosaving_lately()
    monkeypatch.setenv("OPENRATH_PERSIST", "0")
    clock.now += 2
    assert not is_autosaving_lately()


def test_settings_are_read_again_on_request(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENRATH_PERSIST", "1")
    assert is_autosaving_lately()
    monkeypatch.delenv("OPENRATH_PERSIST")
    look_again()
    assert not is_autosaving_lately()
    say(home, persist=True)
    look_again()
    assert is_autosaving_lately()


def test_a_config_is_looked_at_again_after_a_while(home: Path, clock: Clock) -> None:
    assert not is_autosaving()
    say(home, persist=True)
    assert not is_autosaving()
    clock.now += 2
    assert is_autosaving()


def test_every_derivation_is_stored() -> None:
    with autosave():
        base = run(["one"])
        made = [base.fork(), base.detach(), base.fork().merge(base.fork())]
        client = ScriptedClient(["short"])
        agent = Session.from_agent_prompt("Shrink.")
        made.append(run_session_compress(base, agent, agent_provider=client.provider))
        for session in made:
            session.synchronize()
    there = stored()
    for session in made:
        assert session.id in there
        assert Session.load(session.id).chunk_table == session.chunk_table


def test_a_pending_derivation_is_stored_when_its_content_is_there() -> None:
    go = threading.Event()
    with autosave():
        fork = run([lambda _: "one" if go.wait(PATIENCE) else "late"]).fork()
    assert fork.id not in stored()
    go.set()
    fork.synchronize()
    assert fork.id in stored()


def test_a_derivation_of_a_failed_run_is_not_stored() -> None:
    with autosave():
        fork = run([ValueError("no")]).fork()
    with pytest.raises(ValueError, match="no"):
        fork.synchronize()
    assert fork.id not in stored()


def test_a_derivation_that_cannot_be_stored_is_told(caplog: pytest.LogCaptureFixture) -> None:
    FileStore().directory.parent.mkdir(parents=True)
    FileStore().directory.write_text("no directory")
    with autosave():
        fork = Session.from_user_message("hi").fork()
    with pytest.raises(PersistenceError, match="Not a directory"):
        stored()
    assert len(fork.chunk_table) == 1
    told = [record for record in caplog.records if str(fork.id) in record.getMessage()]
    assert [record.levelno for record in told] == [logging.ERROR]


def test_a_store_that_is_not_known_is_told_and_keeps_nobody_from_a_fork(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENRATH_STORE", "nowhere://x")
    with autosave():
        fork = Session.from_user_message("hi").fork()
    assert fork.text() is None
    assert "nowhere" in caplog.text


def test_the_environment_says_how_carefully(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    say(home, durability="none")
    assert default_durability() == "none"
    monkeypatch.setenv("OPENRATH_DURABILITY", "row")
    assert default_durability() == "row"


@pytest.mark.parametrize("where", ["env", "config"])
def test_unknown_durability_is_named(
    monkeypatch: pytest.MonkeyPatch, home: Path, where: str
) -> None:
    if where == "env":
        monkeypatch.setenv("OPENRATH_DURABILITY", "often")
    else:
        say(home, durability="often")
    with pytest.raises(ConfigError, match=r"unknown durability 'often' in .*expected one"):
        run(["done"], persist=True)
