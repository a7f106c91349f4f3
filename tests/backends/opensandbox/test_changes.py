"""Effects of operations in a sandbox."""

from __future__ import annotations

import shlex
import stat
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    ToolExecutionFailure,
)
from rath.backend.changes import EffectPolicy, FileState
from rath.backend.effects import EffectLog, FileEffect, observe_effects
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.opensandbox.changes import (
    MAX_CACHE_BYTES,
    RemoteContents,
    list_command,
    parse_list,
)
from rath.backend.opensandbox.connection import Broken
from rath.backend.opensandbox.processes import MAX_NAMES_BYTES, path_batches
from rath.backend.tool_types import BackendToolFilesEdit
from tests.support.opensandbox_calls import Remote, end_of, failed
from tests.support.opensandbox_server import Answer, Drop, Gate
from tests.support.waiting import wait_until

_paths = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(_paths, st.integers(0, 2**40), st.integers(0, 10**10 - 1))
def test_a_line_is_read_as_it_was_printed(path: str, size: int, fraction: int) -> None:
    time = f"1795294777.{fraction:010}"
    line = f"f 644 12 34 {size} {time} {time} {path}\0\0".encode()
    (found,) = parse_list(line)
    ns = 1795294777 * 10**9 + fraction // 10
    assert (found.path, found.kind, found.target) == (path, "f", b"")
    assert found.key == (stat.S_IFREG | 0o644, 12, 34, size, ns, ns)


def test_a_link_has_its_target() -> None:
    (found,) = parse_list(b"l 777 1 2 5 1.0 1.0 a\0b c\n\0")
    assert (found.kind, found.target) == ("l", b"b c\n")
    assert found.key[0] == stat.S_IFLNK | 0o777


@pytest.mark.parametrize("data", [b"f 644 1 2 3 1.0 1.0 a\0", b"f 644\0\0"])
def test_what_is_no_list_is_reported(data: bytes) -> None:
    with pytest.raises(Broken, match="the list of files"):
        list(parse_list(data))


def test_names_with_wildcards_are_meant_as_they_are() -> None:
    assert r"-name 'a\*b'" in list_command(EffectPolicy(ignore=frozenset({"a*b"})))
    assert "-prune" not in list_command(EffectPolicy(ignore=frozenset()))


@given(st.lists(_paths))
def test_paths_of_one_command_line_fit_into_it(paths: list[str]) -> None:
    batches = list(path_batches(path * 2000 for path in paths))
    assert [path for batch in batches for path in batch] == [path * 2000 for path in paths]
    sizes = [len(shlex.join(batch).encode(errors="replace")) for batch in batches]
    is_alone = [len(batch) == 1 for batch in batches]
    assert all(
        size <= MAX_NAMES_BYTES or alone for size, alone in zip(sizes, is_alone, strict=True)
    )


def test_contents_are_preserved_as_far_as_there_is_room() -> None:
    contents = RemoteContents()
    blobs = [Blob.from_bytes(bytes([number]) * (1 << 20)) for number in range(33)]
    for blob in blobs:
        contents.add(blob)
        contents.add(blob)
    kept = [contents.blob_of(FileState(blob.digest, blob.size, 0)) for blob in blobs]
    assert [each.data is None for each in kept] == [True] + [False] * 32
    assert sum(each.size for each in kept if each.data is not None) == MAX_CACHE_BYTES


_PLAIN = stat.S_IFREG | 0o644


def _observed(sandbox: BackendSandbox, line: str) -> EffectLog:
    with observe_effects() as effects:
        end_of(sandbox, BackendToolCommandRun(line))
    return effects


def _content(blob: Blob | None) -> bytes | None:
    return None if blob is None else blob.data


def test_a_written_file_is_reported_exactly(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("d/a.txt", "one"))
        sandbox.dispatch(BackendToolFilesWrite("/workspace/d/a.txt", "two", 0o600))
        sandbox.dispatch(BackendToolFilesEdit("d/a.txt", "two", "three"))
    one, two, three = (Blob.from_bytes(text) for text in (b"one", b"two", b"three"))
    private = stat.S_IFREG | 0o600
    assert effects == [
        FileEffect("d/a.txt", "created", None, one, "exact", None, None, _PLAIN),
        FileEffect("d/a.txt", "changed", one, two, "exact", None, _PLAIN, private),
        FileEffect("d/a.txt", "changed", two, three, "exact", None, private, private),
    ]
    assert [_content(each.after) for each in effects] == [b"one", b"two", b"three"]


