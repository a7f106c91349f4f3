"""Opening and closing local stores, and which one belongs to a project."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from rath import memory
from rath.errors import MemoryBackendError
from rath.memory.adapters.local import META_SCHEMA_VERSION, LocalMemoryBackend
from rath.memory.adapters.local.layout import project_root, store_id
from rath.memory.persistence import local_memory_root
from tests.memory.adapters.local.conftest import Find
from tests.support.meanings import Meanings

V1_STORE = Path(__file__).parents[3] / "data" / "v1" / "memory_store"


def at(path: Path, **fields: str) -> memory.MemoryStoreSpec:
    """The spec of a store in a directory."""
    return memory.MemoryStoreSpec(options={"path": str(path)}, **fields)


def meta(root: Path) -> dict[str, object]:
    """The `meta.json` of a store."""
    content: dict[str, object] = json.loads((root / "meta.json").read_text("utf-8"))
    return content


def handle_of(spec: memory.MemoryStoreSpec | None = None) -> str:
    """The directory of the store that a spec opens."""
    with LocalMemoryBackend().open(spec) as store:
        return store.handle


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, which is the working directory."""
    root = tmp_path.resolve() / "project"
    (root / "src").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    monkeypatch.chdir(root)
    return root


def test_a_path_is_the_store(tmp_path: Path) -> None:
    backend = LocalMemoryBackend()
    store = backend.open(at(tmp_path / "a" / ".." / "b"))
    assert store.handle == str(tmp_path.resolve() / "b")
    assert backend.store_count() == 1
    backend.close(store)
    assert (store.closed, backend.store_count()) == (True, 0)


def test_a_store_tells_its_version_and_times(tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "embedding_provider": "e", "embedding": Meanings()}
    spec = memory.MemoryStoreSpec(options=options)
    backend = LocalMemoryBackend()
    store = backend.open(spec)
    opened = meta(tmp_path)
    assert (opened["schema_version"], opened["embedding_provider"], opened["vlm_provider"]) == (
        META_SCHEMA_VERSION,
        "e",
        None,
    )
    backend.close(store)
    closed = meta(tmp_path)
    assert closed["created_at"] == opened["created_at"]
    assert str(closed["last_used_at"]) > str(opened["last_used_at"])


def test_a_damaged_meta_file_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{")
    handle_of(at(tmp_path))
    assert meta(tmp_path)["schema_version"] == META_SCHEMA_VERSION


def test_unknown_keys_of_a_meta_file_stay(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"schema_version": 1, "mine": [1]}')
    handle_of(at(tmp_path))
    assert meta(tmp_path)["mine"] == [1]


def test_a_store_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"schema_version": 2}')
    with pytest.raises(MemoryBackendError, match="schema version 2"):
        LocalMemoryBackend().open(at(tmp_path))
    assert meta(tmp_path) == {"schema_version": 2}


def test_a_file_in_place_of_the_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MemoryBackendError, match="expected a directory"):
        LocalMemoryBackend().open(at(tmp_path / "file"))


def test_closing_a_store_whose_directory_is_gone(tmp_path: Path) -> None:
    backend = LocalMemoryBackend()
    store = backend.open(at(tmp_path / "s"))
    shutil.rmtree(tmp_path / "s")
    backend.close(store)
    assert not (tmp_path / "s").exists()


def test_a_project_has_one_store_that_stays(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = handle_of()
    monkeypatch.chdir(project / "src")
    assert handle_of() == handle_of(memory.MemoryStoreSpec(options={})) == first
    assert Path(first).parent == local_memory_root()
    assert UUID(Path(first).name) == store_id(project)
    assert meta(Path(first))["project_root"] == str(project)


@pytest.mark.usefixtures("project")
def test_a_namespace_is_a_store_of_its_own() -> None:
    handles = [handle_of(memory.MemoryStoreSpec(namespace=name)) for name in ("a", "b", "a", None)]
    assert handles[0] == handles[2]
    assert len(set(handles)) == 3
    assert meta(Path(handles[0]))["namespace"] == "a"


@pytest.mark.parametrize("marker", [".git", "pyproject.toml", ".openrath"])
def test_a_project_begins_where_its_marker_is(tmp_path: Path, marker: str) -> None:
    below = tmp_path / "project" / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "project" / marker).mkdir()
    assert project_root(below) == (tmp_path / "project").resolve()


def test_the_home_of_the_user_is_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    below = tmp_path / "somewhere"
    below.mkdir()
    (tmp_path / ".openrath").mkdir()
    assert project_root(below) == below.resolve()


def test_a_store_is_attached_to_by_its_directory(tmp_path: Path) -> None:
    backend = LocalMemoryBackend()
    store = memory.MemoryStore(backend, str(tmp_path))
    backend.dispatch(store, memory.MemoryOpWrite("memory://user/a", "tea"))
    assert (tmp_path / "user/a.md").read_text() == "tea"
    backend.close(store)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that version 1.3 wrote."""
    return Path(shutil.copytree(V1_STORE, tmp_path.resolve() / "store"))


@pytest.mark.parametrize(
    ("query", "uri"),
    [
        ("technical SUMMARIES", "memory://user/memories/preferences/a1"),
        ("深色主题", "memory://user/memories/preferences/zh"),
        ("strasse nass", "memory://agent/memories/facts/b2"),
        ("hello", "memory://session/s-1/commits/20261121T213638468631/messages.json"),
    ],
)
def test_a_store_of_version_1_3_is_found_in(find: Find, query: str, uri: str) -> None:
    assert find(query) == [uri]


def test_a_store_of_version_1_3_is_listed(store: memory.MemoryStore, root: Path) -> None:
    result = store.dispatch(memory.MemoryOpTree("memory://user"))
    names = [each.name for each in result.entries]  # type: ignore[attr-defined]  # it exists
    assert names == ["memories", "preferences", "a1", "zh"]
    assert meta(root)["created_at"] == "2026-11-21T21:36:38.463986+00:00"
