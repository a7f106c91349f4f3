"""The memory operations as requests to a server of OpenViking."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode
from rath.memory import notes, op_types, results
from rath.memory.adapters.openviking.client import (
    Addresses,
    VikingClient,
    VikingError,
    escape_name,
    has_server_fields,
    is_scope,
)
from rath.memory.driver import InvalidUri, OperationFailed, decoded, file_of
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX, MEMORY_URI_ROOT, to_public_uri

__all__ = ["OPERATIONS", "session_tag"]

TASK_WAITS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Waits between questions whether a task has ended, in seconds; the last one repeats. The server
has no other way to tell, and a commit takes ten seconds or more."""

_TASK_ENDS = frozenset({"completed", "failed", "cancelled", "canceled"})
_MAX_TASKS = 200
"""Tasks of a session that are awaited before it is forgotten; the server lists no more at once."""

_PAGE = 1000
"""Entries of one request; what the SDK asks for by default, and the server gives."""

_MAX_MESSAGES = 100
"""Messages of one request; the server takes no more."""

_ALL_LEVELS = 64
"""Depth of a search through a directory; a guess at more than anybody makes."""

_FIELDS = b"<!-- MEMORY_FIELDS\n"
_FIELDS_END = b"\n-->"
_ARCHIVE = re.compile(r".+/history/archive_\d+")
_ARCHIVE_MESSAGES = "messages.jsonl"
_ARCHIVE_DIFF = "memory_diff.json"
_TAG_PREFIX = "rath_session_"
_TAGGED_SCOPES = ("memory://user", "memory://agent", "memory://resources")

_NAME_CHARS = 40
_NAME_SEPARATORS = re.compile(r"[^\w.-]+")
_HIT_KINDS = ("memories", "resources", "skills")
_HIT_LEVELS: Mapping[object, op_types.Level] = {0: "abstract", 1: "overview", 2: "detail"}

Answer: TypeAlias = Mapping[str, Any]


def _unsupported(message: str) -> OperationFailed:
    return OperationFailed("unsupported", message)


def _is_root(uri: str) -> bool:
    return to_public_uri(uri) == MEMORY_URI_ROOT


# ---------------------------------------------------------------- writing and reading


async def _write(client: VikingClient, op: op_types.MemoryOpWrite) -> results.MemoryResult:
    """Store a note, new or over an older one; with `wait` it can be found from then on."""
    metadata = op.metadata or {}
    if op.mode not in ("replace", "write"):
        raise _unsupported(f"there is no mode {op.mode!r} of writing; use replace or write")
    if notes.EXPIRES_AT in metadata:
        raise _unsupported(
            "OpenViking keeps no time of expiry, so the note would stay for ever; write it without "
            "one and forget it yourself, or use the local memory"
        )
    data = valid_unicode(op.content).encode()
    text = data.decode()
    uri = await _free_place(client, op, data)
    address = client.addresses.note(uri)
    session_id = metadata.get(notes.SESSION_ID)
    options: Answer | None = None
    if session_id is not None:
        options = {"tags": [session_tag(session_id)], "tag_mode": "append"}
    put = partial(client.ask, "write", address, text, options=options)
    # Of a new memory the server takes white space off both ends, of one that is there not.
    is_stripped = has_server_fields(address) and text != text.strip()
    if is_stripped and await _content_at(client, address) is None:
        await _create_or_replace(put, wait=False)
    answer = await _create_or_replace(put, wait=op.wait)
    for name in ("semantic_status", "vector_status") if op.wait else ():
        status = answer.get(name, "complete")
        if status not in ("complete", "skipped"):
            raise VikingError(
                "extraction_failed",
                f"{op.uri!r} is stored, and not found yet: the memory server says {status!r} of "
                f"its {name.partition('_')[0]} processing",
                str(status),
            )
    # Of a memory the server counts the fields too that it adds.
    size = answer.get("written_bytes") if answer.get("context_type") != "memory" else None
    return results.MemoryWriteResult(uri, size if isinstance(size, int) else len(data))


