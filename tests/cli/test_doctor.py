"""`rath doctor`: configs, requirements, packages, sandboxes, memories and files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from rath import backend
from rath._core.retention import move_to_trash
from rath.backend import registry as backends
from rath.backend.opensandbox.connection import is_installed
from rath.backend.persistence import PersistentSandboxRegistry
from rath.backend.persistence.paths import fork_dir
from rath.testing import FakeBackend
from tests.cli.conftest import Process, Rath
from tests.cli.findings import CANARY, Seen, doctor, findings
from tests.support.api import INDEX_FILE_NAME
from tests.support.machine import llm_config, trust, write_config
from tests.support.store_family import Family


def tree(base: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in base.rglob("*")}


# ---------------------------------------------------------------- the whole


def test_an_empty_machine_has_no_problem_and_stays_empty(rath: Rath, project: Path) -> None:
    before = tree(project.parent)
    result = rath("doctor", ends=0)
    assert result.stdout.splitlines()[-1].startswith("no problems, ")
    assert tree(project.parent) == before


def test_what_is_there_stays_as_it_is(rath: Rath, project: Path, home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "m"}), {"u": CANARY})
    write_config(project, {"memory": {"providers": {"n": {"path": "notes"}}}})
    before = tree(project.parent)
    assert rath("doctor").exit_code == 0
    assert tree(project.parent) == before


def test_nothing_heavy_is_loaded_and_nothing_is_sent(home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "m", "base_url": "http://127.0.0.1:9/v1"}))
    heavy = ("anthropic", "httpx2", "numpy", "onnxruntime", "openai", "xllamacpp")
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('a connection was made')\n"
        "socket.socket.connect = refuse\n"
        "sys.argv = ['rath', 'doctor']\n"
        "from rath.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert "\nModels\n" in ran.stdout
    assert ran.stderr == "[]\n"


def test_a_problem_ends_with_status_one_and_a_warning_only_if_strict(
    rath: Rath, home: Path
) -> None:
    path = write_config(home, llm_config("u", u={"model": "m", "modle": "m"}), {"u": CANARY})
    assert doctor(rath).exit_code == 0
    assert doctor(rath, "--strict").exit_code == 1
    path.write_text("{")
    assert doctor(rath).exit_code == 1


def test_json_counts_and_tells_everything(rath: Rath, home: Path) -> None:
    write_config(home, {"llm": {"default_provider": "x"}})
    told = json.loads(doctor(rath).stdout)
    levels = [each["level"] for each in told["findings"]]
    assert told["counts"] == {level: levels.count(level) for level in told["counts"]}
    assert told["counts"]["problem"] == 1
    keys = {"group", "subject", "level", "text", "advice", "details"}
    assert all(set(each) - {"fix"} == keys for each in told["findings"])
    assert {each["fix"] for each in told["findings"] if "fix" in each}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--provider", "x"), "goes with --live"),
        (("--timeout", "0"), "more than 0 seconds"),
        (("--live", "--provider", "lokal"), "no provider 'lokal'. Did you mean 'local'?"),
    ],
)
def test_misuse(rath: Rath, args: tuple[str, ...], text: str) -> None:
    rath("doctor", *args, ends=2, out="", err=text)


# ---------------------------------------------------------------- how it looks


def test_piped_findings_are_complete_lines(process: Process, home: Path) -> None:
    path = write_config(home, {"llm": {"providers": {"long": {"modle": "x"}}}})
    ran = process("doctor")
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "rath knows no such key" in line)
    assert lines[at].startswith("  warning  user ")
    assert f"{path}:1:" in lines[at]
    assert lines[at].endswith("Did you mean 'llm.providers.long.model'?")
    assert lines[at + 1].strip() == "-> to take it away: rath config unset llm.providers.long.modle"


def test_on_a_terminal_no_line_is_wider_than_it(
    process: Process, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(home, {"llm": {"providers": {"a-name-" * 6: {"modle": "x"}}}})
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    lines = re.sub(r"\x1b\[\d*m", "", process("doctor").stdout).splitlines()
    assert max(map(len, lines)) <= 60
    assert "rath config unset" in " ".join(line.strip() for line in lines)


def test_brackets_are_no_markup(process: Process, home: Path) -> None:
    write_config(home, {"llm": {"providers": {"[red]x[/red]": {"modle": "[b]"}}}})
    assert "[red]x[/red]" in process("doctor").stdout


# ---------------------------------------------------------------- secrets


def test_no_secret_is_ever_displayed(
    rath: Rath, process: Process, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, f"{CANARY}-{name}")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://u:{CANARY}@127.0.0.1:9/v1?key={CANARY}")
    entry = {"model": "m", "api_key": CANARY, "base_url": f"https://u:{CANARY}@h/v1"}
    config = llm_config("a", a=entry, b={"model": "m", "base_url": f"{CANARY}://x"})
    config["mcp"] = {"servers": {"s": {"command": ["x"], "env": {"TOKEN": CANARY}}}}
    config["backend"] = {"providers": {"k": {"api_key": CANARY, "options": {"token": CANARY}}}}
    write_config(home, config, {"b": CANARY, "stranger": CANARY})
    write_config(project, {"llm": {"providers": {"c": {"temperature": CANARY}}}})
    for args in ((), ("--json",), ("--strict",)):
        result = rath("doctor", *args)
        assert "canary" not in result.output
    ran = process("doctor")
    assert "canary" not in ran.stdout + ran.stderr


posix = pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")


def test_broken_json_is_reported_with_line_and_column(rath: Rath, home: Path) -> None:
    path = write_config(home, {})
    path.write_text('{\n  "llm": {,}\n}')
    result = doctor(rath)
    (found,) = findings(result, "Config", "user")
    assert (result.exit_code, found.level) == (1, "problem")
    assert found.text.startswith(f"{path}:2:11: is not valid JSON: ")
    (details,) = [each["details"] for each in json.loads(result.stdout)["findings"]
                  if each["level"] == "problem"]  # fmt: skip
    assert details == {"file": str(path), "line": 2, "column": 11}


def test_every_value_that_does_not_fit_is_reported_with_its_place(rath: Rath, home: Path) -> None:
    path = write_config(home, {})
    path.write_text(
        '{"llm": {"providers": {\n  "m": {"temperature": "warm"},\n  "n": {"max_tokens": []}}}}'
    )
    told = findings(doctor(rath), "Config", "user")
    assert [found.level for found in told] == ["problem", "problem"]
    assert told[0].text.startswith(f"{path}:2:9: llm.providers.m.temperature: ")
    assert told[1].text.startswith(f"{path}:3:9: llm.providers.n.max_tokens: ")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"[]", "must hold a JSON object, not list"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
    ],
    ids=["list", "bytes", "depth"],
)
def test_a_file_that_is_no_config(rath: Rath, home: Path, content: bytes, text: str) -> None:
    write_config(home, {}).write_bytes(content)
    (found,) = findings(doctor(rath), "Config", "user")
    assert found.level == "problem"
    assert text in found.text


def test_every_layer_is_checked_and_the_sound_one_still_counts(
    rath: Rath, project: Path, home: Path
) -> None:
    write_config(project, {}).write_text("{")
    write_config(home, llm_config(u={"model": "m"}))
    result = doctor(rath)
    assert findings(result, "Config", "project")[0].level == "problem"
    assert findings(result, "Config", "user")[0].level == "ok"
    assert findings(result, "Models", "u") != []


def test_unknown_keys_are_reported_with_the_nearest_known_one(rath: Rath, home: Path) -> None:
    config: dict[str, Any] = llm_config("u", u={"model": "m", "modle": 1, "zz": 2})
    path = write_config(home, {**config, "memroy": {}, "plugin_of_mine": {"a": 1}})
    told = findings(doctor(rath), "Config", "user")
    assert [(found.level, found.text.partition(": ")[2]) for found in told] == [
        ("warning", "llm.providers.u.modle: rath knows no such key. "
                    "Did you mean 'llm.providers.u.model'?"),
        ("warning", "llm.providers.u.zz: rath knows no such key."),
        ("warning", "memroy: rath knows no such key. Did you mean 'memory'?"),
    ]  # fmt: skip
    assert told[0].text.startswith(f"{path}:1:")


def test_names_without_an_entry(rath: Rath, project: Path, home: Path) -> None:
    write_config(home, llm_config(u={"model": "m"}))
    path = write_config(
        project,
        {
            "llm": {"default_provider": "u", "embedding_provider": "uu"},
            "memory": {"default_provider": "m", "providers": {"n": {"chat_provider": "v"}}},
            "backend": {"default_provider": "b"},
            "mcp": {"default_enabled": ["s"], "servers": {"t": {"command": ["x"]}}},
        },
    )
    trust(path)
    told = findings(doctor(rath), "Config", "project")
    assert {found.level for found in told} == {"problem"}
    assert [found.text.partition(f"{path}:1:")[2].partition(": ")[2] for found in told] == [
        "llm.embedding_provider: there is no 'uu'. Did you mean 'u'?",
        "memory.default_provider: there is no 'm'.",
        "backend.default_provider: there is no 'b'.",
        "memory.providers.n.chat_provider: there is no 'v'.",
        "mcp.default_enabled.0: there is no 's'.",
    ]


@posix
def test_files_with_secrets_that_others_can_read(rath: Rath, home: Path) -> None:
    path = write_config(home, llm_config(u={"model": "m"}), {"u": CANARY})
    keys = path.with_name("credentials.json")
    keys.chmod(0o640)
    path.chmod(0o644)  # it holds no secret
    (found,) = findings(doctor(rath), "Config", "user")
    assert (found.level, found.advice) == ("problem", f"chmod 600 {keys}")
    assert "permissions 640" in found.text


@posix
def test_a_config_with_a_key_inside(rath: Rath, home: Path) -> None:
    path = write_config(home, llm_config(u={"model": "m", "api_key": CANARY}))
    path.chmod(0o644)
    told = findings(doctor(rath), "Config", "user")
    assert [found.level for found in told] == ["problem", "warning"]
    assert told[0].advice == f"chmod 600 {path}"
    assert told[1].advice.endswith("rath config set llm.providers.u.api_key -")


def test_keys_that_belong_to_nobody(rath: Rath, home: Path) -> None:
    write_config(home, llm_config(main={"model": "m"}), {"mian": CANARY})
    (found,) = findings(doctor(rath), "Config", "user")
    assert found.level == "warning"
    assert "a key for 'mian'" in found.text
    assert "Did you mean 'main'?" in found.text


@pytest.mark.parametrize(
    ("manifest", "level", "text"),
    [
        ('{"layout_version": 99}', "problem", "layout version 99"),
        ("{", "warning", "is damaged"),
    ],
)
def test_the_manifest(rath: Rath, home: Path, manifest: str, level: str, text: str) -> None:
    path = write_config(home, {})
    path.with_name("manifest.json").write_text(manifest)
    (found,) = findings(doctor(rath), "Config", "user")
    assert found.level == level
    assert text in found.text


def test_a_config_of_a_newer_rath(rath: Rath, home: Path) -> None:
    write_config(home, {"version": 7})
    (found,) = findings(doctor(rath), "Config", "user")
    assert (found.level, found.advice) == ("warning", "upgrade rath")


def test_a_home_that_is_no_directory(
    rath: Rath, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "file").touch()
    monkeypatch.setenv("OPENRATH_HOME", str(project / "file"))
    result = doctor(rath)
    assert result.exit_code == 1
    assert findings(result, "Config", "place")[0].level == "problem"
    assert findings(result, "Files", "home")[0].level == "problem"


@pytest.fixture
def other_rath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation of openrath that wants what is not there."""
    folder = tmp_path / "site" / "openrath-0.1.dist-info"
    folder.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.4", "Name: openrath", "Version: 0.1", "Requires-Python: >=9.9",
        "Provides-Extra: local", "Provides-Extra: sky", "Requires-Dist: pydantic>=99",
        "Requires-Dist: no-such-package>=1", "Requires-Dist: typer>=0.1",
        "Requires-Dist: pydantic<1; extra == 'local'",
        "Requires-Dist: no-such-sky; extra == 'sky'", "Provides-Extra: opensandbox",
        "Requires-Dist: no-such-sandbox; extra == 'opensandbox'",
        "Provides-Extra: openviking", "Requires-Dist: no-such-sdk; extra == 'openviking'",
        "Provides-Extra: vectors", "Requires-Dist: no-such-math; extra == 'vectors'",
    ]  # fmt: skip
    (folder / "METADATA").write_text("\n".join(lines) + "\n\n")
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])


