"""Requests in the form that LiteLLM takes: OpenAI's, with what it adds; pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rath.config.secrets import looks_secret
from rath.llm.body import encode_message
from rath.llm.chat_request import RathLLMMessage

__all__ = ["encode_litellm_message", "keyword_arguments", "refuse_call_settings"]

_FIELDS = {
    "api_key": "api_key",
    "api_base": "base_url",
    "base_url": "base_url",
    "timeout": "timeout",
    "request_timeout": "timeout",
    "num_retries": "retry_max_attempts",
    "max_retries": "retry_max_attempts",
    "fallbacks": "fallbacks",
}
"""Arguments of LiteLLM for which a provider has a field."""

_SECRET_NAME = re.compile(
    r"api_?key|access_key|secret|password|credential|(ad|auth|access|bearer|session)_token$",
    re.IGNORECASE,
)


def refuse_call_settings(extra: Mapping[str, Any]) -> None:
    """Refuse extra arguments that a provider has a field for, and those that hold a secret.

    Parameters are written to the record of a session, so none of them may be a secret.

    Raises:
        ValueError: There is such an argument.
    """
    for name in extra:
        if name in _FIELDS:
            raise ValueError(
                f"extra_create_args cannot set {name!r}; use Provider({_FIELDS[name]}=...)"
            )
        if _SECRET_NAME.search(name):
            raise ValueError(
                f"extra_create_args cannot set {name!r}: it is a secret, and parameters are "
                "recorded. LiteLLM reads it from the environment"
            )
    for table in ("headers", "extra_headers"):
        for name in extra.get(table) or ():
            if looks_secret(name):
                raise ValueError(
                    f"extra_create_args cannot set the header {name!r}: it is a secret, and "
                    "parameters are recorded. Use Provider(api_key=...)"
                )


def encode_litellm_message(message: RathLLMMessage) -> dict[str, Any]:
    """Return a message; the thinking that a vendor signed goes back to it as it came."""
    encoded = encode_message(message)
    if message.blocks:
        encoded["thinking_blocks"] = [dict(block) for block in message.blocks]
    return encoded


def keyword_arguments(
    body: bytes, *, api_key: str, api_base: str | None, timeout: float
) -> dict[str, Any]:
    """Return the arguments of one call of `litellm.acompletion`.

    Args:
        body: What was written for the request.
        api_key: Empty to let LiteLLM look for one.
        api_base: None for the vendor's own endpoint.
        timeout: Seconds.
    """
    arguments: dict[str, Any] = {
        # What a vendor does not know is left out, as documented.
        "drop_params": True,
        **json.loads(body),
        # There is one owner of retries, and it is not LiteLLM.
        "num_retries": 0,
        "max_retries": 0,
        "timeout": timeout,
    }
    if api_key:
        arguments["api_key"] = api_key
    if api_base:
        arguments["api_base"] = api_base
    return arguments
