"""The server answers every recorded request as the real one did."""

from __future__ import annotations

from pathlib import Path

from tests.support.opensandbox_server import OpenSandboxServer
from tests.support.opensandbox_server.replay import Replay, differences

RECORDING = Path(__file__).parents[2] / "data/opensandbox/wire.jsonl"


def test_every_recorded_request_is_answered_alike(opensandbox_server: OpenSandboxServer) -> None:
    found = [
        each for done in Replay(opensandbox_server).run(RECORDING) for each in differences(done)
    ]
    assert found == []
