"""Whether a compression that is called had begun before: then it is served, or goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rath._async.lazy import Deferred
from rath.session.body import Body
from rath.session.encode import rows_digest
from rath.session.operation import Place
from rath.session.outcome import Cancelled, Completed, Suspended
from rath.session.record import Entry, Operation, Summary
from rath.session.resume.matching import check_equal, model_check, required_operation
from rath.session.resume.open_calls import entries_since, own_operation
from rath.session.resume.serving import Found, found_at, known_run, make_anew, served


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunCompression:
    """A compression that failed or was cut off: it goes on with all that it had noted."""

    origin: Deferred[Body]
    """What it goes on with."""

    operation: Operation
    body: Body
    """Its record, with the calls that were paid for in vain; its rows are those of the summary,
    none where there is no summary yet."""

    told: Sequence[Entry]
    """What it had noted by then, which the run around it may not know."""

    check: Callable[[Body, Body], None]
    """Raises ResumeMismatch where transcript and instructions are others than they were."""

    @property
    def has_summary(self) -> bool:
        """Whether the summary is there, so that no model is asked once more."""
        return len(self.body.table) > 0

    def begun_with(self, user: Body) -> Body:
        """Return what there is, with the rows of the input where there is no summary."""
        return self.body if self.has_summary else replace(self.body, table=user.table)


def compression_before(
    place: Place, cells: tuple[Deferred[Body], Deferred[Body]]
) -> Found | BegunCompression | None:
    """Return the compression that was made at a place before, None where it is to be made.

    Args:
        place: Where it is made.
        cells: Content of the user's and of the agent's session.

    Raises:
        ResumeMismatch: At this place something else was made.
    """
    found = found_at(place)
    if found is None or not found.body.done():
        return found
    content, has_failed = found.content, found.body.error() is not None
    made = None if content is None else own_operation(content.record, found.id)
    if content is None or (made is None and (has_failed or _is_suspended(content))):
        make_anew(place)
        return None
    if made is None:
        # The chain was at its budget, so that no model was asked: the rows are those of the input.
        check = _input_check(content, place)
        return replace(found, body=served(found, cells, check))
    check = model_check(required_operation(found, "compress", place), place)
    if not has_failed and not _goes_on(content):
        return replace(found, body=served(found, cells, check))
    return _begun(found, content, made, check)


def _begun(
    found: Found, content: Body, made: Operation, check: Callable[[Body, Body], None]
) -> BegunCompression:
    told = entries_since(content.record, found.id)
    is_summed_up = any(
        isinstance(entry, Summary) and entry.operation == made.operation for entry in told
    )
    rows = content.table if is_summed_up else content.table.prefix(0)
    body = replace(content, table=rows, outcome=Completed(), unfinished=None)
    return BegunCompression(origin=found.body, operation=made, body=body, told=told, check=check)


def _goes_on(content: Body) -> bool:
    """Tell whether a compression is not done."""
    if isinstance(content.outcome, Cancelled):
        known = known_run()
        return known is not None and known.cancelled == "go_on"
    return _is_suspended(content)


def _is_suspended(content: Body) -> bool:
    return isinstance(content.outcome, Suspended)


def _input_check(content: Body, place: Place) -> Callable[[Body, Body], None]:
    expected = rows_digest(content.table)

    def check(user: Body, _: Body) -> None:
        check_equal(place, "the transcript", expected, rows_digest(user.table))

    return check
