"""All sandboxes and snapshots of one server, and what stands on the disk for them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path

from tests.support.opensandbox_server.container import (
    BrokenExchangeError,
    Container,
    base_environment,
    copy_root,
    install_daemon,
    make_root,
    remove_tree,
)
from tests.support.opensandbox_server.http import CapturedRequest
from tests.support.opensandbox_server.records import Clock, Sandbox, Snapshot
from tests.support.opensandbox_server.wishes import Wish, has_runtime, read_mounts, refusal

Changed = Callable[[Sandbox], Coroutine[None, None, None]]


class Runtime:
    """Makes, changes and removes sandboxes.

    All methods belong to the thread of the server.

    Args:
        root: Directory of the server's own; everything stands below it.
        on_opened: Called for each new sandbox, to make its daemon reachable.
        on_closed: Called for each sandbox that is gone.
    """

    def __init__(
        self,
        root: Path,
        *,
        on_opened: Changed,
        on_closed: Changed,
    ) -> None:
        self.clock = Clock()
        self.allowed_host_paths: list[Path] = []
        self.sandboxes: dict[str, Sandbox] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self._containers: list[Container] = []
        self._root = root
        self._library = root / "lib"
        self._on_opened = on_opened
        self._on_closed = on_closed
        for name in ("sandboxes", "snapshots", "volumes"):
            (root / name).mkdir()
        install_daemon(self._library)

    async def open(self, wish: Wish) -> Sandbox:
        """Make a sandbox; it answers when this returns."""
        sandbox_id = str(uuid.uuid4())
        root = self._root / "sandboxes" / sandbox_id
        source = wish.source
        if wish.snapshot_id is None:
            root.mkdir()
            make_root(root)
        else:
            snapshot = self.snapshot(wish.snapshot_id)
            source = snapshot.source
            await asyncio.to_thread(copy_root, snapshot.root, root)
        container = Container(
            root,
            self._library,
            env={**base_environment(sandbox_id), **wish.env},
            mounts=read_mounts(wish.volumes, self.allowed_host_paths, self._root / "volumes", root),
            has_runtime=has_runtime(source),
        )
        self._containers.append(container)
        now = self.clock.now()
        expires_at = None if wish.timeout is None else now + timedelta(seconds=wish.timeout)
        sandbox = Sandbox(
            sandbox_id,
            wish.source,
            wish.entrypoint,
            dict(wish.metadata),
            now,
            expires_at,
            now,
            container,
        )
        sandbox.may_answer.set()
        await self._start(sandbox)
        self.sandboxes[sandbox_id] = sandbox
        await self._on_opened(sandbox)
        return sandbox

    async def close(self, sandbox: Sandbox) -> None:
        """End a sandbox and delete its files."""
        if self.sandboxes.pop(sandbox.id, None) is None:
            return
        await self._on_closed(sandbox)
        await sandbox.container.stop()
        self._containers.remove(sandbox.container)
        sandbox.may_answer.set()  # what waited for it finds that it is gone
        await asyncio.to_thread(remove_tree, sandbox.container.root)

    async def expire(self) -> None:
        """End the sandboxes whose time is over."""
        now = self.clock.now()
        for sandbox in [*self.sandboxes.values()]:
            if sandbox.expires_at is not None and sandbox.expires_at <= now:
                await self.close(sandbox)

    async def pause(self, sandbox: Sandbox) -> None:
        """Let nothing in a sandbox go on."""
        sandbox.may_answer.clear()
        await _tell(sandbox, "FREEZE")
        sandbox.is_paused = True

    async def resume(self, sandbox: Sandbox) -> None:
        """Let everything go on."""
        await _tell(sandbox, "THAW")
        sandbox.is_paused = False
        sandbox.may_answer.set()

    async def snap(self, sandbox: Sandbox, name: str | None) -> Snapshot:
        """Copy the files of a sandbox, which stands still meanwhile."""
        snapshot_id = str(uuid.uuid4())
        root = self._root / "snapshots" / snapshot_id
        await _tell(sandbox, "FREEZE")
        try:
            await asyncio.to_thread(copy_root, sandbox.container.root, root)
        finally:
            if not sandbox.is_paused:
                await _tell(sandbox, "THAW")
        known = self.snapshots.get(str(sandbox.source.get("snapshotId")))
        source = sandbox.source if known is None else known.source
        made = Snapshot(snapshot_id, sandbox.id, name, self.clock.now(), root, source)
        self.snapshots[snapshot_id] = made
        return made

    async def drop_snapshot(self, snapshot: Snapshot) -> None:
        """Delete a snapshot; sandboxes made of it stay."""
        del self.snapshots[snapshot.id]
        await asyncio.to_thread(remove_tree, snapshot.root)

    async def renew_processes(self) -> None:
        """End the processes of every sandbox and start new ones on the same files."""
        for sandbox in self.sandboxes.values():
            await sandbox.container.stop()
            await self._start(sandbox)
            sandbox.is_paused = False
            sandbox.may_answer.set()

    async def stop(self) -> None:
        """End all processes, also those of sandboxes that are half made or half gone."""
        await asyncio.gather(*(each.stop() for each in self._containers))

    def complaints(self) -> str:
        """What daemons wrote about failures of their own."""
        logs = sorted((self._root / "sandboxes").glob("*.log"))
        texts = [log.read_text("utf-8", "replace") for log in logs]
        return "\n".join(text for text in texts if "Traceback" in text)

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox by its id; refused when there is none."""
        found = self.sandboxes.get(sandbox_id)
        if found is None:
            text = f"Sandbox {sandbox_id} not found."
            raise refusal(404, "DOCKER::SANDBOX_NOT_FOUND", text)
        return found

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """A snapshot by its id; refused when there is none."""
        found = self.snapshots.get(snapshot_id)
        if found is None:
            raise refusal(404, "SNAPSHOT::NOT_FOUND", f"Snapshot {snapshot_id} not found")
        return found

    async def _start(self, sandbox: Sandbox) -> None:
        sandbox.container.start()
        try:
            await _ask(sandbox, CapturedRequest("GET", "/ping", (), {}, b""))
        except BrokenExchangeError as exc:
            await sandbox.container.stop()
            text = sandbox.container.log.read_text("utf-8", "replace").strip()
            raise refusal(500, "DOCKER::SANDBOX_START_FAILED", text) from exc


async def _tell(sandbox: Sandbox, verb: str) -> None:
    """Give the daemon an order that no client can give."""
    await _ask(sandbox, CapturedRequest(verb, "/", (), {}, b""))


async def _ask(sandbox: Sandbox, request: CapturedRequest) -> None:
    exchange = await sandbox.container.exchange(request)
    async for _ in exchange.blocks:
        pass
