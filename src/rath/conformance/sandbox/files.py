"""Clauses on files: written, read, listed, edited, confined; observed, frozen and copied."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend.capabilities import IsolationLevel
from rath.backend.effects import FileEffect, observe_effects
from rath.backend.frozen import FrozenWorkspace, NewFile, Seed
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
from rath.conformance.contract import Clauses, Skipped, Unlike, expect, expect_equal
from rath.conformance.sandbox.subject import COMMAND, FILE, SandboxSubject, new_name

__all__ = ["FILES", "WORKSPACES"]

FILES = Clauses[SandboxSubject]()
WORKSPACES = Clauses[SandboxSubject]()

_TEXT = "first\nzweite Zeile: äöü €\n"
_ELSEWHERE = "/rath-conformance-elsewhere.txt"
_NOT_UTF8 = b"\xff\xfe\x00raw"
_LINES = [f"line {number}\n" for number in range(10)]


@FILES.add("Files", *FILE)
def text_comes_back_as_written(box: SandboxSubject) -> None:
    written = box.ask(BackendToolFilesWrite("a.txt", _TEXT), FileWriteResult)
    expect_equal(written.bytes_written, len(_TEXT.encode()), "bytes written")
    box.expect_text("a.txt", _TEXT)


@FILES.add("Files", *FILE)
def bytes_come_back_as_written(box: SandboxSubject) -> None:
    box.write("a.bin", _NOT_UTF8)
    expect_equal(box.read("a.bin", None), _NOT_UTF8)


@FILES.add("Files", *FILE)
def what_is_not_text_is_a_failure_to_read(box: SandboxSubject) -> None:
    box.write("a.bin", _NOT_UTF8)
    box.expect_refusal("decode_error", BackendToolFilesRead("a.bin"))


@FILES.add("Files", *FILE)
def a_write_replaces_the_whole_file(box: SandboxSubject) -> None:
    box.write("a.txt", "a long first content")
    box.write("a.txt", "short")
    box.expect_text("a.txt", "short")


@FILES.add("Files", *FILE)
def a_write_makes_the_directories_above(box: SandboxSubject) -> None:
    box.write("deep/er/a.txt", "x")
    box.expect_text("deep/er/a.txt", "x")


@FILES.add("Files", *FILE)
def a_missing_file_is_a_failure_to_read(box: SandboxSubject) -> None:
    box.expect_refusal("file_not_found", BackendToolFilesRead("missing.txt"))


@FILES.add("Files", *FILE, BackendToolFilesList)
def a_listing_is_sorted_and_tells_directories(box: SandboxSubject) -> None:
    for path in ("b.txt", "a.txt", "c/d.txt"):
        box.write(path, path)
    entries = box.ask(BackendToolFilesList("."), FileEntries).entries
    own = [(each.name, each.is_dir) for each in entries if each.name in ("a.txt", "b.txt", "c")]
    expect_equal(own, [("a.txt", False), ("b.txt", False), ("c", True)], "as entries")
    box.expect_text(next(each.path for each in entries if each.name == "a.txt"), "a.txt")


@FILES.add("Files", *FILE, BackendToolFilesExists)
def a_path_exists_or_not(box: SandboxSubject) -> None:
    box.write("there/a.txt", "x")
    for path, expected in (("there/a.txt", True), ("there", True), ("nowhere.txt", False)):
        found = box.sandbox.dispatch(BackendToolFilesExists(path))
        expect(found is expected, f"{expected} for {path!r}, got {found!r}")


# ---------------------------------------------------------------- the border of the workspace


@FILES.add("File tools stay inside", *FILE)
def a_path_that_leads_out_is_a_failure_to_read(box: SandboxSubject) -> None:
    path = "../outside.txt"
    calls = (BackendToolFilesRead(path), BackendToolFilesWrite(path, "x"))
    box.expect_refusal("path_outside_workspace", *calls)


@FILES.add("File tools stay inside", *FILE)
def an_absolute_path_that_leads_out_is_a_failure_to_read(box: SandboxSubject) -> None:
    _need_border(box)
    box.expect_refusal("path_outside_workspace", BackendToolFilesRead(_ELSEWHERE))


@FILES.add("File tools stay inside", *FILE, COMMAND)
def a_link_that_leads_out_is_a_failure_to_read(box: SandboxSubject) -> None:
    _need_border(box)
    box.need_shell()
    link = new_name("link")
    if box.run(f"ln -s .. {link}").exit_code != 0:
        raise Skipped("its commands make no links")
    write = BackendToolFilesWrite(f"{link}/{new_name('out')}", "x")
    calls = (BackendToolFilesRead(f"{link}/missing.txt"), write)
    box.expect_refusal("path_outside_workspace", *calls)


def _need_border(box: SandboxSubject) -> None:
    """Skip a clause where the sandbox has a border of its own, and the workspace is none."""
    if box.backend.capabilities().isolation is IsolationLevel.PROCESS:
        return
    found = box.sandbox.dispatch(BackendToolFilesRead(_ELSEWHERE))
    if not (isinstance(found, ToolExecutionFailure) and found.kind == "path_outside_workspace"):
        raise Skipped("absolute paths are those of the sandbox; its border is another one")


# ---------------------------------------------------------------- parts and edits


@FILES.add("Reading in parts", *FILE)
def lines_are_read_in_parts(box: SandboxSubject) -> None:
    box.write("long.txt", "".join(_LINES))
    first = box.ask(BackendToolFilesRead("long.txt", limit=4), FileContent)
    expect(first.data == "".join(_LINES[:4]), f"4 lines, got {first!r}")
    expect_equal((first.next_offset, first.total), (4, 10), "as the next offset and the total")
    rest = box.ask(BackendToolFilesRead("long.txt", offset=4), FileContent)
    expect_equal(rest.data, "".join(_LINES[4:]), "as the rest of the file")
    expect_equal(rest.next_offset, None, "as the next offset after the last line")


@FILES.add("Reading in parts", *FILE)
def bytes_are_read_in_parts(box: SandboxSubject) -> None:
    box.write("long.bin", bytes(range(100)))
    part = box.ask(BackendToolFilesRead("long.bin", None, 10, 5), FileContent)
    expect_equal(part.data, bytes(range(10, 15)), "as bytes 10 to 14")
    expect_equal((part.next_offset, part.total), (15, 100), "as the next offset and the total")


@FILES.add("Editing files", *FILE)
def a_text_is_replaced_where_it_stands_once(box: SandboxSubject) -> None:
    box.write("a.py", "one = 1\ntwo = 2\n")
    done = box.ask(BackendToolFilesEdit("a.py", "two = 2", "two = 3"), FileEditResult)
    expect_equal(done.n_replaced, 1, "as the number of replacements")
    expect("-two = 2" in done.diff and "+two = 3" in done.diff, f"a unified diff, got {done!r}")
    box.expect_text("a.py", "one = 1\ntwo = 3\n")


@FILES.add("Editing files", *FILE)
def an_edit_that_is_not_clear_changes_nothing(box: SandboxSubject) -> None:
    box.write("a.py", "x\nx\n")
    box.expect_refusal("text_not_unique", BackendToolFilesEdit("a.py", "x", "y"))
    box.expect_refusal("text_not_found", BackendToolFilesEdit("a.py", "z", "y"))
    box.expect_refusal("file_not_found", BackendToolFilesEdit("missing.py", "z", "y"))
    box.expect_text("a.py", "x\nx\n")


@FILES.add("Editing files", *FILE)
def all_places_are_replaced_where_asked_for(box: SandboxSubject) -> None:
    box.write("a.py", "x\nx\n")
    done = box.ask(BackendToolFilesEdit("a.py", "x", "y", replace_all=True), FileEditResult)
    expect_equal(done.n_replaced, 2, "as the number of replacements")
    box.expect_text("a.py", "y\ny\n")


# ---------------------------------------------------------------- effects

_Expected = tuple[str, str, str | None, str | None]
"""Path and kind of an effect, and the texts before and after, None where there was no file."""


def _expect_effects(effects: Sequence[FileEffect], expected: Sequence[_Expected]) -> None:
    def digest(blob: Blob | None) -> str:
        return "" if blob is None else blob.digest

    def digest_of(text: str | None) -> str:
        return "" if text is None else Blob.from_bytes(text.encode()).digest

    found = [(each.path, each.kind, digest(each.before), digest(each.after)) for each in effects]
    wanted = [(path, kind, digest_of(old), digest_of(new)) for path, kind, old, new in expected]
    expect(found == wanted, f"the effects {expected}, got {effects}")


@WORKSPACES.add("Effects of file tools", *FILE)
def file_tools_tell_exactly_what_they_changed(box: SandboxSubject) -> None:
    path = new_name("told")
    with observe_effects() as creation:
        box.write(path, "one")
    if not creation and not box.backend.capabilities().observes_effects:
        raise Skipped("capabilities say observes_effects=False")
    with observe_effects() as changes:
        box.write(path, "two")
        box.sandbox.dispatch(BackendToolFilesEdit(path, "two", "three"))
    with observe_effects() as nothing:
        box.read(path)
        box.expect_refusal("text_not_found", BackendToolFilesEdit(path, "no such text", "x"))
    _expect_effects(creation, [(path, "created", None, "one")])
    _expect_effects(changes, [(path, "changed", "one", "two"), (path, "changed", "two", "three")])
    expect({each.attribution for each in changes} == {"exact"}, f"exact effects, got {changes}")
    expect(not nothing, f"no effect of what changes nothing, got {nothing}")


@WORKSPACES.add("Effects of commands", *FILE, COMMAND, offer="observes_effects")
def commands_tell_what_they_changed(box: SandboxSubject) -> None:
    box.need_shell()
    stays, changes, goes, moves = map(new_name, ("stays", "changes", "goes", "moves"))
    created, moved = new_name("created"), new_name("moved")
    for path in (stays, changes, goes, moves):
        box.write(path, f"{path} before")
    steps = (f"printf new > {created}", f"printf after > {changes}", f"rm {goes}",
             f"mv {moves} {moved}")  # fmt: skip
    with observe_effects() as effects:
        box.run(" && ".join(steps))
    expected = [
        (changes, "changed", f"{changes} before", "after"),
        (created, "created", None, "new"),
        (goes, "deleted", f"{goes} before", None),
        (moved, "renamed", f"{moves} before", f"{moves} before"),
    ]
    _expect_effects(sorted(effects, key=lambda each: each.path), sorted(expected))
    renamed = next(effect for effect in effects if effect.path == moved)
    expect_equal(renamed.renamed_from, moves, "as the earlier path")
    for effect in effects:
        expect(effect.attribution != "exact", f"no more than is known, got {effect!r}")


@WORKSPACES.add("Digest of the workspace", *FILE, offer="observes_effects")
def the_digest_of_the_workspace_follows_its_files(box: SandboxSubject) -> None:
    box.write("a.txt", "one")
    first = box.sandbox.workspace_digest()
    expect(first is not None, "a digest")
    expect(box.sandbox.workspace_digest() == first, "the same digest while nothing changes")
    box.write("a.txt", "two")
    expect(box.sandbox.workspace_digest() != first, "another digest for another content")
    box.write("a.txt", "one")
    expect(box.sandbox.workspace_digest() == first, "the same digest for the same files")


# ---------------------------------------------------------------- copies

_copies = WORKSPACES.add(
    "Workspace copies", *FILE, BackendToolFilesExists, offer="supports_workspace_copy"
)


@contextmanager
def _copy(
    frozen: FrozenWorkspace,
    source: SandboxSubject,
    changes: dict[str, NewFile | None] | None = None,
) -> Generator[SandboxSubject]:
    async def origin() -> Seed:
        return Seed(frozen, changes or {})

    copy = source.backend.lazy(origin=origin)
    try:
        yield SandboxSubject(copy.ensure_open())
    finally:
        source.backend.close(copy)


@_copies
def neither_sees_what_the_other_writes_later(box: SandboxSubject) -> None:
    box.write("a.txt", "shared")
    with _copy(box.sandbox.freeze(), box) as copy:
        copy.expect_text("a.txt", "shared", "in the copy, as in its source")
        box.write("a.txt", "source")
        copy.expect_text("a.txt", "shared", "in the copy after a write to the source")
        copy.write("a.txt", "copy")
        copy.write("new.txt", "x")
        box.expect_text("a.txt", "source", "in the source after a write to the copy")
        expect(not box.exists("new.txt"), "the source not to see a file of the copy")


@_copies
def two_copies_are_independent(box: SandboxSubject) -> None:
    box.write("a.txt", "shared")
    frozen = box.sandbox.freeze()
    with _copy(frozen, box) as one, _copy(frozen, box) as two:
        one.write("a.txt", "one")
        two.expect_text("a.txt", "shared", "in one copy after a write to the other")
        two.write("a.txt", "two")
        one.expect_text("a.txt", "one", "in one copy after a write to the other")


@_copies
def a_copy_begins_with_the_changes_that_are_asked_for(box: SandboxSubject) -> None:
    for path in ("stays.txt", "goes.txt"):
        box.write(path, "x")
    changes = {"goes.txt": None, "deep/new.txt": NewFile(b"new", 0o100644)}
    with _copy(box.sandbox.freeze(), box, changes) as copy:
        copy.expect_text("stays.txt", "x")
        copy.expect_text("deep/new.txt", "new")
        expect(not copy.exists("goes.txt"), "the removed file to be gone")
    expect(box.exists("goes.txt"), "the file to be there in the source")
    expect(not box.exists("deep/new.txt"), "the new file not to be in the source")


@_copies
def a_copy_of_a_copy_knows_where_it_came_from(box: SandboxSubject) -> None:
    box.write("a.txt", "x")
    with _copy(box.sandbox.freeze(), box) as copy:
        copy.write("a.txt", "copy")
        base = box.sandbox.freeze().base_with(copy.sandbox.freeze())
        if base is None:
            raise Unlike("expected the files that both came from, got None")
        data = runtime().run(lambda: base.aread("a.txt"), label="reading what both came from")
        expect_equal(data, b"x", "as the content that both came from")
