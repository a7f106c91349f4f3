"""What a notebook shows of sessions."""

from __future__ import annotations

import base64
import re
import threading

import pytest

import rath
from rath import flow
from rath.errors import RathError
from rath.llm import RathLLMChatRequest
from rath.session import ChunkTable, Session, user_text_chunk
from rath.session.view import notebook
from rath.testing import ScriptedClient, Turn, tool_call

HOSTILE = "</td><script>alert(1)</script>"


def shown(session: Session) -> str:
    return notebook.session_html(session)


def texts_of(html: str) -> str:
    """Return what a reader sees: all but the elements."""
    return re.sub(r"<[^>]*>", " ", html)


def test_rows_outcome_tokens_and_model_are_shown() -> None:
    agent = flow.Agent("Be brief.", ScriptedClient(["Hello!"]).provider)
    out = agent(Session.from_user_message("Hi")).synchronize()
    text = texts_of(shown(out))
    for part in ("Completed", "2 rows", "tokens", "Hi", "Hello!", "scripted", "run_session_loop"):
        assert part in text


def test_ipython_is_given_the_picture() -> None:
    session = Session.from_user_message("Hi")
    assert getattr(session, "_repr_html_")() == shown(session)  # noqa: B009  # of IPython


def test_an_error_that_is_no_valid_text_can_be_sent() -> None:
    agent = flow.Agent("", ScriptedClient([RuntimeError("bad \ud800 name")]).provider)
    out = agent(Session.from_user_message("Hi"))
    with pytest.raises(RuntimeError):
        out.synchronize()
    assert "bad \ufffd name" in shown(out).encode().decode()


def test_texts_stay_texts() -> None:
    agent = flow.Agent("Be brief.", ScriptedClient([HOSTILE]).provider)
    out = agent(Session.from_user_message(HOSTILE)).synchronize()
    html = shown(out)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 2


def test_calls_and_results_are_shown() -> None:
    @rath.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    turns: list[Turn] = [tool_call("add", {"a": 1, "b": 2}), "3"]
    agent = flow.Agent("Add.", ScriptedClient(turns).provider, tools=[add])
    text = texts_of(shown(agent(Session.from_user_message("1 + 2")).synchronize()))
    assert "→ add(" in text
    assert "← add: 3" in text
    assert "done" in text


def test_a_pending_session_is_shown_without_waiting() -> None:
    may_answer = threading.Event()

    def answer(_: RathLLMChatRequest) -> str:
        may_answer.wait()
        return "late"

    out = flow.Agent("", ScriptedClient([answer]).provider)(Session.from_user_message("Hi"))
    try:
        text = texts_of(shown(out))
        assert "pending" in text
        assert "its run goes on" in text
    finally:
        may_answer.set()
    assert out.text() == "late"
    assert "late" in texts_of(shown(out))


def test_a_failed_session_says_why() -> None:
    out = flow.Agent("", ScriptedClient([]).provider)(Session.from_user_message("Hi"))
    with pytest.raises((RuntimeError, RathError)):
        out.synchronize()
    assert "failed: RuntimeError" in texts_of(shown(out))


def test_of_a_long_session_the_ends_are_shown() -> None:
    n_rows = 3 * notebook.EDGE_ROWS
    session = Session(ChunkTable(tuple(user_text_chunk(f"row {n}.") for n in range(n_rows))))
    text = texts_of(shown(session))
    assert f"… {notebook.EDGE_ROWS} more rows" in text
    assert "row 0." in text
    assert f"row {n_rows - 1}." in text
    assert f"row {notebook.EDGE_ROWS}." not in text


def test_a_long_text_is_cut() -> None:
    text = texts_of(shown(Session.from_user_message("x" * 10_000)))
    assert "x" * notebook.MAX_CHARS + " …" in text
    assert "x" * (notebook.MAX_CHARS + 1) not in text


def test_the_link_is_the_explorer() -> None:
    html = shown(Session.from_user_message("Hi there"))
    (encoded,) = re.findall(r'href="data:text/html;base64,([^"]*)"', html)
    page = base64.b64decode(encoded).decode()
    assert page.startswith("<!doctype html>")
    assert "Hi there" in page


def test_a_large_explorer_is_named_and_not_put_into_the_notebook() -> None:
    texts = (f"{n} " * 100 for n in range(2_000))
    session = Session(ChunkTable(tuple(map(user_text_chunk, texts))))
    html = shown(session)
    assert len(html) < notebook.MAX_PAGE_BYTES
    assert f"rath view {session.id} --open" in html
