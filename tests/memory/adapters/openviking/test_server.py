"""How a server of our own is started, shared and ended; on a program that starts as it does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.config import ConfigStore
from rath.errors import UntrustedConfig
from rath.memory import (
    MemoryBackendError,
    MemoryExecutionFailure,
    MemoryOpFind,
    MemoryStoreSpec,
)
from rath.memory.adapters.openviking import OpenVikingMemoryBackend
from rath.memory.adapters.openviking.server import join_server, read_options
from tests.support.machine import trust
from tests.support.waiting import wait_until

FAKE = Path(__file__).parents[3] / "support" / "openviking_fake_server.py"
COMMAND = [sys.executable, str(FAKE)]
MODELS: Mapping[str, Any] = {"embedding": {"dense": {"provider": "openai"}}}

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs file locks of POSIX"),
    pytest.mark.timeout(60),
]


def spec(path: Path, **config: Any) -> MemoryStoreSpec:
    options = {"path": str(path), "server": COMMAND, "config": {**MODELS, **config}}
    return MemoryStoreSpec(options=options)


def pid_of_server(path: Path) -> int:
    return int((path / "pid").read_text())


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return not Path("/proc").is_dir()
    return status[status.rindex(b")") + 2 :][:1] != b"Z"


def keeper_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/stat").read_text()
    return int(status[status.rindex(")") + 2 :].split()[1])


def test_a_server_lives_as_long_as_its_store(tmp_path: Path) -> None:
    backend = OpenVikingMemoryBackend()
    store = backend.open(spec(tmp_path))
    pid = pid_of_server(tmp_path)
    assert is_running(pid)
    backend.close(store)
    assert not is_running(pid)
    assert not (tmp_path / ".rath" / "server.json").exists()


def test_what_names_keys_is_for_its_user_alone(tmp_path: Path) -> None:
    backend = OpenVikingMemoryBackend()
    store = backend.open(spec(tmp_path, vlm={"model": "m"}))
    home = tmp_path / ".rath"
    config = json.loads((home / "ov.conf").read_text())
    modes = [stat.S_IMODE((home / name).stat().st_mode) for name in ("ov.conf", "server.json", ".")]
    backend.close(store)
    assert modes == [0o600, 0o600, 0o700]
    assert config["server"]["host"] == "127.0.0.1"
    assert config["server"]["auth_mode"] == "trusted"
    assert len(config["server"]["root_api_key"]) == 32
    assert config["storage"] == {"workspace": str(tmp_path)}
    assert config["vlm"] == {"model": "m"}
    assert config["server"]["root_api_key"] in (home / "server.log").read_text()


def test_a_second_store_attaches_and_the_last_one_ends_it(tmp_path: Path) -> None:
    backend = OpenVikingMemoryBackend()
    first = backend.open(spec(tmp_path))
    pid = pid_of_server(tmp_path)
    second = backend.open(spec(tmp_path))
    backend.close(first)
    assert is_running(pid)
    assert pid_of_server(tmp_path) == pid
    backend.close(second)
    assert not is_running(pid)


def test_a_path_can_be_opened_again_at_once(tmp_path: Path) -> None:
    backend = OpenVikingMemoryBackend()
    pids: set[int] = set()
    for _ in range(2):
        backend.close(backend.open(spec(tmp_path)))
        pids.add(pid_of_server(tmp_path))
    assert len(pids) == 2


def test_a_server_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(MemoryBackendError, match="ended before it answered") as caught:
        OpenVikingMemoryBackend().open(spec(tmp_path, fake={"fails": "no model, no server"}))
    assert "no model, no server" in str(caught.value)


def test_a_program_that_is_missing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = OpenVikingMemoryBackend()
    monkeypatch.setenv("OPENRATH_OPENVIKING_SERVER", "/no/such/server --flag")
    given = MemoryStoreSpec(options={"path": str(tmp_path), "config": MODELS})
    with pytest.raises(MemoryBackendError, match="OPENRATH_OPENVIKING_SERVER"):
        backend.open(given)
    wrong = MemoryStoreSpec(
        options={"path": str(tmp_path), "config": MODELS, "server": ["/no/such/server"]}
    )
    with pytest.raises(MemoryBackendError, match="No such file"):
        backend.open(wrong)


def test_the_program_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_OPENVIKING_SERVER", f"{sys.executable} {FAKE}")
    backend = OpenVikingMemoryBackend()
    store = backend.open(MemoryStoreSpec(options={"path": str(tmp_path), "config": MODELS}))
    backend.close(store)
    assert (tmp_path / "pid").exists()


def test_a_path_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(MemoryBackendError, match="no server can be started"):
        OpenVikingMemoryBackend().open(spec(tmp_path / "file" / "store"))


PROGRAM = """
import sys, time
from rath.memory import MemoryStoreSpec, get
path, fake = sys.argv[1:]
options = {"path": path, "server": [sys.executable, fake], "config": {"embedding": {"dense": {}}}}
store = get("openviking").open(MemoryStoreSpec(options=options))
print("open", flush=True)
sys.stdin.read()
"""


def started(path: Path) -> subprocess.Popen[bytes]:
    """A program that has opened a store, and ends when its stdin does."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), str(FAKE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"open\n"
    return program


