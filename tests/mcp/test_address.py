"""What is told of the address and of the command line of a server: no secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.config.redaction import (
    Redactor,
    address_name,
    address_secrets,
    argv_secrets,
    redact_address,
    redact_argv,
)

TOKEN = "s3cret-0123456789"


def hidden(text: str, secrets: list[str]) -> str:
    return Redactor(tuple(secrets), shortest=4).text(text)


def marked(secret: str) -> str:
    return f"<{len(secret)}>"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/mcp", "https://h/mcp"),
        ("HTTPS://H:8443/v1/mcp/", "https://H:8443/v1/mcp/"),
        ("http://[::1]:80/sse", "http://[::1]:80/sse"),
        (f"https://h/mcp/{TOKEN}/sse", "https://h/mcp/***/sse"),
        ("https://h/mcp/swordfish/sse", "https://h/mcp/***/sse"),
        (f"https://h/mcp?key={TOKEN}#{TOKEN}", "https://h/mcp"),
        (f"https://me:{TOKEN}@h/mcp", "https://h/mcp"),
        ("https://h/mcp/${THE_TOKEN}/sse", "https://h/mcp/${THE_TOKEN}/sse"),
        (f"https://h/{TOKEN}${{THE_TOKEN}}/sse", "https://h/***${THE_TOKEN}/sse"),
        ("https://${HOST}:${PORT}/mcp", "https://${HOST}:${PORT}/mcp"),
        (f"https://me:{TOKEN}/more@h/mcp", "https://***/***/***/mcp"),
        (f"https://[{TOKEN}/mcp", "https://***/***/mcp"),
        (f"https://good.example\\@h/{TOKEN}", "https://h/***"),
    ],
)
def test_a_server_is_named_by_host_and_harmless_words(url: str, name: str) -> None:
    assert address_name(url) == name


def test_all_of_an_address_can_be_reported_with_its_secrets_measured() -> None:
    url = f"https://me:{TOKEN}@h/{TOKEN}/sse?key={TOKEN}&page=1&${{NAME}}#{TOKEN}"
    assert redact_address(url, hide=marked) == (
        "https://<20>@h/<17>/sse?key=<17>&page=1&${NAME}#<17>"
    )


words = st.text(
    st.characters(codec="utf-8", exclude_characters="/?#@\\[]:", exclude_categories=["C", "Z"]),
    min_size=9,
    max_size=40,
).filter(lambda word: "${" not in word and "%" not in word)


@given(words)
def test_no_word_that_is_not_known_is_reported(word: str) -> None:
    told = address_name(f"https://{word}:{word}@h/mcp/{word}/sse?key={word}&{word}#{word}")
    assert told in ("https://h/mcp/***/sse", f"https://h/mcp/{word}/sse")
    if word in told:
        assert address_secrets(f"https://h/{word}") == []


@given(words)
def test_what_is_hidden_in_the_name_is_hidden_in_texts(word: str) -> None:
    url = f"https://h/mcp/{word}/sse"
    if "***" in address_name(url):
        assert word not in hidden(f"404 for {url}, no {word} here", address_secrets(url))


@pytest.mark.parametrize("word", ["a1b2", "abc"], ids=["with a digit", "letters"])
def test_a_short_part_is_hidden_with_what_stands_next_to_it(word: str) -> None:
    secrets = address_secrets(f"https://h/mcp/{word}/sse")
    assert hidden(f"no /mcp/{word}/sse", secrets) == "no ***"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["npx", "-y", "pkg@1.2.3"], "npx -y pkg@1.2.3"),
        (["x", "--api-key", TOKEN, "y"], "x --api-key *** y"),
        (["x", f"--token={TOKEN}"], "x --token=***"),
        (["x", f"--url=https://h/{TOKEN}/sse"], "x --url=https://h/***/sse"),
        (["npx", "mcp-remote", f"https://h/{TOKEN}/sse"], "npx mcp-remote https://h/***/sse"),
        (["x", "--header", f"Authorization: Bearer {TOKEN}"], "x --header Authorization: ***"),
        (["docker", "run", "-e", f"GITHUB_TOKEN={TOKEN}"], "docker run -e GITHUB_TOKEN=***"),
        (["x", f"postgres://me:{TOKEN}@h/db"], "x postgres://***@h/db"),
        (["x", "sk-abcdefghijkl"], "x ***"),
        (["x", "0123456789abcdef0123"], "x ***"),
        (["x", "C:\\tools\\server", "/srv/data"], "x C:\\tools\\server /srv/data"),
    ],
)
def test_a_command_line_is_reported_without_its_secrets(words: list[str], told: str) -> None:
    assert " ".join(redact_argv(words)) == told
    assert TOKEN not in hidden(" ".join(words), argv_secrets(words))