@pytest.mark.usefixtures("other_rath")
def test_versions_out_of_bounds_and_packages_that_are_missing(rath: Rath) -> None:
    result = doctor(rath)
    assert result.exit_code == 1
    levels = {
        subject: [found.level for found in findings(result, "Installation", subject)]
        for subject in ("Python", "rath", "pydantic", "no-such-package", "typer")
    }
    assert levels == {
        "Python": ["problem"], "rath": ["warning"], "pydantic": ["problem"],
        "no-such-package": ["problem"], "typer": ["ok"],
    }  # fmt: skip
    (found,) = findings(result, "Installation", "pydantic")
    assert "and rath needs >=99" in found.text
    assert found.advice == 'uv pip install "pydantic>=99"'


@pytest.mark.usefixtures("other_rath")
def test_extras_say_what_they_are_for_and_how_to_get_them(rath: Rath) -> None:
    result = doctor(rath)
    (wrong,) = findings(result, "Extras", "local")
    assert wrong.level == "warning"
    assert "rath needs <1" in wrong.text
    assert findings(result, "Extras", "sky") == [
        Seen("note", "not installed", 'uv pip install "no-such-sky"')
    ]
    (known,) = findings(result, "Extras", "opensandbox")
    assert known.text == "not installed (sandboxes on an OpenSandbox server)"
    (viking,) = findings(result, "Extras", "openviking")
    assert viking.text == "not installed (memory on an OpenViking server)"
    (vectors,) = findings(result, "Extras", "vectors")
    assert vectors.text == "not installed (finding notes by their vectors)"


