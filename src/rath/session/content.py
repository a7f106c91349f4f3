"""What a row says, typed: the closed union behind the payload mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rath.llm.image import Image


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for."""

    id: str
    name: str
    arguments: str
    """Arguments as the model wrote them: JSON text, perhaps invalid, perhaps empty."""

    type: str = "function"


@dataclass(frozen=True, slots=True)
class SystemText:
    """Instructions of the agent."""

    text: str


@dataclass(frozen=True, slots=True)
class UserText:
    """What a person, or a program in their place, said and showed."""

    text: str
    images: tuple[Image, ...] = ()

    @property
    def described(self) -> str:
        """The text, and before it a label for each image."""
        return " ".join([*(image.label for image in self.images), self.text])


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """What the model said and which tools it called."""

    text: str | None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFeedback:
    """What a tool call came to, as the model reads it."""

    call_id: str
    name: str
    body: str
    images: tuple[Image, ...] = ()

    @property
    def described(self) -> str:
        """The text, and before it a label for each image."""
        return " ".join([*(image.label for image in self.images), self.body])


@dataclass(frozen=True, slots=True)
class Opaque:
    """A row of a kind that this version does not know: kept, and skipped in requests."""

    payload: Mapping[str, Any]


Content = SystemText | UserText | AssistantTurn | ToolFeedback | Opaque
