"""The contract of chat clients."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, nullcontext

from rath.conformance.chat import answers, calls, evidence
from rath.conformance.chat.subject import ChatSubject
from rath.conformance.contract import Report, run_clauses
from rath.llm.base import ChatClient
from rath.llm.provider import Provider
from rath.llm.registry import chat_client_for
from rath.llm.vendor import VendorClient

__all__ = ["check_chat_client"]

# Those of the evidence look at the calls of all before them.
CLAUSES = (*evidence.CLIENT, *answers.ANSWERS, *answers.HISTORIES, *calls.CALLS, *evidence.EVIDENCE)


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
    subject = ChatSubject(
        client=found,
        max_tokens=max_tokens,
        secret=_secret_of(found) if secret is None else secret,
        unknown_model=unknown_model,
        cancel_seconds=cancel_seconds,
    )

    def redact(text: str) -> str:
        return text.replace(subject.secret, "***") if subject.secret else text

    model = f" {subject.provider.model!r}" if subject.provider.model else ""
    title = f"{type(found).__name__}{model}"
    with _log_lines(into=subject.log):
        return run_clauses(title, CLAUSES, lambda: nullcontext(subject), redact=redact)


def _secret_of(client: ChatClient) -> str:
    if isinstance(client, VendorClient):
        return client.route(None).secret
    provider: object = getattr(client, "provider", None)
    return (provider.api_key if isinstance(provider, Provider) else None) or ""


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
