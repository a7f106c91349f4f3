"""What goes on in another process works on its own files, or is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rath import autosave, backend
from rath.errors import WorkspaceLost
from rath.flow import Agent
from rath.session import Session
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.placed_program import TEXT

ROOT = Path(__file__).parents[3]
DONE = {"text": "It is done.", "has_read": True, "error": None}
SHAPES = ["agent", "workflow", "fork", "merge", "placed inside"]
needs_bubblewrap = pytest.mark.skipif(
    not backend.is_available("bubblewrap"), reason="needs bubblewrap"
)


class Processes:
    """Runs the steps of programs, each step in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[dict[str, Any]] = []
        self.env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.prefix: list[str] = []

    @property
    def cwd(self) -> Path:
        """The working directory of the first program."""
        return self.folder / "0" / "cwd"

    @property
    def work(self) -> Path:
        """The workspace of the first program, where it has one there."""
        return self.cwd / "work"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, *command],
            cwd=self.cwd,
            env=self.env | {"PLACED": json.dumps(self.programs)},
            capture_output=True,
            text=True,
            check=False,
        )

    def rath(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(Path(sys.executable).with_name("rath")), *words)

    def begin(self, *programs: dict[str, Any]) -> None:
        """Begin runs that their models break off."""
        for number, program in enumerate(programs):
            cwd = self.folder / str(number) / "cwd"
            cwd.mkdir(parents=True)
            self.programs.append({"folder": str(cwd.parent), "cwd": str(cwd), **program})
        broken = [[{"text": None, "has_read": False, "error": ["RuntimeError"]}]]
        assert self.go_on("begin") == broken * len(programs)

    def go_on(self, *ways: str) -> list[list[dict[str, Any]]]:
        """Go on with each, and return what came of each way."""
        done = self.run(sys.executable, "-m", "tests.support.placed_program", *ways)
        assert done.returncode == 0, done.stderr
        came: list[list[dict[str, Any]]] = json.loads(done.stdout)
        return came

    def id(self, which: str) -> str:
        ids: dict[str, str] = json.loads((self.folder / "0" / "ids.json").read_text())
        return ids[which]


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def of_shapes(*shapes: str, **more: Any) -> list[dict[str, Any]]:
    return [{"shape": shape, **more} for shape in shapes]


@pytest.mark.parametrize("store", ["persist", "autosave"])
def test_what_worked_in_a_directory_goes_on_there(processes: Processes, store: str) -> None:
    processes.env["OPENRATH_PERSIST"] = "0" if store == "persist" else "1"
    shapes = [*SHAPES, "alone"]
    processes.begin(*of_shapes(*shapes, spec="./work", persist=store == "persist"))
    assert processes.go_on("resume") == [[DONE]] * len(shapes)


@pytest.mark.parametrize("store", ["persist", "autosave"])
def test_what_worked_in_a_temporary_directory_is_refused(processes: Processes, store: str) -> None:
    processes.env["OPENRATH_PERSIST"] = "0" if store == "persist" else "1"
    shapes = [*SHAPES, "alone"]
    processes.begin(*of_shapes(*shapes, persist=store == "persist"))
    why = ["a temporary one, which ended with its sandbox", "no directory"]
    assert [came["error"][1:] for (came,) in processes.go_on("resume")] == [why] * len(shapes)


def test_what_worked_in_a_copy_is_refused(processes: Processes) -> None:
    copies = ("copy", "merge of copies")
    processes.begin(*of_shapes(*copies), *of_shapes(*copies, spec="./work"))
    errors = [came["error"] for (came,) in processes.go_on("resume")]
    assert all("which ended with its sandbox" in expected for _, expected, _ in errors)


@needs_bubblewrap
def test_bubblewrap_goes_on_in_its_directory_too(processes: Processes) -> None:
    there = {"backend": "bubblewrap"}
    processes.begin({**there, "spec": "./work"}, there)
    (first,), (second,) = processes.go_on("resume")
    assert (first, second["text"], second["error"][2]) == (DONE, None, "no directory")


def test_every_way_to_go_on_finds_the_directory(processes: Processes) -> None:
    processes.begin({"spec": "./work"})
    assert processes.go_on("root", "call", "fork") == [[DONE, DONE, DONE]]


def test_the_command_says_which_workspace_is_gone(processes: Processes) -> None:
    processes.begin({"spec": "./work"})
    shutil.rmtree(processes.work)
    program = "tests.support.placed_program:resumable"
    done = processes.rath("resume", processes.id("out"), program)
    assert done.returncode == 1
    assert repr(str(processes.work)) in "".join(done.stderr.split("\n"))
    assert "Traceback" not in done.stderr


def test_a_directory_is_found_from_another_working_directory(processes: Processes) -> None:
    processes.begin({"spec": "./work"})
    elsewhere = processes.folder / "elsewhere"
    elsewhere.mkdir()
    processes.programs[0]["cwd"] = str(elsewhere)
    assert processes.go_on("resume") == [[DONE]]
    assert list(elsewhere.iterdir()) == []


def replaced_by_nothing(work: Path) -> None:
    shutil.rmtree(work)


def replaced_by_a_file(work: Path) -> None:
    shutil.rmtree(work)
    work.write_text("")


def replaced_by_an_empty_directory(work: Path) -> None:
    shutil.rmtree(work)
    work.mkdir()


def replaced_by_a_link(work: Path) -> None:
    work.rename(work.with_name("moved"))
    work.symlink_to("moved")


