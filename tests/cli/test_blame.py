"""`rath blame`, `rath diff` and `rath fork` on stored sessions."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from rath._core.blobs import Blob
from rath.cli.terminal import Exit
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.session.record import ModelCall
from tests.cli.conftest import Rath
from tests.cli.test_explain import keep
from tests.support.history import NOTE, filtered, long_session, recall
from tests.support.session_files import placed, tool_run, with_record, worked, writing
from tests.support.sessions import run


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return keep(long_session(), tmp_path_factory.mktemp("store"))


def test_a_text_is_blamed_on_the_call_that_wrote_it(rath: Rath, asked: tuple[str, ...]) -> None:
    done = rath("blame", asked[0], "hello world", *asked[1:], ends=Exit.ANSWERED)
    assert done.stdout.startswith("first: turn 1 · row 1 of session ")
    assert "nothing that the model had read holds it" in done.stdout
    assert "then: turn 1 · file a\n" in done.stdout
    assert "made by write_workspace_file (one), done" in done.stdout


def test_what_the_model_had_read_is_told(rath: Rath, tmp_path: Path) -> None:
    out = run(["a test with tea"], user=Session.from_user_message("tea?"), recall=recall)
    done = rath("blame", str(out.id), "tea", *keep(out, tmp_path)[1:])
    said = " ".join(done.stdout.split())
    assert f"note {NOTE.uri}" in said
    assert "read by scripted" in said
    assert f"the model had read it in note {NOTE.uri}, row 0 of" in said
    done = rath("blame", str(out.id), "a test", *keep(out, tmp_path)[1:])
    assert "the model had read it in its instructions" in " ".join(done.stdout.split())


def test_many_sources_are_counted(rath: Rath, tmp_path: Path) -> None:
    session = Session.from_user_message("tea 0")
    for number in range(1, 7):
        session = session.merge(Session.from_user_message(f"tea {number}"))
    asked = keep(run(["tea"], user=session), tmp_path)
    done = rath("blame", asked[0], "tea", *asked[1:])
    assert "and 2 other places" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [("You are a test", "instructions of the agent"), ("whole", "the whole result of a tool")],
)
def test_other_places_are_named(rath: Rath, tmp_path: Path, text: str, said: str) -> None:
    out = run(["done"]).detach()
    out.add_entry(tool_run(full=Blob.from_bytes(b"the whole story")))
    rath("blame", *keep(out, tmp_path)[:1], text, "--store", str(tmp_path), out=said)


def test_the_report_of_a_check_is_named(rath: Rath, tmp_path: Path) -> None:
    out = worked(placed()).synchronize()
    verdict = out.check("tests", "true")
    alone = with_record(structs.replace(verdict, report="all is well"))
    done = rath("blame", *keep(alone, tmp_path)[:1], "all is well", "--store", str(tmp_path))
    assert "first: report of a check" in done.stdout


def test_of_many_places_the_first_ones_are_shown(rath: Rath, tmp_path: Path) -> None:
    session = Session.from_user_message("tea 0")
    for number in range(1, 23):
        session = session.merge(Session.from_user_message(f"tea {number}"))
    asked = keep(session, tmp_path)
    done = rath("blame", asked[0], "tea", *asked[1:])
    assert done.stdout.count("row 0 of session") == 20
    assert "3 other places came later" in done.stderr


def test_what_stands_nowhere_is_a_problem(rath: Rath, asked: tuple[str, ...]) -> None:
    rath("blame", asked[0], "nowhere", *asked[1:], ends=Exit.WORLD, err="stands nowhere")


def test_a_blank_text_is_a_wrong_call(rath: Rath, asked: tuple[str, ...]) -> None:
    assert rath("blame", asked[0], " ", *asked[1:]).exit_code == Exit.MISUSE


def test_blame_without_evidence_says_what_is_missing(rath: Rath, tmp_path: Path) -> None:
    bare = filtered(run(["done"]), lambda entry: not isinstance(entry, ModelCall))
    done = rath("blame", *keep(bare, tmp_path)[:1], "done", "--store", str(tmp_path), "--json")
    assert done.exit_code == Exit.MISSING
    assert json.loads(done.stdout)["missing"][0]["kind"] == "model calls"


def branches(directory: Path) -> tuple[Session, Session]:
    base = worked(placed(), writing("a", "1")).synchronize()
    left = worked(base.fork(workspace="copy"), writing("b", "left")).synchronize()
    right = worked(base.fork(workspace="copy")).synchronize()
    for session in (left, right):
        session.save(store=FileStore(directory))
    return left, right


@pytest.mark.parametrize("columns", ["60", "120"])
def test_two_sessions_are_shown_side_by_side(
    rath: Rath, tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    left, right = branches(tmp_path)
    done = rath("diff", str(left.id), str(right.id), "--store", str(tmp_path), ends=Exit.ANSWERED)
    said = done.stdout
    assert "  4 rows in common\n" in said
    assert "file a: the same in both (created a)" in said
    assert "file b: created b | untouched" in said
    assert "usd, as far as known" in said
    mark = " | " if columns == "120" else "   4 < assistant: "
    assert mark in said
    assert max(map(len, said.splitlines())) <= int(columns)


def test_rows_that_are_the_same_are_shown_once(
    rath: Rath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    one, other = run(["done"]), run(["done"])
    asked = keep(one, tmp_path)
    keep(other, tmp_path)
    done = rath("diff", asked[0], str(other.id), *asked[1:])
    assert done.stdout.count("assistant: done") == 1
    assert "   1 = assistant: done" in done.stdout


def test_a_comparison_is_json(rath: Rath, tmp_path: Path) -> None:
    left, right = branches(tmp_path)
    done = rath("diff", str(left.id), str(right.id), "--store", str(tmp_path), "--json")
    assert json.loads(done.stdout)["n_common"] == 4


def test_a_fork_is_stored_and_its_id_said(rath: Rath, tmp_path: Path) -> None:
    out = run(["done"])
    asked = keep(out, tmp_path)
    done = rath("fork", *asked, ends=Exit.ANSWERED)
    child = Session.load(UUID(done.stdout.strip()), store=FileStore(tmp_path))
    assert child.parent_session_ids == (out.id,)
    assert child.chunk_table == out.chunk_table


def test_a_fork_may_begin_at_a_row(rath: Rath, tmp_path: Path) -> None:
    asked = keep(run(["done"]), tmp_path)
    done = rath("fork", *asked, "--at", "1", "--json")
    told_ = json.loads(done.stdout)
    assert told_["n_rows"] == 1
    child = Session.load(UUID(told_["session"]), store=FileStore(tmp_path))
    assert len(child.chunk_table) == 1


def test_a_fork_at_a_row_that_there_is_not_is_a_wrong_call(rath: Rath, tmp_path: Path) -> None:
    rath("fork", *keep(run(["done"]), tmp_path), "--at", "9", ends=Exit.MISUSE)
