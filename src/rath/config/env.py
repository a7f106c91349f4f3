"""Every environment variable that rath reads, declared once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum

from rath._core.dataclasses import dataclass
from rath._core.options import Sourced
from rath._core.text import did_you_mean

__all__ = [
    "EnvKind",
    "EnvSpec",
    "all_env_specs",
    "env_flag",
    "env_reference_markdown",
    "env_reference_rows",
    "env_value",
    "get_env_spec",
    "resolve_env",
    "resolve_with_origin",
]

_TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


class EnvKind(Enum):
    """Purpose of a variable."""

    SECRET = "secret"
    ROUTING = "routing"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The declaration of one variable."""

    name: str
    kind: EnvKind
    consumers: str
    """Who reads it, in words for the reference page."""
    default: str | None = None
    aliases: tuple[str, ...] = ()
    """Other names, read in this order when `name` is not set."""


_OWN_NAME = "OpenAI clients; not sent where a project's config names the endpoint"

_SPECS = (
    EnvSpec("OPENRATH_HOME", EnvKind.ROUTING, "all files of rath: config, sessions, stores"),
    EnvSpec(
        "OPENRATH_STORE",
        EnvKind.ROUTING,
        "where sessions are stored: a directory, or the URL of another store",
    ),
    EnvSpec(
        "OPENRATH_CASSETTE",
        EnvKind.ROUTING,
        "cassettes of mode `auto`: `record` or `replay` them all",
    ),
    EnvSpec("OPENRATH_PERSIST", EnvKind.FLAG, "sessions: record every run"),
    EnvSpec(
        "OPENRATH_DURABILITY",
        EnvKind.ROUTING,
        "sessions: how carefully a run is written, `turn`, `row` or `none`",
    ),
    EnvSpec(
        "OPENRATH_AT_EXIT",
        EnvKind.ROUTING,
        "sessions in flight at a normal end of the program: `finish` or `cancel` them",
        default="finish",
    ),
    EnvSpec("OPENAI_API_KEY", EnvKind.SECRET, "OpenAI clients: chat, embeddings, images"),
    EnvSpec("OPENAI_BASE_URL", EnvKind.ROUTING, "OpenAI clients: chat, embeddings, images"),
    EnvSpec("OPENAI_DEFAULT_MODEL", EnvKind.ROUTING, "OpenAI chat client"),
    EnvSpec(
        "OPENAI_API_VERSION",
        EnvKind.ROUTING,
        "OpenAI chat client on Azure endpoints",
        aliases=("AZURE_OPENAI_API_VERSION",),
    ),
    EnvSpec(
        "OPENAI_CUSTOM_HEADERS",
        EnvKind.SECRET,
        "OpenAI clients: headers of every request; refused for an endpoint of a project",
    ),
    EnvSpec("OPENAI_ORG_ID", EnvKind.ROUTING, _OWN_NAME),
    EnvSpec("OPENAI_ORGANIZATION", EnvKind.ROUTING, "LiteLLM, as OPENAI_ORG_ID"),
    EnvSpec("OPENAI_PROJECT_ID", EnvKind.ROUTING, _OWN_NAME),
    EnvSpec("AZURE_OPENAI_ENDPOINT", EnvKind.ROUTING, "OpenAI chat client on Azure endpoints"),
    EnvSpec("AZURE_OPENAI_API_KEY", EnvKind.SECRET, "OpenAI chat client on Azure endpoints"),
    EnvSpec("AZURE_API_KEY", EnvKind.SECRET, "OpenAI chat client on Azure endpoints"),
    EnvSpec("AZURE_OPENAI_API_VERSION", EnvKind.ROUTING, "other name of OPENAI_API_VERSION"),
    EnvSpec("ANTHROPIC_API_KEY", EnvKind.SECRET, "Anthropic chat client"),
    EnvSpec("ANTHROPIC_BASE_URL", EnvKind.ROUTING, "Anthropic chat client"),
    EnvSpec("ANTHROPIC_DEFAULT_MODEL", EnvKind.ROUTING, "Anthropic chat client"),
    EnvSpec(
        "ANTHROPIC_CUSTOM_HEADERS",
        EnvKind.SECRET,
        "Anthropic chat client: as OPENAI_CUSTOM_HEADERS",
    ),
    EnvSpec("LITELLM_API_KEY", EnvKind.SECRET, "LiteLLM chat client"),
    EnvSpec("LITELLM_API_BASE", EnvKind.ROUTING, "LiteLLM chat client"),
    EnvSpec("LITELLM_MODEL", EnvKind.ROUTING, "LiteLLM chat client"),
    EnvSpec(
        "OPEN_SANDBOX_DOMAIN",
        EnvKind.ROUTING,
        "opensandbox backend",
        aliases=("OPENSANDBOX_DOMAIN",),
    ),
    EnvSpec("OPENSANDBOX_DOMAIN", EnvKind.ROUTING, "older name of OPEN_SANDBOX_DOMAIN"),
    EnvSpec("OPEN_SANDBOX_API_KEY", EnvKind.SECRET, "opensandbox backend"),
    EnvSpec(
        "RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND",
        EnvKind.FLAG,
        "opensandbox backend: refuse a workspace that cannot be mounted",
    ),
    EnvSpec(
        "OPENRATH_OPENVIKING_SERVER",
        EnvKind.ROUTING,
        "openviking memory: the command of the server that it starts",
        default="openviking-server",
    ),
    EnvSpec("SSL_CERT_FILE", EnvKind.ROUTING, "model calls: certificates to trust, one file"),
    EnvSpec("SSL_CERT_DIR", EnvKind.ROUTING, "model calls: certificates to trust, a directory"),
    EnvSpec(
        "XDG_CACHE_HOME",
        EnvKind.ROUTING,
        "the embedded model: where its file is kept; and notes that are told once",
    ),
)
_BY_NAME = {spec.name: spec for spec in _SPECS}


