"""`rath config set` and `unset`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rath.config import ConfigStore
from tests.cli.conftest import Rath
from tests.support.machine import llm_config, write_config

CANARY = "canary-0123456789"


@pytest.fixture
def own(home: Path) -> Path:
    """The user's config, with one provider."""
    return write_config(home, llm_config("u", u={"model": "m"}), {"u": "key-u"})


def test_set_writes_and_says_where(rath: Rath, home: Path) -> None:
    result = rath("config set llm.providers.u.model m")
    path = home / ".openrath" / "config.json"
    assert (result.exit_code, result.stdout) == (0, f"llm.providers.u.model = m, in {path}\n")
    assert ConfigStore(path).get_llm_provider("u").model == "m"


def test_set_keeps_what_is_there(rath: Rath, own: Path) -> None:
    assert rath("config set llm.providers.u.temperature 0.5").exit_code == 0
    entry = ConfigStore(own).get_llm_provider(None)
    assert (entry.model, entry.temperature, entry.api_key) == ("m", 0.5, "key-u")


@pytest.mark.parametrize(
    ("option", "place"), [("--user", "home"), ("--project", "project")], ids=["user", "project"]
)
def test_the_place_can_be_chosen(rath: Rath, home: Path, option: str, place: str) -> None:
    assert rath("config set", option, "llm.default_provider", "a").exit_code == 0
    written = home.with_name(place) / ".openrath" / "config.json"
    assert ConfigStore(written).config.llm.default_provider == "a"


def test_an_existing_project_is_written_to(rath: Rath, project: Path, own: Path) -> None:
    path = write_config(project, {})
    assert str(path) in rath("config set llm.default_provider u").stdout
    assert ConfigStore(own).config.llm.default_provider == "u"


def test_with_the_variable_there_is_no_place_to_choose(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(home / "x"))
    rath("config set --user llm.default_provider a", ends=2, err="OPENRATH_HOME is set")
    assert rath("config set llm.default_provider a").exit_code == 0
    assert (home / "x" / "config.json").is_file()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("llm.providers.u.modle", "m", "Did you mean 'llm.providers.u.model'"),
        ("llm.providers.u.temperature", "hot", "does not take this value"),
        ("llm.providers.u.base_url", "gateway/v1", "http:// or https://"),
        ("llm.providers.u.provider_kind", "opnai", "Did you mean 'openai'"),
        ("llm.providers.u", "m", "is a table"),
        ("llm.default_provider.x", "m", "no key 'llm.default_provider.x'"),
        ("version", "2", "set by rath"),
        ("a..b", "m", "is no key"),
        ("llm.providers.u.model", None, "no value"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(
    rath: Rath, own: Path, key: str, value: str | None, words: str
) -> None:
    before = own.read_text()
    result = rath("config set", key, *([] if value is None else [value]), ends=2, out="", err=words)
    assert len(result.stderr.splitlines()) <= 2
    assert own.read_text() == before


def test_what_rath_does_not_know_can_be_forced(rath: Rath, own: Path) -> None:
    assert rath("config set --force llm.providers.u.x [1]").exit_code == 0
    assert rath("config set --force llm.providers.u.provider_kind mine").exit_code == 0
    entry = ConfigStore(own).get_llm_provider("u")
    assert (entry.model_extra, entry.provider_kind) == ({"x": [1]}, "mine")


@pytest.mark.parametrize("args", [("-",), ()], ids=["dash", "nothing"])
def test_a_key_is_read_from_stdin_and_kept_apart(
    rath: Rath, own: Path, args: tuple[str, ...]
) -> None:
    result = rath("config set llm.providers.u.api_key", *args, input=f"  {CANARY}\n")
    beside = own.with_name("credentials.json")
    assert (result.exit_code, result.stdout) == (0, f"llm.providers.u.api_key = ***, in {beside}\n")
    assert CANARY not in result.output + own.read_text()
    assert json.loads(beside.read_text())["llm"]["providers"] == {"u": CANARY}
    assert {path.stat().st_mode & 0o777 for path in (own, beside)} == {0o600}


def test_a_key_on_the_command_line_is_warned_about(rath: Rath, own: Path) -> None:
    result = rath("config set llm.providers.u.api_key", CANARY, ends=0)
    assert "warning: what is typed here stays in the shell's history" in result.stderr
    assert CANARY not in result.output
    assert ConfigStore(own).get_llm_provider("u").api_key == CANARY


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mcp.servers.s.command", f"x --token {CANARY}"),
        ("llm.providers.u.base_url", f"https://me:{CANARY}@h/v1"),
    ],
)
def test_a_secret_inside_a_value_is_not_repeated(rath: Rath, key: str, value: str) -> None:
    result = rath("config set", key, value, ends=0)
    assert CANARY not in result.output


@pytest.mark.parametrize(("given", "words"), [("", "input ended"), ("\n", "nothing was given")])
def test_no_key_on_stdin_is_a_problem(rath: Rath, own: Path, given: str, words: str) -> None:
    rath("config set llm.providers.u.api_key -", input=given, ends=1, err=words)
    assert ConfigStore(own).get_llm_provider("u").api_key == "key-u"


