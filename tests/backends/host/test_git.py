"""Checkouts of git that begin a workspace: nothing in them runs, and no secret is recorded."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from rath.backend.changes import EffectPolicy
from rath.backend.host.git import check_out, git_start, public_address
from rath.backend.start import WorkspaceStart


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def checkout(folder: Path, **files: str) -> Path:
    """Return a clean checkout with a remote."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    git(folder, "remote", "add", "origin", "/nowhere")
    commit(folder, **(files or {"a.txt": "a"}))
    return folder


def commit(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "change")


def start(folder: Path) -> WorkspaceStart | None:
    return git_start(str(folder), EffectPolicy())


def test_a_clean_checkout_is_its_revision(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "c")
    found = WorkspaceStart(revision=git(folder, "rev-parse", "HEAD"), remote="/nowhere")
    assert start(folder) == found
    (folder / "b.txt").write_text("new")
    assert start(folder) is None


@pytest.mark.parametrize(
    "setting", ["filter.x.clean", "filter.x.process", "core.fsmonitor", "core.sshCommand"]
)
def test_no_program_that_a_checkout_names_is_run(tmp_path: Path, setting: str) -> None:
    folder = checkout(tmp_path / "c", **{".gitattributes": "* filter=x\n", "a.txt": "a"})
    trace = tmp_path / "trace"
    git(folder, "config", setting, f"touch {shlex.quote(str(trace))}; cat")
    os.utime(folder / "a.txt", (1, 1))
    assert start(folder) is None
    assert not trace.exists()


def test_a_checkout_with_another_one_inside_is_not_looked_at(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "c")
    inner = checkout(folder / "inner", **{".gitattributes": "* filter=x\n", "a.txt": "a"})
    commit(folder)
    trace = tmp_path / "trace"
    git(inner, "config", "filter.x.clean", f"touch {shlex.quote(str(trace))}; cat")
    os.utime(inner / "a.txt", (1, 1))
    assert start(folder) is None
    assert not trace.exists()


@pytest.mark.parametrize("mark", ["--assume-unchanged", "--skip-worktree"])
def test_files_that_git_is_told_not_to_compare_make_it_unclean(tmp_path: Path, mark: str) -> None:
    folder = checkout(tmp_path / "c")
    git(folder, "update-index", mark, "a.txt")
    (folder / "a.txt").write_text("other")
    assert start(folder) is None


def test_another_repository_is_never_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = checkout(tmp_path / "outer")
    (outer / "inner" / ".git").mkdir(parents=True)
    assert start(outer / "inner") is None
    folder = checkout(tmp_path / "c", **{"b.txt": "b"})
    monkeypatch.setenv("GIT_DIR", str(outer / ".git"))
    found = start(folder)
    monkeypatch.delenv("GIT_DIR")
    assert found is not None
    assert found.revision == git(folder, "rev-parse", "HEAD")


def test_git_sees_no_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkout(tmp_path / "c")
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nenv > {shlex.quote(str(tmp_path / 'seen'))}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    assert start(folder) is None
    seen = (tmp_path / "seen").read_text()
    assert "canary" not in seen
    assert "SSH_AUTH_SOCK=/agent" in seen


def test_what_is_written_in_a_clone_does_not_reach_its_remote(tmp_path: Path) -> None:
    remote, clone = checkout(tmp_path / "remote"), tmp_path / "clone"
    clone.mkdir()
    revision = git(remote, "rev-parse", "HEAD")
    assert check_out(WorkspaceStart(revision=revision, remote=str(remote)), str(clone)) is None
    objects = [path for path in (clone / ".git" / "objects").rglob("*") if path.is_file()]
    assert objects
    assert {path.stat().st_nlink for path in objects} == {1}


@pytest.mark.parametrize(
    ("remote", "recorded"),
    [
        ("https://me:canary@host.example/a.git", "https://host.example/a.git"),
        ("HTTPS://canary@host.example/a.git", "https://host.example/a.git"),
        ("ssh://git:canary@host.example:22/a.git", "ssh://git@host.example:22/a.git"),
        ("ftp://me:canary@host.example/a.git", "ftp://host.example/a.git"),
        ("git@host.example:a.git", "git@host.example:a.git"),
        ("/srv/a@b.git", "/srv/a@b.git"),
        ("https://host.example/a.git?private_token=canary", ""),
        ("https://host.example/a.git#canary", ""),
        ("https://me:can/ary@host.example/a.git", ""),
        ("me:canary@host.example:a.git", ""),
    ],
)
def test_a_remote_is_recorded_without_its_secrets(remote: str, recorded: str) -> None:
    assert public_address(remote) == recorded
