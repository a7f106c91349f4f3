"""The built-in tools at work in a local sandbox, called by a program rather than a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.backend import (
    CodeResult,
    CommandResult,
    FileContent,
    FileEditResult,
    FileEntries,
    FileWriteResult,
    ToolExecutionFailure,
)
from rath.flow.tool import (
    flow_tool_code_run,
    flow_tool_command_run,
    flow_tool_files_edit,
    flow_tool_files_exists,
    flow_tool_files_list,
    flow_tool_files_read,
    flow_tool_files_write,
    global_system_tools,
)
from rath.session import Session


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[Session]:
    """A session in an empty workspace."""
    session = Session.from_user_message("hi").to("local", spec=str(tmp_path))
    yield session
    session.close_sandbox()


def test_a_file_is_written_and_read_back(placed: Session, tmp_path: Path) -> None:
    written = flow_tool_files_write(placed, "dir/a.txt", "words", mode=0o600)
    assert written == FileWriteResult(5)
    assert (tmp_path / "dir" / "a.txt").read_text() == "words"
    assert (tmp_path / "dir" / "a.txt").stat().st_mode & 0o777 == 0o600
    assert flow_tool_files_read(placed, "dir/a.txt") == FileContent("words")
    assert flow_tool_files_read(placed, "dir/a.txt", encoding=None) == FileContent(b"words")


def test_a_part_of_a_file_is_read(placed: Session) -> None:
    flow_tool_files_write(placed, "a.txt", "one\ntwo\nthree\n")
    part = flow_tool_files_read(placed, "a.txt", offset=1, limit=1)
    assert part == FileContent("two\n", next_offset=2, total=3)


def test_a_file_is_edited(placed: Session, tmp_path: Path) -> None:
    flow_tool_files_write(placed, "a.txt", "one\none\n")
    assert isinstance(flow_tool_files_edit(placed, "a.txt", "one", "1"), ToolExecutionFailure)
    result = flow_tool_files_edit(placed, "a.txt", "one", "1", replace_all=True)
    assert isinstance(result, FileEditResult)
    assert (tmp_path / "a.txt").read_text() == "1\n1\n"


def test_files_are_listed_and_found(placed: Session, tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    entries = flow_tool_files_list(placed, ".")
    assert isinstance(entries, FileEntries)
    assert [entry.name for entry in entries.entries] == ["a.txt"]
    assert flow_tool_files_exists(placed, "a.txt") is True
    assert flow_tool_files_exists(placed, "b.txt") is False


def test_a_missing_file_is_a_value(placed: Session) -> None:
    assert isinstance(flow_tool_files_read(placed, "none.txt"), ToolExecutionFailure)


def test_a_command_gets_all_of_its_options(placed: Session, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    result = flow_tool_command_run(
        placed,
        ["sh", "-c", 'printf "%s " "$WORD"; pwd; cat'],
        env={"WORD": "given"},
        cwd="sub",
        stdin=b"input",
        timeout=10,
    )
    assert isinstance(result, CommandResult)
    assert result.exit_code == 0
    assert result.stdout == f"given {(tmp_path / 'sub').resolve()}\ninput".encode()


def test_code_runs(placed: Session) -> None:
    result = flow_tool_code_run(placed, "print(6 * 7)", timeout=10)
    assert isinstance(result, CodeResult)
    assert "42" in str(result.stdout)


def test_a_built_in_tool_can_be_called_by_a_program(placed: Session) -> None:
    tools = global_system_tools()
    tools["write_workspace_file"](placed, {"path": "a.txt", "content": "words"})
    assert tools["read_workspace_file"](placed, {"path": "a.txt"}) == FileContent("words")


def test_without_a_place_there_is_nowhere_to_run() -> None:
    with pytest.raises(RuntimeError, match=r'session\.to\("local"\)'):
        flow_tool_files_list(Session.from_user_message("hi"), ".")
