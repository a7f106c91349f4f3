"""Refused models: what the endpoint offers instead, and which names may mean the same model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rath._async.runtime import runtime
from rath._core.text import did_you_mean
from rath.errors import ModelNotFoundError, ProviderError, ProviderStatusError
from rath.llm.credentials import RequestTarget
from rath.llm.errors import NO_SUCH_MODEL

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

_VERSION = re.compile(r"[-@](latest|0|\d{3,4}|\d{4}-?\d\d-?\d\d|\d\d-\d{2,4})\Z")
"""How versions of a model end: `-latest`, `-0`, `-002`, `-0613`, `@20250219`, `-2024-08-06`."""

_FLOATING = frozenset({"", "latest", "0"})
"""Versions that stand for whichever one is meant now."""

_WAYS = frozenset(
    {"", "latest", "beta", "exacto", "extended", "floor", "free", "nitro", "online", "thinking"}
)
"""What routers append to a name to say how it is to be served, and Ollama to say which version."""

_DATE = re.compile(r"\d{4}-?\d\d-?\d\d|\d")
_FINE_TUNED = "ft:"
_NO_FOLDER = frozenset({"", "models"})


async def explain_refusal(
    error: ProviderStatusError,
    target: RequestTarget,
    list_models: Callable[[], Awaitable[Sequence[str]]],
) -> ProviderStatusError:
    """Return the error that says best what `error` says.

    Where the endpoint's answer speaks of the model, it is asked once what it offers. A name that
    it says it does not know, and that is not among it, makes a `ModelNotFoundError`, whatever the
    status was. Otherwise, and where the endpoint lists nothing, `error` stays what it is, with a
    note where the list says something.

    Args:
        error: What the call failed with.
        target: Who was asked.
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
    return await runtime().call_in_worker(partial(_explained, error, target.model, offered))


def refusal_foreseen(target: RequestTarget, offered: Sequence[str]) -> str | None:
    """Return why a call for a model would be refused, judged by what its endpoint offers.

    Args:
        target: Who would be asked for what.
        offered: What the endpoint listed; an empty list says nothing.

    Returns:
        None where the model is offered, or may be under another name.
    """
    name = target.model
    if not offered or _listed_as(name, offered) is not None:
        return None
    return (
        f"{target.name} does not offer the model {name!r}, which came from "
        f"{target.origin_of('model')}.{_instead(name, offered)}"
    )


def _explained(
    error: ProviderStatusError, name: str, offered: tuple[str, ...]
) -> ProviderStatusError:
    listed = _listed_as(name, offered)
    # The endpoint's words, without those around them.
    _, _, words = str(error).partition(f" answered with status {error.status}: ")
    words = words.rpartition(". The model ")[0].casefold()
    is_denied = error.code == NO_SUCH_MODEL or _UNKNOWN.search(words) is not None
    if listed is not None and (listed == name or not is_denied):
        if error.status == 403 or error.code == NO_SUCH_MODEL:
            error.add_note(f"the endpoint lists {listed!r}; the key may lack the right to it")
        elif error.status == 404 and is_denied:
            error.add_note(f"the endpoint lists {listed!r} all the same")
        elif error.status == 404:
            error.add_note(
                f"the endpoint lists {listed!r}, so the path is probably not served there; check "
                "base_url and provider_kind"
            )
        return error
    if not is_denied and error.status != 404:
        error.add_note(f"the endpoint does not list the model {name!r}.{near_model(name, offered)}")
        return error
    refused = ModelNotFoundError(
        f"{error}. The endpoint does not offer it.{_instead(name, offered)}",
        endpoint=error.endpoint,
        status=error.status,
        code=error.code,
        retry_after=error.retry_after,
    )
    refused.model, refused.offered = name, offered
    return refused


def _instead(name: str, offered: Sequence[str]) -> str:
    """Return what to ask for in the place of a model that is not offered."""
    names = ", ".join(map(repr, offered[:_MAX_SHOWN]))
    n_more = len(offered) - _MAX_SHOWN
    more = f" and {n_more} more" if n_more > 0 else ""
    return f"{near_model(name, offered) or _ELSEWHERE} It offers {names}{more}"


def _listed_as(name: str, offered: Sequence[str]) -> str | None:
    """Return under which name a model is offered, as far as names tell."""
    if name in offered:
        return name
    return next((other for other in offered if may_mean_the_same(name, other)), None)


def may_mean_the_same(name: str, listed: str) -> bool:
    """Tell whether a call for `name` may be one for what an endpoint lists as `listed`.

    Letter case does not count, nor a folder that only one of them has. One without a version may
    be short for any of its versions; where both name one, it must be the same. An endpoint takes
    appended words such as `:online` although it lists the bare name. A `*` in `listed` stands for
    anything.
    """
    name, listed = name.casefold(), listed.casefold()
    folder, _, short = name.rpartition("/")
    listed_folder, _, listed_short = listed.rpartition("/")
    if "*" in listed:
        return _fits(listed, name) or (
            not folder and listed_short != "*" and _fits(listed_short, name)
        )
    if not _may_be_one_folder(folder, listed_folder):
        return False
    stem, version, way = _parts(short)
    listed_stem, listed_version, listed_way = _parts(listed_short)
    if stem != listed_stem or not _may_be_one_way(way, listed_way):
        return False
    return version == listed_version or version in _FLOATING or listed_version in _FLOATING


def near_model(name: str, offered: Sequence[str]) -> str:
    """Return the sentence " Did you mean 'x'?" with an offered name, or an empty text.

    A name in the same folder comes first. It takes 0.1 ms for each name that is offered.
    """
    folder = name.rpartition("/")[0]
    near_by = [other for other in offered if other.rpartition("/")[0] == folder]
    near = did_you_mean(name, near_by)
    return near if near or len(near_by) == len(offered) else did_you_mean(name, offered)


def _may_be_one_folder(first: str, second: str) -> bool:
    if first in _NO_FOLDER or second in _NO_FOLDER:
        return True
    return f"/{first}".endswith(f"/{second}") or f"/{second}".endswith(f"/{first}")


def _may_be_one_way(way: str, listed: str) -> bool:
    if way == listed or not listed:
        return True
    return way in _WAYS and (listed in _WAYS or _DATE.fullmatch(listed) is not None)


def _parts(short: str) -> tuple[str, str, str]:
    """Return the stem of a name without a folder, its version, and what is appended to it."""
    base, _, way = (short, "", "") if short.startswith(_FINE_TUNED) else short.partition(":")
    found = _VERSION.search(base)
    return (base, "", way) if found is None else (base[: found.start()], found[1], way)


def _fits(pattern: str, name: str) -> bool:
    """Tell whether a name fits a pattern, whose only sign is `*`; takes linear time."""
    first, *middle, last = pattern.split("*")
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
