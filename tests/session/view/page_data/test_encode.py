from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from pydantic import BaseModel

from rath._async.retry import Attempt
from rath._core.blobs import Blob
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.session import (
    ChunkRow,
    ChunkTable,
    RowId,
    Session,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.operation import Place
from rath.session.record import (
    Decision,
    Interrupt,
    ModelCall,
    Operation,
    RecalledNote,
    Seen,
    Summary,
    ToolRun,
    Verdict,
)
from rath.session.view import PageLimits
from rath.session.view.page_data import PageEncoder
from rath.testing import tool_call
from tests.support.api import Entry, encode_plain, nodes_of
from tests.support.evidence import evidence, tokens
from tests.support.images import picture
from tests.support.sessions import FunctionTool, run, sessions
from tests.support.viewed import echo

OPERATION = UUID(int=7)
BLOB = Blob.from_bytes(b"shown")


def encoded(*made: Session, **limits: int) -> dict[str, Any]:
    """The data of the page of sessions."""
    encoder = PageEncoder(PageLimits(**limits))
    data: dict[str, Any] = json.loads(encoder.encode(nodes_of([one.as_parent() for one in made])))
    return data


def entry_of(entry: Entry) -> dict[str, Any]:
    """An entry, as the page of a session has it that holds nothing else."""
    session = Session.from_user_message("hello")
    session.add_entry(entry)
    data = encoded(session)
    made: dict[str, Any] = data["entries"][0]
    for name in ("who", "where"):
        if name in made:
            made[name] = data["shared"][made[name]]
    return made


def tool_run(**changes: Any) -> ToolRun:
    """A tool run that says the least."""
    known: dict[str, Any] = {
        "operation": OPERATION,
        "call_id": "call",
        "tool": "edit",
        "origin": "built-in",
        "schema_digest": None,
        "effects_declared": "idempotent",
        "arguments": None,
        "sandbox": None,
        "status": "done",
        "error_kind": None,
        "exit_code": None,
        "signal": None,
        "duration_ms": 1.0,
        "shown": BLOB,
        "full": None,
        "file_effects": (),
    }
    return ToolRun(**(known | changes))


def model_call(**changes: Any) -> ModelCall:
    """A model call of gpt-5-mini, with changes of its evidence."""
    known: dict[str, Any] = {"purpose": "turn", "status": "done", "seen": None}
    known |= {name: changes.pop(name) for name in ("seen", "status") if name in changes}
    return ModelCall(operation=OPERATION, evidence=evidence(tokens(1000, 10), **changes), **known)


@given(sessions)
def test_each_row_stands_once_and_in_order(session: Session) -> None:
    fork = session.fork()
    data = encoded(fork)
    assert len(data["rows"]) == len(session.chunk_table)
    assert [row["i"] for row in data["rows"]] == list(range(len(data["rows"])))
    assert [made.get("rows", []) for made in data["sessions"]] == [
        [[0, len(data["rows"])]] if data["rows"] else []
    ] * 2


def test_a_run_is_encoded_with_what_made_its_rows() -> None:
    session = run([tool_call("echo", {"x": 1}, content="I ask."), "Done."], echo()).synchronize()
    data = encoded(session)
    assert [row["k"] for row in data["rows"]] == [
        "user", "system", "assistant", "tool_result", "assistant",
    ]  # fmt: skip
    kinds = [(entry["k"], entry.get("rows")) for entry in data["entries"]]
    assert kinds == [("operation", None), ("model", [2]), ("tool", [3]), ("model", [4])]
    assert {entry["op"] for entry in data["entries"]} == {0}
    operation = data["entries"][0]
    assert data["shared"][operation["head"]] == [["system", "You are a test."]]
    assert data["shared"][operation["tools"]][0][0] == "echo"


def test_only_what_is_new_is_told_again() -> None:
    encoder = PageEncoder(PageLimits())
    first = run(["one"]).synchronize()
    encoder.encode(nodes_of([first.as_parent()]))
    second = run(["two"], user=first).synchronize()
    data = json.loads(encoder.encode(nodes_of([second.as_parent()])))
    assert [row["t"] for row in data["rows"]] == ["You are a test.", "two"]
    assert [entry["k"] for entry in data["entries"]] == ["operation", "model"]
    assert str(second.id) in data["ids"]
    assert str(first.id) not in data["ids"]


def test_what_happens_inside_a_call_is_marked() -> None:
    def ask_another(_: Session, arguments: Mapping[str, Any]) -> object:
        return {"said": run(["inner"]).text(), **arguments}

    session = run([tool_call("ask", {}), "outer"], FunctionTool("ask", ask_another)).synchronize()
    entries = encoded(session)["entries"]
    assert [entry["k"] for entry in entries if "in" in entry] == ["operation", "model"]


def test_long_texts_are_cut() -> None:
    data = encoded(Session.from_user_message("x" * 30), max_chars=9)
    assert data["rows"][0]["t"] == ["x" * 6, 21, "x" * 3]


def test_images_are_shown_up_to_both_limits() -> None:
    small, large = picture(b"s"), picture(b"l" * 100)
    session = Session.from_user_message("look", images=[small, large, picture(b"t")])
    limits = {"max_image_bytes": 50, "max_all_images_bytes": len(small)}
    first, second, third = encoded(session, **limits)["rows"][0]["im"]
    assert (first["m"], first["n"], "b" in first) == ("image/png", len(small), True)
    assert second["why"] == "larger than 50 bytes"
    assert third["why"] == "the images of this page have reached their limit"


def test_images_of_results_are_shown_with_their_tool() -> None:
    row = tool_feedback_chunk("c1", "camera", "look", images=[picture(b"s")])
    (told,) = encoded(Session(ChunkTable([row])))["rows"]
    assert (told["tool"], told["t"], told["im"][0]["m"]) == ("camera", "look", "image/png")
    (bare,) = encoded(Session(ChunkTable([tool_feedback_chunk("c1", "f", "")])))["rows"]
    assert "im" not in bare


def test_an_image_whose_bytes_are_gone_says_so() -> None:
    row = user_text_chunk("look", images=[picture(b"s")])
    image = replace(row.images[0], blob=Blob(row.images[0].blob.digest, 9), absent="it was lost")
    session = Session(ChunkTable([row.with_images((image,))]))
    assert encoded(session)["rows"][0]["im"][0]["why"] == "it was lost"


def test_a_model_call_tells_what_was_seen_who_answered_and_what_it_took() -> None:
    seen = Seen(
        head_digest="h",
        n_rows=3,
        context_at=2,
        context="notes",
        recalled=(RecalledNote("memory://a", "tea", score=math.inf, n_left_out=4),),
        tools_digest="t",
        renderer="r/1",
        request_digest="d",
        question="which?",
    )
    made = entry_of(
        model_call(
            seen=seen,
            parameters={"temperature": 0, "tags": ("a",), "when": UUID(int=1)},
            origins=(("model", "call"),),
            attempts=(Attempt(1, "busy", 503, 5.0, 1.5), Attempt(2, None, None, 6.0, 0.0)),
            cached_tokens=100,
            reasoning="because",
            error=None,
        )
    )
    assert made["seen"]["notes"] == [["memory://a", "tea", None, 4]]
    assert (made["seen"]["n"], made["seen"]["question"]) == (3, "which?")
    assert made["usage"] == [1000, 10, 1010]
    assert float(made["usd"]) > 0
    assert made["attempts"] == [[1, "busy", 503, 5.0, 1.5], [2, None, None, 6.0, 0.0]]
    assert made["who"]["served"] == "gpt-5-mini"
    assert json.loads(made["who"]["parameters"])["tags"] == ["a"]
    assert made["who"]["origins"] == [["model", "call"]]


def test_a_failed_call_tells_what_had_arrived() -> None:
    made = entry_of(model_call(status="failed", partial_text="so f", error="cut"))
    assert (made["status"], made["partial"], made["error"]) == ("failed", "so f", "cut")


def test_a_tool_run_tells_where_it_ran_and_what_it_changed() -> None:
    before, after = Blob.from_bytes(b"one\n"), Blob.from_bytes(b"two\n")
    effects = (
        FileEffect("a.txt", "changed", before, after, before_mode=0o100644, after_mode=0o100755),
        FileEffect("c.txt", "renamed", before, before, "ambiguous", renamed_from="b.txt"),
        FileEffect("d.txt", "deleted", before, None),
    )
    made = entry_of(
        tool_run(
            sandbox=SandboxIdentity("local", "box", "process", "/w", "/w"),
            arguments={"path": "a.txt"},
            full=Blob.from_bytes(b"all of it"),
            file_effects=effects,
            effect_gaps=("not all was looked at",),
        )
    )
    assert made["where"] == {
        "backend": "local", "sandbox_id": "box", "isolation": "process", "root": "/w", "cwd": "/w",
    }  # fmt: skip
    changed, renamed, deleted = made["files"]
    assert "-one\n+two\n" in changed["diff"]
    assert changed["modes"] == ["100644", "100755"]
    assert (renamed["old"], renamed["by"]) == ("b.txt", "ambiguous")
    assert "after" not in deleted
    assert made["full"]["text"] == "all of it"
    assert made["gaps"] == ["not all was looked at"]


def test_a_result_whose_bytes_were_not_kept_has_its_digest() -> None:
    made = entry_of(tool_run(full=Blob("d", 10**9)))
    assert made["full"] == {"n": 10**9, "digest": "d"}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        pytest.param(
            Verdict(
                operation=OPERATION, name="tests", judge="pytest", passed=True, score=0.5,
                report="fine", workspace_digest="w",
            ),
            {"k": "verdict", "passed": 1, "score": 0.5, "report": "fine", "workspace": "w"},
            id="verdict",
        ),
        pytest.param(
            Interrupt(operation=OPERATION, reason="input", calls=("a",), question="which?"),
            {"k": "interrupt", "reason": "input", "calls": ["a"], "question": "which?"},
            id="interrupt",
        ),
        pytest.param(
            Decision(
                operation=OPERATION, interrupt=uuid4(), choice="skip", by="me", call_id="a",
                arguments={"x": 1}, tool="edit", text="no",
            ),
            {"k": "decision", "choice": "skip", "by": "me", "tool": "edit", "text": "no"},
            id="decision",
        ),
        pytest.param(
            Summary(
                operation=OPERATION, replaced=(RowId(OPERATION, 0),) * 2, replaced_digest="d"
            ),
            {"k": "summary", "n": 2, "digest": "d"},
            id="summary",
        ),
    ],
)  # fmt: skip
def test_an_entry_tells_what_it_is(entry: Entry, said: dict[str, Any]) -> None:
    made = entry_of(entry)
    assert made | said == made


