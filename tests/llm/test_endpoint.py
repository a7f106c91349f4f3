"""URLs."""

from __future__ import annotations

import pytest

from rath.llm.endpoint import is_azure, password_in, public_url, without_login


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
        ("https://name.cognitiveservices.azure.com", True),
        ("https://name.openai.azure.us", True),
        ("https://name.cognitiveservices.azure.cn", True),
        ("http://vm.eastus.cloudapp.azure.com:8000/v1", False),
        ("https://name.eastus.models.ai.azure.com/v1", False),
        ("https://openai.azure.com", False),
        ("https://evil.example/.azure.com", False),
        ("https://name.azure.com.evil.example", False),
        ("https://evilazure.com", False),
        (None, False),
    ],
)
def test_azure_is_known_by_its_host(url: str | None, azure: bool) -> None:
    assert is_azure(url) is azure


@pytest.mark.parametrize(
    ("url", "password", "rest"),
    [
        ("https://user:p%40ss@h:1/v1", "p@ss", "https://h:1/v1"),
        ("https://token@h/v1", "token", "https://h/v1"),
        ("https://user:@[::1]:80/v1", "user", "https://[::1]:80/v1"),
        ("https://h/v1", "", "https://h/v1"),
    ],
)
def test_a_login_is_told_from_the_rest(url: str, password: str, rest: str) -> None:
    assert password_in(url) == password
    assert without_login(url) == rest


def test_what_is_no_url_has_no_password() -> None:
    assert password_in("http://h:port/") == ""
