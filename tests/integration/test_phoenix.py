"""Spans in Arize Phoenix: one trace, one root, inputs and outputs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support import phoenix_program
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
VERSION = "19.8.0"
ROOT = Path(__file__).parents[2]
NEEDED = (f"arize-phoenix=={VERSION}", "opentelemetry-exporter-otlp-proto-http")


def environment() -> Path:
    """The Python of an environment with Phoenix, outside of the clone; made where CI may."""
    named = os.environ.get("RATH_PHOENIX_ENV")
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(named or Path(cache) / "rath-tests" / f"phoenix-{VERSION}")
    python, is_complete = folder / "bin" / "python", folder / "complete"
    if named is not None or is_complete.exists():
        return python
    if os.environ.get("CI") != "true":
        pytest.skip("Phoenix is installed where CI=true; or name an environment: RATH_PHOENIX_ENV")
    venv.create(folder, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *NEEDED, f"{ROOT}[otel]"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Phoenix cannot be installed: {done.stderr[-300:]}")
    is_complete.touch()
    return python


def free_ports() -> tuple[int, int]:
    """Two ports of this machine that nobody uses now."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def asked(address: str) -> Any:
    """The JSON that the server answers, None where it does not."""
    try:
        with urlopen(address, timeout=10) as answer:
            return json.load(answer) if "/v1/" in address else answer.status
    except OSError:
        return None


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of the environment of Phoenix."""
    return environment()


@pytest.fixture(scope="module")
def phoenix(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Phoenix on loopback, which ends with the tests."""
    folder = tmp_path_factory.mktemp("phoenix")
    port, grpc_port = free_ports()
    settings = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [python.with_name("phoenix"), "serve"],
            env={**os.environ, **settings},
            stdout=log,
            stderr=log,
        )
        try:
            wait_until(
                lambda: asked(f"{address}/healthz") or server.poll() is not None,
                "Phoenix answers",
            )
            assert server.poll() is None, (folder / "log").read_text()
            yield address
        finally:
            server.terminate()
            server.wait()


def test_phoenix_shows_one_trace_with_one_root(python: Path, phoenix: str) -> None:
    program = Path(phoenix_program.__file__)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    trace = subprocess.run(
        [python, program, phoenix], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()

    def shown() -> dict[str, Any]:
        answer = asked(f"{phoenix}/v1/projects/default/spans?limit=50")
        return {} if answer is None else {it["context"]["span_id"]: it for it in answer["data"]}

    wait_until(lambda: len(shown()) == 6, "all spans are shown")
    spans = shown()
    assert {span["context"]["trace_id"] for span in spans.values()} == {trace}
    below = {
        (span["name"], spans[span["parent_id"]]["name"] if span["parent_id"] else None)
        for span in spans.values()
    }
    assert below == {
        ("request", None),
        ("invoke_workflow Team", "request"),
        ("invoke_agent scout", "invoke_workflow Team"),
        ("chat scripted", "invoke_agent scout"),
        ("execute_tool look", "invoke_agent scout"),
    }
    (root,) = [span for span in spans.values() if span["name"] == "invoke_workflow Team"]
    assert "What is there?" in root["attributes"]["gen_ai.input.messages"]
    assert "I saw a harbour." in root["attributes"]["gen_ai.output.messages"]
    kinds = {span["name"].split()[0]: span["span_kind"] for span in spans.values()}
    assert (kinds["chat"], kinds["execute_tool"]) == ("LLM", "TOOL")
