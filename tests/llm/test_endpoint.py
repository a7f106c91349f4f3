"""URLs."""

from __future__ import annotations

import pytest

from rath.llm.endpoint import is_azure, public_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pw@host.example/v1?key=s#x", "https://host.example/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1/"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1"),
        ("no url", None),
        ("http://host:port/", None),
        ("", None),
        (None, None),
    ],
)
def test_shows_no_credentials_and_no_query(url: str | None, shown: str | None) -> None:
    assert public_url(url) == shown


@pytest.mark.parametrize(
    ("url", "azure"),
    [
        ("https://name.openai.azure.com", True),
        ("https://name.services.ai.AZURE.com./x", True),
        ("https://evil.example/.azure.com", False),
        ("https://name.azure.com.evil.example", False),
        ("https://evilazure.com", False),
        (None, False),
    ],
)
def test_azure_is_known_by_its_host(url: str | None, azure: bool) -> None:
    assert is_azure(url) is azure