def replaced_by_a_broken_link(work: Path) -> None:
    shutil.rmtree(work)
    work.symlink_to("nowhere")


REPLACED: dict[Callable[[Path], None], str] = {
    replaced_by_nothing: "nothing of that name",
    replaced_by_a_file: "a file of that name",
    replaced_by_an_empty_directory: "an empty directory of that name",
    replaced_by_a_link: "a link to ",
    replaced_by_a_broken_link: "nothing of that name",
}


def test_a_directory_that_is_another_one_is_refused(processes: Processes) -> None:
    processes.begin(*[{"spec": "./work"}] * len(REPLACED))
    works = [Path(program["cwd"], "work") for program in processes.programs]
    for replace, work in zip(REPLACED, works, strict=True):
        replace(work)
    came = processes.go_on("resume", "root")
    for found, work, ways in zip(REPLACED.values(), works, came, strict=True):
        assert [way["error"][0] for way in ways] == [str(work)] * 2
        assert all(way["error"][2].startswith(found) for way in ways)


@needs_bubblewrap
def test_a_directory_of_another_machine_is_refused(processes: Processes) -> None:
    other = processes.folder / "machine-id"
    other.write_text("0" * 32 + "\n")
    here = Path("/etc/machine-id")
    bind = ["--ro-bind", str(other), str(here)] if here.exists() else []
    processes.prefix = ["bwrap", "--dev-bind", "/", "/", *bind]
    processes.prefix += ["--unshare-uts", "--hostname", "another-machine"]
    processes.begin({"spec": "./work"})
    processes.prefix = []
    shutil.copytree(processes.work, processes.folder / "copy")
    processes.work.rename(processes.folder / "original")
    (processes.folder / "copy").rename(processes.work)
    ((refused,),) = processes.go_on("resume")
    assert "on another machine" in refused["error"][1]


def test_a_session_that_was_placed_anew_goes_on_there(processes: Processes) -> None:
    processes.begin(*of_shapes(*SHAPES))
    for program in processes.programs:
        restored = Path(program["cwd"], "restored")
        restored.mkdir()
        (restored / "note.txt").write_text(TEXT)
    assert processes.go_on("placed anew") == [[DONE]] * len(SHAPES)
    # And from then on that is its place.
    out = Session.load(processes.id("out"))
    shutil.rmtree(processes.cwd / "restored")
    with pytest.raises(WorkspaceLost, match=r"restored"):
        out.require_sandbox()


def test_a_session_whose_files_are_gone_can_be_read(processes: Processes) -> None:
    processes.begin({"shape": "workflow"})
    out = Session.load(processes.id("out"))
    first = Session.load(out.provenance.parents[0].id)
    assert first.text() == "It is written."
    assert [change.path for change in first.files.changes()] == ["note.txt"]
    assert first.replay().text() == "It is written."
    assert first.fork().text() == "It is written."
    done = processes.rath("explain", str(first.id))
    assert done.returncode == 0, done.stderr
    with pytest.raises(WorkspaceLost, match=r"place the session"):
        first.require_sandbox()


def test_a_directory_that_had_files_before_is_missed_too(processes: Processes) -> None:
    work = processes.folder / "project"
    work.mkdir()
    (work / "note.txt").write_text(TEXT)
    processes.begin({"spec": str(work), "idle": True}, {"spec": str(work), "idle": True})
    assert processes.go_on("resume") == [[DONE]] * 2
    processes.programs.clear()
    shutil.rmtree(processes.cwd.parent)
    processes.begin({"spec": str(work), "idle": True})
    shutil.rmtree(work)
    work.mkdir()
    ((refused,),) = processes.go_on("resume")
    assert refused["error"][2] == "an empty directory of that name"


def test_an_unused_directory_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    user = Session.from_user_message("go").to("local", spec="./work")
    user.save()
    assert Session.load(user.id).sandbox_spec == user.sandbox_spec
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with Session.load(user.id) as loaded:
        assert loaded.require_sandbox().handle == str(tmp_path / "work")
    assert list(elsewhere.iterdir()) == []


def test_a_loaded_session_that_was_closed_opens_where_it_was_or_not_at_all(tmp_path: Path) -> None:
    work = tmp_path / "work"
    user = Session.from_user_message("go").to("local", spec=str(work))
    with user:
        (work / "note.txt").write_text(TEXT)
        user.save()
    loaded = Session.load(user.id)
    with loaded:
        pass
    with loaded as again:
        assert again.require_sandbox().handle == str(work)
    shutil.rmtree(work)
    for _ in range(2):
        with pytest.raises(WorkspaceLost):
            loaded.require_sandbox()
        loaded.close_sandbox()


def test_a_sandbox_that_is_still_open_is_shared_with_what_is_loaded() -> None:
    turns: list[Turn] = [tool_call("run_shell_command", {"cmd": "echo here > f"}, id="w"), "done"]
    agent = Agent("Work.", ScriptedClient(turns).provider, persist=True)
    out = agent(Session.from_user_message("go").to("local")).synchronize()
    assert Session.load(out.id).require_sandbox() is out.sandbox


def test_a_directory_that_was_used_by_hand_is_missed_too(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with autosave():
        fork = Session.from_user_message("go").to("local", spec=str(work)).fork()
        fork.save()
        with fork:
            pass
    shutil.rmtree(work)
    with pytest.raises(WorkspaceLost):
        Session.load(fork.id).require_sandbox()
    assert not work.exists()
