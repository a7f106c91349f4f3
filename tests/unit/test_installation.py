"""How rath was installed, and the advice for what is missing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._installation import (
    Requirement,
    extra_command,
    install_advice,
    install_command,
    needed_of,
    requirements_of,
    unmet_bound,
)
from rath.errors import MissingExtra

ROOT = Path(__file__).parents[2]
Install = Callable[..., Path]
"""Make an installation of rath: where it came from, by which tool."""

DECLARED = [
    "Metadata-Version: 2.4", "Name: openrath", "Version: 9.0", "Provides-Extra: sky",
    "Requires-Dist: no-such-sky[deep]<4,>=3; extra == 'sky'",
    "Requires-Dist: pytest>=1; extra == 'sky'",
    "Provides-Extra: here", "Requires-Dist: pytest>=1; extra == 'here'",
    "Provides-Extra: many", *(f"Requires-Dist: no-such-{n}; extra == 'many'" for n in range(4)),
]  # fmt: skip


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def make(origin: dict[str, Any] | None = None, *, by: str = "uv") -> Path:
        folder = tmp_path / "site" / "openrath-9.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("\n".join(DECLARED) + "\n\n")
        (folder / "INSTALLER").write_text(f"{by}\n")
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
        return tmp_path

    return make


# ---------------------------------------------------------------- advice


def test_no_advice_installs_a_distribution_by_the_bare_name_of_ours() -> None:
    name = re.compile(r"install[^\n]{0,40}[\"' ]openrath\b(?![^\n]{0,40} @ )")
    places = [*(ROOT / "src").rglob("*.py"), *(ROOT / "example").rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in places
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1)
        if name.search(line)
    ]
    assert found == []


def test_a_clone_is_synced_and_keeps_its_other_extras(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    (clone / ".venv").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(clone / ".venv"))
    install({"url": clone.as_uri(), "dir_info": {"editable": True}})
    assert extra_command("sky") == f"uv sync --extra sky --inexact, in {clone}"
    assert install_advice("sky") == (
        'no-such-sky. Install it: uv pip install "no-such-sky[deep]<4,>=3" '
        f"(or the whole extra 'sky': uv sync --extra sky --inexact, in {clone})"
    )


@pytest.mark.parametrize(
    ("by", "is_editable", "command"),
    [
        ("uv", True, 'uv pip install -e "{}[sky]"'),
        ("pip", True, 'pip install -e "{}[sky]"'),
        ("pip", False, 'pip install "{}[sky]"'),
    ],
)
def test_a_clone_in_another_environment(
    install: Install, tmp_path: Path, by: str, is_editable: bool, command: str
) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    install({"url": clone.as_uri(), "dir_info": {"editable": is_editable}}, by=by)
    assert extra_command("sky") == command.format(clone)


def test_a_wheel_is_named_by_its_path_as_long_as_it_is_there(
    install: Install, tmp_path: Path
) -> None:
    wheel = tmp_path / "openrath-9.0-py3-none-any.whl"
    wheel.touch()
    install({"url": wheel.as_uri(), "archive_info": {}})
    assert extra_command("sky") == f'uv pip install "{wheel}[sky]"'
    wheel.unlink()
    assert extra_command("sky") is None
    assert install_advice("sky") == (
        'no-such-sky. Install it: uv pip install "no-such-sky[deep]<4,>=3"'
    )


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        (
            {
                "url": "https://user:rath-canary-1@git.example/rath.git",
                "vcs_info": {"vcs": "git", "commit_id": "abc"},
            },
            "git+https://git.example/rath.git@abc",
        ),
        (
            {"url": "https://u:rath-canary-1@h.example/rath", "archive_info": {}},
            "https://h.example/rath",
        ),
    ],
)
def test_an_address_is_named_without_its_login(
    install: Install, origin: dict[str, Any], source: str
) -> None:
    install(origin)
    assert extra_command("sky") == f'uv pip install "openrath[sky] @ {source}"'


def test_from_an_index_only_the_packages_are_named(install: Install) -> None:
    install()
    assert extra_command("many") is None
    packages = ", ".join(f"no-such-{n}" for n in range(4))
    commands = " ".join(f'"no-such-{n}"' for n in range(4))
    assert str(MissingExtra("many", "a cloud")) == (
        f"a cloud needs {packages}. Install them: uv pip install {commands}"
    )


def test_many_packages_are_installed_by_their_extra_where_that_is_known(
    install: Install, tmp_path: Path
) -> None:
    install({"url": tmp_path.as_uri(), "dir_info": {}})
    assert install_advice("many").endswith(f'Install them: uv pip install "{tmp_path}[many]"')
    error = MissingExtra("many", "a cloud", packages=["no_such_1"])
    assert 'needs no-such-1. Install it: uv pip install "no-such-1" (or' in str(error)


def test_a_package_that_is_there_and_cannot_be_imported(install: Install) -> None:
    install(by="pip")
    assert install_advice("here") == (
        "pytest, which cannot be imported here. Install it again: "
        'pip install --force-reinstall "pytest>=1"'
    )


def test_an_extra_that_the_installation_does_not_know(install: Install) -> None:
    install()
    assert install_advice("new") == (
        "the extra 'new', which is not installed: install rath again from where you have it, "
        "with that extra"
    )


def test_without_an_installation_the_clone_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert requirements_of() == []
    assert extra_command("ray") == f"uv sync --extra ray --inexact, in {ROOT}"


def test_every_extra_of_the_project_has_its_packages() -> None:
    for extra in ("local", "litellm", "postgres", "serve"):
        assert needed_of(extra), extra
    (driver,) = needed_of("postgres")
    assert install_command([driver], again=True).startswith(
        'uv pip install --reinstall "psycopg[binary]'
    )


# ---------------------------------------------------------------- requirements


RELEASES = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple)


def dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package that is installed for the test."""
    folder = tmp_path / "site" / "sampler-2.5.0.dist-info"
    folder.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.4", "Name: sampler", "Version: 2.5.0", "Requires-Python: >=3.11",
        "Provides-Extra: more", "Provides-Extra: other",
        "Requires-Dist: plain", "Requires-Dist: bounded[x,y]<4,>=3.0",
        "Requires-Dist: old-style (>=1)", "Requires-Dist: extra-one>=1; extra == 'more'",
        'Requires-Dist: only-windows; sys_platform == "win32"',
        'Requires-Dist: both; python_version < "3" and extra == "more"',
        "Requires-Dist: sampler[more]; extra == 'other'",
    ]  # fmt: skip
    (folder / "METADATA").write_text("\n".join(lines) + "\n\n")
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    return "sampler"


