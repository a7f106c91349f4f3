"""Which model turns texts into vectors, and how it is called."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from rath import config
from rath.llm.credentials import default_entry, entry_for
from rath.llm.one_shot import check_fields, from_entry
from rath.llm.provider import ConfigEntry

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
        check_fields(self, "an embedding model")
        size: object = self.dimensions
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"dimensions must be a whole number of at least 1, not {size!r}")

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
        kind = found.entry.provider_kind if found else "openai"
        model = (found.entry.model if found else None) or (
            LOCAL_EMBEDDING_MODEL if kind == "local" else DEFAULT_EMBEDDING_MODEL
        )
        if found is None:
            found = default_entry(store)
            # A key is bound to its vendor: that of another one is of no use here.
            if found is None or found.entry.provider_kind != "openai":
                return replace(cls(model=model), **overrides)
        return from_entry(
            found, cls, overrides, model=model, provider_kind=None if kind == "openai" else kind
        )

    def __repr__(self) -> str:
        return self.model