def test_no_server_outlives_a_program_that_was_killed(tmp_path: Path) -> None:
    with started(tmp_path) as program:
        pid = pid_of_server(tmp_path)
        program.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "the server runs on")


def test_no_server_outlives_a_program_that_closes_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as program:
        pid = pid_of_server(tmp_path)
        program.communicate()
    assert program.returncode == 0
    wait_until(lambda: not is_running(pid), "the server runs on")


def test_a_server_that_two_programs_use_outlives_the_one_that_started_it(tmp_path: Path) -> None:
    with started(tmp_path) as program:
        backend = OpenVikingMemoryBackend()
        store = backend.open(spec(tmp_path))
        pid = pid_of_server(tmp_path)
        program.send_signal(signal.SIGKILL)
    assert is_running(pid)
    backend.close(store)
    assert not is_running(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_no_server_outlives_its_keeper_and_the_next_one_starts(tmp_path: Path) -> None:
    backend = OpenVikingMemoryBackend()
    store = backend.open(spec(tmp_path))
    pid = pid_of_server(tmp_path)
    os.kill(keeper_of(pid), signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "the server runs on")
    again = backend.open(spec(tmp_path))
    assert pid_of_server(tmp_path) != pid
    backend.close(again)
    backend.close(store)


def test_a_server_that_ends_is_started_anew(tmp_path: Path) -> None:
    backend = OpenVikingMemoryBackend()
    store = backend.open(spec(tmp_path))
    os.kill(pid_of_server(tmp_path), signal.SIGKILL)
    wait_until(lambda: not (tmp_path / ".rath" / "server.json").exists(), "its keeper stays")
    lost = store.dispatch(MemoryOpFind("x"))
    assert isinstance(lost, MemoryExecutionFailure)
    assert lost.kind == "transport"
    backend.close(store)
    backend.close(backend.open(spec(tmp_path)))


def test_a_start_that_nobody_waits_for_leaves_no_server(tmp_path: Path) -> None:
    backend = OpenVikingMemoryBackend()

    async def open_briefly() -> None:
        opening = asyncio.ensure_future(backend.aopen(spec(tmp_path)))
        while not (tmp_path / ".rath" / "ov.conf").exists():  # noqa: ASYNC110  # a file tells nothing
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.wait([opening])

    runtime().run(open_briefly, label="a test")
    backend.close(backend.open(spec(tmp_path)))
    wait_until(lambda: not (tmp_path / ".rath" / "server.json").exists(), "a server runs on")


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no OpenViking server is named"),
        ({"url": "host:1933"}, "must begin with http"),
        ({"url": 3}, "url must be a text"),
        ({"url": "http://[::1"}, "url must name a host"),
        ({"url": "http://"}, "url must name a host"),
        ({"path": ""}, "no OpenViking server is named"),
        ({"path": 3}, "path must name a directory"),
        ({"path": "p", "server": 'a "b'}, "server must be a command: "),
        ({"url": "http://h", "timeout": 0}, "timeout must be"),
        ({"url": "http://h", "timeout": True}, "timeout must be"),
        ({"path": "p", "server": []}, "server must be a command"),
        ({"path": "p", "server": 3}, "server must be a command"),
        ({"path": "p", "config": 3}, "config must be"),
        ({"path": "p", "embedding_dimensions": 0}, "embedding_dimensions must be"),
    ],
)
def test_options_that_cannot_be(options: Mapping[str, Any], words: str) -> None:
    with pytest.raises(MemoryBackendError, match=words):
        OpenVikingMemoryBackend().open(MemoryStoreSpec(options=options))


def test_a_namespace_is_refused() -> None:
    with pytest.raises(MemoryBackendError, match="user_id"):
        read_options(MemoryStoreSpec(namespace="x", options={"url": "http://h"}))


def test_a_url_counts_more_than_a_path_and_the_key_is_not_displayed() -> None:
    given = {"url": "http://h/", "path": "p", "api_key": "secret-0123456789", "timeout": 3}
    options = read_options(MemoryStoreSpec(user_id="u", options=given))
    assert (options.url, options.path, options.timeout) == ("http://h", None, 3.0)
    assert "secret" not in repr(options)


