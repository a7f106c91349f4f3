"""A probe of a real model that is served on this machine, through both protocols."""

from __future__ import annotations

import pytest

from rath.llm import Provider
from rath.llm.local.server import ensure_server
from rath.llm.probe import probe_providers

pytestmark = pytest.mark.timeout(180)


def test_a_real_server_does_what_is_asked_of_it(embedded: Provider) -> None:
    endpoint = ensure_server(None)
    providers = [
        embedded,
        Provider(base_url=endpoint.base_url, api_key=endpoint.api_key, model=endpoint.model),
        Provider(
            provider_kind="anthropic",
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            model=endpoint.model,
        ),
    ]
    for report in probe_providers(providers, timeout=150):
        reports = {finding.step: (finding.verdict, finding.text) for finding in report.findings}
        assert {verdict for verdict, _ in reports.values()} == {"works"}, reports
        assert list(reports) == ["models", "answer", "tool_call", "stream", "schema"]
        assert report.served_models == (endpoint.model,)
