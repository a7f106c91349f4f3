"""The file changes of a session, read from its record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Literal, Protocol
from uuid import UUID

from rath._async.runtime import runtime
from rath.backend.effects import FileEffect
from rath.errors import BackendError
from rath.session.bindings import Placement
from rath.session.chunk import ChunkTable
from rath.session.content import ToolFeedback
from rath.session.files.apply import apply_changes, contents_of
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
from rath.session.files.merge import FileConflict, merge_in
from rath.session.files.workspace import MergeOrigin, atells_all, merge_origin
from rath.session.record import Operation, Record, ToolRun


class _WithFiles(Protocol):
    """The part of a session that its file changes are read from."""

    @property
    def id(self) -> UUID: ...

    @property
    def chunk_table(self) -> ChunkTable: ...
    @property
    def record(self) -> Record: ...
    @property
    def placement(self) -> Placement: ...


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

    def __init__(self, session: _WithFiles) -> None:
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
        origin = self._session.placement.origin
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
        changes, placement = self.changes(scope=scope), self._session.placement
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
        steps = scoped_steps(record, session.id, scope, here_of(session.placement))
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
        origin = merge_origin(self._session.placement.origin, operation.session)
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
