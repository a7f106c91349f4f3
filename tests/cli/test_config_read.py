"""`rath config list`, `get` and `path`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Process, Rath
from tests.support.machine import llm_config, write_config

CANARY = "canary-0123456789"


def listed(rath: Rath) -> dict[str, tuple[Any, str]]:
    """What `rath config list --json` says: key to value and origin."""
    result = rath("config list --json", ends=0)
    return {
        each["key"]: (each["value"], each["origin"])
        for each in json.loads(result.stdout)["settings"]
    }


def test_nothing_set_leads_to_init(rath: Rath) -> None:
    rath("config list", ends=0, out="rath config init", err="")


def test_each_value_says_where_it_comes_from(
    rath: Rath, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_config(home, llm_config("u", u={"model": "mu"}, both={"model": "x"}), {"u": "k"})
    theirs = write_config(project, llm_config(both={"provider_kind": "local", "model": "mb"}))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env/v1")
    assert listed(rath) == {
        "llm.default_provider": ("u", f"config {own}"),
        "llm.providers.both.provider_kind": ("local", f"config {theirs}"),
        "llm.providers.both.model": ("mb", f"config {theirs}"),
        "llm.providers.u.provider_kind": ("openai", "default"),
        "llm.providers.u.model": ("mu", f"config {own}"),
        "llm.providers.u.api_key": ("***", f"config {own.with_name('credentials.json')}"),
        "llm.providers.u.base_url": ("http://env/v1", "env OPENAI_BASE_URL"),
        "OPENAI_BASE_URL": ("http://env/v1", "env OPENAI_BASE_URL"),
    }


def test_a_projects_endpoint_is_shown_without_the_key_it_never_gets(
    rath: Rath, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(project, llm_config(p={"base_url": "http://p/v1"}, q={"model": "m"}))
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    values = listed(rath)
    assert "llm.providers.p.api_key" not in values
    assert values["llm.providers.q.base_url"][0] == "http://p/v1"
    assert "llm.providers.q.api_key" not in values


def test_other_sections_and_unknown_keys_are_listed(rath: Rath, home: Path) -> None:
    path = write_config(
        home,
        {
            "mcp": {"default_enabled": ["s"], "servers": {"s": {"command": ["a", "b"]}}},
            "memory": {"default_provider": "n", "providers": {"n": {"path": "p"}}},
            "backend": {"providers": {"b.c": {"options": {"deep": {"er": 1}}}}},
            "x": {"y": True},
        },
    )
    values = listed(rath)
    assert values["mcp.default_enabled"] == (["s"], f"config {path}")
    assert values["mcp.servers.s.command"][0] == ["a", "b"]
    assert values["memory.providers.n.path"][0] == "p"
    assert values['backend.providers."b.c".options.deep.er'][0] == 1
    assert values["x.y"][0] is True


def test_lines_hold_the_key_the_value_and_the_origin(rath: Rath, home: Path) -> None:
    path = write_config(home, llm_config("u"))
    assert rath("config list").stdout == "llm.default_provider  u\n"
    shown = rath("config list --show-origin").stdout
    assert shown == f"llm.default_provider  u  config {path}\n"


def test_long_lines_are_not_cut(rath: Rath, home: Path) -> None:
    write_config(home, llm_config("u" * 300))
    assert rath("config list").stdout.endswith(f"  {'u' * 300}\n")


@pytest.mark.parametrize("verb", [("list",), ("list", "--json"), ("get", "llm.providers.a")])
def test_no_secret_is_printed(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    write_config(
        home,
        {
            "llm": {
                "providers": {"a": {"base_url": f"https://u:{CANARY}@h", "t": [{"key": CANARY}]}}
            },
            "mcp": {"servers": {"s": {"command": ["x", "--key", CANARY], "env": {"A": CANARY}}}},
            "backend": {"providers": {"b": {"api_key": CANARY, "options": {"token": CANARY}}}},
            "secret": CANARY,
        },
        {"a": CANARY},
    )
    for name in ("OPENAI_API_KEY", "AZURE_API_KEY", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("OPENAI_BASE_URL", f"https://u:{CANARY}@h")
    result = rath("config", *verb, ends=0, out="***")
    assert CANARY not in result.output


def test_get_prints_the_value_alone(rath: Rath, home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "[bold]m[/]", "max_tokens": 5}))
    assert rath("config get llm.providers.u.model").stdout == "[bold]m[/]\n"
    assert rath("config get llm.providers.u.max_tokens").stdout == "5\n"
    assert json.loads(rath("config get llm.default_provider --json").stdout) == {
        "key": "llm.default_provider",
        "value": "u",
        "origin": f"config {home / '.openrath' / 'config.json'}",
    }


def test_get_shows_the_origin_if_asked(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_MODEL", "m")
    result = rath("config get LITELLM_MODEL --show-origin")
    assert result.stdout == "m  env LITELLM_MODEL\n"


def test_get_of_a_table_prints_what_is_in_it(rath: Rath, home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "m"}))
    result = rath("config get llm.providers")
    assert result.stdout == (
        "llm.providers.u.provider_kind  openai\nllm.providers.u.model          m\n"
    )


@pytest.mark.parametrize("key", ["llm.providers.u.model", "OPENAI_API_KEY", "llm"])
def test_get_of_what_is_not_set_is_a_problem(rath: Rath, key: str) -> None:
    result = rath("config get", key, ends=1, out="")
    assert result.stderr == f"error: {key} is not set\n"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("llm.providers.u.modle", "Did you mean 'llm.providers.u.model'?"),
        ("OPENAI_API_KEX", "Did you mean 'OPENAI_API_KEY'?"),
        ("a..b", "is no key"),
    ],
)
def test_get_of_an_unknown_key_is_a_misuse(rath: Rath, key: str, words: str) -> None:
    rath("config get", key, ends=2, out="", err=words)


@pytest.mark.parametrize("verb", [("list", "--json"), ("get", "llm.default_provider", "--json")])
def test_a_broken_config_is_told_beside_what_can_be_read(
    rath: Rath, project: Path, home: Path, verb: tuple[str, ...]
) -> None:
    write_config(home, llm_config("u"))
    broken = write_config(project, {})
    broken.write_text('{\n  "llm": x')
    result = rath(
        "config", *verb, ends=1, err=f"error: {broken} is not valid JSON at line 2 col 10"
    )
    assert '"value": "u"' in result.stdout


def test_path_shows_both_files_and_where_is_written(rath: Rath, project: Path, home: Path) -> None:
    own = write_config(home, {}, {"a": "k"})
    result = rath("config path")
    assert result.stdout.splitlines() == [
        f"project  {project / '.openrath' / 'config.json'}  not there",
        f"user     {own}     there, keys beside it, written to",
    ]


def test_path_follows_the_variable(rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(home / "x"))
    assert json.loads(rath("config path --json").stdout) == {
        "files": [
            {
                "role": "OPENRATH_HOME",
                "file": str(home / "x" / "config.json"),
                "exists": False,
                "has_keys": False,
                "is_written": True,
                "trust": None,
            }
        ]
    }


def test_path_knows_that_a_project_is_written_to(rath: Rath, project: Path) -> None:
    write_config(project, {})
    first, _ = rath("config path").stdout.splitlines()
    assert first.endswith("there, written to")


def test_at_home_there_is_one_file(rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (line,) = rath("config path").stdout.splitlines()
    assert line.startswith("user  ")


def test_a_home_that_is_a_file_is_a_problem(
    rath: Rath, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "file").touch()
    monkeypatch.setenv("OPENRATH_HOME", str(project / "file"))
    rath("config path", ends=1, err="not a directory")


def test_a_terminal_gets_no_commands_from_a_config(rath: Rath, home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "m\x1b]0;pwn\x07\nllm.x"}))
    shown = rath("config list").stdout
    assert "\x1b" not in shown
    assert "m\\x1b]0;pwn\\x07\\nllm.x" in shown


def test_an_entry_without_a_name_is_shown(rath: Rath, home: Path) -> None:
    write_config(home, llm_config(None, **{"": {"model": "m"}}))
    result = rath("config list")
    assert (result.exit_code, "model" in result.stdout) == (0, True)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_half_a_character_is_shown(process: Process, home: Path, options: tuple[str, ...]) -> None:
    write_config(home, llm_config("u", u={"model": "m\ud800"}))
    result = process("config", "list", *options)
    assert (result.returncode, result.stderr) == (0, "")
    assert "ud800" in result.stdout
