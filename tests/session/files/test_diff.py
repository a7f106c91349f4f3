"""One unified diff over changes of files."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.session.files.diff import Run, common_runs, unified_diff
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
from tests.support.trees import laid_out, temporary_tree

LINK = stat.S_IFLNK | 0o777
SCRIPT = stat.S_IFREG | 0o755


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
def test_the_diff_of_a_change(change: FileEffect, expected: str) -> None:
    assert unified_diff([change]) == expected


texts = st.lists(st.sampled_from(["x\n", "y\n", "z\n", "y\r\n"]), max_size=30).map("".join)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@settings(max_examples=25)
@given(
    files=trees,
    todo=change_lists,
    before=texts,
    after_text=texts,
    ends=st.tuples(*[st.sampled_from(["", "x"])] * 2),
)
def test_git_makes_the_files_after_of_those_before(
    files: dict[str, bytes],
    todo: list[Change],
    before: str,
    after_text: str,
    ends: tuple[str, str],
) -> None:
    after = dict(files)
    old, new = (before + ends[0]).encode(), (after_text + ends[1]).encode()
    text = unified_diff([*net_changes(follow(after, todo)), changed("lines", old, new)])
    files, after = {**files, "lines": old}, {**after, "lines": new}
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


lines = st.lists(st.sampled_from("abcd"), max_size=12)


def n_common(a: list[str], b: list[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for one in a:
        above = row
        row = [0]
        for at, other in enumerate(b):
            row.append(above[at] + 1 if one == other else max(above[at + 1], row[at]))
    return row[-1]


def check(runs: list[Run], a: list[str], b: list[str]) -> int:
    """Check that runs are equal lines in order, and return how many."""
    end_a = end_b = 0
    for run in runs:
        assert run.a >= end_a
        assert run.b >= end_b
        end_a, end_b = run.a + run.size, run.b + run.size
        assert a[run.a : end_a] == b[run.b : end_b]
    assert runs[-1] == (len(a), len(b), 0)
    assert all(run.size for run in runs[:-1])
    return sum(run.size for run in runs)


@given(a=lines, b=lines)
def test_the_runs_are_the_longest_that_there_are(a: list[str], b: list[str]) -> None:
    assert check(common_runs(a, b), a, b) == n_common(a, b)


WORDS = [f"w{number}\n" for number in range(150)]
CHANCE = random.Random(1)
REPEATED = CHANCE.choices(WORDS, k=100_000)
UNIQUE = [f"u{number}\n" for number in range(20_000)]


def replaced(every: int, make: Callable[[int], str], start: int = 0) -> list[str]:
    made = list(REPEATED)
    for at in range(start, len(made), every):
        made[at] = make(at)
    return made


@pytest.mark.parametrize(
    ("a", "b", "at_least"),
    [
        pytest.param(REPEATED, replaced(50, "new {}\n".format), 85_000, id="many new lines"),
        pytest.param(REPEATED, replaced(500, lambda at: WORDS[at % 7]), 99_000, id="known lines"),
        pytest.param(UNIQUE, UNIQUE[10_000:] + UNIQUE[:10_000], 10_000, id="halves exchanged"),
        pytest.param(UNIQUE, CHANCE.sample(UNIQUE, 20_000), 200, id="shuffled"),
        pytest.param(REPEATED, CHANCE.choices(WORDS, k=100_000), 100, id="nothing but chance"),
        pytest.param(["\n"] * 500_000, ["\n"] * 400_000 + ["x"], 400_000, id="all alike"),
    ],
)
def test_large_texts_are_compared_by_long_runs(a: list[str], b: list[str], at_least: int) -> None:
    # Difflib takes minutes for these.
    assert check(common_runs(a, b), a, b) >= at_least
