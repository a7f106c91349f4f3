"""The operations on sessions as plain functions."""

from __future__ import annotations

from rath.session.graph.kind import LineageKind
from rath.session.session import Session, leaf


def create_user_session(message: str) -> Session:
    """Return a session in which the user says `message`, stamped as a leaf of the graph."""
    return leaf(message, kind=LineageKind.LEAF_USER, operator="create_user_session")


def create_system_session(prompt: str) -> Session:
    """Return a session of an agent's instructions, stamped as a leaf of the graph."""
    return leaf(prompt, kind=LineageKind.LEAF_SYSTEM, operator="create_system_session")


def fork_session(from_session: Session) -> Session:
    """Return `from_session.fork()`."""
    return from_session.fork()


def detach_session(from_session: Session) -> Session:
    """Return `from_session.detach()`."""
    return from_session.detach()
