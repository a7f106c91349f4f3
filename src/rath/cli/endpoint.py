"""What a base_url must be, and what follows from who names it."""

from __future__ import annotations

from rath.config.keys import format_key
from rath.llm.endpoint import checked_url

__all__ = ["endpoint_problem", "needs_own_key"]


def endpoint_problem(url: str, origin: str = "what was given") -> str | None:
    """Return why no client could call this address, or None where one can."""
    try:
        checked_url(url, origin)
    except ValueError as exc:
        return str(exc)
    return None


def needs_own_key(name: str) -> str:
    """Return what to tell of a provider with an endpoint, but no key, in a project's config."""
    key = format_key(("llm", "providers", name, "api_key"))
    return (
        "an endpoint that a project names never gets a key of the environment or of your own "
        f"config; give it one: rath config set --project {key} -"
    )
