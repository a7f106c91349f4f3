"""What file tools change while the effects of a command or of code are looked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from rath.backend.effects import FileEffect


class ExactChanges:
    """Keeps looks at a workspace and writes of file tools apart, and knows the writes between.

    A write never overlaps a look, so it lies on one side of it and is taken off exactly. Writes
    may overlap each other. To be used on the runtime loop.
    """

    def __init__(self) -> None:
        self._door = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._n_writing = 0
        self._noted: dict[str, list[FileEffect]] | None = None

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to know what is written; it begins during no write."""
        return self._noted is not None

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """Surround a write and its note; waits while somebody looks."""
        async with self._door:
            self._n_writing += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._n_writing -= 1
            if not self._n_writing:
                self._idle.set()

    @asynccontextmanager
    async def looking(self) -> AsyncGenerator[None]:
        """Surround a look; waits for the writes that have begun, and others wait for it."""
        async with self._door:
            await self._idle.wait()
            yield

    def begin(self) -> None:
        """Watch from the look on that is going on."""
        self._noted = {}

    def note(self, effect: FileEffect) -> None:
        """Tell what was written, to whoever watches."""
        if self._noted is not None:
            self._noted.setdefault(effect.path, []).append(effect)

    def end(self) -> Mapping[str, Sequence[FileEffect]]:
        """Stop to watch and return what was written since it began, by path, in order."""
        noted, self._noted = self._noted, None
        return noted or {}
