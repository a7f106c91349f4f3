"""Files of a session: workspaces it begins with, and what it did to them."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import field
from functools import partial
from hashlib import sha256
from os import PathLike
from typing import Literal
from uuid import UUID, uuid4

from rath._async.deferred import Deferred
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.text import short_id
from rath.backend.changes import EffectPolicy, FileState, Manifest, manifest_digest
from rath.backend.effects import FileEffect
from rath.backend.snapshots import FrozenWorkspace, NewFile, Origin, Seed
from rath.errors import BackendError
from rath.session.base import SessionBase
from rath.session.bindings import Placement
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.content import ToolFeedback
from rath.session.files.changes import (
    CallEffect,
    EffectGap,
    Scope,
    Step,
    begins_here,
    effects_in,
    find_call,
    gap_reasons,
    here_of,
    net_changes,
    own_steps,
    require_gaps,
    require_scope,
    scoped_steps,
    undone_effects,
)
from rath.session.files.diff import unified_diff
from rath.session.files.merge import (
    FileConflict,
    FileMerge,
    apply_changes,
    contents_of,
    merge_effects,
    merge_in,
    merge_trees,
)
from rath.session.record import Operation, Record, ToolRun
from rath.session.scope import current_replay

Frozen = Deferred[FrozenWorkspace | None]
"""The files of a session, frozen when its run has ended; None where that was cut off."""

_FILE = stat.S_IFREG | 0o644


def freeze(cell: Deferred[Body], placement: Placement, session: UUID) -> Frozen:
    """Freeze the files of a session: now, or as soon as the run that makes it has ended.

    Raises:
        BackendError: The backend cannot copy a workspace.
        RuntimeError: The session's sandbox was closed.
    """
    if current_replay() is not None:
        return Deferred.of(None)  # no tool of a replay will open it
    sandbox = placement.held()
    if cell.done() and cell.error() is None:
        return Deferred.of(sandbox.freeze())
    if not sandbox.backend.capabilities().supports_workspace_copy:
        sandbox.backend.freeze(sandbox)  # raises, and says what would help
    frozen: Future[FrozenWorkspace] = Future()
    take = partial(_take, placement.share(), frozen)
    if not cell.at_end(take):
        take()

    async def wait_and_tell(_: Frozen) -> FrozenWorkspace | None:
        await cell
        return frozen.result() if frozen.done() else None

    return Deferred.start(
        wait_and_tell,
        owner=uuid4(),
        label=f"freezing the files of session {short_id(session)}",
        inputs=(cell,),
        on_cancel=lambda _: None,
    )


def _take(share: Placement, frozen: Future[FrozenWorkspace]) -> None:
    """Freeze files at the end of a run, and give back the share of their sandbox.

    When a reader sees the end, they may change again. An error is told to who asks for the files.
    """
    try:
        frozen.set_result(share.held().freeze())
    except RuntimeError as exc:
        frozen.set_exception(exc)
    except BaseException as exc:  # noqa: BLE001  # the same, by a backend of somebody else
        error = BackendError(
            f"the files were not copied: the {share.backend} backend, asked to freeze "
            f"them, raised {type(exc).__name__}; fork without workspace='copy', or mend it"
        )
        error.__cause__ = exc
        frozen.set_exception(error)
    finally:
        share.drop()


@dataclass(frozen=True, slots=True)
class CopyOrigin:
    """The files of one session."""

    frozen: Frozen
    session: UUID
    """Whose files they are."""

    above: CopyOrigin | MergeOrigin | None = None
    """What that session's workspace came from: the last merge, or else the first one copied."""

    async def __call__(self) -> Seed:
        return Seed(await self.files())

    async def files(self) -> FrozenWorkspace:
        """Return the frozen files.

        Raises:
            BackendError: What would have frozen them was cancelled.
        """
        frozen = await self.frozen
        if frozen is None:
            raise BackendError(
                f"the files of session {self.session} were not copied: the fork was cancelled "
                "before the run that makes them had ended; fork again"
            )
        return frozen


