"""Which model an example asks: the user's own, a script, or the embedded one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rath.config import ConfigStore
from rath.config.env import env_value
from rath.llm import Provider
from rath.testing import ScriptedClient, Turn

_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL")


def provider_from_env(offline: Sequence[Turn]) -> Provider:
    """Return the provider that the environment or the config names, and say which one that is.

    With RATH_EXAMPLE_PROVIDER=scripted the example's own answers are used, so that it runs
    anywhere. Without a key the embedded model is chosen here, in the open: the library itself
    never falls back to it.

    Args:
        offline: The answers of the scripted model, in order.
    """
    if os.environ.get("RATH_EXAMPLE_PROVIDER") == "scripted":
        print("model: scripted answers (RATH_EXAMPLE_PROVIDER=scripted)")
        return ScriptedClient(offline).provider
    for variable in _VARIABLES:
        if env_value(variable):
            print(f"model: {env_value('OPENAI_DEFAULT_MODEL') or 'as configured'} ({variable})")
            return Provider()
    if ConfigStore.load().config.llm.default_provider:
        provider = Provider.from_config()
        print(f"model: {provider} (config.json)")
        return provider
    print("no key found: using the embedded model of openrath[local-weights], on this machine")
    return Provider(provider_kind="local")
