"""Which OpenViking server an example uses: one that runs, or one that it starts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from rath.memory import MemoryStoreSpec

_DIMENSIONS = 256

_HOW = """skipped: no OpenViking server is named.
  one that runs:        OPENVIKING_URL=http://host:1933 (and OPENVIKING_API_KEY)
  one to be started:    OPENRATH_OPENVIKING_SERVER=/path/to/openviking-server
  the server's program: pip install openviking, in an environment of its own (AGPL-3.0)"""


@contextmanager
def memory_server_from_env(directory: Path) -> Generator[MemoryStoreSpec | None]:
    """Give the spec of a store on the server that the environment names, and say which one it is.

    Where it names none, say how to name one and give None.

    Args:
        directory: What a server that is started keeps its files in.
    """
    url = os.environ.get("OPENVIKING_URL")
    if url:
        print("server: the one of OPENVIKING_URL")
        key = os.environ.get("OPENVIKING_API_KEY", "")
        user = os.environ.get("OPENVIKING_USER")
        yield MemoryStoreSpec(user_id=user, options={"url": url, "api_key": key})
    elif os.environ.get("OPENRATH_OPENVIKING_SERVER"):
        print("server: one of our own, whose vectors only count words (it takes some seconds)")
        with _models() as address:
            options = {"path": str(directory), "config": _config(address)}
            yield MemoryStoreSpec(options=options)
    else:
        print(_HOW)
        yield None


def _config(address: str) -> Mapping[str, Any]:
    model = {"provider": "openai", "model": "example", "api_key": "unused", "api_base": address}
    dense = {**model, "dimension": _DIMENSIONS, "input": "text", "encoding_format": "float"}
    return {"embedding": {"dense": dense}, "vlm": model}


class _Models(BaseHTTPRequestHandler):
    """Answers as an endpoint of OpenAI's protocol, without any model."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer: dict[str, Any] = {
            "object": "list",
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }
        if self.path.endswith("/embeddings"):
            texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
            answer["data"] = [
                {"object": "embedding", "index": index, "embedding": _counted_words(text)}
                for index, text in enumerate(texts)
            ]
        else:
            message = {"role": "assistant", "content": "A note."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer |= {"id": "1", "object": "chat.completion", "created": 0, "model": "example"}
            answer |= {"choices": [choice]}
            answer["usage"]["completion_tokens"] = 1
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


def _counted_words(text: str) -> list[float]:
    vector = [0.0] * _DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        vector[hashlib.sha256(word.encode()).digest()[0]] += 1.0
    return vector


@contextmanager
def _models() -> Generator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Models) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
