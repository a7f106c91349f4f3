"""Ctrl-C that comes while the main thread waits, and neither before nor after."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_PULSE_SECONDS = 0.002


@contextmanager
def ctrl_c_while_waiting() -> Generator[None]:
    """Raise KeyboardInterrupt in the main thread once, as soon as it stands in a wait.

    Signals come in pulses, and all but one are ignored: one that came a moment too early would hit
    the test and not the wait that is tested.
    """
    seen: list[FrameType] = []
    over = threading.Event()

    def on_signal(_: int, frame: FrameType | None) -> None:
        if over.is_set() or frame is None or frame.f_code.co_qualname != "Condition.wait":
            return
        # Twice in the same call: it is not about to wait, it waits.
        if any(frame is before for before in seen):
            over.set()
            raise KeyboardInterrupt
        seen.append(frame)

    def send() -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not over.wait(_PULSE_SECONDS):
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, on_signal)
    pulses = threading.Thread(target=send, daemon=True)
    pulses.start()
    try:
        yield
    finally:
        over.set()
        pulses.join()
        signal.signal(signal.SIGINT, before)
