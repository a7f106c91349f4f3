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
    MemoryEntry,
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
from rath.memory.op_types import Level
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


def entry(address: str, *, is_dir: bool = False) -> Mapping[str, Any]:
    return {"uri": address, "isDir": is_dir, "size": 3}


def page(*entries: Mapping[str, Any], more: bool = False) -> Mapping[str, Any]:
    return {"result": list(entries), "has_more": more}


def hit(address: str, score: float, **more: object) -> Mapping[str, object]:
    return {"uri": address, "score": score, **more}


SAID = ({"role": "user", "content": "x"},)
SESSION = "viking://user/alice/sessions/s/history"
COMMITTED = {"task_id": "t1", "archive_uri": f"{SESSION}/archive_001"}
ARCHIVE = "memory://session/s/history/archive_001"
COMMITTING = {"create_session": {}, "batch_add_messages": {}, "commit_session": COMMITTED}


def committing(**answers: object) -> ScriptedSdk:
    return ScriptedSdk(**{**COMMITTING, **answers})


EXISTS = error("AlreadyExistsError")
CREATED: Mapping[str, object] = {}
MISSING = error(NOT_FOUND)
BUSY_NOW = error("ConflictError", retryable=True)
KEPT_BOTH = MemoryOpWrite(NOTE, "new", metadata=KEEP_BOTH)
FIRST, SECOND, LAST = places(KEPT_BOTH)
CODE = "memory://agent/code.py"
HITS = {
    "memories": [hit(ADDRESS, 0.2, abstract="low", level=2)],
    "resources": [
        hit("viking://user/bob/x.md", 0.99),
        hit("viking://agent/.overview.md", 0.9, overview="top", level=1),
    ],
    "skills": [hit("viking://agent/skills/s.md", 0.5, level=7)],
}
FOUND = (
    MemoryHit("memory://agent/.overview", 0.9, "top", "overview"),
    MemoryHit("memory://agent/skills/s", 0.5, None, None),
    MemoryHit(NOTE, 0.2, "low", "detail"),
)
LISTED = (
    page(entry("viking://agent/b.md"), more=True),
    page(entry("viking://agent/a", is_dir=True), entry("viking://system/x")),
)
ENTRIES = (
    MemoryEntry("a", "memory://agent/a", is_dir=True),
    MemoryEntry("b", "memory://agent/b", is_dir=False, size=3),
)
DIRECTORY = page(entry("viking://agent/d/e", is_dir=True), entry("viking://agent/d/e/a.md"))
ENDED = {"status": "completed", "result": {"memories_extracted": {"a": 2, "b": 1, "total": 3}}}
AGAIN = MemoryOpCommit("s", SAID, run="r")
WAITING = MemoryOpCommit("s", SAID, wait=True)
NEW_SESSION = ["delete_session", "create_session", "batch_add_messages", "commit_session"]


def read_as(text: str | bytes, level: Level = "detail") -> MemoryReadResult:
    return MemoryReadResult(NOTE, text, level)


