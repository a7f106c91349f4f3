"""The registry behaves as a simple model of it under any operations."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from rath._core.retention import in_trash, move_to_trash
from rath._core.usage_locks import Use, use_file
from rath.backend.persistence import PersistentSandboxRegistry
from rath.backend.persistence.paths import local_root, opensandbox_index_path, opensandbox_root
from rath.backend.persistence.registry import write_last_use
from rath.backend.workspace import SANDBOX
from rath.errors import BackendError

HOUR = 3600.0
ages = st.integers(min_value=0, max_value=5)
"""How many hours ago something was used."""


class Kept:
    """What the model knows of one sandbox."""

    def __init__(self) -> None:
        self.age = 0
        self.uses: list[Use] = []


class RegistryMachine(RuleBasedStateMachine):
    """Workspaces and remote sandboxes, used, aged and removed in any order."""

    ids: Bundle[UUID] = Bundle("ids")
    uses: Bundle[tuple[Kept, Use]] = Bundle("uses")

    def __init__(self) -> None:
        super().__init__()
        self.undo = contextlib.ExitStack()
        self.home = self.undo.enter_context(TemporaryDirectory())
        patch = self.undo.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("OPENRATH_HOME", self.home)
        self.registry = PersistentSandboxRegistry()
        self.local: dict[UUID, Kept] = {}
        self.remote: dict[UUID, Kept] = {}

    def teardown(self) -> None:
        for kept in (*self.local.values(), *self.remote.values()):
            for use in kept.uses:
                use.end()
        self.undo.close()

    @rule(target=ids)
    def alloc(self) -> UUID:
        sandbox_id = self.registry.alloc_local_id()
        self.local[sandbox_id] = Kept()
        return sandbox_id

    @rule(target=ids)
    def record(self) -> UUID:
        sandbox_id = self.registry.record_remote("far", "c")
        self.remote[sandbox_id] = Kept()
        return sandbox_id

    @rule(target=ids)
    def unknown(self) -> UUID:
        return uuid4()

    @rule(sandbox_id=ids)
    def ensure(self, sandbox_id: UUID) -> None:
        (self.registry.ensure_local(sandbox_id) / "file").touch()
        self.local.setdefault(sandbox_id, Kept()).age = 0

    @rule(sandbox_id=ids)
    def touch(self, sandbox_id: UUID) -> None:
        self.registry.touch_remote(sandbox_id)
        if sandbox_id in self.remote:
            self.remote[sandbox_id].age = 0

    @rule(target=uses, sandbox_id=ids)
    def begin(self, sandbox_id: UUID) -> MultipleResults[tuple[Kept, Use]]:
        begun: list[tuple[Kept, Use]] = []
        for known, path_of in self.planes():
            if sandbox_id in known:
                use = SANDBOX.begin_use(use_file(path_of(sandbox_id)))
                known[sandbox_id].uses.append(use)
                known[sandbox_id].age = 0
                begun.append((known[sandbox_id], use))
        return multiple(*begun)

    @rule(held=consumes(uses))
    def end(self, held: tuple[Kept, Use]) -> None:
        kept, use = held
        use.end()
        kept.uses.remove(use)
        kept.age = 0

    @rule(sandbox_id=ids, hours=ages)
    def grow_old(self, sandbox_id: UUID, hours: int) -> None:
        then = time.time() - hours * HOUR
        for known, path_of in self.planes():
            file = use_file(path_of(sandbox_id))
            if sandbox_id in known and file.exists():
                os.utime(file, (then, then))
                known[sandbox_id].age = hours
        if sandbox_id in self.remote:
            write_last_use(opensandbox_index_path(sandbox_id), datetime.fromtimestamp(then, UTC))
            self.remote[sandbox_id].age = hours

    @rule(sandbox_id=ids)
    def forget_uses(self, sandbox_id: UUID) -> None:
        """Leave a workspace as OpenRath 1 would have made it."""
        if sandbox_id in self.local and not self.local[sandbox_id].uses:
            use_file(self.registry.local_path(sandbox_id)).unlink(missing_ok=True)
            self.local[sandbox_id].age = 0

    @rule(sandbox_id=ids)
    def crash_while_removing(self, sandbox_id: UUID) -> None:
        if sandbox_id in self.local and not self.local[sandbox_id].uses:
            assert move_to_trash(self.registry.local_path(sandbox_id))
            del self.local[sandbox_id]

    @rule(sandbox_id=ids)
    def delete(self, sandbox_id: UUID) -> None:
        delete = (self.registry.delete_local, self.registry.delete_remote)
        for (known, _), call in zip(self.planes(), delete, strict=True):
            if sandbox_id in known and known[sandbox_id].uses:
                with pytest.raises(BackendError, match="is in use"):
                    call(sandbox_id)
            else:
                assert call(sandbox_id) == (known.pop(sandbox_id, None) is not None)

    @rule(hours=ages)
    def prune(self, hours: int) -> None:
        older_than = timedelta(hours=hours)
        both = (
            (self.registry.prunable_local, self.registry.prune_local),
            (self.registry.prunable_remote, self.registry.prune_remote),
        )
        for (known, _), (prunable, prune) in zip(self.planes(), both, strict=True):
            old = {each for each, kept in known.items() if kept.age >= hours and not kept.uses}
            assert set(prunable(older_than=older_than)) == old
            assert set(prune(older_than=older_than)) == old
            for sandbox_id in old:
                del known[sandbox_id]
        assert in_trash(local_root()) == []

    @invariant()
    def lists_what_the_model_knows(self) -> None:
        assert self.registry.list_local() == sorted(self.local)
        assert {record.id for record in self.registry.list_remote()} == set(self.remote)

    @invariant()
    def leaves_nothing_beside(self) -> None:
        for root in (local_root(), opensandbox_root()):
            assert not list(Path(root).glob(".atomic_*"))

    def planes(self) -> list[tuple[dict[UUID, Kept], Callable[[UUID], Path]]]:
        return [
            (self.local, self.registry.local_path),
            (self.remote, opensandbox_index_path),
        ]


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(
    # Each step forces files to disk.
    max_examples=min(settings().max_examples // 2, 400),
    stateful_step_count=20,
)
