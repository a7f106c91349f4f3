"""`rath config`: where values come from, how they are read, set and set up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.cli.doctor_config import place_in, places_of
from rath.config import ConfigStore
from rath.config.schema import LLMProviderConfig
from rath.llm import Provider
from tests.cli.conftest import Process, Rath
from tests.support.machine import llm_config, write_config

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def paths_in(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of everything inside a value, in the order of its text."""
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(cast("dict[str | int, object]", value).items())
    elif isinstance(value, list):
        items = list(enumerate(cast("list[object]", value)))
    found: list[tuple[str | int, ...]] = []
    for name, inner in items:
        found += [(*path, name), *paths_in(inner, (*path, name))]
    return found


@given(JSON, st.sampled_from([None, 1, "\t"]))
def test_every_member_and_item_has_the_place_where_it_begins(
    value: Any, indent: int | str | None
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    places = places_of(text)
    assert list(places) == paths_in(value)
    lines = text.split("\n")
    for path, (line, column) in places.items():
        rest = lines[line - 1][column - 1 :]
        if isinstance(path[-1], str):
            assert rest.startswith(json.dumps(path[-1], ensure_ascii=False))
        else:
            assert rest


def test_lines_and_columns_count_from_one() -> None:
    assert places_of('{"a": 1,\n  "b": [true]}') == {
        ("a",): (1, 2), ("b",): (2, 3), ("b", 0): (2, 9),
    }  # fmt: skip


def test_what_is_missing_has_the_place_of_what_it_is_missing_in() -> None:
    places = places_of('{"a": {"b": {}}}')
    assert place_in(places, ("a", "b", "c")) == (1, 8)
    assert place_in(places, ("x",)) is None
    assert place_in(places, ()) is None


@pytest.mark.parametrize("text", ["", "{", '{"a"', "[1,", "{a: 1}"])
def test_what_is_no_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        places_of(text)


CANARY = "canary-0123456789"


def listed(rath: Rath) -> dict[str, tuple[Any, str]]:
    """What `rath config list --json` says: key to value and origin."""
    result = rath("config list --json", ends=0)
    return {
        each["key"]: (each["value"], each["origin"])
        for each in json.loads(result.stdout)["settings"]
    }


def test_nothing_set_leads_to_init(rath: Rath) -> None:
    rath("config list", ends=0, out="", err="rath config init")


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


def test_the_endpoint_of_a_project_is_printed_without_a_key(
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
def test_a_broken_config_is_reported_with_the_readable_rest(
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


def test_an_entry_without_a_name_is_printed(rath: Rath, home: Path) -> None:
    write_config(home, llm_config(None, **{"": {"model": "m"}}))
    result = rath("config list")
    assert (result.exit_code, "model" in result.stdout) == (0, True)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_lone_surrogate_is_printed(
    process: Process, home: Path, options: tuple[str, ...]
) -> None:
    write_config(home, llm_config("u", u={"model": "m\ud800"}))
    result = process("config", "list", *options)
    assert (result.returncode, result.stderr) == (0, "")
    assert "ud800" in result.stdout


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
def test_a_key_is_read_from_stdin_and_stored_in_credentials(
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
def test_an_overridden_value_is_reported(rath: Rath, project: Path, key: str) -> None:
    theirs = write_config(project, llm_config("u", u={"provider_kind": "local"}))
    note = f"note: it does not count in this directory, where {theirs} comes first\n"
    assert note in rath("config set --user", key, "x").stderr


def test_a_default_without_an_entry_is_reported(rath: Rath) -> None:
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
def test_unset_refuses_complete_sections_and_unknown_keys(rath: Rath, own: Path, key: str) -> None:
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


def test_a_concurrent_change_is_preserved(
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


@pytest.fixture
def own_config(home: Path) -> Path:
    """Where the user's config will be."""
    return home / ".openrath" / "config.json"


def entry_in(path: Path, name: str = "main") -> LLMProviderConfig:
    return ConfigStore(path).get_llm_provider(name)


def answers(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


# ---------------------------------------------------------------- without questions


def test_without_anything_the_embedded_model_is_chosen(rath: Rath, own_config: Path) -> None:
    rath("config init --yes", ends=0, out=f"Wrote {own_config}: provider main, the default: local")
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
    own_config: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    kind: str,
    model: str | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = rath("config init --yes")
    entry = entry_in(own_config)
    assert (result.exit_code, entry.provider_kind, entry.model) == (0, kind, model)
    assert (entry.base_url, entry.api_key) == (None, None)
    assert CANARY not in result.output + own_config.read_text()


def test_what_is_read_at_each_run_is_named(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.openai.azure.com")
    result = rath("config init --yes", out="Its endpoint: AZURE_OPENAI_ENDPOINT, read at each run")
    assert "Its key: AZURE_OPENAI_API_KEY, read at each run" in result.stdout
    assert "warning: no model is named" in result.stderr


def test_a_second_time_changes_nothing(rath: Rath, own_config: Path) -> None:
    rath("config init --yes")
    before = own_config.stat().st_mtime_ns
    result = rath("config init --yes")
    assert (result.exit_code, own_config.stat().st_mtime_ns) == (0, before)
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
    rath: Rath, own_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    given = ("--kind", "anthropic", "--model", "m", "--base-url", "http://h", "--name", "x")
    assert rath("config init --yes", *given).exit_code == 0
    entry = entry_in(own_config, "x")
    assert (entry.provider_kind, entry.model, entry.base_url) == ("anthropic", "m", "http://h")


@pytest.mark.parametrize("option", [("--kind", "smoke"), ("--base-url", "h")])
def test_an_option_that_does_not_fit_is_a_misuse(
    rath: Rath, own_config: Path, option: tuple[str, str]
) -> None:
    assert rath("config init --yes", *option).exit_code == 2
    assert not own_config.exists()


def test_a_project_config_stays_out_of_the_repository(rath: Rath, project: Path) -> None:
    (project / ".gitignore").write_text("dist\n")
    rath("config init --yes --project", out=f"{project / '.gitignore'} keeps .openrath/ out")
    assert (project / ".gitignore").read_text() == "dist\n.openrath/\n"
    assert (project / ".openrath" / ".gitignore").read_text().startswith("*\n")


# ---------------------------------------------------------------- with questions


def test_the_answers_are_written(rath: Rath, own_config: Path) -> None:
    given = answers("user", "openai", "m", "http://h/v1", CANARY)
    result = rath("config init", input=given, ends=0)
    entry = entry_in(own_config)
    assert (entry.provider_kind, entry.model, entry.base_url) == ("openai", "m", "http://h/v1")
    assert CANARY not in result.output + own_config.read_text()
    keys: dict[str, Any] = json.loads(own_config.with_name("credentials.json").read_text())
    assert keys["llm"]["providers"] == {"main": CANARY}
    assert Provider.from_config().model == "m"


def test_questions_go_to_stderr_and_what_was_done_to_stdout(rath: Rath, own_config: Path) -> None:
    result = rath("config init", input=answers("", "anthropic", "m", "", CANARY))
    assert "Who serves the model" in result.stderr
    assert result.stdout.splitlines() == [
        f"Wrote {own_config}: provider main, the default: anthropic, model m",
        f"Wrote {own_config.with_name('credentials.json')}: its key; only you can read it",
        "In a program: flow.Provider.from_config()",
        "To see what is set: rath config list --show-origin",
        "To test it: rath doctor --live",
    ]


def test_no_key_means_that_of_the_environment(
    rath: Rath, own_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = rath("config init", input=answers("", "openai", "m", "", ""))
    assert "OPENAI_API_KEY is not set now" in result.stderr
    assert entry_in(own_config).api_key is None
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    again = rath("config init --force", input=answers("", "openai", "m", "", ""))
    assert "Its key: OPENAI_API_KEY, read at each run" in again.stdout
    assert CANARY not in again.output


def test_the_environment_is_offered_as_the_answer(
    rath: Rath, own_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_DEFAULT_MODEL", "claude")
    assert rath("config init", input=answers("", "", "", "", "")).exit_code == 0
    entry = entry_in(own_config)
    assert (entry.provider_kind, entry.model) == ("anthropic", "claude")


def test_a_wrong_answer_is_asked_again(rath: Rath, own_config: Path) -> None:
    given = answers("me", "user", "opnai", "openai", "m", "gateway", "http://h/v1", "k")
    result = rath("config init", input=given, ends=0, err="'me' is none of user, project")
    assert "'opnai' is none of openai, anthropic" in result.stderr
    assert entry_in(own_config).base_url == "http://h/v1"


def test_the_embedded_model_needs_no_endpoint_and_no_key(rath: Rath, own_config: Path) -> None:
    rath("config init", input=answers("", "local", "model.gguf"), ends=0)
    entry = entry_in(own_config)
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


def test_options_are_not_asked_for(rath: Rath, own_config: Path) -> None:
    given = ("--user", "--kind", "openai", "--model", "m", "--base-url", "http://h/v1")
    rath("config init", *given, input=answers(CANARY), ends=0)
    assert entry_in(own_config).api_key == CANARY


def test_an_input_that_ends_early_writes_nothing(rath: Rath, own_config: Path) -> None:
    result = rath("config init", input=answers("user", "openai"), ends=1, out="")
    assert "error: the input ended before everything was answered" in result.stderr
    assert not own_config.exists()


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


KEY = "sk-proj-0123456789abcdefghij"


def test_a_key_is_no_name_of_a_model_and_never_shown(rath: Rath, home: Path) -> None:
    for words in (
        ("config init --yes --model", KEY),
        ("config set llm.providers.u.model", KEY),
    ):
        done = rath(*words, ends=2, out="", err="this is an API key by its form")
        assert KEY not in done.stderr
    assert not (home / ".openrath").exists()
    done = rath("config init", input=answers("", "openai", KEY, "gpt-5.5", "", ""), ends=0)
    assert "this is an API key by its form" in done.stderr
    assert KEY not in done.output
    assert "model gpt-5.5" in done.stdout


@pytest.mark.parametrize("given", ["gpt-5.5", "claude-sonnet-4-5", "my-own-model"])
def test_the_name_of_a_model_is_no_key(rath: Rath, given: str) -> None:
    done = rath(
        "config init --model my-own-model", input=answers("", "openai", "", given, ""), ends=0
    )
    assert f"{given!r} is the name of a model, and no API key" in done.stderr
    assert "credentials.json" not in done.stdout


@pytest.mark.parametrize("key", ["EMPTY", "gpt", "0123456789", "sk-ant-api03-x"])
def test_other_texts_may_be_keys(rath: Rath, key: str) -> None:
    rath("config set llm.providers.u.api_key -", input=f"{key}\n", ends=0)
