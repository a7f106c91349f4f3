"""Sessions made from sessions: fork, say, detach, merge, undo; and how they are saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.lazy_imports import lazy_function, lazy_modules
from rath.llm.image import ImageSource
from rath.session.base import SessionBase
from rath.session.bindings import Placement
from rath.session.body import Body, branched, continued, delegated, derived, merged
from rath.session.chunk import ChunkRow, ChunkTable, user_text_chunk
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import PARENT_ROWS, Edge, note_content, stamped
from rath.session.operation import Place
from rath.session.record import Operation, OperationKind, ToolRun, Workspace
from rath.session.scope import (
    DerivedKind,
    RecordedSession,
    collect_session,
    current_source,
    derived_place,
    recording_store,
)

if TYPE_CHECKING:
    from rath.session import autosave
    from rath.session.files import changes, session_files
    from rath.session.files.session_files import CopyOrigin
else:
    session_files, changes, autosave = lazy_modules(
        __name__,
        "rath.session.files.session_files",
        "rath.session.files.changes",
        "rath.session.autosave",
    )


# Only where a program is resumed.
_find_derivation = lazy_function("rath.session.programs", "find_derivation")
_keep_derivation = lazy_function("rath.session.loading", "keep_derivation")


def keep_derivation(session: Branching) -> None:
    """Store a derivation where every session is stored; see `rath.session.loading`."""
    around = recording_store() or current_source()
    if around is not None or autosave.is_autosaving_lately():
        _keep_derivation(session)


MergedFiles = Literal["ours", "theirs", "three-way"]
"""Whose files a merged session has, in a workspace of its own."""


_OPERATORS: Mapping[DerivedKind, tuple[str, LineageKind]] = {
    "fork": ("Session.fork", LineageKind.OP_FORK),
    "detach": ("Session.detach", LineageKind.OP_DETACH),
    "merge": ("Session.merge", LineageKind.OP_MERGE),
    "delegate": ("Session.delegate", LineageKind.OP_DELEGATE),
    "input": ("input", LineageKind.OP_INPUT),
}


class _Derivation(NamedTuple):
    """A derivation and the place of its session; a tuple, since forks are many."""

    id: UUID
    """The session that is made."""

    place: Place
    operator: str
    kind: LineageKind
    operation: OperationKind
    parents: tuple[Edge, ...]
    placement: Placement
    workspace: Workspace = "share"
    undone: UUID | None = None
    origin: str | None = None
    extras: tuple[tuple[str, Any], ...] = ()
    after: tuple[Deferred[Any], ...] = ()
    """What must be there before the content is."""

    new_rows: tuple[ChunkRow, ...] = ()
    """The last rows of the session, where they are not those of a parent."""


class Branching(SessionBase):
    """How a session makes others; each costs the same whatever the length of the session.

    What is made is lazy where its input is. It has the files of its parent, in the same place
    unless it is given a workspace of its own.
    """

    __slots__ = ()

    def fork(self, *, workspace: Literal["share", "copy"] = "share") -> Self:
        """Return a branch: same rows, a child of this session.

        Args:
            workspace: `share`: it works in the same sandbox. `copy`: it gets a sandbox of its own
                on first use, with the files as they are now, or as they are when a run that is
                still going has ended. Neither side sees what the other one changes later. The
                files are copied when one side changes some, not before.

        Raises:
            ValueError: A copy was asked for and this session has no place; `.to(...)` gives one.
            BackendError: The backend cannot copy a workspace.
        """
        if workspace not in ("share", "copy"):
            raise ValueError(f"unknown workspace {workspace!r}: expected 'share' or 'copy'")
        plan = self._plan("fork", placement=Placement() if workspace == "copy" else None)
        if workspace == "copy":
            origin = frozen_files(self, "a fork with a workspace of its own")
            plan = plan._replace(
                placement=self.core.placement.beginning_with(origin),
                workspace=workspace,
                origin=origin_of_files(self),
                extras=(("workspace", workspace),),
                after=(origin.frozen,),
            )
        return self._new_session(plan, partial(branched, self.core.inheritor()), self.core.body)

    def detach(self) -> Self:
        """Return a session with the same rows and no parents, in the same sandbox."""
        plan = self._plan("detach")._replace(parents=())
        return self._new_session(plan, partial(branched, self.core.inheritor()), self.core.body)

    def merge(self, other: Branching, *, files: MergedFiles | None = None) -> Self:
        """Return this session's rows and then those of `other` that it does not share.

        The rows of the common beginning stand once.

        Args:
            other: The session whose rows come after.
            files: None: it works in this session's sandbox. Else it gets a sandbox of its own on
                first use: with the files of this session (`ours`), with those of `other`
                (`theirs`), or with what both made of the files they came from (`three-way`);
                what they do not agree on is in `files.conflicts`. Both are taken as they are now,
                or when their runs have ended, and stay as they are.

        Raises:
            TypeError: `other` is no session.
            ValueError: The sessions are placed on different backends; or `files` was given and one
                has no place, or their files have no common beginning.
            BackendError: The backend cannot copy a workspace.
        """
        if not isinstance(other, Branching):
            raise TypeError(f"merge needs another Session, not {type(other).__name__}")
        _require_one_backend(self.core.placement, other.core.placement, files)
        plan = self._plan("merge", other, placement=None if files is None else Placement())
        if files is not None:
            plan = self._with_merged_files(plan, other, files)
        derive = partial(merged, self.core.inheritor(), other.core.inheritor())
        return self._new_session(plan, derive, self.core.body, other.core.body)

    def _with_merged_files(
        self, plan: _Derivation, other: Branching, files: MergedFiles
    ) -> _Derivation:
        sides = {"ours": (self,), "theirs": (other,), "three-way": (self, other)}[files]
        frozen = [frozen_files(side, f"a merge with files={files!r}") for side in sides]
        origin = (
            frozen[0]
            if len(frozen) == 1
            else session_files.MergeOrigin(plan.id, frozen[0], frozen[1])
        )
        if (
            isinstance(origin, session_files.MergeOrigin)
            and self.core.placement.is_open
            and other.core.placement.is_open
        ):
            origin.require_common_files()
        return plan._replace(
            placement=sides[0].core.placement.beginning_with(origin),
            workspace=files,
            origin=origin_of_files(sides[0]),
            extras=(("files", files),),
            after=tuple(each.frozen for each in frozen),
        )

    def undo(self, call: str | ToolRun, *, gaps: Literal["refuse", "ignore"] = "refuse") -> Self:
        """Return a branch in which a tool call, and all that came after it, was not made.

        Its rows end before the result of the call; where the call is the first of its turn they
        end before the turn. It gets a sandbox of its own on first use, with the files as the record
        says they were before the call. This session and its files stay as they are. Waits for the
        run.

        Args:
            call: The id of the call, or its entry in the record.
            gaps: What to do when the record does not tell for sure what the undone calls changed:
                `ignore` undoes what it says.

        Raises:
            ValueError: There is no such call, or it cannot be undone: the record lacks contents,
                or the call lies before a merge of files, or it ran inside another call.
            BackendError: The backend cannot copy a workspace. When the new sandbox is opened: files
                are not as the record says the session left them.
        """
        content = self.core.inherited(self.core.body.result())
        undo = changes.plan_undo(
            content,
            call,
            session=self.id,
            gaps=gaps,
            here=changes.here_of(self.core.placement),
        )
        origin = session_files.UndoOrigin(frozen_files(self, "an undo"), undo.changes)
        plan = self._plan("fork", placement=self.core.placement.beginning_with(origin))._replace(
            operator="Session.undo",
            workspace="undo",
            undone=undo.call.id,
            origin=origin_of_files(self),
            extras=(("call", undo.call.call_id),),
        )
        return self._new_session(plan, partial(branched, _as_it_is), Deferred.of(undo.body))

    def delegate(self, task: str, *, images: Sequence[ImageSource] | None = ()) -> Self:
        """Return a child of this session in which the user says `task`, and nothing else.

        It works in the same sandbox, and has the record so far: what it uses counts to the same
        budget. So a tool begins the session of an agent that it asks.

        Args:
            task: What the user says.
            images: What the user shows: paths or bytes.

        Raises:
            TypeError: `task` is no text.
        """
        row = _user_row("a task is text", task, images)
        plan = self._plan("delegate")
        rows = ChunkTable().born_in(plan.id, [row])
        content = self.core.body.latest if self.core.body.done() else None
        extras = () if content is None else ((PARENT_ROWS, len(content.table)),)
        plan = plan._replace(extras=extras, new_rows=rows.rows)
        return self._new_session(
            plan, partial(delegated, rows, self.core.inheritor()), self.core.body
        )

    def say(self, text: str, images: Sequence[ImageSource] | None = ()) -> Self:
        """Return a child of this session in which the user says `text` next.

        So a conversation goes on: `agent(session.say("And now?"))`, or `agent(session,
        "And now?")`. Returns at once, also while the run of this session goes on. What this
        session waits for is passed on, as is that it was cancelled: then no model is asked.

        Args:
            text: What the user says.
            images: What the user shows: paths or bytes.

        Raises:
            TypeError: `text` is no str.
        """
        row = _user_row("what the user says is text", text, images)
        plan = self._plan("input")._replace(new_rows=(row,))
        return self._new_session(
            plan, partial(continued, row, self.core.inheritor()), self.core.body
        )

    def _plan(
        self, operation: DerivedKind, *others: Branching, placement: Placement | None = None
    ) -> _Derivation:
        place = derived_place(operation, self, *others)
        # Forks are many, and have one parent.
        parents: tuple[Edge, ...] = (self.core.as_parent(),)
        if others:
            parents += tuple(other.core.as_parent() for other in others)
        placement = placement or self.core.placement.share()
        operator, kind = _OPERATORS[operation]
        return _Derivation(place.new_id(), place, operator, kind, operation, parents, placement)

    def _new_session(
        self, plan: _Derivation, derive: Callable[..., Body], *cells: Deferred[Body]
    ) -> Self:
        session_id = plan.id
        before: RecordedSession | None = None
        if current_source() is not None:
            before = _find_derivation(
                plan.place,
                plan.operation,
                (plan.parents, cells),
                workspace=plan.workspace,
                rows=plan.new_rows,
            )
        # A derivation is its own run: one id serves the session and the operation.
        entry = Operation(
            operation=session_id,
            id=session_id,
            kind=plan.operation,
            place=plan.place,
            session=session_id,
            workspace=plan.workspace,
            undone=plan.undone,
            origin=plan.origin,
        )
        content = (
            derived(cells, partial(derive, entry), session_id, plan.operation, after=plan.after)
            if before is None
            else before.body
        )
        derivation = self.from_body(
            content,
            stamped(session_id, plan.operator, plan.kind, plan.parents, plan.extras),
            id=session_id,
            placement=_placement_of(plan, before),
            provider=self.core.provider,
        )
        note_content(derivation)
        if before is not None:
            derivation.core.late = before.late
            return derivation
        collect_session(derivation)
        keep_derivation(derivation)
        return derivation


def frozen_files(session: SessionBase, operation: str) -> CopyOrigin:
    """Return the files of a session, frozen now or when its run has ended.

    Raises:
        ValueError: It has no place.
        BackendError: The backend cannot copy a workspace.
    """
    if not session.core.placement.is_chosen:
        raise ValueError(
            f"{operation} needs the files of session {session.id}, which has no sandbox to copy "
            'them from; place it first, for example session.to("local", spec="./project")'
        )
    above = session_files.origin_above(session.core.placement.origin)
    return session_files.CopyOrigin(
        session_files.freeze(session.core.body, session.core.placement, session.id),
        session.id,
        above,
    )


def origin_of_files(session: SessionBase) -> str | None:
    """Return the handle of a session's sandbox; None where the record has to tell it."""
    here = session.core.placement.here
    # The run that is still going may open the sandbox.
    return here if here or session.core.body.done() else None


