"""Which effects a record tells of, who made them, and which count for the files of now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args
from uuid import UUID

from rath._core.text import did_you_mean
from rath.backend.effects import FileEffect
from rath.session.changes import net_changes, reversed_effect
from rath.session.record import Entry, Operation, ToolRun

Scope = Literal["run", "workspace", "whole"]
"""`run`: what was done by the operation that made the session, and to the session since.
`workspace`: all since the session, or one that it came from, left the place of its parent for a
workspace of its own. `whole`: all that the record holds of the files of now."""

_UNSEEN = {
    "abandoned": "it was abandoned, and what it did afterwards was not observed",
    "interrupted": "it was cut off, and what it had done was not observed",
}
"""What is not known of calls that ended so and may have changed files."""


@dataclass(frozen=True, slots=True)
class CallEffect:
    """A change of a file, and what made it."""

    call: ToolRun | Operation
    """The call; the operation where an undo took changes back."""

    effect: FileEffect


@dataclass(frozen=True, slots=True)
class EffectGap:
    """A reason why effects of a call may be missing."""

    call: ToolRun
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """An entry of a record, with the effects that no call inside it accounts for."""

    index: int
    """Its place in the record."""

    entry: Entry
    effects: tuple[FileEffect, ...] = ()

    def call_effects(self) -> Iterator[CallEffect]:
        """Yield the effects with what made them."""
        if isinstance(self.entry, ToolRun | Operation):
            for effect in self.effects:
                yield CallEffect(self.entry, effect)

    def gaps(self) -> Iterator[EffectGap]:
        """Yield why effects of the entry may be missing."""
        call = self.entry
        if isinstance(call, ToolRun):
            for reason in call.effect_gaps:
                yield EffectGap(call, reason)
            # A call that was never made has a row that says so; one that was cut off has none.
            was_made = call.status != "interrupted" or not call.rows
            if call.status in _UNSEEN and was_made and call.effects_declared != "read_only":
                yield EffectGap(call, _UNSEEN[call.status])


def steps_of(record: Iterable[Entry]) -> tuple[Step, ...]:
    """Return the steps of a record, each effect with the innermost call that made it.

    A call that runs an agent of its own reports the effects of the calls inside as well. Here they
    count once, and not at all where the inner calls ran in another sandbox.
    """
    steps: list[Step] = []
    begun: dict[UUID, int] = {}
    told: list[_Told] = []
    for index, entry in enumerate(record):
        effects: tuple[FileEffect, ...] = ()
        if isinstance(entry, Operation):
            begun.setdefault(entry.operation, index)
            effects = _taken_back(steps, entry)
        elif isinstance(entry, ToolRun) and entry.file_effects:
            since = begun.get(entry.operation, -1)
            effects = _own_effects(entry, since, told, steps)
            told.extend(_Told(since, effect, index, _place(entry)) for effect in effects)
        steps.append(Step(index, entry, effects))
    return tuple(steps)


def own_steps(steps: Sequence[Step], session: UUID) -> Sequence[Step]:
    """Return the steps since the first operation that made or served `session`."""
    for step in steps:
        if isinstance(step.entry, Operation) and step.entry.session == session:
            return steps[step.index :]
    return ()


def scoped_steps(steps: Sequence[Step], session: UUID, scope: Scope) -> Sequence[Step]:
    """Return the steps of a scope.

    Raises:
        ValueError: There is no such scope.
    """
    if scope == "run":
        return own_steps(steps, session)
    if scope not in get_args(Scope):
        raise ValueError(f"unknown scope {scope!r}: expected 'run', 'workspace' or 'whole'")
    line = _one_line(steps)
    if scope == "whole":
        return line
    return line[next((at for at, step in enumerate(line) if _has_own_place(step.entry)), 0) :]


def _has_own_place(entry: Entry) -> bool:
    return isinstance(entry, Operation) and entry.workspace not in (None, "share")


def _one_line(steps: Sequence[Step]) -> list[Step]:
    """Return the steps without those that the second parent of a merge made elsewhere."""
    line: list[Step] = []
    for step in steps:
        n_ours = step.entry.n_ours if isinstance(step.entry, Operation) else None
        if n_ours is not None:
            line = [one for one in line if one.index < n_ours]
        line.append(step)
    return line


def current_steps(steps: Iterable[Step]) -> list[Step]:
    """Return the steps behind the files of now, as far back as they are one line.

    What was undone is left out, and so is what the second parent of a merge did elsewhere. The line
    begins at the last merge that took files of the second parent.
    """
    line: list[Step] = []
    for step in steps:
        operation = step.entry
        if not isinstance(operation, Operation):
            line.append(step)
        elif operation.undone is not None:
            # Both what was done and what took it back are gone.
            line = [*_before_call(line, operation.undone), replace(step, effects=())]
        elif operation.workspace in ("theirs", "three-way"):
            line = [step]
        else:
            n_ours = operation.n_ours
            line = [one for one in line if n_ours is None or one.index < n_ours]
            line.append(step)
    return line


def undone_effects(line: Sequence[Step], call: ToolRun) -> tuple[FileEffect, ...]:
    """Return the effects of `call` and of all that came later in `line`, in order."""
    at = next(place for place, step in enumerate(line) if step.entry.id == call.id)
    inside = _inside(line[at])
    earlier = [_take(inside, step.effects) for step in reversed(line[:at])]
    first = [effect for taken in reversed(earlier) for effect in taken]
    return (*first, *(effect for step in line[at:] for effect in step.effects))


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


@dataclass(slots=True)
class _Told:
    """An effect that a call accounts for."""

    since: int
    """Where the operation began that the call, or the last one around it, belongs to."""

    effect: FileEffect
    index: int
    """The step that has it."""

    place: object


def _own_effects(
    call: ToolRun, since: int, told: list[_Told], steps: list[Step]
) -> tuple[FileEffect, ...]:
    """Return the effects of `call` that no call inside it has told."""
    own: list[FileEffect] = []
    inner = [one for one in told if one.since > since]
    for effect in call.file_effects:
        known = next((one for one in inner if one.effect == effect), None)
        if known is None:
            own.append(effect)
            continue
        inner.remove(known)
        known.since = since  # a call around this one has it too
        if known.place != _place(call):
            step = steps[known.index]
            kept = _left(Counter([effect]), step.effects)
            steps[known.index] = replace(step, effects=kept)
    return tuple(own)


def _place(call: ToolRun) -> object:
    return None if call.sandbox is None else (call.sandbox.backend, call.sandbox.sandbox_id)


def _taken_back(steps: Sequence[Step], operation: Operation) -> tuple[FileEffect, ...]:
    """Return the effects of an undo."""
    line = current_steps(steps)
    call = next((step.entry for step in line if step.entry.id == operation.undone), None)
    if not isinstance(call, ToolRun):
        return ()
    return tuple(reversed_effect(each) for each in net_changes(undone_effects(line, call)))


def _before_call(line: list[Step], undone: UUID) -> list[Step]:
    """Return the steps before a call, without the effects of the calls inside it."""
    at = next((place for place, step in enumerate(line) if step.entry.id == undone), len(line))
    if at == len(line):
        return line
    inside = _inside(line[at])
    kept = [replace(step, effects=_left(inside, step.effects)) for step in reversed(line[:at])]
    return kept[::-1]


def _inside(step: Step) -> Counter[FileEffect]:
    """Return the effects of a call that calls inside it account for."""
    assert isinstance(step.entry, ToolRun)
    return Counter(step.entry.file_effects) - Counter(step.effects)


def _take(inside: Counter[FileEffect], effects: Iterable[FileEffect]) -> list[FileEffect]:
    """Return those of `effects` that `inside` still holds, and take them out of it."""
    taken: list[FileEffect] = []
    for effect in effects:
        if inside[effect] > 0:
            inside[effect] -= 1
            taken.append(effect)
    return taken


def _left(inside: Counter[FileEffect], effects: Sequence[FileEffect]) -> tuple[FileEffect, ...]:
    """Return the others of `effects`, and take out of `inside` what it holds of them."""
    taken = Counter(_take(inside, effects))
    left: list[FileEffect] = []
    for effect in effects:
        if taken[effect] > 0:
            taken[effect] -= 1
        else:
            left.append(effect)
    return tuple(left)
