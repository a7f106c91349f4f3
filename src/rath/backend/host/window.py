"""Effects of commands and code: what changed in the workspace while they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from rath._async.runtime import runtime
from rath.backend.effects import is_observed, note_effect, note_gap
from rath.backend.host.sandbox import HostSandbox
from rath.backend.host.tree import Tree, working_on
from rath.backend.host.view import Operation, View, tick
from rath.backend.manifest import EffectPolicy, manifest_digest
from rath.backend.own_time import looking
from rath.backend.tool_types import BackendTool, BackendToolFilesEdit, BackendToolFilesWrite

T = TypeVar("T")

CANCEL_SECONDS = 0.5
"""How long a cancelled operation may look for its effects; exit leaves 1.2 s for all. A guess."""

CUT_SHORT = (
    f"the operation was cancelled, and its effects could not be looked for in {CANCEL_SECONDS:g} s"
)
OFF = "effects were not looked for (EffectPolicy.is_on is False)"
LEFT_RUNNING = (
    "a process that a command started goes on running in the sandbox, and nobody looks at what it "
    "changes after the command"
)

_EXACT = (BackendToolFilesWrite, BackendToolFilesEdit)


async def observed(native: HostSandbox, op: BackendTool, run: Callable[[], Awaitable[T]]) -> T:
    """Run an operation and tell whoever observes what it changed.

    File tools tell that themselves; of anything else that may write, the workspace is looked at
    before and after. While nobody observes nothing is looked at, but the operation still counts
    for the attribution of others.
    """
    if op.read_only:
        return await run()
    tree = native.watch.at(native.workspace, native.guard.layer)
    with working_on(tree):
        if isinstance(op, _EXACT):
            return await run()
        if not is_observed():
            return await _counted(tree, Operation(), run)
        policy = native.spec.effects or EffectPolicy()
        settled = partial(_settled, native, run)
        try:
            if policy.is_on:
                return await _in_window(tree, policy, settled)
            note_gap(OFF)
            return await _counted(tree, Operation(), settled)
        finally:
            if not native.leftovers.is_empty:
                note_gap(LEFT_RUNNING)


async def workspace_digest(native: HostSandbox) -> str | None:
    """Return one digest over all files of the workspace, None if one of them is not known."""
    tree = native.watch.at(native.workspace, native.guard.layer)
    view = tree.view(native.spec.effects or EffectPolicy())
    manifest = await runtime().call_in_worker(view.manifest)
    if manifest is None:
        return None
    return await runtime().call_in_worker(partial(manifest_digest, manifest))


async def _settled(native: HostSandbox, run: Callable[[], Awaitable[T]]) -> T:
    before = native.leftovers.now()
    result = await run()
    await native.leftovers.asettle(before)
    return result


async def _counted(tree: Tree, operation: Operation, run: Callable[[], Awaitable[T]]) -> T:
    tree.begin(operation)
    try:
        return await run()
    finally:
        tree.end(operation)


async def _in_window(tree: Tree, policy: EffectPolicy, run: Callable[[], Awaitable[T]]) -> T:
    view = tree.view(policy)
    operation = view.open_window()
    try:
        with looking():
            await runtime().call_in_worker(partial(view.look, tick()))
        try:
            result = await _counted(tree, operation, run)
        except asyncio.CancelledError:
            await _finish(view, operation, CANCEL_SECONDS)
            raise
        except BaseException:
            await _finish(view, operation, None)
            raise
        await _finish(view, operation, None)
        return result
    finally:
        view.close_window()
        tree.forget_ended()


async def _finish(view: View, operation: Operation, seconds: float | None) -> None:
    """Look once more and tell what was found; a cancellation makes it short."""
    look = asyncio.wrap_future(runtime().start_in_worker(partial(view.finish, operation)))
    try:
        with looking():
            await asyncio.wait([look], timeout=seconds)
    except asyncio.CancelledError:
        if seconds is None:
            await asyncio.wait([look], timeout=CANCEL_SECONDS)
        raise
    finally:
        _tell(operation, is_whole=look.done())
    if look.done():
        look.result()


def _tell(operation: Operation, *, is_whole: bool) -> None:
    for effect in list(operation.effects):
        note_effect(effect)
    for gap in list(operation.gaps):
        note_gap(gap)
    if not is_whole:
        note_gap(CUT_SHORT)
