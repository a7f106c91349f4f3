"""The public names of the library: each is where it was, and takes and gives what it did."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from rath.flow import Workflow
from rath.session import Session
from tests.support.litellm import needs_litellm
from tests.support.public_names import STORED, described_names, text_of

pytestmark = pytest.mark.timeout(120)  # the first import of an SDK on a busy machine


@needs_litellm
@pytest.mark.skipif(
    sys.version_info < (3, 11, 4), reason="inspect tells some constructors otherwise before 3.11.4"
)
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


@pytest.mark.parametrize("method", [Session.save, Session.load, Workflow.resume])
def test_the_types_of_what_takes_a_store_can_be_asked_for(method: Callable[..., Any]) -> None:
    assert "store" in get_type_hints(method)
