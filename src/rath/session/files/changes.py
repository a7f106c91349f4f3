"""File changes that a record tells: by call, deduplicated, as one history; and their undo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import takewhile
from typing import Literal, NamedTuple, get_args
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.text import did_you_mean
from rath.backend.effects import Attribution, EffectKind, FileEffect
from rath.session.bindings import Placement
from rath.session.body import Body
from rath.session.chunk import ChunkKind, ChunkTable
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.outcome import Completed
from rath.session.record import CHECK_ORIGIN, Entry, Operation, ToolRun, Verdict

_SURENESS: dict[Attribution, int] = {"exact": 0, "window": 1, "ambiguous": 2}


class Version(NamedTuple):
    """A file at one moment; without a blob there is none."""

    blob: Blob | None = None
    mode: int | None = None


@dataclass(slots=True)
class _Tracked:
    """A file that is there now: where it stood at first, if it was there, and what it holds."""

    origin: str | None
    now: Version
    attribution: Attribution = "exact"


@dataclass(slots=True)
class _Net:
    """Follows the effects one after another; knows only the paths that they touch."""

    before: dict[str, Version] = field(default_factory=dict[str, Version])
    """The files that were there at the beginning, by path."""

    now: dict[str, _Tracked] = field(default_factory=dict[str, _Tracked])
    gone: dict[str, Attribution] = field(default_factory=dict[str, Attribution])
    """The files of the beginning that were deleted, by their first path."""

    def take(self, effect: FileEffect) -> None:
        """Follow one effect."""
        after = Version(effect.after, effect.after_mode)
        if effect.kind == "renamed" and effect.renamed_from is not None:
            moved = self._track(effect.renamed_from, effect)
            del self.now[effect.renamed_from]
            self._lose(effect.path, effect.attribution)
            self.now[effect.path] = _Tracked(
                moved.origin, after, _least_sure(moved.attribution, effect.attribution)
            )
        elif effect.after is None:
            self._track(effect.path, effect)
            self._lose(effect.path, effect.attribution)
        elif effect.before is None and effect.path not in self.now:
            # One that was deleted before is that file again.
            lost = self.gone.pop(effect.path, None)
            origin = None if lost is None else effect.path
            sure = _least_sure(lost or "exact", effect.attribution)
            self.now[effect.path] = _Tracked(origin, after, sure)
        else:
            file = self._track(effect.path, effect)
            file.now = after
            file.attribution = _least_sure(file.attribution, effect.attribution)

    def changes(self) -> Iterable[FileEffect]:
        """Yield the differences from the beginning, sorted by path."""
        renamed = {
            path: file.origin
            for path, file in self.now.items()
            if file.origin not in (None, path)
            and file.origin not in self.now
            and path not in self.before
        }
        for path in sorted(self.before.keys() | self.now.keys()):
            file = self.now.get(path)
            origin = renamed.get(path)
            if file is not None and origin is not None:
                yield effect_between(path, self.before[origin], file.now, file.attribution, origin)
            elif path not in renamed.values():
                before = self.before.get(path, Version())
                after = Version() if file is None else file.now
                sure = self.gone.get(path, "exact") if file is None else file.attribution
                modes = {before.mode, after.mode}
                if before.blob != after.blob or (len(modes) > 1 and None not in modes):
                    yield effect_between(path, before, after, sure)

    def _track(self, path: str, effect: FileEffect) -> _Tracked:
        """Return the file at `path`, noting that it was there when it is met for the first time."""
        if path not in self.now:
            version = Version(effect.before, effect.before_mode)
            if path in self.before:  # it came back unseen: what was noted first counts
                self.gone.pop(path, None)
            else:
                self.before[path] = version
            self.now[path] = _Tracked(path, version)
        return self.now[path]

    def _lose(self, path: str, attribution: Attribution) -> None:
        lost = self.now.pop(path, None)
        if lost is not None and lost.origin is not None:
            self.gone[lost.origin] = _least_sure(lost.attribution, attribution)


def net_changes(effects: Iterable[FileEffect]) -> tuple[FileEffect, ...]:
    """Merge effects into net changes, one for each path, sorted by path.

    What was created and deleted again is left out, and a file that was renamed several times was
    renamed once. The attribution of a change is that of the least sure effect behind it.
    """
    net = _Net()
    for effect in effects:
        net.take(effect)
    return tuple(net.changes())


def reversed_effect(effect: FileEffect) -> FileEffect:
    """Return the effect that takes `effect` back."""
    before = Version(effect.before, effect.before_mode)
    after = Version(effect.after, effect.after_mode)
    if effect.renamed_from is None:
        return effect_between(effect.path, after, before, effect.attribution)
    return effect_between(effect.renamed_from, after, before, effect.attribution, effect.path)


def effect_between(
    path: str,
    before: Version,
    after: Version,
    attribution: Attribution = "exact",
    renamed_from: str | None = None,
) -> FileEffect:
    """Return the effect that leads from the version before to the version after."""
    kind: EffectKind = "changed"
    if renamed_from is not None:
        kind = "renamed"
    elif before.blob is None:
        kind = "created"
    elif after.blob is None:
        kind = "deleted"
    blobs, modes = (before.blob, after.blob), (before.mode, after.mode)
    return FileEffect(path, kind, *blobs, attribution, renamed_from, *modes)


def _least_sure(one: Attribution, other: Attribution) -> Attribution:
    return max(one, other, key=_SURENESS.__getitem__)


Scope = Literal["run", "workspace", "whole"]
"""`run`: what was done by the operation that made the session, and to the session since.
`workspace`: all since the session, or one that it came from, left the place of its parent for a
workspace of its own. `whole`: all that the record holds of the files of now."""

_UNSEEN = {
    "abandoned": "it was abandoned, and what it did afterwards was not observed",
    "interrupted": "it was cut off, and not all that it had done was observed",
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
            was_executed = call.status != "interrupted" or not call.rows
            if call.status in _UNSEEN and was_executed and call.effects_declared != "read_only":
                yield EffectGap(call, _UNSEEN[call.status])


@dataclass(frozen=True, slots=True)
class FileHistory:
    """The steps that led to the files of a session, in order."""

    all_steps: list[Step]
    """All of them: what an undo took back stands there, and then the undo."""

    current: list[Step]
    """Changes behind the files of now, as far back as they are one line: undone ones are left out,
    and the line begins at the last three-way merge."""


@dataclass(frozen=True, slots=True)
class Here:
    """The sandbox in which a session works now."""

    handle: str | None = None
    """"" while it is not open, None for the one in which the last call ran."""

    is_own: bool | None = None
    """Whether it is the workspace of its own with which the session, or one that it came from,
    began; None where the record has to tell it."""


_UNKNOWN = Here()


def here_of(placement: Placement) -> Here:
    """Return where a session works now."""
    # A session that was loaded holds no sandbox: what it worked in is told by its record.
    is_recorded = placement.is_chosen and (
        placement.here is not None or placement.origin is not None
    )
    return Here(placement.here, placement.origin is not None if is_recorded else None)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The entries about one workspace, in no order between both."""

    begin: Operation | None
    """The event that made the workspace; None where it was there before."""

    at: int
    """Position of that in the record."""

    mine: list[Entry]
    """Changes by the session and by those that it came from."""

    others: list[Entry]
    """Changes by sessions that were merged into it."""


