"""`rath config trust`, and what the other verbs say of a config that is not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rath.errors import UntrustedConfig
from rath.flow import Provider
from rath.mcp import MCPClient
from rath.mcp.configured import configured_server
from tests.cli.conftest import Rath
from tests.support.machine import llm_config, write_config

KEY = "canary-0123456789"
URL = "http://theirs.example/v1"
ENTRY = {"base_url": URL, "model": "m"}


@pytest.fixture
def clone(project: Path) -> Path:
    """A config that somebody else has written, with an entry in every section."""
    config: dict[str, Any] = {
        **llm_config("main", main=ENTRY, harmless={"model": "m"}),
        "memory": {"providers": {"notes": {"backend_kind": "openviking", "url": "http://m:1"}}},
        "backend": {"providers": {"box": {"domain": "box.example"}}},
        "sessions": {"store": "postgres://theirs.example/base"},
        "mcp": {"servers": {"tools": {"command": ["evil", "--now"]}}},
    }
    return write_config(project, config, {"main": KEY})


NAMES = ["llm.providers.main", "memory.providers.notes", "backend.providers.box",
         "mcp.servers.tools", "sessions.store"]  # fmt: skip


def state(rath: Rath) -> dict[str, str]:
    """The state of each entry."""
    told = json.loads(rath("config trust --json").stdout)
    return {entry["key"]: entry["trust"] for entry in told["entries"]}


def test_it_shows_all_before_it_asks(rath: Rath, clone: Path) -> None:
    result = rath("config trust", input="n\n", ends=1, err="nothing is changed")
    named = (str(clone), URL, "http://m:1", "box.example", "postgres://theirs", "evil --now")
    for part in (*NAMES, *named):
        assert part in result.stdout
    assert "harmless" not in result.stdout
    assert KEY not in result.stdout + result.stderr
    assert f"***({len(KEY)} characters, sha256 " in result.stdout
    assert state(rath) == dict.fromkeys(NAMES, "not trusted")


def test_with_your_word_it_counts(rath: Rath, clone: Path) -> None:
    result = rath("config trust", input="y\n")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "5 settings trusted")
    assert state(rath) == dict.fromkeys(NAMES, "trusted")
    assert Provider.from_config().base_url == URL
    assert isinstance(configured_server("tools").client(), MCPClient)
    again = rath("config trust")
    assert (again.exit_code, again.stderr) == (0, "note: you have trusted all of it before\n")


def test_it_can_be_given_without_a_question(rath: Rath, clone: Path) -> None:
    assert rath("config trust --yes").exit_code == 0
    assert Provider.from_config().base_url == URL


def test_json_alone_changes_nothing(rath: Rath, clone: Path) -> None:
    told = json.loads(rath("config trust --json").stdout)
    assert (told["file"], told["trust"]) == (str(clone), "not trusted")
    first = told["entries"][0]
    assert first == {
        "key": "llm.providers.main",
        "file": str(clone),
        "trust": "not trusted",
        "values": {"provider_kind": "openai", "base_url": URL, "api_key": "***"},
        "changes": [],
    }
    with pytest.raises(UntrustedConfig):
        Provider.from_config()
    told = json.loads(rath("config trust --json --yes").stdout)
    assert told["trust"] == "trusted"
    assert Provider.from_config().base_url == URL


def test_a_change_is_displayed(rath: Rath, project: Path, clone: Path) -> None:
    rath("config trust --yes")
    write_config(project, llm_config("main", main={**ENTRY, "base_url": "http://other"}), {})
    result = rath("config trust", input="n\n")
    assert f'changed: base_url was "{URL}" and is "http://other"' in result.stdout
    assert "changed: api_key is gone" in result.stdout
    (told,) = json.loads(rath("config trust --json").stdout)["entries"]
    assert (told["trust"], len(told["changes"])) == ("changed", 2)
    assert "has changed since you trusted it" in rath("config list").stderr


def test_it_is_taken_back(rath: Rath, clone: Path) -> None:
    rath("config trust --yes")
    assert rath("config trust --revoke").stdout == "5 settings trusted no longer\n"
    assert "was not trusted" in rath("config trust --revoke").stdout
    assert set(state(rath).values()) == {"not trusted"}
    rath("config trust --yes")
    told = json.loads(rath("config trust --revoke --json").stdout)
    assert told["trust"] == "not trusted"
    assert rath("config trust --revoke --yes").exit_code == 2


def test_a_tool_server_may_be_trusted_alone(rath: Rath, clone: Path) -> None:
    assert rath("mcp trust tools --yes").exit_code == 0
    assert state(rath) == dict.fromkeys(NAMES, "not trusted") | {"mcp.servers.tools": "trusted"}
    assert rath("mcp trust tools --revoke").exit_code == 0
    assert set(state(rath).values()) == {"not trusted"}


@pytest.mark.parametrize("config", [{}, llm_config("p", p={"model": "m"})])
def test_what_names_nothing_that_acts_needs_no_trust(
    rath: Rath, project: Path, config: dict[str, Any]
) -> None:
    write_config(project, config)
    rath("config trust", ends=0, out="", err="needs no trust")


def test_ones_own_config_needs_no_trust(rath: Rath, home: Path) -> None:
    write_config(home, llm_config("main", main=ENTRY))
    rath("config trust", ends=0, out="", err="is your own config")
    assert json.loads(rath("config trust --json").stdout)["trust"] == "own"


def test_a_broken_config_is_reported(rath: Rath, project: Path) -> None:
    write_config(project, {}).write_text("{")
    rath("config trust --yes", ends=1, out="", err="line 1 col 2")


def test_names_write_nothing_to_the_terminal(rath: Rath, project: Path) -> None:
    name = "x\x1b[2J\n\u202ey"
    entry = {"base_url": "http://h/\x1b]0;x\x07\u0430"}
    tools = {"command": ["sh", "-c", "evil\x1b[2J\n"], "env": {"A\x1b[1m": "\x07"}}
    write_config(project, {**llm_config(name, **{name: entry}), "mcp": {"servers": {name: tools}}})
    for words in (("trust",), ("list",), ("path",)):
        result = rath("config", *words, input="n\n")
        written = result.stdout + result.stderr
        assert not {"\x1b", "\x07", "\u202e"} & set(written)
    assert r"\u0430" in rath("config trust", input="n\n").stdout


# ---------------------------------------------------------------- the other verbs


def test_list_says_what_is_not_used(rath: Rath, clone: Path) -> None:
    result = rath("config list", ends=0)
    for name in NAMES:
        assert f"note: {name} of {clone} is not trusted, so it is not used" in result.stderr
    told = json.loads(rath("config list --json").stdout)
    assert [each["key"] for each in told["untrusted"]] == NAMES
    rath("config trust --yes")
    assert rath("config list").stderr == ""
    assert json.loads(rath("config list --json").stdout)["untrusted"] == []


def test_path_says_whether_a_file_is_trusted(rath: Rath, home: Path, clone: Path) -> None:
    write_config(home, {})
    lines = rath("config path").stdout.splitlines()
    assert [line.endswith(", not trusted") for line in lines] == [True, False]
    rath("config trust --yes")
    assert rath("config path").stdout.splitlines()[0].endswith(", trusted")
    files = json.loads(rath("config path --json").stdout)["files"]
    assert [file["trust"] for file in files] == ["trusted", "own"]


def test_doctor_says_what_is_not_used_and_why(rath: Rath, clone: Path) -> None:
    result = rath("doctor --json")
    found = json.loads(result.stdout)["findings"]
    config = [each for each in found if each["group"] == "Config" and each["level"] == "warning"]
    assert {each["details"]["key"] for each in config} >= set(NAMES)
    assert {each["advice"] for each in config if "it is not used" in each["text"]} == {
        "rath config trust"
    }
    (model,) = [each for each in found if (each["group"], each["subject"]) == ("Models", "main")]
    assert (model["level"], model["advice"]) == ("problem", "rath config trust")
    assert KEY not in result.stdout


def test_doctor_asks_no_model_that_is_not_trusted(rath: Rath, clone: Path) -> None:
    rath("doctor --live --provider main", ends=1, err="rath config trust")


def test_what_you_set_yourself_is_trusted(rath: Rath, project: Path) -> None:
    (project / ".openrath").mkdir()
    for key, value in (("base_url", URL), ("api_key", KEY), ("model", "m")):
        assert rath("config set --project", f"llm.providers.main.{key}", value).exit_code == 0
    assert Provider.from_config("main").base_url == URL
    assert rath("config set --project mcp.servers.s.command", "prog --x").exit_code == 0
    assert configured_server("s").client() is not None
    assert set(state(rath).values()) == {"trusted"}
    rath("config unset --project llm.providers.main")
    assert list(state(rath)) == ["mcp.servers.s"]


def test_what_you_set_up_yourself_is_trusted(rath: Rath) -> None:
    rath("config init --project --yes --kind openai --model m --base-url", URL, ends=0)
    assert Provider.from_config().base_url == URL


def test_a_key_for_an_endpoint_of_somebody_else_does_not_make_it_trusted(
    rath: Rath, clone: Path
) -> None:
    result = rath("config set --project llm.providers.main.api_key -", input=f"{KEY}2\n", ends=0)
    assert f"llm.providers.main of {clone} is not trusted, so it is not used" in result.stderr
    assert "mcp.servers" not in result.stderr
    with pytest.raises(UntrustedConfig):
        Provider.from_config()
