"""The tool run that somebody names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rath._core.text import did_you_mean
from rath.session.file_changes.history import Step
from rath.session.record import Entry, ToolRun


def find_call(record: Iterable[Entry], call: str | ToolRun, *, own: Sequence[Step] = ()) -> ToolRun:
    """Return the tool run that `call` names.

    Args:
        record: Where to look.
        call: A call id, or the run itself.
        own: Steps in which an id counts that stands several times in the record.

    Raises:
        ValueError: There is none, or several and not exactly one of them in `own`.
    """
    runs = [entry for entry in record if isinstance(entry, ToolRun)]
    if isinstance(call, ToolRun):
        wanted = [run for run in runs if run.id == call.id]
        name = call.call_id
    else:
        wanted = [run for run in runs if run.call_id == call]
        name = call
    if len(wanted) > 1:
        mine = {step.entry.id for step in own}
        wanted = [run for run in wanted if run.id in mine] or wanted
    if len(wanted) == 1:
        return wanted[0]
    if wanted:
        raise ValueError(
            f"{len(wanted)} calls have the id {name!r}; give the ToolRun of the record itself"
        )
    known = list(dict.fromkeys(run.call_id for run in runs))
    raise ValueError(
        f"the record holds no call {name!r}.{did_you_mean(name, known)} "
        f"Known: {', '.join(map(repr, known)) or 'none'}"
    )
