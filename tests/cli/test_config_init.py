"""`rath config init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rath.config import ConfigStore
from rath.config.schema import LLMProviderConfig
from rath.llm import Provider
from tests.cli.conftest import Rath
from tests.support.machine import llm_config, write_config

CANARY = "canary-0123456789"


@pytest.fixture
def own(home: Path) -> Path:
    """Where the user's config will be."""
    return home / ".openrath" / "config.json"


def entry_in(path: Path, name: str = "main") -> LLMProviderConfig:
    return ConfigStore(path).get_llm_provider(name)


def answers(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


# ---------------------------------------------------------------- without questions


def test_without_anything_the_embedded_model_is_chosen(rath: Rath, own: Path) -> None:
    rath("config init --yes", ends=0, out=f"Wrote {own}: provider main, the default: local")
    assert Provider.from_config().provider_kind == "local"


@pytest.mark.parametrize(
    ("variables", "kind", "model"),
    [
        ({"OPENAI_API_KEY": CANARY, "OPENAI_DEFAULT_MODEL": "m"}, "openai", "m"),
        ({"OPENAI_BASE_URL": "http://h/v1"}, "openai", None),
        ({"ANTHROPIC_API_KEY": CANARY, "ANTHROPIC_DEFAULT_MODEL": "c"}, "anthropic", "c"),
        ({"ANTHROPIC_API_KEY": CANARY, "OPENAI_API_KEY": CANARY}, "openai", None),
        ({"OPENAI_DEFAULT_MODEL": "m"}, "local", None),
    ],
)
def test_what_the_environment_offers_is_taken(
    rath: Rath,
    own: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    kind: str,
    model: str | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = rath("config init --yes")
    entry = entry_in(own)
    assert (result.exit_code, entry.provider_kind, entry.model) == (0, kind, model)
    assert (entry.base_url, entry.api_key) == (None, None)
    assert CANARY not in result.output + own.read_text()


def test_what_is_read_at_each_run_is_named(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.openai.azure.com")
    result = rath("config init --yes", out="Its endpoint: AZURE_OPENAI_ENDPOINT, read at each run")
    assert "Its key: AZURE_OPENAI_API_KEY, read at each run" in result.stdout
    assert "warning: no model is named" in result.stderr


def test_a_second_time_changes_nothing(rath: Rath, own: Path) -> None:
    rath("config init --yes")
    before = own.stat().st_mtime_ns
    result = rath("config init --yes")
    assert (result.exit_code, own.stat().st_mtime_ns) == (0, before)
    assert result.stdout.startswith("Nothing is changed: ")


def test_a_default_provider_of_another_name_stays_alone(rath: Rath, home: Path) -> None:
    path = write_config(home, llm_config("gw", gw={"model": "m"}))
    assert rath("config init --yes").stdout.startswith("Nothing is changed")
    assert list(ConfigStore(path).config.llm.providers) == ["gw"]


def test_a_default_of_the_user_is_enough_for_a_project(
    rath: Rath, project: Path, home: Path
) -> None:
    write_config(home, llm_config("gw", gw={"model": "m"}))
    path = write_config(project, {})
    assert rath("config init --yes").stdout.startswith("Nothing is changed")
    assert rath("config init --yes --project").stdout.startswith(f"Wrote {path}")


def test_force_replaces_the_provider_and_its_key(rath: Rath, home: Path) -> None:
    path = write_config(home, llm_config("main", main={"model": "old"}), {"main": "old-key"})
    rath("config init --yes --force --kind anthropic --model new", ends=0)
    entry = entry_in(path)
    assert (entry.provider_kind, entry.model, entry.api_key) == ("anthropic", "new", None)


def test_options_come_before_the_environment(
    rath: Rath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    given = ("--kind", "anthropic", "--model", "m", "--base-url", "http://h", "--name", "x")
    assert rath("config init --yes", *given).exit_code == 0
    entry = entry_in(own, "x")
    assert (entry.provider_kind, entry.model, entry.base_url) == ("anthropic", "m", "http://h")


@pytest.mark.parametrize("option", [("--kind", "smoke"), ("--base-url", "h")])
def test_an_option_that_does_not_fit_is_a_misuse(
    rath: Rath, own: Path, option: tuple[str, str]
) -> None:
    assert rath("config init --yes", *option).exit_code == 2
    assert not own.exists()


def test_a_project_is_kept_out_of_the_repository(rath: Rath, project: Path) -> None:
    (project / ".gitignore").write_text("dist\n")
    rath("config init --yes --project", out=f"{project / '.gitignore'} keeps .openrath/ out")
    assert (project / ".gitignore").read_text() == "dist\n.openrath/\n"
    assert (project / ".openrath" / ".gitignore").read_text().startswith("*\n")


# ---------------------------------------------------------------- with questions


def test_the_answers_are_written(rath: Rath, own: Path) -> None:
    given = answers("user", "openai", "m", "http://h/v1", CANARY)
    result = rath("config init", input=given, ends=0)
    entry = entry_in(own)
    assert (entry.provider_kind, entry.model, entry.base_url) == ("openai", "m", "http://h/v1")
    assert CANARY not in result.output + own.read_text()
    keys: dict[str, Any] = json.loads(own.with_name("credentials.json").read_text())
    assert keys["llm"]["providers"] == {"main": CANARY}
    assert Provider.from_config().model == "m"


def test_questions_go_to_stderr_and_what_was_done_to_stdout(rath: Rath, own: Path) -> None:
    result = rath("config init", input=answers("", "anthropic", "m", "", CANARY))
    assert "Who serves the model" in result.stderr
    assert result.stdout.splitlines() == [
        f"Wrote {own}: provider main, the default: anthropic, model m",
        f"Wrote {own.with_name('credentials.json')}: its key; only you can read it",
        "Next: rath config list --show-origin",
        "In a program: flow.Provider.from_config()",
    ]


def test_no_key_means_that_of_the_environment(
    rath: Rath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = rath("config init", input=answers("", "openai", "m", "", ""))
    assert "OPENAI_API_KEY is not set now" in result.stderr
    assert entry_in(own).api_key is None
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    again = rath("config init --force", input=answers("", "openai", "m", "", ""))
    assert "Its key: OPENAI_API_KEY, read at each run" in again.stdout
    assert CANARY not in again.output


def test_the_environment_is_offered_as_the_answer(
    rath: Rath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_DEFAULT_MODEL", "claude")
    assert rath("config init", input=answers("", "", "", "", "")).exit_code == 0
    entry = entry_in(own)
    assert (entry.provider_kind, entry.model) == ("anthropic", "claude")


def test_a_wrong_answer_is_asked_again(rath: Rath, own: Path) -> None:
    given = answers("me", "user", "opnai", "openai", "m", "gateway", "http://h/v1", "k")
    result = rath("config init", input=given, ends=0, err="'me' is none of user, project")
    assert "'opnai' is none of openai, anthropic" in result.stderr
    assert entry_in(own).base_url == "http://h/v1"


def test_the_embedded_model_needs_no_endpoint_and_no_key(rath: Rath, own: Path) -> None:
    rath("config init", input=answers("", "local", "model.gguf"), ends=0)
    entry = entry_in(own)
    assert (entry.provider_kind, entry.model) == ("local", "model.gguf")


def test_a_project_endpoint_without_a_key_is_warned_about(
    rath: Rath, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    given = answers("project", "openai", "m", "http://p/v1", "")
    result = rath("config init", input=given)
    assert (project / ".openrath" / "config.json").is_file()
    assert "rath config set --project llm.providers.main.api_key -" in result.stderr


def test_an_existing_provider_is_replaced_only_if_wanted(rath: Rath, home: Path) -> None:
    path = write_config(home, llm_config("main", main={"model": "old"}))
    refused = rath("config init", input=answers("", ""))
    assert (refused.exit_code, refused.stdout) == (0, "Nothing is changed.\n")
    assert entry_in(path).model == "old"
    rath("config init", input=answers("", "y", "openai", "new", "", ""))
    assert entry_in(path).model == "new"


def test_options_are_not_asked_for(rath: Rath, own: Path) -> None:
    given = ("--user", "--kind", "openai", "--model", "m", "--base-url", "http://h/v1")
    rath("config init", *given, input=answers(CANARY), ends=0)
    assert entry_in(own).api_key == CANARY


def test_an_input_that_ends_early_writes_nothing(rath: Rath, own: Path) -> None:
    result = rath("config init", input=answers("user", "openai"), ends=1, out="")
    assert "error: the input ended before everything was answered" in result.stderr
    assert not own.exists()


def test_with_the_variable_no_place_is_asked_for(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(home / "x"))
    assert rath("config init", input=answers("local", "")).exit_code == 0
    assert entry_in(home / "x" / "config.json").provider_kind == "local"


@pytest.mark.parametrize(
    ("options", "key"),
    [((), "key-u"), (("--base-url", "https://other.example/v1"), None)],
    ids=["same-endpoint", "another-endpoint"],
)
def test_a_stored_key_stays_with_its_endpoint(
    rath: Rath, home: Path, options: tuple[str, ...], key: str | None
) -> None:
    path = write_config(home, llm_config("u", u={"model": "m"}), {"u": "key-u"})
    call = ("config", "init", "--yes", "--force", "--name", "u", "--kind", "openai", *options)
    result = rath(*call, ends=0)
    assert ConfigStore(path).get_llm_provider("u").api_key == key
    assert ("goes with it" in result.stderr) == (key is None)
