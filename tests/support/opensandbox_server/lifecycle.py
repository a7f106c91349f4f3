"""The lifecycle API: what is asked under `/v1`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from tests.support.opensandbox_server.http import (
    CapturedRequest,
    Reply,
    error_reply,
    json_reply,
)
from tests.support.opensandbox_server.records import stamp
from tests.support.opensandbox_server.runtime import Runtime
from tests.support.opensandbox_server.wishes import (
    WishError,
    check_label,
    invalid,
    read_wish,
    refusal,
)

_KEY = "open-sandbox-api-key"
_MAX_PAGE_SIZE = 200
_PAGE_SIZE = 20

Handler = Callable[[CapturedRequest, str], Awaitable[Reply]]
_Item = TypeVar("_Item")


class Lifecycle:
    """Answers requests of the lifecycle API.

    Args:
        origin: Host and port of the server.
    """

    def __init__(self, runtime: Runtime, *, api_key: str, origin: str) -> None:
        self._runtime = runtime
        self._api_key = api_key
        self._origin = origin
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "sandboxes"): self._create,
            ("GET", "sandboxes"): self._list,
            ("GET", "sandboxes/*"): self._get,
            ("DELETE", "sandboxes/*"): self._delete,
            ("POST", "sandboxes/*/pause"): self._pause,
            ("POST", "sandboxes/*/resume"): self._resume,
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
        refused = self._refused(request)
        if refused is not None:
            return refused
        await self._runtime.expire()
        parts = request.path.removeprefix("/v1").strip("/").split("/")
        shape = "/".join("*" if place % 2 else part for place, part in enumerate(parts))
        handler = self._routes.get((request.method, shape))
        if handler is None:
            return json_reply({"detail": "Not Found"}, 404)
        try:
            return await handler(request, parts[1] if len(parts) > 1 else "")
        except WishError as exc:
            return exc.reply
        except (ValueError, LookupError, TypeError) as exc:
            detail = [{"type": "value_error", "loc": ["body"], "msg": str(exc)}]
            return json_reply({"detail": detail}, 422)

    def _refused(self, request: CapturedRequest) -> Reply | None:
        key = request.headers.get(_KEY)
        if not key:
            text = (
                "Authentication credentials are missing. Provide API key via "
                "OPEN-SANDBOX-API-KEY header."
            )
            return error_reply(401, "MISSING_API_KEY", text)
        if key != self._api_key:
            text = "Authentication credentials are invalid. Check your API key and try again."
            return error_reply(401, "INVALID_API_KEY", text)
        return None

    async def _create(self, request: CapturedRequest, _: str) -> Reply:
        sandbox = await self._runtime.open(read_wish(request.json()))
        return json_reply(sandbox.created(), 202)

    async def _list(self, request: CapturedRequest, _: str) -> Reply:
        states = request.all("state")
        wanted = _labels(request)
        found = [
            sandbox
            for sandbox in reversed(self._runtime.sandboxes.values())
            if (not states or sandbox.state in states)
            and wanted.items() <= sandbox.metadata.items()
        ]
        return _page(request, found, lambda sandbox: sandbox.told())

    async def _get(self, _: CapturedRequest, sandbox_id: str) -> Reply:
        return json_reply(self._runtime.sandbox(sandbox_id).told())

    async def _delete(self, _: CapturedRequest, sandbox_id: str) -> Reply:
        await self._runtime.close(self._runtime.sandbox(sandbox_id))
        return Reply(204)

    async def _pause(self, _: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._runtime.sandbox(sandbox_id)
        if sandbox.state != "Running":
            text = "Sandbox is not in a running state."
            raise refusal(409, "DOCKER::SANDBOX_NOT_RUNNING", text)
        await self._runtime.pause(sandbox)
        return Reply(202)

    async def _resume(self, _: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._runtime.sandbox(sandbox_id)
        if sandbox.state != "Paused":
            text = "Sandbox is not in a paused state."
            raise refusal(409, "DOCKER::SANDBOX_NOT_PAUSED", text)
        await self._runtime.resume(sandbox)
        return Reply(202)

    async def _renew(self, request: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._runtime.sandbox(sandbox_id)
        until = datetime.fromisoformat(request.json()["expiresAt"]).astimezone(UTC)
        if until <= self._runtime.clock.now():
            text = "New expiration time must be in the future."
            raise refusal(400, "DOCKER::INVALID_EXPIRATION", text)
        sandbox.expires_at = until
        return json_reply({"expiresAt": stamp(until)})

    async def _label(self, request: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._runtime.sandbox(sandbox_id)
        changes: Mapping[str, str | None] = request.json()
        for name, value in changes.items():
            check_label(name, value or "")
        for name, value in changes.items():
            if value is None:
                sandbox.metadata.pop(name, None)
            else:
                sandbox.metadata[name] = value
        return json_reply(sandbox.told())

    async def _endpoint(self, request: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._runtime.sandbox(sandbox_id)
        port = request.path.rpartition("/")[2]
        place = f"127.0.0.1:{sandbox.port}/proxy/{port}"
        if request.all("use_server_proxy") == ["true"]:
            place = f"{self._origin}/v1/sandboxes/{sandbox_id}/proxy/{port}"
        return json_reply({"endpoint": place})

    async def _snap(self, request: CapturedRequest, sandbox_id: str) -> Reply:
        sandbox = self._runtime.sandbox(sandbox_id)
        if sandbox.state == "Failed":
            raise refusal(409, "DOCKER::SANDBOX_NOT_RUNNING", "Sandbox is not in a running state.")
        name = request.json().get("name") if request.body else None
        made = await self._runtime.snap(sandbox, name)
        return json_reply(made.told("Creating"), 202)

    async def _list_snapshots(self, request: CapturedRequest, _: str) -> Reply:
        sandbox_ids, names = request.all("sandboxId"), request.all("name")
        states = request.all("state")
        found = [
            each
            for each in reversed(self._runtime.snapshots.values())
            if (not sandbox_ids or each.sandbox_id in sandbox_ids)
            and (not names or each.name in names)
            and (not states or "Ready" in states)
        ]
        return _page(request, found, lambda snapshot: snapshot.told())

    async def _get_snapshot(self, _: CapturedRequest, snapshot_id: str) -> Reply:
        return json_reply(self._runtime.snapshot(snapshot_id).told())

    async def _delete_snapshot(self, _: CapturedRequest, snapshot_id: str) -> Reply:
        await self._runtime.drop_snapshot(self._runtime.snapshot(snapshot_id))
        return Reply(204)


def _labels(request: CapturedRequest) -> dict[str, str]:
    """The metadata to look for; of several parameters the last one counts."""
    given = request.all("metadata")
    return dict(parse_qsl(given[-1], keep_blank_values=True)) if given else {}


def _page(
    request: CapturedRequest,
    items: Sequence[_Item],
    tell: Callable[[_Item], dict[str, Any]],
) -> Reply:
    page = int((request.all("page") or ["1"])[0])
    size = int((request.all("pageSize") or [str(_PAGE_SIZE)])[0])
    if page < 1:
        raise invalid("page", "Input should be greater than or equal to 1")
    if not 1 <= size <= _MAX_PAGE_SIZE:
        raise invalid("pageSize", f"Input should be less than or equal to {_MAX_PAGE_SIZE}")
    shown = items[(page - 1) * size : page * size]
    n_pages = -(-len(items) // size)
    pagination = {
        "page": page,
        "pageSize": size,
        "totalItems": len(items),
        "totalPages": n_pages,
        "hasNextPage": page < n_pages,
    }
    return json_reply({"items": [tell(item) for item in shown], "pagination": pagination})
