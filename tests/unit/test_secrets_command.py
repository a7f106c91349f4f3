"""Law 9: the `rath` command shows no secret, wherever it is configured and whatever is asked."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rath.cli.app import app
from rath.config.env import EnvKind, all_env_specs
from tests.support.canaries import seen
from tests.support.machine import own_project, write_config

KEY = "sk-cNry/0123456789abcdef%2B"
SECRET_VARIABLES = [spec.name for spec in all_env_specs() if spec.kind is EnvKind.SECRET]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NO_COLOR", "1")
    return own_project(tmp_path, monkeypatch)


def said(*args: str, input: str | None = None) -> str:
    """All that the command writes."""
    return CliRunner().invoke(app, args, input=input).output


def write_secrets(base: Path, address: str) -> None:
    """Write a config with a key in every section, and one for each entry beside it."""
    entry = {"model": "m", "base_url": address, "api_key": KEY, "proxy_password": KEY}
    write_config(
        base,
        {
            "llm": {"default_provider": "a", "providers": {"a": entry, "b": {"model": "n"}}},
            "mcp": {"servers": {"s": {"command": ["x", "--token", KEY], "env": {"HOST": KEY}}}},
            "memory": {"providers": {"m": {"api_key": KEY}}},
            "backend": {"providers": {"o": {"api_key": KEY, "options": {"secret": KEY}}}},
        },
        {"a": KEY, "b": KEY},
    )


QUESTIONS = [
    ["config", "list"],
    ["config", "list", "--json", "--show-origin"],
    ["config", "get", "llm.providers.a", "--json"],
    ["config", "get", "llm.providers.a.api_key", "--show-origin"],
    ["config", "get", "llm.providers.b.api_key"],
    ["config", "get", "OPENAI_API_KEY"],
    ["config", "path", "--json"],
    ["config", "set", "llm.providers.a.api_key", KEY],
    ["config", "set", "llm.providers.a.temperature", KEY],
    ["config", "set", "llm.providers.a.base_url", f"user:{KEY}@h"],
    ["config", "set", "mcp.servers.s.env.HOST", KEY],
    ["config", "unset", "llm.providers.a.api_key"],
    ["config", "init", "--yes"],
    ["doctor"],
    ["doctor", "--json"],
]


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_no_answer_shows_a_secret(
    project: Path, monkeypatch: pytest.MonkeyPatch, question: list[str], logged: io.StringIO
) -> None:
    for base in (project, project.with_name("home")):
        write_secrets(base, f"https://user:{KEY}@h.example/v1")
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", f"https://user:{KEY}@h.example/v1?key={KEY}")
    told = said(*question)
    assert told
    assert seen(KEY, told, logged.getvalue()) == []
