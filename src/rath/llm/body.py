"""The body of a request that is sent again and again and grows at the end of its messages.

    {"messages":[ m1 , m2 , ...    head: grows, hashed once, never rewritten
    ],"model":"...","tools":[...]} tail: one for plain calls, one for streams

What was encoded stays; a digest is a copy of the running hash plus the tail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol

from rath.llm.chat_request import RathLLMMessage
from rath.llm.encode import encode_message, to_json
from rath.llm.result_images import images_of_result

__all__ = ["Body", "BodyWriter", "ListWriter", "MessageEncoder", "Tail"]

MessageEncoder = Callable[[RathLLMMessage], Mapping[str, Any]]
"""Turns a message into a vendor's form."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a body, which does not change while messages are added."""

    content: bytes
    parameters: Mapping[str, Any]
    """All that the body says beside messages and tools."""


class BodyWriter(Protocol):
    """How a vendor writes a body; `tools_digest` is None without tools."""

    @property
    def tools_digest(self) -> str | None: ...

    def add(self, message: RathLLMMessage) -> bytes:
        """Return what one more message adds behind all that was returned before."""
        ...

    def tail(self, *, streaming: bool) -> Tail:
        """Return what ends the body as it stands."""
        ...


class ListWriter:
    """Writes `{"messages":[...],` and then the parameters.

    The images of a round of tool calls stand in one message of the user behind its last result.

    Args:
        parameters: Gives the parameters of a plain or a streamed call, tools left out.
        tools: The tool schemas in the vendor's form, if any.
        encode: Turns a message into the vendor's form; where it has captions, its content is a
            list.
    """

    def __init__(
        self,
        parameters: Callable[[bool], Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        encode: MessageEncoder = encode_message,
    ) -> None:
        self._parameters = parameters
        self._tools = None if tools is None else to_json(tools)
        self._encode = encode
        self._before = b'{"messages":['
        self._tails: dict[bool, Tail] = {}
        self._calls: Sequence[Mapping[str, Any]] = ()
        """Those of the turn whose results come."""

        self._held: dict[str, Any] | None = None
        """The message with the images of these results, which has to wait for the last one."""

        self._ending: bytes | None = b""
        """That message as it is written, None while it is not."""

        self.tools_digest = None if self._tools is None else sha256(self._tools).hexdigest()

    def add(self, message: RathLLMMessage) -> bytes:
        if message.role == "tool":
            if message.images:
                self._hold(images_of_result(message, self._calls))
                message = replace(message, images=None)
            return self._write(message)
        released = self._written_images()
        self._held, self._ending = None, b""
        self._calls = message.tool_calls or ()
        return released + self._write(message)

    def tail(self, *, streaming: bool) -> Tail:
        if streaming not in self._tails:
            self._tails[streaming] = self._write_tail(streaming)
        made = self._tails[streaming]
        # Without a message the list was not opened yet.
        before = self._written_images() if self._before == b"," else self._before
        return Tail(before + made.content, made.parameters) if before else made

    def _write(self, message: RathLLMMessage) -> bytes:
        before, self._before = self._before, b","
        return before + to_json(self._encode(message))

    def _hold(self, shown: RathLLMMessage) -> None:
        # Encoded now: it takes long, and who adds messages knows where to do what takes long.
        encoded = dict(self._encode(shown))
        if self._held is not None:
            encoded["content"] = [*self._held["content"], *encoded["content"]]
        self._held, self._ending = encoded, None

    def _written_images(self) -> bytes:
        if self._ending is None:
            self._ending = b"," + to_json(self._held)
        return self._ending

    def _write_tail(self, streaming: bool) -> Tail:
        parameters = self._parameters(streaming)
        content = b"]"
        if self._tools is not None:
            content += b',"tools":' + self._tools
        if parameters:
            content += b"," + to_json(parameters)[1:-1]
        return Tail(content + b"}", parameters)


class Body:
    """A growing body; O(new messages) to extend, O(bytes) to give out."""

    __slots__ = ("_hash", "_head", "_writer", "n_images")

    def __init__(self, writer: BodyWriter) -> None:
        self._writer = writer
        self._head = bytearray()
        self._hash = sha256()
        self.n_images = 0
        """How many images its messages show."""

    @property
    def tools_digest(self) -> str | None:
        """sha256 of the tool schemas as sent, None without tools."""
        return self._writer.tools_digest

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        """Encode further messages."""
        for message in messages:
            added = self._writer.add(message)
            self._head += added
            self._hash.update(added)
            self.n_images += len(message.images or ())

    def content(self, *, streaming: bool) -> bytes:
        """Return the whole body as it would be sent now."""
        return b"".join((self._head, self._writer.tail(streaming=streaming).content))

    def digest(self, *, streaming: bool) -> str:
        """Return the sha256 of `content`, without looking at the messages again."""
        running = self._hash.copy()
        running.update(self._writer.tail(streaming=streaming).content)
        return running.hexdigest()

    def parameters(self, *, streaming: bool) -> Mapping[str, Any]:
        """Return what the body says beside messages and tools."""
        return self._writer.tail(streaming=streaming).parameters
