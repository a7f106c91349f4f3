"""Functions in a process of their own, which is ended with all that it has started."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def run_alone(function: Callable[[], int], limit: float | None = None) -> int | None:
    """Call a function in a fork, and end all processes that are left when it is done.

    Between this process and the fork stands another one, to which every process below falls whose
    parent has ended: so each is found, whatever group or session it has put itself into.

    Args:
        function: Gives the exit status.
        limit: Seconds until it is ended.

    Returns:
        The exit status, not 0 if it raised or was killed; None when the limit was reached.

    Raises:
        RuntimeError: The system is not Linux.
    """
    if sys.platform != "linux":
        raise RuntimeError("mutants run on Linux only: processes are found and ended by its means")
    reaper = os.fork()
    if reaper == 0:
        _reap(function)
    handle = os.pidfd_open(reaper)
    try:
        in_time, _, _ = select.select([handle], [], [], limit)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        os.close(handle)
        _, status = os.waitpid(reaper, 0)
    return os.waitstatus_to_exitcode(status) if in_time else None


def exit_on_signal(number: int, _: FrameType | None) -> NoReturn:
    """End this process as it ends by itself, with all `finally` blocks."""
    raise SystemExit(128 + number)


def _reap(function: Callable[[], int]) -> NoReturn:
    """Wait for a fork, and for all that fall to this process; end what is there after it."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, exit_on_signal)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        child = os.fork()
        if child == 0:
            _call(function)
        ended, code = os.waitpid(-1, 0)
        while ended != child:
            # Others are waited for too: tests look whether what they have ended is gone.
            ended, code = os.waitpid(-1, 0)
        status = os.waitstatus_to_exitcode(code)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_children()
        os._exit(status & 0xFF)


def _call(function: Callable[[], int]) -> NoReturn:
    """Give the result as exit status, without the cleaning up of the program forked from."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        status = function()
    except BaseException:  # noqa: BLE001  # a fork must not go on in the place of its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_children() -> None:
    own = os.getpid()
    listed = Path(f"/proc/{own}/task/{own}/children")
    while children := [int(child) for child in listed.read_text(encoding="ascii").split()]:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
