"""What commands and code changed is found by looking at the workspace before and after."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesWrite,
    CommandResult,
    FileEffect,
    observe_effects,
)
from rath.backend.changes import EffectPolicy
from rath.backend.effects import EffectLog
from rath.backend.local import LocalBackend
from tests.support.shell_scripts import changed, read_tree, scripts, told, undone
from tests.support.waiting import at_a_deadline


def run(sandbox: BackendSandbox, line: str) -> EffectLog:
    with observe_effects() as effects:
        result = sandbox.dispatch(BackendToolCommandRun(line))
    assert isinstance(result, CommandResult), result
    assert result.exit_code == 0, result.stderr
    return effects


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendSandbox]:
    backend = LocalBackend()
    root = tmp_path_factory.mktemp("shared")
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(root)))
    yield sandbox
    backend.close(sandbox)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(scripts(), min_size=1, max_size=3))
def test_effects_undone_give_the_tree_before(shared: BackendSandbox, lines: list[str]) -> None:
    root = Path(shared.handle)
    for line in lines:
        before = read_tree(root)
        effects = run(shared, line)
        after = read_tree(root)
        assert effects.gaps == []
        assert undone(after, effects) == before
        assert told(effects) == changed(before, after)


def test_each_kind_is_reported_with_contents_and_modes(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    for name in ("changes", "goes", "moves", "stays"):
        (workspace / name).write_text(f"{name} before")
        (workspace / name).chmod(0o644)
    effects = run(sandbox, "umask 022; echo new > made; echo after > changes; rm goes; mv moves to")
    mode = 0o100644

    def blob(text: str) -> Blob:
        return Blob.from_bytes(text.encode())

    assert effects == [
        FileEffect(
            "changes", "changed", blob("changes before"), blob("after\n"), "window",
            before_mode=mode, after_mode=mode,
        ),
        FileEffect("goes", "deleted", blob("goes before"), None, "window", before_mode=mode),
        FileEffect("made", "created", None, blob("new\n"), "window", after_mode=mode),
        FileEffect(
            "to", "renamed", blob("moves before"), blob("moves before"), "window", "moves",
            before_mode=mode, after_mode=mode,
        ),
    ]  # fmt: skip
    contents = [
        (each.before and each.before.data, each.after and each.after.data) for each in effects
    ]
    assert contents == [
        (b"changes before", b"after\n"),
        (b"goes before", None),
        (None, b"new\n"),
        (b"moves before", b"moves before"),
    ]


def test_a_change_of_mode_alone_is_reported(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "a").write_text("same")
    (workspace / "a").chmod(0o644)
    [effect] = run(sandbox, "chmod 755 a")
    assert (effect.kind, effect.before) == ("changed", effect.after)
    assert (effect.before_mode, effect.after_mode) == (0o100644, 0o100755)


def test_a_renamed_directory_renames_its_files(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "d").mkdir()
    for name in ("one", "two", "empty", "also_empty"):
        (workspace / "d" / name).write_text("" if "empty" in name else name)
    effects = run(sandbox, "mv d e")
    assert {(each.renamed_from, each.path) for each in effects} == {
        (f"d/{name}", f"e/{name}") for name in ("one", "two", "empty", "also_empty")
    }


def test_a_new_file_with_the_inode_of_an_old_one_is_not_a_renamed_one(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    (workspace / "a").write_text("old")
    effects = run(sandbox, "rm a; echo new > b")
    assert [(each.path, each.kind) for each in effects] == [("a", "deleted"), ("b", "created")]


def test_a_file_that_became_a_link_has_changed(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "a").write_text("x")
    [effect] = run(sandbox, "rm a; ln -s /etc/hostname a")
    assert effect.kind == "changed"
    assert effect.after == Blob.from_bytes(b"/etc/hostname")
    assert stat.S_ISLNK(effect.after_mode or 0)


def test_what_only_was_touched_has_no_effect(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "a").write_text("x")
    assert run(sandbox, "touch a; cat a; echo y > b; rm b") == []


def test_code_tells_its_files_and_not_its_own_script(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolCodeRun("open('made', 'w').write('x')"))
    assert [(each.path, each.kind) for each in effects] == [("made", "created")]


def test_a_command_that_timed_out_tells_what_it_did(sandbox: BackendSandbox) -> None:
    def run_until(deadline: float) -> EffectLog:
        with observe_effects() as effects:
            line = "echo x > a; exec sleep 60"
            sandbox.dispatch(BackendToolCommandRun(line, timeout=deadline))
        return effects

    effects = at_a_deadline(run_until, bool)
    assert [(each.path, each.kind) for each in effects] == [("a", "created")]


def test_ignored_directories_are_not_reported(sandbox: BackendSandbox) -> None:
    effects = run(sandbox, "mkdir .git d d/__pycache__; touch .git/a d/__pycache__/b d/c")
    assert [each.path for each in effects] == ["d/c"]


def test_a_large_file_is_reported_without_its_content(sandbox: BackendSandbox) -> None:
    size = MAX_BLOB_BYTES + 1
    [effect] = run(sandbox, f"head -c {size} /dev/zero > large")
    assert effect.after == Blob(sha256(bytes(size)).hexdigest(), size)
    assert effect.after is not None
    assert effect.after.data is None


def test_a_name_that_is_not_utf8_is_displayed_as_valid_text(sandbox: BackendSandbox) -> None:
    effects = run(sandbox, r"touch $(printf 'a\377')")
    assert [each.path for each in effects] == ["a\\xff"]
    assert "not UTF-8" in effects.gaps[0]


def test_a_pipe_is_a_gap(sandbox: BackendSandbox) -> None:
    effects = run(sandbox, "mkfifo pipe")
    assert (list(effects), effects.gaps) == (
        [],
        ["'pipe' is a named pipe: only files and links are recorded"],
    )


def test_a_huge_file_is_a_gap(sandbox: BackendSandbox) -> None:
    effects = run(sandbox, "truncate -s 1T huge")
    assert list(effects) == []
    assert effects.gaps == [
        "what changed in 'huge' is not known: over 256 MiB: files so large are not read"
    ]


def opened(workspace: Path, policy: EffectPolicy) -> BackendSandbox:
    spec = BackendSandboxSpec(working_dir=str(workspace), effects=policy)
    return LocalBackend().open(spec)


def test_nothing_is_looked_for_when_it_is_off(workspace: Path) -> None:
    with opened(workspace, EffectPolicy(is_on=False)) as sandbox, observe_effects() as effects:
        sandbox.dispatch(BackendToolCommandRun("touch a"))
        sandbox.dispatch(BackendToolFilesWrite("b", "x"))
    assert [each.path for each in effects] == ["b"]
    assert effects.gaps == ["effects were not looked for (EffectPolicy.is_on is False)"]


def test_too_many_files_are_a_gap_and_no_guess(workspace: Path) -> None:
    with opened(workspace, EffectPolicy(max_files=3)) as sandbox:
        few = run(sandbox, "touch a b c")
        many = run(sandbox, "touch d e")
        again = run(sandbox, "touch f")
    assert ([each.path for each in few], few.gaps) == (["a", "b", "c"], [])
    for each in (many, again):
        assert list(each) == []
        assert "more than 3 files" in each.gaps[0]


def test_contents_are_not_preserved_when_nobody_wants_them(workspace: Path) -> None:
    (workspace / "a").write_text("before")
    with opened(workspace, EffectPolicy(keep_contents=False)) as sandbox:
        effects = run(sandbox, "echo after > a")
    [effect] = effects
    assert (effect.before, effect.after) == (
        Blob.from_bytes(b"before"),
        Blob.from_bytes(b"after\n"),
    )
    assert effect.before is not None
    assert (effect.before.data, effects.gaps) == (None, [])


def test_the_digest_of_a_workspace_is_that_of_its_files(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    def digest() -> str | None:
        return sandbox.workspace_digest()

    empty = digest()
    (workspace / "a").write_text("x")
    one = digest()
    (workspace / "a").chmod(0o700)
    other_mode = digest()
    (workspace / "a").unlink()
    assert len({empty, one, other_mode}) == 3
    assert digest() == empty


def test_a_workspace_with_a_file_too_large_to_read_has_no_digest(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert sandbox.workspace_digest() is None


def test_contents_that_find_no_room_are_a_gap(
    sandbox: BackendSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a").write_text("before")
    monkeypatch.setattr("rath.backend.host.changes.MAX_CONTENT_BYTES", 6)
    effects = run(sandbox, "echo after > a")
    [effect] = effects
    assert effect.before is not None
    assert effect.after is not None
    assert (effect.before.data, effect.after.data) == (b"before", None)
    assert effects.gaps == [
        "some contents were not kept, only their digests: there is no room for more"
    ]


def test_without_temporary_files_the_digests_are_reported(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    effects = run(sandbox, "echo x > a")
    assert [each.after for each in effects] == [Blob.from_bytes(b"x\n")]
    assert len(effects.gaps) == 1


def test_contents_of_before_survive_any_cleaning_up(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.host.changes.MIN_WASTE_BYTES", 0)
    monkeypatch.setattr("rath.backend.host.scan.MIN_WASTE_BYTES", 0)
    for n in range(10):
        run(sandbox, f"echo {n} > a; echo {n} > b{n}; rm -f b{n - 1}")
    before = {each.path: each.before for each in run(sandbox, "rm a b9")}
    assert {path: each and each.data for path, each in before.items()} == {
        "a": b"9\n",
        "b9": b"9\n",
    }
