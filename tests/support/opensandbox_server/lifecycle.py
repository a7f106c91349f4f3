"""The lifecycle API: sandboxes and snapshots of the server, asked for under `/v1`."""

from __future__ import annotations

import asyncio
import fnmatch
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl

from tests.support.opensandbox_server.container import (
    BrokenExchangeError,
    Container,
    Mount,
    base_environment,
    copy_root,
    install_daemon,
    make_root,
    remove_tree,
)
from tests.support.opensandbox_server.http import (
    CapturedRequest,
    Reply,
    error_reply,
    json_reply,
)

_KEY = "open-sandbox-api-key"
_MIN_TIMEOUT = 60
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_STATES = {
    "Running": ("CONTAINER_RUNNING", "Sandbox container is running."),
    "Failed": ("CONTAINER_EXITED_ERROR", "Sandbox container exited."),
}

Handler = Callable[[CapturedRequest, str], Awaitable[Reply]]


class RefusalError(Exception):
    """A request that is refused, with the answer of the real server."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body)
        self.reply = reply


def refusal(status: int, code: str, message: str) -> RefusalError:
    """An error in the form of the API."""
    return RefusalError(error_reply(status, code, message))


@dataclass(slots=True)
class Sandbox:
    """One sandbox."""

    id: str
    source: Mapping[str, Any]
    """`image` or `snapshotId`, as asked for."""
    entrypoint: Sequence[str]
    metadata: dict[str, str]
    created_at: datetime
    expires_at: datetime | None
    container: Container
    port: int = 0
    """Where its daemon is reached."""

    def description(self) -> dict[str, Any]:
        """What the API tells of it."""
        state = "Running" if self.container.is_running else "Failed"
        reason, message = _STATES[state]
        status = {"state": state, "reason": reason, "message": message}
        found = {
            "id": self.id,
            **self.source,
            "status": {**status, "lastTransitionAt": stamp(self.created_at)},
            "metadata": dict(self.metadata),
            "entrypoint": list(self.entrypoint),
            "expiresAt": None if self.expires_at is None else stamp(self.expires_at),
            "createdAt": stamp(self.created_at),
        }
        return {name: value for name, value in found.items() if value not in (None, {})}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a sandbox at one moment."""

    id: str
    sandbox_id: str
    name: str | None
    created_at: datetime
    root: Path
    source: Mapping[str, Any]
    """What the sandbox was made of."""

    def description(self, state: str = "Ready") -> dict[str, Any]:
        """What the API tells of it."""
        reason = "snapshot_ready" if state == "Ready" else "snapshot_accepted"
        at = stamp(self.created_at)
        found: dict[str, Any] = {"id": self.id, "sandboxId": self.sandbox_id}
        if self.name is not None:
            found["name"] = self.name
        status = {"state": state, "reason": reason, "lastTransitionAt": at}
        return {**found, "status": status, "createdAt": at}


