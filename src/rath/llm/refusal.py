"""Why an endpoint refused a model: what it offers instead, and where the refused name came from."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rath._async.runtime import runtime
from rath.errors import ModelNotFoundError, ProviderError, ProviderStatusError
from rath.llm.failure import NO_SUCH_MODEL, Asked
from rath.llm.model_names import may_mean_the_same, near_model

__all__ = ["explain_refusal", "refusal_foreseen"]

_MAX_SHOWN = 20
"""Offered models in one text; a guess at what a reader still looks through."""

_LISTING_SECONDS = 3.0
"""How long a list of models may take here; a guess, since somebody waits for the error."""

_ELSEWHERE = " If another vendor serves it, name that one with Provider(provider_kind=...)."

_UNKNOWN = re.compile(
    r"\b(?:no such|unknown|invalid|unrecogni[sz]ed|not a valid|(?:cannot|could not|not) "
    r"f(?:ind|ound)(?: the| a)?) model"
    r"|\bmodel\b.{0,160}?\b(?:not found|(?:not|n[o']t) exist)"
    r"|\bmodel(?: (?:id|identifier|name))?(?:\W+\S+)? is (?:invalid|unknown|not valid)",
    re.DOTALL,
)
"""How endpoints say that they know no such model, whatever the status; in lower case."""


async def explain_refusal(
    error: ProviderStatusError,
    asked: Asked,
    list_models: Callable[[], Awaitable[Sequence[str]]],
) -> ProviderStatusError:
    """Return the error that says best what `error` says.

    Where the endpoint's answer speaks of the model, it is asked once what it offers. A name that
    it says it does not know, and that is not among it, makes a `ModelNotFoundError`, whatever the
    status was. Otherwise, and where the endpoint lists nothing, `error` stays what it is, with a
    note where the list says something.

    Args:
        error: What the call failed with.
        asked: Who was asked.
        list_models: Asks the endpoint for its models.
    """
    if error.model is None:
        return error
    try:
        async with asyncio.timeout(_LISTING_SECONDS):
            offered = tuple(await list_models())
    except (ProviderError, TimeoutError):
        return error  # what counts is the refusal, not why its explanation failed
    if not offered:
        return error
    # Near names among thousands take a second to find.
    return await runtime().call_in_worker(partial(_explained, error, asked.model, offered))


def refusal_foreseen(asked: Asked, offered: Sequence[str]) -> str | None:
    """Return why a call for a model would be refused, judged by what its endpoint offers.

    Args:
        asked: Who would be asked for what.
        offered: What the endpoint listed; an empty list says nothing.

    Returns:
        None where the model is offered, or may be under another name.
    """
    name = asked.model
    if not offered or _listed_as(name, offered) is not None:
        return None
    return (
        f"{asked.endpoint} does not offer the model {name!r}, which came from "
        f"{asked.model_origin}.{_instead(name, offered)}"
    )


def _explained(
    error: ProviderStatusError, name: str, offered: tuple[str, ...]
) -> ProviderStatusError:
    listed = _listed_as(name, offered)
    is_denied = error.code == NO_SUCH_MODEL or _UNKNOWN.search(_said(error)) is not None
    if listed is not None and (listed == name or not is_denied):
        if note := _note(error, listed, is_denied=is_denied):
            error.add_note(note)
        return error
    if is_denied or error.status == 404:
        return _not_offered(error, name, offered)
    error.add_note(f"the endpoint does not list the model {name!r}.{near_model(name, offered)}")
    return error


def _listed_as(name: str, offered: Sequence[str]) -> str | None:
    """Return under which name a model is offered, as far as names tell."""
    if name in offered:
        return name
    return next((other for other in offered if may_mean_the_same(name, other)), None)


def _said(error: ProviderStatusError) -> str:
    """Return what the endpoint said, without the words around it, in lower case."""
    _, _, said = str(error).partition(f" answered with status {error.status}: ")
    return said.rpartition(". The model ")[0].casefold()


def _note(error: ProviderStatusError, listed: str, *, is_denied: bool) -> str | None:
    """Return what to make of the refusal of a model that is listed."""
    if error.status == 403 or error.code == NO_SUCH_MODEL:
        return f"the endpoint lists {listed!r}; the key may lack the right to it"
    if error.status != 404:
        return None
    if is_denied:
        return f"the endpoint lists {listed!r} all the same"
    return (
        f"the endpoint lists {listed!r}, so the path is probably not served there; check base_url "
        "and provider_kind"
    )


def _not_offered(
    error: ProviderStatusError, name: str, offered: tuple[str, ...]
) -> ModelNotFoundError:
    found = ModelNotFoundError(
        f"{error}. The endpoint does not offer it.{_instead(name, offered)}",
        endpoint=error.endpoint,
        status=error.status,
        code=error.code,
        retry_after=error.retry_after,
    )
    found.model = name
    found.offered = offered
    return found


def _instead(name: str, offered: Sequence[str]) -> str:
    """Return what to ask for in the place of a model that is not offered."""
    return f"{near_model(name, offered) or _ELSEWHERE} It offers {_shown(offered)}"


def _shown(offered: Sequence[str]) -> str:
    shown = ", ".join(map(repr, offered[:_MAX_SHOWN]))
    n_more = len(offered) - _MAX_SHOWN
    return f"{shown} and {n_more} more" if n_more > 0 else shown
