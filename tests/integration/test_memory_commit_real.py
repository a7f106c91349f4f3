"""Notes that a real model, which is served on this machine, makes of a transcript."""

from __future__ import annotations

from pathlib import Path

import pytest

from rath import memory
from rath.llm import Provider
from rath.memory import (
    MemoryCommitResult,
    MemoryFindResult,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpRead,
    MemoryReadResult,
    MemoryStoreSpec,
)

pytestmark = pytest.mark.timeout(180)

SAID = (
    {"role": "user", "content": "The deploy failed again."},
    {
        "role": "assistant",
        "content": "The cause was a missing DATABASE_URL on the staging host. Setting it in "
        ".env.staging fixed the deploy.",
    },
    {"role": "user", "content": "Great, staging secrets stay in Vault from now on."},
)


def test_a_real_model_makes_notes_that_say_where_they_come_from(
    embedded: Provider, tmp_path: Path
) -> None:
    spec = MemoryStoreSpec(options={"path": str(tmp_path), "chat": embedded})
    with memory.get("local").open(spec) as store:
        done = store.dispatch(MemoryOpCommit("s", SAID, wait=True, rows=(0, 1, 2)))
        assert isinstance(done, MemoryCommitResult)
        assert done.extracted_count > 0
        found = store.dispatch(MemoryOpFind("DATABASE_URL", target_uri="memory://user"))
        assert isinstance(found, MemoryFindResult)
        assert found.hits[0].uri.startswith("memory://user/memories/extracted/")
        note = store.dispatch(MemoryOpRead(found.hits[0].uri))
        assert isinstance(note, MemoryReadResult)
        assert [source.session_id for source in note.sources] == ["s"]
