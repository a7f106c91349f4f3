"""Whether a record tells of all that happened to the files of a session."""

from __future__ import annotations

from collections.abc import Sequence

from rath.backend.effects import FileEffect
from rath.backend.frozen import FrozenWorkspace
from rath.backend.manifest import EffectPolicy, FileState, Manifest, manifest_digest
from rath.session.placement import Placement
from rath.session.workspace import CopyOrigin, origin_above


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
    made = dict(manifest)
    for change in changes:
        made.pop(change.renamed_from or change.path, None)
    for change in changes:
        if change.after is None:
            continue
        if change.after_mode is None:
            return None
        made[change.path] = FileState(change.after.digest, change.after.size, change.after_mode)
    return made


def _has_ignored(changes: Sequence[FileEffect], policy: EffectPolicy) -> bool:
    return any(not policy.ignore.isdisjoint(change.path.split("/")) for change in changes)
