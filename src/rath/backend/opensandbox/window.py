"""Effects of commands and code in a sandbox: what changed in its workspace while they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rath._core.blobs import MAX_BLOB_BYTES
from rath.backend.changes import EffectPolicy, TreeState, diff, manifest_digest
from rath.backend.effects import FileEffect, is_observed, note_effect, note_gap, paused_deadlines
from rath.backend.opensandbox.faults import RemoteFault
from rath.backend.opensandbox.looking import CannotLook, look
from rath.backend.opensandbox.remote import Gone, RemoteSandbox

T = TypeVar("T")

CUT_SHORT = "the operation was cancelled, and what it had changed was not looked for"
NOT_KEPT = (
    "some contents were not kept, only their digests: one look fetches no more, or they could not "
    "be read"
)
OFF = "effects were not looked for (EffectPolicy.is_on is False)"


async def observed(sandbox: RemoteSandbox, run: Callable[[], Awaitable[T]]) -> T:
    """Run a command or code and tell whoever observes what changed meanwhile.

    Called with the lock of the sandbox held. What changed is known by looking before and after,
    so it is attributed to the time and not to the operation.
    """
    if not is_observed():
        return await run()
    policy = sandbox.spec.effects or EffectPolicy()
    if not policy.is_on:
        note_gap(OFF)
        return await run()
    async with sandbox.changes.looking():
        before = await _looked(sandbox, policy)
        sandbox.changes.begin()
    try:
        result = await run()
    except asyncio.CancelledError:
        note_gap(CUT_SHORT)
        raise
    except Exception:
        # What became of it may not be known, but what it changed is there to be seen.
        await _tell(sandbox, policy, before)
        raise
    else:
        await _tell(sandbox, policy, before)
        return result
    finally:
        sandbox.changes.end()


async def workspace_digest(sandbox: RemoteSandbox) -> str | None:
    """Return one digest over the files of the workspace, None if one of them is not known."""
    async with sandbox.changes.looking():
        snapshot = await _look(sandbox, sandbox.spec.effects or EffectPolicy())
    manifest = snapshot.manifest()
    return None if manifest is None else manifest_digest(manifest)


async def _tell(sandbox: RemoteSandbox, policy: EffectPolicy, before: TreeState | None) -> None:
    if before is None:
        return
    async with sandbox.changes.looking():
        after = await _looked(sandbox, policy)
        noted = sandbox.changes.end()
    if after is None:
        return
    exact = {path: effects for path, effects in noted.items() if not _is_ignored(path, policy)}
    if before.is_too_large or after.is_too_large:
        note_gap(f"the workspace has more than {policy.max_files} files: nothing was looked for")
    found = diff(before, after, exact, to_blob=sandbox.contents.blob_of, attribution="window")
    for effect in found.effects:
        note_effect(effect)
    if policy.keep_contents and any(_lacks_content(effect) for effect in found.effects):
        note_gap(NOT_KEPT)
    for gap in found.gaps:
        note_gap(gap)


def _is_ignored(path: str, policy: EffectPolicy) -> bool:
    return not policy.ignore.isdisjoint(path.split("/")[:-1])


def _lacks_content(effect: FileEffect) -> bool:
    sides = (effect.before, effect.after)
    return any(
        each is not None and each.data is None and each.size <= MAX_BLOB_BYTES for each in sides
    )


async def _looked(sandbox: RemoteSandbox, policy: EffectPolicy) -> TreeState | None:
    try:
        with paused_deadlines():
            return await _look(sandbox, policy)
    except (CannotLook, RemoteFault) as exc:
        note_gap(str(exc))
    except Gone:
        note_gap(f"the sandbox {sandbox.handle} ended, and what had changed in it went with it")
    return None


async def _look(sandbox: RemoteSandbox, policy: EffectPolicy) -> TreeState:
    client = await sandbox.client()
    return await look(client, policy, known=sandbox.known, contents=sandbox.contents)
