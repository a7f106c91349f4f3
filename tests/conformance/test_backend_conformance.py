"""The contract of sandbox backends, run against ours and against one of somebody else."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rath import backend
from rath.backend import Backend, BackendNotFound, BackendSandboxSpec
from rath.backend.local import LocalBackend
from rath.conformance import Report, capability_table, check_backend
from rath.testing import FakeBackend
from tests.support.capabilities import PAGE, column, table_of_claims
from tests.support.opensandbox_server import OpenSandboxServer


def skipped(report: Report) -> Counter[str]:
    """Why checks were skipped, and how many for that reason."""
    return Counter(each.detail for each in report.findings if each.status == "skipped")


def expect_documented(name: str, report: Report) -> None:
    """Compare what was found with the page, which tells of Linux."""
    if sys.platform == "linux":
        found = column(capability_table({name: report}), name)
        assert column(PAGE.read_text("utf-8"), name) == found


def usable(name: str) -> Backend:
    """The backend of that name, where it works on this machine."""
    reason = backend.get_class(name).unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    return backend.get(name)


def test_local_keeps_the_contract() -> None:
    subject = LocalBackend()
    report = check_backend(subject)
    assert set(skipped(report)) == {"capabilities say confines_commands=False"}
    expect_documented("local", report)
    assert subject.sandbox_count() == 0


def test_bubblewrap_keeps_the_contract() -> None:
    report = check_backend(usable("bubblewrap"))
    assert skipped(report) == {}
    expect_documented("bubblewrap", report)


@pytest.mark.timeout(180)  # some forty containers, one after another
def test_opensandbox_keeps_the_contract(
    opensandbox_server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in opensandbox_server.variables.items():
        monkeypatch.setenv(name, value)
    report = check_backend(usable("opensandbox"))
    assert set(skipped(report)) == {
        "absolute paths are those of the sandbox; its border is another one",
        "capabilities say confines_commands=False",
    }
    expect_documented("opensandbox", report)


def test_the_fake_keeps_the_contract_and_says_what_it_leaves_out() -> None:
    subject = FakeBackend()
    report = check_backend(subject)
    assert set(skipped(report)) == {
        "capabilities say confines_commands=False",
        "its command lines are not those of a shell",
        "no BackendToolCodeRun",
    }
    expect_documented("fake", report)
    assert subject.sandbox_count() == 0


def test_a_backend_of_an_installed_package_keeps_the_contract() -> None:
    (found,) = entry_points(group="rath.backends", name="sqlite") or (None,)
    if found is None or found.dist is None:
        pytest.skip("the package in tests/third_party/sqlite_backend is not installed")
    assert found.dist.name == "rath-sqlite-backend"
    assert backend.get_class("sqlite") is found.load()
    report = check_backend("sqlite")
    assert report.subject == "SqliteBackend 'sqlite'"
    passed = {each.check for each in report.findings if each.status == "passed"}
    # What the package does not do itself, its handles do.
    assert {"lines_are_read_in_parts", "a_text_is_replaced_where_it_stands_once"} <= passed
    assert "file_tools_tell_exactly_what_they_changed" in passed


def test_a_contract_may_be_run_twice_in_one_workspace(tmp_path: Path) -> None:
    spec = BackendSandboxSpec(working_dir=str(tmp_path))
    first, second = (check_backend("local", spec=spec) for _ in range(2))
    assert first.subject == "LocalBackend 'local'"
    assert first == second


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(BackendNotFound):
        check_backend("no-such")


def test_a_table_has_a_row_for_each_feature_and_a_column_for_each_backend() -> None:
    table = capability_table({"fake": check_backend(FakeBackend())})
    head, rule, *rows = table.splitlines()
    assert (head, rule) == ("| Feature | `fake` |", "| --- | --- |")
    assert "| Files | yes |" in rows
    assert "| Commands | partly |" in rows
    assert "| Code | no |" in rows


def test_a_check_that_failed_is_seen_in_the_table() -> None:
    report = check_backend(FakeBackend())
    findings = tuple(
        replace(each, status="failed") if each.check == "bytes_come_back_as_written" else each
        for each in report.findings
    )
    assert "| Files | fails |" in capability_table({"fake": replace(report, findings=findings)})


def test_the_page_says_what_the_backends_say_of_themselves() -> None:
    assert table_of_claims() in PAGE.read_text("utf-8")
