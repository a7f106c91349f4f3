"""Whether a program that runs again does at a place what it had done there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from rath.errors import ResumeMismatch
from rath.session.body import Body
from rath.session.chunk import ChunkRow
from rath.session.encode import rows_digest
from rath.session.graph.provenance import Edge
from rath.session.operation import Place
from rath.session.record import Operation, OperationKind, Workspace
from rath.session.resume.open_calls import own_operation
from rath.session.resume.serving import Found

T = TypeVar("T")


def required_operation(
    found: Found, kind: OperationKind, place: Place, *, workspace: Workspace | None = None
) -> Operation:
    """Return the operation of a session that was found.

    Raises:
        ResumeMismatch: It is none of that kind.
    """
    content = found.content
    made = None if content is None else own_operation(content.record, found.id)
    said = "no operation" if made is None else _named(made.kind, made.workspace)
    if made is None or (made.kind, made.workspace) != (kind, workspace):
        raise _mismatch(place, "another operation is made", said, _named(kind, workspace))
    return made


def model_check(made: Operation, place: Place) -> Callable[[Body, Body], None]:
    """Return the check that transcript and instructions are those that an operation had."""
    return partial(_check_model, made, place)


def derivation_check(
    found: Found, parents: Sequence[Edge], place: Place, *, rows: Iterable[ChunkRow] | None = None
) -> Callable[..., None]:
    """Return the check that a derivation has the parents that it had, and the rows of its own.

    Raises:
        ResumeMismatch: The rows are others; the check says so of the parents.
    """
    if rows is not None:
        content = found.content
        assert content is not None, "what is served is there"
        _check_rows(place, "the task", rows_digest(content.table), rows)
    return partial(_check_parents, found, parents, place)


def check_equal(place: Place, what: str, expected: object, found: object) -> None:
    """Refuse what is not what it was.

    Raises:
        ResumeMismatch: It is something else.
    """
    if expected != found:
        raise _mismatch(place, f"{what} differs", repr(expected), repr(found))


def _check_model(made: Operation, place: Place, user: Body, agent: Body) -> None:
    _check_rows(place, "the transcript", made.input_digest or "", user.table)
    _check_rows(place, "the agent's instructions", rows_digest(made.head), agent.table)


def _check_rows(place: Place, what: str, expected: str, rows: Iterable[ChunkRow]) -> None:
    now = rows_digest(rows)
    if now != expected:
        listed = list(rows)
        shown = f"{len(listed)} rows with the digest {now[:12]}"
        raise _mismatch(place, f"{what} differs", f"rows with the digest {expected[:12]}", shown)


def _check_parents(found: Found, parents: Sequence[Edge], place: Place, *inputs: Body) -> None:
    """Compare parents by id, and where a program names them anew by what they say."""
    before = found.provenance.parents
    if not before and not parents:
        # A detached session has none, and begins with the rows of one.
        content = found.content
        assert content is not None, "what is served is there"
        _check_rows(place, "the transcript", rows_digest(content.table), inputs[0].table)
        return
    check_equal(place, "the number of parents", len(before), len(parents))
    for old, new in zip(before, parents, strict=True):
        if old.id != new.id and _digest(old) != _digest(new):
            raise _mismatch(place, "a parent differs", f"session {old.id}", f"session {new.id}")


def _digest(edge: Edge) -> str | UUID:
    body = None if edge.body is None else edge.body.latest
    return edge.id if body is None else rows_digest(body.table)


def _named(kind: str, workspace: str | None) -> str:
    return kind if workspace is None else f"{kind} ({workspace})"


def _mismatch(place: Place, problem: str, expected: str, found: str) -> ResumeMismatch:
    where = f"{place.path}#{place.ordinal}"
    return ResumeMismatch(problem, where=where, expected=expected, found=found)
