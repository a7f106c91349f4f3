"""What LiteLLM does to the program that loads it: nothing that a user would see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import chat_replies
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer
from tests.support.litellm import needs_litellm

pytestmark = [needs_litellm, pytest.mark.timeout(90)]

# Every name that is looked up, and every address that is connected to, is written to stdout.
WATCH = """
import socket
look_up, connect = socket.getaddrinfo, socket.socket.connect
def told_look_up(host, *args, **kwargs):
    print("looked up", host)
    return look_up(host, *args, **kwargs)
def told_connect(self, address):
    if address[0] != "127.0.0.1":
        print("connected to", address)
    return connect(self, address)
socket.getaddrinfo, socket.socket.connect = told_look_up, told_connect
"""

CALL = """
import os, sys
from rath.llm import Provider, RathLLMChatRequest, RathLLMMessage, chat_client_for
from rath.errors import ProviderError
provider = Provider(provider_kind="litellm", model="openai/m", base_url=sys.argv[1],
                    api_key=sys.argv[2], retry_max_attempts=1)
client = chat_client_for(provider)
request = RathLLMChatRequest(messages=(RathLLMMessage("user", "hi"),))
assert client.complete(request).primary_choice.message.content == "hello"
assert "".join(d.content_delta or "" for d in client.complete_stream(request)) == "hello"
try:
    client.complete(request)
except ProviderError as error:
    assert error.status == 401
else:
    raise AssertionError("no error")
assert "FROM_DOTENV" not in os.environ
"""


def run(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "dev", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=80, check=False)


def test_it_writes_nothing_and_calls_nobody_else(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("FROM_DOTENV=1\n")
    with ChatServer() as server:
        server.queue(
            chat_replies.completion("hello"),
            chat_replies.text_stream("hel", "lo"),
            chat_replies.status_error(401, "no"),
        )
        done = run(WATCH + CALL, server.base_url, KEY, cwd=tmp_path)
    noise = [line for line in done.stderr.splitlines() if not is_of_debug_mode(line)]
    assert (done.returncode, done.stdout, noise) == (0, "", [])


def is_of_debug_mode(line: str) -> bool:
    """Python's own development mode names callbacks that hold the loop of user code for long."""
    return line.startswith("Executing <")


def test_a_library_that_the_program_has_set_up_stays_so(tmp_path: Path) -> None:
    code = """
import sys, types
mine = types.ModuleType("litellm")
mine.telemetry = "mine"
sys.modules["litellm"] = mine
from rath.llm.litellm.connection import litellm
assert litellm is mine
assert vars(mine)["telemetry"] == "mine"
assert "suppress_debug_info" not in vars(mine)
"""
    done = run(code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_adapter_itself_does_not_import_it(tmp_path: Path) -> None:
    code = """
import sys
import rath.llm
from rath.llm import Provider, chat_client_for
chat_client_for(Provider(provider_kind="litellm", model="openai/m", api_key="k"))
assert rath.llm.RathLiteLLMChatClient is not None
assert "litellm" not in sys.modules
"""
    done = run(code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