def test_the_planes_of_this_machine(rath: Rath) -> None:
    result = doctor(rath)
    (sandbox,) = findings(result, "Sandboxes", "local")
    assert sandbox.level == "ok"
    assert "isolation" in sandbox.text
    assert findings(result, "Memories", "local") == [Seen("ok", "usable", "")]


@pytest.fixture
def sandboxes() -> Iterator[None]:
    """A sandbox that is not available and one that fails when asked."""

    @backend.register("asleep")
    class Asleep(FakeBackend):
        @classmethod
        def is_available(cls) -> bool:
            return False

    @backend.register("broken")
    class Broken(FakeBackend):
        @classmethod
        def is_available(cls) -> bool:
            raise OSError("no daemon")

    yield
    for name in ("asleep", "broken"):
        backends.unregister(name)


@pytest.mark.usefixtures("sandboxes")
def test_a_sandbox_that_cannot_be_used_matters_where_a_config_names_it(
    rath: Rath, home: Path
) -> None:
    result = doctor(rath)
    assert [found.level for found in findings(result, "Sandboxes", "asleep")] == ["note"]
    assert findings(result, "Sandboxes", "broken") == [Seen("warning", "OSError: no daemon", "")]
    entries = {name: {"backend_kind": name} for name in ("asleep", "broken", "missing")}
    write_config(home, {"backend": {"providers": entries}})
    result = doctor(rath)
    assert [findings(result, "Sandboxes", name)[0].level for name in entries] == ["problem"] * 3
    assert "no sandbox backend named 'missing'" in findings(result, "Sandboxes", "missing")[0].text