def test_nothing_is_read_for_effects_while_nobody_observes(remote: Remote) -> None:
    remote.sandbox.dispatch(BackendToolFilesWrite("a.txt", "one"))
    remote.sandbox.dispatch(BackendToolFilesWrite("a.txt", "two"))
    assert remote.server.matching("GET", "/files/*") == []
    remote.sandbox.dispatch(BackendToolCommandRun("true"))
    assert remote.server.calls["POST", "/command"] == 1


def test_a_file_outside_of_the_workspace_is_a_gap(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("/tmp/a.txt", "x"))
    assert effects == []
    assert "not in the workspace" in effects.gaps[0]


def test_what_was_too_large_before_is_a_gap(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.files.MAX_READ_BYTES", 3)
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "too long"))
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a.txt", "x"))
    assert effects == []
    assert effects.gaps == ["what '/workspace/a.txt' held before is too large to be recorded"]


def test_a_directory_is_not_written_to_while_somebody_observes(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("d/a.txt", "x"))
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("d", "x"))
    assert effects == []


def test_a_command_tells_what_changed_while_it_ran(sandbox: BackendSandbox) -> None:
    for name in ("stays", "changes", "goes", "moves", "mode"):
        sandbox.dispatch(BackendToolFilesWrite(name, f"{name} before"))
    effects = _observed(
        sandbox,
        "echo new > 'a name'; printf more >> changes; rm goes; mkdir d; mv moves d/moved; "
        "chmod 600 mode; ln -s stays link",
    )
    kinds = {each.path: each.kind for each in effects}
    contents = {each.path: (_content(each.before), _content(each.after)) for each in effects}
    assert effects.gaps == []
    assert kinds == {
        "a name": "created",
        "changes": "changed",
        "goes": "deleted",
        "d/moved": "renamed",
        "mode": "changed",
        "link": "created",
    }
    assert contents["changes"] == (b"changes before", b"changes beforemore")
    assert contents["goes"] == (b"goes before", None)
    assert contents["link"] == (None, b"stays")
    assert {each.attribution for each in effects} == {"window"}
    modes = {each.path: (each.before_mode, each.after_mode) for each in effects}
    assert modes["mode"] == (_PLAIN, stat.S_IFREG | 0o600)


def test_code_tells_what_changed_while_it_ran(sandbox: BackendSandbox) -> None:
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolCodeRun("open('/workspace/a.txt', 'w').write('x')"))
    assert [(each.path, each.kind) for each in effects] == [("a.txt", "created")]


def test_a_file_whose_size_stays_the_same_is_seen_to_change(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "one"))
    effects = _observed(sandbox, "printf two > a.txt; touch -d 2020-01-01 a.txt")
    assert [(_content(each.before), _content(each.after)) for each in effects] == [(b"one", b"two")]


def test_ignored_directories_are_passed_over(backend: OpenSandboxBackend) -> None:
    policy = EffectPolicy(ignore=frozenset({"skip*", ".git"}))
    sandbox = backend.open(BackendSandboxSpec(effects=policy))
    effects = _observed(
        sandbox, "mkdir -p 'd/skip*' skipped .git; touch 'd/skip*/a' skipped/b .git/c"
    )
    backend.close(sandbox)
    assert [each.path for each in effects] == ["skipped/b"]


def test_contents_may_be_left_out(backend: OpenSandboxBackend) -> None:
    sandbox = backend.open(BackendSandboxSpec(effects=EffectPolicy(keep_contents=False)))
    (effect,) = _observed(sandbox, "printf x > a.txt")
    backend.close(sandbox)
    assert effect.after == Blob.from_bytes(b"x")
    assert _content(effect.after) is None


@pytest.mark.parametrize(
    ("policy", "gap"),
    [
        (EffectPolicy(is_on=False), "EffectPolicy.is_on is False"),
        (EffectPolicy(max_files=1), "more than 1 files"),
    ],
)
def test_what_is_not_looked_for_is_a_gap(
    backend: OpenSandboxBackend, policy: EffectPolicy, gap: str
) -> None:
    sandbox = backend.open(BackendSandboxSpec(effects=policy))
    effects = _observed(sandbox, "touch a b c")
    backend.close(sandbox)
    assert effects == []
    assert gap in effects.gaps[0]


def test_a_workspace_that_is_gone_is_a_gap(sandbox: BackendSandbox) -> None:
    effects = _observed(sandbox, "cd /; rm -r /workspace")
    assert effects == []
    assert "could not be listed" in effects.gaps[0]