def line_of(record: Iterable[Entry], here: Here = _UNKNOWN) -> FileHistory:
    """Return the steps that led to the files of a session; O(entries), once more for each undo.

    What counts is what was done in the sandbox in which the session works, by whomever the record
    tells of; before that, what was done in the one whose files it began with.
    """
    stretches: list[tuple[Operation | None, list[Step]]] = []
    entries, others = tuple(record), list[Entry]()
    while True:
        stretch = _last_stretch(entries)
        begin, steps = _place_stretch(stretch, others, here)
        stretches.append((begin, steps))
        if begin is None:
            break
        entries, others = _inputs(begin, entries[: stretch.at])
        here = Here(begin.origin)
    history: list[Step] = []
    current: list[Step] = []
    for begin, steps in reversed(stretches):
        if begin is not None:
            history.append(Step(begin, _undone_effects(current, begin)))
            parts = _parted(current, begin.undone)
            current = current if parts is None else parts[0]
            current = [*(current if begin.workspace != "three-way" else []), Step(begin)]
        history += steps
        current += steps
    return FileHistory(history, current)


def scoped_steps(
    record: Iterable[Entry], session: UUID, scope: Scope, here: Here = _UNKNOWN
) -> Sequence[Step]:
    """Return the steps of a scope.

    Raises:
        ValueError: There is no such scope.
    """
    require_scope(scope)
    if scope == "run":
        return own_steps(record, session)
    steps = line_of(record, here).all_steps
    if scope == "whole":
        return steps
    return steps[next((at for at, step in enumerate(steps) if _has_own_place(step.entry)), 0) :]


