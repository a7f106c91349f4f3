"""The models that programs here may ask: those of the configs, and those of the environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from rath.cli.findings import Finding
from rath.config.env import env_value
from rath.config.layers import llm_default
from rath.config.paths import config_layer_paths
from rath.config.store import ConfigStore
from rath.errors import ConfigError, ManifestVersionError, UntrustedConfig
from rath.llm.credentials import OPENAI_FIXED_MODEL, Account, Purpose, find_account, variables_of
from rath.llm.embedding.provider import EmbeddingProvider
from rath.llm.probe import Probed
from rath.llm.provider import Provider
from rath.llm.registry import DEFAULT_KIND, registered_kinds
from rath.llm.vlm import VLMProvider

__all__ = ["GROUP", "Target", "configured_targets", "environment_targets", "usable_configs"]

GROUP = "Models"


@dataclass(frozen=True, slots=True)
class Target:
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

    def is_same_as(self, other: Target) -> bool:
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


def configured_targets() -> tuple[list[Target], list[Finding]]:
    """Return the models of the configs, and why some of their entries describe none.

    The entries of `llm.embedding_provider` and `llm.vlm_provider` are models for that, and chat
    models only where `llm.default_provider` names them too.
    """
    stores = usable_configs()
    targets: list[Target] = []
    findings: list[Finding] = []
    seen: set[str] = set()
    for store in stores:
        for name in store.config.llm.providers:
            if name in seen:
                continue
            seen.add(name)
            try:
                for provider in _read(name, store, stores):
                    targets.append(Target(name, provider, is_configured=True))
            except UntrustedConfig as exc:
                findings.append(Finding(GROUP, name, "problem", str(exc), "rath config trust"))
            except (KeyError, TypeError, ValueError) as exc:
                findings.append(Finding(GROUP, name, "problem", f"{exc.args[0]}; see {store.path}"))
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


def environment_targets() -> list[Target]:
    """Return a model for each kind of which the environment names a key or an endpoint."""
    found: list[Target] = []
    for kind in registered_kinds():
        variables = variables_of(kind)
        urls = [url for name in variables.base_url if (url := env_value(name))]
        if urls or any(env_value(name) for name in variables.api_key("")):
            found.append(Target(kind, Provider(provider_kind=kind), is_configured=False))
    return found