def test_any_value_can_be_read_from_stdin(rath: Rath, own: Path) -> None:
    assert rath("config set llm.providers.u.model -", input="new\n").exit_code == 0
    assert ConfigStore(own).get_llm_provider("u").model == "new"


def test_a_half_made_server_is_not_written(rath: Rath, own: Path) -> None:
    result = rath("config set mcp.servers.s.env.LEVEL", CANARY, ends=1)
    assert "mcp.servers.s: needs either command" in result.stderr
    assert CANARY not in result.output + own.read_text()


@pytest.mark.parametrize("key", ["llm.default_provider", "llm.providers.u.model"])
@pytest.mark.usefixtures("own")
def test_a_value_that_does_not_count_here_is_told(rath: Rath, project: Path, key: str) -> None:
    theirs = write_config(project, llm_config("u", u={"provider_kind": "local"}))
    note = f"note: it does not count in this directory, where {theirs} comes first\n"
    assert note in rath("config set --user", key, "x").stderr


def test_a_default_without_an_entry_is_told(rath: Rath) -> None:
    result = rath("config set llm.default_provider nope")
    assert result.stderr == "note: no config has a provider 'nope' yet\n"


def test_a_first_provider_leads_to_a_default(rath: Rath) -> None:
    rath("config set llm.providers.a.model m", err="rath config set llm.default_provider a")


@pytest.mark.usefixtures("own")
def test_an_endpoint_of_a_project_leads_to_a_key(rath: Rath) -> None:
    result = rath("config set --project llm.providers.p.base_url http://p/v1")
    assert "rath config set --project llm.providers.p.api_key -" in result.stderr
    write = ("config", "set", "--project", "llm.providers.p.api_key", "-")
    assert rath(*write, input="k\n").exit_code == 0
    again = rath("config set --project llm.providers.p.base_url http://p/v2")
    assert again.stderr == ""


def test_a_broken_config_is_not_replaced(rath: Rath, own: Path) -> None:
    own.write_text("{")
    result = rath("config set llm.default_provider a")
    assert (result.exit_code, own.read_text()) == (1, "{")
    assert "line 1 col 2" in result.stderr


def test_a_broken_config_elsewhere_is_no_obstacle(rath: Rath, project: Path, own: Path) -> None:
    own.write_text("{")
    path = write_config(project, {})
    rath("config set llm.default_provider a", ends=0, err="")
    assert ConfigStore(path).config.llm.default_provider == "a"


@pytest.mark.parametrize("key", ["llm.providers.u.model", "llm.default_provider"])
def test_unset_takes_a_value_away(rath: Rath, own: Path, key: str) -> None:
    result = rath("config unset", key)
    assert (result.exit_code, result.stdout) == (0, f"{key} is gone from {own}\n")
    assert rath("config get", key).exit_code == 1


def test_unset_of_an_entry_takes_its_key_away(rath: Rath, own: Path) -> None:
    rath("config unset llm.providers.u", err="llm.default_provider still names it")
    assert ConfigStore(own).config.llm.providers == {}
    assert not own.with_name("credentials.json").exists()


def test_unset_of_a_key_says_which_file_it_was_in(rath: Rath, own: Path) -> None:
    result = rath("config unset llm.providers.u.api_key")
    assert result.stdout.endswith("credentials.json\n")
    assert ConfigStore(own).get_llm_provider("u").api_key is None


def test_unset_of_what_stands_elsewhere_says_where(rath: Rath, project: Path, own: Path) -> None:
    path = write_config(project, {})
    result = rath("config unset llm.default_provider", ends=1)
    assert result.stderr == (
        f"error: llm.default_provider is not set in {path}; it comes from: config {own}\n"
    )


@pytest.mark.parametrize("key", ["llm", "llm.providers", "llm.providers.u.modle", "a..b"])
def test_unset_refuses_whole_sections_and_unknown_keys(rath: Rath, own: Path, key: str) -> None:
    before = own.read_text()
    assert rath("config unset", key).exit_code == 2
    assert own.read_text() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", "nan"), ("temperature", "-1"), ("temperature", "inf"), ("max_tokens", "0")],
)
def test_a_number_that_no_provider_takes_is_refused(
    rath: Rath, own: Path, field: str, value: str
) -> None:
    before = own.read_bytes()
    result = rath("config set", f"llm.providers.u.{field}", "--", value)
    assert (result.exit_code, field in result.stderr) == (2, True)
    assert own.read_bytes() == before


def test_an_address_with_a_query_is_refused(rath: Rath, own: Path) -> None:
    before = own.read_bytes()
    result = rath("config set llm.providers.u.base_url", f"https://x/v1?key={CANARY}")
    assert (result.exit_code, "a query is not sent" in result.stderr) == (2, True)
    assert CANARY not in result.output
    assert own.read_bytes() == before


def test_a_change_in_between_is_kept(
    rath: Rath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = ConfigStore.save
    raced: list[Path] = []

    def save_late(self: ConfigStore) -> None:
        if not raced:
            raced.append(self.path)
            other = ConfigStore(self.path)
            other.config.llm.default_provider = "v"
            save(other)
        save(self)

    monkeypatch.setattr(ConfigStore, "save", save_late)
    assert rath("config set llm.providers.u.model new").exit_code == 0
    llm = ConfigStore(own).config.llm
    assert (llm.default_provider, llm.providers["u"].model) == ("v", "new")
