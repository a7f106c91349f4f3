"""Several files written together, or none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rath.session.files.apply import all_or_none
from tests.support.trees import laid_out, lay_out

FILE, LINK = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
FILES = {"a/b": b"1", "c": b"2", "d": b"3"}


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    lay_out(tmp_path, FILES)
    with all_or_none(tmp_path) as writing:
        writing.remove("c")
        writing.write("new/link", [b"../", b"d"], mode=LINK)
        writing.write("new/file", [b"4", b"5"], mode=FILE | 0o100)
        writing.chmod("d", FILE | 0o100)
        assert {path: (tmp_path / path).read_bytes() for path in FILES} == FILES
        assert not (tmp_path / "new").exists()
    assert laid_out(tmp_path) == {"a/b": b"1", "d": b"3", "new/file": b"45"}
    assert (tmp_path / "new/link").read_bytes() == b"3"
    assert (tmp_path / "d").stat().st_mode & 0o100
    assert (tmp_path / "new/file").stat().st_mode & 0o100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "d", "new"]


def test_an_error_of_the_last_step_takes_all_back(tmp_path: Path) -> None:
    lay_out(tmp_path, FILES)
    modes = {path: (tmp_path / path).stat().st_mode for path in FILES}

    def write() -> None:
        with all_or_none(tmp_path) as writing:
            writing.remove("a/b")
            writing.write("a", [b"a file now"], mode=FILE)
            writing.write("c", [b"two"], mode=FILE)
            writing.write("new/deep/file", [b"4"], mode=FILE)
            writing.chmod("d", FILE | 0o100)
            writing.chmod("missing", FILE)

    with pytest.raises(FileNotFoundError, match="missing"):
        write()
    assert laid_out(tmp_path) == FILES
    assert {path: (tmp_path / path).stat().st_mode for path in FILES} == modes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "d"]


def test_an_error_before_the_end_leaves_no_part(tmp_path: Path) -> None:
    lay_out(tmp_path, FILES)

    def write() -> None:
        with all_or_none(tmp_path) as writing:
            writing.remove("c")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert laid_out(tmp_path) == FILES


def test_what_cannot_be_put_back_is_kept_aside_and_told(tmp_path: Path) -> None:
    lay_out(tmp_path, FILES)

    def write() -> None:
        with all_or_none(tmp_path) as writing:
            writing.remove("c")
            writing.finish()
            (tmp_path / "c").mkdir()  # somebody else was faster
            raise ValueError("as told")

    with pytest.raises(ValueError, match="as told") as caught:
        write()
    (aside,) = tmp_path.glob(".rath_apply_*")
    assert str(aside) in caught.value.__notes__[0]
    assert b"2" in laid_out(aside).values()
