"""Chat completions of a pretended model, with all that the types of OpenAI's SDK name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support import chat_replies
from tests.support.chat_replies import CREATED, Reply
from tests.support.served_model.model import Line, Prompt, Said, Tool, id_of

Json = dict[str, Any]

_ENVELOPE = {"created": CREATED, "service_tier": "default", "system_fingerprint": "fp_44709d6fcb"}


def read(body: Mapping[str, Any]) -> Prompt:
    """Return what a request asks."""
    messages: list[Json] = body["messages"]
    wanted: Json = body.get("response_format") or {}
    schema: Json = wanted.get("json_schema") or {}
    stop = body.get("stop") or ()
    return Prompt(
        model=body["model"],
        system=tuple(_text(each) for each in messages if each["role"] in {"system", "developer"}),
        lines=tuple(line for message in messages for line in _lines(message)),
        tools=tuple(
            Tool(each["function"]["name"], each["function"].get("parameters") or {})
            for each in body.get("tools") or ()
        ),
        choice=_choice(body.get("tool_choice")),
        schema=schema.get("schema"),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        streaming=bool(body.get("stream")),
    )


def whole(prompt: Prompt, said: Said) -> Reply:
    """Answer at once."""
    return chat_replies.json_body(completion(prompt, said))


def completion(prompt: Prompt, said: Said) -> Json:
    """Return a whole answer."""
    message: Json = {
        "role": "assistant",
        "content": said.text or None,
        "refusal": None,
        "annotations": [],
    }
    if said.calls:
        message["tool_calls"] = _calls(prompt, said)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(said)}
    envelope = _envelope(prompt, "chat.completion")
    return {**envelope, "choices": [choice], "usage": _usage(prompt, said)}


def streamed(prompt: Prompt, said: Said) -> Reply:
    """Answer word by word; the last chunk has the token counts, as it was asked for."""
    chunks = [_chunk(prompt, delta) for delta in _deltas(prompt, said)]
    last: Json = {**_chunk(prompt, {}), "usage": None}
    last["choices"][0]["finish_reason"] = _finish(said)
    counts: Json = {**_envelope(prompt, "chat.completion.chunk"), "choices": []}
    return chat_replies.event_stream(*chunks, last, {**counts, "usage": _usage(prompt, said)})


def refused(status: int, message: str, code: str | None = None) -> Reply:
    """Refuse."""
    return chat_replies.status_error(status, message, code=code)


def _lines(message: Json) -> Iterator[Line]:
    match message["role"]:
        case "user":
            yield Line("user", _text(message))
        case "tool":
            yield Line("result", _text(message))
        case "assistant":
            if text := _text(message):
                yield Line("assistant", text)
            for call in message.get("tool_calls") or ():
                function = call["function"]
                given = json.loads(function["arguments"] or "{}")
                yield Line("call", json.dumps(given, sort_keys=True), function["name"])
        case _:
            pass


def _text(message: Json) -> str:
    content: str | list[Json] | None = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part['type']}]")) for part in content)
    return content or ""


def _choice(given: str | Json | None) -> str:
    if isinstance(given, dict):
        return str(given["function"]["name"])
    return given or "auto"


def _envelope(prompt: Prompt, kind: str) -> Json:
    return {"id": f"chatcmpl-{id_of(prompt)}", "object": kind, "model": prompt.model, **_ENVELOPE}


def _chunk(prompt: Prompt, delta: Json) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    padding = {"usage": None, "obfuscation": "x" * 6}
    return {**_envelope(prompt, "chat.completion.chunk"), "choices": [choice], **padding}


def _deltas(prompt: Prompt, said: Said) -> Iterator[Json]:
    yield {"role": "assistant", "content": "" if said.text else None, "refusal": None}
    for word in re.findall(r"\S*\s*", said.text)[:-1]:
        yield {"content": word}
    for index, call in enumerate(_calls(prompt, said)):
        function: Json = call["function"]
        begun = {**call, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [{"index": index, **begun}]}
        for piece in re.findall(r"[^,]+,?", function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _calls(prompt: Prompt, said: Said) -> list[Json]:
    return [
        chat_replies.tool_call(name, given, id=f"call_{id_of(prompt, index)}")
        for index, (name, given) in enumerate(said.calls)
    ]


def _finish(said: Said) -> str:
    return "stop" if said.finish == "stop_sequence" else said.finish


def _usage(prompt: Prompt, said: Said) -> Json:
    return chat_replies.usage(
        prompt.n_tokens,
        said.n_tokens,
        prompt_tokens_details={"cached_tokens": 0, "audio_tokens": 0},
        completion_tokens_details={
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    )
