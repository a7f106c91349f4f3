"""File changes that a record tells: by call, deduplicated, as one history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args
from uuid import UUID

from rath._core.blobs import Blob
from rath.backend.effects import Attribution, EffectKind, FileEffect
from rath.session.bindings import Placement
from rath.session.record import Entry, Operation, ToolRun, Verdict

_SURENESS: dict[Attribution, int] = {"exact": 0, "window": 1, "ambiguous": 2}
_REVERSE: dict[EffectKind, EffectKind] = {
    "created": "deleted",
    "changed": "changed",
    "deleted": "created",
    "renamed": "renamed",
}


@dataclass(frozen=True, slots=True)
class _Version:
    """A file at one moment; without a blob there is none."""

    blob: Blob | None
    mode: int | None


@dataclass(slots=True)
class _Tracked:
    """A file that is there now: where it stood at first, if it was there, and what it holds."""

    origin: str | None
    now: _Version
    attribution: Attribution = "exact"


@dataclass(slots=True)
class _Net:
    """Follows the effects one after another; knows only the paths that they touch."""

    before: dict[str, _Version] = field(default_factory=dict[str, _Version])
    """The files that were there at the beginning, by path."""

    now: dict[str, _Tracked] = field(default_factory=dict[str, _Tracked])
    gone: dict[str, Attribution] = field(default_factory=dict[str, Attribution])
    """The files of the beginning that were deleted, by their first path."""

    def take(self, effect: FileEffect) -> None:
        """Follow one effect."""
        after = _Version(effect.after, effect.after_mode)
        if effect.kind == "renamed" and effect.renamed_from is not None:
            moved = self._found(effect.renamed_from, effect)
            del self.now[effect.renamed_from]
            self._lose(effect.path, effect.attribution)
            self.now[effect.path] = _Tracked(
                moved.origin, after, _least_sure(moved.attribution, effect.attribution)
            )
        elif effect.after is None:
            self._found(effect.path, effect)
            self._lose(effect.path, effect.attribution)
        elif effect.before is None and effect.path not in self.now:
            self.now[effect.path] = self._returned(effect, after)
        else:
            file = self._found(effect.path, effect)
            file.now = after
            file.attribution = _least_sure(file.attribution, effect.attribution)

    def changes(self) -> Iterable[FileEffect]:
        """Yield what is different from the beginning, sorted by path."""
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
                yield _effect(path, self.before[origin], file.now, file.attribution, origin)
            elif path not in renamed.values():
                before = self.before.get(path, _Version(None, None))
                after = _Version(None, None) if file is None else file.now
                sure = self.gone.get(path, "exact") if file is None else file.attribution
                if before.blob != after.blob or _differ(before.mode, after.mode):
                    yield _effect(path, before, after, sure)

    def _found(self, path: str, effect: FileEffect) -> _Tracked:
        """Return the file at `path`, noting that it was there when it is met for the first time."""
        if path not in self.now:
            version = _Version(effect.before, effect.before_mode)
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

    def _returned(self, effect: FileEffect, after: _Version) -> _Tracked:
        """Return a file that was created: one that was deleted before is that file again."""
        if effect.path not in self.gone:
            return _Tracked(None, after, effect.attribution)
        attribution = _least_sure(self.gone.pop(effect.path), effect.attribution)
        return _Tracked(effect.path, after, attribution)


def net_changes(effects: Iterable[FileEffect]) -> tuple[FileEffect, ...]:
    """Return what the effects come to, one for each path, sorted by path.

    What was created and deleted again is left out, and a file that was renamed several times was
    renamed once. The attribution of a change is that of the least sure effect behind it.
    """
    net = _Net()
    for effect in effects:
        net.take(effect)
    return tuple(net.changes())


def reversed_effect(effect: FileEffect) -> FileEffect:
    """Return the effect that takes `effect` back."""
    turned = replace(
        effect,
        kind=_REVERSE[effect.kind],
        before=effect.after,
        after=effect.before,
        before_mode=effect.after_mode,
        after_mode=effect.before_mode,
    )
    if effect.renamed_from is None:
        return turned
    return replace(turned, path=effect.renamed_from, renamed_from=effect.path)


def _effect(
    path: str,
    before: _Version,
    after: _Version,
    attribution: Attribution,
    renamed_from: str | None = None,
) -> FileEffect:
    kind: EffectKind = "changed"
    if renamed_from is not None:
        kind = "renamed"
    elif before.blob is None:
        kind = "created"
    elif after.blob is None:
        kind = "deleted"
    return FileEffect(
        path,
        kind,
        before.blob,
        after.blob,
        attribution,
        renamed_from,
        before_mode=before.mode,
        after_mode=after.mode,
    )


def _differ(before: int | None, after: int | None) -> bool:
    return None not in (before, after) and before != after


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
            was_made = call.status != "interrupted" or not call.rows
            if call.status in _UNSEEN and was_made and call.effects_declared != "read_only":
                yield EffectGap(call, _UNSEEN[call.status])


@dataclass(frozen=True, slots=True)
class Line:
    """The steps that led to the files of a session, in order."""

    told: list[Step]
    """All of them: what an undo took back stands there, and then the undo."""

    current: list[Step]
    """Those behind the files of now, as far back as they are one line: what was undone is left out,
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
    is_told = placement.is_chosen and (placement.here is not None or placement.origin is not None)
    return Here(placement.here, placement.origin is not None if is_told else None)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What is told of one workspace, in no order between both."""

    begin: Operation | None
    """What made the workspace; None where it was there before."""

    at: int
    """Where that stands in the record."""

    mine: list[Entry]
    """What the session did, and those that it came from."""

    others: list[Entry]
    """What sessions did that were merged into it."""


def line_of(record: Iterable[Entry], here: Here = _UNKNOWN) -> Line:
    """Return what led to the files of a session; O(entries), once more for each undo.

    What counts is what was done in the sandbox in which the session works, by whomever the record
    tells of; before that, what was done in the one whose files it began with.
    """
    stretches: list[tuple[Operation | None, list[Step]]] = []
    entries, beside = tuple(record), list[Entry]()
    while True:
        stretch = _last_stretch(entries)
        begin, steps = _placed(stretch, beside, here)
        stretches.append((begin, steps))
        if begin is None:
            break
        entries, beside = _inputs(begin, entries[: stretch.at])
        here = Here(begin.origin)
    told: list[Step] = []
    current: list[Step] = []
    for begin, steps in reversed(stretches):
        if begin is not None:
            told.append(Step(begin, _taken_back(current, begin)))
            current = _begun(current, begin)
        told += steps
        current += steps
    return Line(told, current)


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
    told = line_of(record, here).told
    if scope == "whole":
        return told
    return told[next((at for at, step in enumerate(told) if _has_own_place(step.entry)), 0) :]


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
                undone = _taken_back(line_of(entries[:at], Here(entry.origin)).current, entry)
            return [Step(entry, undone), *_steps(own, [], place)]
    return ()


def undone_effects(line: Sequence[Step], call: ToolRun) -> tuple[FileEffect, ...]:
    """Return the effects of `call` and of all that came later in `line`, in order.

    Raises:
        ValueError: The line does not hold the call.
    """
    at = next((at for at, step in enumerate(line) if step.entry.id == call.id), None)
    if at is None:
        raise ValueError(f"call {call.call_id!r} is not behind the files of this session")
    inside = _told_by(call)
    first = (effect for step in line[:at] for effect in step.effects if id(effect) in inside)
    return (*first, *(effect for step in line[at:] for effect in step.effects))


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


def _told_by(call: ToolRun) -> set[int]:
    """Return the identities of the effects of a call; calls around it tell of the same objects."""
    return {id(effect) for effect in call.file_effects}


def _own_runs(entries: Sequence[Entry]) -> list[ToolRun]:
    inner = inner_operations(entries)
    return [each for each in entries if isinstance(each, ToolRun) and each.operation not in inner]


def _last_stretch(entries: Sequence[Entry]) -> _Stretch:
    """Return what is told since the last workspace was made.

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
        taken = tuple(begin.theirs)
        known = {entry.id for entry in taken}
        return taken, [entry for entry in before if entry.id not in known]
    return tuple(before[: begin.n_ours]), list(before[begin.n_ours :])


