"""One unified diff over changes of files."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.backend.parts import split_lines
from rath.session.files.diff import unified_diff
from tests.support.api import net_changes
from tests.support.session_files import (
    FILE,
    Change,
    change_lists,
    changed,
    created,
    follow,
    moved,
    removed,
    trees,
)
from tests.support.trees import laid_out, lay_out, temporary_tree

LINK = stat.S_IFLNK | 0o777
SCRIPT = stat.S_IFREG | 0o755


def test_a_diff_is_as_git_writes_it() -> None:
    assert unified_diff([changed("src/a.py", b"one\ntwo\n", b"one\n2\n")]) == (
        "diff --git a/src/a.py b/src/a.py\n"
        "--- a/src/a.py\n"
        "+++ b/src/a.py\n"
        "@@ -1,2 +1,2 @@\n"
        " one\n"
        "-two\n"
        "+2\n"
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            created("a", b"1"),
            "diff --git a/a b/a\nnew file mode 100644\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+1\n"
            "\\ No newline at end of file\n",
            id="created",
        ),
        pytest.param(
            created("a", b""), "diff --git a/a b/a\nnew file mode 100644\n", id="created empty"
        ),
        pytest.param(
            removed({"a": b"1\n"}, "a"),
            "diff --git a/a b/a\ndeleted file mode 100644\n--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n"
            "-1\n",
            id="deleted",
        ),
        pytest.param(
            moved({"a": b"1\n"}, "a", "b"),
            "diff --git a/a b/b\nsimilarity index 100%\nrename from a\nrename to b\n",
            id="renamed",
        ),
        pytest.param(
            FileEffect(
                "a", "changed", Blob.from_bytes(b"1"), Blob.from_bytes(b"1"),
                before_mode=FILE, after_mode=SCRIPT,
            ),
            "diff --git a/a b/a\nold mode 100644\nnew mode 100755\n",
            id="made executable",
        ),
        pytest.param(
            FileEffect(
                "a", "changed", Blob.from_bytes(b"1\n"), Blob.from_bytes(b"b"),
                before_mode=FILE, after_mode=LINK,
            ),
            "diff --git a/a b/a\ndeleted file mode 100644\n--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n"
            "-1\n"
            "diff --git a/a b/a\nnew file mode 120000\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+b\n"
            "\\ No newline at end of file\n",
            id="became a link",
        ),
        pytest.param(
            FileEffect(
                "b", "renamed", Blob.from_bytes(b"1\n"), Blob.from_bytes(b"2\n"), renamed_from="a"
            ),
            "diff --git a/a b/b\nrename from a\nrename to b\n--- a/a\n+++ b/b\n@@ -1 +1 @@\n"
            "-1\n+2\n",
            id="renamed and changed",
        ),
        pytest.param(
            changed("a", b"\0", b"x"), "Binary files a/a and b/a differ\n", id="binary"
        ),
        pytest.param(created("a", b"\xff"), "Binary files /dev/null and b/a differ\n", id="bytes"),
        pytest.param(
            removed({"a": b"\xff"}, "a"), "Binary files a/a and /dev/null differ\n", id="bytes gone"
        ),
        pytest.param(
            FileEffect("a", "created", None, Blob("0" * 64, 9)),
            "Contents of a were not kept: from nothing to 9 bytes\n",
            id="not kept",
        ),
        pytest.param(
            FileEffect(
                "a", "changed", Blob("0" * 64, 9), Blob("0" * 64, 9),
                before_mode=FILE, after_mode=stat.S_IFREG | 0o640,
            ),
            "",
            id="a mode that git does not know",
        ),
        pytest.param(
            changed("a b", b"", b"1\n"),
            "diff --git a/a b b/a b\n--- a/a b\t\n+++ b/a b\t\n@@ -0,0 +1 @@\n+1\n",
            id="a blank in the path",
        ),
        pytest.param(
            created('q"\n\x01\udcff', b""),
            'diff --git "a/q\\"\\n\\001\\377" "b/q\\"\\n\\001\\377"\nnew file mode 100644\n',
            id="odd characters in the path",
        ),
    ],
)  # fmt: skip
def test_how_a_change_is_shown(change: FileEffect, expected: str) -> None:
    assert unified_diff([change]) == expected


texts = st.lists(st.sampled_from(["x\n", "y\n", "z\n", "y\r\n"]), max_size=30).map("".join)


@given(before=texts, after=texts, ends=st.tuples(*[st.sampled_from(["", "x"])] * 2))
def test_hunks_tell_how_one_text_becomes_another(
    before: str, after: str, ends: tuple[str, str]
) -> None:
    old, new = split_lines(before + ends[0]), split_lines(after + ends[1])
    text = unified_diff([changed("a", "".join(old).encode(), "".join(new).encode())])
    assert patched(old, split_lines(text)) == new


def patched(old: list[str], diff: list[str]) -> list[str]:
    """Apply a diff of one text; each of its lines has to fit."""
    made: list[str] = []
    left = list(old)
    for line, following in zip(diff[3:], [*diff[4:], ""], strict=False):
        body = line[1:-1] if following.startswith("\\") else line[1:]
        match line[0]:
            case "@":
                start, size = hunk_start(line)
                n_kept = (start - 1 if size else start) - (len(old) - len(left))
                made += left[:n_kept]
                del left[:n_kept]
            case "+":
                made.append(body)
            case " " | "-":
                assert left.pop(0) == body
                made += [body] if line[0] == " " else []
            case _:
                assert line == "\\ No newline at end of file\n"
    return made + left


def hunk_start(header: str) -> tuple[int, int]:
    first, _, size = header.split()[1].lstrip("-").partition(",")
    return int(first), int(size or 1)


def test_changes_are_one_hunk_up_to_six_lines_apart() -> None:
    before = [f"{number}\n" for number in range(30)]
    after = ["x\n" if number in (5, 12, 20) else line for number, line in enumerate(before)]
    text = unified_diff([changed("a", "".join(before).encode(), "".join(after).encode())])
    hunks = [line for line in text.splitlines() if line.startswith("@@")]
    assert hunks == ["@@ -3,14 +3,14 @@", "@@ -18,7 +18,7 @@"]


def test_large_texts_are_compared_soon() -> None:
    before = "".join(random.Random(1).choices([f"w{number}\n" for number in range(150)], k=99_999))
    after = f"first\n{before}last\n"
    started = time.thread_time()
    text = unified_diff([changed("a", before.encode(), after.encode())])
    assert time.thread_time() - started < 5
    assert len(text.splitlines()) == 13


def test_a_diff_of_nothing_is_empty() -> None:
    assert unified_diff([]) == ""


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@settings(max_examples=25)
@given(files=trees, todo=change_lists)
def test_git_makes_the_files_after_of_those_before(
    files: dict[str, bytes], todo: list[Change]
) -> None:
    after = dict(files)
    text = unified_diff(net_changes(follow(after, todo)))
    with temporary_tree(files) as root:
        done = subprocess.run(
            ["git", "apply", "--allow-empty", "--whitespace=nowarn", "-"],
            cwd=root,
            input=text.encode(),
            capture_output=True,
            check=False,
            env={"GIT_CEILING_DIRECTORIES": str(root.parent), "PATH": os.environ["PATH"]},
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert laid_out(root) == after


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_patch_reads_what_texts_became(tmp_path: Path) -> None:
    lay_out(tmp_path, {"a": b"1\n2\n3", "dir/gone": b"x\n"})
    text = unified_diff(
        [
            changed("a", b"1\n2\n3", b"1\nzwei\n3\n"),
            removed({"dir/gone": b"x\n"}, "dir/gone"),
            created("new/b", b"hi\n"),
        ]
    )
    done = subprocess.run(
        ["patch", "-p1"], cwd=tmp_path, input=text.encode(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert laid_out(tmp_path) == {"a": b"1\nzwei\n3\n", "new/b": b"hi\n"}
