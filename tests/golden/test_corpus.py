"""Sessions that were stored once are told as they were then: by commands, pages and loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.corpus import (
    content,
    group_outputs,
    groups,
    import_bundles,
    is_told_fully,
    read_expected,
    unpack,
)
from tests.golden.crashes import kinds_in
from tests.golden.outputs import differences
from tests.support.lanes import quick_sample

OUTCOMES = {
    "BudgetExceeded",
    "Cancelled",
    "Completed",
    "DeadlineExceeded",
    "NeedsApproval",
    "NeedsDecision",
    "NeedsInput",
    "RoundLimit",
}
KINDS = {
    *("header", "head", "tools", "chunk", "intent", "result", "round", "partial", "failure"),
    *("reopened", "placement", "trailer", "entry-operation", "entry-model_call"),
    *("entry-tool_run", "entry-summary", "entry-verdict", "entry-interrupt", "entry-decision"),
    "entry-change",
    "outcome",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("group", quick_sample(groups(), n_quick=8))
def test_outputs_are_as_they_were(group: str, tmp_path: Path) -> None:
    stores = unpack(group, tmp_path)
    found = import_bundles(stores)
    before = {name: content(directory) for name, (directory, _) in stores.items()}
    found |= group_outputs(stores, full=is_told_fully(group))
    problems = differences(read_expected(group), found)
    assert not problems, "\n\n".join(problems)
    changed = [
        name for name, (directory, _) in stores.items() if content(directory) != before[name]
    ]
    assert changed == []


def test_the_corpus_holds_every_kind_of_line(tmp_path: Path) -> None:
    logs = [
        path.read_bytes()
        for group in groups()
        if is_told_fully(group) and not group.startswith(("damaged", "version"))
        for directory, _ in unpack(group, tmp_path / group).values()
        for path in directory.glob("*.jsonl*")
    ]
    assert {kind for log in logs for kind in kinds_in(log)} == KINDS


def test_the_corpus_holds_every_outcome() -> None:
    loads = [
        text for group in groups() for name, text in read_expected(group).items() if "load" in name
    ]
    assert {
        name for name in OUTCOMES if not any(f'"is": "{name}"' in each for each in loads)
    } == set()