def test_a_sandbox_that_ends_in_the_middle_is_a_gap(remote: Remote) -> None:
    missing = {"code": "DOCKER::SANDBOX_NOT_FOUND", "message": "not found"}
    remote.server.inject("POST", "/command", Answer(404, missing), skip=1)
    remote.server.inject("GET", "/v1/sandboxes/*", Answer(404, missing))
    with observe_effects() as effects:
        result = failed(remote.sandbox, BackendToolCommandRun("true"))
    assert result.kind == "sandbox_closed"
    assert "ended" in effects.gaps[0]


def test_a_command_whose_end_was_lost_still_tells_what_changed(remote: Remote) -> None:
    remote.server.inject("POST", "/command", Drop("after"), skip=1)
    with observe_effects() as effects:
        failed(remote.sandbox, BackendToolCommandRun("touch a"))
    assert [each.path for each in effects] == ["a"]


def test_a_look_that_the_server_refuses_is_a_gap(remote: Remote) -> None:
    refused = Answer(500, {"code": "RUNTIME_ERROR", "message": "no more processes"})
    remote.server.inject("POST", "/command", refused)
    effects = _observed(remote.sandbox, "touch a")
    assert effects == []
    assert effects.gaps == ["the files of the sandbox could not be looked at: no more processes"]


def test_a_cancelled_command_says_that_nothing_was_looked_for(remote: Remote) -> None:
    with observe_effects() as effects:
        call = BackendToolCommandRun("touch begun; sleep 30")
        running = runtime().submit(lambda: remote.sandbox.adispatch(call), label="a command")
    remote.server.wait_for("POST", "/command", n_requests=2)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    assert effects == []
    assert "was cancelled" in effects.gaps[0]


def test_a_file_tool_next_to_a_command_is_reported_once(sandbox: BackendSandbox) -> None:
    def run() -> EffectLog:
        return _observed(sandbox, "touch begun; until [ -e go ]; do sleep 0.01; done; touch done")

    with ThreadPoolExecutor(1) as pool, observe_effects() as mine:
        running = pool.submit(run)
        begun = BackendToolFilesRead("begun")
        wait_until(lambda: isinstance(sandbox.dispatch(begun), FileContent))
        sandbox.dispatch(BackendToolFilesWrite("go", "x"))
        theirs = running.result()
    assert [(each.path, each.attribution) for each in mine] == [("go", "exact")]
    assert [each.path for each in theirs] == ["begun", "done"]


def test_a_digest_that_cannot_be_had_is_none(remote: Remote) -> None:
    remote.server.advance(601)
    assert remote.sandbox.workspace_digest() is None


def test_what_one_look_does_not_fetch_is_known_by_its_digest(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.changes.MAX_FETCHED_FILES", 1)
    monkeypatch.setattr("rath.backend.opensandbox.processes.MAX_NAMES_BYTES", 1)
    effects = _observed(sandbox, "for each in 1 2 3 4; do printf $each > file$each; done")
    assert [each.after for each in effects] == [
        Blob.from_bytes(text) for text in (b"1", b"2", b"3", b"4")
    ]
    assert sum(_content(each.after) is not None for each in effects) == 1
    assert "only their digests" in effects.gaps[0]


def test_a_file_too_large_to_digest_is_a_gap_when_it_changes(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.changes.MAX_HASHED_BYTES", 3)
    effects = _observed(sandbox, "printf long > a; printf s > b")
    assert [each.path for each in effects] == ["b"]
    assert "'a'" in effects.gaps[0]


def test_what_cannot_be_fetched_is_known_by_its_digest(remote: Remote) -> None:
    away = Answer(500, {"code": "RUNTIME_ERROR", "message": "away"})
    remote.server.inject("GET", "/files/download", away, skip=1)
    effects = _observed(remote.sandbox, "printf x > a")
    assert [each.after for each in effects] == [Blob.from_bytes(b"x")]
    assert _content(effects[0].after) is None
    assert "only their digests" in effects.gaps[0]


def test_of_a_write_through_links_the_file_that_changed_is_reported(
    sandbox: BackendSandbox,
) -> None:
    _observed(sandbox, "mkdir d; ln -s d dl; printf one > d/old; chmod 600 d/old; ln -s d/old l")
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesEdit("l", "one", "two"))
        sandbox.dispatch(BackendToolFilesWrite("dl/new", "new"))
        sandbox.dispatch(BackendToolFilesWrite("dl/e/f", "new"))
    private = stat.S_IFREG | 0o600
    assert [(each.path, each.kind, each.before_mode, each.after_mode) for each in effects] == [
        ("d/old", "changed", private, private),
        ("d/new", "created", None, _PLAIN),
        ("d/e/f", "created", None, _PLAIN),
    ]
    assert effects.gaps == []


@pytest.mark.parametrize(
    "call", [BackendToolFilesWrite("out", "two"), BackendToolFilesEdit("out", "one", "two")]
)
def test_a_link_that_leads_out_of_the_workspace_is_a_gap(
    sandbox: BackendSandbox, call: BackendToolFilesWrite | BackendToolFilesEdit
) -> None:
    _observed(sandbox, "printf one > /tmp/there; ln -s /tmp/there out")
    with observe_effects() as effects:
        sandbox.dispatch(call)
    assert effects == []
    assert "'/tmp/there' was written, which is not in the workspace" in effects.gaps[0]
    assert sandbox.dispatch(BackendToolFilesRead("/tmp/there")) == FileContent("two")


def test_a_link_that_leads_nobody_knows_where_is_a_gap(sandbox: BackendSandbox) -> None:
    _observed(sandbox, "ln -s $(printf '\\377') l")
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("l", "x"))
        edited = sandbox.dispatch(BackendToolFilesEdit("l", "x", "y"))
    assert effects == []
    assert "where it leads could not be told" in effects.gaps[0]
    assert isinstance(edited, ToolExecutionFailure)


