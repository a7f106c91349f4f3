"""What is decided on the session that `resume` returns is stored, as it is on any other one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.decisions_program import VERBS


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("agent", "persist"),
        ("agent", "autosave"),
        ("workflow", "persist"),
        ("workflow", "autosave"),
        ("workflow", "path"),
    ],
)
def test_a_decision_on_a_resumed_session_holds_in_the_next_process(
    kind: str, store: str, tmp_path: Path
) -> None:
    def step(name: str) -> Any:
        command = [sys.executable, "-m", "tests.support.decisions_program", name]
        done = subprocess.run(
            [*command, kind, store, str(tmp_path)],
            env=os.environ | ({"OPENRATH_PERSIST": "1"} if store == "autosave" else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")

    step("begin")
    decided = step("decide")
    left = {verb: [] if verb == "decide" else ["c2"] for verb in VERBS}
    assert decided == {"left": left, "made": ["decide 1"]}
    went_on = step("go_on")
    assert went_on["left"] == left
    assert went_on["said"] == dict.fromkeys(VERBS, "It is done.")
    answered = ["answer 1 red", "answer 2 red"]
    made = ["approve 1", "approve 2", "other c1", "other c2", *answered]
    assert sorted(went_on["made"]) == sorted(["decide 1", *made])
