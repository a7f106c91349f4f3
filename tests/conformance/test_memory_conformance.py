"""The contract of memory backends, run against ours and against a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rath.conformance import check_memory
from rath.memory import (
    MemoryBackendNotFound,
    MemoryFindResult,
    MemoryOp,
    MemoryOpRead,
    MemoryOpSearch,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryResult,
    MemoryStoreSpec,
)
from rath.testing import FakeMemory
from rath.testing.memory import FakeStore


def test_the_local_memory_keeps_the_contract(tmp_path: Path) -> None:
    report = check_memory("local", spec=MemoryStoreSpec(options={"path": str(tmp_path)}))
    assert report.subject == "LocalMemoryBackend 'local'"
    assert all(finding.status == "passed" for finding in report.findings)


def test_the_fake_memory_keeps_the_contract() -> None:
    backend = FakeMemory()
    assert check_memory(backend).failed == ()
    assert backend.store_count() == 0


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(MemoryBackendNotFound):
        check_memory("no-such")


class Searchless(FakeMemory):
    """Cannot search by meaning."""

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return super().supported_ops() - {MemoryOpSearch}


def test_what_is_not_supported_is_skipped_and_said() -> None:
    skipped = [each for each in check_memory(Searchless()).findings if each.status == "skipped"]
    assert [each.detail for each in skipped] == ["no MemoryOpSearch"]


class Forgetful(FakeMemory):
    """Reads nothing back, and raises where it should answer."""

    async def adispatch(self, native: FakeStore, op: MemoryOp) -> MemoryResult:
        if isinstance(op, MemoryOpRead):
            return MemoryReadResult(op.uri, "", op.level)
        if isinstance(op, MemoryOpWrite) and not op.uri.startswith("memory://agent"):
            raise OSError("disk full")
        if isinstance(op, MemoryOpSearch):
            return MemoryFindResult(())
        return await super().adispatch(native, op)


def test_a_broken_memory_is_told_what_is_wrong() -> None:
    with pytest.raises(AssertionError) as caught:
        check_memory(Forgetful())
    text = str(caught.value)
    assert "failed  what_is_no_memory_uri_is_a_failure: OSError('disk full')" in text
    assert "failed  a_write_replaces_the_whole_note: expected 'short', got ''" in text
    assert "passed  closing_twice_is_closing_once" in text
