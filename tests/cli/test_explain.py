"""`rath explain` and `rath blame`: questions to a stored session."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from rath import flow
from rath._core.blobs import Blob
from rath.cli.terminal import Exit
from rath.errors import ProviderServerError
from rath.llm import Provider
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.session.questions import NEEDS, Question
from rath.session.record import Decision, Interrupt, ModelCall, Operation, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.cli.conftest import Rath
from tests.support import anthropic_replies, chat_replies
from tests.support.api import Entry
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer
from tests.support.evidence import answer, priced_client, tokens
from tests.support.history import NOTE, filtered, long_session, recall, without
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.session_files import created, placed, tool_run, with_record, worked, writing
from tests.support.sessions import FunctionTool, run

V1 = Path(__file__).parents[1] / "data" / "v1"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Path]:
    """A session with a long way behind it, and the directory of its store."""
    directory = tmp_path_factory.mktemp("store")
    session = long_session()
    session.save(store=FileStore(directory))
    return session, directory


def keep(session: Session, directory: Path) -> tuple[str, ...]:
    """Store a session, and return how a verb is told which one it is."""
    session.synchronize().save(store=FileStore(directory))
    return str(session.id), "--store", str(directory)


def test_without_a_flag_all_five_are_answered_in_brief(
    rath: Rath, stored: tuple[Session, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, directory = stored
    monkeypatch.setenv("COLUMNS", "60")
    done = rath("explain", str(session.id)[:8], "--store", str(directory), ends=Exit.ANSWERED)
    lines = done.stdout.splitlines()
    assert lines[0] == f"session {str(session.id)[:8]}, 2 rows"
    assert "seen: 9 model calls, 9 requests proved" in lines
    assert "provider: scripted (9); " in done.stdout
    assert "where: 4 tool runs (4 done)" in lines
    assert "changed: 3 files" in lines
    assert "origin: 11 sessions, 2 rows (1 by summary," in done.stdout
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("seen", ["request proved", f"note {NOTE.uri} (0.75): {NOTE.text}", "question: "]),
        ("provider", ["turn 1 · turn · scripted · done", "together: 9 model calls"]),
        ("where", ["check · run_shell_command", "turn 3 · write_workspace_file · done"]),
        ("changed", ["created a by write_workspace_file (one)", "+hello", "check tests: "]),
        ("origin", ["in place of 10 rows", "1 selection by a model", "born "]),
    ],
)
def test_a_question_is_answered_in_full(
    rath: Rath, stored: tuple[Session, Path], question: str, said: list[str]
) -> None:
    session, directory = stored
    done = rath("explain", str(session.id), f"--{question}", "--store", str(directory))
    assert done.exit_code == Exit.ANSWERED, done.output
    for text in said:
        assert text in done.stdout


def test_a_turn_is_displayed_with_its_messages(rath: Rath, stored: tuple[Session, Path]) -> None:
    session, directory = stored
    done = rath("explain", str(session.id), "--seen", "--turn", "2", "--store", str(directory))
    assert "  system:\n    You are a test.\n" in done.stdout
    assert "tool write_workspace_file: " in done.stdout
    assert '  calls {"id": "one"' in done.stdout.replace("    calls", "  calls")


def test_a_turn_of_anthropic_is_displayed_with_its_instructions(rath: Rath, tmp_path: Path) -> None:
    with ChatServer() as server:
        server.queue(anthropic_replies.message(anthropic_replies.text("yes")))
        provider = Provider(
            provider_kind="anthropic", base_url=server.base_url, api_key=KEY, model="m"
        )
        asked = keep(run([], agent_provider=provider), tmp_path)
    done = rath("explain", *asked, "--seen", "--turn", "1", out="  system:\n    You are a test.\n")
    assert '  user:\n    [{"type": "text", "text": "go"}]\n' in done.stdout


def test_several_flags_answer_several_questions_as_json(
    rath: Rath, stored: tuple[Session, Path]
) -> None:
    session, directory = stored
    done = rath(
        "explain", str(session.id), "--where", "--seen", "--json", "--store", str(directory)
    )
    assert set(json.loads(done.stdout)) == {"session", "seen", "where"}


def test_a_turn_that_there_is_not_is_a_wrong_call(rath: Rath, stored: tuple[Session, Path]) -> None:
    session, directory = stored
    done = rath("explain", str(session.id), "--turn", "99", "--store", str(directory))
    assert done.exit_code == Exit.MISUSE
    assert "turns 1 to 8" in done.stderr


@pytest.mark.parametrize("question", NEEDS)
def test_missing_evidence_is_named_and_the_rest_is_displayed(
    rath: Rath, question: Question, tmp_path: Path
) -> None:
    kind = NEEDS[question][0]
    done = rath("explain", *keep(without(long_session(), kind), tmp_path), f"--{question}")
    assert done.exit_code == Exit.MISSING, done.output
    assert f"evidence is missing: {kind} (" in done.stderr
    assert done.stdout or question == "provider"


@pytest.mark.parametrize("question", NEEDS)
@pytest.mark.parametrize("name", ["plain", "tools", "merged"])
def test_a_session_of_version_1_has_no_record(rath: Rath, name: str, question: Question) -> None:
    done = rath("explain", str(V1 / f"{name}.jsonl"), f"--{question}", ends=Exit.MISSING)
    assert f"evidence is missing: {', '.join(NEEDS[question])} (" in done.stderr
    assert "version 1" in done.stderr


def test_a_damaged_log_is_named(rath: Rath, tmp_path: Path) -> None:
    asked = keep(run(["done"]), tmp_path)
    path = tmp_path / f"{asked[0]}.jsonl"
    path.write_bytes(path.read_bytes().replace(b"done", b"dune"))
    rath("explain", *asked, ends=Exit.DAMAGED, err="checksum")


def test_a_session_in_which_nothing_happened_is_explained(rath: Rath, tmp_path: Path) -> None:
    asked = keep(Session.from_user_message("hello"), tmp_path)
    assert "no model" in rath("explain", *asked).stdout
    full = rath("explain", *asked, "--seen", "--provider", "--where", "--changed", "--origin")
    assert full.exit_code == Exit.ANSWERED
    assert "no model was asked\n" in full.stdout
    assert "no tool ran\n" in full.stdout


def test_who_answered_is_reported_in_full(rath: Rath, tmp_path: Path) -> None:
    with ChatServer() as server:
        server.queue(
            chat_replies.status_error(503, "later", headers={"retry-after": "0"}),
            chat_replies.completion("yes", usage=chat_replies.usage(3, 4)),
        )
        provider = Provider(base_url=server.base_url, api_key=KEY, model="m")
        out = run([], agent_provider=provider, on_event=None)
        asked = keep(out, tmp_path)
    done = rath("explain", *asked, "--provider")
    said = " ".join(done.stdout.split())
    for text in (
        "endpoint: http://127.0.0.1",
        "try 1: failed with status 503",
        "try 2: answered",
        "key: call ",
        "settings: model from call, base_url from call, api_key from call",
        "tokens: 3 in, 4 out",
        "finished: stop",
    ):
        assert text in said


def test_a_price_a_fallback_and_an_error_are_reported(rath: Rath, tmp_path: Path) -> None:
    def down(_: object) -> Says:
        raise ProviderServerError("down", status=503)

    priced = priced_client([answer("yes", tokens(100, 10))])
    done = rath("explain", *keep(run([], agent_provider=priced.provider), tmp_path), "--provider")
    assert "US dollars (genai-prices" in " ".join(done.stdout.split())
    first, second = OfflineVendor(down), OfflineVendor(lambda _: Says("done"))
    provider = replace(first.provider, retry_max_attempts=1, fallbacks=[second.provider])
    fell = rath("explain", *keep(run([], agent_provider=provider), tmp_path), "--provider")
    said = " ".join(fell.stdout.split())
    assert "error: ProviderServerError: down" in said
    assert f"in place of {first.provider.provider_kind}" in said
    assert "unpriced" in said


def test_a_request_that_cannot_be_proved_says_why(rath: Rath, tmp_path: Path) -> None:
    vendor = OfflineVendor(lambda _: Says("done"))
    asked = keep(run([], agent_provider=vendor.provider), tmp_path)
    done = rath("explain", *asked, "--seen")
    assert "not proved: it was written by" in " ".join(done.stdout.split())


def test_a_request_with_another_sha256_is_displayed_in_brief(rath: Rath, tmp_path: Path) -> None:
    out = run(["done"]).synchronize()
    other = Session(out.chunk_table, id=out.id)
    other.add_entry(*map(with_other_digest, out.record))
    done = rath("explain", *keep(other, tmp_path))
    assert "has another sha256" in " ".join(done.stdout.split())


def with_other_digest(entry: Entry) -> Entry:
    """Return an entry; a call of a model as if another request had been sent."""
    if not isinstance(entry, ModelCall):
        return entry
    assert entry.seen is not None
    return structs.replace(entry, seen=structs.replace(entry.seen, request_digest="0" * 64))


def test_doubts_about_files_are_reported(rath: Rath, tmp_path: Path) -> None:
    unsure = tool_run(
        created("a", b"1", attribution="window"), effect_gaps=("it was not looked at",)
    )
    done = rath("explain", *keep(with_record(unsure), tmp_path), "--changed")
    said = " ".join(done.stdout.split())
    assert "created a (window) by edit (a)" in said
    assert "unsure: a changed while a call ran" in said
    assert "gap: edit (a): it was not looked at" in said


def test_what_a_merge_left_open_is_reported(rath: Rath, tmp_path: Path) -> None:
    base = worked(placed(), writing("a", "1")).synchronize()
    sides = [worked(base.fork(workspace="copy"), writing("a", each)) for each in ("2", "3")]
    merge = sides[0].merge(sides[1], files="three-way")
    done = rath("explain", *keep(merge, tmp_path), "--changed")
    assert "conflict: a (content); the first side's was kept" in " ".join(done.stdout.split())
    lost = Session(merge.chunk_table, id=merge.id)
    lost.add_entry(
        *(
            structs.replace(entry, theirs=None, n_ours=1)
            if isinstance(entry, Operation) and entry.kind == "merge"
            else entry
            for entry in merge.record
        )
    )
    done = rath("explain", *keep(lost, tmp_path / "lost"), "--changed")
    assert "not known: what the merge" in " ".join(done.stdout.split())


def test_how_tools_ended_is_reported(rath: Rath, tmp_path: Path) -> None:
    run_ = tool_run(error_kind="timeout", exit_code=-9, signal=9, arguments=None, status="failed")
    done = rath("explain", *keep(with_record(run_), tmp_path), "--where", out="error: timeout\n")
    assert "exit code -9, signal 9\n" in done.stdout
    assert "in no sandbox\n" in done.stdout


def test_a_tool_that_raised_is_located(rath: Rath, tmp_path: Path) -> None:
    def look_up(_: Session, __: object) -> str:
        return {"Paris": "rain"}["Oslo"]

    model = ScriptedClient([tool_call("look", {}), "Sorry."])
    out = run([], FunctionTool("look", look_up), agent_provider=model.provider)
    stored = keep(out, tmp_path)
    place = f"{Path(__file__).name}:{look_up.__code__.co_firstlineno + 1} in look_up"
    done = rath("explain", *stored, "--where")
    printed = "".join(line.strip() for line in done.stdout.splitlines())
    assert place.replace(" ", "") in printed.replace(" ", "")
    assert "KeyError: 'Oslo'\n" in done.stdout
    shown = rath("show", *stored, "--full")
    assert "look_up" in shown.stdout
    told = json.loads(rath("explain", *stored, "--where", "--json").stdout)
    assert "KeyError: 'Oslo'" in json.dumps(told)


def test_a_call_without_a_result_is_reported(rath: Rath, tmp_path: Path) -> None:
    out = run([tool_call("f", id="c"), "ok"], FunctionTool("f", lambda *_: 1))
    cut = Session(out.chunk_table.prefix(2), id=out.id)
    cut.add_entry(*(entry for entry in out.record if not isinstance(entry, ToolRun)))
    rath("explain", *keep(cut, tmp_path), "--where", out="f (c): no result")


def test_a_call_that_waits_for_an_approval_is_reported_as_not_made(
    rath: Rath, tmp_path: Path
) -> None:
    tool = FunctionTool("f", lambda *_: 1)
    tool.approval = "always"
    out = run([tool_call("f", id="c"), "ok"], tool).synchronize()
    rath("explain", *keep(out, tmp_path), "--where", out="f (c): it was not made")


def test_decisions_and_undone_calls_are_reported(rath: Rath, tmp_path: Path) -> None:
    out = run(["done"]).synchronize()
    begun = next(entry for entry in out.record if isinstance(entry, Operation))
    wait = Interrupt(operation=begun.operation, reason="decision", calls=("c",))
    said = Decision(
        operation=begun.operation, interrupt=wait.id, choice="skip", by="me", call_id="c",
        arguments=None,
    )  # fmt: skip
    out.add_entry(wait, said, tool_run(decision=said.id))
    done = rath("explain", *keep(out, tmp_path), "--origin", "--where")
    shown = " ".join(done.stdout.split())
    assert "waited for decision: c" in shown
    assert "decided by me: skip for c" in shown
    assert f"allowed by decision {said.id}" in shown


def test_a_run_that_ended_otherwise_says_how(rath: Rath, tmp_path: Path) -> None:
    out = run([tool_call("f")], FunctionTool("f", lambda *_: 1), max_tool_rounds=1)
    rath("explain", *keep(out, tmp_path), "--origin", out="ended as RoundLimit")


def test_a_workflow_says_where_it_made_a_session(rath: Rath, tmp_path: Path) -> None:
    agent = flow.Agent("Be brief.", ScriptedClient(["yes"]).provider, system_tools=False)
    done = rath("explain", *keep(agent(Session.from_user_message("go")), tmp_path), "--origin")
    assert "made in Agent, operation 0" in done.stdout


def test_undone_work_is_reported(rath: Rath, tmp_path: Path) -> None:
    out = worked(placed(), writing("a", "1", id="one")).synchronize()
    kept = filtered(out.undo("one"), lambda _: True)
    rath("explain", *keep(kept, tmp_path), "--origin", out="Session.undo")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return keep(long_session(), tmp_path_factory.mktemp("store"))


def test_a_text_is_blamed_on_the_call_that_wrote_it(rath: Rath, asked: tuple[str, ...]) -> None:
    done = rath("blame", asked[0], "hello world", *asked[1:], ends=Exit.ANSWERED)
    assert done.stdout.startswith("first: turn 1 · row 1 of session ")
    assert "nothing that the model had read holds it" in done.stdout
    assert "then: turn 1 · file a\n" in done.stdout
    assert "made by write_workspace_file (one), done" in done.stdout


def test_what_the_model_had_read_is_reported(rath: Rath, tmp_path: Path) -> None:
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


def test_of_many_places_the_first_ones_are_displayed(rath: Rath, tmp_path: Path) -> None:
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
def test_two_sessions_are_displayed_side_by_side(
    rath: Rath, tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    left, right = branches(tmp_path)
    done = rath("diff", str(left.id), str(right.id), "--store", str(tmp_path), ends=Exit.ANSWERED)
    said = done.stdout
    assert "  4 rows in common\n" in said
    assert "file a: the same in both (created a)" in said
    assert "file b: created b | untouched" in said
    assert "usd, with unpriced calls" in said
    mark = " | " if columns == "120" else "   4 < assistant: "
    assert mark in said
    assert max(map(len, said.splitlines())) <= int(columns)


def test_rows_that_are_the_same_are_displayed_once(
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


def test_a_fork_is_stored_and_its_id_reported(rath: Rath, tmp_path: Path) -> None:
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
