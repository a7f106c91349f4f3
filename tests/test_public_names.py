"""The public names of the library: each is where it was, and takes and gives what it did."""

from __future__ import annotations

import difflib

import pytest

from tests.support.public_names import STORED, described_names, text_of

pytestmark = pytest.mark.timeout(120)  # the first import of an SDK on a busy machine


def test_public_names_keep_their_signatures() -> None:
    stored = STORED.read_text("utf-8").splitlines()
    today = text_of(described_names()).splitlines()
    difference = [*difflib.unified_diff(stored, today, "stored", "today", n=6, lineterm="")]
    assert not difference, "\n".join(
        [
            "public names differ; if that is meant, run `python -m tests.support.public_names`",
            *difference,
        ]
    )
