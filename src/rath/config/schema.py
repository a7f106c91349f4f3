"""The shape of `config.json`; keys that are not known here are kept as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rath.config.redaction import redact_setting

__all__ = [
    "SCHEMA_VERSION",
    "BackendConfig",
    "BackendProviderConfig",
    "LLMConfig",
    "LLMProviderConfig",
    "MCPConfig",
    "MCPOAuthConfig",
    "MCPServerConfig",
    "MemoryConfig",
    "MemoryProviderConfig",
    "RathConfig",
    "SessionsConfig",
]

SCHEMA_VERSION = 1


_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"
"""Names of environment variables."""

_FOR_URL = ("headers", "bearer_env", "oauth", "transport")
_FOR_COMMAND = ("env", "cwd")
_NEW_IN_SERVERS = frozenset({*_FOR_URL, "command", "cwd", "url", "timeout", "trust_annotations"})


# Inputs stay out of error texts, since a wrong value may still be a secret. Unknown keys may be
# named anything, also what pydantic would reserve.
class _Section(
    BaseModel,
    extra="allow",
    hide_input_in_errors=True,
    protected_namespaces=(),
    allow_inf_nan=False,
):
    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        for name, value in super().__repr_args__():
            yield name, redact_setting(name or "", value)


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


class MCPOAuthConfig(_Section):
    """OAuth 2 client credentials, by which a program gets a token of its own."""

    client_id: str
    secret_env: str = Field(pattern=_VARIABLE)
    issuer: str
    scopes: list[str] = []
    method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"


class MCPServerConfig(_Section):
    """A tool server: `command` for one that is started as a child process, `url` for any other.

    `${NAME}` in `url` or a value of `env` or `headers` is that variable of the environment, read at
    each connect.
    """

    command: list[str] | None = None
    env: dict[str, str] = Field(default={}, repr=False)
    cwd: str | None = None
    url: str | None = Field(default=None, repr=False)
    headers: dict[str, str] = Field(default={}, repr=False)
    bearer_env: str | None = Field(default=None, pattern=_VARIABLE)
    """Name of the environment variable that holds a token."""

    oauth: MCPOAuthConfig | None = None
    transport: Literal["auto", "http", "sse"] | None = None
    timeout: float | None = Field(default=None, gt=0)
    """Seconds that one request may take."""

    trust_annotations: bool | None = None
    """Whether what the server says of its tools' effects is believed. By default a server of a
    project is not, and one of the user is."""

    @model_validator(mode="after")
    def _is_one_server(self) -> Self:
        if (self.command is None) == (self.url is None):
            has = "neither" if self.url is None else "both"
            raise PydanticCustomError(
                "mcp_server",
                "needs either command (a program and its arguments) or url (an address), and has "
                f"{has}",
            )
        if self.url is not None and not self.url.lower().startswith(("http://", "https://")):
            raise PydanticCustomError("mcp_url", "url must begin with http:// or https://")
        away = _FOR_URL if self.url is None else _FOR_COMMAND
        for name in away:
            if getattr(self, name):
                this, other = ("command", "url") if self.url is None else ("url", "command")
                raise PydanticCustomError(
                    "mcp_field", f"{name} goes with {other}, and this server has {this}"
                )
        if self.bearer_env and self.oauth:
            raise PydanticCustomError("mcp_auth", "needs at most one of bearer_env and oauth")
        return self

    @model_serializer(mode="wrap")
    def _as_in_1_3(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # OpenRath 1.3 knew `command` and `env` alone: such a server is saved as it was read.
        written: dict[str, Any] = write(self)
        return {
            name: it
            for name, it in written.items()
            if name not in _NEW_IN_SERVERS or (it is not None and it != {})
        }


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
    """Storage of sessions."""

    store: str | None = None
    """A directory, or the URL of another store, without a password."""

    persist: bool | None = None
    """Whether every run is recorded, also without `persist=True`."""

    durability: str | None = None
    """Durability of a run: `turn`, `row` or `none`. Checked at use."""


class RathConfig(_Section):
    """All of `config.json`."""

    version: int = SCHEMA_VERSION
    llm: LLMConfig = Field(default_factory=LLMConfig)
    mcp: MCPConfig = Field(default_factory=MCPConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    backend: BackendConfig = Field(default_factory=BackendConfig)
    sessions: SessionsConfig = Field(default_factory=SessionsConfig)
