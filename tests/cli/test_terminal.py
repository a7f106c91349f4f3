"""What a terminal gets of a text that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rath.cli.render import item, line, say_lines, say_table
from rath.cli.terminal import complain, note, say, warn

HOSTILE = "a\x1b[31mb\x07c\x08d\re"
SHOWN = r"a\x1b[31mb\x07c\x08d\re"


def say_as_a_line(text: str) -> None:
    say_lines([line((text, "red"))])


def say_as_a_row(text: str) -> None:
    say_table([["label", text]], ["bold", ""], is_folded=True)


TELL: list[Callable[[str], None]] = [say, note, warn, complain, item, say_as_a_line, say_as_a_row]


@pytest.mark.parametrize("tell", TELL)
@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_no_control_character_is_sent_or_lost(
    tell: Callable[[str], None],
    is_terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.delenv("NO_COLOR", raising=False)
    tell(HOSTILE)
    told = capsys.readouterr()
    assert SHOWN in told.out + told.err
