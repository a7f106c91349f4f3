"""Sessions that were stored once are told as they were then: by commands, pages and loads."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.golden.corpus import (
    content,
    group_outputs,
    groups,
    import_bundles,
    is_told_fully,
    kinds_in,
    read_expected,
    unpack,
)
from tests.golden.outputs import differences
from tests.support.api import Event
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


def test_the_corpus_holds_every_kind_of_line_of_todays_format(tmp_path: Path) -> None:
    stores = [
        store
        for group in ("version-3", "jobs-version-3")
        for store, _ in unpack(group, tmp_path / group).values()
    ]
    logs = [path.read_bytes() for store in stores for path in store.glob("*.jsonl*")]
    tags = {each.__struct_config__.tag for each in get_args(Event)}
    # An outcome is a line of its own only where a run was cancelled in the moment of its end.
    assert {kind for log in logs for kind in kinds_in(log)} == tags - {"outcome"}


def test_the_corpus_holds_every_outcome() -> None:
    loads = [
        text for group in groups() for name, text in read_expected(group).items() if "load" in name
    ]
    assert {
        name for name in OUTCOMES if not any(f'"is": "{name}"' in each for each in loads)
    } == set()
