"""What each operation asks the server, and what it makes of odd answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.memory import (
    MemoryCommitResult,
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryForgetResult,
    MemoryHit,
    MemoryListResult,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryResult,
    MemoryWriteResult,
    UnsupportedMemoryOp,
)
from rath.memory.adapters.openviking import client
from rath.memory.adapters.openviking.operations import session_tag
from rath.memory.notes import EXPIRES_AT, KEEP_BOTH, SESSION_ID, places
from tests.support.openviking_sdk import (
    FOREVER,
    KEY,
    NOT_FOUND,
    ScriptedSdk,
    adispatch,
    dispatch,
    error,
)

NOTE = "memory://user/memories/a"
ADDRESS = "viking://user/alice/memories/a.md"
WRITTEN: Mapping[str, Any] = {"context_type": "memory", "written_bytes": 99}


def kind_of(result: MemoryResult) -> str:
    assert isinstance(result, MemoryExecutionFailure), result
    return result.kind


def memory(content: bytes, version: int = 1) -> bytes:
    """A memory as the server keeps it."""
    return content + b'\n\n<!-- MEMORY_FIELDS\n{\n  "version": %d\n}\n-->' % version


# ---------------------------------------------------------------- writing


def test_a_write_goes_to_the_user_and_counts_its_own_bytes() -> None:
    sdk = ScriptedSdk(write=WRITTEN)
    assert dispatch(sdk, MemoryOpWrite(NOTE, "鷺")) == MemoryWriteResult(NOTE, 3)
    asked = {"mode": "create", "wait": False, "options": None}
    assert sdk.named("write") == [((ADDRESS, "鷺"), asked)]


def test_the_size_that_the_server_tells_of_a_file_counts() -> None:
    sdk = ScriptedSdk(write={"context_type": "resource", "written_bytes": 7})
    uri = "memory://agent/a"
    assert dispatch(sdk, MemoryOpWrite(uri, "x")) == MemoryWriteResult(uri, 7)


def test_a_server_that_creates_only_new_files_is_told_to_replace() -> None:
    sdk = ScriptedSdk(write=(error("AlreadyExistsError"), WRITTEN))
    assert isinstance(dispatch(sdk, MemoryOpWrite(NOTE, "x")), MemoryWriteResult)
    assert [options["mode"] for _, options in sdk.named("write")] == ["create", "replace"]


def test_white_space_around_a_new_memory_is_kept() -> None:
    sdk = ScriptedSdk(download_bytes=error(NOT_FOUND), write=WRITTEN)
    dispatch(sdk, MemoryOpWrite(NOTE, "x\n", wait=True))
    assert [options["wait"] for _, options in sdk.named("write")] == [False, True]


def test_what_comes_from_a_session_is_tagged() -> None:
    sdk = ScriptedSdk(write=WRITTEN)
    dispatch(sdk, MemoryOpWrite(NOTE, "x", metadata={SESSION_ID: "S 1"}))
    ((_, options),) = sdk.named("write")
    tag = session_tag("S 1")
    assert tag.startswith("rath_session_")
    assert options["options"] == {"tags": [tag], "tag_mode": "append"}


def test_a_note_that_keeps_both_moves_to_a_longer_name() -> None:
    op = MemoryOpWrite(NOTE, "new", metadata=KEEP_BOTH)
    second = list(places(op))[1]
    sdk = ScriptedSdk(download_bytes=(memory(b"old"), error(NOT_FOUND)), write=WRITTEN)
    assert dispatch(sdk, op) == MemoryWriteResult(second, 3)


def test_the_same_note_keeps_its_place() -> None:
    sdk = ScriptedSdk(download_bytes=memory(b"new"), write=WRITTEN)
    assert dispatch(sdk, MemoryOpWrite(NOTE, "new", metadata=KEEP_BOTH)) == MemoryWriteResult(
        NOTE, 3
    )


def test_the_longest_name_is_the_last_resort() -> None:
    op = MemoryOpWrite(NOTE, "new", metadata=KEEP_BOTH)
    sdk = ScriptedSdk(download_bytes=memory(b"old"), write=WRITTEN)
    assert dispatch(sdk, op) == MemoryWriteResult(list(places(op))[2], 3)


# ---------------------------------------------------------------- waiting and failing


def test_what_is_busy_is_written_when_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BUSY_WAITS", (0.0,))
    busy = error("ConflictError", retryable=True)
    sdk = ScriptedSdk(write=(busy, busy, WRITTEN))
    assert isinstance(dispatch(sdk, MemoryOpWrite(NOTE, "x")), MemoryWriteResult)


@pytest.mark.parametrize("last", [RuntimeError("x"), asyncio.CancelledError()])
def test_a_cancellation_that_somebody_asked_for_is_one(last: BaseException) -> None:
    begun = asyncio.Event()

    class Stubborn(ScriptedSdk):
        async def find(self, *_: object, **__: object) -> object:
            begun.set()
            try:
                return await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise last from None

    async def cancel() -> bool:
        finding = asyncio.ensure_future(adispatch(Stubborn(), MemoryOpFind("x")))
        await begun.wait()
        finding.cancel()
        await asyncio.wait([finding])
        return finding.cancelled()

    assert runtime().run(cancel, label="a test")


def test_a_query_that_is_no_unicode_is_asked_all_the_same() -> None:
    sdk = ScriptedSdk(find={}, search={})
    for op in (MemoryOpFind("a\ud800"), MemoryOpSearch("a\ud800")):
        assert dispatch(sdk, op) == MemoryFindResult(())
    assert [args for _, args, _ in sdk.calls] == [("a\ufffd",)] * 2


def test_a_deadline_of_the_caller_is_its_own() -> None:
    async def hurry() -> None:
        async with asyncio.timeout(0.01):
            await adispatch(ScriptedSdk(find=FOREVER), MemoryOpFind("x"))

    with pytest.raises(TimeoutError):
        runtime().run(hurry, label="a test")


def test_a_late_read_has_no_effect_to_tell_of() -> None:
    result = dispatch(ScriptedSdk(find=FOREVER), MemoryOpFind("x"), timeout=0.01)
    assert kind_of(result) == "timeout"
    assert "effect" not in str(result)


@pytest.mark.parametrize("name", ["write", "commit"])
def test_nothing_is_sent_twice_when_the_connection_is_lost(name: str) -> None:
    lost = ConnectionResetError("gone")
    sdk = ScriptedSdk(
        write=lost, create_session={}, batch_add_messages=lost, commit_session={"task_id": None}
    )
    op: MemoryOp = MemoryOpWrite(NOTE, "x")
    if name == "commit":
        op = MemoryOpCommit("s", [{"role": "user", "content": "x"}])
    assert kind_of(dispatch(sdk, op)) == "transport"
    assert len([each for each, _, _ in sdk.calls if each != "create_session"]) == 1


def test_the_key_is_in_no_failure() -> None:
    sdk = ScriptedSdk(find=error("UnauthenticatedError", f"bad key {KEY}"))
    result = dispatch(sdk, MemoryOpFind("x"))
    assert kind_of(result) == "unauthorized"
    assert KEY not in repr(result)


def test_an_operation_of_somebody_else_is_unsupported() -> None:
    class Other(MemoryOp):
        pass

    with pytest.raises(UnsupportedMemoryOp):
        dispatch(ScriptedSdk(), Other())


# ---------------------------------------------------------------- reading


def test_a_file_that_is_no_note_is_read_by_its_whole_name() -> None:
    sdk = ScriptedSdk(download_bytes=(error(NOT_FOUND), b"print()"))
    result = dispatch(sdk, MemoryOpRead("memory://agent/code.py"))
    assert isinstance(result, MemoryReadResult)
    assert result.data == "print()"
    assert [args for args, _ in sdk.named("download_bytes")] == [
        ("viking://agent/code.py.md",),
        ("viking://agent/code.py",),
    ]


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (memory(b"a\n"), "a\n"),
        (b'<!-- MEMORY_FIELDS\n{"version": 1}\n-->', ""),
        (b"no fields", "no fields"),
        (b"<!-- MEMORY_FIELDS\n is what I say", "<!-- MEMORY_FIELDS\n is what I say"),
    ],
    ids=["fields", "empty", "none", "words"],
)
def test_the_fields_of_the_server_are_no_content(data: bytes, content: str) -> None:
    result = dispatch(ScriptedSdk(download_bytes=data), MemoryOpRead(NOTE))
    assert isinstance(result, MemoryReadResult)
    assert result.data == content


def test_levels_are_read_in_short() -> None:
    sdk = ScriptedSdk(abstract=(error(NOT_FOUND), "a line"), overview="a page")
    first = dispatch(sdk, MemoryOpRead(NOTE, level="abstract"))
    second = dispatch(sdk, MemoryOpRead("memory://user", level="overview"))
    assert isinstance(first, MemoryReadResult)
    assert isinstance(second, MemoryReadResult)
    assert (first.data, second.data) == ("a line", "a page")


# ---------------------------------------------------------------- listing and finding


def entry(address: str, *, is_dir: bool = False) -> Mapping[str, Any]:
    return {"uri": address, "isDir": is_dir, "size": 3}


def page(*entries: Mapping[str, Any], more: bool = False) -> Mapping[str, Any]:
    return {"result": list(entries), "has_more": more}


def test_all_pages_of_a_listing_are_read() -> None:
    sdk = ScriptedSdk(
        ls_page=(
            page(entry("viking://agent/b.md"), more=True),
            page(entry("viking://agent/a", is_dir=True), entry("viking://system/x")),
        )
    )
    result = dispatch(sdk, MemoryOpList("memory://agent"))
    assert isinstance(result, MemoryListResult)
    assert [(each.name, each.is_dir, each.size) for each in result.entries] == [
        ("a", True, None),
        ("b", False, 3),
    ]
    assert [options["offset"] for _, options in sdk.named("ls_page")] == [0, 1]


def test_a_tree_of_everything_holds_each_scope_once() -> None:
    sdk = ScriptedSdk(tree_page=page())
    result = dispatch(sdk, MemoryOpTree("memory:/", depth=2))
    assert isinstance(result, MemoryListResult)
    assert [each.name for each in result.entries] == ["agent", "resources", "session", "user"]
    assert {options["level_limit"] for _, options in sdk.named("tree_page")} == {2}


def test_a_tree_of_the_scopes_alone_asks_nothing() -> None:
    sdk = ScriptedSdk()
    assert isinstance(dispatch(sdk, MemoryOpTree("memory:/", depth=0)), MemoryListResult)
    assert sdk.calls == []


def hit(address: str, score: float, **more: object) -> Mapping[str, object]:
    return {"uri": address, "score": score, **more}


def test_hits_of_all_kinds_are_one_list() -> None:
    answer = {
        "memories": [hit(ADDRESS, 0.2, abstract="low", level=2)],
        "resources": [hit("viking://user/bob/x.md", 0.99), hit("viking://agent/.overview.md", 0.9,
                          overview="top", level=1)],
        "skills": [hit("viking://agent/skills/s.md", 0.5, level=7)],
    }  # fmt: skip
    expected = (
        MemoryHit("memory://agent/.overview", 0.9, "top", "overview"),
        MemoryHit("memory://agent/skills/s", 0.5, None, None),
        MemoryHit(NOTE, 0.2, "low", "detail"),
    )
    sdk = ScriptedSdk(find=answer, search=answer)
    assert dispatch(sdk, MemoryOpFind("q", "memory:/")) == MemoryFindResult(expected)
    found = dispatch(sdk, MemoryOpSearch("q", "s1", NOTE, top_k=2))
    assert found == MemoryFindResult(expected[:2])
    assert sdk.named("find") == [(("q",), {"target_uri": "", "limit": 8})]
    asked = {"session_id": "s1", "target_uri": ADDRESS.removesuffix(".md"), "limit": 2}
    assert sdk.named("search") == [(("q",), asked)]


@pytest.mark.parametrize("op", [MemoryOpFind(" "), MemoryOpFind("x", top_k=0), MemoryOpSearch("")])
def test_what_can_match_nothing_asks_nothing(op: MemoryOp) -> None:
    assert dispatch(ScriptedSdk(), op) == MemoryFindResult(())


# ---------------------------------------------------------------- resources


def test_a_page_is_fetched_by_the_server() -> None:
    sdk = ScriptedSdk(add_resource={"root_uri": "viking://resources/odd-1"})
    op = MemoryOpResource("https://host/a%20b.html?x=1", wait=False, instruction="look")
    assert dispatch(sdk, op) == MemoryWriteResult("memory://resources/odd-1", 0)
    ((args, options),) = sdk.named("add_resource")
    assert args == ("https://host/a%20b.html?x=1",)
    assert str(options["to"]).startswith("viking://resources/a_b-")
    assert options["options"] == {"instruction": "look"}
    assert options["wait"] is False


# ---------------------------------------------------------------- commits


SAID = ({"role": "user", "content": "x"},)
COMMITTED = {"task_id": "t1", "archive_uri": "viking://user/alice/sessions/s/history/archive_001"}
ARCHIVE = "memory://session/s/history/archive_001"
COMMITTING = {"create_session": {}, "batch_add_messages": {}, "commit_session": COMMITTED}


def committing(**answers: object) -> ScriptedSdk:
    return ScriptedSdk(**{**COMMITTING, **answers})


def test_a_commit_that_nobody_waits_for() -> None:
    sdk = committing(create_session=error("AlreadyExistsError"))
    assert dispatch(sdk, MemoryOpCommit("s", SAID)) == MemoryCommitResult("t1", ARCHIVE, -1)


def test_a_commit_waits_without_a_deadline_too() -> None:
    ended = {"status": "completed", "result": {"memories_extracted": {"a": 2, "b": 1, "total": 3}}}
    sdk = committing(get_task=({"status": "running"}, ended), wait_processed={})
    assert dispatch(sdk, MemoryOpCommit("s", SAID, wait=True)) == MemoryCommitResult(
        "t1", ARCHIVE, 3
    )
    assert [name for name, _, _ in sdk.calls][-3:] == ["get_task", "get_task", "wait_processed"]


def test_nothing_to_commit_is_told() -> None:
    sdk = committing(commit_session={"task_id": None, "archive_uri": None})
    assert dispatch(sdk, MemoryOpCommit("s", (), wait=True)) == MemoryCommitResult(None, None, 0)


def test_a_run_that_was_committed_is_not_committed_again() -> None:
    archives = [{"uri": f"viking://user/alice/sessions/s/history/archive_00{n}"} for n in (1, 2)]
    sdk = committing(create_session=error("AlreadyExistsError"), ls_page=page(*archives))
    result = dispatch(sdk, MemoryOpCommit("s", SAID, run="r"))
    assert result == MemoryCommitResult(None, "memory://session/s/history/archive_002", -1)
    assert sdk.named("commit_session") == []


@pytest.mark.parametrize("listing", [page(), error(NOT_FOUND)])
def test_a_run_whose_commit_was_cut_off_is_committed_from_the_start(listing: object) -> None:
    made: tuple[object, object] = (error("AlreadyExistsError"), {})
    sdk = committing(create_session=made, ls_page=listing, delete_session=None)
    result = dispatch(sdk, MemoryOpCommit("s", SAID, run="r"))
    assert result == MemoryCommitResult("t1", ARCHIVE, -1)
    names = [name for name, _, _ in sdk.calls]
    assert names[-4:] == [
        "delete_session",
        "create_session",
        "batch_add_messages",
        "commit_session",
    ]


def test_many_messages_go_in_several_requests() -> None:
    sdk = committing()
    dispatch(sdk, MemoryOpCommit("s", SAID * 250))
    sent = [args for args, _ in sdk.named("batch_add_messages")]
    message = {"role": "user", "content": "x"}
    assert sent == [("s", [message] * n) for n in (100, 100, 50)]


def test_messages_of_many_shapes() -> None:
    sdk = committing()
    said = (
        {"role": "user", "content": "words"},
        SimpleNamespace(role="assistant", content=None, parts=["a", {"type": "text", "text": "b"}]),
        {"role": "tool", "content": [{"type": "text", "text": "c"}]},
        SimpleNamespace(content=None),
    )
    dispatch(sdk, MemoryOpCommit("s", said, used_uris=(NOTE, "memory://agent/b")))
    ((args, _),) = sdk.named("batch_add_messages")
    used = [
        {"type": "context", "uri": ADDRESS, "context_type": "memory", "abstract": ""},
        {
            "type": "context",
            "uri": "viking://agent/b.md",
            "context_type": "resource",
            "abstract": "",
        },
    ]
    assert args[1] == [
        {"role": "user", "content": "words"},
        {
            "role": "assistant",
            "parts": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "tool", "content": '[{"type": "text", "text": "c"}]'},
        {"role": "user", "parts": [{"type": "text", "text": ""}, *used]},
    ]


# ---------------------------------------------------------------- forgetting


def test_a_note_is_forgotten() -> None:
    sdk = ScriptedSdk(stat={"isDir": False}, rm=None)
    assert dispatch(sdk, MemoryOpForget(NOTE)) == MemoryForgetResult((NOTE,))
    assert sdk.named("rm") == [((ADDRESS,), {"recursive": False, "wait": True})]


def test_a_directory_is_forgotten_where_that_is_meant() -> None:
    sdk = ScriptedSdk(
        stat=(error(NOT_FOUND), {"isDir": True}, error(NOT_FOUND), {"isDir": True}),
        tree_page=page(entry("viking://agent/d/e", is_dir=True), entry("viking://agent/d/e/a.md")),
        rm=None,
    )
    assert kind_of(dispatch(sdk, MemoryOpForget("memory://agent/d"))) == "unsupported"
    done = dispatch(sdk, MemoryOpForget("memory://agent/d", recursive=True))
    assert done == MemoryForgetResult(("memory://agent/d/e/a",))


ROOT = "viking://user/alice"
DIFF = b"""{"operations": {"adds": [
  {"uri": "viking://user/alice/memories/own.md", "after": "own"},
  {"uri": "viking://user/alice/memories/edited.md", "after": "before"},
  {"uri": "viking://user/alice/memories/later.md", "after": "own"},
  {"uri": "viking://user/alice/memories/gone.md", "after": "own"}],
 "updates": [{"uri": "viking://user/alice/memories/older.md", "after": "own"}]}}"""


class SessionSdk(ScriptedSdk):
    """A server with the session `s`, whose files are given."""

    files: Mapping[str, bytes]

    async def download_bytes(self, uri: str) -> bytes:
        if uri not in self.files:
            raise error(NOT_FOUND)
        return self.files[uri]

    async def stat(self, uri: str) -> Mapping[str, Any]:
        self.calls.append(("stat", (uri,), {}))
        if uri.endswith("/history") or len(self.named("stat")) == 1:
            return {"isDir": True}
        raise error(NOT_FOUND)


def test_only_what_comes_from_a_session_alone_goes_with_it() -> None:
    sdk = SessionSdk(
        list_tasks=[{"task_id": "t1"}],
        get_task=({"status": "running"}, {"status": "completed"}),
        wait_processed={},
        ls_page=page(entry(f"{ROOT}/sessions/s/history/a1", is_dir=True),
                     entry(f"{ROOT}/sessions/s/history/a2", is_dir=True)),
        tree_page=page(),
        rm=None,
        delete_session=None,
    )  # fmt: skip
    sdk.files = {
        f"{ROOT}/sessions/s/history/a1/memory_diff.json": DIFF,
        f"{ROOT}/memories/own.md": memory(b"own"),
        f"{ROOT}/memories/edited.md": memory(b"by hand"),
        f"{ROOT}/memories/later.md": memory(b"own", version=2),
        f"{ROOT}/memories/older.md": memory(b"own"),
    }
    done = dispatch(sdk, MemoryOpForget(session_id="s"))
    assert done == MemoryForgetResult(("memory://session/s", "memory://user/memories/own"))
    assert [args for args, _ in sdk.named("rm")] == [(f"{ROOT}/memories/own.md",)]
    assert sdk.named("get_task") == [(("t1",), {})] * 2


# ---------------------------------------------------------------- failures


BUSY = {"semantic_status": "skipped", "vector_status": "queued"}
REFUSED = error("PermissionDeniedError")
MISSING = error(NOT_FOUND)
ODD: Sequence[object] = (None, [], {"result": 3}, "text")
COMMIT = MemoryOpCommit("s", SAID)
WAITED = MemoryOpCommit("s", SAID, wait=True)
AGENT_NOTE = "memory://agent/a"

FAILURES: Sequence[tuple[MemoryOp, Mapping[str, object], str, str]] = [
    (MemoryOpWrite(NOTE, "x", mode="append"), {}, "unsupported", "no mode"),
    (MemoryOpWrite(NOTE, "x", metadata={EXPIRES_AT: "2030"}), {}, "unsupported", "no time of"),
    (MemoryOpWrite(NOTE, "x", wait=True), {"write": BUSY}, "extraction_failed", "is stored"),
    (MemoryOpWrite(NOTE, "x", timeout_seconds=0.04), {"write": error("ConflictError")}, "timeout",
     "other work on the same place"),
    (MemoryOpWrite(NOTE, "x", timeout_seconds=0.01), {"write": FOREVER}, "timeout",
     "may have taken effect"),
    (MemoryOpWrite("x", "x"), {}, "invalid_uri", "no place"),
    (MemoryOpFind("q", "x"), {}, "invalid_uri", "no place"),
    (MemoryOpFind("x"), {"find": asyncio.CancelledError()}, "transport", "was given up"),
    (MemoryOpList("x"), {}, "invalid_uri", "no place"),
    *((MemoryOpList("memory://agent"), {"ls_page": answer}, "internal", "no answer")
      for answer in ODD),
    (MemoryOpList("memory://agent/x"), {"ls_page": MISSING}, "not_found", ""),
    (MemoryOpTree("memory://agent/x"), {"tree_page": MISSING}, "not_found", ""),
    (MemoryOpRead("memory:/"), {}, "invalid_uri", "list it"),
    (MemoryOpRead(AGENT_NOTE), {"download_bytes": b"\xff"}, "internal", "encoding=None"),
    (MemoryOpRead(AGENT_NOTE, encoding="no"), {"download_bytes": b"x"}, "unsupported", "encoding"),
    (MemoryOpRead(NOTE), {"download_bytes": REFUSED}, "unauthorized", ""),
    (MemoryOpRead(NOTE), {"download_bytes": (MISSING, REFUSED)}, "unauthorized", ""),
    (MemoryOpRead(NOTE, level="abstract"), {"abstract": REFUSED}, "unauthorized", ""),
    (MemoryOpResource("/no/such/file"), {}, "not_found", "there is no file"),
    (MemoryOpResource("a\0b"), {}, "not_found", "there is no file"),
    (MemoryOpResource("/"), {}, "unsupported", "no regular file"),
    (MemoryOpResource("ftp://host/x"), {}, "transport", "scheme"),
    (MemoryOpResource("https://host/"), {"add_resource": {"status": "error", "errors": ["bad"]}},
     "extraction_failed", "bad"),
    (COMMIT, {"create_session": REFUSED}, "unauthorized", ""),
    (MemoryOpCommit("s", SAID, run="r"),
     {"create_session": error("AlreadyExistsError"), "ls_page": REFUSED}, "unauthorized", ""),
    *((WAITED, {**COMMITTING, "get_task": task}, "extraction_failed", ARCHIVE)
      for task in (None, {"status": "failed", "error": "no model"}, {"status": "cancelled"})),
    (MemoryOpCommit("s", SAID, wait=True, timeout_seconds=1.0),
     {**COMMITTING, "get_task": {"status": "completed"}, "wait_processed": FOREVER}, "timeout",
     ARCHIVE),
    *((op, {}, "invalid_uri", "cannot name a session")
      for name in ("", ".", "..", "a/b", "a b", "a:b")
      for op in (MemoryOpCommit(name, SAID), MemoryOpForget(session_id=name))),
    (MemoryOpForget(NOTE), {"stat": MISSING}, "not_found", ""),
    (MemoryOpForget(NOTE), {"stat": REFUSED}, "unauthorized", ""),
    (MemoryOpForget("memory://user", recursive=True), {}, "unsupported", "scope"),
    (MemoryOpForget("memory://agent", recursive=True), {}, "unsupported", "scope"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "answers", "kind", "words"), FAILURES)
def test_a_failure_has_its_kind_and_says_why(
    op: MemoryOp, answers: Mapping[str, object], kind: str, words: str
) -> None:
    result = dispatch(ScriptedSdk(**answers), op)
    assert kind_of(result) == kind
    assert words in str(result)


def test_bytes_are_read_in_no_encoding() -> None:
    raw = dispatch(ScriptedSdk(download_bytes=b"\xff"), MemoryOpRead(AGENT_NOTE, encoding=None))
    assert isinstance(raw, MemoryReadResult)
    assert raw.data == b"\xff"
