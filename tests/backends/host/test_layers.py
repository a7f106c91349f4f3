"""Layers: copies, directories of forks, and what they are against a model."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from rath.backend import (
    Backend,
    BackendError,
    BackendSandbox,
    BackendToolCodeRun,
    BackendToolFilesEdit,
    BackendToolFilesList,
    BackendToolFilesWrite,
    CodeResult,
    FileEntries,
    ToolExecutionFailure,
)
from rath.backend.bubblewrap import BubblewrapBackend
from rath.backend.effects import observe_effects
from rath.backend.host.layers import (
    LOCK_NAME,
    CopyFailed,
    Layer,
    LayerDirectory,
    copy_tree,
)
from rath.backend.host.overlay import overlay_tools
from rath.backend.host.paths import MAX_DEPTH, forget_temporary, new_temporary
from rath.backend.local import LocalBackend
from rath.backend.snapshots import NewFile
from tests.support.workspaces import (
    CopyingBackend,
    begun,
    content_of,
    fork_directories,
    forked,
    has,
    opened,
    put,
    sh,
    text_of,
    wait_for,
    wait_until_removed,
)

FILE = 0o100644
LINK = 0o120777


def overlays_work() -> bool:
    directory = LayerDirectory()
    try:
        return overlay_tools(directory) is not None
    finally:
        directory.remove()


class BubblewrapCopyingBackend(BubblewrapBackend):
    """Copies where others mount an overlay."""

    mounts_layers = False


BACKENDS: dict[str, type[LocalBackend | BubblewrapBackend]] = {
    "overlay": LocalBackend,
    "copy": CopyingBackend,
    "bubblewrap overlay": BubblewrapBackend,
    "bubblewrap copy": BubblewrapCopyingBackend,
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    made = BACKENDS[request.param]
    if "overlay" in request.param and not overlays_work():
        pytest.skip("overlays cannot be mounted here")
    if not made.is_available():
        pytest.skip(str(made.unavailable_reason()))
    return made()


@pytest.fixture
def parent(backend: Backend, workspace: Path) -> Iterator[BackendSandbox]:
    sandbox = opened(backend, workspace)
    yield sandbox
    backend.close(sandbox)


def test_a_fork_reads_the_frozen_files_without_a_layer(
    parent: BackendSandbox, workspace: Path
) -> None:
    put(parent, "below/a", "one")
    fork = forked(parent)
    assert text_of(fork, "below/a") == "one"
    listed = fork.dispatch(BackendToolFilesList("below"))
    assert isinstance(listed, FileEntries)
    root = fork.describe().root
    assert [entry.path for entry in listed.entries] == [f"{root}/below/a"]
    assert text_of(fork, f"{root}/below/a") == "one"
    assert fork.describe().layer == "frozen"
    (directory,) = fork_directories()
    assert fork.handle.endswith(directory)
    assert os.listdir(fork.handle) == [LOCK_NAME]


def test_it_says_what_its_layer_is(parent: BackendSandbox) -> None:
    fork = forked(parent)
    put(fork, "a", "one")
    mounts = type(parent.backend).mounts_layers  # type: ignore[attr-defined]
    assert fork.describe().layer in ({"overlay"} if mounts else {"copy", "reflink"})
    assert parent.describe().layer is None
    assert sh(fork, "pwd").strip() == fork.describe().root
    assert (fork.describe().root == parent.describe().root) is mounts


def test_code_runs_in_the_layer(parent: BackendSandbox) -> None:
    put(parent, "a", "one")
    fork = forked(parent)
    code = "print(open('a').read()); open('a', 'w').write('two')"
    result = fork.dispatch(BackendToolCodeRun(code))
    assert isinstance(result, CodeResult)
    assert (result.error, result.stdout) == (None, b"one\n")
    assert text_of(fork, "a") == "two"
    assert text_of(parent, "a") == "one"


def test_links_and_modes_are_preserved(parent: BackendSandbox) -> None:
    sh(parent, "mkdir d; echo x > d/f; ln -s d/f link; ln -s nowhere gone; chmod 750 d/f")
    fork = forked(parent)
    put(fork, "other", "")
    assert sh(fork, "readlink link gone; stat -c %a d/f") == "d/f\nnowhere\n750\n"
    assert text_of(fork, "link") == "x\n"
    put(fork, "link", "y")
    assert text_of(parent, "d/f") == "x\n"


def test_changes_are_there_from_the_beginning(parent: BackendSandbox) -> None:
    sh(parent, "mkdir d; echo a > d/a; echo b > b; ln -s b c")
    fork = forked(
        parent,
        {
            "d/a": None,
            "d": NewFile(b"file now", FILE),
            "b": NewFile(b"new", 0o100755),
            "c": NewFile(b"d", LINK),
            "new/below/x": NewFile(b"x", FILE),
            "missing/file": None,
        },
    )
    assert has(fork, "new/below/x")
    assert sh(fork, "cat d b new/below/x; readlink c; stat -c %a b") == "file nownewxd\n755\n"
    assert sh(parent, "cat d/a b; ls") == "a\nb\nb\nc\nd\n"


@pytest.mark.parametrize("path", ["../outside", "below/../../outside", "..", ""])
def test_changes_outside_are_refused(parent: BackendSandbox, path: str, tmp_path: Path) -> None:
    fork = forked(parent, {path: NewFile(b"x", FILE)})
    result = fork.dispatch(BackendToolFilesWrite("a", "x"))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "workspace_copy_failed"
    assert not (tmp_path / "outside").exists()


def test_fifty_forks_share_one_copy(parent: BackendSandbox) -> None:
    sh(parent, "for i in $(seq 200); do echo $i > f$i; done")
    forks = [forked(parent) for _ in range(50)]
    put(parent, "f1", "changed")
    assert {text_of(fork, "f1") for fork in forks} == {"1\n"}
    copies = [each for each in forks if len(os.listdir(each.handle)) > 1]
    assert copies == []
    assert len(fork_directories()) == 51
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put_own_name, forks[:10]))
    assert all(text_of(fork, "f2") == fork.handle for fork in forks[:10])
    assert text_of(parent, "f2") == "2\n"


def put_own_name(fork: BackendSandbox) -> None:
    put(fork, "f2", fork.handle)


def test_first_writes_side_by_side_make_one_layer(parent: BackendSandbox) -> None:
    put(parent, "a", "one")
    fork = forked(parent)
    start = threading.Barrier(9)

    def write(name: str, sandbox: BackendSandbox) -> None:
        start.wait()
        put(sandbox, name, name)

    with ThreadPoolExecutor(9) as pool:
        running = [pool.submit(write, f"f{i}", fork) for i in range(8)]
        running.append(pool.submit(write, "a", parent))
        for each in running:
            each.result()
    assert sh(fork, "ls; cat a") == "a\n" + "".join(f"f{i}\n" for i in range(8)) + "one"
    assert sh(parent, "ls; cat a") == "a\na"
    assert len(fork_directories()) == 2


def test_effects_of_a_fork_are_those_of_its_layer(parent: BackendSandbox) -> None:
    put(parent, "a", "one")
    fork = forked(parent)
    with observe_effects() as effects:
        sh(fork, "echo two > a; echo new > b")
        put(fork, "c", "three")
        fork.dispatch(BackendToolFilesEdit("c", "three", "four"))
    assert sorted((effect.path, effect.kind) for effect in effects) == [
        ("a", "changed"),
        ("b", "created"),
        ("c", "changed"),
        ("c", "created"),
    ]
    assert effects.gaps == []


def test_equal_files_have_equal_digests(parent: BackendSandbox) -> None:
    sh(parent, "mkdir d; echo x > d/a; echo y > b")
    fork = forked(parent)
    digest = wait_for(parent.aworkspace_digest)
    assert wait_for(fork.aworkspace_digest) == digest
    put(fork, "b", "z")
    assert wait_for(fork.aworkspace_digest) != digest
    put(fork, "b", "y\n")
    assert wait_for(fork.aworkspace_digest) == digest == wait_for(parent.aworkspace_digest)


def test_closing_a_fork_leaves_nothing(parent: BackendSandbox) -> None:
    fork, unused = forked(parent), forked(parent)
    put(fork, "a", "one")
    assert not has(unused, "a")
    fork.backend.close(fork)
    fork.backend.close(fork)
    unused.release()
    del fork, unused
    wait_until_removed()


def test_a_fork_outlives_its_parent(backend: Backend) -> None:
    parent = opened(backend)
    put(parent, "a", "one")
    fork, late = forked(parent), forked(parent)
    put(fork, "b", "two")
    parent.backend.close(parent)
    assert sh(fork, "cat a b") == "onetwo"
    assert sh(late, "cat a") == "one"


def test_what_is_frozen_of_a_fork_outlives_it(parent: BackendSandbox) -> None:
    fork = forked(parent)
    put(fork, "a", "one")
    frozen = fork.freeze()
    fork.backend.close(fork)
    assert wait_for(lambda: frozen.aread("a")) == b"one"
    assert text_of(begun(parent.backend, frozen), "a") == "one"


def test_a_fork_without_a_copy_says_so(parent: BackendSandbox, workspace: Path) -> None:
    deep = workspace.joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    fork = forked(parent)
    result = fork.dispatch(BackendToolFilesWrite("a", "x"))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "workspace_copy_failed"
    deep.rmdir()
    put(fork, "a", "x")
    assert not has(parent, "a")


def test_a_workspace_that_holds_the_home_can_be_forked(
    backend: Backend, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(workspace / ".openrath"))
    parent = opened(backend, workspace)
    put(parent, "a", "one")
    fork = forked(parent)
    assert sh(fork, "cat a; echo two > a; cat a") == "onetwo\n"
    below = forked(fork)
    assert sh(below, "cat a; echo three > a; cat a") == "two\nthree\n"
    assert text_of(parent, "a") == "one"


def test_a_layer_that_cannot_be_copied_leaves_nothing() -> None:
    directory = LayerDirectory()
    try:
        with pytest.raises(CopyFailed):
            Layer(directory, "/nowhere")
        assert os.listdir(directory.path) == [LOCK_NAME]
    finally:
        directory.remove()


def test_a_closing_that_cannot_keep_frozen_files_leaves_nothing(
    parent: BackendSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a").write_text("of another directory")
    fork = forked(parent)
    put(fork, "a", "two")
    frozen = fork.freeze()

    def full(*_: object) -> None:
        raise CopyFailed("a", "No space left on device")

    before = fork_directories()
    monkeypatch.setattr("rath.backend.host.snapshots.copy_tree", full)
    with pytest.raises(BackendError, match="No space left"):
        fork.backend.close(fork)
    assert len(fork_directories()) == len(before) - 1
    with ExitStack() as held:
        for _ in range(64):  # one of them gets the number that a mount had
            held.callback(os.close, os.open(workspace, os.O_RDONLY))
        with pytest.raises(BackendError, match="lost"):
            wait_for(lambda: frozen.aread("a"))


NAMES = st.sampled_from(["a", "b.txt", "with space", "ümlaut", "-dash", ".hidden"])


@dataclass(frozen=True)
class File:
    data: bytes
    mode: int


@dataclass(frozen=True)
class Link:
    target: str


Tree = dict[str, "File | Link | Tree"]
FILES = st.builds(File, st.binary(max_size=100), st.sampled_from([0o600, 0o644, 0o755, 0o444]))
LINKS = st.builds(Link, st.sampled_from(["a", "../b.txt", "/etc/hostname", "nowhere"]))
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(NAMES, FILES | LINKS, max_size=4),
    lambda below: st.dictionaries(NAMES, FILES | LINKS | below, max_size=4),
    max_leaves=8,
)


def build(tree: Tree, at: Path) -> None:
    at.mkdir()
    for name, entry in tree.items():
        match entry:
            case File():
                (at / name).write_bytes(entry.data)
                (at / name).chmod(entry.mode)
            case Link():
                (at / name).symlink_to(entry.target)
            case _:
                build(entry, at / name)
    at.chmod(0o750)


def described(root: Path) -> dict[str, tuple[int, int, bytes]]:
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in [root, *root.rglob("*")]:
        state = path.lstat()
        content = b""
        if stat.S_ISREG(state.st_mode):
            content = path.read_bytes()
        if stat.S_ISLNK(state.st_mode):
            content = os.fsencode(os.readlink(path))
        relative = str(path.relative_to(root))
        found[relative] = (state.st_mode, state.st_mtime_ns, content)
    return found


@given(tree=TREES)
@settings(max_examples=30)
def test_a_copy_has_the_same_files_modes_times_and_links(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree
) -> None:
    above = tmp_path_factory.mktemp("copying")
    build(tree, above / "source")
    (above / "forks" / "one").mkdir(parents=True)
    before = described(above / "source")
    copy_tree(str(above / "source"), str(above / "forks" / "one" / "files"))
    assert described(above / "forks" / "one" / "files") == before == described(above / "source")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "forks" / "one").mkdir(parents=True)
    return tmp_path / "forks" / "one" / "files"


def test_a_write_to_the_copy_leaves_the_source(source: Path, target: Path) -> None:
    (source / "file").write_bytes(b"old")
    os.link(source / "file", source / "second name")
    copy_tree(str(source), str(target))
    (target / "file").write_bytes(b"new")
    assert (source / "file").read_bytes() == b"old"
    assert (target / "second name").read_bytes() == b"old"


def test_pipes_are_left_out(source: Path, target: Path) -> None:
    os.mkfifo(source / "pipe")
    (source / "file").write_bytes(b"")
    copy_tree(str(source), str(target))
    assert os.listdir(target) == ["file"]


def test_a_link_is_not_followed(source: Path, target: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"x")
    (source / "link").symlink_to(outside)
    copy_tree(str(source), str(target))
    assert (target / "link").is_symlink()


def test_a_large_file_is_copied_complete(source: Path, target: Path) -> None:
    data = os.urandom((2 << 20) + 17)
    (source / "large").write_bytes(data)
    copy_tree(str(source), str(target))
    assert (target / "large").read_bytes() == data


def test_holes_of_a_file_stay_holes(source: Path, target: Path) -> None:
    with open(source / "sparse", "wb") as file:
        file.seek(64 << 20)
        file.write(b"end")
        file.truncate(1 << 30)
    copy_tree(str(source), str(target))
    state = (target / "sparse").stat()
    assert state.st_size == 1 << 30
    assert state.st_blocks * 512 < 1 << 20
    with open(target / "sparse", "rb") as file:
        file.seek(64 << 20)
        assert file.read(4) == b"end\0"


def test_a_file_of_nothing_but_a_hole_is_copied(source: Path, target: Path) -> None:
    with open(source / "sparse", "wb") as file:
        file.truncate(1 << 30)
    copy_tree(str(source), str(target))
    assert (target / "sparse").stat().st_size == 1 << 30


def test_the_directory_of_the_copies_is_left_out(source: Path) -> None:
    forks = source / ".openrath" / "forks"
    (forks / "one").mkdir(parents=True)
    (source / "file").write_bytes(b"x")
    copy_tree(str(source), str(forks / "one" / "files"))
    assert sorted(os.listdir(forks / "one" / "files")) == [".openrath", "file"]
    assert os.listdir(forks / "one" / "files" / ".openrath") == []


def test_what_is_nested_too_deep_cannot_be_copied(source: Path, target: Path) -> None:
    deep = source.joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    with pytest.raises(CopyFailed, match="nested over 256 deep"):
        copy_tree(str(source), str(target))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_named(source: Path, target: Path) -> None:
    (source / "below").mkdir()
    (source / "below" / "closed").write_bytes(b"x")
    (source / "below" / "closed").chmod(0)
    with pytest.raises(CopyFailed, match=r"'below/closed' cannot be copied: Permission denied"):
        copy_tree(str(source), str(target))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owners_are_preserved(source: Path, target: Path) -> None:
    (source / "file").write_bytes(b"x")
    (source / "link").symlink_to("file")
    for name in ("file", "link"):
        os.chown(source / name, 65534, 65534, follow_symlinks=False)
    copy_tree(str(source), str(target))
    assert {(target / name).lstat().st_uid for name in ("file", "link")} == {65534}
    assert target.stat().st_uid == 0


def test_a_missing_place_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CopyFailed, match="No such file"):
        copy_tree(str(source), str(tmp_path / "missing" / "one" / "files"))


def test_what_a_file_tool_is_just_writing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    temporary = new_temporary(".writing", ".tmp")
    (tmp_path / "source" / temporary).touch()
    copy_tree(str(tmp_path / "source"), str(tmp_path / "target"))
    forget_temporary(temporary)
    assert os.listdir(tmp_path / "target") == []


MODEL_FILE = 0o100644


class Forking(RuleBasedStateMachine):
    """Sandboxes and their forks against dictionaries of what they hold."""

    backend: Backend
    sandboxes: Bundle[BackendSandbox] = Bundle("sandboxes")
    paths = st.sampled_from(["a", "b", "d/a", "d/e/b"])
    texts = st.text("xyz", max_size=3)

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[int, dict[str, str]] = {}
        self.opened: list[BackendSandbox] = []

    def known(self, sandbox: BackendSandbox, model: dict[str, str]) -> BackendSandbox:
        self.opened.append(sandbox)
        self.models[id(sandbox)] = model
        return sandbox

    @initialize(target=sandboxes)
    def begin(self) -> BackendSandbox:
        return self.known(opened(self.backend), {})

    @rule(target=sandboxes, source=sandboxes)
    def fork(self, source: BackendSandbox) -> BackendSandbox:
        return self.known(forked(source), dict(self.models[id(source)]))

    @rule(target=sandboxes, source=sandboxes, path=paths, text=texts)
    def fork_with_a_change(self, source: BackendSandbox, path: str, text: str) -> BackendSandbox:
        changes = {path: NewFile(text.encode(), MODEL_FILE)}
        return self.known(forked(source, changes), {**self.models[id(source)], path: text})

    @rule(sandbox=sandboxes, path=paths, text=texts)
    def write(self, sandbox: BackendSandbox, path: str, text: str) -> None:
        put(sandbox, path, text)
        self.models[id(sandbox)][path] = text

    @rule(sandbox=sandboxes, path=paths, text=texts)
    def append(self, sandbox: BackendSandbox, path: str, text: str) -> None:
        sh(sandbox, f"mkdir -p $(dirname {path}); printf %s '{text}' >> {path}")
        model = self.models[id(sandbox)]
        model[path] = model.get(path, "") + text

    @rule(sandbox=sandboxes, path=paths)
    def remove(self, sandbox: BackendSandbox, path: str) -> None:
        sh(sandbox, f"rm -f {path}")
        self.models[id(sandbox)].pop(path, None)

    @rule(sandbox=sandboxes)
    def look(self, sandbox: BackendSandbox) -> None:
        frozen = sandbox.freeze()
        found = wait_for(frozen.amanifest)
        read = {path: content_of(frozen, path).decode() for path in found}
        assert read == self.models[id(sandbox)]

    @rule(sandbox=sandboxes, path=paths)
    def read(self, sandbox: BackendSandbox, path: str) -> None:
        model = self.models[id(sandbox)]
        assert has(sandbox, path) == (path in model)
        if path in model:
            assert text_of(sandbox, path) == model[path]

    def teardown(self) -> None:
        for sandbox in self.opened:
            self.look(sandbox)
            self.backend.close(sandbox)


class ForkingByCopies(Forking):
    backend = CopyingBackend()


class ForkingByOverlays(Forking):
    backend = LocalBackend()


FEW = settings(max_examples=8, stateful_step_count=15, deadline=None)
TestForkingByCopies = ForkingByCopies.TestCase
TestForkingByCopies.settings = FEW
TestForkingByOverlays = ForkingByOverlays.TestCase
TestForkingByOverlays.settings = FEW
