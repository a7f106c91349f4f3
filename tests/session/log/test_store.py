"""Which store a URL, the environment or a config names."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rath.config import ConfigStore
from rath.config.schema import SessionsConfig
from rath.errors import ConfigError, MissingExtra, PersistenceError, StoreNotFound, UntrustedConfig
from rath.session.log.store import find_store, portable_url
from rath.session.persistence import (
    ensure_sessions_dir,
    session_file,
    sessions_dir,
)
from rath.session.persistence.store import (
    FileStore,
    default_store,
    open_store,
    stores,
)
from rath.testing import FakeSessionStore
from tests.support import canaries
from tests.support.machine import trust


def write_config(home: Path, store: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.json").write_text(json.dumps({"sessions": {"store": store}}))


def test_a_directory_and_its_url_are_one_store(tmp_path: Path) -> None:
    store = open_store(f"files://{tmp_path}/a%20b")
    assert isinstance(store, FileStore)
    assert store.directory == tmp_path / "a b"
    assert open_store(str(tmp_path / "a b")) is store
    assert open_store(f"files://{tmp_path}/other") is not store


@pytest.mark.parametrize("url", ["files://host/sessions", "files://"])
def test_a_url_of_files_names_a_directory_of_this_machine(url: str) -> None:
    with pytest.raises(ValueError, match="names no directory of this machine"):
        open_store(url)


def test_the_environment_stands_above_the_config(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(home, f"files://{tmp_path}/config")
    assert default_store().where == str(tmp_path / "config")
    monkeypatch.setenv("OPENRATH_STORE", str(tmp_path / "env"))
    assert default_store().where == str(tmp_path / "env")


@pytest.mark.parametrize("url", ["me:swordfish@host/base", "host/base?password=swordfish"])
def test_a_password_does_not_belong_into_a_config(url: str, home: Path) -> None:
    write_config(home, f"postgres://{url}")
    with pytest.raises(ConfigError, match="holds a password") as caught:
        default_store()
    assert "swordfish" not in str(caught.value)


def test_an_untrusted_project_names_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENRATH_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    write_config(project / ".openrath", "postgres://elsewhere/database")
    for elsewhere in ("memo://elsewhere", str(tmp_path / "outside"), f"files://{tmp_path}/outside"):
        write_config(project / ".openrath", elsewhere)
        with pytest.raises(UntrustedConfig, match="store sessions elsewhere"):
            default_store()
    trust(project / ".openrath" / "config.json")
    assert default_store().where == str(tmp_path / "outside")
    write_config(project / ".openrath", str(project / "mine"))
    assert default_store().where == str(project / "mine")


def test_an_unknown_scheme_names_the_nearest() -> None:
    with pytest.raises(StoreNotFound, match="Did you mean 'postgres'") as caught:
        open_store("postgre://me:swordfish@host/database")
    assert "swordfish" not in str(caught.value)
    assert isinstance(caught.value, LookupError | PersistenceError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "psycopg"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.endswith("session.log.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r'install .*"psycopg\[binary\]'):
        open_store("postgres://no-such-host/database")


def test_a_store_of_somebody_else_is_opened_once() -> None:
    opened: list[str] = []

    def fake(url: str) -> FakeSessionStore:
        opened.append(url)
        return FakeSessionStore()

    stores.register("memo", fake)
    try:
        assert open_store("memo://x") is open_store("memo://x")
        assert open_store("MEMO://x") is not open_store("memo://y")
    finally:
        stores.unregister("memo")
    assert opened == ["memo://x", "MEMO://x", "memo://y"]


def test_a_config_without_a_store_is_saved_as_in_1_3(home: Path) -> None:
    remaining = ConfigStore()
    remaining.save()
    assert "sessions" not in json.loads(remaining.path.read_text())
    remaining.config.sessions = SessionsConfig(store="/var/lib/sessions")
    remaining.save()
    assert json.loads(remaining.path.read_text())["sessions"]["store"] == "/var/lib/sessions"
    assert ConfigStore().config.sessions.store == "/var/lib/sessions"


ID = UUID("333e789d-c4d8-493a-9b9a-7717152dccbc")


@pytest.mark.parametrize("bad", ["", "x", "../../etc/passwd", f"{ID}/../x", None, 7])
def test_what_is_no_uuid_never_becomes_a_path(bad: Any) -> None:
    with pytest.raises(ValueError, match="expected a UUID"):
        session_file(bad)


def test_the_directory_of_sessions_is_created_or_the_reason_is_named(home: Path) -> None:
    assert ensure_sessions_dir() == ensure_sessions_dir() == sessions_dir() == home / "sessions"
    sessions_dir().rmdir()
    sessions_dir().touch()
    with pytest.raises(PersistenceError, match="cannot be created"):
        ensure_sessions_dir()


def test_the_same_store_is_found_by_a_directory_and_its_url(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a b"))
    url = portable_url(store)
    assert url is not None
    assert find_store(url) is store


def test_login_and_password_are_no_part_of_the_url_of_a_store() -> None:
    login = f"postgres://{canaries.MARK}:{canaries.MARK}@db.example:5433/runs"
    store = open_store(f"{login}?schema=s&password={canaries.MARK}&sslmode=prefer")
    assert portable_url(store) == "postgres://db.example:5433/runs?schema=s&sslmode=prefer"
    assert find_store("postgres://db.example:5433/runs?schema=s&sslmode=prefer") is store