def all_env_specs() -> list[EnvSpec]:
    """Return every declaration, in the order of the reference page."""
    return list(_SPECS)


def get_env_spec(name: str) -> EnvSpec:
    """Return the declaration of a variable.

    Raises:
        KeyError: rath declares no such variable.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        near = did_you_mean(name, _BY_NAME)
        raise KeyError(
            f"environment variable {name!r} is not declared.{near} Declared: {', '.join(_BY_NAME)}."
        ) from None


def resolve_with_origin(
    name: str, *, environ: Mapping[str, str] | None = None
) -> Sourced[str | None]:
    """Return what a variable, an alias of it or its default says, and which of them said it.

    The origin is "env NAME" with the name that was really set, or "default".

    Args:
        name: A declared variable.
        environ: Variables to read instead of those of the process.
    """
    spec = get_env_spec(name)
    variables = os.environ if environ is None else environ
    for candidate in (spec.name, *spec.aliases):
        value = variables.get(candidate, "").strip()
        if value:
            return Sourced(value, f"env {candidate}")
    return Sourced(spec.default, "default")


def env_value(name: str, *, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the stripped value of a variable or an alias, else its default; blank is unset."""
    return resolve_with_origin(name, environ=environ).value


def env_flag(name: str, *, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a variable says 1, true, yes or on, in any letter case."""
    return (env_value(name, environ=environ) or "").lower() in _TRUE_WORDS


def resolve_env(name: str, *explicit: str | None) -> str:
    """Return the first explicit value that is not blank, else the variable, else an empty text."""
    spec = get_env_spec(name)
    for value in explicit:
        if value is not None and value.strip():
            return value.strip()
    return env_value(spec.name) or ""


def env_reference_rows() -> list[dict[str, str]]:
    """Return the declarations as rows of a table: name, kind, consumers, default, aliases."""
    return [
        {
            "name": spec.name,
            "kind": spec.kind.value,
            "consumers": spec.consumers,
            "default": spec.default or "",
            "aliases": ", ".join(spec.aliases),
        }
        for spec in _SPECS
    ]


def env_reference_markdown() -> str:
    """Return the declarations as a Markdown table, for the documentation."""
    lines = ["| Variable | Kind | Read by | Default | Aliases |", "|---|---|---|---|---|"]
    for row in env_reference_rows():
        aliases = ", ".join(f"`{alias}`" for alias in row["aliases"].split(", ") if alias)
        default = f"`{row['default']}`" if row["default"] else ""
        cells = (f"`{row['name']}`", row["kind"], row["consumers"], default, aliases)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
