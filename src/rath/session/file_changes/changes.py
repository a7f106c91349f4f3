"""What a sequence of file effects comes to: one change for each path, and its reverse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rath._core.blobs import Blob
from rath.backend.effects import Attribution, EffectKind, FileEffect

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
