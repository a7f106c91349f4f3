"""The files of a server of our own: its `ov.conf`, and who reaches it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rath.errors import MemoryBackendError
from rath.llm.credentials import OPENAI, OPENAI_FIXED_MODEL, Account, find_account
from rath.llm.embedding.provider import EmbeddingProvider
from rath.llm.provider import Provider
from rath.memory.adapters.openviking.defaults import DIMENSIONS
from rath.memory.adapters.openviking.options import Options

__all__ = ["server_config"]

_SECTIONS = {"embedding_provider": ("embedding", "dense"), "chat_provider": ("vlm",)}
_OPENAI = "https://api.openai.com/v1"


def server_config(options: Options, *, workspace: Path, port: int, key: str) -> Mapping[str, Any]:
    """Return what goes into `ov.conf`; blocks, since it reads configs.

    Args:
        options: Which models the server uses.
        workspace: Where it keeps everything.
        port: Where it listens, on this machine only.
        key: What it asks of everybody: other users of the machine must not read the notes.

    Raises:
        MemoryBackendError: It would have no embeddings, or a provider cannot be used.
    """
    models: dict[str, Any] = {}
    if options.embedding_provider is not None:
        models["embedding"] = {"dense": _embedding(options.embedding_provider, options)}
    if options.chat_provider is not None:
        models["vlm"] = _vlm(options.chat_provider)
    given = _given(options)
    _refuse_key_elsewhere(models, given)
    merged = _merged(models, given)
    if not merged.get("embedding"):
        raise MemoryBackendError(
            "an OpenViking server of our own needs a model for embeddings; give "
            "options={'embedding_provider': NAME} with an entry of llm.providers, or "
            "options={'config': {'embedding': {'dense': {...}}}} as its documentation has it"
        )
    own = {
        "server": {
            "host": "127.0.0.1",
            "port": port,
            "auth_mode": "trusted",
            "root_api_key": key,
        },
        "storage": {"workspace": str(workspace)},
    }
    return _merged(merged, own)


def _given(options: Options) -> Mapping[str, Any]:
    if not isinstance(options.config, Path):
        return options.config
    try:
        read: object = json.loads(options.config.read_bytes())
    except (OSError, ValueError) as exc:
        raise MemoryBackendError(f"{str(options.config)!r} cannot be read: {exc}") from exc
    if not isinstance(read, dict):
        raise MemoryBackendError(f"{str(options.config)!r} must hold a JSON object")
    return cast("Mapping[str, Any]", read)


def _refuse_key_elsewhere(models: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to send the key of a provider to an endpoint that somebody else named."""
    for option, names in _SECTIONS.items():
        own, told = models, given
        for name in names:
            own, told = _table(own.get(name) or {}), _table(told.get(name) or {})
        if own and "api_base" in told and "api_key" not in told:
            raise MemoryBackendError(
                f"config names another api_base than {option}, whose key is not sent there; give "
                "its api_key beside it, or leave one of the two out"
            )


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for name, value in above.items():
        old: Any = result.get(name)
        new: Any = value
        both = isinstance(old, Mapping) and isinstance(new, Mapping)
        result[name] = _merged(_table(old), _table(new)) if both else new
    return result


def _table(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value)


def _embedding(name: str, options: Options) -> Mapping[str, Any]:
    try:
        provider = EmbeddingProvider.from_config(name)
    except KeyError as exc:
        raise MemoryBackendError(f"embedding_provider: {exc.args[0]}") from exc
    _check_kind("embedding_provider", name, provider.provider_kind)
    account = find_account(
        provider,
        kind="openai",
        variables=OPENAI_FIXED_MODEL,
        default_base_url=_OPENAI,
        purpose="embedding",
    )
    account.check_trusted()
    size = options.embedding_dimensions or provider.dimensions or DIMENSIONS.get(provider.model)
    if size is None:
        raise MemoryBackendError(
            f"the server must be told how long the vectors of {provider.model!r} are; give "
            "options={'embedding_dimensions': N}"
        )
    return {**_model(provider.model, account), "dimension": size, "input": "text"} | {
        "encoding_format": "float"
    }


def _vlm(name: str) -> Mapping[str, Any]:
    try:
        provider = Provider.from_config(name)
    except KeyError as exc:
        raise MemoryBackendError(f"chat_provider: {exc.args[0]}") from exc
    _check_kind("chat_provider", name, provider.provider_kind)
    account = find_account(provider, kind="openai", variables=OPENAI, default_base_url=_OPENAI)
    account.check_trusted()
    if account.model is None:
        raise MemoryBackendError(f"the provider {name!r} names no model")
    return _model(account.model.value, account)


def _check_kind(option: str, name: str, kind: str | None) -> None:
    if kind not in {None, "openai"}:
        raise MemoryBackendError(
            f"{option} {name!r} is of the kind {kind!r}; the server is told of endpoints that "
            "speak OpenAI's protocol, others go into options={'config': ...}"
        )


def _model(model: str, account: Account) -> dict[str, Any]:
    return {
        "provider": "openai",
        "model": model,
        # Its client of OpenAI refuses to start without any.
        "api_key": account.api_key.value or "unused",
        "api_base": account.base_url.value,
    }
