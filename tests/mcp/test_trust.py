"""Servers of a project's config are used only after the user has said so."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from rath.config import ConfigStore
from rath.config.paths import own_config_dir
from rath.errors import UntrustedServer
from rath.flow.tool import mcp_tools_from_config
from rath.mcp.configured import configured_server
from rath.mcp.pins import pin_differences
from rath.mcp.trust import TRUST_FILENAME, is_trusted, revoke_trust, trust_server
from tests.support.machine import own_project
from tests.support.mcp_own import scripted, texts, tool, tools

SERVER = scripted({"tools/list": tools(tool("t", annotations={"readOnlyHint": True})),
                   "tools/call": texts("hello")})  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_project(tmp_path, monkeypatch)


def written(directory: Path, **entry: Any) -> ConfigStore:
    """The config of a directory with the server `s`."""
    directory.mkdir(exist_ok=True)
    command = [SERVER.command, *SERVER.args]
    servers = {"s": {"command": command, **entry}}
    payload = {"mcp": {"default_enabled": ["s"], "servers": servers}}
    (directory / "config.json").write_text(json.dumps(payload))
    return ConfigStore(directory / "config.json")


def test_a_server_of_a_project_is_not_started_before_it_is_trusted(project: Path) -> None:
    store = written(project / ".openrath")
    with pytest.raises(UntrustedServer, match="rath mcp trust s"):
        mcp_tools_from_config(store=store)
    trust_server("s", store)
    (found,) = mcp_tools_from_config(store=store)
    assert found(None, {}) == {"text": "hello"}  # type: ignore[arg-type]  # the session is not sent


def test_a_config_of_a_project_elsewhere_is_not_believed_either(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = written(project / ".openrath")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UntrustedServer, match="rath mcp trust s"):
        mcp_tools_from_config(store=ConfigStore(store.path))


@pytest.mark.parametrize("content", [{"trusted": []}, {"trusted": 1}, {}])
def test_a_file_of_another_shape_trusts_nobody(project: Path, content: dict[str, Any]) -> None:
    store = written(project / ".openrath")
    own_config_dir().mkdir(parents=True, exist_ok=True)
    (own_config_dir() / TRUST_FILENAME).write_text(json.dumps({"version": 1, **content}))
    assert not is_trusted("s", store)


def test_a_changed_entry_asks_anew(project: Path) -> None:
    trust_server("s", written(project / ".openrath"))
    assert not is_trusted("s", written(project / ".openrath", env={"A": "b"}))
    assert is_trusted("s", written(project / ".openrath"))


def test_trust_is_for_one_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust_server("s", written(project / ".openrath"))
    other = project.parent / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    assert not is_trusted("s", written(other / ".openrath"))


def test_trust_can_be_taken_back(project: Path) -> None:
    store = written(project / ".openrath")
    trust_server("s", store)
    assert revoke_trust("s", store)
    assert not is_trusted("s", store)
    assert not revoke_trust("s", store)


def test_trust_is_preserved_in_the_users_own_home_and_private(project: Path) -> None:
    trust_server("s", written(project / ".openrath"))
    file = own_config_dir() / TRUST_FILENAME
    assert project not in file.parents
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_server_of_the_user_needs_no_word(project: Path, tmp_path: Path) -> None:
    store = written(tmp_path / "own")
    assert is_trusted("s", store)
    trust_server("s", store)
    assert not (own_config_dir() / TRUST_FILENAME).exists()


def test_a_home_that_is_the_projects_own_is_not_where_trust_is_preserved(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(project / ".openrath"))
    trust_server("s", written(project / ".openrath"))
    assert not (project / ".openrath" / TRUST_FILENAME).exists()


def test_annotations_of_a_projects_server_are_not_believed(project: Path) -> None:
    store = written(project / ".openrath")
    assert not configured_server("s", store=store).believes_annotations
    believed = written(project / ".openrath", trust_annotations=True)
    assert configured_server("s", store=believed).believes_annotations


def test_annotations_of_the_users_server_are_believed(project: Path, tmp_path: Path) -> None:
    (found,) = mcp_tools_from_config("s", store=written(tmp_path / "own"))
    assert found.effects == "read_only"


@pytest.mark.parametrize(
    ("enabled", "message"),
    [([], "mcp.default_enabled is empty"), (["a", "b"], "ambiguous"), (["x"], "no MCP server")],
)
def test_without_one_default_there_is_no_server(
    tmp_path: Path, enabled: list[str], message: str
) -> None:
    path = tmp_path / "config.json"
    servers = {"a": {"command": ["a"]}, "b": {"command": ["b"]}}
    path.write_text(json.dumps({"mcp": {"default_enabled": enabled, "servers": servers}}))
    with pytest.raises(KeyError, match=message):
        mcp_tools_from_config(store=ConfigStore(path))


def test_the_projects_servers_come_before_the_users(project: Path) -> None:
    written(project / ".openrath")
    assert configured_server().store.is_project_local


def test_the_pins_of_a_projects_server_are_the_projects(project: Path, tmp_path: Path) -> None:
    store, own = written(project / ".openrath"), written(tmp_path / "own")
    trust_server("s", store)
    found = configured_server("s", store=store)
    for each in mcp_tools_from_config("s", store=store):
        each.client.close()
    assert not pin_differences(found.spec, (), project=found.project).is_new
    theirs = configured_server("s", store=own)
    assert theirs.project is None
    assert pin_differences(theirs.spec, (), project=theirs.project).is_new
