"""Where a model is called, with which parameters, and how patiently."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Self, cast

from rath import config
from rath.llm.sampling import Sampling

__all__ = ["DEFAULT_TIMEOUT", "ConfigEntry", "Provider"]

DEFAULT_TIMEOUT = 300.0
"""Seconds that a model call may take when the provider does not say; a guess that leaves long
answers their time."""

_TEXTS = ("base_url", "api_key", "model", "reasoning_effort", "verbosity", "user", "service_tier",
          "provider_kind")  # fmt: skip
_NUMBERS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "retry_base_seconds",
            "timeout")  # fmt: skip
_INTEGERS = ("max_completion_tokens", "max_tokens", "n", "seed", "top_logprobs",
             "retry_max_attempts", "budget_total_tokens")  # fmt: skip
_FLAGS = ("parallel_tool_calls", "logprobs", "store")
_MAPPINGS = ("response_format", "logit_bias", "metadata", "extra_create_args")
_AT_LEAST = {
    "temperature": 0, "top_p": 0, "retry_base_seconds": 0, "budget_total_tokens": 0,
    "top_logprobs": 0, "max_completion_tokens": 1, "max_tokens": 1, "n": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The entry of a config that a provider was read from; it tells where each value came from."""

    origin: str
    """"config FILE" for the file that holds the entry."""

    key_origin: str
    """The same for its key, which may stand in a file of its own."""

    from_project: bool
    """Whether the project in the working directory brought the file, rather than the user."""

    model: str | None
    base_url: str | None
    api_key: str | None = field(repr=False)

    @classmethod
    def of(cls, store: config.ConfigStore, entry: config.LLMProviderConfig) -> ConfigEntry:
        """Return what `entry` of `store` gives."""
        return cls(
            origin=store.origin_of(entry, "base_url"),
            key_origin=store.origin_of(entry, "api_key"),
            from_project=store.is_project_local,
            model=entry.model,
            base_url=entry.base_url,
            api_key=entry.api_key,
        )


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Provider(Sampling):
    """Names a model and an endpoint, and how to call them.

    What is None here is looked up when a client is made: in the environment, then in the config.

    Raises:
        TypeError: A field has a type that it can never have.
        ValueError: A number is out of its range.
    """

    base_url: str | None = None
    api_key: str | None = None
    retry_max_attempts: int | None = None
    """Tries in all, the first one included; 4 by default."""

    retry_base_seconds: float | None = None
    """Wait before the second try, doubled before each further one; 0.5 by default."""

    timeout: float | None = None
    """Seconds for a whole answer, or of silence in a streamed one; 300 by default."""

    budget_total_tokens: int | None = None
    """Tokens that a chain of sessions may use before `on_budget_exceeded` is called."""

    on_budget_exceeded: Callable[..., None] | None = None
    """Called with (session, usage); raise `BudgetExceededError` in it to end the run."""

    provider_kind: str | None = None
    """Which adapter speaks to the endpoint: a registered kind, "openai" by default."""

    config_entry: ConfigEntry | None = field(default=None, compare=False)
    """Set by `from_config`."""

    def __post_init__(self) -> None:
        for name in _TEXTS:
            _check_type(name, getattr(self, name), str, "a string")
        for name in _NUMBERS:
            _check_number(name, getattr(self, name), Real, "a number")
        for name in _INTEGERS:
            _check_number(name, getattr(self, name), Integral, "an integer")
        for name in _FLAGS:
            _check_type(name, getattr(self, name), bool, "a bool")
        for name in _MAPPINGS:
            _check_type(name, getattr(self, name), Mapping, "a mapping")
        self._check_the_rest()
        # The value must not change when the caller's own dict does.
        object.__setattr__(
            self, "extra_create_args", MappingProxyType(dict(self.extra_create_args or {}))
        )

    @classmethod
    def from_config(
        cls, name: str | None = None, *, store: config.ConfigStore | None = None, **overrides: Any
    ) -> Self:
        """Return a provider as the config describes it.

        Args:
            name: Entry of `llm.providers`; `llm.default_provider` by default.
            store: The config to read; that of the current home by default.
            overrides: Fields of the provider to set or replace.

        Raises:
            KeyError: No such entry, or no name given and no default set.
        """
        store = store or config.ConfigStore.load()
        entry = store.get_llm_provider(name)
        provider = cls(
            provider_kind=entry.provider_kind,
            model=entry.model,
            api_key=entry.api_key,
            base_url=entry.base_url,
            temperature=entry.temperature,
            max_tokens=entry.max_tokens,
            config_entry=ConfigEntry.of(store, entry),
        )
        return replace(provider, **overrides) if overrides else provider

    def __repr__(self) -> str:
        return self.model or "(no model)"

    def _check_the_rest(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, not {self.timeout!r}")
        stop: object = self.stop
        if stop is not None and not _is_text_or_texts(stop):
            raise TypeError(f"stop must be a string or a list of strings, not {stop!r}")
        choice = cast("object", self.tool_choice)
        if choice is not None and not isinstance(choice, str | Mapping):
            raise TypeError(
                f'tool_choice must be "auto", "none", "required" or a mapping, not {choice!r}'
            )
        callback: object = self.on_budget_exceeded
        if callback is not None and not callable(callback):
            raise TypeError(f"on_budget_exceeded must be callable, not {callback!r}")


def _check_type(name: str, value: object, expected: type, words: str) -> None:
    if value is not None and not isinstance(value, expected):
        # The value itself stays out of the text: it may be a key.
        raise TypeError(f"{name} must be {words}, not {type(value).__name__}")


def _check_number(name: str, value: object, expected: type, words: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, expected):
        raise TypeError(f"{name} must be {words}, not {value!r}")
    number = float(cast("Real", value))
    least = _AT_LEAST.get(name)
    if not math.isfinite(number) or (least is not None and number < least):
        bound = "finite" if least is None else f"finite and at least {least}"
        raise ValueError(f"{name} must be {bound}, not {value!r}")


def _is_text_or_texts(value: object) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, Sequence) and all(
        isinstance(item, str) for item in cast("Sequence[object]", value)
    )
