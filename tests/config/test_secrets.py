"""Credentials, secrets and their redaction; no canary is written anywhere."""

from __future__ import annotations

import copy
import json
import logging
import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.pretty import pretty_repr

from rath.config import ConfigStore
from rath.config.credentials import secrets_from_config, split_secrets
from rath.config.layers import find_llm_provider
from rath.config.redaction import HIDDEN, is_secret_file, looks_secret, redact_setting
from rath.config.secrets import (
    chmod_user_only,
    ensure_config_dir_gitignore,
    ensure_project_gitignore_entry,
    warn_if_world_readable,
)
from rath.llm import Provider
from rath.llm.credentials import OPENAI, find_account
from tests.support.machine import llm_config, write_config

keys = st.none() | st.text()
entries = st.fixed_dictionaries({"model": st.text()}, optional={"api_key": keys})
sections = st.fixed_dictionaries({"providers": st.dictionaries(st.text(), entries)})
payloads = st.fixed_dictionaries({"llm": sections, "backend": sections, "version": st.just(1)})


@given(payloads)
def test_split_leaves_no_key_in_the_config_and_its_argument_alone(payload: dict[str, Any]) -> None:
    before = copy.deepcopy(payload)
    config, _ = split_secrets(payload)
    assert payload == before
    left = [entry for s in ("llm", "backend") for entry in config[s]["providers"].values()]
    assert not any("api_key" in entry for entry in left)


@given(payloads)
def test_every_key_that_is_not_blank_is_found_again(payload: dict[str, Any]) -> None:
    expected = {
        (section, name): entry["api_key"]
        for section in ("llm", "backend")
        for name, entry in payload[section]["providers"].items()
        if (entry.get("api_key") or "").strip()
    }
    assert secrets_from_config(split_secrets(payload)[1]) == expected


def test_credentials_have_the_documented_form() -> None:
    payload = {"llm": {"providers": {"main": {"api_key": "k", "model": "m"}}}}
    config, credentials = split_secrets(payload)
    assert config == {"llm": {"providers": {"main": {"model": "m"}}}}
    assert credentials == {"llm": {"providers": {"main": "k"}}}


@pytest.mark.parametrize(
    "payload",
    [{}, {"llm": 1}, {"llm": {"providers": []}}, {"llm": {"providers": {"a": 1}}}],
    ids=["empty", "section", "providers", "entry"],
)
def test_odd_shapes_hold_no_keys(payload: dict[str, Any]) -> None:
    assert split_secrets(payload) == (payload, {})
    assert secrets_from_config(payload) == {}


LOGGER = "rath.config.secrets"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permission bits are a POSIX matter")


def test_config_directory_is_ignored_complete(tmp_path: Path) -> None:
    ensure_config_dir_gitignore(tmp_path)
    lines = (tmp_path / ".gitignore").read_text().splitlines()
    assert lines == ["*", "!.gitignore", "!config.json.example"]


def test_config_directory_that_is_not_there_is_made(tmp_path: Path) -> None:
    ensure_config_dir_gitignore(tmp_path / "new" / ".openrath")
    assert (tmp_path / "new" / ".openrath" / ".gitignore").is_file()


def test_existing_gitignore_of_a_config_directory_stays(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")
    ensure_config_dir_gitignore(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_top_of_a_repository_is_not_ignored(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    ensure_config_dir_gitignore(tmp_path)
    assert not (tmp_path / ".gitignore").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ".openrath/\n"),
        ("a\n", "a\n.openrath/\n"),
        ("a", "a\n.openrath/\n"),
        (".openrath\n", ".openrath\n"),
        ("/.openrath/\r\nb\r\n", "/.openrath/\r\nb\r\n"),
    ],
    ids=["empty", "line", "no-line-end", "no-slash", "slashes"],
)
def test_project_entry_is_added_once(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / ".gitignore"
    path.write_bytes(before.encode())
    ensure_project_gitignore_entry(tmp_path)
    ensure_project_gitignore_entry(tmp_path)
    assert path.read_bytes() == after.encode()


def test_project_without_gitignore_gets_none(tmp_path: Path) -> None:
    ensure_project_gitignore_entry(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602], ids=oct)
def test_readable_file_is_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "config.json"
    path.touch()
    path.chmod(mode)
    warn_if_world_readable(path)
    warn_if_world_readable(path)
    assert [r.levelno for r in caplog.records if r.name == LOGGER] == [logging.WARNING]
    assert "permissions" in caplog.text


def test_private_file_is_not_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config.json"
    path.touch()
    chmod_user_only(path)
    warn_if_world_readable(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [r for r in caplog.records if r.name == LOGGER] == []


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "--api-key", "TOKEN", "auth_token", "proxy_password", "PGPASSWORD",
     "client-secret", "Authorization", "cookie", "env", "headers", "credentials"],
)  # fmt: skip
def test_a_telling_name_is_a_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["model", "base_url", "max_tokens", "max_completion_tokens", "budget_total_tokens"]
)
def test_other_names_and_counts_of_tokens_are_none(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    "path",
    [
        ".env", ".env.local", "prod.env", "a/.netrc", ".ssh/config", "home/.aws/anything", ".npmrc",
        "id_ed25519", "tls/server.PEM", "credentials.json", "api-keys.txt", "my_password", "token",
        "Secrets.yaml", "aws.credentials.ini",
    ],
)  # fmt: skip
def test_these_files_hold_secrets(path: str) -> None:
    assert is_secret_file(path, b"")