@dataclass(frozen=True, slots=True)
class UndoOrigin:
    """The files of one session with changes taken back."""

    now: CopyOrigin
    undone: tuple[FileEffect, ...]
    """The net changes that are taken back."""

    async def __call__(self) -> Seed:
        """Return the files before the changes.

        Raises:
            BackendError: Files are not as the changes left them: somebody else changed them.
        """
        frozen = await self.now.files()
        expected: dict[str, str | None] = {}
        for change in self.undone:
            if change.renamed_from is not None:
                expected[change.renamed_from] = None
            expected[change.path] = None if change.after is None else change.after.digest
        foreign = [
            path for path, digest in expected.items() if await _digest(frozen, path) != digest
        ]
        if foreign:
            raise BackendError(
                f"nothing was undone: since the record ends, somebody else changed "
                f"{', '.join(map(repr, sorted(foreign)))}; put these files back as the session "
                "left them, or fork with workspace='copy' and change the files there"
            )
        return Seed(frozen, await self._changes(frozen))

    async def _changes(self, frozen: FrozenWorkspace) -> Mapping[str, NewFile | None]:
        changes: dict[str, NewFile | None] = {}
        for change in self.undone:
            before = change.before
            changes[change.path] = None
            if before is None:
                continue
            # Kept, or moved and given another mode only: then it is there now.
            data = before.data if before.data is not None else await frozen.aread(change.path)
            mode = change.before_mode or _FILE
            changes[change.renamed_from or change.path] = NewFile(data, mode)
        return changes


@dataclass(frozen=True, slots=True)
class MergeOrigin:
    """The files of two sessions in one workspace."""

    session: UUID
    """The merged session."""

    ours: CopyOrigin
    theirs: CopyOrigin
    _done: list[FileMerge] = field(default_factory=list[FileMerge])
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self) -> Seed:
        return Seed(await self.ours.files(), (await self.amerge()).changes)

    def require_common_files(self) -> None:
        """Refuse sides that were frozen already and have nothing in common; never waits.

        Raises:
            ValueError: They have nothing in common.
        """
        ours, theirs = self.ours.frozen.latest, self.theirs.frozen.latest
        if ours is not None and theirs is not None and ours.base_with(theirs) is None:
            raise ValueError(self._nothing_in_common())

    async def abase(self) -> FrozenWorkspace:
        """Return the youngest files that both came from.

        Raises:
            BackendError: There are none.
        """
        ours, theirs = await self.ours.files(), await self.theirs.files()
        # A workspace that was never opened knows where it came from once it was looked at.
        await ours.amanifest()
        await theirs.amanifest()
        base = ours.base_with(theirs)
        if base is None:
            raise BackendError(self._nothing_in_common())
        return base

    def _nothing_in_common(self) -> str:
        return (
            f"the workspaces of sessions {self.ours.session} and {self.theirs.session} came from "
            "no common files, so nothing tells who changed what; make both by "
            "fork(workspace='copy') of one session, or merge with files='ours' or files='theirs'"
        )

    async def amerge(self) -> FileMerge:
        """Return the merged state of our files; worked out once."""
        async with self._lock:
            if not self._done:
                ours, theirs = await self.ours.files(), await self.theirs.files()
                self._done.append(await merge_trees(await self.abase(), ours, theirs))
        return self._done[0]

    async def aeffects(self) -> tuple[FileEffect, ...]:
        """Return the changes of the merge to our files."""
        return await merge_effects(await self.amerge(), await self.ours.files())


def origin_above(origin: Origin | None) -> CopyOrigin | MergeOrigin | None:
    """Return the origin of a workspace with that origin, as far as it is in memory."""
    if isinstance(origin, UndoOrigin):
        origin = origin.now
    if isinstance(origin, CopyOrigin):
        return origin.above or origin
    return origin if isinstance(origin, MergeOrigin) else None


def merge_origin(origin: Origin | None, session: UUID) -> MergeOrigin | None:
    """Return the merge that made the files of `session`, if a workspace came from it."""
    above = origin_above(origin)
    todo = [] if above is None else [above]
    while todo:
        above = todo.pop()
        if isinstance(above, CopyOrigin):
            todo += [] if above.above is None else [above.above]
        elif above.session == session:
            return above
        else:
            todo += [above.ours, above.theirs]
    return None


async def _digest(frozen: FrozenWorkspace, path: str) -> str | None:
    try:
        return sha256(await frozen.aread(path)).hexdigest()
    except FileNotFoundError:
        return None


