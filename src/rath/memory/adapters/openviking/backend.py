"""The `openviking` memory backend: a server of OpenViking, one that runs or one of our own."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rath._async.runtime import runtime
from rath.errors import MemoryBackendError, UnsupportedMemoryOp
from rath.llm.endpoint import without_login
from rath.memory.abc import MemoryBackend, MemoryStoreSpec
from rath.memory.adapters.openviking import (
    commits,
    finding,
    forgetting,
    listing,
    reading,
    resources,
)
from rath.memory.adapters.openviking.addresses import BadUri
from rath.memory.adapters.openviking.asking import Asking
from rath.memory.adapters.openviking.defaults import START_SECONDS, USER, WAIT_SECONDS
from rath.memory.adapters.openviking.embedded import Embedded, join
from rath.memory.adapters.openviking.faults import Fault
from rath.memory.adapters.openviking.options import Options, read_options
from rath.memory.adapters.openviking.writing import write
from rath.memory.capabilities import MemoryCapabilities, ScopeModel
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
)
from rath.memory.results import MemoryExecutionFailure, MemoryResult

__all__ = ["OpenVikingMemoryBackend", "OpenVikingStore"]

_SDK = "openviking_sdk"
_CLIENT = "rath.memory.adapters.openviking.client"

_OPERATIONS: Mapping[type[MemoryOp], Callable[[Asking, Any], Coroutine[Any, Any, MemoryResult]]] = {
    MemoryOpWrite: write,
    MemoryOpRead: reading.read,
    MemoryOpList: listing.list_entries,
    MemoryOpTree: listing.list_tree,
    MemoryOpFind: finding.find,
    MemoryOpSearch: finding.search,
    MemoryOpResource: resources.ingest,
    MemoryOpCommit: commits.commit,
    MemoryOpForget: forgetting.forget,
}


@dataclass(frozen=True, slots=True)
class OpenVikingStore:
    """An open store: the connection to a server, which may be one of our own."""

    asking: Asking
    timeout: float
    embedded: Embedded | None = None


class OpenVikingMemoryBackend(MemoryBackend):
    """Keeps notes on a server of OpenViking.

    `options.url` names one that runs; with `options.path` instead, one is started for that
    directory, and shared by all processes of this user that open it. The tutorial lists the
    options.
    """

    name = "openviking"

    @classmethod
    def is_available(cls) -> bool:
        return importlib.util.find_spec(_SDK) is not None

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
        return frozenset(_OPERATIONS)

    async def aopen(self, spec: MemoryStoreSpec | None) -> OpenVikingStore:
        options = await runtime().call_in_worker(lambda: read_options(spec or MemoryStoreSpec()))
        client = await runtime().call_in_worker(_load_client)
        if options.url is not None:
            access = client.Access(
                options.url,
                options.api_key,
                options.account_id,
                options.user_id,
                options.agent_id,
            )
            return await _connected(client, access, options, None)
        embedded = await join(options)
        try:
            access = client.Access(
                embedded.url,
                embedded.key,
                options.account_id,
                options.user_id or USER,
                options.agent_id,
            )
            return await _connected(client, access, options, embedded)
        except BaseException:
            await embedded.aleave()
            raise

    async def aclose(self, native: OpenVikingStore) -> None:
        try:
            await native.asking.sdk.close()
        finally:
            if native.embedded is not None:
                await native.embedded.aleave()

    async def adispatch(self, native: OpenVikingStore, op: MemoryOp) -> MemoryResult:
        operation = _OPERATIONS.get(type(op))
        if operation is None:
            raise UnsupportedMemoryOp(type(op), self.name)
        seconds = _seconds(op, native.timeout)
        asking = replace(native.asking, deadline=asyncio.get_running_loop().time() + seconds)
        try:
            async with asyncio.timeout(seconds):
                return await operation(asking, op)
        except BadUri as exc:
            return MemoryExecutionFailure("invalid_uri", str(exc))
        except Fault as fault:
            return fault.failure
        except TimeoutError:
            return MemoryExecutionFailure("timeout", _late(op, seconds), "TimeoutError")
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            message = f"the memory server answered something that is no answer: {exc!r}"
            return MemoryExecutionFailure("internal", message, type(exc).__name__)


def _load_client() -> Any:
    try:
        return importlib.import_module(_CLIENT)
    except ImportError as exc:
        raise MemoryBackendError(
            'the OpenViking memory needs its SDK: pip install "openrath[openviking]"'
        ) from exc


async def _connected(
    client: Any, access: Any, options: Options, embedded: Embedded | None
) -> OpenVikingStore:
    seconds = options.timeout if embedded is None else START_SECONDS
    try:
        async with asyncio.timeout(seconds):
            asking: Asking = await client.connect(access)
    except Fault as fault:
        hint = "" if embedded is None else f". {_PROXY}"
        raise MemoryBackendError(f"{_shown(access)} cannot be opened: {fault}{hint}") from fault
    except TimeoutError as exc:
        raise MemoryBackendError(f"{_shown(access)} did not answer within {seconds:g} s") from exc
    return OpenVikingStore(asking, options.timeout, embedded)


def _shown(access: Any) -> str:
    return without_login(access.url)


_PROXY = "If a proxy is set for HTTP, NO_PROXY must name 127.0.0.1"


def _seconds(op: MemoryOp, timeout: float) -> float:
    asked = getattr(op, "timeout_seconds", None)
    if asked is not None:
        return float(asked)
    waits = getattr(op, "wait", False) or isinstance(op, MemoryOpForget)
    return max(timeout, WAIT_SECONDS) if waits else timeout


def _late(op: MemoryOp, seconds: float) -> str:
    said = f"{type(op).__name__} did not end within {seconds:g} s"
    if isinstance(op, MemoryOpWrite | MemoryOpResource | MemoryOpCommit | MemoryOpForget):
        return f"{said}; it may have taken effect, in part or whole"
    return said
