"""Bytes to bundles; nothing of a damaged one is believed."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from rath.errors import PersistenceError, SessionDamaged
from rath.session.persistence.chain import checked_sum
from rath.session.persistence.store.abc import StoredLog

__all__ = ["VERSION", "Bundle", "from_bytes", "read_bundle"]

VERSION = 1
Json = dict[str, Any]
T = TypeVar("T")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Sessions, all that they came from, and the contents that their logs name."""

    sessions: tuple[UUID, ...]
    """Those that were packed, in order; the others are what they came from."""

    logs: Mapping[UUID, StoredLog]
    """What a session came from stands before it."""

    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    """Contents by their sha256."""

    note: str = ""
    """What wrote it, such as "cassette"."""

    lacks: tuple[UUID, ...] = field(default=(), compare=False)
    """What a session came from and the store did not hold, where it was packed just now."""

    created_at: datetime = field(default_factory=_now)


def read_bundle(path: Path) -> Bundle:
    """Return what a bundle file holds, all of it believed.

    Raises:
        PersistenceError: It is not there or cannot be read, or was written by a newer version.
        SessionDamaged: It is not what was written; names the line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PersistenceError(f"bundle not found: {path}") from None
    except OSError as exc:
        raise PersistenceError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    return from_bytes(data, str(path))


def from_bytes(data: bytes, where: str) -> Bundle:
    """Return the bundle that `data` holds; see `read_bundle`."""
    return _Reader(data, where).read()


class _Reader:
    """Steps through a file; where something is wrong it knows the line."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        self._where = where
        self._at = 0
        self._number = 0
        self._sum = ""
        self._logs: dict[UUID, StoredLog] = {}
        self._blobs: dict[str, bytes] = {}

    def read(self) -> Bundle:
        head = self._record()
        if head.get("record_type") != "bundle":
            raise self._damaged("it is no bundle of sessions; expected a line of type 'bundle'")
        version = head.get("bundle_version")
        if version != VERSION:
            raise PersistenceError(
                f"{self._where}:1: the bundle has version {version!r}; this version of rath reads "
                f"{VERSION}"
            )
        sessions = self._parsed(lambda: tuple(UUID(text) for text in head["sessions"]))
        created_at = self._parsed(lambda: datetime.fromisoformat(head["created_at"]))
        while (record := self._record())["record_type"] != "end":
            self._take(record)
        counts = (record.get("n_logs"), record.get("n_blobs"))
        if counts != (len(self._logs), len(self._blobs)) or self._at != len(self._data):
            raise self._damaged("the end does not fit what stands before it, or something follows")
        missing = [session for session in sessions if session not in self._logs]
        if missing:
            raise self._damaged(f"session {missing[0]} is named and not there")
        note = str(head.get("note", ""))
        return Bundle(
            sessions=sessions, logs=self._logs, blobs=self._blobs, note=note, created_at=created_at
        )

    def _take(self, record: Json) -> None:
        match record["record_type"]:
            case "log":
                self._take_log(record)
            case "blob":
                content = self._parsed(lambda: base64.b64decode(record["data"], validate=True))
                self._require_digest(content, record.get("sha256"))
                self._blobs[str(record["sha256"])] = content
            case other:
                raise self._damaged(f"unknown record_type {other!r}")

    def _take_log(self, record: Json) -> None:
        session = self._parsed(lambda: UUID(record["session"]))
        size = record.get("size")
        if not isinstance(size, int) or not 0 <= size <= len(self._data) - self._at:
            raise self._damaged("it is shorter than it says; it was cut off")
        content = self._data[self._at : self._at + size]
        self._require_digest(content, record.get("sha256"))
        is_finished = record.get("finished") is True
        where = f"{self._where}:{self._number + 1}"
        self._logs[session] = StoredLog(session, content, is_finished, where)
        self._at += size
        self._number += content.count(b"\n")

    def _record(self) -> Json:
        """Return the next line that is not part of a log."""
        end = self._data.find(b"\n", self._at)
        self._number += 1
        if end < 0:
            raise self._damaged("the file ends before its last line; it was cut off")
        line = self._data[self._at : end]
        self._at = end + 1
        try:
            self._sum = checked_sum(line, self._sum)
            record: object = json.loads(line)
        except (PersistenceError, ValueError, RecursionError) as exc:
            raise self._damaged(str(exc)) from exc
        if not isinstance(record, dict) or not isinstance(
            cast("Json", record).get("record_type"), str
        ):
            raise self._damaged("the line is no record")
        return cast("Json", record)

    def _require_digest(self, content: bytes, digest: object) -> None:
        found = sha256(content).hexdigest()
        if found != digest:
            raise self._damaged(f"content has sha256 {found}, and the line says {digest!r}")

    def _parsed(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (KeyError, TypeError, ValueError, binascii.Error) as exc:
            raise self._damaged(f"malformed line: {exc!r}") from exc

    def _damaged(self, problem: str) -> SessionDamaged:
        return SessionDamaged(problem, where=self._where, line=self._number)
