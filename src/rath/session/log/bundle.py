"""Sessions with all that they came from in one portable file: a zip of logs and blobs.

    manifest.json     {"version": 2, "created_at": ..., "note": ..., "sessions": [id, ...],
                       "logs": {id: {"finished": ..., "sha256": ...}, ...},
                       "blobs": [sha256, ...]}
    logs/<id>.jsonl   a log as it is stored; what a session came from stands before it
    blobs/<sha256>    content that the logs name

Members are stored as they are, so that what is read is never larger than the file. The comment of
the zip is the sha256, in hex, of all bytes before it: whatever is changed or cut off is noticed.
Files of version 1, which were lines of JSON, are read as well.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from functools import partial
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.files import atomic_write_bytes
from rath.errors import PersistenceError, SessionDamaged
from rath.session.events import AgentRows, Event, PendingResult, Row
from rath.session.log.json_lines import checked_sum
from rath.session.log.paths import os_errors
from rath.session.log.reader import read_lines
from rath.session.log.store import (
    SessionLog,
    SessionStore,
    StoredLog,
)
from rath.session.record import Operation

VERSION = 2

_MANIFEST = "manifest.json"
_SUM_BYTES = 64
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time of a zip: the same sessions are the same file."""

_UNREADABLE = (zipfile.BadZipFile, struct.error, ValueError, TypeError, LookupError,
               AttributeError, OSError, EOFError, RuntimeError, PersistenceError)  # fmt: skip
