"""What a package requires, and whether that is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.cli.doctor_machine import Requirement, requirements_of, unmet_bound

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
        Requirement("bounded", "<4,>=3.0", None),
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
def test_a_bound_that_is_not_kept_is_named(bounds: str, found: str, bound: str | None) -> None:
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