def test_what_is_written_as_it_was_is_no_effect(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a", "same"))
    with observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a", "same"))
    assert effects == []


def _beside(sandbox: BackendSandbox, call: BackendToolFilesWrite) -> EffectLog:
    """Return what a command is said to have changed that waits for `call`, which no one observes.

    A file outside of the workspace says that it has begun, and another one that it may end.
    """
    line = "touch /tmp/begun; until [ -e /tmp/go ]; do sleep 0.01; done"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_observed, sandbox, line)
        begun = BackendToolFilesRead("/tmp/begun")
        wait_until(lambda: isinstance(sandbox.dispatch(begun), FileContent))
        sandbox.dispatch(call)
        sandbox.dispatch(BackendToolFilesWrite("/tmp/go", ""))
        return running.result()


@pytest.mark.parametrize("path", ["a", "new", ".git/a"])
def test_what_a_file_tool_wrote_is_not_a_commands_though_nobody_observes_it(
    sandbox: BackendSandbox, path: str
) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a", "before"))
    effects = _beside(sandbox, BackendToolFilesWrite(path, "after"))
    assert effects == []
    assert effects.gaps == []


@pytest.mark.parametrize("n_requests", [1, 3], ids=["the first look", "the second look"])
def test_a_write_waits_while_somebody_looks(remote: Remote, n_requests: int) -> None:
    gate = Gate()
    remote.server.inject("POST", "/command", gate, skip=n_requests - 1)
    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(_observed, remote.sandbox, "true")
        remote.server.wait_for("POST", "/command", n_requests=n_requests)
        writing = pool.submit(remote.sandbox.dispatch, BackendToolFilesWrite("a", "x"))
        done, _ = wait([writing], 0.2)
        gate.release()
        assert not done
        effects = looking.result()
        writing.result()
    assert effects == []


def test_a_name_that_is_not_utf_8_hides_nothing_else(sandbox: BackendSandbox) -> None:
    effects = _observed(sandbox, "printf odd > \"$(printf 'b\\377')\"; printf x > a")
    assert [(each.path, each.after) for each in effects] == [
        ("a", Blob.from_bytes(b"x")),
        ("b\\xff", Blob.from_bytes(b"odd")),
    ]
    assert any("not UTF-8" in gap for gap in effects.gaps)
    assert sandbox.workspace_digest() is not None


def test_contents_are_fetched_side_by_side(remote: Remote) -> None:
    gate = Gate()
    _observed(remote.sandbox, "true")
    n_before = len(remote.server.matching("GET", "/files/download"))
    remote.server.inject("GET", "/files/download", gate, skip=1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            _observed, remote.sandbox, "for each in 1 2 3; do echo $each > $each; done"
        )
        # The list of the look, and all three files while the first one is not answered.
        try:
            remote.server.wait_for("GET", "/files/download", n_requests=n_before + 4)
        finally:
            gate.release()
        effects = running.result()
    assert [_content(each.after) for each in effects] == [b"1\n", b"2\n", b"3\n"]
