"""Providers: endpoint, model, parameters, limits and patience of model calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, field, fields, replace
from decimal import Decimal
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args
from urllib.parse import urlsplit

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function, lazy_modules
from rath._core.references import Reduction, Referenced, not_portable
from rath.llm.chat_request import Sampling

if TYPE_CHECKING:
    from dataclasses import Field

    from rath import config
    from rath.config import redaction
    from rath.config.trust import GuardedEntry
else:
    config, redaction = lazy_modules(__name__, "rath.config", "rath.config.redaction")

__all__ = ["Provider"]

# The registry makes clients of providers.
_check_kind: Callable[[str], None] = lazy_function("rath.llm.registry", "check_kind")

ProviderOrigin = Literal["call", "session"]
"""The source of the values of a provider itself."""

OutputMode = Literal["schema", "tool"]
"""Way to ask for a typed answer: by a JSON Schema that the endpoint holds the answer to, or by a
tool whose arguments it is."""

SdkName = Literal["anthropic", "openai"]

DEFAULT_TIMEOUT = 300.0
"""Seconds that a model call may take when the provider does not say; a guess that leaves long
answers their time."""

_TEXTS = ("base_url", "api_key", "model", "reasoning_effort", "verbosity", "user", "service_tier",
          "provider_kind")  # fmt: skip
_NUMBERS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "retry_base_seconds",
            "timeout")  # fmt: skip
_INTEGERS = ("max_completion_tokens", "max_tokens", "n", "seed", "top_logprobs",
             "retry_max_attempts", "budget_total_tokens", "max_in_flight",
             "max_requests_per_minute")  # fmt: skip
_FLAGS = ("parallel_tool_calls", "logprobs", "store")
_MAPPINGS = ("response_format", "logit_bias", "metadata", "extra_create_args")
_CONFIGURED = ("provider_kind", "model", "api_key", "base_url", "temperature", "max_tokens")
"""What `from_config` takes from an entry; None is said of them too."""

_AT_LEAST = {
    "temperature": 0, "top_p": 0, "retry_base_seconds": 0, "budget_total_tokens": 0,
    "top_logprobs": 0, "max_completion_tokens": 1, "max_tokens": 1, "n": 1, "budget_usd": 0,
    "max_in_flight": 1, "max_requests_per_minute": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The entry of a config that a provider was read from; it tells where each value came from."""

    name: str
    """Its name in `llm.providers`."""

    origin: str
    """"config FILE" for the file that holds the entry."""

    key_origin: str
    """The same for its key, which may stand in a file of its own."""

    from_project: bool
    """Whether the project in the working directory brought the file, rather than the user."""

    model: str | None
    base_url: str | None = field(repr=False)
    """Hidden like the key, since a URL may hold a password."""

    api_key: str | None = field(repr=False)

    guard: GuardedEntry | None = field(default=None, compare=False, repr=False)
    """The effects that need trust, where the entry is a project's and has any."""

    def check_trusted(self, own_fields: Collection[str]) -> None:
        """Refuse the entry of a project that acts and that the user has not trusted.

        Args:
            own_fields: Fields that are not taken from it.

        Raises:
            UntrustedConfig: It is not trusted, or was changed since.
        """
        if self.guard is not None and not self.guard.acting <= set(own_fields):
            self.guard.check()

    @property
    def names_account(self) -> bool:
        """Whether it says whose model is asked: an endpoint, a key or both."""
        return bool((self.base_url or "").strip() or (self.api_key or "").strip())

    @classmethod
    def of(
        cls, store: config.ConfigStore, name: str, entry: config.LLMProviderConfig
    ) -> ConfigEntry:
        """Return what `entry` of `store`, which stands there as `name`, gives."""
        return cls(
            name=name,
            origin=store.origin_of(entry, "base_url"),
            key_origin=store.origin_of(entry, "api_key"),
            from_project=store.is_project_local,
            model=entry.model,
            base_url=entry.base_url,
            api_key=entry.api_key,
            guard=config.guarded_entry(store, "llm", "providers", name),
        )

    @classmethod
    def find(
        cls, name: str | None, store: config.ConfigStore | None
    ) -> tuple[config.LLMProviderConfig, ConfigEntry]:
        """Return an entry by name, that of `llm.default_provider` by default, and its origin.

        Args:
            name: Entry of `llm.providers`.
            store: The config to read; the first of the project's and the user's that has it.

        Raises:
            KeyError: No such entry, or no name given and no default set.
        """
        if store is None:
            found = config.find_llm_provider(name)
            return found.entry, cls.of(found.store, found.name, found.entry)
        entry = store.get_llm_provider(name)
        return entry, cls.of(store, name or store.config.llm.default_provider or "", entry)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Provider(Sampling, Referenced):
    """Names a model and an endpoint, and how to call them.

    What is None here is looked up when a client is made: in the environment, then in the config.

    Raises:
        TypeError: A field has a type that it can never have.
        ValueError: A number is out of its range, or `provider_kind` is close to a known kind and
            not one.
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

    budget_usd: float | Decimal | None = None
    """US dollars that a chain of sessions may cost, a float by its digits; what comes then is as
    with tokens. Needs a model with a known price."""

    on_budget_exceeded: Callable[..., None] | None = None
    """Called with (session, usage); raise `BudgetExceededError` in it to end the run."""

    provider_kind: str | None = None
    """Kind of adapter for the endpoint: a registered one, "openai" by default."""

    max_in_flight: int | None = None
    """Calls of this process that may be open at its endpoint at one time."""

    max_requests_per_minute: int | None = None
    """Calls of this process that may begin at its endpoint within any 60 seconds."""

    fallbacks: Sequence[Provider] = ()
    """Whole providers to ask, in this order, where this one fails for a reason that another try
    might mend, or has no quota left; None means none. They take over nothing of this provider, but
    its budgets hold for the whole run."""

    output_mode: OutputMode | None = None
    """Way to ask for a typed answer; "tool" serves an endpoint that refuses JSON Schemas. The
    adapter's own choice by default."""

    client: object = None
    """An asynchronous client of the package `openai` or `anthropic` that calls go through, such as
    `AsyncAzureOpenAI(azure_ad_token_provider=...)` or `AsyncAnthropicBedrock()`: it brings endpoint
    and credentials. Calls run on rath's own event loop, so a client that is used in another one too
    must not be given. It is stored nowhere."""

    config_entry: ConfigEntry | None = field(default=None, compare=False)
    """Set by `from_config`."""

    def __post_init__(self) -> None:
        for name in _TEXTS:
            _check_type(name, getattr(self, name), str, "a string")
        for name in _NUMBERS:
            _check_number(name, getattr(self, name), Real, "a number")
        # Money is often a Decimal, which is no Real; it is kept as it is, to be compared exactly.
        _check_number("budget_usd", self.budget_usd, (Real, Decimal), "a number")
        for name in _INTEGERS:
            _check_number(name, getattr(self, name), Integral, "an integer")
        for name in _FLAGS:
            _check_type(name, getattr(self, name), bool, "a bool")
        for name in _MAPPINGS:
            _check_type(name, getattr(self, name), Mapping, "a mapping")
        self._check_choices()
        if self.provider_kind:
            _check_kind(self.provider_kind)
        if self.client is not None:
            self._check_client()
        # The value must not change when the caller's own dict does.
        object.__setattr__(
            self, "extra_create_args", MappingProxyType(dict(self.extra_create_args or {}))
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return this provider: a value, so that a copy of an agent may share it."""
        return self

    def _pickle_reference(self) -> Reduction:
        """Return the name of its config entry, and the fields that hold no secret.

        What the environment and the config give is looked up where it is unpickled.

        Raises:
            TypeError: A field holds what must not travel.
        """
        entry = self.config_entry
        given = {
            each.name: getattr(self, each.name) for each in fields(self) if _differs(self, each)
        }
        if entry is not None and entry.name:
            del given["config_entry"]
            given = {name: getattr(self, name) for name in _CONFIGURED} | given
            for name in ("api_key", "base_url"):
                if given[name] == getattr(entry, name):
                    del given[name]
        _refuse_secrets(given)
        if "extra_create_args" in given:
            given["extra_create_args"] = dict(self.extra_create_args)
        return _provider_again, (type(self), entry.name if entry else "", given)

    @classmethod
    def from_config(
        cls, name: str | None = None, *, store: config.ConfigStore | None = None, **overrides: Any
    ) -> Self:
        """Return a provider as the config describes it.

        Args:
            name: Entry of `llm.providers`; `llm.default_provider` by default.
            store: The config to read. By default the project's and the user's: the entry is that
                of the first one that has it.
            overrides: Fields of the provider to set or replace.

        Raises:
            KeyError: No such entry, or no name given and no default set.
            UntrustedConfig: The entry is a project's and acts, and the user has not trusted it.
        """
        entry, origin = ConfigEntry.find(name, store)
        origin.check_trusted(given_fields(overrides))
        provider = cls(
            provider_kind=entry.provider_kind,
            model=entry.model,
            api_key=entry.api_key,
            base_url=entry.base_url,
            temperature=entry.temperature,
            max_tokens=entry.max_tokens,
            config_entry=origin,
        )
        return replace(provider, **overrides) if overrides else provider

    def __str__(self) -> str:
        return self.model or "(no model)"

    def __repr__(self) -> str:
        differing = [each.name for each in fields(self) if _differs(self, each)]
        # The model first, and then as they are declared.
        names = sorted(differing, key=lambda name: name != "model")
        shown = ", ".join(f"{name}={self._shown(name)}" for name in names)
        return redaction.redact_content(f"{type(self).__name__}({shown})")

    def _shown(self, name: str) -> str:
        """Return a field as text, without what may be a secret."""
        value: object = getattr(self, name)
        if name == "config_entry" and isinstance(value, ConfigEntry):
            return repr(value.name or value.origin)
        if name == "client" or callable(value):
            return f"<{getattr(value, '__qualname__', type(value).__name__)}>"
        if name == "extra_create_args":
            return f"<{', '.join(self.extra_create_args)}>"  # values of any kind, keys among them
        if name == "fallbacks":
            return repr(list(self.fallbacks))
        return repr(redaction.redact_setting(name, value))

    def _check_client(self) -> None:
        sdk = sdk_of(self.client)
        if sdk is None:
            raise TypeError(
                "client must be an asynchronous client of the package openai or anthropic, such as "
                f"AsyncOpenAI(...), not {type(self.client).__name__}; a client that answers by "
                "itself is registered with rath.llm.register_chat_client(...)"
            )
        for name in ("api_key", "base_url"):
            if getattr(self, name) is not None:
                raise ValueError(f"client brings its own {name}; leave {name} out")
        if self.provider_kind not in (None, sdk):
            raise ValueError(
                f"client is one of {sdk}, and provider_kind is {self.provider_kind!r}; leave "
                "provider_kind out"
            )

    def _check_choices(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, not {self.timeout!r}")
        stop: object = self.stop
        texts = [stop] if isinstance(stop, str) else stop
        if texts is not None and not (
            isinstance(texts, Sequence)
            and all(isinstance(text, str) for text in cast("Sequence[object]", texts))
        ):
            raise TypeError(f"stop must be a string or a list of strings, not {stop!r}")
        choice = cast("object", self.tool_choice)
        if choice is not None and not isinstance(choice, str | Mapping):
            raise TypeError(
                f'tool_choice must be "auto", "none", "required" or a mapping, not {choice!r}'
            )
        mode: object = self.output_mode
        if mode is not None and mode not in get_args(OutputMode):
            raise ValueError(f'output_mode must be "schema" or "tool", not {mode!r}')
        object.__setattr__(self, "fallbacks", _checked_fallbacks(self.fallbacks))
        callback: object = self.on_budget_exceeded
        if callback is not None and not callable(callback):
            raise TypeError(f"on_budget_exceeded must be callable, not {callback!r}")


def _differs(provider: Provider, each: Field[Any]) -> bool:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    return bool(getattr(provider, each.name) != default)


def _refuse_secrets(given: Mapping[str, Any]) -> None:
    if given.get("api_key") is not None:
        raise not_portable(
            "Provider(api_key=...) holds a literal key, which must not travel",
            "leave api_key out and set the variable of its vendor in the environment of each "
            "process, such as OPENAI_API_KEY, or name a config entry, Provider.from_config('NAME')",
        )
    if given.get("client") is not None:
        raise not_portable(
            "Provider(client=...) holds an open client with its credentials, which cannot travel",
            "make the provider in the process that uses it, or name its endpoint by base_url",
        )
    parts = urlsplit(given.get("base_url") or "")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise not_portable(
            "Provider(base_url=...) holds a login or a query, which must not travel",
            "put it into a config entry, and name that, Provider.from_config('NAME')",
        )
    for name, value in given.items():
        place = None if name == "config_entry" else redaction.find_secret(name, value)
        if place is not None:
            raise not_portable(
                f"Provider({name}=...) may hold a secret in {place}, which must not travel",
                "give that where the provider is used, by a provider_kind of your own that reads "
                "it from the environment",
            )


def _provider_again(kind: type[Provider], name: str, given: Mapping[str, Any]) -> Provider:
    """Return the provider that a reference means here."""
    return kind.from_config(name, **given) if name else kind(**given)


def sdk_of(client: object) -> SdkName | None:
    """Return the package whose asynchronous client this is, None for any other object."""
    names: tuple[SdkName, ...] = ("anthropic", "openai")
    for base in type(client).__mro__:
        if base.__name__ == "AsyncAPIClient":
            package = base.__module__.partition(".")[0]
            return next((name for name in names if name == package), None)
    return None


def given_fields(overrides: Mapping[str, Any]) -> set[str]:
    """Return the fields that overrides say themselves; None leaves a field to be looked up."""
    return {name for name, value in overrides.items() if value is not None}


def _checked_fallbacks(value: object) -> tuple[Provider, ...]:
    if value is None:
        return ()
    if isinstance(value, Provider) or not isinstance(value, Sequence):
        raise TypeError(f"fallbacks must be a list of Provider, not {type(value).__name__}")
    fallbacks: list[Provider] = []
    for item in cast("Sequence[object]", value):
        if not isinstance(item, Provider):
            raise TypeError(f"fallbacks must hold Provider objects, not {type(item).__name__}")
        if item.fallbacks:
            raise ValueError("a fallback cannot have fallbacks of its own; list all of them in one")
        fallbacks.append(item)
    return tuple(fallbacks)


def _check_type(name: str, value: object, expected: type, words: str) -> None:
    if value is not None and not isinstance(value, expected):
        # The value itself stays out of the text: it may be a key.
        raise TypeError(f"{name} must be {words}, not {type(value).__name__}")


def _check_number(name: str, value: object, expected: type | tuple[type, ...], words: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, expected):
        raise TypeError(f"{name} must be {words}, not {value!r}")
    number = float(cast("Real | Decimal", value))
    least = _AT_LEAST.get(name)
    if not math.isfinite(number) or (least is not None and number < least):
        bound = "finite" if least is None else f"finite and at least {least}"
        raise ValueError(f"{name} must be {bound}, not {value!r}")
