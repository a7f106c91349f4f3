"""What was said in a session, as a model is shown it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from rath.memory.adapters.local.files.documents import message_text


@dataclass(frozen=True, slots=True)
class Said:
    """A message that a model is shown."""

    number: int
    """Its index among the messages of the transcript."""
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said in a session, as it was archived."""

    messages: tuple[Said, ...]
    """What users and assistants said; other messages, and empty ones, are left out."""
    rows: tuple[int, ...] = ()
    """For each message of the archive, its row in the session; none where that is not known."""

    def rows_of(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows of messages; none where they are not known."""
        return tuple(self.rows[number] for number in numbers if number < len(self.rows))


def transcript_of(messages: object, rows: tuple[int, ...]) -> Transcript:
    """Return what was said in archived messages, whatever else stands in their place."""
    return Transcript(tuple(_said(messages)), rows)


def _said(messages: object) -> Iterator[Said]:
    listed = cast("list[object]", messages) if isinstance(messages, list) else []
    for number, message in enumerate(listed):
        text = message_text(message)
        if text.strip():
            role = cast("Mapping[str, object]", message)["role"]
            yield Said(number, str(role), text)