async def _create_or_replace(put: Callable[..., Coroutine[Any, Any, Any]], *, wait: bool) -> Answer:
    # "create" takes the place of an older file without a word, which is what is wanted here;
    # "replace" takes white space off both ends of a memory.
    try:
        answer: Answer = await put(mode="create", wait=wait)
    except VikingError as exc:
        if exc.failure.detail != "AlreadyExistsError":
            raise
        answer = await put(mode="replace", wait=wait)
    return answer


def session_tag(session_id: str) -> str:
    """Return the tag of notes that come from a session; the server folds the case of tags."""
    return f"{_TAG_PREFIX}{sha256(session_id.encode(errors='replace')).hexdigest()[:32]}=1"


async def _free_place(client: VikingClient, op: op_types.MemoryOpWrite, data: bytes) -> str:
    """Return the first place that is free or holds the same note.

    Another process may take it in between; the server knows no condition for a write.
    """
    *first, last = notes.places(op)
    for uri in first:
        content = await _content_at(client, client.addresses.note(uri))
        if content is None or content == data:
            return uri
    return last


async def _read(client: VikingClient, op: op_types.MemoryOpRead) -> results.MemoryResult:
    """Read a note, the file of that very name, or the messages of an archive.

    Any other directory is read only as abstract or overview.
    """
    if _is_root(op.uri):
        raise InvalidUri(f"{op.uri!r} is no note; list it")
    if op.level != "detail":
        text = None
        if not is_scope(op.uri):
            text = await client.ask_optional(op.level, client.addresses.note(op.uri))
        if text is None:
            text = await client.ask(op.level, client.addresses.place(op.uri))
        return results.MemoryReadResult(op.uri, text, op.level)
    data = await _content_at(client, client.addresses.note(op.uri))
    if data is None:
        data = await _file_content(client, op.uri)
    return decoded(op, results.MemoryReadResult(op.uri, data, op.level))


async def _file_content(client: VikingClient, uri: str) -> bytes:
    """Return the content of a file that is no note, or the messages of an archive."""
    address = client.addresses.place(uri)
    try:
        data: bytes = await client.ask("download_bytes", address)
    except VikingError as exc:
        if exc.failure.kind != "invalid_uri":
            raise
        if not _ARCHIVE.fullmatch(address):
            message = f"there is no note at {uri!r}, but a directory; list it, or read it in short"
            raise VikingError("not_found", message, exc.failure.detail) from exc
        data = await client.ask("download_bytes", f"{address}/{_ARCHIVE_MESSAGES}")
    return _strip_fields(data) if has_server_fields(address) else data


async def _content_at(client: VikingClient, address: str) -> bytes | None:
    """Return the content of a file, without the fields of the server; None where there is none."""
    data: bytes | None = await client.ask_optional("download_bytes", address)
    return data if data is None or not has_server_fields(address) else _strip_fields(data)


def _strip_fields(data: bytes) -> bytes:
    """Return the content of a memory, exactly as it was written.

    The server adds an empty line and its fields, and its own way of reading takes white space off.
    """
    start = data.rfind(_FIELDS)
    if start < 0 or not data.endswith(_FIELDS_END):
        return data
    return data[:start].removesuffix(b"\n\n")


# ---------------------------------------------------------------- listing and finding


async def _list(client: VikingClient, op: op_types.MemoryOpList) -> results.MemoryResult:
    """List the entries directly below a URI, sorted by name."""
    if _is_root(op.uri):
        return results.MemoryListResult(_SCOPES)
    raw = await _pages(client, "ls_page", client.addresses.place(op.uri))
    return results.MemoryListResult(_entries(client, raw))


async def _tree(client: VikingClient, op: op_types.MemoryOpTree) -> results.MemoryResult:
    """List the entries below a URI, parents before their children."""
    if not _is_root(op.uri):
        raw = await _subtree(client, client.addresses.place(op.uri), depth=op.depth)
        return results.MemoryListResult(_entries(client, raw))
    entries: list[results.MemoryEntry] = []
    for scope in _SCOPES:
        entries.append(scope)
        if op.depth > 0:
            raw = await _subtree(client, client.addresses.place(scope.uri), depth=op.depth - 1)
            entries += _entries(client, raw)
    # The sessions of a user lie within what the server keeps of the user.
    return results.MemoryListResult(tuple(dict.fromkeys(entries)))


