"""Images in results of tools, where a protocol has only text there: behind the last result.

assistant  calls a, b                      assistant  calls a, b
tool       result of a, image      -->     tool       result of a
tool       result of b                     tool       result of b
                                           user       "Image 1 of the result of ...", image
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rath.llm.chat_request import RathLLMMessage

__all__ = ["images_apart", "images_of_result"]


def images_apart(messages: Iterable[RathLLMMessage]) -> list[RathLLMMessage]:
    """Return messages of which only those of the user have images.

    The images of a round of tool calls stand in one message of the user behind its last result.
    """
    result: list[RathLLMMessage] = []
    pending: list[RathLLMMessage] = []
    calls: Sequence[Mapping[str, Any]] = ()
    for message in messages:
        if message.role != "tool":
            result += _joined(pending)
            pending = []
            calls = message.tool_calls or ()
            result.append(message)
        elif message.images:
            pending.append(images_of_result(message, calls))
            result.append(replace(message, images=None))
        else:
            result.append(message)
    return result + _joined(pending)


def images_of_result(result: RathLLMMessage, calls: Sequence[Mapping[str, Any]]) -> RathLLMMessage:
    """Return a message of the user that shows the images of a result.

    Args:
        result: A "tool" message with images.
        calls: The calls of the turn that it answers, which name their tools.
    """
    images = result.images or ()
    tool = _tool_of(result.tool_call_id, calls)
    source = f"call {result.tool_call_id!r}" + (f" of tool {tool!r}" if tool else "")
    captions = tuple(
        f"Image {number} of {len(images)} in the result of {source}: {image.label}"
        for number, image in enumerate(images, start=1)
    )
    return RathLLMMessage("user", "\n".join(captions), images=images, captions=captions)


def _tool_of(call_id: str | None, calls: Sequence[Mapping[str, Any]]) -> str:
    for call in calls:
        if call.get("id") == call_id:
            function: Mapping[str, Any] = call.get("function") or {}
            return str(function.get("name") or "")
    return ""


def _joined(parts: Sequence[RathLLMMessage]) -> list[RathLLMMessage]:
    if not parts:
        return []
    return [
        RathLLMMessage(
            "user",
            "\n".join(each.content or "" for each in parts),
            images=tuple(image for each in parts for image in each.images or ()),
            captions=tuple(caption for each in parts for caption in each.captions or ()),
        )
    ]
