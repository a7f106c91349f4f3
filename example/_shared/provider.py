"""Which model an example asks: the user's own, a script, or the embedded one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rath.config import ConfigStore
from rath.config.env import env_value
from rath.llm import Provider
from rath.llm.local.server import ensure_server
from rath.llm.local.weights import BUNDLED_MODEL
from rath.testing import ScriptedClient, Turn

_OPENAI = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
_ANTHROPIC = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")


def provider_from_env(offline: Sequence[Turn]) -> Provider:
    """Return the provider that the environment or the config names, and say which one that is.

    RATH_EXAMPLE_PROVIDER chooses: "scripted" for the example's own answers, so that it runs
    anywhere; "openai" or "anthropic" for the variables of that vendor; "local" for the embedded
    model. Without a choice and a key the embedded model is chosen here, in the open: the library
    itself never falls back to it.

    Args:
        offline: The answers of the scripted model, in order.
    """
    choice = os.environ.get("RATH_EXAMPLE_PROVIDER", "")
    if choice == "scripted":
        print("model: scripted answers (RATH_EXAMPLE_PROVIDER=scripted)")
        return ScriptedClient(offline).provider
    if choice in {"", "openai"} and (found := _first_set(_OPENAI)):
        print(f"model: {env_value('OPENAI_DEFAULT_MODEL') or 'as configured'} ({found})")
        return Provider()
    if choice in {"", "anthropic"} and (found := _first_set(_ANTHROPIC)):
        print(f"model: {env_value('ANTHROPIC_DEFAULT_MODEL') or 'as configured'} ({found})")
        return Provider(provider_kind="anthropic")
    if choice in {"openai", "anthropic"}:
        raise SystemExit(f"RATH_EXAMPLE_PROVIDER={choice} needs {choice.upper()}_API_KEY")
    if choice != "local" and ConfigStore.load().config.llm.default_provider:
        provider = Provider.from_config()
        print(f"model: {provider} (config.json)")
        return provider
    if choice == "local":
        print("model: the embedded one (RATH_EXAMPLE_PROVIDER=local)")
        return Provider(provider_kind="local")
    print("model: the embedded one, on this machine (no key and no config names another)")
    return Provider(provider_kind="local")


def providers_of_two_vendors(
    first: Sequence[Turn], second: Sequence[Turn]
) -> tuple[Provider, Provider]:
    """Return a provider of OpenAI's protocol and one of Anthropic's, and say which they are.

    Where a vendor's variables are not set, the embedded model answers in its protocol.

    Args:
        first: The answers of the first scripted model, in order.
        second: Those of the second one.
    """
    if os.environ.get("RATH_EXAMPLE_PROVIDER") == "scripted":
        print("models: scripted answers (RATH_EXAMPLE_PROVIDER=scripted)")
        return ScriptedClient(first).provider, ScriptedClient(second).provider
    openai, anthropic = Provider(provider_kind="local"), None
    if _first_set(_OPENAI):
        openai = Provider()
    if _first_set(_ANTHROPIC):
        anthropic = Provider(provider_kind="anthropic")
    kinds = ("the embedded model" if openai.provider_kind == "local" else "OPENAI_*",
             "the embedded model" if anthropic is None else "ANTHROPIC_*")  # fmt: skip
    print(f"models: {kinds[0]} by OpenAI's protocol, {kinds[1]} by Anthropic's")
    return openai, anthropic or _embedded_by_anthropics_protocol()


def _embedded_by_anthropics_protocol() -> Provider:
    # The server in this process speaks both protocols.
    served = ensure_server(BUNDLED_MODEL)
    return Provider(
        provider_kind="anthropic",
        base_url=served.base_url,
        api_key=served.api_key,
        model=served.model,
    )


def _first_set(variables: Sequence[str]) -> str | None:
    return next((name for name in variables if env_value(name)), None)