_SCOPES = tuple(
    results.MemoryEntry(scope, f"{MEMORY_URI_PREFIX}{scope}", is_dir=True)
    for scope in sorted(MEMORY_SCOPES)
)


async def _subtree(
    client: VikingClient, address: str, *, depth: int, tags: list[str] | None = None
) -> list[Answer]:
    """Return everything below a directory as the server describes it.

    Args:
        client: The operation.
        address: A directory of the server.
        depth: 0 for the direct children.
        tags: Leaves out files that do not bear them.
    """
    return await _pages(
        client,
        "tree_page",
        address,
        level_limit=depth + 1,
        tags=tags,
        include_tags=tags is not None,
    )


async def _pages(
    client: VikingClient, method: str, address: str, **options: object
) -> list[Answer]:
    entries: list[Answer] = []
    while True:
        page = {"node_limit": _PAGE, "offset": len(entries), "limit": _PAGE}
        answer = await client.ask(method, address, **options, **page)
        entries += answer["result"]
        if not answer["has_more"] or not answer["result"]:
            return entries


def _entries(client: VikingClient, raw: list[Answer]) -> tuple[results.MemoryEntry, ...]:
    entries: list[results.MemoryEntry] = []
    for each in raw:
        is_dir = bool(each.get("isDir"))
        uri = client.addresses.public(str(each["uri"]), is_dir=is_dir)
        size = each.get("size")
        if uri is not None:
            n_bytes = size if isinstance(size, int) and not is_dir else None
            entries.append(results.MemoryEntry(uri.rpartition("/")[2], uri, is_dir, n_bytes))
    return tuple(sorted(entries, key=lambda entry: entry.uri.split("/")))


async def _find(
    client: VikingClient, op: op_types.MemoryOpFind | op_types.MemoryOpSearch
) -> results.MemoryResult:
    """Find by vectors; a search lets the server think about the session of the query first."""
    if not op.query.strip() or op.top_k <= 0:
        return results.MemoryFindResult(())  # the server calls both an error
    target = ""
    if op.target_uri is not None and not _is_root(op.target_uri):
        target = client.addresses.place(op.target_uri)
    method, session = "find", {}
    if isinstance(op, op_types.MemoryOpSearch):
        method, session = "search", {"session_id": op.session_id}
    query = valid_unicode(op.query)
    answer = await client.ask(method, query, **session, target_uri=target, limit=op.top_k)
    hits: list[results.MemoryHit] = []
    for raw in (each for kind in _HIT_KINDS for each in answer.get(kind) or ()):
        uri = client.addresses.public(str(raw["uri"]))
        if uri is not None:  # else of another user
            snippet = raw.get("abstract") or raw.get("overview") or None
            level = _HIT_LEVELS.get(raw.get("level"))
            hits.append(results.MemoryHit(uri, float(raw.get("score") or 0.0), snippet, level))
    hits.sort(key=lambda hit: -hit.score)
    return results.MemoryFindResult(tuple(hits[: op.top_k]))


# ---------------------------------------------------------------- resources


async def _ingest(client: VikingClient, op: op_types.MemoryOpResource) -> results.MemoryResult:
    """Let the server take a file of this machine, or a page that it fetches itself.

    Each gets a directory of its own below the target: the server makes the place that it is told
    equal to the source, and so removes what else stands there.
    """
    target = client.addresses.place(op.target_uri or "memory://resources")
    source, name = await _resource(op.source)
    place = f"{target}/{name}"
    texts = {"reason": op.reason, "instruction": op.instruction}
    options = {key: text for key, text in texts.items() if text} or None
    answer = await client.ask("add_resource", source, to=place, wait=op.wait, options=options)
    if answer.get("status", "success") != "success":
        raise VikingError(
            "extraction_failed",
            f"{op.source!r} was not taken in: {answer.get('errors') or answer['status']}",
            str(answer["status"]),
        )
    root = str(answer.get("root_uri") or answer.get("uri") or place)
    # How many bytes the server made of it, it does not tell.
    return results.MemoryWriteResult(client.addresses.public(root, is_dir=True) or root, 0)


