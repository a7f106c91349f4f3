"""Variables, directories and manifests of the configuration."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import rath
from rath._core.options import Sourced
from rath.config.env import (
    EnvKind,
    all_env_specs,
    env_flag,
    env_reference_markdown,
    env_value,
    get_env_spec,
    resolve_env,
    resolve_with_origin,
)
from rath.config.manifest import (
    ManifestVersionError,
    check_manifest,
    ensure_manifest,
    plane_schema_versions,
    read_manifest,
)
from rath.config.paths import (
    comes_from_project,
    config_layer_paths,
    is_project_local,
    resolve_config_dir,
    resolve_config_path,
)
from rath.config.store import ConfigStore

DOCUMENTED = [
    "OPENRATH_HOME",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_DEFAULT_MODEL",
    "OPENAI_API_VERSION",
    "AZURE_OPENAI_ENDPOINT",
    "AZURE_OPENAI_API_KEY",
    "AZURE_API_KEY",
    "AZURE_OPENAI_API_VERSION",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_DEFAULT_MODEL",
    "LITELLM_API_KEY",
    "LITELLM_API_BASE",
    "LITELLM_MODEL",
    "OPEN_SANDBOX_DOMAIN",
    "OPENSANDBOX_DOMAIN",
    "OPEN_SANDBOX_API_KEY",
    "RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND",
]


def test_documented_variables_are_declared_once_and_without_default() -> None:
    names = [spec.name for spec in all_env_specs()]
    assert set(DOCUMENTED) <= set(names)
    assert len(set(names)) == len(names)
    assert {get_env_spec(name).default for name in DOCUMENTED} == {None}


def test_every_alias_is_declared() -> None:
    aliases = [alias for spec in all_env_specs() for alias in spec.aliases]
    assert [get_env_spec(alias).name for alias in aliases] == aliases


def test_every_key_is_a_secret() -> None:
    keys = {spec.name for spec in all_env_specs() if spec.name.endswith(("_KEY", "_HEADERS"))}
    assert keys == {spec.name for spec in all_env_specs() if spec.kind is EnvKind.SECRET}


def test_undeclared_variable_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"OPENAI_API_KYE.*Did you mean 'OPENAI_API_KEY'"):
        env_value("OPENAI_API_KYE", environ={})


def test_value_is_stripped() -> None:
    assert env_value("OPENAI_API_KEY", environ={"OPENAI_API_KEY": " k\n"}) == "k"


@pytest.mark.parametrize("environ", [{}, {"OPENAI_API_KEY": " "}], ids=["absent", "blank"])
def test_unset_variable_gives_none(environ: dict[str, str]) -> None:
    assert env_value("OPENAI_API_KEY", environ=environ) is None


def test_alias_is_read_when_the_name_is_blank_and_the_origin_says_so() -> None:
    environ = {"OPEN_SANDBOX_DOMAIN": "", "OPENSANDBOX_DOMAIN": "d"}
    expected = Sourced("d", "env OPENSANDBOX_DOMAIN")
    assert resolve_with_origin("OPEN_SANDBOX_DOMAIN", environ=environ) == expected


def test_origin_of_an_unset_variable_is_the_default() -> None:
    assert resolve_with_origin("LITELLM_MODEL", environ={}) == Sourced(None, "default")


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("TRUE", True), ("yes", True), ("On", True), ("0", False)]
)
def test_flag_words(text: str, expected: bool) -> None:
    name = "RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND"
    assert env_flag(name, environ={name: text}) is expected


def test_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_MODEL", "m")
    assert env_value("LITELLM_MODEL") == "m"


def test_explicit_value_hides_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_MODEL", "m")
    assert resolve_env("LITELLM_MODEL", None, " ", " mine ") == "mine"
    assert resolve_env("LITELLM_MODEL", None, " ") == "m"


def test_nothing_anywhere_resolves_to_an_empty_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITELLM_MODEL", raising=False)
    assert resolve_env("LITELLM_MODEL") == ""


PACKAGE = Path(rath.__file__).parent
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}
READERS = {"env_flag", "env_value", "get_env_spec", "resolve_env", "resolve_with_origin"}
TOUCH_THE_ENVIRONMENT = {
    "_async/runtime.py",  # reads what is declared; below the package of the declarations
    "config/env.py",  # reads what is declared, for all others
    "config/redaction.py",  # finds in a setting what the environment holds as a secret
    "backend/abc.py",  # sends the names of variables in place of their values
    "backend/bubblewrap/command.py",  # tells which of a command's variables were only inherited
    "backend/host/process.py",  # hands a fixed list on to commands
    "backend/host/supervisor.py",  # hands on what the loader of programs needs
    "cli/app.py",  # sees whether a shell asks it to complete words
    "cli/completion.py",  # finds the shell, and where that keeps its scripts
    "cli/terminal.py",  # asks which pager is wanted, and whether colours are
    "cli/runs.py",  # reads the token from the variable that an option names
    "cli/render.py",  # asks how wide the terminal is said to be
    "conformance/sandbox.py",  # sets what a command must not see, starts what it must not
    "jobs/ray.py",  # Ray is told by variables how to start, and where its cluster is
    "llm/http_transport.py",  # sees whether there are proxies, before it asks Python for them
    # Hides in an error text whatever a variable holds, and keeps LiteLLM from the network.
    "llm/litellm/connection.py",
    "mcp/spec.py",  # hands a fixed list on to servers, and what their settings name
    "memory/adapters/openviking/server.py",  # hands a fixed list on to the server it starts
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file of the library does with environment variables."""

    path: str
    touches: bool
    """Whether it names `os.environ`, `os.getenv` or one of their kin."""

    declared: frozenset[object]
    """What its calls of `READERS` give as the name."""


