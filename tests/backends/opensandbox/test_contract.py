"""The contract of sandbox backends, kept over the wire."""

from __future__ import annotations

import pytest

from rath.backend.opensandbox import OpenSandboxBackend
from rath.conformance import check_backend


@pytest.mark.timeout(300)
def test_it_keeps_the_contract(backend: OpenSandboxBackend) -> None:
    report = check_backend(backend)
    passed = {each.check for each in report.findings if each.status == "passed"}
    assert {
        "commands_tell_what_they_changed",
        "code_tells_output_and_error",
        "neither_sees_what_the_other_writes_later",
        "a_copy_of_a_copy_knows_where_it_came_from",
    } <= passed
