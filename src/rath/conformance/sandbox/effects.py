"""What operations changed, as the record will say it."""

from __future__ import annotations

from collections.abc import Sequence

from rath._core.blobs import Blob
from rath.backend.abc import BackendSandbox
from rath.backend.effects import EffectLog, observe_effects
from rath.backend.tool_types import BackendToolFilesEdit
from rath.conformance.report import Skipped, expect
from rath.conformance.sandbox.subject import (
    COMMANDS,
    FILES,
    Check,
    fail,
    need_shell,
    new_name,
    read,
    shell,
    write,
)

__all__ = ["CHECKS"]

Told = tuple[str, str, str, str]
"""Path and kind of an effect, and the digests before and after, "" where there was no file."""


def file_tools_tell_exactly_what_they_changed(sandbox: BackendSandbox) -> None:
    path = new_name("told")
    with observe_effects() as made:
        write(sandbox, path, "one")
    if not made and not sandbox.backend.capabilities().observes_effects:
        raise Skipped("capabilities say observes_effects=False")
    with observe_effects() as changed:
        write(sandbox, path, "two")
        sandbox.dispatch(BackendToolFilesEdit(path, "two", "three"))
    with observe_effects() as same:
        read(sandbox, path)
        fail(sandbox, BackendToolFilesEdit(path, "no such text", "x"), "text_not_found")
    expect(
        _told(made) == _digested([(path, "created", None, "one")]), f"one file created, got {made}"
    )
    expected = [(path, "changed", "one", "two"), (path, "changed", "two", "three")]
    expect(_told(changed) == _digested(expected), f"two exact changes, got {changed}")
    expect({each.attribution for each in changed} == {"exact"}, f"exact effects, got {changed}")
    expect(not same, f"no effect of what changes nothing, got {same}")


def commands_tell_what_they_changed(sandbox: BackendSandbox) -> None:
    need_shell(sandbox)
    stays, changes, goes, moves = (new_name(each) for each in ("stays", "changes", "goes", "moves"))
    created, moved = new_name("created"), new_name("moved")
    for path in (stays, changes, goes, moves):
        write(sandbox, path, f"{path} before")
    with observe_effects() as effects:
        shell(
            sandbox,
            f"printf new > {created} && printf after > {changes} && rm {goes} && "
            f"mv {moves} {moved}",
        )
    expected = [
        (changes, "changed", f"{changes} before", "after"),
        (created, "created", None, "new"),
        (goes, "deleted", f"{goes} before", None),
        (moved, "renamed", f"{moves} before", f"{moves} before"),
    ]
    expect(sorted(_told(effects)) == sorted(_digested(expected)), f"{expected}, got {effects}")
    renamed = next(effect for effect in effects if effect.path == moved)
    expect(renamed.renamed_from == moves, f"where it stood before, got {renamed!r}")
    for effect in effects:
        expect(effect.attribution != "exact", f"no more than is known, got {effect!r}")


def the_digest_of_the_workspace_follows_its_files(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.txt", "one")
    first = sandbox.workspace_digest()
    expect(first is not None, "a digest")
    expect(sandbox.workspace_digest() == first, "the same digest while nothing changes")
    write(sandbox, "a.txt", "two")
    expect(sandbox.workspace_digest() != first, "another digest for another content")
    write(sandbox, "a.txt", "one")
    expect(sandbox.workspace_digest() == first, "the same digest for the same files")


def _told(effects: EffectLog) -> list[Told]:
    return [(each.path, each.kind, _digest(each.before), _digest(each.after)) for each in effects]


def _digested(expected: Sequence[tuple[str, str, str | None, str | None]]) -> list[Told]:
    """Return what `_told` gives where these are the texts before and after."""
    return [
        (path, kind, _digest(_blob(before)), _digest(_blob(after)))
        for path, kind, before, after in expected
    ]


def _blob(text: str | None) -> Blob | None:
    return None if text is None else Blob.from_bytes(text.encode())


def _digest(blob: Blob | None) -> str:
    return "" if blob is None else blob.digest


CHECKS = (
    Check("Effects of file tools", file_tools_tell_exactly_what_they_changed, FILES),
    Check("Effects of commands", commands_tell_what_they_changed, (*FILES, *COMMANDS),
          "observes_effects"),
    Check("Digest of the workspace", the_digest_of_the_workspace_follows_its_files, FILES,
          "observes_effects"),
)  # fmt: skip