def begins_here(entry: Entry, scope: Scope) -> bool:
    """Tell whether the steps of a scope that begin with `entry` need nothing before it."""
    if scope == "run":
        return isinstance(entry, Operation)
    return scope == "workspace" and _has_own_place(entry)


def require_scope(scope: str) -> None:
    """Refuse a scope that there is not.

    Raises:
        ValueError: There is no such scope.
    """
    if scope not in get_args(Scope):
        raise ValueError(f"unknown scope {scope!r}: expected 'run', 'workspace' or 'whole'")


def require_gaps(gaps: str) -> None:
    """Refuse a word that says neither to refuse gaps nor to ignore them.

    Raises:
        ValueError: It is another one.
    """
    if gaps not in ("refuse", "ignore"):
        raise ValueError(f"unknown gaps {gaps!r}: expected 'refuse' or 'ignore'")


def own_steps(record: Iterable[Entry], session: UUID) -> Sequence[Step]:
    """Return the steps since the first operation that made or served `session`, in one sandbox."""
    entries = tuple(record)
    for at, entry in enumerate(entries):
        if isinstance(entry, Operation) and entry.session == session:
            own = list(entries[at + 1 :])
            place = next((_place(run) for run in _own_runs(own) if run.sandbox is not None), None)
            undone: tuple[FileEffect, ...] = ()
            if entry.undone is not None:
                undone = _undone_effects(line_of(entries[:at], Here(entry.origin)).current, entry)
            return [Step(entry, undone), *_steps(own, [], place)]
    return ()


def undone_effects(line: Sequence[Step], call: ToolRun) -> tuple[FileEffect, ...]:
    """Return the effects of `call` and of all that came later in `line`, in order.

    Raises:
        ValueError: The line does not hold the call.
    """
    parts = _parted(line, call.id)
    if parts is None:
        raise ValueError(f"call {call.call_id!r} is not behind the files of this session")
    return parts[1]


def _index_of(line: Sequence[Step], entry: UUID | None) -> int | None:
    """Return where an entry stands in a line."""
    return next((at for at, step in enumerate(line) if step.entry.id == entry), None)


def gap_reasons(steps: Iterable[Step]) -> list[str]:
    """Return why effects of steps may be missing, as errors say it."""
    gaps = (gap for step in steps for gap in step.gaps())
    return [f"{gap.call.tool} ({gap.call.call_id}): {gap.reason}" for gap in gaps]


def inner_operations(entries: Iterable[Entry]) -> set[UUID]:
    """Return the operations that happened inside calls of others."""
    entries = tuple(entries)
    last = {entry.operation: at for at, entry in enumerate(entries)}
    inner: set[UUID] = set()
    until = -1
    for at, entry in enumerate(entries):
        if isinstance(entry, Operation) and at < until:
            inner.add(entry.operation)
        elif entry.operation not in inner:
            until = max(until, last[entry.operation])
    return inner


def effects_in(call: ToolRun, place: str | None) -> tuple[FileEffect, ...]:
    """Return the effects of a call that happened in one sandbox; None takes only unplaced ones."""
    return tuple(
        effect for effect in call.file_effects if (effect.sandbox or _place(call)) in (None, place)
    )


def _has_own_place(entry: Entry) -> bool:
    return isinstance(entry, Operation) and entry.workspace not in (None, "share")


def _place(call: ToolRun) -> str | None:
    return None if call.sandbox is None else call.sandbox.sandbox_id


def _effect_ids(call: ToolRun) -> set[int]:
    """Return the identities of the effects of a call; calls around it tell of the same objects."""
    return {id(effect) for effect in call.file_effects}


def _own_runs(entries: Sequence[Entry]) -> list[ToolRun]:
    inner = inner_operations(entries)
    return [each for each in entries if isinstance(each, ToolRun) and each.operation not in inner]


