"""The contract of memory backends, run against a real OpenViking server."""

from __future__ import annotations

import pytest

from rath.conformance import check_memory, memory
from rath.memory import MemoryStoreSpec
from tests.support.openviking_service import Service, openviking

__all__ = ["openviking"]

pytestmark = pytest.mark.timeout(600)

NEVER = frozenset(
    {
        "a_note_that_expires_later_is_there",
        "an_expired_note_is_removed",
        "a_note_that_is_written_again_has_the_later_end",
        "namespaces_are_apart",
        "words_that_no_note_has_find_nothing",
    }
)
"""Checks of what the server does not offer."""

# What is left out stands in `test_real_server.py` too, or only asks the same of many more notes.
CHOSEN = frozenset(
    {
        "a_closed_store_refuses_work",
        "a_lazy_store_opens_on_first_use",
        "a_listing_is_sorted_and_tells_directories",
        "a_missing_note_is_a_failure",
        "a_note_comes_back_as_written",
        "a_forgotten_place_can_be_written_again",
        "a_target_bounds_the_search",
        "a_text_is_unchanged",
        "a_tree_has_parents_before_their_children",
        "capabilities_and_supported_ops_agree",
        "every_level_answers",
        "names_may_be_of_any_script",
        "names_may_hold_dots_and_spaces",
        "what_is_no_memory_uri_is_a_failure",
        "what_leads_astray_is_a_failure",
        "what_one_store_writes_the_other_finds",
    }
)
"""A check or more of each file of the contract that the server is quick at."""


def kept(spec: MemoryStoreSpec) -> set[str]:
    """Run what is in `memory.CLAUSES` and return what was skipped; raises where one failed."""
    report = check_memory("openviking", spec=spec)
    return {finding.check for finding in report.findings if finding.status == "skipped"}


@pytest.mark.slow
def test_a_real_server_keeps_the_contract(openviking: Service) -> None:
    assert kept(openviking.spec()) <= NEVER


def test_a_real_server_keeps_a_part_of_the_contract(
    openviking: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [check for check in memory.CLAUSES if check.name in CHOSEN]
    assert {check.name for check in checks} == CHOSEN
    monkeypatch.setattr(memory, "CLAUSES", tuple(checks))
    assert kept(openviking.spec()) == set()
