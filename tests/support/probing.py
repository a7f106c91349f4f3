"""Probes of a test server, and what they found."""

from __future__ import annotations

from typing import Any

from rath.llm import Provider
from rath.llm.probe import Probed, ProbeFinding, ProbeReport, probe_providers
from tests.support import chat_replies
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer

MODEL = chat_replies.MODEL


def at(server: ChatServer, **fields: Any) -> Provider:
    """A provider of that server which does not wait between tries."""
    given: dict[str, Any] = {"model": MODEL, "api_key": KEY, "retry_base_seconds": 0.0, **fields}
    return Provider(base_url=server.base_url, **given)


def probe(provider: Probed, *, timeout: float = 50.0) -> ProbeReport:
    return probe_providers([provider], timeout=timeout)[0]


def verdicts(report: ProbeReport) -> dict[str, str]:
    return {finding.step: finding.verdict for finding in report.findings}


def finding(report: ProbeReport, step: str) -> ProbeFinding:
    return next(each for each in report.findings if each.step == step)
