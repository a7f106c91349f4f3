"""The command line of the table, the fake server's faults, and the programs of peers."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.endpoint import Endpoint, serve
from benchmarks.measure import run_fresh
from benchmarks.report import read_history

_ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with serve() as served:
        yield served


def test_json_is_all_that_stands_on_standard_output_and_goes_into_the_history(
    tmp_path: Path,
) -> None:
    history = tmp_path / "history.jsonl"
    command = [sys.executable, "-m", "benchmarks", "--small", "--only", "rows", "--json"]
    done = subprocess.run(
        [*command, "--history", str(history)],
        check=True,
        capture_output=True,
        cwd=_ROOT,
        env={**os.environ, "CI": "true"},
    )
    shown = json.loads(done.stdout)
    assert {row["name"] for row in shown["rows"]} == {"rows"}
    assert shown.pop("regressions") == []
    assert read_history(history) == [shown]


def test_fake_server_cuts_each_so_many_requests(endpoint: Endpoint) -> None:
    url = f"{endpoint.url('tools-0-cut-3')}/chat/completions"
    texts: list[str | None] = []
    for _ in range(6):
        try:
            with urllib.request.urlopen(url, data=b"{}", timeout=10) as answer:
                texts.append(json.load(answer)["choices"][0]["message"]["content"])
        except (OSError, http.client.HTTPException):
            texts.append(None)
    assert texts.count(None) == 2
    assert set(texts) == {None, "The work is done."}


@pytest.mark.parametrize(
    ("program", "path", "figure"),
    [("tools", "tools-2", "cpu"), ("fanout", "reply", "wall"), ("disk", "tools-2", "bytes")],
)
def test_program_of_peers_runs_on_ours(
    endpoint: Endpoint, program: str, path: str, figure: str
) -> None:
    arguments = ["-m", "benchmarks.peers.on_rath", program, endpoint.url(path), "2"]
    assert run_fresh(*arguments, cwd=_ROOT)[figure] > 0
