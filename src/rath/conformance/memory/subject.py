"""A memory under its contract: how it is asked, and what is true of every open store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rath.conformance import contract
from rath.errors import MemoryStoreClosed, UnsupportedMemoryOp
from rath.memory import op_types as ops
from rath.memory import results as res
from rath.memory.abc import MemoryBackend, MemoryStore, MemoryStoreSpec

__all__ = ["LIFETIME"]

R = TypeVar("R")

READ_WRITE = (ops.MemoryOpRead, ops.MemoryOpWrite)
"""What most of the clauses need."""

_AT: Mapping[type[ops.MemoryOp], Callable[[str], ops.MemoryOp]] = {
    ops.MemoryOpFind: lambda uri: ops.MemoryOpFind("heron", target_uri=uri),
    ops.MemoryOpSearch: lambda uri: ops.MemoryOpSearch("heron", target_uri=uri),
    ops.MemoryOpRead: ops.MemoryOpRead,
    ops.MemoryOpList: ops.MemoryOpList,
    ops.MemoryOpTree: ops.MemoryOpTree,
    ops.MemoryOpWrite: lambda uri: ops.MemoryOpWrite(uri, "heron"),
    ops.MemoryOpForget: lambda uri: ops.MemoryOpForget(uri, recursive=True),
}
"""Every operation with a URI; those that change something come last."""


class MemorySubject(contract.HandleSubject):
    """An open store, and a directory of it that nobody else uses."""

    def __init__(self, store: MemoryStore, uri: str, spec: MemoryStoreSpec | None) -> None:
        self.store = store
        self.target: MemoryStore = store
        self.backend: MemoryBackend = store.backend
        self.uri = uri
        self.spec = spec

    def count(self) -> int:
        return self.backend.store_count()

    def supported(self) -> Collection[type]:
        return self.backend.supported_ops()

    def samples(self) -> list[ops.MemoryOp]:
        rest: list[ops.MemoryOp] = [
            ops.MemoryOpCommit("conformance", ({"role": "user", "content": "heron"},)),
            ops.MemoryOpResource("no-such-file", self.uri),
        ]
        return [
            *self.samples_at(self.at("a")),
            *(op for op in rest if type(op) in self.supported()),
        ]

    def samples_at(self, uri: str) -> list[ops.MemoryOp]:
        """Return each supported operation with a URI, with that one."""
        return [make(uri) for kind, make in _AT.items() if kind in self.supported()]

    def flags(self) -> Mapping[str, type]:
        return {
            "supports_write": ops.MemoryOpWrite,
            "supports_read": ops.MemoryOpRead,
            "supports_list": ops.MemoryOpList,
            "supports_tree": ops.MemoryOpTree,
            "supports_resource_ingest": ops.MemoryOpResource,
            "supports_session_commit": ops.MemoryOpCommit,
            "supports_forget": ops.MemoryOpForget,
        }

    def last_holder_closes(self) -> None:
        with self.store, self.store:
            contract.expect_equal(self.store.refcount, 2, "as refcount")
        # A blocking `close` of a backend runs soon after; closing again waits for it.
        self.backend.close(self.store)
        contract.expect(self.store.closed, "a closed store after the last release")

    def at(self, name: str) -> str:
        """Return the URI of a name below the directory."""
        return f"{self.uri}/{name}"

    def ask(self, op: ops.MemoryOp, kind: type[R]) -> R:
        """Return the result of an operation, which must be of that type."""
        return contract.expect_kind(self.store.dispatch(op), kind, op)

    def expect_refusal(self, kind: str, *requests: ops.MemoryOp) -> None:
        """Run operations, each of which must fail in that way."""
        for op in requests:
            contract.expect_failure(self.store.dispatch(op), res.MemoryExecutionFailure, kind, op)

    def write(
        self,
        name: str,
        content: str = "heron fish",
        *,
        wait: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Write a note below the directory and return its URI.

        Raises:
            Skipped: It refuses the metadata.
        """
        op = ops.MemoryOpWrite(self.at(name), content, wait=wait, metadata=metadata)
        found = self.store.dispatch(op)
        if (
            metadata
            and isinstance(found, res.MemoryExecutionFailure)
            and found.kind == "unsupported"
        ):
            raise contract.Skipped(f"it refuses what it cannot keep: {found.message}")
        contract.expect_kind(found, res.MemoryWriteResult, op)
        return op.uri

    def commit(self, session: str, *messages: object) -> res.MemoryCommitResult:
        """Archive the transcript of a session."""
        return self.ask(ops.MemoryOpCommit(session, messages), res.MemoryCommitResult)

    def read(self, uri: str) -> str:
        """Return the text of a note, which must be there."""
        return str(self.ask(ops.MemoryOpRead(uri), res.MemoryReadResult).data)

    def expect_text(self, uri: str, expected: str) -> None:
        """Read a note, which must hold that text."""
        contract.expect_equal(self.read(uri), expected, f"at {uri}")

    def has(self, uri: str) -> bool:
        """Return whether a note can be read; `not_found` is the only other answer allowed."""
        found = self.store.dispatch(ops.MemoryOpRead(uri))
        if isinstance(found, res.MemoryReadResult):
            return True
        contract.expect_failure(
            found, res.MemoryExecutionFailure, "not_found", ops.MemoryOpRead(uri)
        )
        return False

    def find(self, query: str, *, top_k: int = 8) -> tuple[res.MemoryHit, ...]:
        """Return the hits below the directory."""
        op = ops.MemoryOpFind(query, target_uri=self.uri, top_k=top_k)
        return self.ask(op, res.MemoryFindResult).hits

    def names_in(self, uri: str) -> list[str]:
        """Return the names in a directory; none where a store says that it is not there."""
        found = self.store.dispatch(ops.MemoryOpList(uri))
        if isinstance(found, res.MemoryExecutionFailure) and found.kind == "not_found":
            return []
        listing = contract.expect_kind(found, res.MemoryListResult, ops.MemoryOpList(uri))
        return [entry.name for entry in listing.entries]

    @contextmanager
    def another(self, spec: MemoryStoreSpec | None) -> Generator[MemorySubject]:
        """Open one more store, with the same directory."""
        store = self.backend.open(spec)
        try:
            yield MemorySubject(store, self.uri, spec)
        finally:
            self.backend.close(store)


LIFETIME = contract.Clauses[MemorySubject]()

for _name, _run in (
    ("an_open_store_has_a_handle_and_no_holder", MemorySubject.has_handle_and_no_holder),
    ("a_lazy_store_opens_on_first_use", MemorySubject.opens_on_first_use),
    ("closing_twice_is_closing_once", MemorySubject.closes_once),
    ("the_last_holder_closes", MemorySubject.last_holder_closes),
    ("capabilities_and_supported_ops_agree", MemorySubject.capabilities_agree),
):
    LIFETIME.add("Opening, counting, closing", name=_name)(_run)


@LIFETIME.add("Opening, counting, closing")
def a_closed_store_refuses_work(memory: MemorySubject) -> None:
    memory.backend.close(memory.store)
    for op in memory.samples():
        contract.expect_error(MemoryStoreClosed, contract.excerpt(op), memory.store.dispatch, op)


@LIFETIME.add("Opening, counting, closing")
def an_unknown_operation_raises(memory: MemorySubject) -> None:
    class Unknown(ops.MemoryOp):
        pass

    contract.expect_error(
        UnsupportedMemoryOp, "an unknown operation", memory.store.dispatch, Unknown()
    )
