"""Calls of `rath doctor`, and what they found."""

from __future__ import annotations

import json
from typing import NamedTuple

from typer.testing import Result

from tests.cli.conftest import Rath

CANARY = "sk-canary-0123456789"


class Seen(NamedTuple):
    """A finding as a test compares it."""

    level: str
    text: str
    advice: str


def doctor(rath: Rath, *args: str) -> Result:
    """Let the doctor tell all it finds as JSON."""
    result = rath("doctor", "--json", *args)
    assert result.stderr == ""
    return result


def findings(result: Result, group: str, subject: str | None = None) -> list[Seen]:
    """The findings of a group, perhaps about one subject."""
    return [
        Seen(each["level"], each["text"], each["advice"])
        for each in json.loads(result.stdout)["findings"]
        if each["group"] == group and subject in {None, each["subject"]}
    ]
