"""The programs on the official OpenAI SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openai import AsyncOpenAI, OpenAI
from openai.types.chat import (
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageParam,
    ChatCompletionToolUnionParam,
)

from benchmarks.by_hand.add_tool import DESCRIPTION, PARAMETERS, QUESTION, SYSTEM, add

MODEL = "fake"
_TOOLS: list[ChatCompletionToolUnionParam] = [
    {
        "type": "function",
        "function": {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS},
    }
]


def open_client(base_url: str) -> OpenAI:
    """A client as the other programs use it."""
    return OpenAI(base_url=base_url, api_key="x")


def run_tools(client: OpenAI) -> str:
    """Call the model and its tools until it answers with text."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    while True:
        completion = client.chat.completions.create(model=MODEL, messages=messages, tools=_TOOLS)
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        # A plain dict costs the SDK less in every later round than its own message object does.
        messages.append(message.model_dump(exclude_none=True))  # type: ignore[arg-type]  # same keys
        for call in message.tool_calls:
            assert isinstance(call, ChatCompletionMessageFunctionToolCall)
            result = add(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def arun_tools(client: AsyncOpenAI) -> str:
    """`run_tools` on the asynchronous client."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    while True:
        completion = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=_TOOLS
        )
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))  # type: ignore[arg-type]  # same keys
        for call in message.tool_calls:
            assert isinstance(call, ChatCompletionMessageFunctionToolCall)
            result = add(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def ask_once(client: OpenAI, question: str) -> str:
    """One question, one answer, on the synchronous client."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    completion = client.chat.completions.create(model=MODEL, messages=messages)
    return completion.choices[0].message.content or ""


def fold_stream(client: OpenAI, on_text: Callable[[str], object]) -> str:
    """Join a streamed answer, showing each piece as it comes."""
    parts: list[str] = []
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices and (text := chunk.choices[0].delta.content):
            on_text(text)
            parts.append(text)
    return "".join(parts)


async def ask(client: AsyncOpenAI, question: str) -> str:
    """One question, one answer."""
    completion = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}]
    )
    return completion.choices[0].message.content or ""


async def fan_out(client: AsyncOpenAI, n_calls: int) -> list[str]:
    """Ask `n_calls` questions at once."""
    return await asyncio.gather(*(ask(client, f"question {i}") for i in range(n_calls)))
