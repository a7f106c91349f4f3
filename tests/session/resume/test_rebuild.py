"""A session that goes on where its files are gone or changed: refused, rebuilt, or without them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rath import backend
from rath.backend.start import MAX_START_FILES
from rath.flow import Agent
from rath.session import Session
from rath.testing import ScriptedClient

ROOT = Path(__file__).parents[3]
DONE = {"text": "It is done.", "has_read": True, "error": None}
SHAPES = ["agent", "workflow", "fork", "merge", "copy", "merge of copies"]
needs_bubblewrap = pytest.mark.skipif(
    not backend.is_available("bubblewrap"), reason="needs bubblewrap"
)
PLACES = [
    *(("local", shape, "./work") for shape in SHAPES),
    *(("local", shape, None) for shape in ("agent", "copy")),
    pytest.param("bubblewrap", "workflow", "./work", marks=needs_bubblewrap),
]


class Program:
    """A program that was broken off, each step in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "cwd"
        self.work = self.cwd / "work"
        self.settings: dict[str, Any] = {"folder": str(folder), "cwd": str(self.cwd)}

    def step(self, way: str) -> dict[str, Any]:
        self.cwd.mkdir(exist_ok=True)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PLACED": json.dumps([self.settings])}
        command = [sys.executable, "-m", "tests.support.placed_program", way]
        done = subprocess.run(
            command, cwd=self.cwd, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        came: list[list[dict[str, Any]]] = json.loads(done.stdout)
        return came[0][0]

    def begin(self, **settings: Any) -> None:
        self.settings |= settings
        assert self.step("begin")["error"] == ["RuntimeError"]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize(("place", "shape", "spec"), PLACES)
def test_files_that_are_gone_are_rebuilt_from_the_record(
    program: Program, place: str, shape: str, spec: str | None
) -> None:
    program.begin(backend=place, shape=shape, spec=spec)
    shutil.rmtree(program.work, ignore_errors=True)
    assert program.step("rebuild") == DONE
    assert not program.work.exists()


def test_files_that_were_changed_are_refused_or_rebuilt(program: Program) -> None:
    program.begin(spec="./work")
    (program.work / "note.txt").write_text("what somebody else wrote")
    refused = program.step("require")
    assert refused["error"][2] == "'note.txt' was changed"
    assert program.step("rebuild") == DONE
    assert (program.work / "note.txt").read_text() == "what somebody else wrote"


def test_a_file_that_is_gone_is_refused(program: Program) -> None:
    program.begin(spec="./work")
    (program.work / "note.txt").rename(program.work / "other.txt")
    assert program.step("require")["error"][2] == "'note.txt' is not there"


def test_files_that_are_as_they_were_are_taken_in_each_mode_that_has_files(
    program: Program,
) -> None:
    program.begin(spec="./work", shape="workflow")
    assert program.step("rebuild") == DONE


class Keyed:
    """A run by key whose directory and sandboxes go with each process."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder
        self.work = folder / "work"
        self.env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def in_directory(self, files: dict[str, str]) -> None:
        self.env["WORK"] = str(self.work)
        self.work.mkdir()
        for path, text in files.items():
            (self.work / path).write_text(text)

    def step(self, shape: str, mode: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.support.rebuild_program", shape, mode]
        done = subprocess.run(
            command, cwd=self.cwd, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        came: dict[str, Any] = json.loads(done.stdout)
        return came

    def begin(self, shape: str) -> None:
        assert self.step(shape, "begin") == {"broken": True}
        shutil.rmtree(self.work, ignore_errors=True)

    def tree(self, shape: str) -> list[str]:
        """Rebuild, and return what the last agent saw of the files."""
        came = self.step(shape, "rebuild")
        assert came.get("text") == "read", came
        tree: str = json.loads(came["read"])["stdout"]
        return tree.split()


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path)


TREES = {
    "siblings": "./a.txt: a, ./b.txt: b, ./both.txt: 1,2,",
    "three_way": "./lines.txt: 1,two,3,4,5,6,7,eight,9,after,",
    "undo": "./f.txt: 1, ./h.txt: 3,",
    "copies": "./f.txt: base,copy,inner,",
}


@pytest.mark.parametrize(
    ("place", "shape"),
    [
        *(("local", shape) for shape in TREES),
        pytest.param("bubblewrap", "three_way", marks=needs_bubblewrap),
    ],
)
def test_each_session_gets_the_files_of_its_own_history(
    keyed: Keyed, shape: str, place: str
) -> None:
    keyed.env["PLACE"] = place
    keyed.begin(shape)
    assert keyed.step(shape, "require") == {"lost": "no directory"}
    assert keyed.tree(shape) == TREES[shape].split()


def test_what_was_rebuilt_is_rebuilt_again_with_what_was_done_in_it(keyed: Keyed) -> None:
    keyed.begin("copies")
    assert keyed.step("copies", "write") == {"broken": True}
    assert keyed.tree("copies") == [*TREES["copies"].split(), "./more.txt:", "more,"]


FILES = {"one.txt": "one\n", "old.txt": "old\n", "gone.txt": "", "still.txt": "still"}
EDITED = ["./new.txt:", "old,", "./one.txt:", "one,two,", "./still.txt:", "still"]


def test_a_small_tree_that_was_there_before_is_rebuilt_too(keyed: Keyed) -> None:
    keyed.in_directory(FILES)
    keyed.begin("edit")
    assert keyed.step("edit", "require") == {"lost": "nothing of that name"}
    assert keyed.tree("edit") == EDITED


def test_what_goes_on_without_files_is_refused_the_tools_that_need_them(keyed: Keyed) -> None:
    keyed.in_directory(FILES)
    keyed.begin("edit")
    came = keyed.step("edit", "none")
    assert came["text"] == "read"
    assert "goes on without its files (workspace='none')" in came["read"]


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_a_clean_checkout_is_rebuilt_from_its_remote(keyed: Keyed) -> None:
    remote = keyed.cwd / "remote"
    keyed.in_directory(FILES)
    # More than would be recorded.
    for number in range(MAX_START_FILES):
        (keyed.work / f"m{number}").write_text(f"{number}")
    git(keyed.work, "init", "--quiet")
    git(keyed.work, "add", ".")
    git(keyed.work, "commit", "--quiet", "-m", "all")
    keyed.work.rename(remote)
    git(keyed.cwd, "clone", "--quiet", str(remote), str(keyed.work))
    keyed.begin("edit")
    tree = keyed.tree("edit")
    assert len(tree) == 2 * (MAX_START_FILES + 3)
    assert set(EDITED) <= set(tree)


def test_a_checkout_whose_remote_is_gone_is_named(keyed: Keyed) -> None:
    keyed.in_directory(FILES)
    git(keyed.work, "init", "--quiet")
    git(keyed.work, "remote", "add", "origin", str(keyed.cwd / "nowhere"))
    git(keyed.work, "add", ".")
    git(keyed.work, "commit", "--quiet", "-m", "all")
    keyed.begin("edit")
    missing = keyed.step("edit", "rebuild")["missing"]
    assert "nowhere" in missing["."]


def test_a_tree_that_was_too_large_to_record_is_named(keyed: Keyed) -> None:
    keyed.in_directory({f"f{number}": "" for number in range(MAX_START_FILES + 1)})
    keyed.begin("edit")
    missing = keyed.step("edit", "rebuild")["missing"]
    assert missing == {".": f"it had more than {MAX_START_FILES} files"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env", "KEY={}"),
        ("credentials.json", '"{}"'),
        ("server.pem", "{}"),
        ("notes.md", "it is {}"),
        ("deploy", "-----BEGIN OPENSSH PRIVATE KEY-----\n{}"),
    ],
)
def test_files_with_secrets_are_not_recorded_and_are_named(
    keyed: Keyed, name: str, text: str
) -> None:
    canary = "sk-canary-0123456789"
    if name == "notes.md":  # an ordinary file, but for what the environment tells
        keyed.env["SOME_API_KEY"] = canary
    keyed.in_directory({**FILES, name: text.format(canary)})
    keyed.begin("edit")
    home = Path(keyed.env["OPENRATH_HOME"])
    stored = [path for path in home.rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if canary.encode() in path.read_bytes()]
    missing = keyed.step("edit", "rebuild")["missing"]
    assert missing == {".": f"it had files that may hold secrets, which are not kept: {name!r}"}


def test_contents_that_were_not_kept_are_named_by_path(keyed: Keyed) -> None:
    keyed.begin("large")
    missing = keyed.step("large", "rebuild")["missing"]
    assert list(missing) == ["large"]
    assert missing["large"].endswith("was not kept")


def test_contents_that_the_store_has_lost_are_named_by_path(keyed: Keyed) -> None:
    keyed.begin("siblings")
    home = Path(keyed.env["OPENRATH_HOME"])
    blob = hashlib.sha256(b"1\n2\n").hexdigest()
    (lost,) = [path for path in home.rglob("*") if blob in path.name]
    lost.unlink()
    missing = keyed.step("siblings", "rebuild")["missing"]
    assert list(missing) == ["both.txt"]
    assert missing["both.txt"].endswith("is not in the store any more")


def test_a_mode_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown workspace 'maybe'"):
        Agent("a", ScriptedClient([]).provider).run(
            Session.from_user_message("go"),
            run="k",
            store=str(tmp_path),
            workspace="maybe",  # type: ignore[arg-type]  # what is tested
        )
