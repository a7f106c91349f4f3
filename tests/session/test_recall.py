"""Recalled notes fit into a budget, and whatever a recall gives, the run goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.session import (
    ChunkRow,
    Session,
    assistant_turn_chunk,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.recall import MAX_CONTEXT_TOKENS, Recall, n_tokens, recall_context, within
from rath.session.record import RecalledNote
from tests.support.api import context_message
from tests.support.fences import quoted_notes
from tests.support.images import picture

OPENING = n_tokens(context_message(()).content or "")
ASKED = Session.from_user_message("What do I like?")
notes = st.builds(
    RecalledNote,
    st.sampled_from(["", "memory://user/a", "memory://user/b c"]),
    st.text(max_size=400) | st.integers(0, 3000).map("茶 [X]<".__mul__),
    st.none() | st.floats(),
    st.integers(0, 3),
)


def recalled(recall: Recall, session: Session = ASKED) -> tuple[RecalledNote, ...]:
    """The notes of a run, which stand in its message as they are."""
    context = runtime().run(lambda: recall_context(recall, session), label="a test")
    if context is None:
        return ()
    assert context.message.role == "user"
    assert quoted_notes(context.message.content or "") == [note.shown for note in context.notes]
    return context.notes


def giving(given_notes: Any) -> Recall:
    """A recall that gives something else than its type asks for."""

    def recall(_: Session) -> Any:
        return given_notes

    return recall


@pytest.mark.parametrize(
    ("text", "n"),
    [("", 0), ("a", 1), ("abc", 1), ("abcd", 2), ("чай", 3), ("茶茶", 3), ("😀", 2), ("aü", 2)],
)
def test_tokens_are_estimated(text: str, n: int) -> None:
    assert n_tokens(text) == n


@given(given_notes=st.lists(notes, max_size=6), max_tokens=st.integers(1, 4000))
def test_a_context_message_never_passes_its_budget(
    given_notes: list[RecalledNote], max_tokens: int
) -> None:
    remaining = within(given_notes, max_tokens)
    message = context_message([note.shown for note in remaining]).content or ""
    assert not remaining or n_tokens(message) <= max_tokens


@given(given_notes=st.lists(notes, max_size=6), max_tokens=st.integers(1, 4000))
def test_notes_are_a_beginning_of_what_was_found_and_say_what_was_left_out(
    given_notes: list[RecalledNote], max_tokens: int
) -> None:
    with_text = [note for note in given_notes if note.text.strip()]
    remaining = within(given_notes, max_tokens)
    for index, (note, found) in enumerate(zip(remaining, with_text, strict=False)):
        assert (note.uri, found.text[: len(note.text)]) == (found.uri, note.text)
        n_more = len(found.text) - len(note.text)
        assert note.n_left_out == found.n_left_out + n_more
        assert not n_more or index == len(remaining) - 1


def test_a_cut_note_says_so() -> None:
    (note,) = within([RecalledNote("memory://user/a", "tea " * 1000, 0.5)], OPENING + 100)
    assert note.shown.endswith("tea t [cut]")
    assert note.n_left_out == 4000 - len(note.text)
    assert (note.uri, note.score) == ("memory://user/a", 0.5)


def test_what_is_left_out_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rath.session.loop"):
        within([RecalledNote("a", "x" * 999)], OPENING + 100)
    assert f"cut after 1, at {OPENING + 100} tokens" in caplog.text


# ---- what a recall may give


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (system_text_chunk("tea"), "tea"),
        (user_text_chunk("tea"), "tea"),
        (user_text_chunk("tea", images=[picture()]), "tea"),
        (assistant_turn_chunk(tool_calls=None, content="tea"), "tea"),
        (tool_feedback_chunk("id", "f", "tea"), "tea"),
        (ChunkRow("from_the_future", {"content": "tea"}), "tea"),
    ],
    ids=["system", "user", "picture", "assistant", "tool", "unknown"],
)
def test_recalled_rows_of_any_kind_become_text(row: ChunkRow, text: str) -> None:
    (note,) = recalled(lambda _: [row])
    assert note.text.endswith(text)
    assert note.uri == ""


@pytest.mark.parametrize(
    "row",
    [
        system_text_chunk(" \n"),
        assistant_turn_chunk(tool_calls=None, content=None),
        ChunkRow("from_the_future", {"content": ["tea"]}),
        RecalledNote("memory://user/a", "  "),
    ],
    ids=["blank", "no text", "no text in it", "blank note"],
)
def test_what_has_no_text_is_left_out(row: ChunkRow | RecalledNote) -> None:
    assert recalled(lambda _: [row]) == ()


def test_an_iterator_is_read_on_a_worker_thread() -> None:
    names: list[str] = []

    def lazily() -> Iterator[RecalledNote]:
        names.append(threading.current_thread().name)
        yield RecalledNote("a", "tea")

    assert [note.text for note in recalled(giving(lazily()))] == ["tea"]
    assert "rath-runtime" not in names[0]


@pytest.mark.parametrize("given_notes", [None, 7, "text", [None], ["text"], [7]])
def test_what_are_no_notes_is_logged(given_notes: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert recalled(giving(given_notes)) == ()
    assert "the run goes on without notes" in caplog.text


def test_the_complete_message_is_capped_whoever_chose_the_notes() -> None:
    huge = RecalledNote("memory://user/a", "tea " * 5_000_000)
    (note,) = recalled(lambda _: [huge, huge])
    assert n_tokens(context_message([note.shown]).content or "") <= MAX_CONTEXT_TOKENS
    assert note.n_left_out == 20_000_000 - len(note.text)