def _user_row(expected: str, text: object, images: Sequence[ImageSource] | None) -> ChunkRow:
    if not isinstance(text, str):
        raise TypeError(f"{expected}, not {type(text).__name__}: {text!r:.80}")
    return user_text_chunk(text, images=images)


def _placement_of(plan: _Derivation, before: RecordedSession | None) -> Placement:
    """Return where a derivation works; one that had files of its own has those that it had."""
    if before is None or plan.workspace == "share":
        return plan.placement
    return before.placed(plan.placement).share()


def _as_it_is(body: Body) -> Body:
    return body


def _require_one_backend(mine: Placement, theirs: Placement, files: MergedFiles | None) -> None:
    if files is not None and files not in get_args(MergedFiles):
        raise ValueError(
            f"unknown files {files!r}: expected 'ours', 'theirs', 'three-way', or None for those "
            "of the first session in its own place"
        )
    places = {mine.backend, theirs.backend} - {None}
    is_open = mine.sandbox is not None or theirs.sandbox is not None
    if len(places) < 2 or (is_open and files is None):
        return
    when = "" if files is not None else " before either has a sandbox"
    raise ValueError(
        f"cannot merge sessions on different backends ({mine.backend!r} and "
        f"{theirs.backend!r}){when}; place both alike with .to(...)"
    )
