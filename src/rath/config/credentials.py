"""The API keys of a config, kept apart from it in `credentials.json`.

{"llm": {"providers": {NAME: KEY}}, "backend": {"providers": {NAME: KEY}},
 "memory": {"providers": {NAME: KEY}}, "version": 1}
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, cast

__all__ = ["CREDENTIALS_FILENAME", "SECRET_SECTIONS", "secrets_from_config", "split_secrets"]

CREDENTIALS_FILENAME = "credentials.json"
SECRET_SECTIONS = ("llm", "backend", "memory")


def split_secrets(payload: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a config without its keys, and the keys alone in the form of `credentials.json`.

    `payload` stays as it is. Sections without a key are left out of the second part, so it is
    empty when there is no key at all.
    """
    config = copy.deepcopy(payload)
    credentials: dict[str, Any] = {}
    for section in SECRET_SECTIONS:
        keys: dict[str, str] = {}
        for name, entry in _providers(config, section):
            if not isinstance(entry, dict):
                continue
            key = cast("dict[str, Any]", entry).pop("api_key", None)
            if isinstance(key, str) and key.strip():
                keys[name] = key
        if keys:
            credentials[section] = {"providers": keys}
    return config, credentials


def secrets_from_config(credentials: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Return the keys of a `credentials.json` by section and name; blank ones are left out."""
    return {
        (section, name): key
        for section in SECRET_SECTIONS
        for name, key in _providers(credentials, section)
        if isinstance(key, str) and key.strip()
    }


def _providers(payload: Mapping[str, Any], section: str) -> Iterator[tuple[str, object]]:
    body = payload.get(section)
    providers = cast("dict[str, Any]", body).get("providers") if isinstance(body, dict) else None
    if isinstance(providers, dict):
        yield from cast("dict[str, object]", providers).items()