@pytest.mark.parametrize("command", ["evil --now", ["evil", "--now"]])
def test_a_command_of_the_projects_config_is_not_run_before_it_is_trusted(
    command: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project" / ".openrath"
    project.mkdir(parents=True)
    entry = {"backend_kind": "openviking", "path": "p", "server": command}
    config = {"version": 1, "memory": {"providers": {"m": entry}}}
    (project / "config.json").write_text(json.dumps(config))
    monkeypatch.delenv("OPENRATH_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project.parent)
    assert ConfigStore.load().is_project_local
    with pytest.raises(UntrustedConfig, match=r"server .*evil"):
        MemoryStoreSpec.from_config("m")
    trust(project / "config.json")
    assert read_options(MemoryStoreSpec.from_config("m")).server == ("evil", "--now")


# ---------------------------------------------------------------- models


def write_config(home: Path, **providers: Any) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.json").write_text(json.dumps({"version": 1, "llm": {"providers": providers}}))


def opened_config(path: Path, **options: Any) -> Mapping[str, Any]:
    backend = OpenVikingMemoryBackend()
    given = {"path": str(path), "server": COMMAND, **options}
    backend.close(backend.open(MemoryStoreSpec(options=given)))
    config: Mapping[str, Any] = json.loads((path / ".rath" / "ov.conf").read_text())
    return config


def test_models_are_named_by_their_entries(tmp_path: Path) -> None:
    write_config(
        tmp_path / "openrath-home",
        vectors={"provider_kind": "openai", "model": "text-embedding-3-small", "api_key": "k1"},
        words={"model": "m", "api_key": "k2", "base_url": "http://127.0.0.1:9/v1"},
    )
    config = opened_config(
        tmp_path / "store", embedding_provider="vectors", chat_provider="words",
        config={"embedding": {"dense": {"batch": 3}}},
    )  # fmt: skip
    dense = config["embedding"]["dense"]
    assert (dense["model"], dense["api_key"], dense["dimension"], dense["batch"]) == (
        "text-embedding-3-small",
        "k1",
        1536,
        3,
    )
    assert config["vlm"] == {
        "provider": "openai",
        "model": "m",
        "api_key": "k2",
        "api_base": "http://127.0.0.1:9/v1",
    }


def test_a_file_may_hold_the_config(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text(json.dumps({**MODELS, "server": {"port": 1}}))
    config = opened_config(tmp_path / "store", config=str(file))
    assert config["embedding"] == MODELS["embedding"]
    assert config["server"]["port"] != 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs a model for embeddings"),
        ({"config": "/no/such/ov.conf"}, "cannot be read"),
        ({"embedding_provider": "nobody"}, "embedding_provider: "),
        ({"embedding_provider": "claude"}, "kind 'anthropic'"),
        ({"embedding_provider": "odd"}, "embedding_dimensions"),
        ({"config": MODELS, "chat_provider": "nobody"}, "chat_provider: "),
        ({"config": {"vlm": {"api_base": "http://e"}}, "chat_provider": "words"}, "is not sent"),
    ],
)
def test_models_that_cannot_be(options: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    write_config(
        tmp_path / "openrath-home",
        claude={"provider_kind": "anthropic", "model": "m"},
        odd={"model": "odd-vectors", "api_key": "k"},
        words={"model": "m", "api_key": "k"},
    )
    given = {"path": str(tmp_path / "store"), "server": COMMAND, **options}
    with pytest.raises(MemoryBackendError, match=words):
        OpenVikingMemoryBackend().open(MemoryStoreSpec(options=given))


def test_a_provider_without_a_model_is_reported(tmp_path: Path) -> None:
    write_config(tmp_path / "openrath-home", bare={"api_key": "k"})
    options = {"path": str(tmp_path / "store"), "config": MODELS, "chat_provider": "bare"}
    with pytest.raises(MemoryBackendError, match=r"rath config set llm\.providers\.bare\.model"):
        OpenVikingMemoryBackend().open(MemoryStoreSpec(options={**options, "server": COMMAND}))


def test_a_config_that_is_no_object_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ov.conf").write_text("[]")
    given = {"path": str(tmp_path), "server": COMMAND, "config": tmp_path / "ov.conf"}
    with pytest.raises(MemoryBackendError, match=r"must hold a JSON object, .* not list"):
        OpenVikingMemoryBackend().open(MemoryStoreSpec(options=given))


def test_a_server_that_is_not_there_is_reported() -> None:
    given = MemoryStoreSpec(options={"url": "http://127.0.0.1:9", "timeout": 5})
    with pytest.raises(MemoryBackendError, match="cannot be reached"):
        OpenVikingMemoryBackend().open(given)


def test_a_server_that_keeps_silent_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(MemoryBackendError, match="did not answer within"):
            OpenVikingMemoryBackend().open(MemoryStoreSpec(options={"url": url, "timeout": 0.2}))


def test_a_share_that_comes_too_late_is_given_back(tmp_path: Path) -> None:
    options, state = read_options(spec(tmp_path)), tmp_path / ".rath" / "server.json"

    async def open_too_late() -> None:
        opening = asyncio.ensure_future(join_server(options))
        await asyncio.sleep(0)
        wait_until(state.exists, "no server")  # holds the loop, so that the share is not seen
        opening.cancel()
        await asyncio.wait([opening])

    runtime().run(open_too_late, label="a test")
    wait_until(lambda: not state.exists(), "a server runs on")
