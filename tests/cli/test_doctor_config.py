"""`rath doctor` on config files, and on what stands beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Rath
from tests.cli.findings import CANARY, doctor, findings
from tests.support.machine import llm_config, trust, write_config

posix = pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")


def test_broken_json_is_told_with_line_and_column(rath: Rath, home: Path) -> None:
    path = write_config(home, {})
    path.write_text('{\n  "llm": {,}\n}')
    result = doctor(rath)
    (found,) = findings(result, "Config", "user")
    assert (result.exit_code, found.level) == (1, "problem")
    assert found.text.startswith(f"{path}:2:11: is not valid JSON: ")
    (details,) = [each["details"] for each in json.loads(result.stdout)["findings"]
                  if each["level"] == "problem"]  # fmt: skip
    assert details == {"file": str(path), "line": 2, "column": 11}


def test_every_value_that_does_not_fit_is_told_with_its_place(rath: Rath, home: Path) -> None:
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


def test_unknown_keys_are_told_with_the_nearest_known_one(rath: Rath, home: Path) -> None:
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