async def _resource(source: str) -> tuple[str, str]:
    """Return the argument of the SDK, and the name of the copy: the same one for the same file."""
    path = await runtime().call_in_worker(partial(file_of, source))
    if path is None:
        stem = PurePosixPath(unquote(urlsplit(source).path)).stem
        digest = sha256(source.encode(errors="replace")).hexdigest()
    else:
        source, stem = str(path.absolute()), path.stem
        digest = await runtime().call_in_worker(partial(_digest_file, path))
    name = _NAME_SEPARATORS.sub("_", stem).strip("._-")[:_NAME_CHARS]
    return source, f"{name or 'resource'}-{digest[:8]}"


def _digest_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except PermissionError as exc:
        raise OperationFailed("unauthorized", str(exc), type(exc).__name__) from exc


# ---------------------------------------------------------------- commits


async def _commit(client: VikingClient, op: op_types.MemoryOpCommit) -> results.MemoryResult:
    """Archive a transcript; with `wait`, until the notes that the server makes can be found."""
    _check_session_id(op.session_id)
    messages = _encode_messages(op, client.addresses)
    archived = await _create_session(client, op)
    if archived is not None:
        return results.MemoryCommitResult(None, archived, -1)
    for start in range(0, len(messages), _MAX_MESSAGES):
        batch = messages[start : start + _MAX_MESSAGES]
        await client.ask("batch_add_messages", op.session_id, batch)
    answer: Answer = await client.ask("commit_session", op.session_id)
    task_id, archive = answer.get("task_id"), answer.get("archive_uri")
    archived = None if archive is None else client.addresses.public(archive, is_dir=True)
    if task_id is None or not op.wait:  # without a task there was nothing to archive
        return results.MemoryCommitResult(task_id, archived, 0 if task_id is None else -1)
    client.progress = (
        f"the transcript is archived as {archived!r}; what the memory server learns from it was "
        f"not ready in time: task {task_id!r} goes on"
    )
    try:
        n_notes = await _extraction(client, task_id)
    except VikingError as exc:
        message = f"the transcript is archived as {archived!r}, but {exc}"
        raise VikingError(exc.failure.kind, message, exc.failure.detail) from exc
    return results.MemoryCommitResult(task_id, archived, n_notes)


def _check_session_id(session_id: str) -> None:
    """Refuse an id that cannot be one segment of an address.

    Raises:
        InvalidUri: It is empty, `.` or `..`, or holds a slash or what the server would change.
    """
    plain = valid_unicode(session_id)
    if plain in {"", ".", ".."} or "/" in plain or escape_name(plain) != session_id:
        raise InvalidUri(f"{session_id!r} cannot name a session; expected one plain name")


async def _create_session(client: VikingClient, op: op_types.MemoryOpCommit) -> str | None:
    """Create the session of a commit; return the archive of a run that was committed before."""
    try:
        await client.ask("create_session", op.session_id)
        return None
    except VikingError as exc:
        if exc.failure.detail != "AlreadyExistsError":
            raise
    if op.run is None:
        return None
    history = f"{client.addresses.place(f'memory://session/{op.session_id}')}/history"
    archives = await _directory_if_there(client, history)
    if archives:
        return client.addresses.public(archives[-1], is_dir=True)
    # Whoever began was cut off: what it sent of the transcript would stand there twice.
    await client.ask("delete_session", op.session_id)
    await client.ask("create_session", op.session_id)
    return None


async def _directory_if_there(client: VikingClient, address: str) -> list[str]:
    """Return the addresses of the entries of a directory, sorted; none where it is missing."""
    try:
        return sorted(str(each["uri"]) for each in await _pages(client, "ls_page", address))
    except VikingError as exc:
        if exc.failure.kind == "not_found":
            return []
        raise


