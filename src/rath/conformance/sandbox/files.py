"""Files: written, read, listed, edited, kept inside."""

from __future__ import annotations

from rath.backend.abc import BackendSandbox
from rath.backend.capabilities import IsolationLevel
from rath.backend.results import (
    FileContent,
    FileEditResult,
    FileEntries,
    FileWriteResult,
    ToolExecutionFailure,
)
from rath.backend.tool_types import (
    BackendToolFilesEdit,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.conformance.report import Skipped, expect
from rath.conformance.sandbox.subject import (
    COMMANDS,
    FILES,
    Check,
    fail,
    give,
    need_shell,
    new_name,
    read,
    shell,
    write,
)

__all__ = ["CHECKS"]

_TEXT = "first\nzweite Zeile: äöü €\n"
_ELSEWHERE = "/rath-conformance-elsewhere.txt"
_NOT_UTF8 = b"\xff\xfe\x00raw"
_NUMBERED = "".join(f"line {number}\n" for number in range(10))


def text_comes_back_as_written(sandbox: BackendSandbox) -> None:
    written = give(sandbox, BackendToolFilesWrite("a.txt", _TEXT), FileWriteResult)
    expect(written.bytes_written == len(_TEXT.encode()), f"the length in bytes, got {written!r}")
    content = give(sandbox, BackendToolFilesRead("a.txt"), FileContent)
    expect(content.data == _TEXT, f"{_TEXT!r}, got {content.data!r}")


def bytes_come_back_as_written(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.bin", _NOT_UTF8))
    content = give(sandbox, BackendToolFilesRead("a.bin", None), FileContent)
    expect(content.data == _NOT_UTF8, f"{_NOT_UTF8!r}, got {content.data!r}")


def a_write_replaces_the_whole_file(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "a long first content"))
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "short"))
    content = give(sandbox, BackendToolFilesRead("a.txt"), FileContent)
    expect(content.data == "short", f"'short', got {content.data!r}")


def a_write_makes_the_directories_above(sandbox: BackendSandbox) -> None:
    give(sandbox, BackendToolFilesWrite("deep/er/a.txt", "x"), FileWriteResult)
    content = give(sandbox, BackendToolFilesRead("deep/er/a.txt"), FileContent)
    expect(content.data == "x", f"'x', got {content.data!r}")


def a_missing_file_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    fail(sandbox, BackendToolFilesRead("missing.txt"), "file_not_found")


def a_listing_is_sorted_and_tells_directories(sandbox: BackendSandbox) -> None:
    for path in ("b.txt", "a.txt", "c/d.txt"):
        sandbox.dispatch(BackendToolFilesWrite(path, path))
    found = give(sandbox, BackendToolFilesList("."), FileEntries).entries
    mine = [(each.name, each.is_dir) for each in found if each.name in ("a.txt", "b.txt", "c")]
    expected = [("a.txt", False), ("b.txt", False), ("c", True)]
    expect(mine == expected, f"{expected!r}, got {mine!r}")
    entry = next(each for each in found if each.name == "a.txt")
    content = give(sandbox, BackendToolFilesRead(entry.path), FileContent)
    expect(content.data == "a.txt", f"the entry's path to lead to it, got {content.data!r}")


def a_path_exists_or_not(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("there/a.txt", "x"))
    for path, expected in (("there/a.txt", True), ("there", True), ("nowhere.txt", False)):
        found = sandbox.dispatch(BackendToolFilesExists(path))
        expect(found is expected, f"{expected} for {path!r}, got {found!r}")


def what_is_not_text_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.bin", _NOT_UTF8)
    fail(sandbox, BackendToolFilesRead("a.bin"), "decode_error")


def a_path_that_leads_out_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    for call in (
        BackendToolFilesRead("../outside.txt"),
        BackendToolFilesWrite("../outside.txt", "x"),
    ):
        fail(sandbox, call, "path_outside_workspace")


def an_absolute_path_that_leads_out_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    _need_border(sandbox)
    fail(sandbox, BackendToolFilesRead(_ELSEWHERE), "path_outside_workspace")


def a_link_that_leads_out_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    _need_border(sandbox)
    need_shell(sandbox)
    link = new_name("link")
    made = shell(sandbox, f"ln -s .. {link}")
    if made.exit_code != 0:
        raise Skipped("its commands make no links")
    fail(sandbox, BackendToolFilesRead(f"{link}/missing.txt"), "path_outside_workspace")
    fail(sandbox, BackendToolFilesWrite(f"{link}/{new_name('out')}", "x"), "path_outside_workspace")


