"""The files of a workspace from the records of its sessions: compared, and put into a new one."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from hashlib import file_digest, sha256

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.backend.abc import Backend, BackendSandboxSpec
from rath.backend.changes import EffectPolicy, FileState, manifest_digest
from rath.backend.effects import FileEffect
from rath.backend.host.git import check_out
from rath.backend.snapshots import FrozenWorkspace, NewFile, Seed, WorkspaceSnapshot
from rath.backend.start import WorkspaceStart, is_ignored, unpacked_files
from rath.backend.workspace import StoredWorkspace
from rath.errors import BackendError, RebuildError, WorkspaceLost
from rath.session.bindings import WorkspaceMode
from rath.session.body import Unfinished
from rath.session.files.changes import Step, line_of, net_changes
from rath.session.files.merge import merge_in
from rath.session.record import Entry, Operation, ToolRun

_FILE = stat.S_IFREG | 0o644
MAX_NAMED_PATHS = 5
"""How many paths a message names of those that differ."""


@dataclass(frozen=True, slots=True)
class SessionFileEntries:
    """Record entries of one session, for its changes of files."""

    entries: tuple[Entry, ...]
    is_there: bool
    """Whether it works in the workspace in question."""

    has_open_calls: bool
    """Whether calls were cut off that may have changed files."""


def history_of(
    record: Iterable[Entry], unfinished: Unfinished | None, *, is_there: bool
) -> SessionFileEntries:
    """Return the record entries of a session, with the results of a round that was cut off."""
    entries = tuple(record)
    if unfinished is None:
        return SessionFileEntries(entries, is_there, has_open_calls=False)
    known = {entry.id for entry in entries}
    results = (each.run for each in unfinished.results if each.run.id not in known)
    is_open = any(each.effects != "read_only" for each in unfinished.intents)
    return SessionFileEntries((*entries, *results), is_there, is_open)


def file_steps(histories: Sequence[SessionFileEntries]) -> list[Step]:
    """Return the steps that led to the files of a workspace that several sessions share, in order.

    Raises:
        BackendError: What a merge of files did is not known.
    """
    lines = sorted((_line(each.entries) for each in histories), key=len, reverse=True)
    if not lines:
        return []
    steps = lines[0]
    known = {step.entry.id for step in steps}
    others = {step.entry.id: step for line in lines[1:] for step in line}
    more = [step for entry, step in others.items() if entry not in known and step.effects]
    # One line is in order by itself, whatever the clocks of its machines say.
    return sorted([*steps, *more], key=lambda step: step.entry.at) if more else steps


def _line(entries: tuple[Entry, ...]) -> list[Step]:
    steps: list[Step] = []
    for step in line_of(entries).all_steps:
        entry = step.entry
        if isinstance(entry, Operation) and entry.workspace == "three-way":
            steps.append(Step(entry, tuple(merge_in(entries, entry).effects)))
        else:
            steps.append(step)
    return steps


def start_of(steps: Sequence[Step]) -> WorkspaceStart:
    """Return the files with which the first of the workspaces behind `steps` began."""
    for step in steps:
        if isinstance(step.entry, ToolRun) and step.entry.start is not None:
            return step.entry.start
        if step.effects:
            break
    return WorkspaceStart(reason="the files with which it began are not recorded")


@dataclass(frozen=True, slots=True)
class WorkspaceFiles:
    """The files of one workspace as the records of its sessions tell them; see `RecordedFiles`."""

    mode: WorkspaceMode
    histories: Callable[[], list[SessionFileEntries]]
    """All that is known by now; those of sessions in the workspace are marked."""

    def check(self, stored: StoredWorkspace, backend: str, directory: str) -> None:
        """Refuse a directory whose files are not those that the sessions left.

        What a call did that was cut off is not known: then any content may be its.
        """
        histories = self.histories()
        mine = [each for each in histories if each.is_there]
        if any(each.has_open_calls for each in mine):
            return
        try:
            steps = file_steps(mine)
        except BackendError:
            return
        if any(True for step in steps for _ in step.gaps()):
            return
        left = _left_by(each for each in histories if not each.is_there)
        wrong: dict[str, str] = {}
        for path, expected in _expected(net_changes(_effects(steps))).items():
            found = _digest_at(directory, path)
            if found != expected and (found is None or found not in left.get(path, ())):
                wrong[path] = "is not there" if found is None else "was changed"
        if wrong:
            paths = [f"{path!r} {what}" for path, what in wrong.items()]
            more = "" if len(paths) <= MAX_NAMED_PATHS else f" and {len(paths) - MAX_NAMED_PATHS}"
            raise WorkspaceLost(
                stored.directory or directory,
                backend,
                f"the files in {directory!r} as the session left them",
                f"{', '.join(paths[:MAX_NAMED_PATHS])}{more and f'{more} more'}",
            )

    def rebuild(
        self, backend: Backend, spec: BackendSandboxSpec | None, lost: WorkspaceLost
    ) -> RecordOrigin:
        """Return an origin that has all files, with their contents at hand."""
        missing: dict[str, str] = {}
        if not backend.capabilities().supports_workspace_copy:
            missing["."] = f"the {backend.name} backend cannot begin with files"
        steps = self._steps(missing)
        start = start_of(steps)
        begin = unpacked_files(start)
        checkout: tempfile.TemporaryDirectory[str] | None = None
        if begin is None and start.revision is not None and not missing:
            checkout = tempfile.TemporaryDirectory(prefix="rath-checkout-")
            why = check_out(start, checkout.name)
            if why is not None:
                missing["."] = f"revision {start.revision} of {start.remote!r}: {why}"
        elif begin is None:
            missing.setdefault(".", start.reason or "its first files are not in the store any more")
        policy = (None if spec is None else spec.effects) or EffectPolicy()
        changes = _contents(steps, begin or {}, missing)
        if not missing and begin is not None:
            _check_start(start, begin, policy, missing)
        if missing:
            if checkout is not None:
                checkout.cleanup()
            raise RebuildError(lost.workspace, backend.name, lost.expected, lost.found, missing)
        files = {**(begin or {}), **changes}
        return RecordOrigin(backend, spec, files, checkout, lost)

    def _steps(self, missing: dict[str, str]) -> list[Step]:
        """Return the steps behind the files, and note what is not known of them."""
        mine = [each for each in self.histories() if each.is_there]
        try:
            steps = file_steps(mine)
        except BackendError as exc:
            missing["."] = str(exc)
            return []
        for step in steps:
            for gap in step.gaps():
                missing.setdefault(f"{gap.call.tool} ({gap.call.call_id})", gap.reason)
        return steps


@dataclass(frozen=True, slots=True, eq=False)
class RecordOrigin:
    """Files from a record, for a new workspace on the backend of the old one."""

    backend: Backend
    spec: BackendSandboxSpec | None
    files: Mapping[str, NewFile | None]
    """What is put in, by path; None for what is taken away from a checkout."""

    checkout: tempfile.TemporaryDirectory[str] | None
    """What it begins with, where that is a revision; else with nothing."""

    lost: WorkspaceLost
    _expected: list[str] = field(default_factory=list[str])

    async def __call__(self) -> Seed:
        base = await self._abase()
        policy = (None if self.spec is None else self.spec.effects) or EffectPolicy()
        states = {
            path: state
            for path, state in (await base.amanifest()).items()
            if not is_ignored(path, policy)
        }
        for path, new in self.files.items():
            if new is None:
                states.pop(path, None)
            elif not is_ignored(path, policy):
                states[path] = FileState(sha256(new.data).hexdigest(), len(new.data), new.mode)
        self._expected[:] = [manifest_digest(states)]
        changes = self.files
        if self.checkout is None:
            changes = {path: new for path, new in changes.items() if new is not None}
        return Seed(base, changes)

    async def acheck(self, digest: str | None) -> None:
        if digest is not None and [digest] != self._expected:
            lost = self.lost
            missing = {".": "what was rebuilt is not what the record says"}
            raise RebuildError(lost.workspace, lost.backend, lost.expected, lost.found, missing)

    async def _abase(self) -> FrozenWorkspace:
        if self.checkout is None:
            return self.backend.freeze(self.backend.lazy(self.spec))
        spec = BackendSandboxSpec(working_dir=self.checkout.name)
        base = self.backend.freeze(self.backend.lazy(spec))
        if isinstance(base, WorkspaceSnapshot):
            await base.asecure()
        await runtime().call_in_worker(self.checkout.cleanup)
        return base


def _effects(steps: Iterable[Step]) -> Iterator[FileEffect]:
    return (effect for step in steps for effect in step.effects)


def _expected(changes: Iterable[FileEffect]) -> dict[str, str | None]:
    """Return the digests that paths have after changes, None for no file."""
    expected: dict[str, str | None] = {}
    for change in changes:
        if change.renamed_from is not None:
            expected.setdefault(change.renamed_from, None)
        expected[change.path] = None if change.after is None else change.after.digest
    return expected


def _left_by(histories: Iterable[SessionFileEntries]) -> dict[str, set[str]]:
    """Return the contents that calls have left, by path."""
    left: dict[str, set[str]] = {}
    for history in histories:
        for entry in history.entries:
            for effect in entry.file_effects if isinstance(entry, ToolRun) else ():
                if effect.after is not None:
                    left.setdefault(effect.path, set()).add(effect.after.digest)
    return left


def _digest_at(directory: str, path: str) -> str | None:
    """Return the sha256 of a file or of a link's target, None where there is neither."""
    place = os.path.join(directory, path)
    if ".." in path.split("/") or os.path.isabs(path):
        return None  # a record may be hostile
    with suppress(OSError, ValueError):
        if os.path.islink(place):
            return sha256(os.fsencode(os.readlink(place))).hexdigest()
        if os.path.isfile(place):
            with open(place, "rb") as file:
                return file_digest(file, "sha256").hexdigest()
    return None