@cache
def readings() -> tuple[Reading, ...]:
    """What the files of the library do that name the environment or a reader of it.

    Only these are parsed, and no tree is kept: a tree is some hundred times as large as its text.
    """
    texts = {path: path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return tuple(
        reading(path.relative_to(PACKAGE).as_posix(), ast.parse(text))
        for path, text in texts.items()
        if any(name in text for name in (*ENVIRONMENT, *READERS))
    )


def reading(path: str, tree: ast.AST) -> Reading:
    nodes = list(ast.walk(tree))
    declared = {
        argument.value
        for node in nodes
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in READERS
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant)
    }
    return Reading(path, any(map(is_the_environment, nodes)), frozenset(declared))


def is_the_environment(node: ast.AST) -> bool:
    """Whether a node is `os.environ`, `os.getenv` or one of these names, imported."""
    if isinstance(node, ast.Attribute):
        return node.attr in ENVIRONMENT
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in ENVIRONMENT for alias in node.names)
    return isinstance(node, ast.Name) and node.id in ENVIRONMENT


def test_nobody_reads_the_environment_past_the_declarations() -> None:
    assert {each.path for each in readings() if each.touches} == TOUCH_THE_ENVIRONMENT


def test_every_variable_that_is_read_by_name_is_declared() -> None:
    names = {name for each in readings() for name in each.declared}
    assert names
    assert names <= {spec.name for spec in all_env_specs()}


def test_reference_page_has_a_row_for_every_variable() -> None:
    lines = env_reference_markdown().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == [spec.name for spec in all_env_specs()]
    assert {line.count("|") for line in lines} == {6}


@pytest.mark.usefixtures("project")
def test_user_directory_is_the_last_choice(home: Path) -> None:
    assert resolve_config_dir() == home / ".openrath"
    assert not (home / ".openrath").exists()


def test_project_directory_hides_the_user_directory(project: Path) -> None:
    (project / ".openrath").mkdir()
    assert resolve_config_dir() == project / ".openrath"


def test_project_file_of_that_name_does_not_count(project: Path, home: Path) -> None:
    (project / ".openrath").touch()
    assert resolve_config_dir() == home / ".openrath"


def test_variable_hides_the_project_directory(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".openrath").mkdir()
    monkeypatch.setenv("OPENRATH_HOME", " ~/elsewhere/../new \n")
    assert resolve_config_dir() == home / "new"


def test_variable_that_names_a_file_is_an_error(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "file").touch()
    monkeypatch.setenv("OPENRATH_HOME", str(project / "file"))
    with pytest.raises(FileNotFoundError, match="not a directory"):
        resolve_config_dir()