def test_a_sandbox_that_cannot_be_used_says_why_and_what_to_do(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    result = doctor(rath)
    (bubblewrap,) = findings(result, "Sandboxes", "bubblewrap")
    assert bubblewrap.level == "note"
    assert "bwrap" in bubblewrap.text
    (service,) = findings(result, "Sandboxes", "opensandbox")
    assert service.level == "note"
    assert "openrath[opensandbox]" in service.text or "OPEN_SANDBOX_DOMAIN" in service.text


@pytest.mark.skipif(not backend.is_available("bubblewrap"), reason="bwrap does not work here")
def test_bubblewrap_is_tried_and_says_what_limits_it(rath: Rath) -> None:
    (found,) = findings(doctor(rath), "Sandboxes", "bubblewrap")
    assert found.level == "ok"
    assert "limits by" in found.text


@pytest.mark.skipif(not is_installed(), reason="the SDK belongs to an extra")
def test_the_server_of_opensandbox_and_who_names_it(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"backend_kind": "opensandbox", "domain": "https://me:pw@sandboxes.example:8080"}
    path = write_config(home, {"backend": {"providers": {"far": entry}}})
    (found,) = findings(doctor(rath), "Sandboxes", "opensandbox")
    assert found.level == "ok"
    assert "sandboxes.example:8080" in found.text
    assert str(path) in found.text
    assert "pw" not in found.text
    monkeypatch.setenv("OPEN_SANDBOX_DOMAIN", "other.example")
    (found,) = findings(doctor(rath), "Sandboxes", "opensandbox")
    assert "server other.example (env OPEN_SANDBOX_DOMAIN; not asked)" in found.text


@pytest.mark.usefixtures("home")
def test_sandboxes_that_are_preserved(rath: Rath) -> None:
    assert findings(doctor(rath), "Files", "sandboxes") == []
    PersistentSandboxRegistry().alloc_local_id()
    (found,) = findings(doctor(rath), "Files", "sandboxes")
    assert found.level == "ok"
    assert found.text.startswith("1 workspace and 0 remote sandboxes in ")


@pytest.mark.usefixtures("home")
def test_what_killed_programs_left_is_a_note_and_can_be_removed(rath: Rath) -> None:
    fork_dir(UUID(int=1)).mkdir(parents=True)
    (fork_dir(UUID(int=1)) / "lock").touch()
    kept = PersistentSandboxRegistry()
    assert move_to_trash(kept.local_path(kept.alloc_local_id()))
    forks, trash = findings(doctor(rath), "Files", "sandboxes")
    assert (forks.level, trash.level) == ("note", "note")
    assert trash.advice.startswith("rath gc --older-than 30d")
    rath("doctor --fix --yes", ends=0, out="done: remove what killed programs left")
    assert findings(doctor(rath), "Files", "sandboxes") == []


def test_sandboxes_that_cannot_be_listed(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    (found,) = findings(doctor(rath), "Files", "sandboxes")
    assert found.level == "problem"
    assert "Permission denied" in found.text


def test_a_memory_that_a_config_names_and_nobody_knows(rath: Rath, home: Path) -> None:
    write_config(home, {"memory": {"providers": {"m": {"backend_kind": "lokal"}}}})
    (found,) = findings(doctor(rath), "Memories", "lokal")
    assert found.level == "problem"
    assert "Did you mean 'local'?" in found.text


def test_stores_that_can_be_written(rath: Rath, home: Path, project: Path) -> None:
    write_config(home, {"memory": {"providers": {"m": {"path": str(project / "notes")}}}})
    result = doctor(rath)
    assert findings(result, "Files", "home")[0].text.endswith("can be written")
    assert findings(result, "Files", "sessions")[0].text.endswith("can be made")
    assert findings(result, "Files", "memory m")[0].level == "ok"


def test_stores_that_cannot_be_written(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "file"
    file.touch()
    write_config(home, {"memory": {"providers": {"m": {"path": str(file / "notes")}}}})

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    result = doctor(rath)
    (own,) = findings(result, "Files", "home")
    assert (own.level, result.exit_code) == ("problem", 1)
    assert "No space left on device" in own.text
    assert findings(result, "Files", "memory m")[0].level == "problem"


def test_little_space_is_a_warning(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    def usage(_: object) -> Usage:
        return Usage(1_000_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    (found,) = findings(doctor(rath), "Files", "disk")
    assert (found.level, found.advice) == ("warning", "free some")


def test_a_clock_that_is_behind_is_reported(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert [found.level for found in findings(doctor(rath), "Installation", "clock")] == ["warning"]


def test_the_store_that_sessions_go_to_is_reported(
    rath: Rath, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "can be made" in findings(doctor(rath), "Files", "sessions")[0].text
    monkeypatch.setenv("OPENRATH_STORE", "postgres://me:swordfish@db.example/agents")
    (finding,) = findings(doctor(rath), "Files", "sessions")
    assert (finding.level, finding.text) == (
        "ok",
        "postgres://db.example/agents, which was not asked",
    )


@pytest.mark.parametrize("url", ["postgre://me:swordfish@db/agents", "files://host/sessions"])
def test_a_store_that_cannot_be_used_is_a_problem(
    rath: Rath, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_STORE", url)
    result = doctor(rath)
    (finding,) = findings(result, "Files", "sessions")
    assert finding.level == "problem"
    assert "swordfish" not in result.stdout


# ---------------------------------------------------------------- what can be done


def test_a_fix_is_offered_and_made_where_the_user_agrees(rath: Rath, home: Path) -> None:
    path = write_config(home, llm_config("u", u={"model": "m"}), {"u": CANARY})
    keys = path.with_name("credentials.json")
    keys.chmod(0o644)
    shown = rath("doctor").stdout
    assert f"rath doctor --fix: make {keys} private" in " ".join(shown.split())
    answers = "n\n" * 10
    rath("doctor --fix", input=answers, ends=1, err=f"Make {keys} private?")
    rath("doctor --fix", input="", ends=1, err="so it is not done; --yes agrees without")
    assert keys.stat().st_mode & 0o777 == 0o644
    result = rath("doctor --fix", input="y\n" + answers, ends=0)
    assert f"done: make {keys} private\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("no problems, ")
    assert keys.stat().st_mode & 0o777 == 0o600


def test_everything_is_fixed_without_questions_for_a_script(rath: Rath, home: Path) -> None:
    path = write_config(home, {"llm": {"providers": {"u": {"model": "m", "api_key": CANARY}}}})
    result = rath("doctor --fix --yes --json", ends=0)
    told = json.loads(result.stdout)
    sessions = home / ".openrath" / "sessions"
    assert f"create {sessions}" in told["fixed"]
    assert "make 'u' the default provider" in told["fixed"]
    assert "move it to credentials.json" in told["fixed"]
    assert (sessions.is_dir(), sessions.stat().st_mode & 0o777) == (True, 0o700)
    assert CANARY not in path.read_text("utf-8") + result.output
    assert json.loads(path.read_text("utf-8"))["llm"]["default_provider"] == "u"
    assert json.loads(rath("doctor --fix --yes --json", ends=0).stdout)["fixed"] == []


def test_a_damaged_index_is_rebuilt(rath: Rath, family: Family) -> None:
    listed = rath("ls").stdout
    index = family.directory / INDEX_FILE_NAME
    assert findings(doctor(rath), "Files", "index") == [("ok", f"{index} can be read", "")]
    index.write_bytes(b"no database at all" * 300)
    (found,) = findings(doctor(rath), "Files", "index")
    assert found.level == "warning"
    rath("doctor --fix --yes", ends=0, out=f"done: rebuild {index}")
    assert findings(doctor(rath), "Files", "index") == [("ok", f"{index} can be read", "")]
    assert rath("ls").stdout == listed


def test_what_cannot_be_done_is_told_and_the_rest_is_done(
    rath: Rath, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(home, llm_config("u", u={"model": "m"}), {"u": CANARY})
    keys = path.with_name("credentials.json")
    keys.chmod(0o644)

    def refuse(_: Path, mode: int) -> None:
        raise PermissionError(f"not allowed to set {mode:o}")

    monkeypatch.setattr(Path, "chmod", refuse)
    result = rath("doctor --fix --yes", ends=1, err=f"could not make {keys} private: not allowed")
    assert "done: create" in result.stdout


@pytest.mark.parametrize(
    ("args", "problem"),
    [("--yes", "goes with --fix"), ("--fix --json", "add --yes")],
)
def test_a_fix_needs_an_answer(rath: Rath, args: str, problem: str) -> None:
    rath(f"doctor {args}", ends=2, out="", err=problem)
