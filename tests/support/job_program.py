"""The program of jobs in tests, and what is counted of it: see `rath.conformance.engine_program`.

`tests.support.job_program:team` is its reference.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path

from rath.conformance.engine_program import (
    MODEL,
    Behaviour,
    CountedItem,
    CountedTeam,
    FileName,
    counted_items,
    lines,
    mend,
    release,
)
from rath.jobs.job import Job
from rath.llm.provider import Provider
from rath.session import Session
from rath.session.outcome import NeedsDecision

__all__ = [
    "CALL_USD",
    "Behaviour",
    "CountedItem",
    "CountedTeam",
    "count",
    "counted_items",
    "decide_by_what_was_seen",
    "lines",
    "mend",
    "priced_team",
    "release",
    "repeated_calls",
    "team",
]


def team() -> CountedTeam:
    """Make the workflow."""
    return CountedTeam()


CALL_USD = Decimal("0.0000125")
"""A call of `priced_team`: 10 tokens there and 5 back, at OpenAI's prices of gpt-5-mini."""


def priced_team() -> CountedTeam:
    """Make one whose calls have a price, as those of a vendor."""
    vendor = "https://api.openai.com/v1"
    return CountedTeam(Provider(provider_kind=MODEL, model="gpt-5-mini", base_url=vendor))


def count(folder: Path, name: FileName) -> Counter[str]:
    """How many lines of a file there are of each item, by its key."""
    return Counter(words[0] for words in lines(folder, name))


def repeated_calls(folder: Path) -> dict[tuple[str, ...], int]:
    """The calls of the model that were made more than once: item, agent and turn."""
    calls = Counter(map(tuple, lines(folder, "calls")))
    return {call: n for call, n in calls.items() if n > 1}


def decide_by_what_was_seen(job: Job, folder: Path) -> None:
    """Decide about each call in the middle of which a process was killed: had it its effect?"""
    seen = count(folder, "effects")
    for item in job.waiting():
        assert isinstance(item.outcome, NeedsDecision)
        waiting = Session.load(item.outcome.session, store=job.store)
        (call,) = waiting.open_calls
        waiting.decide(call, "done" if seen[item.key] else "retry")
