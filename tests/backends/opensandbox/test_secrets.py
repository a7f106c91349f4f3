"""The key of a server: sent to it, and found nowhere else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from traceback import format_exception

import pytest

from rath.backend import BackendError
from rath.backend.opensandbox import OpenSandboxBackend
from tests.support.machine import trust
from tests.support.opensandbox_server import Answer, OpenSandboxServer

KEY = "rath-canary-0123456789abcdef"


@pytest.fixture
def backend(opensandbox_server: OpenSandboxServer) -> OpenSandboxBackend:
    pytest.importorskip("opensandbox")
    return OpenSandboxBackend(domain=opensandbox_server.domain, api_key=KEY)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(401, {"code": "INVALID_API_KEY", "message": f"no such key: {KEY}"}),
        Answer(500, f"<p>{KEY}</p>".encode()),
    ],
    ids=["structured", "page"],
)
def test_a_key_that_the_server_repeats_is_hidden(
    backend: OpenSandboxBackend,
    opensandbox_server: OpenSandboxServer,
    caplog: pytest.LogCaptureFixture,
    answer: Answer,
) -> None:
    opensandbox_server.inject("POST", "/v1/sandboxes", answer)
    with caplog.at_level(logging.DEBUG), pytest.raises(BackendError) as caught:
        backend.open()
    assert KEY not in "".join(format_exception(caught.value))
    assert KEY not in caplog.text
    (sent,) = opensandbox_server.matching("POST", "/v1/sandboxes")
    assert sent.headers["open-sandbox-api-key"] == KEY


def test_a_server_that_a_project_names_gets_no_key_of_the_environment(
    opensandbox_server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("opensandbox")
    entry = {"backend_kind": "opensandbox", "domain": opensandbox_server.domain}
    config = {"version": 1, "backend": {"providers": {"ours": entry}}}
    (tmp_path / "project" / ".openrath").mkdir(parents=True)
    (tmp_path / "project" / ".openrath" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OPENRATH_HOME")
    trust(tmp_path / "project" / ".openrath" / "config.json")
    monkeypatch.setenv("OPEN_SANDBOX_API_KEY", KEY)
    with pytest.raises(BackendError, match="API"):
        OpenSandboxBackend().open()
    # The SDK would look into the environment itself.
    (sent,) = opensandbox_server.matching("POST", "/v1/sandboxes")
    assert "open-sandbox-api-key" not in sent.headers
