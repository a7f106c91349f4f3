"""Keys, endpoints and models, and where they came from."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rath._core.options import Sourced
from rath.llm import Provider
from rath.llm.credentials import (
    LITELLM,
    OPENAI,
    SALT_FILENAME,
    Account,
    Purpose,
    credential_digest,
    find_account,
    is_azure,
    password_in,
    public_url,
    resolve_account,
    resolve_credential,
    salt_in,
    variables_of,
    without_login,
)
from rath.llm.openai import RathOpenAIChatClient
from tests.support.machine import llm_config, own_project, trust
from tests.support.machine import write_config as write_layer

DEFAULT = "https://default.example/v1"


def write_config(directory: Path, entry: dict[str, Any], *, key: str | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps({"llm": {"providers": {"p": entry}, "default_provider": "p"}}))
    path.chmod(0o600)
    if key is not None:
        keys = directory / "credentials.json"
        keys.write_text(json.dumps({"llm": {"providers": {"p": key}}, "version": 1}))
        keys.chmod(0o600)
    return path


@pytest.fixture
def home() -> Path:
    return Path(os.environ["OPENRATH_HOME"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("OPENRATH_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "work" / ".openrath"


def resolve(provider: Provider | None = None) -> Account:
    return resolve_account(
        provider or Provider(), kind="openai", variables=OPENAI, default_base_url=DEFAULT
    )


@pytest.mark.parametrize(
    ("candidates", "found"),
    [((), ""), ((None, " ", "a"), "a"), ((" b ", "c"), "b"), ((None, ""), "")],
)
def test_the_first_credential_that_is_not_blank(
    candidates: tuple[str | None, ...], found: str
) -> None:
    assert resolve_credential(*candidates) == found


def test_the_call_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "env-key")
    write_config(home, {"base_url": "http://config/v1", "model": "config-model"}, key="config-key")
    account = resolve(Provider(api_key=" k ", base_url="http://call/v1", model="call-model"))
    assert account.api_key == Sourced("k", "call")
    assert account.base_url == Sourced("http://call/v1", "call")
    assert account.model == Sourced("call-model", "call")


def test_then_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home, {"base_url": "http://config/v1", "model": "config-model"}, key="config-key")
    monkeypatch.setenv("OPENAI_API_KEY", "  ")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "env-key")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env/v1")
    monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "env-model")
    account = resolve()
    assert account.api_key == Sourced("env-key", "env AZURE_OPENAI_API_KEY")
    assert account.base_url == Sourced("http://env/v1", "env OPENAI_BASE_URL")
    assert account.model == Sourced("env-model", "env OPENAI_DEFAULT_MODEL")


def test_then_the_config(home: Path) -> None:
    path = write_config(home, {"base_url": "http://c/v1", "model": "m"}, key="config-key")
    account = resolve()
    assert account.api_key == Sourced("config-key", f"config {home / 'credentials.json'}")
    assert account.base_url == Sourced("http://c/v1", f"config {path}")
    assert account.model == Sourced("m", f"config {path}")
    assert dict(account.origins)["base_url"] == f"config {path}"


def test_then_the_default_endpoint() -> None:
    account = resolve(Provider(api_key="k"))
    assert account.base_url == Sourced(DEFAULT, "default")
    assert account.model is None


def test_a_config_of_another_kind_gives_nothing(home: Path) -> None:
    write_config(home, {"provider_kind": "anthropic", "base_url": "http://c/v1"}, key="config-key")
    with pytest.raises(ValueError, match="No API key found"):
        resolve()


def test_a_broken_config_counts_as_none(home: Path) -> None:
    home.mkdir()
    (home / "config.json").write_text("{")
    assert resolve(Provider(api_key="k")).base_url.origin == "default"


def test_a_provider_from_config_says_so(home: Path) -> None:
    path = write_config(home, {"base_url": "http://c/v1", "model": "m"}, key="config-key")
    account = resolve(replace(Provider.from_config(), model="other"))
    assert account.base_url == Sourced("http://c/v1", f"config {path}")
    assert account.api_key.origin == f"config {home / 'credentials.json'}"
    assert account.model == Sourced("other", "call")


def test_a_missing_key_says_what_to_do(home: Path) -> None:
    with pytest.raises(ValueError, match="No API key found") as caught:
        resolve()
    for advice in (
        "`rath config init`",
        "set OPENAI_API_KEY",
        "Provider(api_key=...)",
        'provider_kind="local"',
    ):
        assert advice in str(caught.value)
    assert str(home) not in str(caught.value)


def test_a_missing_key_names_the_model_that_is_set_up(home: Path) -> None:
    write_config(home, {"provider_kind": "local", "model": "small"})
    with pytest.raises(ValueError, match=r"Provider\.from_config\(\).* of kind 'local'") as caught:
        resolve()
    assert "rath config init" not in str(caught.value)
    assert "OPENAI_API_KEY" in str(caught.value)


# ---------------------------------------------------------------- a project's own endpoint


def test_a_projects_endpoint_gets_no_key_of_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(write_config(project, {"base_url": "http://project/v1"}))
    monkeypatch.setenv("OPENAI_API_KEY", "env-key")
    with pytest.raises(ValueError, match="No API key found that may go to") as caught:
        resolve()
    assert "env-key" not in str(caught.value)


def test_neither_does_a_provider_that_was_read_from_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(write_config(project, {"base_url": "http://project/v1", "model": "m"}))
    provider = Provider.from_config()
    monkeypatch.setenv("OPENAI_API_KEY", "env-key")
    with pytest.raises(ValueError, match="No API key found that may go to"):
        resolve(provider)


def test_nor_after_the_working_directory_has_changed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(write_config(project, {"base_url": "http://project/v1"}))
    provider = Provider.from_config()
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "own-home"))
    trust(project / "config.json")
    write_config(tmp_path / "own-home", {"base_url": "http://own/v1"}, key="own-key")
    with pytest.raises(ValueError, match="No API key found that may go to"):
        resolve(provider)


def test_a_key_of_the_same_project_goes_there(project: Path) -> None:
    trust(write_config(project, {"base_url": "http://project/v1"}, key="project-key"))
    assert resolve().api_key.value == "project-key"
    assert resolve(replace(Provider.from_config(), api_key=None)).api_key.value == "project-key"


def test_a_key_of_the_call_goes_there(project: Path) -> None:
    trust(write_config(project, {"base_url": "http://project/v1"}))
    account = resolve(Provider(api_key="call-key"))
    assert account.api_key == Sourced("call-key", "call")
    assert account.from_project


def test_a_users_endpoint_takes_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(project, {"model": "m"})
    monkeypatch.setenv("OPENAI_API_KEY", "env-key")
    assert resolve().api_key.value == "env-key"
    assert resolve(Provider(base_url="http://call/v1")).api_key.value == "env-key"


# ---------------------------------------------------------------- a project's config, a user's


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that may hold a config beside that of the user in `home`."""
    (tmp_path / "machine").mkdir()
    return own_project(tmp_path / "machine", monkeypatch)


