"""Stored sessions for the command: files of a directory, and a family of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from rath.session.graph.kind import LineageKind
from tests.support.logs import DAY, LogMaker

RUN = UUID("0ddba11c-0000-4000-8000-000000000001")


@dataclass(frozen=True, slots=True)
class Family:
    """A user's words, a plan, two tries of which one failed, a merge, and a run that was cut off.

    user - plan -+- left --+- both
                 +- right -+
    other - cut
    """

    directory: Path
    user: LogMaker
    plan: LogMaker
    left: LogMaker
    right: LogMaker
    both: LogMaker
    other: LogMaker
    cut: LogMaker


def save(directory: Path, *logs: LogMaker, is_finished: bool = True) -> None:
    """Write logs as the store of files does."""
    directory.mkdir(parents=True, exist_ok=True)
    for log in logs:
        suffix = "" if is_finished else ".__partial__"
        (directory / f"{log.session}.jsonl{suffix}").write_bytes(log.data)
        blobs = directory / "blobs"
        for digest, data in log.blobs.items():
            blobs.mkdir(exist_ok=True)
            (blobs / digest).write_bytes(data)


def saved_family(directory: Path) -> Family:
    """Write a family of sessions, begun an hour after one another."""
    user = _log(1, 0).said("Fix the parser").ended()
    plan = _child(2, 1, user).begun(path="Team.planner", run=RUN).answered("1. read").ended()
    left = _child(3, 2, plan, operator="fork", kind=LineageKind.OP_FORK)
    left.begun(path="Team.coder", run=RUN).answered("left", model="claude", usd=None).ended()
    right = _child(4, 3, plan).begun(path="Team.coder", ordinal=1, run=RUN)
    right.answered(None, status="failed", usage=None, usd=None, error="no").failed("no answer")
    both = _child(5, 4, left, right, operator="merge", kind=LineageKind.OP_MERGE).ended()
    other = _log(6, 5).said("Something else").ended()
    cut = _child(7, 6, other).begun().answered("calling").intended("call-1").streamed("I am th")
    save(directory, user, plan, left, both, other)
    save(directory, right, cut, is_finished=False)
    return Family(directory, user, plan, left, right, both, other, cut)


def damage(directory: Path, log: LogMaker) -> None:
    """Change one word in a log of a directory."""
    (directory / f"{log.session}.jsonl").write_bytes(log.data.replace(b"parser", b"Parser"))


def ident(number: int) -> UUID:
    """An id that begins with eight times the same digit."""
    return UUID(f"{str(number) * 8}-0000-4000-8000-{number:012}")


def _log(number: int, hours: int) -> LogMaker:
    return LogMaker(ident(number), at=DAY + timedelta(hours=hours))


def _child(number: int, hours: int, *parents: LogMaker, **header: object) -> LogMaker:
    first = parents[0]
    is_whole = len(first.rows) == first.n_rows
    return LogMaker(
        ident(number),
        at=DAY + timedelta(hours=hours),
        parents=tuple(parent.session for parent in parents),
        begins_with=(first.part(),) if is_whole else (),
        **header,
    )
