"""An edge knows its parent by id, and its length as soon as that is known."""

from __future__ import annotations

import threading
from uuid import uuid4

from rath.session import Session
from rath.session.graph.recording import Edge
from rath.testing import tool_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE


def test_a_parent_that_is_known_by_its_id_alone_has_no_length() -> None:
    assert Edge(uuid4()).n_rows is None


def test_the_length_of_a_parent_is_known() -> None:
    assert Session.from_user_message("hi").as_parent().n_rows == 1


def test_the_length_of_a_pending_parent_is_known_when_it_is_there() -> None:
    go = threading.Event()
    out = run([tool_call("hold"), "done"], FunctionTool("hold", lambda *_: go.wait(PATIENCE)))
    edge = out.as_parent()
    assert edge.n_rows is None
    go.set()
    out.synchronize()
    assert edge.n_rows == 4


def test_edges_are_equal_when_they_name_the_same_parent() -> None:
    session = Session.from_user_message("hi")
    assert session.as_parent() == Edge(session.id)
    assert Edge(uuid4()) != Edge(uuid4())