ANSWERS: Mapping[str, tuple[MemoryOp, Mapping[str, object], MemoryResult, Sequence[str]]] = {
    "a memory is as long as its text": (
        MemoryOpWrite(NOTE, "鷺"), {"write": WRITTEN}, MemoryWriteResult(NOTE, 3), ["write"]),
    "a file is as long as the server says": (
        MemoryOpWrite(CODE, "x"), {"write": {"context_type": "resource", "written_bytes": 7}},
        MemoryWriteResult(CODE, 7), ["write"]),
    "what exists is replaced": (
        MemoryOpWrite(NOTE, "x"), {"write": (EXISTS, WRITTEN)}, MemoryWriteResult(NOTE, 1),
        ["write"] * 2),
    "what is busy is written when it is free": (
        MemoryOpWrite(NOTE, "x"), {"write": (BUSY_NOW, BUSY_NOW, WRITTEN)},
        MemoryWriteResult(NOTE, 1), ["write"] * 3),
    "the same note keeps its place": (
        KEPT_BOTH, {"download_bytes": memory(b"new"), "write": WRITTEN},
        MemoryWriteResult(FIRST, 3), ["download_bytes", "write"]),
    "another note gets a longer name": (
        KEPT_BOTH, {"download_bytes": (memory(b"old"), MISSING), "write": WRITTEN},
        MemoryWriteResult(SECOND, 3), [*["download_bytes"] * 2, "write"]),
    "the longest name is the last resort": (
        KEPT_BOTH, {"download_bytes": memory(b"old"), "write": WRITTEN},
        MemoryWriteResult(LAST, 3), [*["download_bytes"] * 2, "write"]),
    "a file that is no note is read by its whole name": (
        MemoryOpRead(CODE), {"download_bytes": (MISSING, b"print()")},
        MemoryReadResult(CODE, "print()", "detail"), ["download_bytes"] * 2),
    "fields of the server are no content": (
        MemoryOpRead(NOTE), {"download_bytes": memory(b"a\n")}, read_as("a\n"),
        ["download_bytes"]),
    "fields may be all there is": (
        MemoryOpRead(NOTE), {"download_bytes": b'<!-- MEMORY_FIELDS\n{"version": 1}\n-->'},
        read_as(""), ["download_bytes"]),
    "a note may be without fields": (
        MemoryOpRead(NOTE), {"download_bytes": b"no fields"}, read_as("no fields"),
        ["download_bytes"]),
    "a note may speak of fields": (
        MemoryOpRead(NOTE), {"download_bytes": b"<!-- MEMORY_FIELDS\n is what I say"},
        read_as("<!-- MEMORY_FIELDS\n is what I say"), ["download_bytes"]),
    "bytes are read in no encoding": (
        MemoryOpRead(NOTE, encoding=None), {"download_bytes": b"\xff"}, read_as(b"\xff"),
        ["download_bytes"]),
    "a note or a directory is read in short": (
        MemoryOpRead(NOTE, level="abstract"), {"abstract": (MISSING, "a line")},
        read_as("a line", "abstract"), ["abstract"] * 2),
    "a scope is read in short": (
        MemoryOpRead("memory://user", level="overview"), {"overview": "a page"},
        MemoryReadResult("memory://user", "a page", "overview"), ["overview"]),
    "all pages of a listing are read": (
        MemoryOpList("memory://agent"), {"ls_page": LISTED}, MemoryListResult(ENTRIES),
        ["ls_page"] * 2),
    "what can match nothing asks nothing": (
        MemoryOpFind(" "), {}, MemoryFindResult(()), []),
    "no place for a hit asks nothing": (
        MemoryOpFind("x", top_k=0), {}, MemoryFindResult(()), []),
    "an empty search asks nothing": (MemoryOpSearch(""), {}, MemoryFindResult(()), []),
    "hits of all kinds are one list": (
        MemoryOpFind("q", "memory:/"), {"find": HITS}, MemoryFindResult(FOUND), ["find"]),
    "the best hits of a search are kept": (
        MemoryOpSearch("q", "s1", NOTE, top_k=2), {"search": HITS}, MemoryFindResult(FOUND[:2]),
        ["search"]),
    "a commit that nobody waits for": (
        MemoryOpCommit("s", SAID), {**COMMITTING, "create_session": EXISTS},
        MemoryCommitResult("t1", ARCHIVE, -1), ["create_session", *NEW_SESSION[2:]]),
    "a commit that is waited for": (
        WAITING, {**COMMITTING, "get_task": ({"status": "running"}, ENDED), "wait_processed": {}},
        MemoryCommitResult("t1", ARCHIVE, 3), [*NEW_SESSION[1:], *["get_task"] * 2,
                                              "wait_processed"]),
    "there is nothing to commit": (
        MemoryOpCommit("s", (), wait=True),
        {**COMMITTING, "commit_session": {"task_id": None, "archive_uri": None}},
        MemoryCommitResult(None, None, 0), ["create_session", "commit_session"]),
    "a run is committed once": (
        AGAIN, {"create_session": EXISTS, "ls_page": page(*(
            {"uri": f"{SESSION}/archive_00{n}"} for n in (1, 2)))},
        MemoryCommitResult(None, "memory://session/s/history/archive_002", -1),
        ["create_session", "ls_page"]),
    "a commit that left no archive begins anew": (
        AGAIN, {**COMMITTING, "create_session": (EXISTS, CREATED), "ls_page": page(),
                "delete_session": None},
        MemoryCommitResult("t1", ARCHIVE, -1), ["create_session", "ls_page", *NEW_SESSION]),
    "a commit that left no history begins anew": (
        AGAIN, {**COMMITTING, "create_session": (EXISTS, CREATED), "ls_page": MISSING,
                "delete_session": None},
        MemoryCommitResult("t1", ARCHIVE, -1), ["create_session", "ls_page", *NEW_SESSION]),
    "a note is forgotten": (
        MemoryOpForget(NOTE), {"stat": {"isDir": False}, "rm": None}, MemoryForgetResult((NOTE,)),
        ["stat", "rm"]),
    "a directory is forgotten where that is meant": (
        MemoryOpForget("memory://agent/d", recursive=True),
        {"stat": (MISSING, {"isDir": True}), "tree_page": DIRECTORY, "rm": None},
        MemoryForgetResult(("memory://agent/d/e/a",)), ["stat", "stat", "tree_page", "rm"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_operation_asks_the_server_and_translates_its_answer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "BUSY_WAITS", (0.0,))
    op, answers, expected, calls = ANSWERS[name]
    sdk = ScriptedSdk(**answers)
    assert dispatch(sdk, op) == expected
    assert [called for called, _, _ in sdk.calls] == calls


REQUESTS: Sequence[tuple[MemoryOp, object, tuple[object, ...], Mapping[str, object]]] = [
    (MemoryOpWrite(NOTE, "鷺"), WRITTEN, (ADDRESS, "鷺"),
     {"mode": "create", "wait": False, "options": None}),
    (MemoryOpWrite(NOTE, "x", metadata={SESSION_ID: "S 1"}), WRITTEN, (ADDRESS, "x"),
     {"options": {"tags": [session_tag("S 1")], "tag_mode": "append"}}),
    (MemoryOpFind("q", "memory:/"), {}, ("q",), {"target_uri": "", "limit": 8}),
    (MemoryOpFind("a\ud800"), {}, ("a\ufffd",), {}),
    (MemoryOpSearch("a\ud800"), {}, ("a\ufffd",), {}),
    (MemoryOpSearch("q", "s1", NOTE, top_k=2), {}, ("q",),
     {"session_id": "s1", "target_uri": ADDRESS.removesuffix(".md"), "limit": 2}),
    (MemoryOpList("memory://agent"), page(), ("viking://agent",), {"offset": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "answer", "args", "options"), REQUESTS)
def test_a_request_says_all_that_the_operation_does(
    op: MemoryOp, answer: object, args: tuple[object, ...], options: Mapping[str, object]
) -> None:
    sdk = ScriptedSdk(**dict.fromkeys(("write", "find", "search", "ls_page"), answer))
    dispatch(sdk, op)
    ((_, sent, given),) = sdk.calls
    assert sent == args
    assert options.items() <= given.items()


def test_white_space_around_a_new_memory_is_preserved() -> None:
    sdk = ScriptedSdk(download_bytes=error(NOT_FOUND), write=WRITTEN)
    dispatch(sdk, MemoryOpWrite(NOTE, "x\n", wait=True))
    assert [options["wait"] for _, options in sdk.named("write")] == [False, True]


# ---------------------------------------------------------------- waiting and failing


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


def test_a_tree_of_everything_holds_each_scope_once() -> None:
    sdk = ScriptedSdk(tree_page=page())
    result = dispatch(sdk, MemoryOpTree("memory:/", depth=2))
    assert isinstance(result, MemoryListResult)
    assert [each.name for each in result.entries] == ["agent", "resources", "session", "user"]
    assert {options["level_limit"] for _, options in sdk.named("tree_page")} == {2}


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
ODD: Sequence[object] = (None, [], {"result": 3}, "text")
COMMIT = MemoryOpCommit("s", SAID)
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
    *((WAITING, {**COMMITTING, "get_task": task}, "extraction_failed", ARCHIVE)
      for task in (None, {"status": "failed", "error": "no model"}, {"status": "cancelled"})),
    (MemoryOpCommit("s", SAID, wait=True, timeout_seconds=1.0),
     {**COMMITTING, "get_task": {"status": "completed"}, "wait_processed": FOREVER}, "timeout",
     ARCHIVE),
    *((op, {}, "invalid_uri", "cannot name a session")
      for name in ("", ".", "..", "a/b", "a b", "a:b")
      for op in (MemoryOpCommit(name, SAID), MemoryOpForget(session_id=name))),
    (MemoryOpForget(NOTE), {"stat": MISSING}, "not_found", ""),
    (MemoryOpForget(NOTE), {"stat": REFUSED}, "unauthorized", ""),
    (MemoryOpForget("memory://agent/d"), {"stat": (MISSING, {"isDir": True})}, "unsupported",
     "recursive=True"),
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