def stamp(moment: datetime) -> str:
    """A time as the lifecycle API writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Lifecycle:
    """All sandboxes and snapshots of one server; for the thread of the server.

    Args:
        root: Directory of the server's own; everything stands below it.
        api_key: Key that a request needs.
        origin: Host and port of the server.
        on_opened: Called for each new sandbox, to make its daemon reachable.
        on_closed: Called for each sandbox that is gone.
    """

    def __init__(
        self,
        root: Path,
        *,
        api_key: str,
        origin: str,
        on_opened: Callable[[Sandbox], Coroutine[None, None, None]],
        on_closed: Callable[[Sandbox], Coroutine[None, None, None]],
    ) -> None:
        self.ahead = timedelta()
        """What a test adds to the time of the machine."""
        self.allowed_host_paths: list[Path] = []
        self.sandboxes: dict[str, Sandbox] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self._containers: list[Container] = []
        self._root = root
        self._api_key = api_key
        self._origin = origin
        self._on_opened = on_opened
        self._on_closed = on_closed
        for name in ("sandboxes", "snapshots"):
            (root / name).mkdir()
        install_daemon(root / "lib")
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "sandboxes"): self._create,
            ("GET", "sandboxes"): self._list,
            ("GET", "sandboxes/*"): self._get,
            ("DELETE", "sandboxes/*"): self._delete,
            ("POST", "sandboxes/*/renew-expiration"): self._renew,
            ("PATCH", "sandboxes/*/metadata"): self._label,
            ("GET", "sandboxes/*/endpoints/*"): self._endpoint,
            ("POST", "sandboxes/*/snapshots"): self._snap,
            ("GET", "snapshots"): self._list_snapshots,
            ("GET", "snapshots/*"): self._get_snapshot,
            ("DELETE", "snapshots/*"): self._delete_snapshot,
        }

    async def answer(self, request: CapturedRequest) -> Reply:
        """Answer one request."""
        key = request.headers.get(_KEY)
        if key != self._api_key:
            code, problem = "MISSING_API_KEY", "missing. Provide API key via OPEN-SANDBOX-API-KEY"
            if key:
                code, problem = "INVALID_API_KEY", "invalid. Check your API key"
            return error_reply(401, code, f"Authentication credentials are {problem}.")
        await self.expire()
        parts = request.path.removeprefix("/v1").strip("/").split("/")
        shape = "/".join("*" if place % 2 else part for place, part in enumerate(parts))
        handler = self._routes.get((request.method, shape))
        if handler is None:
            return json_reply({"detail": "Not Found"}, 404)
        try:
            return await handler(request, parts[1] if len(parts) > 1 else "")
        except RefusalError as exc:
            return exc.reply
        except (ValueError, LookupError, TypeError) as exc:
            detail = [{"type": "value_error", "loc": ["body"], "msg": str(exc)}]
            return json_reply({"detail": detail}, 422)

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(UTC) + self.ahead

    async def expire(self) -> None:
        """End the sandboxes whose time is over."""
        for sandbox in [*self.sandboxes.values()]:
            if sandbox.expires_at is not None and sandbox.expires_at <= self.now():
                await self._close(sandbox)

    async def renew_processes(self) -> None:
        """End the processes of every sandbox and start new ones on the same files."""
        for sandbox in self.sandboxes.values():
            await sandbox.container.stop()
            await _start(sandbox.container)

    async def stop(self) -> None:
        """End all processes, also those of sandboxes that are half made or half gone."""
        await asyncio.gather(*(each.stop() for each in self._containers))

    def complaints(self) -> str:
        """What daemons wrote about failures of their own."""
        logs = sorted((self._root / "sandboxes").glob("*.log"))
        texts = [log.read_text("utf-8", "replace") for log in logs]
        return "\n".join(text for text in texts if "Traceback" in text)

    async def _create(self, request: CapturedRequest, _: str) -> Reply:
        body = request.json()
        image, snapshot_id = body.get("image"), body.get("snapshotId")
        if (image is None) == (snapshot_id is None):
            text = "exactly one of image and snapshotId is needed"
            raise refusal(400, "SANDBOX::INVALID_PARAMETER", text)
        timeout = body.get("timeout")
        if timeout is not None and timeout < _MIN_TIMEOUT:
            raise ValueError(f"Input should be greater than or equal to {_MIN_TIMEOUT}")
        metadata: dict[str, str] = body.get("metadata") or {}
        _check_labels(metadata)
        sandbox_id = str(uuid.uuid4())
        root = self._root / "sandboxes" / sandbox_id
        if image is not None:
            _check_image(image["uri"])
            source = origin = {"image": image}
            make_root(root)
        else:
            snapshot = self._snapshot(snapshot_id)
            source, origin = {"snapshotId": snapshot_id}, dict(snapshot.source)
            await asyncio.to_thread(copy_root, snapshot.root, root)
        container = Container(
            root,
            self._root / "lib",
            env={**base_environment(sandbox_id), **(body.get("env") or {})},
            mounts=_mounts(body.get("volumes") or [], self.allowed_host_paths, root),
            has_runtime="code-interpreter" in origin["image"]["uri"],
        )
        self._containers.append(container)
        now = self.now()
        expires_at = None if timeout is None else now + timedelta(seconds=timeout)
        entrypoint = body.get("entrypoint") or ["tail", "-f", "/dev/null"]
        sandbox = Sandbox(
            sandbox_id, source, entrypoint, dict(metadata), now, expires_at, container
        )
        await _start(container)
        self.sandboxes[sandbox_id] = sandbox
        await self._on_opened(sandbox)
        found = sandbox.description()
        found["status"]["message"] = "Sandbox container started successfully."
        return json_reply({name: each for name, each in found.items() if name not in source}, 202)

    async def _list(self, request: CapturedRequest, _: str) -> Reply:
        # Of several parameters the last one counts.
        wanted = dict(parse_qsl((request.all("metadata") or [""])[-1], keep_blank_values=True))
        found = [
            sandbox.description()
            for sandbox in reversed(self.sandboxes.values())
            if wanted.items() <= sandbox.metadata.items()
        ]
        return _page(found)

    async def _get(self, _: CapturedRequest, sandbox_id: str) -> Reply:
        return json_reply(self._sandbox(sandbox_id).description())

    async def _delete(self, _: CapturedRequest, sandbox_id: str) -> Reply:
        await self._close(self._sandbox(sandbox_id))
        return Reply(204)

    async def _renew(self, request: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._sandbox(sandbox_id)
        until = datetime.fromisoformat(request.json()["expiresAt"]).astimezone(UTC)
        if until <= self.now():
            text = "New expiration time must be in the future."
            raise refusal(400, "DOCKER::INVALID_EXPIRATION", text)
        sandbox.expires_at = until
        return json_reply({"expiresAt": stamp(until)})

    async def _label(self, request: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._sandbox(sandbox_id)
        merged = {**sandbox.metadata, **request.json()}
        sandbox.metadata = {name: value for name, value in merged.items() if value is not None}
        _check_labels(sandbox.metadata)
        return json_reply(sandbox.description())

    async def _endpoint(self, request: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._sandbox(sandbox_id)
        port = request.path.rpartition("/")[2]
        place = f"127.0.0.1:{sandbox.port}/proxy/{port}"
        if request.all("use_server_proxy") == ["true"]:
            place = f"{self._origin}/v1/sandboxes/{sandbox_id}/proxy/{port}"
        return json_reply({"endpoint": place})

    async def _snap(self, request: CapturedRequest, sandbox_id: str) -> Reply:
        """Copy the files of a sandbox, which stands still meanwhile."""
        sandbox = self._sandbox(sandbox_id)
        name = request.json().get("name") if request.body else None
        snapshot_id = str(uuid.uuid4())
        root = self._root / "snapshots" / snapshot_id
        await _ask(sandbox.container, "FREEZE", "/")
        try:
            await asyncio.to_thread(copy_root, sandbox.container.root, root)
        finally:
            await _ask(sandbox.container, "THAW", "/")
        known = self.snapshots.get(str(sandbox.source.get("snapshotId")))
        source = sandbox.source if known is None else known.source
        snapshot = Snapshot(snapshot_id, sandbox.id, name, self.now(), root, source)
        self.snapshots[snapshot_id] = snapshot
        return json_reply(snapshot.description("Creating"), 202)

    async def _list_snapshots(self, request: CapturedRequest, _: str) -> Reply:
        sandbox_ids, names = request.all("sandboxId"), request.all("name")
        found = [
            each.description()
            for each in reversed(self.snapshots.values())
            if (not sandbox_ids or each.sandbox_id in sandbox_ids)
            and (not names or each.name in names)
        ]
        return _page(found)

    async def _get_snapshot(self, _: CapturedRequest, snapshot_id: str) -> Reply:
        return json_reply(self._snapshot(snapshot_id).description())

    async def _delete_snapshot(self, _: CapturedRequest, snapshot_id: str) -> Reply:
        root = self._snapshot(snapshot_id).root
        del self.snapshots[snapshot_id]
        await asyncio.to_thread(remove_tree, root)
        return Reply(204)

    async def _close(self, sandbox: Sandbox) -> None:
        if self.sandboxes.pop(sandbox.id, None) is not None:
            await self._on_closed(sandbox)
            await sandbox.container.stop()
            self._containers.remove(sandbox.container)
            await asyncio.to_thread(remove_tree, sandbox.container.root)

    def _sandbox(self, sandbox_id: str) -> Sandbox:
        found = self.sandboxes.get(sandbox_id)
        if found is None:
            raise refusal(404, "DOCKER::SANDBOX_NOT_FOUND", f"Sandbox {sandbox_id} not found.")
        return found

    def _snapshot(self, snapshot_id: str) -> Snapshot:
        found = self.snapshots.get(snapshot_id)
        if found is None:
            raise refusal(404, "SNAPSHOT::NOT_FOUND", f"Snapshot {snapshot_id} not found")
        return found


def _page(items: Sequence[Mapping[str, Any]]) -> Reply:
    pagination = {
        "page": 1,
        "pageSize": 20,
        "totalItems": len(items),
        "totalPages": 1,
        "hasNextPage": False,
    }
    return json_reply({"items": items, "pagination": pagination})


def _check_labels(metadata: Mapping[str, str]) -> None:
    for name, value in metadata.items():
        if name.startswith("opensandbox.io/") or not _LABEL.fullmatch(value):
            text = f"Metadata '{name}: {value}' is invalid."
            raise refusal(400, "SANDBOX::INVALID_METADATA_LABEL", text)


def _check_image(uri: str) -> None:
    if fnmatch.fnmatchcase(uri, "localhost/none:*"):
        text = f"Failed to pull image {uri}: 500 Server Error: connection refused"
        raise refusal(500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED", text)


def _mounts(
    volumes: Sequence[Mapping[str, Any]], allowed: Sequence[Path], root: Path
) -> list[Mount]:
    """The directories of the host that a sandbox is to see.

    Args:
        volumes: As asked for.
        allowed: Only directories of the host under these are bound.
        root: Tree of the sandbox; a target behind a link in it is refused.
    """
    mounts: list[Mount] = []
    for volume in volumes:
        target = PurePosixPath(volume["mountPath"])
        is_plain = target.is_absolute() and ".." not in target.parts and target.name
        parts = (target, *target.parents) if is_plain else ()
        if not parts or any((root / part.relative_to("/")).is_symlink() for part in parts):
            text = f"Mount path '{target}' must be an absolute path through no link."
            raise refusal(400, "VOLUME::INVALID_MOUNT_PATH", text)
        if not volume.get("host"):
            text = f"Volume '{volume['name']}' has no backend that this server has."
            raise refusal(400, "VOLUME::INVALID_BACKEND", text)
        path = Path(volume["host"]["path"])
        real = path.resolve()
        if not path.is_absolute() or not any(
            real.is_relative_to(each.resolve()) for each in allowed
        ):
            prefixes = ", ".join(str(each) for each in allowed)
            raise refusal(
                400,
                "VOLUME::HOST_PATH_NOT_ALLOWED",
                f"Host path '{path}' is not under any allowed prefix. Allowed prefixes: "
                f"[{prefixes}]",
            )
        if not real.is_dir():
            text = f"Host path '{path}' does not exist or is not a directory."
            raise refusal(400, "VOLUME::HOST_PATH_NOT_FOUND", text)
        mounts.append(Mount(real, str(target), bool(volume.get("readOnly"))))
    return mounts


async def _start(container: Container) -> None:
    container.start()
    try:
        await _ask(container, "GET", "/ping")
    except BrokenExchangeError as exc:
        await container.stop()
        text = container.log.read_text("utf-8", "replace").strip()
        raise refusal(500, "DOCKER::SANDBOX_START_FAILED", text) from exc


async def _ask(container: Container, method: str, path: str) -> None:
    """Have the daemon answer a request; some no client can make."""
    exchange = await container.exchange(CapturedRequest(method, path, (), {}, b""))
    async for _ in exchange.blocks:
        pass
