"""The brief of an entry: what was usual is left out, what was not is named."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from rath._async.retry import Attempt
from rath._core.blobs import Blob
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.cli.show import entry_text, makers, outcome_text, row_text
from rath.session import RowId
from rath.session.chunk import ChunkRow, tool_feedback_chunk
from rath.session.operation import Place
from rath.session.outcome import Completed, NeedsDecision, NeedsInput, OutputMissing, OutputValue
from rath.session.record import ModelCall, Operation, RecalledNote, Seen, Summary
from tests.support.evidence import evidence, tokens
from tests.support.images import picture
from tests.support.logs import LogMaker

SEEN = Seen(
    head_digest="",
    n_rows=0,
    context_at=0,
    context="",
    recalled=(RecalledNote("memory://a", "x"),),
    tools_digest=None,
    renderer="",
    request_digest="",
)


def call(purpose: Any = "turn", seen: Seen | None = None, **changes: Any) -> ModelCall:
    """A call of a model without a price."""
    changes.setdefault("duration_ms", 0.0)
    made = evidence(changes.pop("usage", None), **changes)
    made.settle_cost(None)
    return ModelCall(
        operation=uuid4(), purpose=purpose, status=made.status, seen=seen, evidence=made
    )


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (call(), "gpt-5-mini"),
        (call(model=None), "test"),
        (call(purpose="select"), "gpt-5-mini, select"),
        (call(usage=tokens(1000, 20)), "gpt-5-mini, 1,000 + 20 tokens"),
        (call(duration_ms=1234.0), "gpt-5-mini, 1.2 s"),
        (call(status="cancelled"), "gpt-5-mini, cancelled"),
        (call(status="failed", error="no\nway"), "gpt-5-mini, failed: no way"),
        (call(fallback_from="openai m"), "gpt-5-mini, instead of openai m"),
        (call(finish_reason="length"), "gpt-5-mini, ended by length"),
        (call(finish_reason="stop"), "gpt-5-mini"),
        (call(seen=SEEN), "gpt-5-mini, saw 1 note"),
        (call(attempts=(Attempt(1, "x", 500, 1.0, 0.0),) * 2), "gpt-5-mini, 2 tries"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call(made: ModelCall, text: str) -> None:
    assert entry_text(made) == text


def effect(path: str) -> FileEffect:
    return FileEffect(path, "created", None, Blob.from_bytes(b"x"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "done, 1 ms"),
        ({"status": "failed", "error_kind": "timeout"}, "failed (timeout), 1 ms"),
        ({"exit_code": 2}, "done, exit status 2, 1 ms"),
        ({"signal": 9}, "done, signal 9, 1 ms"),
        (
            {"sandbox": SandboxIdentity("local", "s", "none", "/w", "/w")},
            "done, 1 ms, in local /w",
        ),
        ({"file_effects": (effect("a"),)}, "done, 1 ms, created a"),
        (
            {"file_effects": tuple(map(effect, "abcde"))},
            "done, 1 ms, created a; created b; created c and 2 more",
        ),
        ({"full": Blob.from_bytes(b"x")}, "done, 1 ms, shown in part"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tool_run(changes: dict[str, Any], text: str) -> None:
    assert entry_text(structs.replace(LogMaker().tool_run("a"), **changes)) == text


def test_an_operation_has_its_place() -> None:
    made = Operation(operation=uuid4(), kind="fork", place=Place("", 0), session=uuid4())
    assert entry_text(made) == "fork"
    assert entry_text(structs.replace(made, place=Place("Team.coder", 2))) == "fork at Team.coder#2"


def test_rows_are_known_by_what_made_them_first() -> None:
    row, other = RowId(uuid4(), 1), RowId(uuid4(), 2)
    first, second = structs.replace(call(), rows=(row,)), structs.replace(call(), rows=(row, other))
    operation = Operation(
        operation=uuid4(), kind="loop", place=Place("", 0), session=uuid4(), rows=(row,)
    )
    summary = Summary(operation=uuid4(), replaced=(), replaced_digest="", rows=(other,))
    assert makers([operation, first, second, summary]) == {row: first, other: second}


def test_what_rows_say() -> None:
    assert row_text(tool_feedback_chunk("a", "run", '{"x":\n1}')) == 'run: {"x":1}'
    shown = row_text(tool_feedback_chunk("a", "look", "1", images=[picture(b"cat")]))
    assert shown == "look: [image/png 11 B sha256:c37c5842] 1"
    assert row_text(ChunkRow("odd", {"x": 1})) == "{'x': 1}"
    assert row_text(ChunkRow("system", {"content": "be\nkind"})) == "be kind"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Completed(), ""),
        (Completed(OutputValue(1)), ""),
        (Completed(OutputMissing("no number")), "completed without its typed answer: no number"),
        (NeedsDecision(UUID(int=2), ("a", "b")), "a b"),
        (NeedsInput(UUID(int=2), "which\none?"), "which one?"),
    ],
    ids=repr,
)
def test_outcomes(outcome: Any, text: str) -> None:
    assert outcome_text(outcome) == text
