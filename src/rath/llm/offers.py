"""Which models endpoints offer, and which of those that are wanted they do not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rath._async.lanes import gather
from rath._async.runtime import runtime
from rath.errors import ProviderProtocolError, ProviderStatusError
from rath.llm.base import ChatClient
from rath.llm.refusal import refusal_foreseen
from rath.llm.vendor import Route, VendorClient

__all__ = ["Offer", "ask_offer", "foresee_refusals", "route_of"]

_log = logging.getLogger("rath.llm")

_ANY_MODEL = "any"

_Place = tuple[type[VendorClient], str, str]


@dataclass(frozen=True, slots=True)
class Offer:
    """What an endpoint said when it was asked for its models."""

    models: tuple[str, ...] = ()
    error: Exception | None = None

    @property
    def is_untold(self) -> bool:
        """Whether the endpoint answers, but not this question; calls to it may work."""
        error = self.error
        if isinstance(error, ProviderStatusError):
            # A key may be good for calls alone, but not where it is unknown altogether.
            return error.status != 401
        return isinstance(error, ProviderProtocolError)


async def ask_offer(client: VendorClient) -> Offer:
    """Ask the endpoint of a client for its models."""
    try:
        # A list needs no model; where the client has one, some vendors list only its relatives.
        route = route_of(client) or client.route(_ANY_MODEL)
        return Offer(await client.amodels(route))
    except Exception as exc:  # noqa: BLE001  # adapters of others raise anything; it is told
        return Offer(error=exc)


def foresee_refusals(clients: Sequence[ChatClient]) -> list[str | None]:
    """Tell for each client why its endpoint would refuse its model; waits for the answers.

    Each endpoint is asked once for its models, all at the same time.

    Returns:
        None where nothing speaks against a call: also where the endpoint does not list its
        models, and for clients that are not made by rath.
    """
    routes = {
        index: (client, route)
        for index, client in enumerate(clients)
        if isinstance(client, VendorClient) and (route := route_of(client)) is not None
    }
    asked = {_place(client, route): client for client, route in routes.values()}
    offers = dict(zip(asked, _ask_all([*asked.values()]), strict=True))
    reasons: list[str | None] = [None] * len(clients)
    for index, (client, route) in routes.items():
        offer = offers[_place(client, route)]
        if offer.is_untold:
            _log.info("whether %r is offered is not known: %s", route.model, offer.error)
        elif offer.error is not None:
            reasons[index] = str(offer.error)
        else:
            reasons[index] = refusal_foreseen(client.asked(route), offer.models)
    return reasons


def route_of(client: VendorClient) -> Route | None:
    """Return where the calls of a client for its own model go, None where it has no model."""
    try:
        return client.route(None)
    except ValueError:
        return None


def _ask_all(clients: Sequence[VendorClient]) -> list[Offer]:
    if not clients:
        return []
    asking = [partial(ask_offer, client) for client in clients]
    return runtime().run(lambda: gather(asking), label="asking endpoints for their models")


def _place(client: VendorClient, route: Route) -> _Place:
    """Return what clients have in common that are offered the same models."""
    # A client that has no endpoint yet has one for each model.
    return type(client), route.endpoint or route.model, route.secret
