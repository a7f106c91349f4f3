"""A rebuild puts right what an index has wrong, and says how much that was."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from rath.memory import MemoryFindResult, MemoryOpFind, MemoryOpWrite, MemoryStore
from rath.memory.adapters.local.catalog import RebuildReport, rebuild
from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import IndexEntry, NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME
from tests.memory.adapters.local.conftest import Find
from tests.support.memory_index import kept, rebuilt


@pytest.fixture
def notes(store: MemoryStore, find: Find) -> list[str]:
    """Three notes that are in the index."""
    uris = [f"memory://user/{name}" for name in "abc"]
    for uri in uris:
        store.dispatch(MemoryOpWrite(uri, "tea"))
    assert set(find("tea")) == set(uris)
    return uris


@pytest.mark.usefixtures("notes")
def test_an_index_that_is_right_is_left_as_it_is(root: Path) -> None:
    assert rebuild(root) == rebuild(root) == RebuildReport(n_files=3, n_wrong=0)


@pytest.mark.usefixtures("notes")
def test_wrong_missing_and_superfluous_entries_are_put_right(root: Path, find: Find) -> None:
    with closing(NoteIndex(root / INDEX_NAME)) as index, index.writing():
        status = (root / "user/a.md").stat()
        stamp = Stamp(status.st_mtime_ns, status.st_size)
        index.put([IndexEntry("user", "a.md", "note", stamp, ["milk"])])
        index.put([IndexEntry("gone", "x.md", "note", stamp, ["milk"])])
        index.remove("user", "b.md")
    assert rebuild(root) == RebuildReport(n_files=3, n_wrong=3)
    assert kept(root) == rebuilt(root)
    assert len(find("tea")) == 3
    assert find("milk") == []


@pytest.mark.usefixtures("notes")
def test_wrong_sums_are_put_right(root: Path) -> None:
    with closing(NoteIndex(root / INDEX_NAME)) as index, index.writing():
        index.run("UPDATE totals SET documents = 9, terms = 9")
        index.run("DELETE FROM vocabulary")
        index.run("INSERT INTO vocabulary VALUES ('m', 4, 'milk', 0, 1)")
    rebuild(root)
    assert kept(root) == rebuilt(root)


@pytest.mark.usefixtures("notes")
def test_an_edit_in_place_that_keeps_time_and_size_is_seen(root: Path, find: Find) -> None:
    path = root / "user/a.md"
    times = path.stat()
    path.write_text("cup")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert find("cup") == []
    assert rebuild(root) == RebuildReport(n_files=3, n_wrong=1)
    assert find("cup") == ["memory://user/a"]


@pytest.mark.usefixtures("notes")
def test_tables_of_terms_that_are_damaged_are_built_again(root: Path, find: Find) -> None:
    with closing(NoteIndex(root / INDEX_NAME)) as index, index.writing():
        index.run("DELETE FROM notes_data WHERE id > 10")
    assert rebuild(root) == RebuildReport(n_files=3, n_wrong=3)
    assert len(find("tea")) == 3


def test_an_index_is_made_where_there_is_none(root: Path) -> None:
    (root / "user").mkdir(parents=True)
    (root / "user/a.md").write_text("tea")
    assert rebuild(root) == RebuildReport(n_files=1, n_wrong=1)


def test_an_index_that_cannot_be_a_file_is_looked_through_all_the_same(root: Path) -> None:
    (root / "user").mkdir(parents=True)
    (root / "user/a.md").write_text("tea")
    (root / INDEX_NAME).mkdir()
    assert rebuild(root).n_files == 1


def test_an_open_store_goes_on_while_it_is_rebuilt(store: MemoryStore, root: Path) -> None:
    for name in "abc":
        store.dispatch(MemoryOpWrite(f"memory://user/{name}", "tea"))
        assert rebuild(root).n_wrong == 0
        result = store.dispatch(MemoryOpFind("tea"))
        assert isinstance(result, MemoryFindResult)
        assert f"memory://user/{name}" in {hit.uri for hit in result.hits}
