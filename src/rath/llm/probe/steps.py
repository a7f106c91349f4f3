"""How the steps of a probe are taken: in time, on record, and without an error getting out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from rath.config.redaction import redact
from rath.errors import RathError
from rath.llm.credentials import RequestTarget
from rath.llm.evidence import CallEvidence
from rath.llm.probe.findings import ProbeFinding, ProbeStep
from rath.llm.probe.judge import Judgement, judge_error

__all__ = ["Steps"]


class Steps:
    """Takes the steps of one probe, one after another.

    Args:
        timeout: Seconds for each step.
        key: The key of the provider; no text repeats it.
        route: Where the calls go; no text repeats the secrets of it either.
    """

    def __init__(self, timeout: float, key: str | None, route: RequestTarget | None) -> None:
        self._timeout = timeout
        secrets = (key,) if route is None else (key, route.secret, route.password)
        self._secrets = [secret for secret in secrets if secret]
        self._calls: list[CallEvidence] = []

    def note(self, call: CallEvidence) -> None:
        """Add a model call to the step that is under way."""
        self._calls.append(call)

    async def take(self, step: ProbeStep, act: Callable[[], Awaitable[Judgement]]) -> ProbeFinding:
        """Return what `act` finds, or what it failed with."""
        self._calls = []
        begun = time.perf_counter()
        deadline = asyncio.timeout(self._timeout)
        try:
            async with deadline:
                verdict, text = await act()
        except (RathError, ValueError) as exc:
            verdict, text = judge_error(step, exc)
        except TimeoutError as exc:
            text = f"no answer came within {self._timeout:g} s"
            verdict, text = "failed", text if deadline.expired() else f"TimeoutError: {exc}"
        except Exception as exc:  # noqa: BLE001  # adapters of others raise anything; it is told
            verdict, text = "failed", f"{type(exc).__name__}: {exc}"
        for secret in self._secrets:
            text = redact(text, secret)
        return ProbeFinding(
            step=step,
            verdict=verdict,
            text=text,
            elapsed_ms=(time.perf_counter() - begun) * 1000,
            calls=tuple(self._calls),
        )
