"""What a terminal gets of a text that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rath.cli.outline import item
from rath.cli.terminal import complain, note, say, say_lines, warn

HOSTILE = "a\x1b[31mb\x07c\x08d\re"
SHOWN = r"a\x1b[31mb\x07c\x08d\re"


def say_as_a_line(text: str) -> None:
    say_lines([[(text, "red")]])


TELL: list[Callable[[str], None]] = [say, note, warn, complain, item, say_as_a_line]


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
