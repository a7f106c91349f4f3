"""What file operations changed is told exactly, wherever they ran."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend import (
    BackendSandbox,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileEffect,
    observe_effects,
)
from rath.backend.effects import happening_in, note_effect
from rath.testing import FakeBackend

MODE = 0o100644
"""Of a regular file that a tool wrote."""


def created(path: str, content: bytes) -> FileEffect:
    return FileEffect(path, "created", None, Blob.from_bytes(content), after_mode=MODE)


@given(
    writes=st.lists(st.tuples(st.sampled_from(["a", "d/b"]), st.sampled_from([b"", b"1", b"2"])))
)
def test_effects_chain_from_before_to_after(writes: list[tuple[str, bytes]]) -> None:
    sandbox = FakeBackend().open()
    with observe_effects() as effects:
        for path, data in writes:
            sandbox.dispatch(BackendToolFilesWrite(path, data))
    now: dict[str, Blob | None] = {}
    for effect in effects:
        assert effect.before == now.get(effect.path)
        now[effect.path] = effect.after
    assert now == {path: Blob.from_bytes(data) for path, data in writes}
    sandbox.backend.close(sandbox)


def test_a_new_file_is_created(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a/b.txt", "new"))
    assert effects == [created("a/b.txt", b"new")]
    assert effects[0].after is not None
    assert effects[0].after.data == b"new"


def test_an_old_file_is_changed(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "old"))
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a.txt", "new"))
    before, after = Blob.from_bytes(b"old"), Blob.from_bytes(b"new")
    changed = FileEffect(
        "a.txt", "changed", before, after, "exact", before_mode=MODE, after_mode=MODE
    )
    assert effects == [changed]


def test_writing_what_is_there_is_no_effect(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "same"))
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a.txt", "same"))
    assert effects == []


def test_the_path_is_the_real_one_below_the_root(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "real").mkdir()
    (workspace / "link").symlink_to("real")
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite(f"{workspace}/link/../link/a.txt", "x"))
    assert effects == [created("real/a.txt", b"x")]


def test_a_large_content_keeps_digest_and_size_only(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    large = b"x" * (MAX_BLOB_BYTES + 1)
    (workspace / "large").write_bytes(large)
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("large", b""))
    before = effects[0].before
    assert before == Blob(sha256(large).hexdigest(), len(large))
    assert before is not None
    assert before.data is None


def test_a_failed_write_and_a_read_note_nothing(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("../out.txt", "x"))
        sandbox.dispatch(BackendToolFilesRead("a.txt"))
    assert effects == []


def test_a_write_that_only_changes_the_mode_tells_the_modes(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("same")
    (workspace / "a.txt").chmod(0o600)
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a.txt", "same"))
    modes = [(effect.before_mode, effect.after_mode) for effect in effects]
    assert modes == [(0o100600, MODE)]


def test_parallel_writes_of_one_file_each_tell_what_they_replaced(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects, sandbox.stream() as one, sandbox.stream() as two:
        for n in range(10):
            one.submit(BackendToolFilesWrite("a.txt", f"one {n}"))
            two.submit(BackendToolFilesWrite("a.txt", f"two {n}"))
        one.synchronize()
        two.synchronize()
    afters = {effect.after.digest for effect in effects if effect.after is not None}
    befores = {effect.before.digest for effect in effects if effect.before is not None}
    assert len(effects) == 20
    assert len(afters - befores) == 1


def test_an_observer_sees_only_what_happens_inside(sandbox: BackendSandbox) -> None:
    def write(name: str) -> list[FileEffect]:
        with observe_effects() as effects:
            sandbox.dispatch(BackendToolFilesWrite(name, name))
        return effects

    names = [f"{n}.txt" for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(write, names))
    assert seen == [[created(name, name.encode())] for name in names]


def test_every_observer_around_an_operation_is_told() -> None:
    effect = created("a.txt", b"")
    with observe_effects() as outer:
        with observe_effects() as inner:
            note_effect(effect)
        note_effect(effect)
    assert (outer, inner) == ([effect, effect], [effect])


def test_nobody_has_to_observe() -> None:
    note_effect(created("a.txt", b""))


def test_an_effect_says_in_which_sandbox_it_happened(
    sandbox: BackendSandbox, tmp_path: Path
) -> None:
    other = FakeBackend().open()
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a", "1"))
        other.dispatch(BackendToolFilesWrite("a", "1"))
        note_effect(created("a", b"1"))
    other.backend.close(other)
    assert [effect.sandbox for effect in effects] == [sandbox.handle, other.handle, None]


def test_an_effect_that_names_a_sandbox_keeps_it() -> None:
    with observe_effects() as effects, happening_in(FakeBackend().lazy()):
        note_effect(replace(created("a", b"1"), sandbox="there"))
        note_effect(created("a", b"1"))
    assert [effect.sandbox for effect in effects] == ["there", None]


def test_equal_contents_are_held_once() -> None:
    with observe_effects() as effects:
        note_effect(created("a", bytes([1, 2])))
        note_effect(FileEffect("a", "deleted", Blob.from_bytes(bytes([1, 2])), None))
    assert effects[0].after is effects[1].before


def test_contents_under_a_wrong_digest_reach_nobody_else() -> None:
    right = Blob.from_bytes(b"right")
    with observe_effects() as effects:
        note_effect(FileEffect("a", "created", None, Blob(right.digest, 5, b"wrong")))
        note_effect(FileEffect("a", "created", None, right))
        note_effect(FileEffect("a", "created", None, Blob(right.digest, 5)))
    assert [each.after.data for each in effects if each.after] == [b"wrong", b"right", None]