async def atells_all(placement: Placement, changes: Sequence[FileEffect]) -> bool:
    """Tell whether a session's files are those of the place that it left, with `changes` made.

    Args:
        placement: Where the session works.
        changes: Net changes since it, or one that it came from, left the place of its parent.

    Returns:
        True also where that cannot be found out: the workspace is gone or no copy, the backend has
        no digests, or a mode is not known.
    """
    first = await _first_files(placement)
    if first is None or placement.here is None or placement.held().closed:
        return True
    sandbox = placement.held()
    policy = (None if sandbox.spec is None else sandbox.spec.effects) or EffectPolicy()
    expected = _changed(await first.amanifest(), changes)
    digest = await sandbox.aworkspace_digest()
    if digest is None or expected is None or _has_ignored(changes, policy):
        return True
    return digest == manifest_digest(expected)


async def _first_files(placement: Placement) -> FrozenWorkspace | None:
    """Return the files with which the first workspace of its own began."""
    origin = origin_above(placement.origin)
    while origin is not None:
        if not isinstance(origin, CopyOrigin):
            origin = origin.ours
        elif origin.above is None:
            return await origin.files()
        else:
            origin = origin.above
    return None


def _changed(manifest: Manifest, changes: Sequence[FileEffect]) -> Manifest | None:
    """Return the manifest after net changes, None where a mode is not known."""
    changed = dict(manifest)
    for change in changes:
        changed.pop(change.renamed_from or change.path, None)
    for change in changes:
        if change.after is None:
            continue
        if change.after_mode is None:
            return None
        changed[change.path] = FileState(change.after.digest, change.after.size, change.after_mode)
    return changed


def _has_ignored(changes: Sequence[FileEffect], policy: EffectPolicy) -> bool:
    return any(not policy.ignore.isdisjoint(change.path.split("/")) for change in changes)


