"""The contract of memory backends, run against ours, those of somebody else, and a broken one."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rath import flow, memory
from rath.conformance import Report, capability_table, check_memory
from rath.memory import (
    MemoryBackendNotFound,
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryHit,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpRead,
    MemoryOpSearch,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryResult,
    MemoryStoreSpec,
)
from rath.memory.notes import EXPIRES_AT, SESSION_ID
from rath.testing import FakeMemory, ScriptedClient
from rath.testing.memory import FakeStore

pytestmark = pytest.mark.timeout(120)  # some hundred notes are forced to disk


def skipped(report: Report) -> dict[str, str]:
    """Which checks were skipped, and why."""
    return {each.check: each.detail for each in report.findings if each.status == "skipped"}


def test_the_local_memory_keeps_the_contract(tmp_path: Path) -> None:
    report = check_memory("local", spec=MemoryStoreSpec(options={"path": str(tmp_path / "s")}))
    assert report.subject == "LocalMemoryBackend 'local'"
    assert skipped(report) == {
        "namespaces_are_apart": "the spec names one store, whatever the namespace"
    }


def test_the_memory_of_a_project_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = check_memory("local")
    assert skipped(report) == {}
    assert "passed  find_may_return_transcripts: a transcript is found at once" in str(report)


def test_the_fake_memory_keeps_the_contract() -> None:
    backend = FakeMemory()
    assert skipped(check_memory(backend)) == {
        "namespaces_are_apart": "capabilities say supports_namespaces=False"
    }
    assert backend.store_count() == 0


@pytest.fixture
def installed() -> None:
    """Skip a test where the package of somebody else is not there."""
    if not entry_points(group="rath.memories", name="shelf"):
        pytest.skip("the package in tests/third_party/shelf_memory is not installed")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["shelf", "blocking-shelf"])
def test_a_memory_of_an_installed_package_keeps_the_contract(name: str) -> None:
    (found,) = entry_points(group="rath.memories", name=name)
    assert found.dist is not None
    assert found.dist.name == "rath-shelf-memory"
    assert memory.get_class(name) is found.load()
    report = check_memory(name)
    assert report.subject.endswith(f"ShelfMemory {name!r}")
    assert skipped(report) == {}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["shelf", "blocking-shelf"])
def test_an_agent_remembers_in_a_memory_of_an_installed_package(name: str) -> None:
    model = ScriptedClient(["Tea."])
    with flow.Agent("Answer.", model.provider, memory=name) as first:
        first.remember_memory("The user drinks tea")
    with flow.Agent("Answer.", model.provider, memory=name) as second:
        recalled = second.recall_memory("who drinks tea")
    assert isinstance(recalled, MemoryFindResult)
    assert [hit.snippet for hit in recalled.hits] == ["The user drinks tea"]


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(MemoryBackendNotFound):
        check_memory("no-such")


def test_a_table_has_a_row_for_each_feature() -> None:
    table = capability_table({"fake": check_memory(FakeMemory()), "less": check_memory(Less())})
    head, _, *rows = table.splitlines()
    assert head == "| Feature | `fake` | `less` |"
    assert "| Notes | yes | yes |" in rows
    assert "| Forgetting | yes | no |" in rows
    assert "| Namespaces | no | no |" in rows


class Less(FakeMemory):
    """Cannot search by meaning, and forgets nothing."""

    @classmethod
    def capabilities(cls) -> memory.MemoryCapabilities:
        return replace(super().capabilities(), supports_forget=False)

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return super().supported_ops() - {MemoryOpSearch, MemoryOpForget}


def test_what_is_not_supported_is_skipped_and_reported() -> None:
    reasons = skipped(check_memory(Less()))
    assert reasons["hits_can_be_read"] == "no MemoryOpSearch"
    assert reasons["a_forgotten_note_is_removed"] == "no MemoryOpForget"


class Careful(FakeMemory):
    """Refuses what it cannot keep."""

    async def adispatch(self, native: FakeStore, op: MemoryOp) -> MemoryResult:
        told = (op.metadata or {}).keys() if isinstance(op, MemoryOpWrite) else ()
        is_session = isinstance(op, MemoryOpForget) and op.session_id is not None
        if is_session or not {EXPIRES_AT, SESSION_ID}.isdisjoint(told):
            return MemoryExecutionFailure("unsupported", "it is not kept")
        return await super().adispatch(native, op)


def test_what_is_refused_in_words_is_skipped_and_reported() -> None:
    reasons = skipped(check_memory(Careful()))
    assert reasons["an_expired_note_is_removed"] == (
        "it refuses what it cannot keep: it is not kept"
    )
    assert reasons["the_transcripts_of_a_session_are_erased"] == (
        "it forgets no sessions: it is not kept"
    )


class Levels(FakeMemory):
    """Has summaries, one of which is not made yet."""

    @classmethod
    def capabilities(cls) -> memory.MemoryCapabilities:
        return replace(super().capabilities(), supports_l0_l1_l2=True)

    async def adispatch(self, native: FakeStore, op: MemoryOp) -> MemoryResult:
        result = await super().adispatch(native, op)
        if isinstance(op, MemoryOpRead) and isinstance(result, MemoryReadResult):
            if op.level == "abstract":
                return replace(result, data="short")
            if op.level == "overview":
                return MemoryExecutionFailure("not_found", "no overview yet")
        return result


def test_summaries_may_say_less_or_be_missing() -> None:
    assert check_memory(Levels()).failed == ()


class Near(FakeMemory):
    """Finds by meaning: each note is more or less near."""

    @classmethod
    def capabilities(cls) -> memory.MemoryCapabilities:
        return replace(super().capabilities(), supports_vector_search=True)

    async def adispatch(self, native: FakeStore, op: MemoryOp) -> MemoryResult:
        result = await super().adispatch(native, op)
        if isinstance(op, MemoryOpFind) and isinstance(result, MemoryFindResult):
            known = {hit.uri for hit in result.hits}
            near = (uri for uri in self.notes if uri.startswith(f"{op.target_uri}/"))
            more = (MemoryHit(uri, 0.01) for uri in near if uri not in known)
            return MemoryFindResult((*result.hits, *more)[: op.top_k])
        return result


def test_what_finds_by_meaning_may_find_more() -> None:
    reasons = skipped(check_memory(Near()))
    assert "it finds by meaning" in reasons["words_that_no_note_has_find_nothing"]


class Forgetful(FakeMemory):
    """Reads nothing back, and raises where it should answer."""

    async def adispatch(self, native: FakeStore, op: MemoryOp) -> MemoryResult:
        if isinstance(op, MemoryOpRead):
            return MemoryReadResult(op.uri, "", op.level)
        if isinstance(op, MemoryOpCommit):
            raise OSError("disk full")
        return await super().adispatch(native, op)


def test_a_broken_memory_is_reported_what_is_wrong() -> None:
    with pytest.raises(AssertionError) as caught:
        check_memory(Forgetful())
    text = str(caught.value)
    assert "failed  a_transcript_is_archived: OSError('disk full')" in text
    assert "failed  a_write_replaces_the_note: expected 'short' at memory://" in text
    assert "passed  closing_twice_is_closing_once" in text


def test_a_contract_may_be_run_twice_in_one_store() -> None:
    backend = FakeMemory()
    assert check_memory(backend) == check_memory(backend)