async def _task_end(client: VikingClient, task_id: str) -> Answer | None:
    """Wait until a task has ended and return its description; None for an unknown one."""
    n_polls = 0
    while True:
        task: Answer | None = await client.ask("get_task", task_id)
        if task is None or task.get("status") in _TASK_ENDS:
            return task
        await asyncio.sleep(TASK_WAITS[min(n_polls, len(TASK_WAITS) - 1)])
        n_polls += 1


async def _extraction(client: VikingClient, task_id: str) -> int:
    """Wait until the server has made notes of a transcript, and return how many."""
    task = await _task_end(client, task_id)
    if task is None:
        message = f"the memory server does not know its task {task_id!r} any more"
        raise VikingError("extraction_failed", message)
    if task["status"] != "completed":
        message = f"learning from it {task['status']}: {task.get('error') or 'no reason was given'}"
        raise VikingError("extraction_failed", message, str(task["status"]))
    # The task ends before the vectors of its notes are made.
    await client.ask("wait_processed")
    result: Answer = task.get("result") or {}
    counts: Answer = result.get("memories_extracted") or {}
    return sum(n for name, n in counts.items() if isinstance(n, int) and name != "total")


def _encode_messages(op: op_types.MemoryOpCommit, addresses: Addresses) -> list[dict[str, Any]]:
    """Return the messages of a transcript, the last of the user with the notes that were used.

    Raises:
        InvalidUri: A used note has no address.
    """
    messages = [_encode_message(message) for message in op.messages]
    context: list[Any] = []
    for uri in op.used_uris:
        address = addresses.note(uri)
        kind = "memory" if has_server_fields(address) else "resource"
        part = {"type": "context", "uri": address, "context_type": kind, "abstract": ""}
        context.append(part)
    if context and messages:
        # What was recalled stood before the last thing that the user said.
        users = [each for each in messages if each["role"] == "user"]
        carrier = (users or messages)[-1]
        parts = carrier.get("parts") or [_text_part(carrier.pop("content", None))]
        carrier["parts"] = [*parts, *context]
    return messages


def _encode_message(message: object) -> dict[str, Any]:
    def read(name: str) -> object:
        if isinstance(message, Mapping):
            return cast("Mapping[str, object]", message).get(name)
        return getattr(message, name, None)

    role, content, parts = map(read, ("role", "content", "parts"))
    encoded: dict[str, Any] = {"role": str(role or "user")}
    if isinstance(parts, Sequence) and parts and not isinstance(parts, str):
        parts = cast("Sequence[object]", parts)
        encoded["parts"] = [
            each if isinstance(each, Mapping) else _text_part(each) for each in parts
        ]
    else:
        encoded["content"] = _text_part(content)["text"]
    return encoded


def _text_part(content: object) -> dict[str, str]:
    text = ""
    if isinstance(content, str):
        text = valid_unicode(content)
    elif content is not None:
        text = json.dumps(content, ensure_ascii=False, default=str)
    return {"type": "text", "text": text}


# ---------------------------------------------------------------- forgetting


async def _forget(client: VikingClient, op: op_types.MemoryOpForget) -> results.MemoryResult:
    """Remove a note, a directory, or a session with the notes that come from it alone."""
    if op.session_id is not None:
        return await _forget_session(client, op.session_id)
    uri = op.uri or ""
    place = client.addresses.place(uri)
    if is_scope(uri):
        raise _unsupported(f"{uri!r} is a whole scope; forget the directories below it")
    for address in (client.addresses.note(uri), place):
        entry = await client.ask_optional("stat", address)
        if entry is None:
            continue
        is_dir = bool(entry.get("isDir"))
        removed = [uri]
        if is_dir and not op.recursive:
            raise _unsupported(f"{uri!r} is a directory; recursive=True forgets all below it")
        if is_dir:
            below = _entries(client, await _subtree(client, address, depth=_ALL_LEVELS))
            removed = [entry.uri for entry in below if not entry.is_dir] or removed
        await _remove(client, address, recursive=is_dir)
        return results.MemoryForgetResult(tuple(sorted(removed)))
    raise OperationFailed("not_found", f"there is nothing at {uri!r}")


async def _remove(client: VikingClient, address: str, *, recursive: bool = False) -> None:
    # One that is gone meanwhile is no error to the server.
    await client.ask("rm", address, recursive=recursive, wait=True)