def test_what_is_declared_is_read(installed: str) -> None:
    assert requirements_of(installed) == [
        Requirement("plain", "", None),
        Requirement("bounded", "<4,>=3.0", None, "[x,y]"),
        Requirement("old-style", ">=1", None),
        Requirement("extra-one", ">=1", "more"),
    ]
    assert requirements_of("no-such-package-at-all") == []


@pytest.mark.parametrize(
    ("bounds", "found", "bound"),
    [
        ("", "1.0", None),
        (">=3.0,<4", "3.54.0", None),
        (">=3.0,<4", "4.0.0", "<4"),
        ("<4,>=3.0", "2.99", ">=3.0"),
        ("==0.9.0", "0.9", None),
        ("==0.9.0", "0.9.1", "==0.9.0"),
        ("!=1.5", "1.5.0", "!=1.5"),
        ("==1.*", "1.9", None),
        ("==1.*", "2.0", "==1.*"),
        ("!=1.*", "1.9", "!=1.*"),
        ("~=1.4", "1.9", None),
        ("~=1.4.2", "1.5", "~=1.4.2"),
        (">=2026.10.11549,<2027", "2026.10.11549", None),
        (">=3.0", "3.0rc1", None),
        (">1,<=2", "2.0", None),
    ],
)
def test_a_bound_that_is_not_preserved_is_named(bounds: str, found: str, bound: str | None) -> None:
    assert unmet_bound(bounds, found) == bound


@given(RELEASES, RELEASES)
def test_bounds_order_releases_as_their_numbers(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    width = max(len(one), len(other))
    padded = [release + (0,) * (width - len(release)) for release in (one, other)]
    assert (unmet_bound(f"<{dotted(other)}", dotted(one)) is None) == (padded[0] < padded[1])
    assert (unmet_bound(f">={dotted(other)}", dotted(one)) is None) == (padded[0] >= padded[1])
    assert (unmet_bound(f"=={dotted(other)}", dotted(one)) is None) == (padded[0] == padded[1])