def _last_stretch(entries: Sequence[Entry]) -> _Stretch:
    """Return the entries since the last workspace was made.

    The record of a second parent counts its entries from its own beginning, so it is passed over
    as a whole, from the back. A run inside a tool call counts in the record of its own session.
    """
    mine: list[Entry] = []
    others: list[Entry] = []
    inner = inner_operations(entries)
    at = len(entries)
    while at > 0:
        at -= 1
        entry = entries[at]
        if isinstance(entry, Operation) and _has_own_place(entry):
            return _Stretch(entry, at, mine[::-1], others)
        mine.append(entry)
        if isinstance(entry, Operation) and entry.n_ours is not None:
            # Only runs happen inside calls.
            is_inner = entry.kind == "loop" and entry.operation in inner
            n_ours = at if is_inner else min(entry.n_ours, at)
            others += entries[n_ours:at]
            at = n_ours
    return _Stretch(None, 0, mine[::-1], others)


def _inputs(begin: Operation, before: Sequence[Entry]) -> tuple[tuple[Entry, ...], list[Entry]]:
    """Return the entries that led to the files with which a workspace began, and all others."""
    if begin.n_ours is None:
        return tuple(before), []
    if begin.workspace == "theirs" and begin.theirs is not None:
        inherited = tuple(begin.theirs)
        inherited_ids = {entry.id for entry in inherited}
        return inherited, [entry for entry in before if entry.id not in inherited_ids]
    return tuple(before[: begin.n_ours]), list(before[begin.n_ours :])


def _place_stretch(
    stretch: _Stretch, others: Sequence[Entry], here: Here
) -> tuple[Operation | None, list[Step]]:
    """Return the steps in the sandbox of now, and what made it, if they go back so far."""
    runs = [run for run in _own_runs(stretch.mine) if run.sandbox is not None]
    place = here.handle
    if place is None and runs:
        place = _place(runs[-1])
    steps = _steps(stretch.mine, [*stretch.others, *others], place)
    is_own = here.is_own
    if is_own is None:
        is_own = not runs or _place(runs[0]) == place
    return stretch.begin if is_own else None, steps


def _steps(mine: Sequence[Entry], others: Sequence[Entry], place: str | None) -> list[Step]:
    """Return the steps in one sandbox, each effect with the innermost call that tells of it."""
    both = [*mine, *(entry for entry in others if place)]
    if len(both) > len(mine):
        both.sort(key=lambda entry: entry.at)
    foreign = {entry.id for entry in others}
    effect_ids: set[int] = set()
    is_here_of: dict[UUID, bool] = {}
    steps: list[Step] = []
    for entry in both:
        effects: tuple[FileEffect, ...] = ()
        is_mine = is_here = entry.id not in foreign
        if isinstance(entry, ToolRun):
            recorded = effects_in(entry, place) if is_mine or _place(entry) else ()
            effects = tuple(effect for effect in recorded if id(effect) not in effect_ids)
            effect_ids |= _effect_ids(entry)
            is_here = bool(effects) or _place(entry) in ((None, place) if is_mine else (place,))
            is_here_of[entry.operation] = is_here
        elif isinstance(entry, Verdict):
            is_here = is_here_of.get(entry.operation, is_here)
        if is_here:
            steps.append(Step(entry, effects))
    return steps


def _parted(
    line: Sequence[Step], call_id: UUID | None
) -> tuple[list[Step], tuple[FileEffect, ...]] | None:
    """Return the steps before a call, and the effects of it and of all that came later.

    What calls inside it did and found is no step before it. None where the line has no such call.
    """
    at = _index_of(line, call_id)
    call = None if at is None else line[at].entry
    if not isinstance(call, ToolRun):
        return None
    inside = _effect_ids(call)
    before: list[Step] = []
    since: list[FileEffect] = []
    for step in line[:at]:
        others = tuple(effect for effect in step.effects if id(effect) not in inside)
        since += (effect for effect in step.effects if id(effect) in inside)
        if not (since and isinstance(step.entry, Verdict)):
            before.append(step if not step.effects else replace(step, effects=others))
    since += (effect for step in line[at:] for effect in step.effects)
    return before, tuple(since)


def _undone_effects(line: Sequence[Step], operation: Operation) -> tuple[FileEffect, ...]:
    """Return the effects of an undo; of another operation none."""
    parts = _parted(line, operation.undone)
    return () if parts is None else tuple(map(reversed_effect, net_changes(parts[1])))


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
    call_ids = list(dict.fromkeys(run.call_id for run in runs))
    raise ValueError(
        f"the record holds no call {name!r}.{did_you_mean(name, call_ids)} "
        f"Known: {', '.join(map(repr, call_ids)) or 'none'}"
    )


