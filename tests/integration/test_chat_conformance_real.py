"""The contract of chat clients, with a real model behind both protocols of its server."""

from __future__ import annotations

import pytest

from rath.conformance import check_chat_client
from rath.llm import Provider
from rath.llm.local.server import ensure_server

pytestmark = pytest.mark.timeout(900)

UNKNOWN_MODEL = "an_unknown_model_is_an_error_that_names_it"


def test_the_embedded_model_keeps_the_contract(embedded: Provider) -> None:
    report = check_chat_client(embedded, secret=ensure_server(embedded.model).api_key)
    assert [finding for finding in report.findings if finding.status == "skipped"] == []


@pytest.mark.parametrize("kind", ["openai", pytest.param("anthropic", marks=pytest.mark.slow)])
def test_a_real_server_keeps_the_contract_in_both_protocols(kind: str, embedded: Provider) -> None:
    endpoint = ensure_server(embedded.model)
    provider = Provider(
        provider_kind=kind,
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        model=endpoint.model,
        temperature=0,
    )
    # This server has one model and takes any name for it.
    report = check_chat_client(provider, unknown_model=None)
    skipped = [finding.check for finding in report.findings if finding.status == "skipped"]
    assert skipped == [UNKNOWN_MODEL]
