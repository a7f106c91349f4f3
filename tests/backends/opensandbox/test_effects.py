"""What operations in a sandbox are said to have changed."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    CommandResult,
    FileContent,
    ToolExecutionFailure,
)
from rath.backend.changes import EffectPolicy
from rath.backend.effects import EffectLog, FileEffect, observe_effects
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.tool_types import BackendToolFilesEdit
from tests.support.opensandbox_server import Answer, Drop, Gate, OpenSandboxServer
from tests.support.waiting import wait_until

_PLAIN = stat.S_IFREG | 0o644


def _observed(sandbox: BackendSandbox, line: str) -> EffectLog:
    with observe_effects() as effects:
        result = sandbox.dispatch(BackendToolCommandRun(line))
    assert isinstance(result, CommandResult), result
    return effects


def _content(blob: Blob | None) -> bytes | None:
    return None if blob is None else blob.data


def test_a_written_file_is_told_exactly(sandbox: BackendSandbox) -> None:
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


def test_nothing_is_read_for_effects_while_nobody_observes(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "one"))
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "two"))
    assert opensandbox_server.matching("GET", "/files/*") == []
    sandbox.dispatch(BackendToolCommandRun("true"))
    assert opensandbox_server.calls["POST", "/command"] == 1


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


def test_a_sandbox_that_ends_in_the_middle_is_a_gap(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    missing = {"code": "DOCKER::SANDBOX_NOT_FOUND", "message": "not found"}
    opensandbox_server.inject("POST", "/command", Answer(404, missing), skip=1)
    opensandbox_server.inject("GET", "/v1/sandboxes/*", Answer(404, missing))
    with observe_effects() as effects:
        result = sandbox.dispatch(BackendToolCommandRun("true"))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "sandbox_closed"
    assert "ended" in effects.gaps[0]


def test_a_command_whose_end_was_lost_still_tells_what_changed(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.inject("POST", "/command", Drop("after"), skip=1)
    with observe_effects() as effects:
        result = sandbox.dispatch(BackendToolCommandRun("touch a"))
    assert isinstance(result, ToolExecutionFailure)
    assert [each.path for each in effects] == ["a"]


def test_a_look_that_the_server_refuses_is_a_gap(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    refused = Answer(500, {"code": "RUNTIME_ERROR", "message": "no more processes"})
    opensandbox_server.inject("POST", "/command", refused)
    effects = _observed(sandbox, "touch a")
    assert effects == []
    assert effects.gaps == ["the files of the sandbox could not be looked at: no more processes"]


def test_a_cancelled_command_says_that_nothing_was_looked_for(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    with observe_effects() as effects:
        call = BackendToolCommandRun("touch begun; sleep 30")
        running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    opensandbox_server.wait_for("POST", "/command", n_requests=2)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    assert effects == []
    assert "was cancelled" in effects.gaps[0]


def test_a_file_tool_beside_a_command_is_told_once(sandbox: BackendSandbox) -> None:
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


def test_the_digest_follows_the_files(sandbox: BackendSandbox) -> None:
    empty = sandbox.workspace_digest()
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "one"))
    first = sandbox.workspace_digest()
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "two"))
    second = sandbox.workspace_digest()
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "one"))
    assert len({empty, first, second}) == 3
    assert sandbox.workspace_digest() == first


def test_a_digest_that_cannot_be_had_is_none(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.advance(601)
    assert sandbox.workspace_digest() is None


def test_what_one_look_does_not_fetch_is_known_by_its_digest(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.looking.MAX_FETCHED_FILES", 1)
    monkeypatch.setattr("rath.backend.opensandbox.looking._BATCH_BYTES", 12)
    effects = _observed(sandbox, "for each in 1 2 3 4; do printf $each > file$each; done")
    assert [each.after for each in effects] == [
        Blob.from_bytes(text) for text in (b"1", b"2", b"3", b"4")
    ]
    assert sum(_content(each.after) is not None for each in effects) == 1
    assert "only their digests" in effects.gaps[0]


def test_a_file_too_large_to_digest_is_a_gap_when_it_changes(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.looking.MAX_DIGESTED_BYTES", 3)
    effects = _observed(sandbox, "printf long > a; printf s > b")
    assert [each.path for each in effects] == ["b"]
    assert "'a'" in effects.gaps[0]


def test_what_cannot_be_fetched_is_known_by_its_digest(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    away = Answer(500, {"code": "RUNTIME_ERROR", "message": "away"})
    opensandbox_server.inject("GET", "/files/download", away, skip=1)
    effects = _observed(sandbox, "printf x > a")
    assert [each.after for each in effects] == [Blob.from_bytes(b"x")]
    assert _content(effects[0].after) is None
    assert "only their digests" in effects.gaps[0]


def test_of_a_write_through_links_the_file_that_changed_is_told(sandbox: BackendSandbox) -> None:
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
def test_a_write_waits_while_somebody_looks(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer, n_requests: int
) -> None:
    gate = Gate()
    opensandbox_server.inject("POST", "/command", gate, skip=n_requests - 1)
    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(_observed, sandbox, "true")
        opensandbox_server.wait_for("POST", "/command", n_requests=n_requests)
        writing = pool.submit(sandbox.dispatch, BackendToolFilesWrite("a", "x"))
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


def test_contents_are_fetched_side_by_side(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    gate = Gate()
    _observed(sandbox, "true")
    n_before = len(opensandbox_server.matching("GET", "/files/download"))
    opensandbox_server.inject("GET", "/files/download", gate, skip=1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_observed, sandbox, "for each in 1 2 3; do echo $each > $each; done")
        # The list of the look, and all three files while the first one is not answered.
        try:
            opensandbox_server.wait_for("GET", "/files/download", n_requests=n_before + 4)
        finally:
            gate.release()
        effects = running.result()
    assert [_content(each.after) for each in effects] == [b"1\n", b"2\n", b"3\n"]