@dataclass(frozen=True, slots=True)
class Undo:
    """Plan that undoes a call."""

    call: ToolRun
    body: Body
    """Rows before the call, and the whole record."""

    changes: tuple[FileEffect, ...]
    """Changes by the call and all after it, one effect for each path."""


def plan_undo(
    body: Body,
    call: str | ToolRun,
    *,
    session: UUID,
    gaps: Literal["refuse", "ignore"],
    here: Here,
) -> Undo:
    """Return how a call is undone.

    Raises:
        ValueError: It cannot be undone; says why.
    """
    require_gaps(gaps)
    wanted = find_call(body.record, call, own=own_steps(body.record, session))
    line = line_of(body.record, here).current
    at = _index_of(line, wanted.id)
    if at is None:
        raise ValueError(
            f"call {wanted.call_id!r} is not behind the files of this session: it was undone "
            "before, or it ran in another sandbox, before a three-way merge, or in a session that "
            "was merged into this one; undo it in the session in which it ran"
        )
    undone = undone_effects(line, wanted)
    if gaps == "refuse":
        _refuse_gaps(wanted, line[at:], _common_paths(undone, line[:at]))
    changes = net_changes(undone)
    _require_contents(wanted, changes)
    table = body.table.prefix(_rows_before(body.table, wanted))
    # Whatever ended the session came later, so it goes on from here as any other.
    return Undo(wanted, Body(table, body.record, Completed(), body.given), changes)


def _rows_before(table: ChunkTable, call: ToolRun) -> int:
    """Return how many rows stand before a call; before its turn, if it is the first one in it."""
    if call.origin == CHECK_ORIGIN:
        raise ValueError(
            f"{call.call_id!r} is the command of a check, which has no row to go back to; undo the "
            "call before it, or fork the session that was checked"
        )
    for at, row in enumerate(table):
        if row.id in call.rows:
            is_first = at > 0 and table[at - 1].kind == ChunkKind.ASSISTANT
            return at - 1 if is_first else at
    if call.status == "interrupted" and not call.rows:
        before = _turn_cut_off(table, call)
        if before is not None:
            return before
    raise ValueError(
        f"call {call.call_id!r} has no row in this session: it ran inside another call, or its "
        "row was summed up; undo the call around it, or undo it in the session in which it ran"
    )


def _turn_cut_off(table: ChunkTable, call: ToolRun) -> int | None:
    """Return how many rows stand before a call that was cut off and has no result."""
    for at, row in reversed(list(enumerate(table))):
        turn = row.content
        call_ids = [each.id for each in turn.calls] if isinstance(turn, AssistantTurn) else []
        if call.call_id not in call_ids:
            continue
        earlier = set(call_ids[: call_ids.index(call.call_id)])
        results = takewhile(lambda row: isinstance(row.content, ToolFeedback), table.since(at + 1))
        n_complete = sum(
            isinstance(row.content, ToolFeedback) and row.content.call_id in earlier
            for row in results
        )
        return at + 1 + n_complete if n_complete else at
    return None


def _common_paths(undone: Iterable[FileEffect], before: Iterable[Step]) -> list[str]:
    """Return the paths that a call may have changed that is not undone.

    Every call that ran then tells of the change: who is told of by one alone had one beside it of
    which the record tells nothing.
    """
    unsure = Counter(effect for effect in undone if effect.attribution == "ambiguous")
    earlier = {each for step in before for each in step.effects if each in unsure}
    return sorted({each.path for each, n in unsure.items() if n < 2 or each in earlier})


def _refuse_gaps(call: ToolRun, steps: list[Step], shared: list[str]) -> None:
    reasons = gap_reasons(steps)
    reasons += [f"a call beside it may have changed {path!r} instead" for path in shared]
    if reasons:
        raise ValueError(
            f"call {call.call_id!r} cannot be undone for sure, since not all is known of what it "
            f"changed: {'; '.join(reasons)}. Give gaps='ignore' to undo what the record says"
        )


def _require_contents(call: ToolRun, changes: tuple[FileEffect, ...]) -> None:
    lost = [
        change.renamed_from or change.path
        for change in changes
        if change.before is not None
        and change.before.data is None
        and (change.after is None or change.after.digest != change.before.digest)
    ]
    if lost:
        raise ValueError(
            f"call {call.call_id!r} cannot be undone: the contents before were not kept of "
            f"{', '.join(map(repr, lost))}; they were too large, or the policy of effects says "
            "keep_contents=False"
        )
