"""The documented header of a session file, and the provider that one names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from rath.backend.abc import BackendSandboxSpec
from rath.errors import RathError
from rath.llm.endpoint import public_url
from rath.llm.provider import ConfigEntry, Provider
from rath.session.events import Header
from rath.session.graph.kind import LineageKind
from rath.session.log.migrations import CURRENT_SCHEMA_VERSION

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedSessionHeader:
    """The first line of a session file."""

    schema_version: int
    id: UUID
    created_at: datetime
    parent_session_ids: tuple[UUID, ...]
    lineage_operator: str
    lineage_kind: LineageKind
    lineage_extras: tuple[tuple[str, Any], ...]
    sandbox_backend: str | None
    sandbox_spec: BackendSandboxSpec | None
    sandbox_handle_id: str | None


def header_of(header: Header) -> PersistedSessionHeader:
    """Return the first event of a log in the documented form."""
    return PersistedSessionHeader(
        schema_version=CURRENT_SCHEMA_VERSION,
        id=header.session,
        created_at=header.created_at,
        parent_session_ids=header.parents,
        lineage_operator=header.operator,
        lineage_kind=header.kind,
        lineage_extras=header.extras,
        sandbox_backend=header.sandbox_backend,
        sandbox_spec=header.sandbox_spec,
        sandbox_handle_id=header.sandbox_handle_id,
    )


_NOT_PLAIN = frozenset(
    {"api_key", "base_url", "on_budget_exceeded", "extra_create_args", "fallbacks", "config_entry"}
)
"""Fields of a provider that hold secrets or code, or are no plain values."""

_PLAIN = frozenset(each.name for each in fields(Provider)) - _NOT_PLAIN

_FROM_FILE = "session file"
"""Where the endpoint of a loaded provider came from, as its calls tell it."""


def provider_from_jsonable(fields: Mapping[str, Any]) -> Provider | None:
    """Return the provider that a header names, without a key; None where it is none.

    An endpoint that a file names never gets a key of the environment or of a config, unless the
    entry of a config that the provider was read from still names the same one.
    """
    try:
        plain = {name: value for name, value in fields.items() if name in _PLAIN}
        base_url: object = fields.get("base_url")
        if not isinstance(base_url, str):
            return Provider(**plain)
        configured = _known_provider(fields.get("config"), base_url)
        return (
            _with_file_endpoint(Provider(**plain), base_url)
            if configured is None
            else replace(configured, **plain)
        )
    except (TypeError, ValueError, AttributeError):
        return None


def _with_file_endpoint(bare: Provider, base_url: str) -> Provider:
    """Return a provider with an endpoint that a session file names."""
    entry = ConfigEntry(
        name="",
        origin=_FROM_FILE,
        key_origin=_FROM_FILE,
        from_project=True,
        model=bare.model,
        base_url=base_url,
        api_key=None,
    )
    return replace(bare, base_url=base_url, config_entry=entry)


def _known_provider(name: object, base_url: str) -> Provider | None:
    """Return the provider of a config entry that has this endpoint, None where there is none."""
    if not isinstance(name, str):
        return None
    try:
        provider = Provider.from_config(name)
    except (KeyError, OSError, RathError):
        return None
    return provider if public_url(provider.base_url) == base_url else None
