"""What a log says of a provider: how to ask the same model, and no secret."""

from __future__ import annotations

from typing import Any

from rath.llm.endpoint import public_url
from rath.llm.provider import Provider

_FIELDS = (
    "provider_kind",
    "model",
    "temperature",
    "top_p",
    "max_completion_tokens",
    "max_tokens",
    "seed",
    "reasoning_effort",
    "verbosity",
    "timeout",
    "output_mode",
)


def provider_without_secrets(provider: Provider) -> dict[str, Any]:
    """Return model, endpoint and plain parameters of a provider; what is not set is left out.

    No key, no login in a URL, and nothing that a user may put anything into.
    """
    said = {name: getattr(provider, name) for name in _FIELDS}
    said["base_url"] = public_url(provider.base_url)
    said["config"] = None if provider.config_entry is None else provider.config_entry.name
    return {name: value for name, value in said.items() if value is not None}