def test_instructions_that_are_no_text_are_told_as_data() -> None:
    session = Session.from_user_message("hello")
    head = (ChunkRow("odd", {"x": 1}), system_text_chunk("Be kind."))
    session.add_entry(
        Operation(
            operation=OPERATION, kind="loop", place=Place("", 0), session=session.id, head=head
        )
    )
    data = encoded(session)
    shown = data["shared"][data["entries"][0]["head"]]
    assert shown == [["odd", '{\n "x": 1\n}'], ["system", "Be kind."]]


class Point(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("a", "a", id="text"),
        pytest.param({"a": (1, 2)}, '{\n "a": [\n  1,\n  2\n ]\n}', id="data"),
        pytest.param({"a": range(1, 2)}, '{\n "a": [\n  1\n ]\n}', id="sequence"),
        pytest.param(MappingProxyType({"a": 1}), '{\n "a": 1\n}', id="mapping"),
        pytest.param({(1, 2): 3}, "{(1, 2): 3}", id="no JSON"),
        pytest.param([Point(x=1)], '[\n "x=1"\n]', id="object"),
    ],
)
def test_any_data_becomes_text(value: object, text: str) -> None:
    assert encode_plain(value) == text


def test_lone_surrogates_become_what_a_file_can_hold(tmp_path: Path) -> None:
    session = run([tool_call("echo", '{"x": "\\ud800"}'), "Done."], echo()).synchronize()
    encoder = PageEncoder(PageLimits())
    data = encoder.encode(nodes_of([session.as_parent()]))
    (tmp_path / "data.json").write_text(data, encoding="utf-8")
    assert "\ud800" not in data
