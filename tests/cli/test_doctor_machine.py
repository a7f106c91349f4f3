"""`rath doctor` on packages, sandboxes, memories and files."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from rath import backend
from rath._core.retention import move_to_trash
from rath.backend import registry as backends
from rath.backend.opensandbox.connection import is_installed
from rath.backend.persistence import PersistentSandboxRegistry
from rath.backend.persistence.paths import fork_dir
from rath.testing import FakeBackend
from tests.cli.conftest import Rath
from tests.cli.findings import Seen, doctor, findings
from tests.support.machine import write_config


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
    assert found.advice == 'pip install "pydantic>=99"'


@pytest.mark.usefixtures("other_rath")
def test_extras_say_what_they_are_for_and_how_to_get_them(rath: Rath) -> None:
    result = doctor(rath)
    (wrong,) = findings(result, "Extras", "local")
    assert wrong.level == "warning"
    assert "rath needs <1" in wrong.text
    assert findings(result, "Extras", "sky") == [
        Seen("note", "not installed", 'pip install "openrath[sky]"')
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
def test_sandboxes_that_are_kept(rath: Rath) -> None:
    assert findings(doctor(rath), "Files", "sandboxes") == []
    PersistentSandboxRegistry().alloc_local_id()
    (found,) = findings(doctor(rath), "Files", "sandboxes")
    assert found.level == "ok"
    assert found.text.startswith("1 workspace and 0 remote sandboxes in ")


@pytest.mark.usefixtures("home")
def test_what_killed_programs_left_is_a_note_with_the_call_that_removes_it(rath: Rath) -> None:
    fork_dir(UUID(int=1)).mkdir(parents=True)
    (fork_dir(UUID(int=1)) / "lock").touch()
    kept = PersistentSandboxRegistry()
    assert move_to_trash(kept.local_path(kept.alloc_local_id()))
    forks, trash = findings(doctor(rath), "Files", "sandboxes")
    assert (forks.level, trash.level) == ("note", "note")
    for found in (forks, trash):
        exec(found.advice.split('"')[1], {})
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


def test_a_clock_that_is_behind_is_told(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert [found.level for found in findings(doctor(rath), "Installation", "clock")] == ["warning"]


def test_the_store_that_sessions_go_to_is_told(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
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
