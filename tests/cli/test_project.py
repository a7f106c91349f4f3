"""`rath init`: a project that runs at once."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from rath.cli.project import FILES, QUESTION
from rath.cli.terminal import Exit
from tests.cli.conftest import Rath
from tests.support.chat_replies import (
    completion,
    event_stream,
    finish_chunk,
    text_stream,
    tool_call,
    tool_chunk,
)
from tests.support.chat_server import ChatServer

CALL = tool_call("word_count", {"text": "to be or not to be"})


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Generator[ChatServer]:
    """A model that the environment names."""
    with ChatServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "some-model")
        yield server


def run_tests(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_test_records_once_and_replays_then(
    rath: Rath, project: Path, model: ChatServer
) -> None:
    # As in a clone of rath, whose options of pytest need plug-ins.
    (project / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--strict-config"\nunknown = 1\n'
    )
    rath("init", "demo", ends=0, out=("rath run team:team", "python -m pytest"))
    demo = project / "demo"
    model.queue(completion(tool_calls=(CALL,)), completion("It has 6 words."))
    first = run_tests(demo)
    assert first.returncode == 0, first.stdout
    assert (demo / "cassettes" / "counts_words.zip").is_file()
    second = run_tests(demo)  # the model has no answer left
    assert second.returncode == 0, second.stdout
    assert model.n_queued == 0


def test_its_workflow_runs_and_is_recorded_in_the_project(
    rath: Rath, project: Path, model: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rath("init", ends=0)
    calls = event_stream(tool_chunk('{"text": "to be"}', id="c1", name="word_count"),
                         finish_chunk("tool_calls"))  # fmt: skip
    model.queue(calls, text_stream("It has ", "2 words."))
    monkeypatch.delitem(sys.modules, "team", raising=False)
    rath("run", "team:team", QUESTION, ends=0, out=("→ word_count", "It has 2 words."))
    assert list((project / ".openrath" / "sessions").glob("*.jsonl"))


def test_the_embedded_model_is_taken_where_none_is_named(rath: Rath, project: Path) -> None:
    rath("init", "demo", ends=0, err="embedded")
    config = json.loads((project / "demo" / ".openrath" / "config.json").read_text())
    assert config["llm"]["providers"]["main"]["provider_kind"] == "local"
    assert config["sessions"]["persist"] is True


def test_what_its_test_needs_is_named(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pytest: " not in rath("init", "one", ends=0).stderr
    monkeypatch.setitem(sys.modules, "pytest", None)
    rath("init", "other", ends=0, err="the last one needs pytest: uv pip install pytest")


@pytest.mark.parametrize("name", FILES)
def test_what_is_there_is_not_replaced(rath: Rath, project: Path, name: str) -> None:
    (project / name).write_text("mine")
    rath("init", ends=Exit.MISUSE, err=(name, "name another DIR"))
    assert [(project / each).exists() for each in FILES].count(True) == 1
    assert (project / name).read_text() == "mine"


def test_a_directory_that_cannot_be_written_is_named(rath: Rath, project: Path) -> None:
    (project / "file").write_text("")
    rath("init", "file/inside", ends=Exit.WORLD, err="cannot be written")


def test_a_config_that_cannot_be_read_leaves_no_half_project(rath: Rath, project: Path) -> None:
    config = project / "hello" / ".openrath" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{")
    rath("init", "hello", ends=Exit.WORLD, err="correct it or remove the file")
    config.unlink()
    rath("init", "hello", ends=0)


@pytest.mark.parametrize("full_at", [*FILES, "config.json"])
def test_a_full_disk_leaves_no_half_project(
    rath: Rath, project: Path, monkeypatch: pytest.MonkeyPatch, full_at: str
) -> None:
    write = Path.write_text

    def write_text(path: Path, text: str, *, encoding: str) -> int:
        if path.name == full_at:
            write(path, "", encoding=encoding)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, encoding=encoding)

    def replace(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", source, 0, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_text)
        if full_at == "config.json":
            patch.setattr(os, "replace", replace)
        rath("init", ends=Exit.WORLD, err="No space left on device; no file of the project is left")
    assert not [name for name in FILES if (project / name).exists()]
    rath("init", ends=0)
