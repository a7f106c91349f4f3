"""What a project's config names acts only after the user has trusted it."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rath import flow
from rath.config import (
    ConfigStore,
    LLMProviderConfig,
    check_trusted,
    guarded_entries,
    project_of,
    revoke_trust,
    trust_entries,
    untrusted_entries,
)
from rath.config.trust import TRUST_FILENAME
from rath.errors import ConfigError, MCPServerError, UntrustedConfig, UntrustedServer
from rath.flow.tool import mcp_tools_from_config
from rath.llm import chat_client_for
from rath.llm.embedding import EmbeddingProvider, embedding_client_for
from rath.llm.vlm import VLMProvider
from rath.memory import MemoryStoreSpec
from rath.session import Session
from rath.session.persistence.store import default_store
from tests.support.chat_replies import completion
from tests.support.chat_server import ChatServer
from tests.support.litellm import needs_litellm
from tests.support.machine import llm_config, trust, write_config


@pytest.fixture
def hostile() -> Iterator[ChatServer]:
    """The endpoint that a cloned repository names."""
    with ChatServer(lambda _: completion("I am somebody else.")) as server:
        yield server


@pytest.fixture
def own() -> Iterator[ChatServer]:
    """The endpoint of the user."""
    with ChatServer(lambda _: completion("I am yours.")) as server:
        yield server


def clone(project: Path, server: ChatServer, **entry: object) -> Path:
    """Give the working directory a config that names an endpoint and a key of its own."""
    named = {"base_url": server.base_url, "model": "m", **entry}
    return write_config(project, llm_config("main", main=named), {"main": "their-key-0123456789"})


def answer(*, base_url: str | None = None, api_key: str | None = None) -> str | None:
    """What a program of the user is told, which knows nothing of the config."""
    provider = flow.Provider(model="m", base_url=base_url, api_key=api_key)
    return flow.Agent("Answer.", provider)(Session.from_user_message("a secret")).text()


# ---------------------------------------------------------------- models


def test_an_endpoint_of_a_clone_gets_no_prompt(project: Path, hostile: ChatServer) -> None:
    path = clone(project, hostile)
    with pytest.raises(UntrustedConfig) as caught:
        answer()
    assert hostile.requests == []
    assert (caught.value.file, caught.value.key) == (str(path), "llm.providers.main")
    for part in (str(path), hostile.base_url, "rath config trust", "OPENRATH_HOME="):
        assert part in str(caught.value)
    assert "their-key" not in str(caught.value)
    assert isinstance(caught.value, ConfigError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.key) == (str(caught.value), caught.value.key)


def test_after_trust_it_is_asked(project: Path, hostile: ChatServer) -> None:
    trust(clone(project, hostile))
    assert answer() == "I am somebody else."
    assert hostile.requests[0].headers["authorization"] == "Bearer their-key-0123456789"


def test_it_never_falls_back_to_the_users_own_endpoint(
    project: Path, home: Path, hostile: ChatServer, own: ChatServer
) -> None:
    write_config(home, llm_config("u", u={"base_url": own.base_url}), {"u": "own-key"})
    clone(project, hostile)
    with pytest.raises(UntrustedConfig):
        answer()
    assert hostile.requests == own.requests == []


def test_a_changed_endpoint_asks_anew_and_says_what_changed(
    project: Path, hostile: ChatServer, own: ChatServer
) -> None:
    trust(clone(project, own))
    assert answer() == "I am yours."
    clone(project, hostile)
    with pytest.raises(UntrustedConfig, match="changed since you trusted it") as caught:
        answer()
    assert f'base_url was "{own.base_url}" and is "{hostile.base_url}"' in str(caught.value)
    assert hostile.requests == []
    write_config(project, llm_config("main", main={"base_url": own.base_url}), {"main": "other"})
    with pytest.raises(UntrustedConfig, match="api_key is another one"):
        answer()
    clone(project, own, temperature=0.5, max_tokens=7, model="another", note="unknown to rath")
    assert answer() == "I am yours."


def test_the_environment_of_the_user_wins_and_needs_no_trust(
    project: Path, hostile: ChatServer, own: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone(project, hostile)
    monkeypatch.setenv("OPENAI_API_KEY", "own-key")
    with pytest.raises(UntrustedConfig):
        answer()
    monkeypatch.setenv("OPENAI_BASE_URL", own.base_url)
    assert answer() == "I am yours."
    assert own.requests[0].headers["authorization"] == "Bearer own-key"


def test_what_the_program_says_wins_and_needs_no_trust(
    project: Path, hostile: ChatServer, own: ChatServer
) -> None:
    clone(project, hostile)
    assert answer(base_url=own.base_url, api_key="own-key") == "I am yours."
    with pytest.raises(UntrustedConfig):
        answer(base_url=own.base_url)  # the key alone would be an account of somebody else
    given = flow.Provider.from_config("main", base_url=own.base_url, api_key="own-key")
    assert (given.base_url, given.model) == (own.base_url, "m")
    with pytest.raises(UntrustedConfig):
        flow.Provider.from_config("main", base_url=own.base_url)
    assert own.n_connections == 1


def test_a_key_of_the_user_reaches_no_untrusted_endpoint(
    project: Path, hostile: ChatServer
) -> None:
    write_config(project, llm_config("main", main={"base_url": hostile.base_url}))
    with pytest.raises(UntrustedConfig):
        answer(api_key="own-key")
    assert hostile.requests == []


def test_a_model_of_a_project_needs_no_trust(project: Path, home: Path, own: ChatServer) -> None:
    write_config(home, llm_config("main", main={"base_url": own.base_url}), {"main": "own-key"})
    theirs = {"model": "cheap", "temperature": 0.1, "max_tokens": 9}
    write_config(project, llm_config("main", main=theirs))
    agent = flow.Agent("Answer.", flow.Provider.from_config())
    assert agent(Session.from_user_message("hello")).text() == "I am yours."
    assert own.requests[0].json()["model"] == "cheap"
    assert guarded_entries(ConfigStore()) == []


def test_an_entry_of_the_users_name_with_another_endpoint_acts(
    project: Path, home: Path, hostile: ChatServer
) -> None:
    write_config(home, llm_config("main", main={"model": "m"}), {"main": "own-key"})
    write_config(project, llm_config(None, main={"base_url": hostile.base_url}))
    for ask in (flow.Provider.from_config, answer):
        with pytest.raises(UntrustedConfig):
            ask()


@pytest.mark.parametrize(
    "entry",
    [
        {"api_key": "k"},
        {"base_url": "http://h/v1", "provider_kind": "anthropic"},
        {"provider_kind": "litellm", "model": "huggingface/https://evil.example"},
        {"provider_kind": "local", "model": "./theirs.gguf"},
        {"provider_kind": "of-a-plugin"},
    ],
)
def test_whoever_decides_who_answers_is_not_read(project: Path, entry: dict[str, Any]) -> None:
    write_config(project, llm_config("main", main=entry))
    with pytest.raises(UntrustedConfig):
        flow.Provider.from_config()


@needs_litellm
def test_a_model_that_names_the_vendor_is_not_taken(project: Path) -> None:
    entry = {"provider_kind": "litellm", "model": "huggingface/https://evil.example"}
    path = write_config(project, llm_config("main", main=entry))
    with pytest.raises(UntrustedConfig):
        chat_client_for(flow.Provider(provider_kind="litellm"))
    chat_client_for(flow.Provider(provider_kind="litellm", model="openai/m"))
    trust(path)
    chat_client_for(flow.Provider(provider_kind="litellm"))


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"Base_URL": "http://h/v1", "base\u005furl ": "http://h/v1", "API_KEY": "k"},
        {"\uff42ase_url": "http://h/v1"},
        {"provider_kind": "anthropic", "model": "m"},
        {"provider_kind": "local"},
        {"base_url": " ", "api_key": ""},
    ],
)
def test_whatever_decides_nothing_needs_no_trust(project: Path, entry: dict[str, Any]) -> None:
    write_config(project, llm_config("main", main=entry))
    assert flow.Provider.from_config().base_url in (None, " ")


def test_a_name_of_a_variable_in_an_endpoint_is_not_filled_in(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "own-key")
    url = "http://h/${OPENAI_API_KEY}/$HOME/v1"
    trust(write_config(project, llm_config("main", main={"base_url": url})))
    assert flow.Provider.from_config().base_url == url


@pytest.mark.parametrize("field", ["embedding_provider", "vlm_provider"])
def test_embeddings_and_pictures_are_guarded_too(project: Path, field: str) -> None:
    entry = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key": "k"}
    path = write_config(project, {"llm": {field: "e", "providers": {"e": entry}}})
    kinds: list[Callable[[], object]] = [
        EmbeddingProvider.from_config if field == "embedding_provider" else VLMProvider.from_config
    ]
    if field == "embedding_provider":
        kinds.append(lambda: embedding_client_for(EmbeddingProvider(model="m")))
    for make in kinds:
        with pytest.raises(UntrustedConfig):
            make()
    trust(path)
    assert [make() for make in kinds]


# ---------------------------------------------------------------- memory, stores, tool servers


@pytest.mark.parametrize(
    "entry",
    [
        {"backend_kind": "openviking", "url": "http://h:1933"},
        {"backend_kind": "openviking", "path": "p", "server": ["evil"]},
        {"backend_kind": "of-a-plugin"},
        {"url": "http://h"},
        {"path": "../outside"},
        {"path": "~/notes"},
        {"anything": "else"},
    ],
)
def test_a_memory_of_a_project_is_not_opened(project: Path, entry: dict[str, Any]) -> None:
    path = write_config(project, {"memory": {"providers": {"local": entry}}})
    for use in (
        lambda: MemoryStoreSpec.from_config("local"),
        lambda: flow.Agent("p", flow.Provider(model="m"), memory="local"),
    ):
        with pytest.raises(UntrustedConfig, match=r"memory\.providers\.local"):
            use()
    trust(path)
    named = {name: value for name, value in entry.items() if name != "backend_kind"}
    assert MemoryStoreSpec.from_config("local").options == named


def test_a_memory_within_the_project_needs_no_trust(project: Path) -> None:
    entry = {"path": "notes", "ranking": "bm25", "min_similarity": 0.5, "chat_provider": "x"}
    write_config(project, {"memory": {"providers": {"n": entry}}})
    assert MemoryStoreSpec.from_config("n").options == entry
    (project / "notes").symlink_to(project.parent)
    with pytest.raises(UntrustedConfig):
        MemoryStoreSpec.from_config("n")
    assert MemoryStoreSpec.from_config("n", path="mine").options == {**entry, "path": "mine"}


def test_sessions_are_stored_nowhere_else_before_that_is_trusted(
    project: Path, own: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(project, {"sessions": {"store": str(project.parent / "elsewhere")}})
    monkeypatch.setenv("OPENAI_BASE_URL", own.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "own-key")
    monkeypatch.setenv("OPENRATH_PERSIST", "1")
    agent = flow.Agent("Answer.", flow.Provider(model="m"))
    with pytest.raises(UntrustedConfig, match=r"sessions\.store"):
        agent(Session.from_user_message("hello")).text()
    assert own.requests == []
    assert not (project.parent / "elsewhere").exists()
    monkeypatch.setenv("OPENRATH_STORE", str(project.parent / "mine"))
    assert default_store().where == str(project.parent / "mine")
    monkeypatch.delenv("OPENRATH_STORE")
    trust(path)
    assert default_store().where == str(project.parent / "elsewhere")


def test_a_tool_server_is_refused_by_the_same_error(project: Path) -> None:
    path = write_config(project, {"mcp": {"servers": {"s": {"command": ["evil"]}}}})
    with pytest.raises(UntrustedServer) as caught:
        mcp_tools_from_config("s")
    assert isinstance(caught.value, UntrustedConfig)
    assert isinstance(caught.value, MCPServerError)
    assert (caught.value.file, caught.value.key) == (str(path), "mcp.servers.s")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.server, again.file) == ("s", str(path))
    trust(path)
    check_trusted(ConfigStore(), "mcp", "servers", "s")


# ---------------------------------------------------------------- what is a project's


def test_a_link_to_another_directory_is_still_the_projects(
    project: Path, hostile: ChatServer, tmp_path: Path
) -> None:
    (project / ".openrath").symlink_to(project / "conf")
    (project / "conf").mkdir()
    clone(project, hostile)
    with pytest.raises(UntrustedConfig):
        answer()
    store = ConfigStore()
    os.chdir(tmp_path)
    for again in (store, ConfigStore(project / ".openrath" / "config.json")):
        with pytest.raises(UntrustedConfig):
            flow.Provider.from_config(store=again)


def test_a_file_that_is_a_link_is_still_the_projects(project: Path, hostile: ChatServer) -> None:
    path = clone(project, hostile)
    path.rename(project / "theirs.json")
    path.symlink_to(project / "theirs.json")
    with pytest.raises(UntrustedConfig):
        answer()
    trust(path)
    assert answer() == "I am somebody else."


@pytest.mark.parametrize("name", ["config.json", "credentials.json"])
def test_a_link_to_a_file_of_the_user_is_refused(
    project: Path, home: Path, hostile: ChatServer, name: str
) -> None:
    write_config(home, llm_config("main", main={"model": "m"}), {"main": "own-key"})
    path = clone(project, hostile)
    path.with_name(name).unlink()
    path.with_name(name).symlink_to(home / ".openrath" / name)
    with pytest.raises(ConfigError, match="is a link into your own directory"):
        ConfigStore()


def test_a_link_to_the_home_of_the_user_is_the_users_own(
    project: Path, home: Path, own: ChatServer
) -> None:
    write_config(home, llm_config("u", u={"base_url": own.base_url}), {"u": "own-key"})
    (project / ".openrath").symlink_to(home / ".openrath")
    assert answer() == "I am yours."


@pytest.mark.parametrize("named", [None, ".openrath", "absolute"])
def test_the_directory_of_a_clone_stays_the_projects_whoever_names_it(
    project: Path, hostile: ChatServer, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    path = clone(project, hostile)
    if named is not None:
        monkeypatch.setenv("OPENRATH_HOME", named if named[0] == "." else str(path.parent))
    with pytest.raises(UntrustedConfig):
        answer()
    trust(path)
    assert answer() == "I am somebody else."


def test_a_home_that_the_user_names_is_trusted_by_nature(
    project: Path, home: Path, own: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(home, llm_config("u", u={"base_url": own.base_url}), {"u": "own-key"})
    assert answer() == "I am yours."
    monkeypatch.chdir(home)
    assert answer() == "I am yours."
    monkeypatch.chdir(project)
    monkeypatch.setenv("OPENRATH_HOME", str(home / ".openrath"))
    assert answer() == "I am yours."
    monkeypatch.setenv("OPENRATH_HOME", str(project.parent / "other"))
    assert flow.Provider.from_config(
        store=ConfigStore(home / ".openrath" / "config.json")
    ).base_url == (own.base_url)
    assert not (home / ".openrath" / TRUST_FILENAME).exists()


def test_a_user_without_a_home_has_trusted_nothing(
    project: Path, hostile: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone(project, hostile)

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(UntrustedConfig):
        answer()


def test_trust_is_for_one_directory(
    project: Path, hostile: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(clone(project, hostile))
    other = project.parent / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    clone(other, hostile)
    with pytest.raises(UntrustedConfig):
        answer()


# ---------------------------------------------------------------- what a program writes itself


def test_what_the_user_wrote_himself_needs_no_more_words(project: Path, own: ChatServer) -> None:
    (project / ".openrath").mkdir()
    store = ConfigStore()
    entry = LLMProviderConfig(base_url=own.base_url, api_key="k", model="m")
    store.config.llm.providers["main"] = entry
    assert flow.Provider.from_config("main", store=store).base_url == own.base_url
    store.save()
    assert answer() == "I am yours."
    store.config.llm.providers["main"].base_url = f"{own.base_url}/"
    store.save()
    assert answer() == "I am yours."
    del store.config.llm.providers["main"]
    store.save()
    write_config(project, llm_config("main", main={"base_url": own.base_url}), {"main": "k"})
    with pytest.raises(UntrustedConfig):
        answer()


def test_a_change_in_a_config_of_somebody_else_trusts_nothing_of_his(
    project: Path, hostile: ChatServer, own: ChatServer
) -> None:
    clone(project, hostile)
    store = ConfigStore()
    store.config.llm.providers["main"].temperature = 0.5
    store.config.llm.providers["main"].api_key = "mine"
    store.config.llm.providers["other"] = LLMProviderConfig(base_url=own.base_url, api_key="k")
    store.save()
    with pytest.raises(UntrustedConfig, match=r"llm\.providers\.main"):
        answer()
    assert flow.Provider.from_config("other").base_url == own.base_url
    store = ConfigStore()
    store.config.llm.providers["main"] = LLMProviderConfig(base_url=own.base_url, api_key="new")
    store.save()
    assert answer() == "I am yours."


# ---------------------------------------------------------------- the file of trust


def test_trust_stands_in_the_users_own_directory_and_is_private(
    project: Path, home: Path, hostile: ChatServer
) -> None:
    trust(clone(project, hostile))
    file = home / ".openrath" / TRUST_FILENAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "their-key" not in file.read_text()
    assert not (project / ".openrath" / TRUST_FILENAME).exists()


def test_trust_is_taken_back(project: Path, hostile: ChatServer) -> None:
    store = ConfigStore(trust(clone(project, hostile)))
    assert untrusted_entries([store]) == []
    assert revoke_trust(project_of(store)) == ["llm.providers.main"]
    assert revoke_trust(project_of(store)) == []
    with pytest.raises(UntrustedConfig):
        answer()


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"version": 9}', '{"version": 1, "trusted": []}', '{"version": 1, "trusted": {}}'],
)
def test_a_damaged_file_of_trust_trusts_nothing(
    project: Path, home: Path, hostile: ChatServer, content: str
) -> None:
    clone(project, hostile)
    (home / ".openrath").mkdir()
    (home / ".openrath" / TRUST_FILENAME).write_text(content)
    with pytest.raises(ConfigError):
        answer()
    assert hostile.requests == []


TRUSTS_ONE = """
import sys
from rath.config import ConfigStore, guarded_entries, trust_entries
trust_entries(each for each in guarded_entries(ConfigStore()) if each.key[2] == sys.argv[1])
"""


def test_processes_that_trust_at_once_lose_nothing(project: Path) -> None:
    names = [f"p{number}" for number in range(4)]
    write_config(project, llm_config(None, **{name: {"base_url": "http://h"} for name in names}))

    def run(name: str) -> int:
        command = [sys.executable, "-c", TRUSTS_ONE, name]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(command, env=env, check=False).returncode

    with ThreadPoolExecutor(len(names)) as pool:
        assert set(pool.map(run, names)) == {0}
    assert untrusted_entries([ConfigStore()]) == []


def test_what_was_read_is_what_is_checked(project: Path, hostile: ChatServer) -> None:
    store = ConfigStore(clone(project, hostile))
    before = guarded_entries(store)
    clone(project, hostile, base_url="http://evil.example/v1")
    trust_entries(before)
    assert flow.Provider.from_config(store=store).base_url == hostile.base_url
    with pytest.raises(UntrustedConfig, match=r"evil\.example"):
        flow.Provider.from_config()


# ---------------------------------------------------------------- files of any shape


@pytest.mark.parametrize("name", ["config.json", "credentials.json"])
def test_a_file_that_never_ends_is_not_read(project: Path, name: str) -> None:
    path = write_config(project, {}).with_name(name)
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="not a regular file"):
        ConfigStore()


def test_a_huge_file_is_not_read(project: Path) -> None:
    path = write_config(project, {})
    with path.open("r+b") as file:
        file.truncate(100_000_000)
    with pytest.raises(ConfigError, match="larger than"):
        ConfigStore()


@pytest.mark.parametrize(
    "content",
    [
        '{"memory": {"providers": {"a": {"x": ' + "[" * 900 + "]" * 900 + "}}}}",
        '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"x": ' + "1" * 5000 + "}",
        '{"version": 1',
    ],
    ids=["deep", "deeper", "long number", "cut off"],
)
def test_a_broken_file_is_a_config_error(project: Path, content: str) -> None:
    write_config(project, {}).write_text(content)
    with pytest.raises(ConfigError):
        ConfigStore()


def test_a_long_value_is_not_repeated_by_an_error(project: Path) -> None:
    url = f"http://h/{'://' * 1_000_000}"
    write_config(project, llm_config("a" * 5000, **{"a" * 5000: {"base_url": url}}))
    with pytest.raises(UntrustedConfig) as caught:
        flow.Provider.from_config()
    assert len(str(caught.value)) < 4000
    trust_entries(guarded_entries(ConfigStore()))
    assert flow.Provider.from_config().base_url == url


def test_a_directory_whose_name_is_no_unicode_can_be_trusted(
    tmp_path: Path, hostile: ChatServer, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        odd.mkdir()
    except OSError:
        pytest.skip("this file system takes Unicode alone")
    monkeypatch.chdir(odd)
    path = clone(odd, hostile)
    with pytest.raises(UntrustedConfig):
        answer()
    trust(path)
    assert answer() == "I am somebody else."


def test_names_cannot_write_to_the_terminal(project: Path) -> None:
    name, url = "a\x1b[2J\nb\u202ec", "http://h/\x1b]0;x\x07\u202e\u0430pi"
    write_config(project, llm_config(name, **{name: {"base_url": url}}))
    with pytest.raises(UntrustedConfig) as caught:
        flow.Provider.from_config()
    said = str(caught.value)
    assert said.isprintable()
    assert r"\u0430pi" in said
    (entry,) = guarded_entries(ConfigStore())
    trust_entries([entry])
    assert json.loads(entry.texts["base_url"]) == url
