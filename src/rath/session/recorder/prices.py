"""Prices for a run that is written: a log tells what each call cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from rath._async.runtime import runtime
from rath.llm.draft import open_draft
from rath.llm.prices import can_be_priced
from rath.llm.vendor import VendorClient
from rath.session.running.candidates import Candidate, side_request

_PRICE_LIST = "rath.llm.price_list"


def load_prices(candidates: Sequence[Candidate]) -> None:
    """Have the price list loaded while the first answer is waited for; returns at once.

    That takes half a second, which the writing of the first call would take otherwise. Nothing is
    loaded where no model is asked that somebody sells.
    """
    clients = [one for one in candidates if isinstance(one.client, VendorClient)]
    if clients and _PRICE_LIST not in sys.modules:
        runtime().start_in_worker(partial(_load, clients))


def _load(candidates: Sequence[Candidate]) -> None:
    for candidate in candidates:
        facts = open_draft(candidate.client, side_request(candidate)).facts
        can_be_priced(facts.endpoint, facts.requested_model, service_tier=None)
