"""Kinds of operations."""

from __future__ import annotations

import json
import pickle
from uuid import UUID

import rath.errors
from rath.session.graph.kind import LineageConsistencyError, LineageKind
from rath.session.graph.legacy import SessionLineage


def test_kinds_have_the_documented_names() -> None:
    assert {kind.name: kind.value for kind in LineageKind} == {
        "UNKNOWN": "unknown",
        "LEAF_USER": "leaf_user",
        "LEAF_SYSTEM": "leaf_system",
        "OP_CREATE": "op_create",
        "OP_SESSION_LOOP": "op_session_loop",
        "OP_FORK": "op_fork",
        "OP_DETACH": "op_detach",
        "OP_MERGE": "op_merge",
        "OP_DELEGATE": "op_delegate",
        "OP_SESSION_COMPRESS": "op_session_compress",
    }


def test_kind_is_written_to_json_by_its_value() -> None:
    assert json.dumps(LineageKind.OP_FORK) == '"op_fork"'


def test_error_is_the_one_of_the_tree() -> None:
    assert LineageConsistencyError is rath.errors.LineageConsistencyError


def test_lineage_of_a_run_survives_pickling() -> None:
    lineage = SessionLineage(UUID(int=1), UUID(int=2))
    assert lineage.operator == "run_session_loop"
    assert pickle.loads(pickle.dumps(lineage)) == lineage