@pytest.fixture
def user(work: Path) -> Path:
    return work.with_name("home")


def test_a_project_may_name_the_model_of_the_users_account(work: Path, user: Path) -> None:
    own = write_layer(user, llm_config(u={"base_url": "http://u/v1", "model": "mu"}), {"u": "ku"})
    theirs = write_layer(work, llm_config(p={"model": "mp"}))
    account = resolve()
    assert account.model == Sourced("mp", f"config {theirs}")
    assert account.base_url == Sourced("http://u/v1", f"config {own}")
    assert account.api_key == Sourced("ku", f"config {own.with_name('credentials.json')}")
    assert not account.from_project


@pytest.mark.parametrize("has_key", [False, True], ids=["without a key", "with a key"])
def test_a_projects_endpoint_gets_nothing_of_the_users_account(
    work: Path, user: Path, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    write_layer(user, llm_config("u", u={"model": "mu", "base_url": "http://u/v1"}), {"u": "ku"})
    write_layer(work, llm_config(p={"base_url": "http://p/v1"}), {"p": "kp"} if has_key else None)
    monkeypatch.setenv("OPENAI_API_KEY", "env-key")
    account = find_account(Provider(), kind="openai", variables=OPENAI, default_base_url=DEFAULT)
    assert (account.base_url.value, account.from_project) == ("http://p/v1", True)
    assert (account.api_key.value, account.model) == ("kp" if has_key else "", None)


def test_a_projects_key_goes_to_no_endpoint_of_the_user(work: Path, user: Path) -> None:
    write_layer(user, llm_config("u", u={"model": "mu", "base_url": "http://u/v1"}))
    trust(write_layer(work, llm_config(p={}), {"p": "kp"}))
    account = resolve()
    assert (account.base_url.value, account.api_key.value) == (DEFAULT, "kp")


def test_a_named_account_of_the_user_takes_no_endpoint_of_the_project(
    work: Path, user: Path
) -> None:
    write_layer(user, llm_config(u={"model": "mu"}), {"u": "ku"})
    write_layer(work, llm_config("p", p={"base_url": "http://evil/v1"}))
    account = resolve(Provider.from_config("u"))
    assert (account.base_url.value, account.api_key.value) == (DEFAULT, "ku")


def test_an_entry_of_the_same_name_fills_up_a_named_one(work: Path, user: Path) -> None:
    write_layer(user, llm_config("v", v={}, u={"base_url": "http://u/v1"}), {"u": "ku", "v": "kv"})
    write_layer(work, llm_config(u={"model": "mp"}))
    account = resolve(Provider.from_config("u"))
    assert (account.base_url.value, account.api_key.value) == ("http://u/v1", "ku")
    assert account.model is not None
    assert account.model.value == "mp"


def test_the_default_of_the_project_chooses_among_the_users_entries(work: Path, user: Path) -> None:
    write_layer(user, llm_config("a", a={"model": "ma"}, b={"model": "mb"}), {"a": "ka", "b": "kb"})
    assert resolve().api_key.value == "ka"
    write_layer(work, llm_config("b"))
    assert resolve().api_key.value == "kb"


def test_a_broken_config_is_reported_where_a_key_is_missing(work: Path, user: Path) -> None:
    write_layer(user, {}).write_text("{")
    with pytest.raises(ValueError, match=r"No API key found.*line 1 col 2"):
        resolve()


@pytest.mark.parametrize(
    ("purpose", "llm", "key"),
    [
        ("chat", {"embedding_provider": "e", "default_provider": "d"}, "kd"),
        ("embedding", {"embedding_provider": "e", "default_provider": "d"}, "ke"),
        ("vlm", {"vlm_provider": "e", "default_provider": "d"}, "ke"),
        ("embedding", {"vlm_provider": "e", "default_provider": "d"}, "kd"),
        ("embedding", {"default_provider": "anthropic"}, ""),
        ("embedding", {"embedding_provider": "anthropic"}, "ka"),
        ("embedding", {}, ""),
        ("chat", {}, "kf"),
    ],
)
def test_the_purpose_decides_where_to_begin(
    user: Path, purpose: Purpose, llm: dict[str, str], key: str
) -> None:
    providers = {"first": {}, "d": {}, "e": {}, "anthropic": {"provider_kind": "anthropic"}}
    keys = {"first": "kf", "d": "kd", "e": "ke", "anthropic": "ka"}
    write_layer(user, {"llm": {**llm, "providers": providers}}, keys)
    account = find_account(
        Provider(), kind="openai", variables=OPENAI, default_base_url="", purpose=purpose
    )
    assert account.api_key.value == key


def test_the_beginning_of_the_error_can_be_chosen() -> None:
    with pytest.raises(ValueError, match=r"^No key at all\. Run .*, set LITELLM_API_KEY"):
        resolve_account(
            Provider(),
            kind="litellm",
            variables=LITELLM,
            default_base_url="",
            missing="No key at all",
        )


def test_a_kind_of_somebody_else_reads_none_of_our_variables() -> None:
    variables = variables_of("smoke")
    assert (variables.model, variables.base_url, variables.api_key("")) == ((), (), ())


# ---------------------------------------------------------------- the OpenAI client


def test_the_client_needs_a_key_at_once() -> None:
    with pytest.raises(ValueError, match="No API key found"):
        RathOpenAIChatClient(Provider(model="m"))


def test_an_azure_host_prefers_the_azure_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "openai-key")
    monkeypatch.setenv("AZURE_API_KEY", "azure-key")
    for base_url, origin in [
        ("https://x.openai.azure.com", "env AZURE_API_KEY"),
        ("https://h.example/x.azure.com", "env OPENAI_API_KEY"),
    ]:
        route = RathOpenAIChatClient(Provider(base_url=base_url)).target("m")
        assert dict(route.origins)["api_key"] == origin


