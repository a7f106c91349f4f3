"""Probes of several providers at once, for callers that wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, assert_never

from rath._async.lanes import gather
from rath._async.runtime import runtime
from rath.llm.clients import Unusable, or_unusable
from rath.llm.embedding.provider import EmbeddingProvider
from rath.llm.embedding.registry import embedding_client_for
from rath.llm.probe.chat import ChatProbe
from rath.llm.probe.embedding import EmbeddingProbe
from rath.llm.probe.findings import ProbeFinding, ProbeReport
from rath.llm.probe.picture import PictureProbe
from rath.llm.probe.requests import LONG
from rath.llm.provider import Provider
from rath.llm.registry import DEFAULT_KIND, chat_client_for
from rath.llm.vlm import RathOpenAIVLMClient, VLMProvider

__all__ = ["DEFAULT_PROBE_TIMEOUT", "Probed", "find_obstacle", "probe_providers"]

Probed: TypeAlias = Provider | EmbeddingProvider | VLMProvider
"""Whom a probe may ask."""

_Probe: TypeAlias = ChatProbe | EmbeddingProbe | PictureProbe

DEFAULT_PROBE_TIMEOUT = 30.0
"""Seconds for each step; a guess that leaves a small model on a slow machine its time."""

_MAX_ATTEMPTS = 2
"""A second try mends what one lost connection or one busy moment would make look broken."""


def probe_providers(
    providers: Iterable[Probed], *, timeout: float = DEFAULT_PROBE_TIMEOUT
) -> tuple[ProbeReport, ...]:
    """Ask providers what they support, all at the same time, and wait for what comes of it.

    A chat model is asked for the models beside it, one word, one tool call, one stream and, where
    its adapter gets typed answers by a JSON Schema, one such answer: four or five calls of some
    tens of tokens. An embedding model is asked for the vector of a word, and one that sees for the
    colour of a picture. Whatever fails is told in the report. The fallbacks of a provider are not
    asked.

    Args:
        providers: Whom to ask.
        timeout: Seconds for each step.

    Returns:
        A report for each provider, in their order.

    Example:
        >>> from rath.testing import ScriptedClient, tool_call
        >>> model = ScriptedClient(["OK", tool_call("report_word", {"word": "OK"}), "OK"])
        >>> probe_providers([model.provider])[0].is_usable
        True
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, not {timeout!r}")
    # Clients are made in the caller's thread, as for a run: a kind may be code of its own.
    probes = [_prepare(provider, timeout) for provider in providers]
    asking = [probe.run for probe in probes if not isinstance(probe, ProbeReport)]
    asked = iter(runtime().run(lambda: gather(asking), label="a probe of model endpoints"))
    return tuple(probe if isinstance(probe, ProbeReport) else next(asked) for probe in probes)


def find_obstacle(provider: Probed) -> str | None:
    """Return what keeps a provider from being asked at all, or None; nobody is asked for it.

    Looked at are its kind, its endpoint, its key, and the package that it needs.
    """
    made = or_unusable(partial(_make_probe, provider, DEFAULT_PROBE_TIMEOUT), key=provider.api_key)
    return made.problem if isinstance(made, Unusable) else None


def _prepare(provider: Probed, timeout: float) -> _Probe | ProbeReport:
    limit = provider.retry_max_attempts
    attempts = _MAX_ATTEMPTS if limit is None else min(_MAX_ATTEMPTS, limit)
    asked = replace(provider, timeout=timeout, retry_max_attempts=attempts)
    made = or_unusable(partial(_make_probe, asked, timeout), key=asked.api_key)
    return _not_set_up(provider, made) if isinstance(made, Unusable) else made


def _make_probe(provider: Probed, timeout: float) -> _Probe:
    match provider:
        case Provider():
            alone = replace(provider, fallbacks=())
            return ChatProbe(chat_client_for(alone), alone, timeout=timeout)
        case EmbeddingProvider():
            return EmbeddingProbe(embedding_client_for(provider), timeout=timeout)
        case VLMProvider():
            n_tokens = min(provider.max_tokens or LONG, LONG)
            client = RathOpenAIVLMClient(replace(provider, max_tokens=n_tokens))
            return PictureProbe(client, timeout=timeout)
        case _:
            assert_never(provider)


def _not_set_up(provider: Probed, why: Unusable) -> ProbeReport:
    kind = DEFAULT_KIND if isinstance(provider, VLMProvider) else provider.provider_kind
    return ProbeReport(
        provider_kind=kind or DEFAULT_KIND,
        endpoint=None,
        model=provider.model,
        findings=(ProbeFinding(step="setup", verdict="failed", text=why.problem),),
    )
