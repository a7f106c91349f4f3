"""No secret is seen in anything that a config shows of itself."""

from __future__ import annotations

import json
import logging
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
from rath.config.layers import find_llm_provider
from rath.llm import Provider
from rath.llm.credentials import OPENAI, find_account
from tests.support.machine import llm_config, write_config

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
