"""The `local` memory backend: Markdown files in a directory, found through an index beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rath._async.runtime import runtime
from rath.errors import MemoryBackendError, UnsupportedMemoryOp
from rath.memory.abc import MemoryBackend, MemoryStoreSpec
from rath.memory.adapters.local import notes
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.commits import commit
from rath.memory.adapters.local.layout import logger
from rath.memory.adapters.local.meta import write_meta
from rath.memory.adapters.local.project import project_root, store_id
from rath.memory.adapters.local.resources import ingest
from rath.memory.adapters.local.search import find
from rath.memory.adapters.local.store import LocalStore, Operation, in_worker
from rath.memory.capabilities import MemoryCapabilities, ScopeModel
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
)
from rath.memory.persistence.paths import local_store_dir
from rath.memory.results import MemoryResult

_OPERATIONS: Mapping[type[MemoryOp], Operation] = {
    MemoryOpWrite: in_worker(notes.write),
    MemoryOpRead: in_worker(notes.read),
    MemoryOpList: in_worker(notes.list_entries),
    MemoryOpTree: in_worker(notes.list_tree),
    MemoryOpFind: in_worker(find),
    MemoryOpSearch: in_worker(find),
    MemoryOpResource: in_worker(ingest),
    MemoryOpCommit: in_worker(commit),
}
_UNUSED_OPTIONS = ("embedding_provider", "embedding", "chat_provider", "chat")


class LocalMemoryBackend(MemoryBackend):
    """Keeps notes as Markdown files, which may be read and edited by hand.

    Without `options.path` there is one store for each project (and each `namespace` of it), so
    that the next run recalls what this one learned; `project_root` says what a project is.
    """

    name = "local"

    @classmethod
    def capabilities(cls) -> MemoryCapabilities:
        return MemoryCapabilities(
            scope_model=ScopeModel.FS,
            supports_write=True,
            supports_read=True,
            supports_list=True,
            supports_tree=True,
            supports_vector_search=False,
            supports_intent_search=False,
            supports_resource_ingest=True,
            supports_session_commit=True,
            supports_l0_l1_l2=False,
        )

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return frozenset(_OPERATIONS)

    async def aopen(self, spec: MemoryStoreSpec | None) -> LocalStore:
        return await runtime().call_in_worker(lambda: _open(spec or MemoryStoreSpec()))

    async def aattach(self, handle: str, spec: MemoryStoreSpec | None) -> LocalStore:
        return await runtime().call_in_worker(lambda: _open_directory(Path(handle), {}))

    async def aclose(self, native: LocalStore) -> None:
        await runtime().call_in_worker(lambda: _close(native))

    async def adispatch(self, native: LocalStore, op: MemoryOp) -> MemoryResult:
        operation = _OPERATIONS.get(type(op))
        if operation is None:
            raise UnsupportedMemoryOp(type(op), self.name)
        return await operation(native, op)


def _open(spec: MemoryStoreSpec) -> LocalStore:
    options = spec.options or {}
    unused = [name for name in _UNUSED_OPTIONS if options.get(name) is not None]
    if unused:
        logger.warning("this version of the local memory makes no use of %s", ", ".join(unused))
    providers = {
        "embedding_provider": options.get("embedding_provider"),
        "vlm_provider": options.get("chat_provider"),
    }
    given = {name: value for name, value in providers.items() if isinstance(value, str)}
    path = options.get("path")
    if path is not None:
        return _open_directory(Path(path).expanduser(), given)
    root = project_root(Path.cwd())
    directory = local_store_dir(store_id(root, spec.namespace))
    return _open_directory(
        directory, {**given, "project_root": str(root), "namespace": spec.namespace}
    )


def _open_directory(directory: Path, about: Mapping[str, object]) -> LocalStore:
    root = directory.resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise MemoryBackendError(
            f"the memory store {str(root)!r} cannot be made: {exc}; expected a directory, which "
            "may be new"
        ) from exc
    write_meta(root, about)
    return LocalStore(root, Catalog(root))


def _close(store: LocalStore) -> None:
    store.catalog.close()
    if store.root.is_dir():
        write_meta(store.root)