async def _forget_session(client: VikingClient, session_id: str) -> results.MemoryResult:
    _check_session_id(session_id)
    uri = f"memory://session/{session_id}"
    place = client.addresses.place(uri)
    # A commit that is at work would write notes, and the session itself, after they are gone.
    for task in await client.ask("list_tasks", resource_id=session_id, limit=_MAX_TASKS):
        await _task_end(client, str(task["task_id"]))
    # Tags of a note are known once it is processed.
    await client.ask("wait_processed")
    is_there = await client.ask_optional("stat", place) is not None
    changes: Mapping[str, _NoteChange] = {}
    if is_there:
        changes = await _note_changes(client, place)
    own = [address for address, each in changes.items() if await _is_own(client, address, each)]
    own += await _tagged_notes(client, session_tag(session_id))
    for address in own:
        await _remove(client, address)
    removed = {client.addresses.public(address) or address for address in own}
    if is_there:
        await client.ask_optional("delete_session", session_id)
        # What a late commit left of it is no session to the server any more.
        if await client.ask_optional("stat", place) is not None:
            await _remove(client, place, recursive=True)
        removed.add(uri)
    return results.MemoryForgetResult(tuple(sorted(removed)))


@dataclass(slots=True)
class _NoteChange:
    """The changes of one session to a note."""

    is_new: bool = False
    n_changes: int = 0
    content: str = ""


async def _note_changes(client: VikingClient, place: str) -> Mapping[str, _NoteChange]:
    """Return the notes that a session made or changed, as its archives tell."""
    history = f"{place}/history"
    if await client.ask_optional("stat", history) is None:
        return {}
    changes: dict[str, _NoteChange] = {}
    for archive in await _directory_if_there(client, history):
        diff = await _content_at(client, f"{archive}/{_ARCHIVE_DIFF}")
        operations: Answer = (json.loads(diff).get("operations") if diff else None) or {}
        for name in ("adds", "updates"):
            raw: list[Answer] = operations.get(name) or []
            for change in raw:
                note = changes.setdefault(str(change["uri"]), _NoteChange())
                note.is_new = note.is_new or name == "adds"
                note.n_changes += 1
                note.content = str(change.get("after") or change.get("content") or "")
    return changes


async def _is_own(client: VikingClient, address: str, change: _NoteChange) -> bool:
    """Return whether a note is as this session alone made it: nobody else changed it since."""
    data: bytes | None = None
    if change.is_new:
        data = await client.ask_optional("download_bytes", address)
    if data is None:
        return False
    content = _strip_fields(data)
    fields = data[len(content) :]
    start, end = fields.find(b"{"), fields.rfind(b"}")
    try:
        version = json.loads(fields[start : end + 1])["version"]
    except (ValueError, KeyError):
        return False
    is_same = content.decode(errors="replace").strip() == change.content.strip()
    return is_same and bool(version == change.n_changes)


async def _tagged_notes(client: VikingClient, tag: str) -> list[str]:
    """Return the notes that were written with the tag of this session and of no other."""
    addresses: list[str] = []
    for scope in _TAGGED_SCOPES:
        root = client.addresses.place(scope)
        for raw in await _subtree(client, root, depth=_ALL_LEVELS, tags=[tag]):
            if [each for each in raw.get("tags") or () if each.startswith(_TAG_PREFIX)] == [tag]:
                addresses.append(str(raw["uri"]))
    return addresses


OPERATIONS: Mapping[
    type[op_types.MemoryOp],
    Callable[[VikingClient, Any], Coroutine[Any, Any, results.MemoryResult]],
] = {
    op_types.MemoryOpWrite: _write,
    op_types.MemoryOpRead: _read,
    op_types.MemoryOpList: _list,
    op_types.MemoryOpTree: _tree,
    op_types.MemoryOpFind: _find,
    op_types.MemoryOpSearch: _find,
    op_types.MemoryOpResource: _ingest,
    op_types.MemoryOpCommit: _commit,
    op_types.MemoryOpForget: _forget,
}
