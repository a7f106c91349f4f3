"""Names of tools as providers accept them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from hashlib import sha256

__all__ = ["MAX_NAME_CHARS", "accepted_names"]

MAX_NAME_CHARS = 64
"""Longest name of a tool that every provider takes."""

_ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_ACCEPTED = re.compile(r"[^A-Za-z0-9_-]+")


def accepted_names(
    names: Iterable[str], *, prefix: str = "", reserved: Collection[str] = ()
) -> dict[str, str]:
    """Return for each name of a server the one under which a model calls it.

    A name that every provider takes stays as it is. In any other, what is not a letter, a digit,
    `_` or `-` becomes `_`, and a part of its digest follows, so that it is the same in every
    process and no two are equal.

    Args:
        names: What the server calls its tools.
        prefix: Goes before every name, to tell servers apart.
        reserved: Names that no server may take: with those it is as with ones not accepted.
    """
    wanted = {name: f"{prefix}{name}" for name in names}
    accepted = {name for name in wanted.values() if _ACCEPTED.fullmatch(name)}
    plain = accepted.difference(reserved)
    taken = plain.union(reserved)
    found: dict[str, str] = {}
    for name, full in wanted.items():
        if full not in plain:
            full = _coded(full, taken)
            taken.add(full)
        found[name] = full
    return found


def _coded(name: str, taken: set[str]) -> str:
    digest = sha256(name.encode(errors="replace")).hexdigest()
    stem = _NOT_ACCEPTED.sub("_", name)
    candidates = (
        f"{stem[: MAX_NAME_CHARS - n_digits - 1]}_{digest[:n_digits]}" for n_digits in range(8, 33)
    )
    return next(coded for coded in candidates if coded not in taken)