@pytest.mark.parametrize(
    "path",
    [
        "auth.py", "src/tokens.rs", "tokenizer.json", "author.txt", "keyboard.cfg", ".env.example",
        "id_rsa.pub", "monkey", "environment.yml", "README.md", "secrets.py",
    ],
)  # fmt: skip
def test_these_files_hold_none(path: str) -> None:
    assert not is_secret_file(path, b"max_tokens = 3")


def test_a_file_with_a_key_in_it_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-canary-0123456789")
    monkeypatch.setenv("AUTH_MODE", "standard")
    assert is_secret_file("a.py", b"key = 'sk-canary-0123456789'")
    assert is_secret_file("a", b"-----BEGIN RSA PRIVATE KEY-----")
    assert not is_secret_file("a.py", b"a standard way; -----BEGIN PUBLIC KEY-----")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model", "m", "m"),
        ("api_key", "canary", HIDDEN),
        ("password", 1234, HIDDEN),
        ("api_key", None, None),
        ("api_key", "", ""),
        ("env", {"A": "canary"}, {"A": HIDDEN}),
        ("x", {"a": [{"token": "canary"}], "b": 1}, {"a": [{"token": HIDDEN}], "b": 1}),
        ("command", ["x", "--token", "canary", "y"], ["x", "--token", HIDDEN, "y"]),
        ("command", ["x", "--token=canary"], ["x", f"--token={HIDDEN}"]),
        ("base_url", "http://u:canary@h/v1?key=canary", f"http://{HIDDEN}@h/v1?{HIDDEN}"),
        ("base_url", "http://h:1/v1#a", "http://h:1/v1#a"),
    ],
)
def test_what_may_be_displayed_holds_no_secret(name: str, value: object, expected: object) -> None:
    assert redact_setting(name, value) == expected


CANARY = "canary-0123456789"
SHOWS: tuple[Callable[[object], str], ...] = (repr, str, format, pformat, pretty_repr)
SECRET_NAMES = st.sampled_from(
    ["api_key", "token", "PASSWORD", "client_secret", "authorization", "x-api-key", "env"]
)


def table_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A table around secrets."""
    return st.dictionaries(st.sampled_from(["a", "proxy", "extra"]), inner, min_size=1)


def hidden_in(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A table or a list around secrets."""
    return st.lists(inner, min_size=1, max_size=2) | table_of(inner)


secrets: st.SearchStrategy[Any] = SECRET_NAMES.map(lambda name: {name: CANARY})
addresses = st.sampled_from(
    [f"https://user:{CANARY}@h/v1", f"https://{CANARY}@h/v1", f"https://h/v1?key={CANARY}"]
)
commands = st.sampled_from([["x", "--token", CANARY], ["x", f"--api-key={CANARY}"]])
anywhere = st.recursive(secrets | addresses, hidden_in, max_leaves=4)
model_endpoints: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"api_key": st.just(CANARY), "base_url": addresses, "more": anywhere}
)
tool_servers: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"command": commands, "env": st.just({"HOST": CANARY})}
)
sandboxes: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"api_key": st.just(CANARY), "options": table_of(anywhere)}
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Configs with a secret wherever one may stand."""
    return {
        "llm": {"default_provider": "a", "providers": {"a": draw(model_endpoints)}},
        "mcp": {"servers": {"s": draw(tool_servers)}},
        "backend": {"providers": {"b": draw(sandboxes)}},
        "more": draw(anywhere),
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs())
def test_nothing_shows_a_secret(home: Path, config: Any) -> None:
    write_config(home, config)
    found = find_llm_provider()
    provider = Provider.from_config()
    account = find_account(provider, kind="openai", variables=OPENAI, default_base_url="")
    assert account.api_key.value == CANARY
    shown = [found, found.store, found.store.config, provider, provider.config_entry, account]
    assert CANARY not in "".join(show(each) for show in SHOWS for each in shown)


@pytest.mark.parametrize(
    "broken",
    [
        f'{{"llm": {{"providers": {{"a": {{"api_key": "{CANARY}", }}}}}}}}',
        f'{{"llm": {{"providers": {{"a": {{"api_key": ["{CANARY}"]}}}}}}}}',
        f'["{CANARY}"]',
    ],
    ids=["json", "schema", "shape"],
)
@pytest.mark.usefixtures("project")
def test_no_error_shows_a_secret(home: Path, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    write_config(home, {}).write_text(broken)
    with pytest.raises(RuntimeError) as caught:
        find_llm_provider("a")
    with caplog.at_level(logging.DEBUG):
        account = find_account(Provider(), kind="openai", variables=OPENAI, default_base_url="")
    assert account.api_key.value == ""
    assert "counts as empty" in caplog.text
    assert CANARY not in caplog.text + "".join(traceback.format_exception(caught.value))


def test_no_lookup_error_shows_a_secret(home: Path) -> None:
    write_config(home, llm_config(a={"api_key": CANARY}), {"a": CANARY})
    with pytest.raises(KeyError) as caught:
        find_llm_provider("b")
    assert CANARY not in str(caught.value)


def test_a_saved_config_holds_no_key_of_a_model_or_a_sandbox(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_config(
        home,
        {
            "llm": {"providers": {"a": {"api_key": CANARY}}},
            "backend": {"providers": {"b": {"api_key": CANARY}}},
        },
    )
    with caplog.at_level(logging.DEBUG):
        ConfigStore(path).save()
    assert CANARY not in path.read_text() + caplog.text
    assert json.loads(path.with_name("credentials.json").read_text()) == {
        "llm": {"providers": {"a": CANARY}},
        "backend": {"providers": {"b": CANARY}},
        "version": 1,
    }
