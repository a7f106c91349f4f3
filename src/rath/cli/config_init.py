"""`rath config init`: set up a model, by questions or from what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rath._core.dataclasses import dataclass
from rath._installation import install_advice
from rath.cli.settings import (
    ForProject,
    endpoint_problem,
    key_needed,
    key_problem,
    model_problem,
    read_settings,
    target_path,
)
from rath.cli.terminal import Misuse, ask, ask_secret, ask_yes_no, complain, note, say, warn
from rath.config.credentials import CREDENTIALS_FILENAME
from rath.config.env import env_value
from rath.config.paths import OPENRATH_HOME_ENV, is_project_local
from rath.config.redaction import redact_setting
from rath.config.schema import LLMProviderConfig
from rath.config.store import ConfigStore
from rath.llm.credentials import variables_of
from rath.llm.local.weights import BUNDLED
from rath.llm.registry import registered_kinds

DEFAULT_NAME = "main"

_KINDS = {
    "openai": "OpenAI, Azure, and every server that speaks the OpenAI protocol",
    "anthropic": "Anthropic, and every server that speaks its protocol",
    "litellm": "many vendors, by the package litellm",
    "local": "a small model inside the process, without a key or a network",
}
_VENDORS = ("openai", "anthropic", "litellm")


@dataclass(frozen=True, slots=True)
class InitOptions:
    """What stood on the command line, and is not asked for."""

    kind: str | None = None
    model: str | None = None
    base_url: str | None = None


def init(
    kind: Annotated[
        str | None, typer.Option("--kind", help="openai, anthropic, litellm, local, ...")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Name of the model.")] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="The endpoint; the vendor's own by default.")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="Name of the provider in the config.")
    ] = DEFAULT_NAME,
    for_project: ForProject = None,
    is_yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; take what the environment offers.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a provider of that name.")
    ] = False,
) -> None:
    """Set up a model: who serves it, its name and its key.

    With --yes that is the vendor whose variables are set, else the embedded model; where there
    is a default provider already, nothing is changed.
    """
    if kind is not None and kind not in registered_kinds():
        raise Misuse(f"no provider kind {kind!r}. Known: {', '.join(registered_kinds())}")
    problem = None if base_url is None else endpoint_problem(base_url)
    problem = problem or (None if model is None else model_problem(model))
    if problem is not None:
        raise Misuse(problem)
    wanted = InitOptions(kind, model, base_url)
    if is_yes:
        store = ConfigStore(target_path(for_project))
        known = None if force else _existing_provider(store, name, for_project)
        if known is not None:
            say(f"Nothing is changed: {known}. To replace it: --force")
            return
        entry = entry_of_environment(wanted)
        key = _key_of_endpoint(store.config.llm.providers.get(name), entry)
    else:
        store = ConfigStore(_ask_place(for_project))
        if not force and not _may_replace(store, name):
            say("Nothing is changed.")
            return
        entry, key = _ask_entry(wanted)
    entry.api_key = key or None
    _write(store, name, entry)
    _tell_the_rest(store, name)


def _existing_provider(store: ConfigStore, name: str, for_project: bool | None) -> str | None:
    """Return what is there and stays, or None where something may be written."""
    llm = store.config.llm
    for known in (name, llm.default_provider):
        if known in llm.providers:
            return f"{store.path} has the provider {known}"
    default = read_settings().at("llm.default_provider")
    if for_project is None and default is not None:
        return f"the default provider is {default.value}, by {default.origin}"
    return None


def entry_of_environment(wanted: InitOptions) -> LLMProviderConfig:
    """Return what the environment offers. Its endpoint and key stay there, to be read each time."""
    kind = wanted.kind or kind_of_environment() or "local"
    model = wanted.model or _first_value(variables_of(kind).model)
    return LLMProviderConfig(provider_kind=kind, model=model, base_url=wanted.base_url)


def _key_of_endpoint(old: LLMProviderConfig | None, new: LLMProviderConfig) -> str:
    """Return the key that stays with an endpoint; that of another endpoint goes, and it is said."""
    if old is None or not old.api_key:
        return ""
    if (old.provider_kind, old.base_url) == (new.provider_kind, new.base_url):
        return old.api_key
    warn("the stored key belonged to the endpoint that is replaced, and goes with it")
    return ""


def kind_of_environment() -> str | None:
    """Return the first vendor that a key or an endpoint is set for."""
    for kind in _VENDORS:
        variables = variables_of(kind)
        if _first_value((*variables.api_key(""), *variables.base_url)):
            return kind
    return None


def _first_value(names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := env_value(name))), None)


def _ask_place(for_project: bool | None) -> Path:
    if for_project is None and env_value(OPENRATH_HOME_ENV) is None:
        answer = ask(
            "For all that you do, or for this directory only", default="user",
            choices=("user", "project"),
        )  # fmt: skip
        for_project = answer == "project"
    return target_path(for_project)


def _may_replace(store: ConfigStore, name: str) -> bool:
    known = store.config.llm.providers.get(name)
    if known is None:
        return True
    note(f"{store.path} has a provider {name}: {_description(known)}")
    return ask_yes_no("Replace it?", option="--force")


def _ask_entry(wanted: InitOptions) -> tuple[LLMProviderConfig, str]:
    """Return the answers, and the key if one is to be stored."""
    kind = wanted.kind or _ask_kind()
    variables = variables_of(kind)
    if kind == "local":
        model = wanted.model or ask("Path of a GGUF file (nothing: the one of local-weights)")
        return LLMProviderConfig(provider_kind=kind, model=model or None), ""
    asked = partial(ask, "Model name", default=_first_value(variables.model) or "")
    model = wanted.model or _ask_until(asked, model_problem)
    base_url = wanted.base_url
    if base_url is None:
        otherwise = redact_setting("", _first_value(variables.base_url) or "the vendor's own")
        base_url = _ask_until(partial(ask, f"Endpoint (nothing: {otherwise})"), endpoint_problem)
    entry = LLMProviderConfig(provider_kind=kind, model=model or None, base_url=base_url or None)
    asked = partial(ask_secret, f"API key, hidden (nothing: {_key_variable(entry)} at each run)")
    return entry, _ask_until(asked, partial(key_problem, model=model))


def _ask_until(question: Callable[[], str], problem_of: Callable[[str], str | None]) -> str:
    """Return the answer to a question, which is asked again while it cannot be."""
    while True:
        answer = question()
        problem = problem_of(answer) if answer else None
        if problem is None:
            return answer
        complain(problem)


def _ask_kind() -> str:
    kinds = {**_KINDS, **{kind: "a plug-in" for kind in registered_kinds() if kind not in _KINDS}}
    width = max(map(len, kinds))
    for kind, words in kinds.items():
        typer.echo(f"  {kind:<{width}}  {words}", err=True)
    return ask("Who serves the model", default=kind_of_environment() or "openai", choices=[*kinds])


def _key_variable(entry: LLMProviderConfig) -> str:
    names = variables_of(entry.provider_kind).api_key(entry.base_url or "")
    return names[0] if names else "the environment"


def _write(store: ConfigStore, name: str, entry: LLMProviderConfig) -> None:
    llm = store.config.llm
    llm.providers[name] = entry
    llm.default_provider = llm.default_provider or name
    store.save()
    is_default = ", the default" if llm.default_provider == name else ""
    say(f"Wrote {store.path}: provider {name}{is_default}: {_description(entry)}")
    if entry.api_key:
        say(f"Wrote {store.path.with_name(CREDENTIALS_FILENAME)}: its key; only you can read it")
    directory = store.path.parent
    if is_project_local(directory) and (directory.parent / ".gitignore").is_file():
        say(f"{directory.parent / '.gitignore'} keeps {directory.name}/ out of the repository")


def _description(entry: LLMProviderConfig) -> str:
    parts = [entry.provider_kind]
    parts += [f"model {entry.model}"] if entry.model else []
    parts += [f"at {redact_setting('base_url', entry.base_url)}"] if entry.base_url else []
    return ", ".join(parts)


def _tell_the_rest(store: ConfigStore, name: str) -> None:
    """Say what is still to be done before the first run."""
    entry = store.config.llm.providers[name]
    missing = missing_packages(entry)
    if missing is not None:
        note(f"it needs {install_advice(*missing)}")
    if entry.provider_kind != "local":
        _tell_of_account(store, name)
    say("In a program: flow.Provider.from_config()")
    say("To see what is set: rath config list --show-origin")
    say("To test it: rath doctor --live")


def missing_packages(entry: LLMProviderConfig) -> tuple[str, list[str]] | None:
    """Return the extra, and the packages of it, that the provider cannot be used without."""
    if entry.provider_kind == "litellm" and find_spec("litellm") is None:
        return "litellm", ["litellm"]
    if entry.provider_kind == "local":
        runtime = ["xllamacpp"] if find_spec("xllamacpp") is None else []
        weights = [] if entry.model else [each.package for each in BUNDLED.parts]
        missing = [*runtime, *(each for each in weights if find_spec(each) is None)]
        extra = "local" if missing == runtime else BUNDLED.extra
        return (extra, missing) if missing else None
    return None


def _tell_of_account(store: ConfigStore, name: str) -> None:
    """Say what is read from the environment at each run, and what is nowhere yet."""
    entry = store.config.llm.providers[name]
    variables = variables_of(entry.provider_kind)
    endpoint = next((name for name in variables.base_url if env_value(name)), None)
    if entry.base_url is None and endpoint is not None:
        say(f"Its endpoint: {endpoint}, read at each run")
    if entry.model is None:
        warn("no model is named, and a run needs one")
    if entry.api_key:
        return
    if entry.base_url and store.is_project_local:
        warn(key_needed(name))
        return
    names = variables.api_key(entry.base_url or "")
    key = next((name for name in names if env_value(name)), None)
    if key is not None:
        say(f"Its key: {key}, read at each run")
    elif names:
        warn(f"no key is stored, and {names[0]} is not set now")
