"""Two sessions side by side."""

from __future__ import annotations

import json
from dataclasses import replace

from rath.errors import ProviderServerError
from rath.session import Session
from rath.session.questions import compare
from rath.session.questions.encode import encode_answer
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.session_files import placed, worked, writing
from tests.support.sessions import run
from tests.support.told import told


def branches() -> tuple[Session, Session]:
    base = worked(placed(), writing("a", "1")).synchronize()
    left = worked(base.fork(workspace="copy"), writing("b", "left"))
    right = worked(base.fork(workspace="copy"))
    return left, right


def test_rows_stand_beside_each_other_from_where_they_part() -> None:
    left, right = branches()
    found = compare(left, right)
    assert found.n_common == 4
    assert [each.index for each in found.rows] == [4, 5, 6]
    assert [each.right is None for each in found.rows] == [False, True, True]
    assert [each.is_same for each in found.rows] == [False, False, False]
    assert [each.is_same for each in compare(right, left.fork()).rows] == [False] * 3


def test_rows_that_say_the_same_are_marked() -> None:
    one, other = run(["done"]), run(["done"])
    assert [each.is_same for each in compare(one, other).rows] == [True, True]
    assert compare(one, one.fork()).rows == ()


def test_files_are_told_for_both() -> None:
    left, right = branches()
    files = compare(left, right).files
    assert [(each.path, each.is_same) for each in files] == [("a", True), ("b", False)]
    assert files[1].right is None


def test_what_each_took_is_counted() -> None:
    session = told()
    counts = compare(session, Session.from_user_message("go")).left_counts
    assert (counts.rows, counts.turns, counts.model_calls, counts.retries) == (2, 1, 9, 0)
    assert (counts.tool_runs, counts.failed_tool_runs, counts.branches) == (3, 0, 3)
    assert (counts.checks, counts.failed_checks) == (1, 1)
    assert counts.tokens > 0
    assert not counts.is_priced
    none = compare(Session.from_user_message("go"), session).left_counts
    assert (none.rows, none.model_calls, none.tokens, none.is_priced) == (1, 0, 0, True)


def test_a_call_that_another_model_had_to_answer_is_a_retry() -> None:
    def down(_: object) -> Says:
        raise ProviderServerError("down", status=503)

    first, second = OfflineVendor(down), OfflineVendor(lambda _: Says("done"))
    provider = replace(first.provider, retry_max_attempts=1, fallbacks=[second.provider])
    out = run([], agent_provider=provider)
    assert compare(out, out).left_counts.retries == 1


def test_the_comparison_is_json() -> None:
    encoded = encode_answer(compare(*branches()))
    assert json.loads(json.dumps(encoded)) == encoded
    assert encoded["files"][0]["is_same"] is True
    assert encoded["rows"][0]["is_same"] is False
