"""The shape of `config.json`; keys that are not known here are kept as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from rath.config.secrets import shown

__all__ = [
    "SCHEMA_VERSION",
    "BackendConfig",
    "BackendProviderConfig",
    "LLMConfig",
    "LLMProviderConfig",
    "MCPConfig",
    "MCPServerConfig",
    "MemoryConfig",
    "MemoryProviderConfig",
    "RathConfig",
    "SessionsConfig",
]

SCHEMA_VERSION = 1


class _Section(BaseModel):
    # Inputs stay out of error texts, since a wrong value may still be a secret. Unknown keys may
    # be named anything, also what pydantic would reserve.
    model_config = ConfigDict(
        extra="allow", hide_input_in_errors=True, protected_namespaces=(), allow_inf_nan=False
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        for name, value in super().__repr_args__():
            yield name, shown(name or "", value)


class LLMProviderConfig(_Section):
    """A named model endpoint. `provider_kind` is checked at use, since plug-ins add kinds."""

    provider_kind: str = "openai"
    model: str | None = None
    api_key: str | None = None
    base_url: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None


class LLMConfig(_Section):
    """Named model endpoints, and which of them serve chat, embeddings and vision by default."""

    default_provider: str | None = None
    embedding_provider: str | None = None
    vlm_provider: str | None = None
    providers: dict[str, LLMProviderConfig] = {}


class MCPServerConfig(_Section):
    """A tool server that is started as a child process."""

    command: list[str]
    env: dict[str, str] = Field(default={}, repr=False)


class MCPConfig(_Section):
    """Named tool servers, and which of them are on by default."""

    default_enabled: list[str] = []
    servers: dict[str, MCPServerConfig] = {}


class MemoryProviderConfig(_Section):
    """A named memory store. `backend_kind` is checked at use, since plug-ins add kinds."""

    backend_kind: str = "local"
    path: str | None = None
    url: str | None = None
    api_key: str | None = None
    embedding_provider: str | None = None
    chat_provider: str | None = None

    @model_serializer(mode="wrap")
    def _as_in_1_3(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # OpenRath 1.3 knew no `url`: a config without one is saved as it was read.
        written: dict[str, Any] = write(self)
        return {name: it for name, it in written.items() if name != "url" or it is not None}


class MemoryConfig(_Section):
    """Named memory stores, and which of them is the default."""

    default_provider: str | None = None
    providers: dict[str, MemoryProviderConfig] = {}


class BackendProviderConfig(_Section):
    """A named sandbox service. `backend_kind` is checked at use, since plug-ins add kinds."""

    backend_kind: str = "opensandbox"
    domain: str | None = None
    api_key: str | None = None
    options: dict[str, object] = Field(default={}, repr=False)


class BackendConfig(_Section):
    """Named sandbox services, and which of them is the default."""

    default_provider: str | None = None
    providers: dict[str, BackendProviderConfig] = {}


class SessionsConfig(_Section):
    """How sessions are kept."""

    store: str | None = None
    """A directory, or the URL of another store, without a password."""

    persist: bool | None = None
    """Whether every run is recorded, also without `persist=True`."""

    durability: str | None = None
    """How carefully a run is written: `turn`, `row` or `none`. Checked at use."""


class RathConfig(_Section):
    """All of `config.json`."""

    version: int = SCHEMA_VERSION
    llm: LLMConfig = Field(default_factory=LLMConfig)
    mcp: MCPConfig = Field(default_factory=MCPConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    backend: BackendConfig = Field(default_factory=BackendConfig)
    sessions: SessionsConfig = Field(default_factory=SessionsConfig)
