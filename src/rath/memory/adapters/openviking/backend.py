"""The `openviking` memory backend: a server of OpenViking, one that runs or one of our own."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.errors import MemoryBackendError, UnsupportedMemoryOp
from rath.llm.credentials import without_login
from rath.memory import op_types
from rath.memory.abc import MemoryBackend, MemoryStoreSpec
from rath.memory.adapters.openviking.client import (
    DEFAULT_USER,
    VikingClient,
    VikingError,
    connect,
    load_sdk,
)
from rath.memory.adapters.openviking.operations import OPERATIONS
from rath.memory.adapters.openviking.server import (
    START_SECONDS,
    ServerShare,
    join_server,
    read_options,
)
from rath.memory.capabilities import MemoryCapabilities, ScopeModel
from rath.memory.driver import OperationFailed
from rath.memory.op_types import MemoryOp
from rath.memory.results import MemoryExecutionFailure, MemoryResult

__all__ = ["OpenVikingMemoryBackend", "OpenVikingStore"]

WAIT_SECONDS = 300.0
"""How long an operation may take that waits for processing; a guess: learning from a transcript
takes ten seconds and what its model needs."""

_WITH_EFFECTS = (
    op_types.MemoryOpWrite,
    op_types.MemoryOpResource,
    op_types.MemoryOpCommit,
    op_types.MemoryOpForget,
)


@dataclass(frozen=True, slots=True)
class OpenVikingStore:
    """An open store: the connection to a server, which may be one of our own."""

    client: VikingClient
    timeout: float
    share: ServerShare | None = None


class OpenVikingMemoryBackend(MemoryBackend):
    """Keeps notes on a server of OpenViking.

    `options.url` names one that runs; with `options.path` instead, one is started for that
    directory, and shared by all processes of this user that open it. The tutorial lists the
    options.
    """

    name = "openviking"

    @classmethod
    def is_available(cls) -> bool:
        return importlib.util.find_spec("openviking_sdk") is not None

    @classmethod
    def capabilities(cls) -> MemoryCapabilities:
        return MemoryCapabilities(
            scope_model=ScopeModel.HYBRID,
            supports_write=True,
            supports_read=True,
            supports_list=True,
            supports_tree=True,
            supports_vector_search=True,
            supports_intent_search=True,
            supports_resource_ingest=True,
            supports_session_commit=True,
            supports_l0_l1_l2=True,
            supports_forget=True,
        )

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return frozenset(OPERATIONS)

    async def aopen(self, spec: MemoryStoreSpec | None) -> OpenVikingStore:
        options = await runtime().call_in_worker(lambda: read_options(spec or MemoryStoreSpec()))
        sdk = await runtime().call_in_worker(load_sdk)
        share = None
        seconds, hint = options.timeout, ""
        if options.url is None:
            share = await join_server(options)
            user_id = options.user_id or DEFAULT_USER
            options = replace(options, url=share.url, api_key=share.key, user_id=user_id)
            seconds = START_SECONDS
            hint = ". If a proxy is set for HTTP, NO_PROXY must name 127.0.0.1"
        server = without_login(str(options.url))
        try:
            async with asyncio.timeout(seconds):
                client = await connect(sdk, options)
        except BaseException as exc:
            if share is not None:
                await share.aleave()
            match exc:
                case VikingError():
                    raise MemoryBackendError(f"{server} cannot be opened: {exc}{hint}") from exc
                case TimeoutError():
                    message = f"{server} did not answer within {seconds:g} s"
                    raise MemoryBackendError(message) from exc
                case _:
                    raise
        return OpenVikingStore(client, options.timeout, share)

    async def aclose(self, native: OpenVikingStore) -> None:
        try:
            await native.client.sdk.close()
        finally:
            if native.share is not None:
                await native.share.aleave()

    async def adispatch(self, native: OpenVikingStore, op: MemoryOp) -> MemoryResult:
        operation = OPERATIONS.get(type(op))
        if operation is None:
            raise UnsupportedMemoryOp(type(op), self.name)
        seconds = _seconds(op, native.timeout)
        client = replace(native.client, deadline=asyncio.get_running_loop().time() + seconds)
        try:
            async with asyncio.timeout(seconds):
                return await operation(client, op)
        except OperationFailed as exc:
            return exc.failure
        except TimeoutError:
            message = f"{type(op).__name__} did not end within {seconds:g} s"
            if isinstance(op, _WITH_EFFECTS):
                message += "; it may have taken effect, in part or whole"
            return MemoryExecutionFailure("timeout", client.progress or message, "TimeoutError")
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            message = f"the memory server answered something that is no answer: {exc!r}"
            return MemoryExecutionFailure("internal", message, type(exc).__name__)


def _seconds(op: MemoryOp, timeout: float) -> float:
    limit = getattr(op, "timeout_seconds", None)
    if limit is not None:
        return float(limit)
    waits = getattr(op, "wait", False) or isinstance(op, op_types.MemoryOpForget)
    return max(timeout, WAIT_SECONDS) if waits else timeout
