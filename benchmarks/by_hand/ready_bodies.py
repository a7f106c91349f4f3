"""The floor of a round: posting a body that is encoded already, and reading the answer's bytes."""

from __future__ import annotations

import json
import time

import httpx
import httpx2

from benchmarks.by_hand.add_tool import DESCRIPTION, PARAMETERS, QUESTION, SYSTEM, add


def collect(base_url: str) -> list[bytes]:
    """The bodies that a run of the tool loop sends, one a round."""
    tool = {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": tool}]
    bodies: list[bytes] = []
    with httpx.Client(base_url=base_url, headers={"content-type": "application/json"}) as client:
        while True:
            bodies.append(json.dumps({"messages": messages, "model": "x", "tools": tools}).encode())
            answer = client.post("chat/completions", content=bodies[-1]).json()
            message = answer["choices"][0]["message"]
            if not message.get("tool_calls"):
                return bodies
            messages.append(message)
            for call in message["tool_calls"]:
                result = add(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def post_all(client: httpx2.AsyncClient, bodies: list[bytes]) -> list[float]:
    """Post each body on an open connection, nothing encoded and nothing parsed.

    Returns:
        The CPU clock of this process before each post and after the last, in seconds.
    """
    clock = [time.process_time()]
    for body in bodies:
        await client.post("chat/completions", content=body)
        clock.append(time.process_time())
    return clock