def test_blank_variable_counts_as_unset(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", "  ")
    assert resolve_config_path() == home / ".openrath" / "config.json"
    assert project.exists()


def test_only_the_directory_of_the_working_directory_is_project_local(
    project: Path, home: Path
) -> None:
    assert is_project_local(project / ".openrath")
    assert not is_project_local(home / ".openrath")


@pytest.mark.usefixtures("project")
def test_user_directory_is_no_gift_of_a_project_even_at_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert is_project_local(home / ".openrath")
    assert not comes_from_project(home / ".openrath")


def test_the_project_is_read_before_the_user(project: Path, home: Path) -> None:
    (project / ".openrath").mkdir()
    directories = [path.parent for path in config_layer_paths()]
    assert directories == [project / ".openrath", home / ".openrath"]


@pytest.mark.usefixtures("project")
def test_without_a_project_only_the_user_is_read(home: Path) -> None:
    assert config_layer_paths() == (home / ".openrath" / "config.json",)


def test_a_project_directory_that_is_the_users_by_a_link_is_read_once(
    project: Path, home: Path
) -> None:
    (home / ".openrath").mkdir()
    (project / ".openrath").symlink_to(home / ".openrath")
    assert len(config_layer_paths()) == 1


@pytest.fixture
def homeless(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user whose home nobody knows."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    return project


@pytest.mark.usefixtures("homeless")
def test_an_unknown_home_says_what_to_set() -> None:
    with pytest.raises(FileNotFoundError, match="set OPENRATH_HOME"):
        resolve_config_dir()


def test_an_unknown_home_needs_none_where_a_directory_is_named(
    homeless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(homeless / "own"))
    assert config_layer_paths() == (homeless / "own" / "config.json",)


def test_an_unknown_home_leaves_the_project(homeless: Path) -> None:
    (homeless / ".openrath").mkdir()
    assert config_layer_paths() == (homeless / ".openrath" / "config.json",)
    assert comes_from_project(homeless / ".openrath")


@pytest.mark.usefixtures("project")
def test_a_home_of_nobody_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENRATH_HOME", "~no-such-user-here/x")
    with pytest.raises(FileNotFoundError, match="no such user"):
        resolve_config_dir()


def test_links_in_a_circle_are_no_project(project: Path, home: Path) -> None:
    (project / ".openrath").symlink_to(project / ".openrath")
    assert resolve_config_dir() == home / ".openrath"
    assert not is_project_local(home / ".openrath")


def test_a_deleted_working_directory_leaves_the_user(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = project / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert config_layer_paths() == (home / ".openrath" / "config.json",)
    assert ConfigStore.load(home / ".openrath" / "config.json").config.version == 1


WRITTEN = {"layout_version": 1, "planes": {"config": 1, "backend": 1, "memory": 1}}


def test_new_directory_gets_the_documented_manifest(tmp_path: Path) -> None:
    root = tmp_path / "new"
    assert ensure_manifest(root) == WRITTEN
    assert json.loads((root / "manifest.json").read_text()) == WRITTEN
    assert plane_schema_versions() == WRITTEN["planes"]


def test_current_manifest_is_not_written_again(tmp_path: Path) -> None:
    ensure_manifest(tmp_path)
    before = (tmp_path / "manifest.json").stat()
    ensure_manifest(tmp_path)
    after = (tmp_path / "manifest.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_unknown_keys_and_planes_are_preserved(tmp_path: Path) -> None:
    found = {"layout_version": 0, "planes": {"config": 0, "extra": 4}, "note": "x"}
    (tmp_path / "manifest.json").write_text(json.dumps(found))
    planes = {"config": 1, "backend": 1, "memory": 1, "extra": 4}
    assert ensure_manifest(tmp_path) == {"layout_version": 1, "planes": planes, "note": "x"}


@pytest.mark.parametrize("content", [None, "", "{", "[1]", b"\xff"], ids=repr)
def test_absent_or_damaged_manifest_reads_as_none_and_is_no_obstacle(
    tmp_path: Path, content: str | bytes | None
) -> None:
    if content is not None:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / "manifest.json").write_bytes(data)
    assert read_manifest(tmp_path) is None
    check_manifest(tmp_path)
    assert ensure_manifest(tmp_path) == WRITTEN


def test_newer_layout_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"layout_version": 2}')
    with pytest.raises(ManifestVersionError, match="layout version 2"):
        check_manifest(tmp_path)
    with pytest.raises(ManifestVersionError):
        ensure_manifest(tmp_path)
    assert read_manifest(tmp_path) == {"layout_version": 2}
