"""`rath memory`: what it shows, changes and refuses."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

import rath.memory
from rath.cli import memory as memory_verbs
from rath.memory import (
    MemoryFindResult,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryResult,
    MemoryStore,
)
from rath.memory.adapters.local.catalog import SMALL_STORE
from rath.memory.notes import note_op
from tests.cli.conftest import Rath

TEA = "The guest drinks tea."
COFFEE = "The neighbour drinks coffee."


def added(rath: Rath, *args: str) -> str:
    """The URI of a note that the command has added."""
    done = rath("memory add", *args, ends=0)
    return done.stdout.strip()


def own_store() -> MemoryStore:
    """The store of the project, open."""
    return rath.memory.get("local").open()


def asked(*ops: MemoryOp) -> Sequence[MemoryResult]:
    """What the store of the project answers a program."""
    with own_store() as store:
        return [store.dispatch(op) for op in ops]


def test_a_note_is_added_found_displayed_and_listed(rath: Rath) -> None:
    uri = added(rath, TEA)
    rath("memory find tea", out=(uri, TEA))
    assert rath("memory show", uri).stdout == f"{TEA}\n"
    assert uri in rath("memory ls").stdout


def test_the_command_and_a_program_share_the_store_of_the_project(rath: Rath) -> None:
    added(rath, TEA)
    (found,) = asked(MemoryOpFind("tea"))
    assert isinstance(found, MemoryFindResult)
    assert [hit.snippet for hit in found.hits] == [TEA]


def test_the_scheme_of_a_uri_may_be_left_out(rath: Rath) -> None:
    uri = added(rath, TEA, "--uri", "user/facts/tea")
    assert uri == "memory://user/facts/tea"
    assert rath("memory show user/facts/tea").stdout == f"{TEA}\n"


def test_stdin_is_a_note(rath: Rath) -> None:
    done = rath("memory add -", input="from a pipe\n")
    assert rath("memory show", done.stdout.strip()).stdout == "from a pipe\n"


@pytest.mark.parametrize(
    "verb", [("ls",), ("find", "tea"), ("show", "user/x"), ("forget", "user/x"), ("rebuild",)]
)
def test_only_adding_makes_a_store(rath: Rath, tmp_path: Path, verb: tuple[str, ...]) -> None:
    rath("memory", *verb, ends=1, err="nothing is remembered here yet")
    assert not list(tmp_path.rglob("index.sqlite"))


@pytest.mark.parametrize("verb", [("ls",), ("find", "tea"), ("rebuild",)])
def test_a_directory_that_is_no_store_is_left_as_it_is(
    rath: Rath, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    other = tmp_path / "photos"
    other.mkdir()
    rath("memory", *verb, "--path", str(other), ends=1, err="there is no store")
    assert list(other.iterdir()) == []


def test_notes_that_were_put_there_by_hand_are_a_store(rath: Rath, tmp_path: Path) -> None:
    place = tmp_path / "notes" / "user"
    place.mkdir(parents=True)
    (place / "drink.md").write_text(TEA)
    assert TEA in rath("memory find tea --path", str(place.parent)).stdout


def test_a_listing_can_be_of_a_part_and_of_one_level(rath: Rath) -> None:
    added(rath, TEA, "--uri", "user/facts/tea")
    added(rath, COFFEE, "--uri", "agent/facts/coffee")
    part = rath("memory ls user --depth 0")
    assert part.stdout == "memory://user/facts/\n"
    assert "0 files in" in part.stderr


def test_a_search_can_be_of_a_part(rath: Rath) -> None:
    added(rath, TEA, "--uri", "user/facts/tea")
    added(rath, COFFEE, "--uri", "agent/facts/coffee")
    assert "coffee" not in rath("memory find drinks --in user").stdout
    assert len(rath("memory find drinks -k 1").stdout.splitlines()) == 1


def test_an_edit_by_hand_is_found_in_a_large_store(rath: Rath, tmp_path: Path) -> None:
    notes = [tmp_path / f"large/user/{n % 40}/{n}.md" for n in range(SMALL_STORE * 2)]
    for note in notes:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(TEA)
    store = ("--path", str(tmp_path / "large"))
    for _ in range(2):  # young directories are read once more
        rath("memory find tea", *store)
    for note in notes[:40]:
        note.write_text(COFFEE)
        os.utime(note, (1, 1))
    found = rath("memory find coffee -k 99", *store)
    assert len(found.stdout.splitlines()) == 40


def test_what_is_not_found_is_reported(rath: Rath) -> None:
    added(rath, TEA)
    rath("memory find aeroplane", ends=0, out="", err="nothing in the memory fits 'aeroplane'")


def test_where_a_note_comes_from_and_when_it_expires_stand_next_to_it(rath: Rath) -> None:
    asked(note_op(TEA, session_id="s-1", rows=(2, 3), ttl=3600))
    (hit,) = json.loads(rath("memory find tea --json").stdout)["hits"]
    shown = rath("memory show", hit["uri"])
    assert shown.stdout == f"{TEA}\n"
    assert "from session s-1, rows 2, 3" in shown.stderr
    assert "expires at 20" in shown.stderr
    read = json.loads(rath("memory show", hit["uri"], "--json").stdout)
    assert read["sources"][0]["rows"] == [2, 3]
    assert read["expires_at"] > 0


def test_a_note_can_be_preserved_for_a_time(rath: Rath) -> None:
    uri = added(rath, TEA, "--ttl", "30d")
    assert "expires at" in rath("memory show", uri).stderr


def test_a_note_for_a_time_replaces_what_stands_in_its_place(rath: Rath) -> None:
    place = added(rath, TEA, "--uri", "user/drink")
    assert added(rath, COFFEE, "--uri", "user/drink", "--ttl", "30d") == place
    shown = rath("memory show", place)
    assert shown.stdout == f"{COFFEE}\n"
    assert "expires at" in shown.stderr


@pytest.mark.parametrize("ttl", ["soon", "30", "-1d", "d"])
def test_what_is_no_time_is_refused(rath: Rath, ttl: str) -> None:
    rath("memory add", TEA, f"--ttl={ttl}", ends=2, err="as 30d")


@pytest.mark.parametrize("ttl", ["0s", "0.0d", "10000000w", f"{'9' * 400}w"])
def test_a_time_that_cannot_be_is_refused(rath: Rath, ttl: str) -> None:
    rath("memory add", TEA, "--ttl", ttl, ends=2, err="--ttl")


def test_a_note_that_is_not_utf8_is_displayed_as_far_as_that_goes(rath: Rath) -> None:
    uri = added(rath, TEA, "--uri", "user/drink")
    with own_store() as store:
        Path(store.handle, "user", "drink.md").write_bytes(b"Tee f\xfcr zwei")
    assert rath("memory show", uri).stdout == "Tee f\ufffdr zwei\n"


def test_a_note_can_be_forgotten(rath: Rath) -> None:
    uri = added(rath, TEA)
    assert rath("memory forget", uri).stdout == f"{uri}\n"
    rath("memory show", uri, ends=1, err="not_found")


def test_a_directory_is_forgotten_only_where_that_is_meant(rath: Rath) -> None:
    uri = added(rath, TEA, "--uri", "user/facts/tea")
    rath("memory forget user/facts", ends=1, err="--recursive")
    assert rath("memory forget -r user/facts", input="n\n").exit_code == 1
    assert rath("memory show", uri).exit_code == 0
    assert uri in rath("memory forget -r user/facts", input="y\n").stdout
    assert rath("memory show", uri).exit_code == 1


def test_what_came_from_a_session_can_be_erased(rath: Rath) -> None:
    asked(MemoryOpCommit("s-1", ({"role": "user", "content": TEA},)))
    done = rath("memory forget --session s-1 --yes --json")
    assert len(json.loads(done.stdout)["forgotten"]) == 1
    rath("memory forget --session s-1 --yes", err="nothing came from session s-1")


@pytest.mark.parametrize("text", ["两\u3000字", "12\xa0km", "👩\u200d💻"])
def test_spaces_and_joiners_of_any_script_are_displayed(rath: Rath, text: str) -> None:
    uri = added(rath, text)
    assert rath("memory show", uri).stdout == f"{text}\n"


def test_a_tab_is_displayed_as_blanks(rath: Rath) -> None:
    uri = added(rath, "a\tb")
    assert rath("memory show", uri).stdout.split() == ["a", "b"]


def test_commands_to_a_terminal_are_written_out_in_a_table(rath: Rath) -> None:
    added(rath, "heron 👩\u200d💻 \x1b[0m")
    assert "heron 👩\u200d💻 \\x1b[0m" in rath("memory find heron").stdout


def test_an_index_that_somebody_holds_is_a_problem_in_words(
    rath: Rath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_in_vain(root: Path) -> None:
        raise sqlite3.OperationalError("database is locked")

    added(rath, TEA)
    # The wait itself takes five seconds.
    monkeypatch.setattr(memory_verbs, "rebuild_index", wait_in_vain)
    rath("memory rebuild", ends=1, err="cannot be built again: database is locked")


def test_an_index_can_be_built_again(rath: Rath) -> None:
    added(rath, TEA)
    assert rath("memory rebuild").stdout == "1 file indexed, 0 entries had been wrong\n"
    report = json.loads(rath("memory rebuild --json").stdout)
    assert (report["files"], report["wrong"]) == (1, 0)


def test_a_store_elsewhere_and_a_namespace_are_stores_of_their_own(
    rath: Rath, tmp_path: Path
) -> None:
    place = str(tmp_path / "notes")
    added(rath, TEA, "--path", place)
    added(rath, COFFEE, "--namespace", "team")
    assert TEA in rath("memory find drinks --path", place).stdout
    assert COFFEE in rath("memory find drinks --namespace team").stdout
    assert rath("memory find drinks").exit_code == 1


def test_a_memory_of_the_config_has_its_name(rath: Rath, tmp_path: Path) -> None:
    place = tmp_path / "notes"
    rath("config set memory.providers.mine.path", str(place))
    added(rath, TEA, "--memory", "mine")
    assert list(place.rglob("*.md"))
    assert TEA in rath("memory find tea -m mine").stdout


def test_options_that_name_two_stores_are_refused(rath: Rath) -> None:
    rath("memory ls --path x --namespace y", ends=2, err="--path names a store by itself")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("add", "  "), "the note is empty"),
        (("forget",), "either URIs or --session"),
        (("forget", "user/x", "--session", "s"), "either URIs or --session"),
        (("ls", "-m", "no-such"), "no-such"),
        (("add", TEA, "--scope", "nowhere"), "nowhere"),
    ],
)
def test_misuse_is_reported(rath: Rath, args: tuple[str, ...], said: str) -> None:
    done = rath("memory", *args)
    assert done.exit_code in {1, 2}
    assert said in done.stderr


def test_a_note_writes_no_commands_to_the_terminal(rath: Rath) -> None:
    uri = added(rath, "red \x1b[31malert")
    assert "\x1b" not in rath("memory show", uri).stdout
    assert "\x1b" not in rath("memory find alert").stdout


@pytest.mark.parametrize("verb", [("ls",), ("find", "x"), ("forget", "user/\x1b[31mno")])
def test_an_address_writes_no_commands_to_the_terminal(rath: Rath, verb: tuple[str, ...]) -> None:
    added(rath, "x", "--uri", "user/\x1b[31mred")
    done = rath("memory", *verb)
    assert "red" in done.stdout + done.stderr or "no" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_deleted_notes_are_reported_when_the_rest_fails(rath: Rath) -> None:
    uri = added(rath, TEA, "--uri", "user/a")
    rath("memory forget user/a user/b", ends=1, err=f"already forgotten: {uri}")


def test_a_time_that_no_calendar_has_is_displayed(rath: Rath, tmp_path: Path) -> None:
    added(rath, TEA, "--uri", "user/a", "--ttl", "1d", "--path", str(tmp_path / "notes"))
    about = tmp_path / "notes" / "user" / "a.meta.json"
    told = json.loads(about.read_text())
    about.write_text(json.dumps({**told, "expires_at": "9999-12-31T23:59:59-23:59"}))
    shown = rath("memory show user/a --path", str(tmp_path / "notes"))
    assert (shown.exit_code, shown.stdout) == (0, f"{TEA}\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_made_is_reported(rath: Rath, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert rath("memory add", TEA, "--path", str(tmp_path / "x")).exit_code == 1
