"""The page of error messages says what the errors say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.error_cases import INTRODUCTION, PAGE, groups, part_of_page

ANEW = "if that is meant, run `python -m tests.support.error_cases` and read the difference"


@pytest.mark.skipif(sys.platform != "linux", reason="the page has the words of Linux")
@pytest.mark.parametrize("title", groups())
def test_the_page_lists_what_is_raised(title: str, tmp_path: Path) -> None:
    written = PAGE.read_text("utf-8").split("\n## ")
    part = next(each for each in written if each.startswith(f"{title}\n"))
    assert f"## {part}".strip() == part_of_page(title, tmp_path).strip(), ANEW


def test_the_page_has_no_other_part() -> None:
    opening, *parts = PAGE.read_text("utf-8").split("\n## ")
    assert opening.strip() == INTRODUCTION.strip()
    assert [part.partition("\n")[0] for part in parts] == list(groups())


@pytest.mark.parametrize("title", groups())
def test_each_error_has_a_cause_and_a_cure(title: str) -> None:
    words = [text for case in groups()[title] for text in (case.cause, case.cure)]
    assert [text for text in words if not text.endswith((".", "`.", "!"))] == []
    causes = [case.cause for case in groups()[title]]
    assert len(set(causes)) == len(causes)
