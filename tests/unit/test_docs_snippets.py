"""Every Python block of the README and of the documentation runs, in the order of its page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import deque
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
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPT = re.compile(r"<!-- answers: ((?:(?!-->).)*) -->\s*\Z", re.DOTALL)
ANSWER = "Done."
Turn = str | dict[str, dict[str, Any]]
MAX_WORDS = 1500
LISTS = {ROOT / "docs" / "source" / "reference" / "error_messages.md"}
"""Pages in which a reader looks up one row."""


def pages() -> list[Path]:
    """Markdown files whose Python blocks a reader may copy."""
    return [*READMES, *sorted((ROOT / "docs" / "source").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page, padded so that a traceback names the page's own lines."""
    text = page.read_text("utf-8")
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match.group(1)
        for match in BLOCK.finditer(text)
    ]


class Model:
    """Answers requests: with what a page scripts, then with the same words to each.

    A comment before a block, `<!-- answers: [...] -->`, is a JSON list: a text is an answer, an
    object a tool call for each of its members.
    """

    def __init__(self) -> None:
        self.script: deque[Turn] = deque()

    def __call__(self, request: CapturedRequest) -> Reply:
        if request.path.endswith("/embeddings"):
            return embeddings(*([1.0] for _ in request.json()["input"]))
        turn = self.script.popleft() if self.script else ANSWER
        if isinstance(turn, dict):
            calls = (tool_call(*each, id=f"call_{n}") for n, each in enumerate(turn.items(), 1))
            return completion(tool_calls=tuple(calls))
        return text_stream(turn) if request.json().get("stream") else completion(turn)


def scripted_blocks(page: Path) -> Iterator[tuple[str, list[Turn]]]:
    """The Python blocks of a page, each with the answers that the page scripts for it."""
    text = page.read_text("utf-8")
    for block, match in zip(blocks(page), BLOCK.finditer(text), strict=True):
        script = SCRIPT.search(text, 0, match.start())
        yield block, json.loads(script[1]) if script else []


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Model]:
    """The environment that a reader with a key has, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    model = Model()
    with ChatServer(model) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "test-key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "test-model")
        yield model


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages() if blocks(page)],
)
def test_the_blocks_of_a_page_run(page: Path, model: Model) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    # Ends what a page switches on for the rest of its process.
    with autosave(False):
        for block, script in scripted_blocks(page):
            model.script.extend(script)
            exec(compile(block, page, "exec", dont_inherit=True), names)
    for value in list(names.values()):
        if isinstance(value, Session):
            value.synchronize()
    assert not model.script


def prose(text: str) -> str:
    """A page without the comments that only tests read."""
    return re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    "page", pages()[len(READMES) :], ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_page_is_short_and_starts_with_code(page: Path) -> None:
    text = prose(page.read_text("utf-8"))
    n_words = sum(1 for word in text.split() if re.search(r"\w", word))
    assert n_words <= MAX_WORDS or page in LISTS
    # The landing pages have one sentence before it.
    assert re.match(r"# .+\n\n(:::.+\n.+\n:::\n\n)?```", text)


def test_the_program_of_the_readme_does_its_work_when_it_is_run(tmp_path: Path) -> None:
    (program,) = (each for each in blocks(ROOT / "README.md") if "word_count" in each)
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
    assert asked[1] == "2"
    [archive] = (home / "memory").rglob("messages.json")
    assert "It has 2 words." in archive.read_text("utf-8")


def test_a_failing_block_names_the_line_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("words\n\n```python\nx = 1\nraise ValueError\n```\n")
    with pytest.raises(ValueError, match=r"^$") as caught:
        exec(compile(blocks(page)[0], page, "exec"), {})
    assert caught.traceback[-1].lineno == 4
