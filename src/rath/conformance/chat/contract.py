"""All that a chat client must do, run against one of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

from rath.conformance.chat.answers import ANSWERS
from rath.conformance.chat.calls import CALLS
from rath.conformance.chat.endings import ENDINGS
from rath.conformance.chat.evidence import CLIENT, EVIDENCE
from rath.conformance.chat.histories import HISTORIES
from rath.conformance.chat.subject import Subject
from rath.conformance.report import Finding, Report, concluded, found_by
from rath.llm.base import ChatClient
from rath.llm.client import VendorClient
from rath.llm.provider import Provider
from rath.llm.registry import chat_client_for

__all__ = ["check_chat_client"]

_Check = Callable[[Subject], None]

# Those of the evidence look at the calls of all before them.
_CHECKS: tuple[_Check, ...] = (*CLIENT, *ANSWERS, *HISTORIES, *CALLS, *ENDINGS, *EVIDENCE)


def check_chat_client(
    client: ChatClient | Provider,
    *,
    max_tokens: int = 16,
    unknown_model: str | None = "no-such-model",
    secret: str | None = None,
    cancel_seconds: float = 2.0,
) -> Report:
    """Run the contract of chat clients against one that is connected to some model.

    It makes about twenty short calls, with the parameters of the client's own provider. What it
    expects, any model can do; what this model or this client does not do is skipped, and the
    report says why.

    Args:
        client: The client, or a provider that leads to it. `complete` and `complete_stream` may
            be `def` or `async def`, and the latter may be missing.
        max_tokens: Tokens of a short answer; more for a model that thinks before it speaks.
        unknown_model: A name that the endpoint must refuse; None for one that takes any name.
        secret: The key that must appear nowhere; that of the provider by default.
        cancel_seconds: Within which a call must end once it is cancelled; by default what the
            runtime waits at exit.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
        ValueError: The provider leads to no client, or no model is named.
    """
    found = chat_client_for(client) if isinstance(client, Provider) else client
    subject = Subject(
        client=found,
        max_tokens=max_tokens,
        secret=_secret_of(found) if secret is None else secret,
        unknown_model=unknown_model,
        cancel_seconds=cancel_seconds,
    )
    with _log_lines(into=subject.log):
        findings = tuple(_run(check, subject) for check in _CHECKS)
    model = f" {subject.provider.model!r}" if subject.provider.model else ""
    return concluded(f"{type(found).__name__}{model}", findings)


def _run(check: _Check, subject: Subject) -> Finding:
    found = found_by(check.__name__.strip("_"), lambda: check(subject))
    return replace(found, detail=_masked(found.detail, subject))


def _secret_of(client: ChatClient) -> str:
    if isinstance(client, VendorClient):
        return client.target(None).secret
    given: object = getattr(client, "provider", None)
    return (given.api_key if isinstance(given, Provider) else None) or ""


def _masked(text: str, subject: Subject) -> str:
    """Return a text that may be printed, whatever the subject wrote into it."""
    return text.replace(subject.secret, "***") if subject.secret else text


class _Listener(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


@contextmanager
def _log_lines(*, into: list[str]) -> Generator[None, None, None]:
    """Collect what reaches the root logger, at whatever levels the program has set."""
    listener = _Listener(into)
    logging.getLogger().addHandler(listener)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(listener)