def _contents(
    steps: Sequence[Step], begin: Mapping[str, NewFile], missing: dict[str, str]
) -> dict[str, NewFile | None]:
    """Return what differs from the first files, and note paths whose content cannot be had."""
    changes = net_changes(_effects(steps))
    blobs: dict[str, Blob] = {}
    for effect in _effects(steps):
        for blob in (effect.before, effect.after):
            if blob is not None and blob.is_kept:
                blobs.setdefault(blob.digest, blob)
    files = {sha256(new.data).hexdigest(): new.data for new in begin.values()}
    new_files: dict[str, NewFile | None] = {}
    for change in changes:
        if change.renamed_from is not None:
            new_files.setdefault(change.renamed_from, None)
        if change.after is None:
            new_files[change.path] = None
            continue
        digest = change.after.digest
        blob = blobs.get(digest)
        data = files.get(digest, None if blob is None else blob.data)
        if data is None or sha256(data).hexdigest() != digest:
            where = "was not kept" if blob is None else "is not in the store any more"
            missing[change.path] = f"its content, sha256 {digest[:12]}, {where}"
        else:
            new_files[change.path] = NewFile(data, change.after_mode or _FILE)
    return new_files


def _check_start(
    start: WorkspaceStart,
    begin: Mapping[str, NewFile],
    policy: EffectPolicy,
    missing: dict[str, str],
) -> None:
    states = {
        path: FileState(sha256(new.data).hexdigest(), len(new.data), new.mode)
        for path, new in begin.items()
        if not is_ignored(path, policy)
    }
    if manifest_digest(states) != start.digest:
        missing["."] = "the files with which it began are not those of their digest"


__all__ = ["SessionFileEntries", "WorkspaceFiles", "history_of"]
