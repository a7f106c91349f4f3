"""Which environment variables serve which provider kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rath.llm.endpoint import is_azure

__all__ = ["ANTHROPIC", "LITELLM", "OPENAI", "OPENAI_FIXED_MODEL", "Variables", "variables_of"]


@dataclass(frozen=True, slots=True)
class Variables:
    """Names of the environment variables that a provider kind reads, first one first."""

    api_key: Callable[[str], Sequence[str]]
    """Gives the names for an endpoint."""

    base_url: Sequence[str]
    model: Sequence[str]


def _openai_keys(base_url: str) -> Sequence[str]:
    """Return the variables that may hold the key; Azure prefers those that bear its name."""
    if is_azure(base_url):
        return "AZURE_OPENAI_API_KEY", "AZURE_API_KEY", "OPENAI_API_KEY"
    return "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY"


OPENAI = Variables(
    api_key=_openai_keys,
    base_url=("OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"),
    model=("OPENAI_DEFAULT_MODEL",),
)
OPENAI_FIXED_MODEL = Variables(
    api_key=lambda url: OPENAI.api_key(url) if is_azure(url) else ("OPENAI_API_KEY",),
    base_url=("OPENAI_BASE_URL",),
    model=(),
)
"""For embeddings and images, where whoever asks names the model."""

ANTHROPIC = Variables(
    api_key=lambda _: ("ANTHROPIC_API_KEY",),
    base_url=("ANTHROPIC_BASE_URL",),
    model=("ANTHROPIC_DEFAULT_MODEL",),
)
LITELLM = Variables(
    api_key=lambda _: ("LITELLM_API_KEY",),
    base_url=("LITELLM_API_BASE",),
    model=("LITELLM_MODEL",),
)

_BY_KIND = {"openai": OPENAI, "anthropic": ANTHROPIC, "litellm": LITELLM}


def variables_of(kind: str) -> Variables:
    """Return the variables of a provider kind; a kind that we do not know reads none of them."""
    return _BY_KIND.get(kind, Variables(api_key=lambda _: (), base_url=(), model=()))
