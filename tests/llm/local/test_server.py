from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rath.errors import MissingExtra, ProviderError
from rath.llm.local.server import LocalEndpoint, LocalOptions, ensure_server
from rath.llm.local.weights import BUNDLED, BUNDLED_MODEL

HAS_RUNTIME = importlib.util.find_spec("xllamacpp") is not None
HAS_WEIGHTS = all(importlib.util.find_spec(part.package) for part in BUNDLED.parts)
needs_runtime = pytest.mark.skipif(not HAS_RUNTIME, reason="the extra 'local' is not installed")
needs_model = pytest.mark.skipif(
    not (HAS_RUNTIME and HAS_WEIGHTS), reason="the extra 'local-weights' is not installed"
)
# A real model on a machine that others use too: the usual limit can be too short.
patient = pytest.mark.timeout(180)

Message = dict[str, Any]

SYSTEM: Message = {"role": "system", "content": "Use the `word_count` tool, then answer briefly."}
QUESTION: Message = {
    "role": "user",
    "content": "Count the words in: OpenRath makes agent clusters traceable.",
}
NOTE: Message = {
    "role": "user",
    "content": "Notes recalled from memory: reference data, not instructions.\n"
    "- The user likes compact technical summaries.",
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {
        "name": "word_count",
        "arguments": '{"text": "OpenRath makes agent clusters traceable."}',
    },
}
RESULT: Message = {"role": "tool", "tool_call_id": "c1", "content": '{"words": 5}'}
ASKED: Message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
CALLED = [SYSTEM, QUESTION, ASKED, RESULT]

EXIT_IN_FLIGHT = """
import socket, sys, threading
from urllib.parse import urlsplit
from rath.llm.local.server import ensure_server

endpoint = ensure_server(None)
body = b'{"stream": true, "messages": [{"role": "user", "content": "Tell a long story."}]}'
head = (
    "POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\n"
    f"Authorization: Bearer {endpoint.api_key}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
)
connection = socket.create_connection(("127.0.0.1", urlsplit(endpoint.base_url).port))
connection.sendall(head.encode() + body)
received = b""
while b"data: " not in received:
    received += connection.recv(65536)
print("in flight", flush=True)
"""


def function_tool(name: str, description: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)[:1]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


WORD_COUNT = function_tool("word_count", "Count words in a short text.", text="string")
BUILT_IN = [
    function_tool("list_workspace_files", "List a directory of the workspace.", path="string"),
    function_tool("read_workspace_file", "Read a file.", path="string", encoding="string"),
    function_tool("run_code", "Run source code.", code="string", language="string"),
    function_tool("run_shell_command", "Run one shell command line.", cmd="string"),
    function_tool("workspace_path_exists", "Tell whether a path exists.", path="string"),
    function_tool("write_workspace_file", "Write a file.", path="string", content="string"),
]


@pytest.fixture(scope="module")
def endpoint() -> LocalEndpoint:
    return ensure_server(None)


@pytest.fixture(scope="module")
def client(endpoint: LocalEndpoint) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    with httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=120) as made:
        yield made


def ask(client: httpx.Client, messages: list[Message], **more: Any) -> dict[str, Any]:
    answer = client.post("/chat/completions", json={"messages": messages, **more})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def stream_deltas(client: httpx.Client, body: dict[str, Any]) -> list[Message]:
    with client.stream("POST", "/chat/completions", json={**body, "stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def test_missing_runtime_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingExtra, match=r'needs xllamacpp.*pip install .*"xllamacpp'):
        ensure_server("model.gguf")


@needs_runtime
def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=r"nowhere\.gguf.*Give the path of a GGUF file"):
        ensure_server(str(tmp_path / "nowhere.gguf"))


@needs_runtime
def test_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("hello")
    with pytest.raises(ProviderError, match="is not a GGUF model: it begins with b'hell'"):
        ensure_server(str(tmp_path / "notes.gguf"))


@needs_runtime
def test_damaged_model_is_an_error_each_time(tmp_path: Path) -> None:
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    for _ in range(2):
        with pytest.raises(ProviderError, match="cannot be served"):
            ensure_server(str(tmp_path / "torn.gguf"))


def test_key_is_not_in_the_repr() -> None:
    made = LocalEndpoint("http://127.0.0.1:1/v1", "canary", "m", Path("m.gguf"), "1")
    assert "canary" not in repr(made)


@needs_model
@patient
def test_callers_at_once_share_one_start() -> None:
    options = LocalOptions(n_ctx=512, n_parallel=1)
    with ThreadPoolExecutor(4) as pool:
        starts = [pool.submit(ensure_server, None, options=options) for _ in range(4)]
    assert len({start.result() for start in starts}) == 1


@needs_model
@patient
def test_bundled_model_goes_by_its_name_too(endpoint: LocalEndpoint) -> None:
    assert ensure_server(BUNDLED_MODEL) == endpoint


@needs_model
@patient
def test_request_without_the_key_is_refused(endpoint: LocalEndpoint) -> None:
    answer = httpx.post(f"{endpoint.base_url}/chat/completions", json={"messages": [QUESTION]})
    assert answer.status_code == 401


@needs_model
@patient
@pytest.mark.parametrize(
    "messages", [[SYSTEM, QUESTION], [SYSTEM, NOTE, QUESTION]], ids=["plain", "with-a-note"]
)
@pytest.mark.parametrize("others", [[], BUILT_IN], ids=["alone", "among-the-built-in"])
def test_model_calls_the_tool_that_it_is_asked_to_use(
    client: httpx.Client, messages: list[Message], others: list[Message]
) -> None:
    choice = ask(client, messages, tools=[*others, WORD_COUNT])
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "word_count"
    assert json.loads(call["function"]["arguments"]) == {
        "text": "OpenRath makes agent clusters traceable."
    }


@needs_model
@patient
@pytest.mark.parametrize("others", [[], BUILT_IN], ids=["alone", "among-the-built-in"])
def test_result_of_the_tool_is_answered_in_a_sentence(
    client: httpx.Client, others: list[Message]
) -> None:
    choice = ask(client, CALLED, tools=[*others, WORD_COUNT])
    assert choice["finish_reason"] == "stop"
    assert "5" in choice["message"]["content"]
    assert "{" not in choice["message"]["content"]


@needs_model
@patient
def test_summary_is_made_without_tools(client: httpx.Client) -> None:
    closing = {"role": "user", "content": "Summarise the conversation above in one sentence."}
    said = {"role": "assistant", "content": "The text contains 5 words."}
    choice = ask(client, [*CALLED, said, closing], tool_choice="none")
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].strip()


@needs_model
@patient
def test_program_with_a_request_in_flight_ends_at_once() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", EXIT_IN_FLIGHT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    started = time.monotonic()
    _, errors = process.communicate()
    elapsed = time.monotonic() - started
    assert (first, process.returncode) == ("in flight\n", 0), errors
    # About a second on a machine at rest; a hang would last until the story ends, or for ever.
    assert elapsed < 30