def lines_are_read_in_parts(sandbox: BackendSandbox) -> None:
    write(sandbox, "long.txt", _NUMBERED)
    first = give(sandbox, BackendToolFilesRead("long.txt", limit=4), FileContent)
    expect(first.data == "".join(_NUMBERED.splitlines(True)[:4]), f"4 lines, got {first!r}")
    expect((first.next_offset, first.total) == (4, 10), f"to go on at 4 of 10, got {first!r}")
    rest = give(sandbox, BackendToolFilesRead("long.txt", offset=4), FileContent)
    expect(f"{first.data!s}{rest.data!s}" == _NUMBERED, f"the rest of the file, got {rest!r}")
    expect(rest.next_offset is None, f"nothing left after the last line, got {rest!r}")


def bytes_are_read_in_parts(sandbox: BackendSandbox) -> None:
    write(sandbox, "long.bin", bytes(range(100)))
    part = give(sandbox, BackendToolFilesRead("long.bin", None, 10, 5), FileContent)
    expect(part.data == bytes(range(10, 15)), f"bytes 10 to 14, got {part!r}")
    expect((part.next_offset, part.total) == (15, 100), f"to go on at 15 of 100, got {part!r}")


def a_text_is_replaced_where_it_stands_once(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.py", "one = 1\ntwo = 2\n")
    edit = BackendToolFilesEdit("a.py", "two = 2", "two = 3")
    done = give(sandbox, edit, FileEditResult)
    expect(done.n_replaced == 1, f"one replacement, got {done!r}")
    expect("-two = 2" in done.diff and "+two = 3" in done.diff, f"a unified diff, got {done!r}")
    found = read(sandbox, "a.py")
    expect(found == "one = 1\ntwo = 3\n", f"the text replaced, got {found!r}")


def an_edit_that_is_not_clear_changes_nothing(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.py", "x\nx\n")
    fail(sandbox, BackendToolFilesEdit("a.py", "x", "y"), "text_not_unique")
    fail(sandbox, BackendToolFilesEdit("a.py", "z", "y"), "text_not_found")
    fail(sandbox, BackendToolFilesEdit("missing.py", "z", "y"), "file_not_found")
    found = read(sandbox, "a.py")
    expect(found == "x\nx\n", f"the file as it was, got {found!r}")


def all_places_are_replaced_where_asked_for(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.py", "x\nx\n")
    edit = BackendToolFilesEdit("a.py", "x", "y", replace_all=True)
    done = give(sandbox, edit, FileEditResult)
    expect(done.n_replaced == 2, f"two replacements, got {done!r}")
    found = read(sandbox, "a.py")
    expect(found == "y\ny\n", f"both replaced, got {found!r}")


def _need_border(sandbox: BackendSandbox) -> None:
    """Skip a check where the sandbox has a border of its own, and the workspace is none."""
    if sandbox.backend.capabilities().isolation is IsolationLevel.PROCESS:
        return
    found = sandbox.dispatch(BackendToolFilesRead(_ELSEWHERE))
    if not (isinstance(found, ToolExecutionFailure) and found.kind == "path_outside_workspace"):
        raise Skipped("absolute paths are those of the sandbox; its border is another one")


_FILES, _PARTS, _EDIT = "Files", "Reading in parts", "Editing files"
_INSIDE = "File tools stay inside"

CHECKS = (
    Check(_FILES, text_comes_back_as_written, FILES),
    Check(_FILES, bytes_come_back_as_written, FILES),
    Check(_FILES, what_is_not_text_is_a_failure_to_read, FILES),
    Check(_FILES, a_write_replaces_the_whole_file, FILES),
    Check(_FILES, a_write_makes_the_directories_above, FILES),
    Check(_FILES, a_missing_file_is_a_failure_to_read, FILES),
    Check(_FILES, a_listing_is_sorted_and_tells_directories, (*FILES, BackendToolFilesList)),
    Check(_FILES, a_path_exists_or_not, (*FILES, BackendToolFilesExists)),
    Check(_INSIDE, a_path_that_leads_out_is_a_failure_to_read, FILES),
    Check(_INSIDE, an_absolute_path_that_leads_out_is_a_failure_to_read, FILES),
    Check(_INSIDE, a_link_that_leads_out_is_a_failure_to_read, (*FILES, *COMMANDS)),
    Check(_PARTS, lines_are_read_in_parts, FILES),
    Check(_PARTS, bytes_are_read_in_parts, FILES),
    Check(_EDIT, a_text_is_replaced_where_it_stands_once, FILES),
    Check(_EDIT, an_edit_that_is_not_clear_changes_nothing, FILES),
    Check(_EDIT, all_places_are_replaced_where_asked_for, FILES),
)