"""What the parsers of damaged or forged bytes raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Sessions, all that they came from, and the contents that their logs name."""

    sessions: tuple[UUID, ...]
    """The packed sessions, in order; the others are their ancestors."""

    logs: Mapping[UUID, StoredLog]
    """Logs, ancestors before their descendants."""

    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    """Contents by their sha256."""

    note: str = ""
    """The writer, such as "cassette"."""

    lacks: tuple[UUID, ...] = field(default=(), compare=False)
    """Ancestors that the store did not hold, where it was packed just now."""

    created_at: datetime = field(default_factory=partial(datetime.now, UTC))


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of an import."""

    added: tuple[UUID, ...]
    """Sessions that the store did not hold."""

    grown: tuple[UUID, ...]
    """Sessions of which it held a beginning."""

    kept: tuple[UUID, ...]
    """Sessions that it held as they are in the bundle, or with more than that."""


def write_bundle(bundle: Bundle, path: Path) -> int:
    """Write a bundle to a file, at once or not at all, and return its size in bytes.

    A file that is there is replaced; only its owner may read it.

    Raises:
        PersistenceError: It cannot be written.
    """
    data = to_bytes(bundle)
    with os_errors(path, "cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path, data, mode=0o600)
    return len(data)


def read_bundle(path: Path) -> Bundle:
    """Return the content of a bundle file, once all of it was checked.

    Raises:
        PersistenceError: It is not there or cannot be read, or was written by a newer version.
        SessionDamaged: It is not what was written.
    """
    with os_errors(path, "cannot be read"), contextlib.suppress(FileNotFoundError):
        return from_bytes(path.read_bytes(), str(path))
    raise PersistenceError(f"bundle not found: {path}")


def to_bytes(bundle: Bundle) -> bytes:
    """Return the file of a bundle; equal bundles give equal bytes."""
    manifest = {
        "version": VERSION,
        "created_at": bundle.created_at.isoformat(),
        "note": bundle.note,
        "sessions": list(map(str, bundle.sessions)),
        "logs": {
            str(session): {"finished": log.is_finished, "sha256": sha256(log.data).hexdigest()}
            for session, log in bundle.logs.items()
        },
        "blobs": list(bundle.blobs),
    }
    members = {_MANIFEST: json.dumps(manifest, indent=1).encode()}
    members |= {f"logs/{session}.jsonl": log.data for session, log in bundle.logs.items()}
    members |= {f"blobs/{digest}": content for digest, content in bundle.blobs.items()}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name, _EPOCH), content)
        file.comment = b"0" * _SUM_BYTES
    data = target.getvalue()[:-_SUM_BYTES]
    return data + sha256(data).hexdigest().encode()


def from_bytes(data: bytes, where: str) -> Bundle:
    """Return the bundle that `data` holds; see `read_bundle`."""
    if data.startswith(b"{"):
        return _from_lines(data, where)
    if sha256(data[:-_SUM_BYTES]).hexdigest().encode() != data[-_SUM_BYTES:]:
        problem = "it is no bundle of sessions, or was changed or cut off since it was written"
        raise SessionDamaged(problem, where=where)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = file.infolist()
            is_stored = all(each.compress_type == zipfile.ZIP_STORED for each in members)
            if not is_stored or sum(each.file_size for each in members) > len(data):
                raise ValueError("its members are compressed, or larger than the file")
            manifest = json.loads(file.read(_MANIFEST))
            version = manifest["version"]
            if version == VERSION:
                return _from_zip(file, manifest, where)
    except _UNREADABLE as exc:
        problem = str(exc) or type(exc).__name__
        raise SessionDamaged(f"it is no bundle of sessions: {problem}", where=where) from exc
    raise PersistenceError(
        f"{where}: the bundle has version {version!r}; this version of rath reads {VERSION} and 1"
    )


def pack(
    store: SessionStore,
    sessions: Sequence[UUID],
    *,
    note: str = "",
    report: Callable[[int, int], None] | None = None,
) -> Bundle:
    """Return sessions, and all of the store that they came from, as a bundle; blocks.

    What agents did inside the tool calls of these is taken along, as far as the store holds it.

    Args:
        store: Where they are.
        sessions: Which ones.
        note: What the bundle is.
        report: Is told how many logs were read, and of how many that are known by then.

    Raises:
        PersistenceError: One of them is not there or cannot be read. What a session came from
            and the store does not hold is left out and named, as it is when the session is loaded.
        SessionDamaged: A log is not what was written.
    """
    references_of: dict[UUID, _References] = {}
    blobs: dict[str, bytes] = {}
    todo = list(dict.fromkeys(sessions))
    for session in todo:  # It grows meanwhile.
        log = store.read(session)
        if log is None and session in sessions:
            raise PersistenceError(f"{store.where} holds no session {session}")
        if log is None:
            continue
        references = references_of[session] = _references(log)
        for digest in references.blobs - blobs.keys():
            content = store.blob(digest)
            if content is not None:
                blobs[digest] = content
        todo += dict.fromkeys({*references.above, *references.inside} - {*todo})
        if report is not None:
            report(len(references_of), len(todo))
    inside = {each for references in references_of.values() for each in references.inside}
    try:
        sorter = TopologicalSorter({each: references_of[each].above for each in references_of})
        logs = {
            each: references_of[each].log for each in sorter.static_order() if each in references_of
        }
    except CycleError as exc:
        problem = f"session {exc.args[1][0]} builds on a session that builds on itself"
        raise SessionDamaged(problem, where=store.where) from exc
    lacks = tuple(each for each in todo if each not in references_of and each not in inside)
    return Bundle(sessions=tuple(sessions), logs=logs, blobs=blobs, note=note, lacks=lacks)


def import_bundle(
    bundle: Bundle, store: SessionStore, *, report: Callable[[int, int], None] | None = None
) -> Imported:
    """Write the sessions of a bundle to a store, what they came from first; blocks.

    Everything is looked at before anything is written; what is there is never overwritten.

    Args:
        bundle: What is imported.
        store: Where to.
        report: Is told how many sessions are done, and of how many.

    Raises:
        PersistenceError: The store holds something else under one of the ids, or cannot be
            written. What was written by then stays.
        SessionDamaged: A log of the bundle is not what was written.
    """
    plans = [(log, *_plan(bundle, log, store)) for log in bundle.logs.values()]
    done: dict[str, list[UUID]] = {"added": [], "grown": [], "kept": []}
    for n_done, (log, blobs, stored) in enumerate(plans, start=1):
        if stored is None or len(stored.data) < len(log.data):
            _write(log, blobs, stored, store)
            done["added" if stored is None else "grown"].append(log.session)
        else:
            done["kept"].append(log.session)
        if report is not None:
            report(n_done, len(plans))
    return Imported(**{name: tuple(sessions) for name, sessions in done.items()})


class BundleStore(SessionStore):
    """Gives what a bundle holds, from memory; it can only be read.

    Args:
        bundle: What it holds.
        where: Its file, for messages.
    """

    name = "bundle"

    def __init__(self, bundle: Bundle, where: str) -> None:
        self._bundle = bundle
        self.where = where

    def create(self, session: UUID) -> SessionLog:
        raise self._refusal()

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        raise self._refusal()

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        raise self._refusal()

    def delete(self, session: UUID) -> bool:
        raise self._refusal()

    def restore(self, session: UUID) -> bool:
        raise self._refusal()

    def read(self, session: UUID) -> StoredLog | None:
        return self._bundle.logs.get(session)

    def stamps(self) -> Mapping[UUID, str]:
        return {session: str(len(log.data)) for session, log in self._bundle.logs.items()}

    def is_being_written(self, session: UUID) -> bool:
        return False

    def empty_trash(self) -> int:
        return 0

    def blob(self, digest: str) -> bytes | None:
        return self._bundle.blobs.get(digest)

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        log = self._bundle.logs.get(session)
        if log is not None:
            yield log.data[start:]

    def _refusal(self) -> PersistenceError:
        return PersistenceError(
            f"{self.where} is a bundle, which is only read; import it into a store to go on there"
        )


def _from_zip(file: zipfile.ZipFile, manifest: Any, where: str) -> Bundle:
    logs: dict[UUID, StoredLog] = {}
    for name, log_entry in manifest["logs"].items():
        session, member = UUID(name), f"logs/{name}.jsonl"
        data = _check_digest(file.read(member), log_entry["sha256"])
        logs[session] = StoredLog(session, data, log_entry["finished"] is True, f"{where}/{member}")
    blobs = {each: _check_digest(file.read(f"blobs/{each}"), each) for each in manifest["blobs"]}
    if len(file.infolist()) != 1 + len(logs) + len(blobs):
        raise ValueError("its members are not those of the manifest")
    return _bundle(manifest, logs, blobs)


def _from_lines(data: bytes, where: str) -> Bundle:
    """Read a file of version 1: lines with chained sums, and between them the logs.

    {"record_type": "bundle", "bundle_version": 1, "sessions": [...], ..., "sum": "..."}
    {"record_type": "log", "session": "...", "size": ..., "sha256": "...", ..., "sum": "..."}
    ...the lines of that log, as they stand in its file...
    {"record_type": "blob", "sha256": "...", "data": "<base64>", "sum": "..."}
    {"record_type": "end", "n_logs": ..., "n_blobs": ..., "sum": "..."}
    """
    head: dict[str, Any] = {}
    logs: dict[UUID, StoredLog] = {}
    blobs: dict[str, bytes] = {}
    at, number, after = 0, 0, ""
    try:
        while True:
            number += 1
            end = data.index(b"\n", at)
            after = checked_sum(data[at:end], after)
            record, at = json.loads(data[at:end]), end + 1
            kind = record["record_type"]
            if (kind == "bundle") == bool(head):
                raise ValueError(
                    "it is no bundle of sessions; a line of type 'bundle' is its first"
                )
            if kind == "bundle" and record["bundle_version"] == 1:
                head = record
            elif kind == "log":
                session, size = UUID(record["session"]), record["size"]
                content = _check_digest(data[at : at + size], record["sha256"])
                place = f"{where}:{number + 1}"
                logs[session] = StoredLog(session, content, record["finished"] is True, place)
                at, number = at + len(content), number + content.count(b"\n")
            elif kind == "blob":
                content = base64.b64decode(record["data"], validate=True)
                blobs[record["sha256"]] = _check_digest(content, record["sha256"])
            elif kind == "end":
                break
            else:
                raise ValueError(f"unknown record_type {kind!r}, or version")
        if at != len(data) or (record["n_logs"], record["n_blobs"]) != (len(logs), len(blobs)):
            raise ValueError("the end does not fit what stands before it, or something follows")
        return _bundle(head, logs, blobs)
    except _UNREADABLE as exc:
        raise SessionDamaged(f"malformed line: {exc}", where=where, line=number) from exc


def _bundle(head: Any, logs: Mapping[UUID, StoredLog], blobs: Mapping[str, bytes]) -> Bundle:
    sessions = tuple(UUID(each) for each in head["sessions"])
    for session in sessions:
        if session not in logs:
            raise ValueError(f"session {session} is named and not there")
    created_at = datetime.fromisoformat(head["created_at"])
    note = str(head.get("note", ""))
    return Bundle(sessions=sessions, logs=logs, blobs=blobs, note=note, created_at=created_at)


def _check_digest(content: bytes, digest: object) -> bytes:
    actual = sha256(content).hexdigest()
    if actual != digest:
        raise ValueError(f"content has sha256 {actual}, expected {digest!r}; it was cut or changed")
    return content


@dataclass(frozen=True, slots=True)
class _References:
    """The logs and blobs that a log needs."""

    log: StoredLog
    """Its whole lines."""

    blobs: frozenset[str]
    """Digests of the contents that it names and a store should have."""

    above: tuple[UUID, ...]
    """The sessions that it came from or takes ranges of."""

    inside: tuple[UUID, ...]
    """The sessions that runs inside its tool calls made."""


def _references(log: StoredLog) -> _References:
    """Return the references of a log.

    Raises:
        SessionDamaged: It is not what was written, or is that of another session.
    """
    named: set[str] = set()

    def take(digest: str, size: int, is_stored: bool) -> Blob:
        if is_stored:
            named.add(digest)
        return Blob(digest, size)

    read = read_lines(log.data, log.where, is_finished=log.is_finished, make_blob=take)
    header = read.header
    if header.session != log.session:
        problem = f"is the log of session {header.session}, not of {log.session}"
        raise SessionDamaged(problem, where=log.where, line=1)
    named.update(digest for line in read.lines for digest in _images(line))
    parts = (part.session for part in (*header.rows, *header.entries))
    # Version 1 stored no parents: files that bear their names say nothing of them.
    above = dict.fromkeys((*header.parents, *parts)) if read.reader.takes_more else ()
    sessions = dict.fromkeys(each.session for each in read.lines if isinstance(each, Operation))
    inside = tuple(each for each in sessions if each != log.session and each not in above)
    log_prefix = StoredLog(log.session, log.data[: read.reader.n_good], log.is_finished, log.where)
    return _References(log_prefix, frozenset(named), tuple(above), inside)


def _images(line: Event) -> list[str]:
    match line:
        case Row(_, row) | PendingResult(shown=row) if row is not None:
            rows = [row]
        case AgentRows(_, rows_of_head):
            rows = list(rows_of_head)
        case _:
            return []
    return [image.blob.digest for row in rows for image in row.images]


def _plan(
    bundle: Bundle, log: StoredLog, store: SessionStore
) -> tuple[list[Blob], StoredLog | None]:
    """Return the contents that a log names, and what the store holds of it."""
    contents = (bundle.blobs.get(digest) for digest in sorted(_references(log).blobs))
    blobs = [Blob.from_bytes(each, keep=len(each)) for each in contents if each is not None]
    stored = store.read(log.session)
    if stored is not None:
        shared = min(len(stored.data), len(log.data))
        if stored.data[:shared] != log.data[:shared]:
            raise PersistenceError(
                f"{store.where} holds another session {log.session} than the bundle; nothing was "
                "imported. Import into another store, or delete that session first"
            )
        if shared < len(log.data):
            advice = "nothing was imported; wait for its run to end"
            store.require_free(log.session, advice=advice)
    return blobs, stored


def _write(
    log: StoredLog, blobs: Sequence[Blob], stored: StoredLog | None, store: SessionStore
) -> None:
    size = 0 if stored is None else len(stored.data)
    rest = log.data[size:]
    if stored is not None and stored.is_finished and log.is_finished:
        if not store.append_to_finished(log.session, size, rest, blobs=blobs):
            raise PersistenceError(
                f"session {log.session} was changed in {store.where} meanwhile; import again"
            )
        return
    is_new = stored is None
    target = store.create(log.session) if is_new else store.reopen(log.session, size, size=size)
    try:
        target.append(rest, blobs=blobs, durable=True)
        if log.is_finished:
            target.finish()
    finally:
        target.abandon()
