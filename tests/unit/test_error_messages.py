"""The page of error messages says what the errors say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.error_cases import INTRODUCTION, PAGE, groups

ANEW = "if that is meant, run `python -m tests.support.error_cases` and read the difference"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is raised now, by the title of its part.

    In a process of its own: here other tests have registered kinds, tools and backends.
    """
    target = tmp_path_factory.mktemp("errors") / "page.md"
    command = [sys.executable, "-m", "tests.support.error_cases", str(target)]
    subprocess.run(command, cwd=PAGE.parents[3], check=True)
    _, *found = target.read_text("utf-8").split("\n## ")
    return {part.partition("\n")[0]: part.strip() for part in found}


@pytest.mark.skipif(sys.platform != "linux", reason="the page has the words of Linux")
@pytest.mark.parametrize("title", groups())
def test_the_page_lists_what_is_raised(title: str, parts: dict[str, str]) -> None:
    written = PAGE.read_text("utf-8").split("\n## ")
    part = next(each for each in written if each.startswith(f"{title}\n"))
    assert part.strip() == parts[title], ANEW


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