class SessionFiles:
    """The file changes of a session; `session.files` gives it.

    It reads the record alone, so it works as well when the workspace is gone. What a merge of files
    did is worked out from its files while its program runs, and later from the record of both
    sides. What another session did in the same sandbox is told once it was merged. Every read waits
    for the run.

    A scope says which changes count. `run` is what was done by the operation that made the session,
    and to the session since; an undo and a merge count as changes. `workspace` is all since the
    session, or one that it came from, left the place of its parent for a workspace of its own.
    `whole` is all that led to the files of now.
    """

    __slots__ = ("_session",)

    def __init__(self, session: SessionBase) -> None:
        self._session = session

    def effects(
        self,
        *,
        call: str | ToolRun | None = None,
        since: str | ToolRun | None = None,
        scope: Scope = "run",
    ) -> tuple[CallEffect, ...]:
        """Return the changes in the order in which they were made, each with what made it.

        Args:
            call: Only those of this call: its id, or its entry in the record.
            since: Only those of this call and of all later ones.
            scope: Which changes count where neither is given.

        Raises:
            ValueError: There is no such call, or no such scope, or both were given.
            BackendError: What a merge of files did is not known any more; or calls were made of
                which the record tells nothing, as in a session that was loaded from a file.
        """
        require_scope(scope)
        wanted = self._find_wanted(call, since)
        if wanted is None:
            return tuple(each for step in self._steps(scope) for each in self._effects_of(step))
        if call is not None:
            place = None if wanted.sandbox is None else wanted.sandbox.sandbox_id
            return tuple(CallEffect(wanted, effect) for effect in effects_in(wanted, place))
        line = [
            Step(step.entry, tuple(each.effect for each in self._effects_of(step)))
            for step in self._steps("whole")
        ]
        effect_ids = {id(effect) for effect in undone_effects(line, wanted)}
        return tuple(
            each for step in line for each in step.call_effects() if id(each.effect) in effect_ids
        )

    def changes(
        self,
        *,
        call: str | ToolRun | None = None,
        since: str | ToolRun | None = None,
        scope: Scope = "run",
    ) -> tuple[FileEffect, ...]:
        """Return the net changes: one for each path, sorted by path.

        What was created and deleted again is left out; a file that was renamed several times was
        renamed once. The arguments are those of `effects`.
        """
        return net_changes(
            each.effect for each in self.effects(call=call, since=since, scope=scope)
        )

    def diff(
        self,
        *,
        call: str | ToolRun | None = None,
        since: str | ToolRun | None = None,
        scope: Scope = "run",
    ) -> str:
        """Return the changes as one unified diff, as `git apply` reads it.

        Files that are no UTF-8 text, and contents that were not kept, are said in a line of their
        own. The arguments are those of `effects`.
        """
        return unified_diff(self.changes(call=call, since=since, scope=scope))

    def gaps(self, *, scope: Scope = "run") -> tuple[EffectGap, ...]:
        """Return why effects may be missing, each reason with its call."""
        return tuple(gap for step in self._steps(scope) for gap in step.gaps())

    def ambiguous(self, *, scope: Scope = "run") -> tuple[CallEffect, ...]:
        """Return the changes that happened while several calls ran, so that any may have made them.

        Each is told by every one of these calls.
        """
        return tuple(
            each for each in self.effects(scope=scope) if each.effect.attribution == "ambiguous"
        )

    @property
    def conflicts(self) -> tuple[FileConflict, ...]:
        """The files on which the sides of a three-way merge did not agree; waits for the merge.

        The workspace has ours of them. Empty for a session that is no such merge. What was merged
        once stays the same: conflicts that were resolved since are still told.

        Raises:
            BackendError: The files of the two sides came from nothing that both had.
        """
        origin = self._session.core.placement.origin
        if isinstance(origin, MergeOrigin):
            return runtime().run(origin.amerge, label="a merge of files").conflicts
        record = self._session.record
        operations = (entry for entry in record if isinstance(entry, Operation))
        merge = next((each for each in operations if each.session == self._session.id), None)
        if merge is None or merge.workspace != "three-way":
            return ()
        return merge_in(tuple(record), merge).conflicts

    def apply_to(
        self,
        directory: str | PathLike[str],
        *,
        scope: Scope = "workspace",
        gaps: Literal["refuse", "ignore"] = "refuse",
    ) -> list[str]:
        """Write the changes into a directory of yours, all of them or none.

        Args:
            directory: Root of the tree to change, as the workspace was when the changes began.
            scope: Which changes; by default all since the session left that tree.
            gaps: Where effects may be missing, `ignore` writes those that the record tells. The
                workspace is looked at too, where it is a copy and can be opened.

        Returns:
            The paths that were written or removed, sorted; those that are so already are left out.

        Raises:
            ValueError: Files in the directory are neither as the changes found them nor as they
                left them, or the record may not tell of all changes, or contents were neither
                kept nor are in a sandbox that is still open; nothing was written.
            NotADirectoryError: There is no such directory.
            OSError: Something could not be written; the directory is as it was.
        """
        require_gaps(gaps)
        reasons = gap_reasons(self._steps(scope))
        changes, placement = self.changes(scope=scope), self._session.core.placement
        is_observed = partial(atells_all, placement, changes)
        if scope == "workspace" and not runtime().run(is_observed, label="a look at the workspace"):
            reasons.append("somebody else worked in the workspace, or in the one it came from")
        if reasons and gaps == "refuse":
            raise ValueError(
                f"nothing was written to {str(directory)!r}, since not all is known of what the "
                f"session changed: {'; '.join(reasons)}. Give gaps='ignore' to write what the "
                "record says"
            )
        contents = partial(contents_of, placement.held()) if placement.is_open else None
        return apply_changes(changes, directory, contents=contents)

    def _steps(self, scope: Scope) -> Sequence[Step]:
        session = self._session
        record = session.record
        steps = scoped_steps(record, session.id, scope, here_of(session.core.placement))
        begins = bool(steps) and begins_here(steps[0].entry, scope)
        if not begins and _has_untold_calls(session.chunk_table, record):
            raise BackendError(
                f"session {session.id} has results of calls of which its record tells nothing, as "
                "one that was loaded from a file, so nothing is known of what they did to files; "
                "ask for scope='run' of a session that was made from it"
            )
        return steps

    def _find_wanted(
        self, call: str | ToolRun | None, since: str | ToolRun | None
    ) -> ToolRun | None:
        if call is not None and since is not None:
            raise ValueError("call= and since= were both given; give one")
        wanted = call if since is None else since
        if wanted is None:
            return None
        record = self._session.record
        return find_call(record, wanted, own=own_steps(record, self._session.id))

    def _effects_of(self, step: Step) -> Sequence[CallEffect]:
        operation = step.entry
        if not isinstance(operation, Operation) or operation.workspace != "three-way":
            return tuple(step.call_effects())
        origin = merge_origin(self._session.core.placement.origin, operation.session)
        if origin is None:
            effects = merge_in(tuple(self._session.record), operation).effects
        else:
            effects = runtime().run(origin.aeffects, label="a merge of files")
        return [CallEffect(operation, effect) for effect in effects]


def _has_untold_calls(table: ChunkTable, record: Record) -> bool:
    recorded_rows = {row for entry in record if isinstance(entry, ToolRun) for row in entry.rows}
    return any(
        isinstance(row.content, ToolFeedback) and row.id not in recorded_rows for row in table
    )
