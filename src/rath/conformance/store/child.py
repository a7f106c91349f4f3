"""A writer in a process of its own, for the checks that need one; killed by who started it.

Standard input gives what opens the store, pickled and in base64; standard output says after each
durable line how many there are.
"""

from __future__ import annotations

import base64
import itertools
import pickle
import sys
from uuid import UUID

from rath.conformance.store.subject import StoreOpener

_MAX_LINES = 100_000


def main(session: str, work: str) -> None:
    """Write one durable line and wait, or write one after the other."""
    # From our parent, and nobody else.
    opener: StoreOpener = pickle.loads(base64.b64decode(sys.stdin.readline()))
    log = opener().create(UUID(session))
    for number in itertools.count(1):
        log.append(b"%d\n" % number, durable=True)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        if work == "hold" or number == _MAX_LINES:
            break
    sys.stdin.read()
