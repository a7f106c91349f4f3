"""What differs between two scans: renames, what could not be read, and what was not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pytest

from rath._core.blobs import Blob
from rath.backend.changes import FileState, ScannedFile, TreeDiff, TreeState, diff, display_path
from rath.backend.effects import FileEffect

MODE = 0o100644


def seen(content: bytes | None, *, inode: int = 0, time: int = 0, mode: int = MODE) -> ScannedFile:
    """A file; one that could not be read for None."""
    size = len(content or b"")
    state = None if content is None else FileState(sha256(content).hexdigest(), size, mode)
    return ScannedFile((mode, inode, 0, size, time, time), state, is_settled=True)


def difference(
    before: dict[str, ScannedFile], after: dict[str, ScannedFile], exact: Sequence[FileEffect] = ()
) -> TreeDiff:
    return between(TreeState(before), TreeState(after), exact)


def between(before: TreeState, after: TreeState, exact: Sequence[FileEffect] = ()) -> TreeDiff:
    by_path: dict[str, list[FileEffect]] = {}
    for effect in exact:
        by_path.setdefault(effect.path, []).append(effect)
    return diff(before, after, by_path, to_blob=blob, attribution="window")


def blob(state: FileState) -> Blob:
    return Blob(state.digest, state.size)


def told(found: TreeDiff) -> list[tuple[str, str, str | None]]:
    return [(each.path, each.kind, each.renamed_from) for each in found.effects]


def test_one_content_that_moved_is_renamed() -> None:
    found = difference({"a": seen(b"x", inode=1)}, {"b": seen(b"x", inode=2, time=9)})
    assert told(found) == [("b", "renamed", "a")]


def test_a_content_that_stood_at_two_places_is_not_renamed() -> None:
    before = {"a": seen(b"x", inode=1), "b": seen(b"x", inode=2)}
    found = difference(before, {"c": seen(b"x", inode=3, time=9)})
    assert told(found) == [("a", "deleted", None), ("b", "deleted", None), ("c", "created", None)]


def test_the_inode_tells_which_of_two_was_renamed() -> None:
    before = {"a": seen(b"x", inode=1), "b": seen(b"x", inode=2)}
    found = difference(before, {"c": seen(b"x", inode=2)})
    assert told(found) == [("a", "deleted", None), ("c", "renamed", "b")]


@pytest.mark.parametrize(
    "new",
    [seen(b"", inode=2), seen(b"", inode=1, time=9), seen(b"", inode=1, mode=0o120777)],
    ids=["another inode", "another time", "a link"],
)
def test_an_empty_file_is_not_renamed_without_good_reason(new: ScannedFile) -> None:
    found = difference({"a": seen(b"", inode=1)}, {"b": new})
    assert told(found) == [("a", "deleted", None), ("b", "created", None)]


def test_an_unread_file_that_changed_is_a_gap() -> None:
    found = difference(
        {"a": seen(None), "b": seen(b"x"), "c": seen(None)},
        {"a": seen(None, time=1), "b": seen(None, time=1), "d": seen(None)},
    )
    assert told(found) == []
    assert found.gaps == ["what changed in 'a', 'b', 'c', 'd' is not known: it could not be read"]


def test_many_unread_files_are_one_short_gap() -> None:
    [gap] = difference({}, {f"f{n}": seen(None) for n in range(9)}).gaps
    assert "'f4' and 4 more is" in gap


def test_an_unread_file_that_did_not_change_is_no_gap() -> None:
    found = difference({"a": seen(None)}, {"a": seen(None)})
    assert (told(found), found.gaps) == ([], [])


def test_what_was_not_looked_at_once_has_not_changed() -> None:
    before = TreeState({"a": seen(b"x")}, unseen={"closed/": "Permission denied"})
    after = TreeState({"closed/b": seen(b"x"), "c": seen(b"y")})
    exact = FileEffect("closed/d", "created", None, blob(FileState("0", 1, MODE)))
    found = between(before, after, [exact])
    assert told(found) == [("a", "deleted", None), ("c", "created", None)]
    assert found.gaps == ["'closed/' could not be looked at: Permission denied"]


def test_no_changes_are_reported_for_a_root_that_was_not_scanned() -> None:
    found = between(TreeState(unseen={"": "no"}), TreeState({"a": seen(b"x")}))
    assert (told(found), found.gaps) == ([], ["'./' could not be looked at: no"])


def test_an_exact_effect_without_a_mode_is_taken_off_too() -> None:
    new = seen(b"x")
    assert new.state is not None
    exact = FileEffect("a", "created", None, blob(new.state))
    assert told(difference({}, {"a": new}, [exact])) == []


def test_what_others_did_to_the_same_file_stays() -> None:
    one, two, three = seen(b"1"), seen(b"2", time=1), seen(b"3", time=2)
    assert two.state is not None
    exact = FileEffect("a", "created", None, blob(two.state), after_mode=MODE)
    found = difference({"a": one}, {"a": three}, [exact])
    assert told(found) == [("a", "deleted", None), ("a", "changed", None)]


def test_any_name_is_displayed_as_valid_text() -> None:
    assert display_path("a/ü\udcff") == "a/ü\\xff"