def _placed(
    stretch: _Stretch, beside: Sequence[Entry], here: Here
) -> tuple[Operation | None, list[Step]]:
    """Return the steps in the sandbox of now, and what made it, if they go back so far."""
    runs = [run for run in _own_runs(stretch.mine) if run.sandbox is not None]
    place = here.handle
    if place is None and runs:
        place = _place(runs[-1])
    steps = _steps(stretch.mine, [*stretch.others, *beside], place)
    is_own = here.is_own
    if is_own is None:
        is_own = not runs or _place(runs[0]) == place
    return stretch.begin if is_own else None, steps


def _steps(mine: Sequence[Entry], others: Sequence[Entry], place: str | None) -> list[Step]:
    """Return what happened in one sandbox, each effect with the innermost call that tells of it."""
    both = [*mine, *(entry for entry in others if place)]
    if len(both) > len(mine):
        both.sort(key=lambda entry: entry.at)
    foreign = {entry.id for entry in others}
    known: set[int] = set()
    seen_here: dict[UUID, bool] = {}
    steps: list[Step] = []
    for entry in both:
        effects: tuple[FileEffect, ...] = ()
        is_mine = is_here = entry.id not in foreign
        if isinstance(entry, ToolRun):
            told = effects_in(entry, place) if is_mine or _place(entry) else ()
            effects = tuple(effect for effect in told if id(effect) not in known)
            known |= _told_by(entry)
            is_here = bool(effects) or _place(entry) in ((None, place) if is_mine else (place,))
            seen_here[entry.operation] = is_here
        elif isinstance(entry, Verdict):
            is_here = seen_here.get(entry.operation, is_here)
        if is_here:
            steps.append(Step(entry, effects))
    return steps


def _begun(line: list[Step], begin: Operation) -> list[Step]:
    """Return the line of the files with which a workspace began, and what made it."""
    if begin.workspace == "three-way":
        return [Step(begin)]
    if begin.undone is not None:
        line = _before_call(line, begin.undone)
    line.append(Step(begin))
    return line


def _taken_back(line: Sequence[Step], operation: Operation) -> tuple[FileEffect, ...]:
    """Return the effects of an undo; of another operation none."""
    call = next((step.entry for step in line if step.entry.id == operation.undone), None)
    if not isinstance(call, ToolRun):
        return ()
    return tuple(reversed_effect(each) for each in net_changes(undone_effects(line, call)))


def _before_call(line: list[Step], undone: UUID) -> list[Step]:
    """Return the steps before a call, without what the calls inside it did and found."""
    at = next((place for place, step in enumerate(line) if step.entry.id == undone), len(line))
    if at == len(line):
        return line
    call = line[at].entry
    assert isinstance(call, ToolRun)
    inside = _told_by(call)
    kept: list[Step] = []
    has_begun = False
    for step in line[:at]:
        effects = tuple(effect for effect in step.effects if id(effect) not in inside)
        has_begun = has_begun or len(effects) < len(step.effects)
        if not (has_begun and isinstance(step.entry, Verdict)):
            kept.append(step if not step.effects else replace(step, effects=effects))
    return kept
