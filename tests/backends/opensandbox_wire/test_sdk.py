"""The SDK's own clients work with the server as with the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support.opensandbox_server import Answer, CutStream, OpenSandboxServer
from tests.support.opensandbox_server.raw import IMAGE

pytest.importorskip("opensandbox", reason="the SDK is not installed")
pytest.importorskip("code_interpreter", reason="the SDK's code interpreter is not installed")

from code_interpreter import CodeInterpreter, CodeInterpreterSync
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.exceptions import (
    SandboxApiException,
    SandboxException,
    SandboxReadyTimeoutException,
)
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.sandboxes import SandboxFilter, SnapshotFilter
from opensandbox.sync import SandboxManagerSync, SandboxSync


@pytest.fixture
def connection(server: OpenSandboxServer) -> ConnectionConfigSync:
    return ConnectionConfigSync(domain=server.domain, api_key=server.api_key)


@pytest.fixture
def sandbox(connection: ConnectionConfigSync) -> Iterator[SandboxSync]:
    made = SandboxSync.create(IMAGE, connection_config=connection)
    yield made
    made.close()


def test_the_environment_leads_here(
    server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    made = SandboxSync.create(IMAGE, env={"A": "1"}, metadata={"k": "v"}, entrypoint=["run"])
    assert made.commands.run("echo $A").text == "1"
    assert made.get_info().entrypoint == ["run"]
    made.destroy()
    assert server.sandbox_ids == []


def test_a_sandbox_is_connected_to_by_its_id(
    sandbox: SandboxSync, connection: ConnectionConfigSync
) -> None:
    sandbox.files.write_file("/w/a", "text")
    other = SandboxSync.connect(sandbox.id, connection_config=connection)
    assert other.files.read_file("/w/a") == "text"
    other.close()


def test_commands_have_their_options(sandbox: SandboxSync) -> None:
    opts = RunCommandOpts(working_directory="/tmp", envs={"A": "1"}, uid=1000)
    ran = sandbox.commands.run("pwd; echo $A; id -u; exit 3", opts=opts)
    assert (ran.text, ran.exit_code) == ("/tmp\n1\n1000", 3)


def test_a_deadline_is_exit_code_minus_one(sandbox: SandboxSync) -> None:
    ran = sandbox.commands.run("sleep 100", opts=RunCommandOpts(timeout=timedelta(milliseconds=50)))
    assert ran.exit_code == -1


def test_a_variable_is_kept_for_later_commands(sandbox: SandboxSync) -> None:
    sandbox.commands.set_env("KEPT", "yes")
    assert sandbox.commands.run("echo $KEPT").text == "'yes'"  # with the quotes, as recorded


def test_a_session_runs_in_one_shell(sandbox: SandboxSync) -> None:
    session = sandbox.commands.create_session(working_directory="/tmp")
    sandbox.commands.run_in_session(session, "export A=1")
    assert sandbox.commands.run_in_session(session, "echo $A; pwd").text == "1\n/tmp"
    sandbox.commands.delete_session(session)
    with pytest.raises(SandboxApiException):
        sandbox.commands.run_in_session(session, "true")


def test_a_background_command_is_followed(sandbox: SandboxSync) -> None:
    started = sandbox.commands.run("sleep 100", opts=RunCommandOpts(background=True))
    status = sandbox.commands.get_command_status(str(started.id))
    assert status.running
    assert sandbox.commands.get_background_command_logs(str(started.id)).cursor == 0


def test_files_of_all_kinds(sandbox: SandboxSync) -> None:
    files = sandbox.files
    files.write_files([WriteEntry(path="/w/a", data="x y", mode=644)])
    files.create_directories([WriteEntry(path="/w/d", mode=700)])
    files.move_files([MoveEntry.model_validate({"src": "/w/a", "dest": "/w/d/b"})])
    files.replace_contents([ContentReplaceEntry(path="/w/d/b", old_content="x", new_content="z")])
    files.set_permissions([SetPermissionEntry(path="/w/d/b", mode=600)])
    found = files.list_directory(DirectoryListEntry(path="/w", depth=2))
    assert [(each.path, each.mode) for each in found] == [("/w/d", 700), ("/w/d/b", 600)]
    assert [each.path for each in files.search(SearchEntry(path="/w", pattern="*"))] == ["/w/d/b"]
    assert files.read_bytes("/w/d/b", range_header="bytes=0-0") == b"z"
    files.delete_directories(["/w"])
    with pytest.raises(SandboxApiException) as caught:
        files.get_file_info(["/w"])
    assert caught.value.status_code == 404


def test_code_runs_in_contexts(sandbox: SandboxSync) -> None:
    with CodeInterpreterSync.create(sandbox) as interpreter:
        context = interpreter.codes.create_context("python")
        interpreter.codes.run("x = 20", context=context)
        ran = interpreter.codes.run("print('out')\nx + 1", context=context)
        listed = interpreter.codes.list_contexts("python")
        interpreter.codes.delete_contexts("python")
    assert (ran.result[0].text, ran.logs.stdout[0].text) == ("21", "out\n")
    assert [each.id for each in listed] == [context.id]


def test_the_interpreter_finds_no_runtime_in_another_image(
    connection: ConnectionConfigSync,
) -> None:
    made = SandboxSync.create("debian:12", connection_config=connection)
    with pytest.raises(SandboxReadyTimeoutException):
        CodeInterpreterSync.create(made, ready_timeout=timedelta(milliseconds=100))
    made.close()


def test_a_sandbox_is_paused_renewed_and_resumed(
    server: OpenSandboxServer, sandbox: SandboxSync, connection: ConnectionConfigSync
) -> None:
    sandbox.pause()
    assert sandbox.get_info().status.state == "Paused"
    sandbox.renew(timedelta(hours=2))
    server.advance(3600)
    again = SandboxSync.resume(sandbox.id, connection_config=connection)
    assert again.commands.run("echo back").text == "back"
    again.close()


def test_sandboxes_and_snapshots_are_managed(
    sandbox: SandboxSync, connection: ConnectionConfigSync
) -> None:
    sandbox.files.write_file("/w/a", "then")
    sandbox.patch_metadata({"team": "rath"})
    with SandboxManagerSync.create(connection) as manager:
        listed = manager.list_sandbox_infos(SandboxFilter(metadata={"team": "rath"}))
        assert [each.id for each in listed.sandbox_infos] == [sandbox.id]
        taken = sandbox.create_snapshot("first")
        assert manager.get_snapshot(taken.id).status.state == "Ready"
        assert manager.list_snapshots(SnapshotFilter()).snapshot_infos[0].name == "first"
    sandbox.files.write_file("/w/a", "now")
    copy = SandboxSync.create(snapshot_id=taken.id, connection_config=connection)
    assert copy.files.read_file("/w/a") == "then"
    copy.close()


def test_an_error_of_the_server_has_its_code(connection: ConnectionConfigSync) -> None:
    with pytest.raises(SandboxApiException) as caught:
        SandboxSync.connect("none", connection_config=connection)
    assert caught.value.status_code == 404
    assert caught.value.error.code == "DOCKER::SANDBOX_NOT_FOUND"
    assert caught.value.request_id


def test_a_wrong_key_is_refused(server: OpenSandboxServer) -> None:
    wrong = ConnectionConfigSync(domain=server.domain, api_key="wrong")
    with pytest.raises(SandboxApiException) as caught:
        SandboxSync.create(IMAGE, connection_config=wrong)
    assert caught.value.status_code == 401


def test_a_command_is_sent_once_though_its_stream_breaks(
    server: OpenSandboxServer, sandbox: SandboxSync
) -> None:
    server.inject("POST", "/command", CutStream(2))
    with pytest.raises(SandboxException):
        sandbox.commands.run("echo x >> /tmp/x")
    assert server.calls["POST", "/command"] == 1


def test_a_refused_command_is_sent_once(server: OpenSandboxServer, sandbox: SandboxSync) -> None:
    server.inject("POST", "/command", Answer(503, {"code": "BUSY", "message": "later"}))
    with pytest.raises(SandboxApiException):
        sandbox.commands.run("true")
    assert server.calls["POST", "/command"] == 1


def test_the_asynchronous_clients_work_too(server: OpenSandboxServer) -> None:
    async def use() -> tuple[str, str, str]:
        config = ConnectionConfig(domain=server.domain, api_key=server.api_key)
        made = await Sandbox.create(IMAGE, connection_config=config)
        await made.files.write_file("/w/a", "text")
        async with await CodeInterpreter.create(made) as interpreter:
            ran = await interpreter.codes.run("print(open('/w/a').read())", language="python")
        said = await made.commands.run("cat /w/a")
        read = await made.files.read_file("/w/a")
        await made.destroy()
        return ran.text, said.text, read

    assert asyncio.run(use()) == ("text", "text", "text")
    assert server.sandbox_ids == []
