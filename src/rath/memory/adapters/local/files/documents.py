"""What stands in the files that can be found: notes as they are, transcripts as what was said."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rath.memory.adapters.local.files.regular import opened
from rath.memory.adapters.local.finding.terms import index_terms
from rath.memory.adapters.local.indexing.index import UNSETTLED, Stamp
from rath.memory.adapters.local.layout import NOTE_SUFFIX, Kind

MAX_NOTE_BYTES = 262_144
"""Only the first part of a longer note can be found."""

MAX_TRANSCRIPT_BYTES = 16_777_216
"""Longer transcripts cannot be found."""

_PROBE_BYTES = 8000
"""As much as git looks at."""

MAX_SNIPPET_CHARS = 200
_SAID_BY = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Document:
    """A file as it was read: its state and its texts, one for a note, one for each message."""

    stamp: Stamp
    texts: tuple[str, ...]

    def terms(self) -> list[str]:
        """Return the terms under which it is found."""
        terms: list[str] = []
        room = MAX_NOTE_BYTES
        for text in self.texts:
            terms += index_terms(text[:room])
            room -= len(text)
            if room <= 0:
                break
        return terms

    def snippet(self, terms: list[str]) -> str:
        """Return the beginning of the text that has most of the terms."""
        wanted = set(terms)
        texts = self.texts or ("",)
        best = texts[0]
        if len(texts) > 1:
            best = max(texts, key=lambda text: len(wanted.intersection(index_terms(text))))
        body = best.strip()
        return body if len(body) <= MAX_SNIPPET_CHARS else body[:MAX_SNIPPET_CHARS] + "..."


def read_document(path: Path, kind: Kind) -> Document | None:
    """Return what a file holds now, or None when it is gone or is no regular file.

    Bytes that are not UTF-8 are replaced. What cannot be read, a transcript that is not JSON, and
    binary data without the suffix of a note have no texts: so one bad file hides no other.
    """
    try:
        with opened(path) as file:
            if file is None:
                return None
            status = os.fstat(file.fileno())
            data = file.read(MAX_NOTE_BYTES if kind == "note" else MAX_TRANSCRIPT_BYTES)
    except OSError:
        return _unreadable(path)
    stamp = Stamp(status.st_mtime_ns, status.st_size)
    if kind == "note":
        is_found = path.name.endswith(NOTE_SUFFIX) or not is_binary(data)
        return Document(stamp, (note_text(data),) if is_found else ())
    return Document(stamp, tuple(_said(data.decode("utf-8", errors="replace"))))


def is_binary(data: bytes) -> bool:
    """Return whether data is no text, told by a NUL byte near its beginning, as git tells it."""
    return b"\0" in data[:_PROBE_BYTES]


def note_text(data: bytes) -> str:
    """Return the part of a note that can be found."""
    return data[:MAX_NOTE_BYTES].decode("utf-8", errors="replace")


def _unreadable(path: Path) -> Document | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return Document(Stamp(status.st_mtime_ns, UNSETTLED), ())


def _said(transcript: str) -> list[str]:
    try:
        messages: object = json.loads(transcript)
    except (ValueError, RecursionError):
        return []
    if not isinstance(messages, list):
        return []
    found = [message_text(message) for message in cast("list[object]", messages)]
    return [text for text in found if text]


def message_text(message: object) -> str:
    """Return what a user or an assistant said in a message; nothing for all others."""
    if not isinstance(message, Mapping):
        return ""
    fields = cast("Mapping[str, object]", message)
    content = fields.get("content")
    if fields.get("role") not in _SAID_BY:
        return ""
    if isinstance(content, str):
        return content
    for parts in (content, fields.get("parts")):
        if isinstance(parts, list):
            return "\n".join(filter(None, map(_part_text, cast("list[object]", parts))))
    return ""


def _part_text(part: object) -> str:
    text = cast("Mapping[str, object]", part).get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else ""