def test_the_session_may_have_given_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "openai-key")
    route = RathOpenAIChatClient(Provider(model="m")).target(None).with_provider_origin("session")
    assert dict(route.origins) == {
        "model": "session",
        "base_url": "default",
        "api_key": "env OPENAI_API_KEY",
    }


# ---------------------------------------------------------------- digests


def test_a_digest_is_stable_in_one_home_and_hides_the_key(home: Path) -> None:
    key = Sourced("sk-canary-0123456789", "env X")
    digest = credential_digest(key)
    assert digest == credential_digest(key)
    assert digest.startswith("env X ")
    assert key.value not in digest
    assert (home / SALT_FILENAME).stat().st_mode & 0o777 == 0o600


def test_two_homes_give_two_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Sourced("sk-canary-0123456789", "call")
    first = credential_digest(key)
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "another"))
    assert credential_digest(key) != first


@pytest.mark.parametrize("place", ["file", "file/home"])
def test_a_home_that_cannot_be_written_gives_a_digest_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / place))
    key = Sourced("sk-canary-0123456789", "call")
    assert credential_digest(key).endswith(" process")
    assert credential_digest(key) == credential_digest(key)


def test_the_salt_stays_out_of_repositories(home: Path) -> None:
    credential_digest(Sourced("k", "call"))
    assert (home / ".gitignore").read_text().startswith("*")


def test_a_salt_that_another_process_made_meanwhile_is_taken(home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        salts = set(pool.map(salt_in, [home / SALT_FILENAME] * 16))
    assert len(salts) == 1
    assert [path.name for path in home.iterdir() if path.name.startswith(".credential")] == []


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
def test_a_login_is_reported_from_the_rest(url: str, password: str, rest: str) -> None:
    assert password_in(url) == password
    assert without_login(url) == rest


def test_what_is_no_url_has_no_password() -> None:
    assert password_in("http://h:port/") == ""
