"""Every Python block of the README and of the documentation runs, in the order of its page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rath import autosave
from rath.session import Session
from tests.support.chat_replies import Reply, completion, text_stream, tool_call
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.embedding_replies import embeddings

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANSWER = "Done."


def pages() -> list[Path]:
    """Markdown files whose Python blocks a reader may copy."""
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "source").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page, padded so that a traceback names the page's own lines."""
    text = page.read_text("utf-8")
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match.group(1)
        for match in BLOCK.finditer(text)
    ]


def answer(request: CapturedRequest) -> Reply:
    """The same words to every request, streamed if asked for, and the same vector to every text."""
    if request.path.endswith("/embeddings"):
        return embeddings(*([1.0] for _ in request.json()["input"]))
    return text_stream(ANSWER) if request.json().get("stream") else completion(ANSWER)


@pytest.fixture
def _model_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The environment that a reader with a key has, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    with ChatServer(answer) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "test-key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "test-model")
        yield


@pytest.mark.usefixtures("_model_server")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages() if blocks(page)],
)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    # Ends what a page switches on for the rest of its process.
    with autosave(False):
        for block in blocks(page):
            exec(compile(block, page, "exec"), names)
    for value in list(names.values()):
        if isinstance(value, Session):
            value.synchronize()


def test_the_program_of_the_readme_does_its_work_when_it_is_run(tmp_path: Path) -> None:
    program, *_ = blocks(ROOT / "README.md")
    script = tmp_path / "program.py"
    script.write_text(program, "utf-8")
    home = tmp_path / "home"
    with ChatServer() as server:
        server.queue(
            completion(tool_calls=(tool_call("word_count", {"text": "OpenRath makes"}),)),
            completion("It has 2 words."),
            completion("Two words."),
        )
        environ = {
            "OPENAI_API_KEY": "test-key",
            "OPENAI_BASE_URL": server.base_url,
            "OPENRATH_HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        ended = subprocess.run(
            [sys.executable, script.name],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = [line for line in ended.stderr.splitlines() if " waits for " not in line]
        assert (ended.returncode, ended.stdout, said) == (0, "", [])
        asked = [request.json()["messages"][-1]["content"] for request in server.calls]
    assert len(asked) == 3
    assert '"words": 2' in asked[1]
    [archive] = (home / "memory").rglob("messages.json")
    assert "It has 2 words." in archive.read_text("utf-8")


def test_a_failing_block_names_the_line_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("words\n\n```python\nx = 1\nraise ValueError\n```\n")
    with pytest.raises(ValueError, match=r"^$") as caught:
        exec(compile(blocks(page)[0], page, "exec"), {})
    assert caught.traceback[-1].lineno == 4
