"""Which model turns texts into vectors, and how it is called."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from rath import config
from rath.llm.credentials import default_entry, entry_for
from rath.llm.provider import ConfigEntry, Provider, given_fields

__all__ = ["DEFAULT_EMBEDDING_MODEL", "LOCAL_EMBEDDING_MODEL", "EmbeddingProvider"]

DEFAULT_EMBEDDING_MODEL = "text-embedding-3-small"
"""OpenAI's model, where a config names none."""

LOCAL_EMBEDDING_MODEL = "all-MiniLM-L6-v2"
"""The model that the extra `local` brings: 384 dimensions, texts up to 256 tokens."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class EmbeddingProvider:
    """Names an embedding model and an endpoint.

    Endpoint and key are looked up when a client is made, if they are None here: in the
    environment, then in the config.

    Raises:
        TypeError: A field has a type that it can never have.
        ValueError: There is no model, or a number is out of its range.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = None
    dimensions: int | None = None
    """Length of the vectors, for models that can give shorter ones; the model's own by default."""

    retry_max_attempts: int | None = None
    """Tries in all, the first one included; 4 by default."""

    retry_base_seconds: float | None = None
    """Wait before the second try, doubled before each further one; 0.5 by default."""

    timeout: float | None = None
    """Seconds for one request; 300 by default."""

    provider_kind: str | None = None
    """Who embeds: "openai", the default, or "local" for a model inside the process."""

    config_entry: ConfigEntry | None = field(default=None, compare=False)
    """Set by `from_config`."""

    def __post_init__(self) -> None:
        model: object = self.model
        if not isinstance(model, str) or not model.strip():
            raise ValueError(f"model must name an embedding model, not {model!r}")
        size: object = self.dimensions
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"dimensions must be a whole number of at least 1, not {size!r}")
        # What both have in common is checked there.
        Provider(
            base_url=self.base_url,
            api_key=self.api_key,
            retry_max_attempts=self.retry_max_attempts,
            retry_base_seconds=self.retry_base_seconds,
            timeout=self.timeout,
            provider_kind=self.provider_kind,
        )

    @classmethod
    def local(cls) -> Self:
        """Return the provider of the model inside the process: no key, no network."""
        return cls(provider_kind="local", model=LOCAL_EMBEDDING_MODEL)

    @classmethod
    def from_config(
        cls, name: str | None = None, *, store: config.ConfigStore | None = None, **overrides: Any
    ) -> Self:
        """Return a provider as the config describes it.

        Without a name it is `llm.embedding_provider`; without that, the account of
        `llm.default_provider`, if it is one for OpenAI's protocol, with the default model; without
        any of them, the default model alone.

        Args:
            name: Entry of `llm.providers`.
            store: The config to read; the project's and the user's by default.
            overrides: Fields of the provider to set or replace.

        Raises:
            KeyError: `name` is given, and there is no such entry.
            UntrustedConfig: The entry is a project's and acts, and the user has not trusted it.
        """
        found = entry_for(name, default="embedding_provider", store=store)
        if found is None:
            found = default_entry(store)
            # A key is bound to its vendor: that of another one is of no use here.
            if found is not None and found.entry.provider_kind != "openai":
                found = None
            model = DEFAULT_EMBEDDING_MODEL
        else:
            is_local = found.entry.provider_kind == "local"
            by_default = LOCAL_EMBEDDING_MODEL if is_local else DEFAULT_EMBEDDING_MODEL
            model = found.entry.model or by_default
        if found is None:
            return replace(cls(model=model), **overrides)
        found.origin.check_trusted(given_fields(overrides))
        kind = found.entry.provider_kind
        provider = cls(
            model=model,
            base_url=found.entry.base_url,
            api_key=found.entry.api_key,
            provider_kind=None if kind == "openai" else kind,
            config_entry=found.origin,
        )
        return replace(provider, **overrides)

    def __repr__(self) -> str:
        return self.model
