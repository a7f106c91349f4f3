"""`rath.replay`: a program of one's own, run again on what it did."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rath.llm.offline import offline
from rath.session.replay.history import history_of
from rath.session.replay.playback import Playback
from rath.session.replay.stage import gathering, staged
from rath.session.session import Session

__all__ = ["replay"]


@contextmanager
def replay(*sessions: Session) -> Generator[None]:
    """Serve what the code inside does from the record of sessions; no model and no tool is called.

    Each agent call, workflow, compression, selection, merge, fork and check finds what it came to
    in the record of a session, or of one that it came from: by its kind, its place in the program
    and its input, in the order of the record. Requests are written as ever and must be those that
    were sent. Agents recall what they recalled; nothing is written to a memory. The sessions that
    are made have the recorded ids. Meanwhile this process is offline, as by `rath.offline`.

    Args:
        sessions: Hold what is replayed: the last one of a program, and others that it does not
            come from. Waits for their runs.

    Raises:
        ReplayDifference: At the call, or where its session is read: the record has no such
            operation, or it differs; the text says what. At the end of the block: a difference
            that nobody has read, or what the record has and the code did not ask for.

    Example::

        with rath.replay(Session.load(id)):
            assert agent(Session.from_user_message("hello")).text() == "Hello!"
    """
    playback = Playback(history_of(*sessions))
    try:
        with offline(), staged(playback), gathering(playback.made.append):
            yield
    except Exception as exc:
        if playback.first is not None and playback.first is not exc:
            exc.add_note(f"the replay had differed before: {playback.first}")
        raise
    difference = playback.at_the_end()
    if difference is not None:
        raise difference
