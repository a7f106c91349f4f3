"""Principals: bearer tokens of clients, stored as digests, and the limits of each client."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec

from rath._core.dataclasses import dataclass
from rath._core.files import FileLock, atomic_write_bytes, make_private_directory, read_small_file
from rath.config.paths import own_config_dir
from rath.llm.evidence import CallEvidence
from rath.llm.prices import cost_of
from rath.session.record import Entry, ModelCall

TOKEN_PREFIX = "rath_"
"""By which scanners of repositories find a token."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_FILE_BYTES = 1 << 20
LOCK_SECONDS = 10.0
MINUTE = 60.0
NANO = Decimal(10**9)


class Principal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client of a server, with sessions and limits of its own."""

    name: str
    workflows: tuple[str, ...] | None = None
    """Names of the workflows that it may run; None for all."""

    requests_per_minute: int | None = None
    """Requests that start or change something; None for any number."""

    usd_per_day: Decimal | None = None
    """US dollars of model calls a day (UTC); overshot by the runs in flight at most."""

    max_runs: int | None = None
    """Runs in flight; None for any number."""

    may_approve: bool = False
    """Whether it may allow tool calls of its own sessions that wait for an approval."""

    def may_run(self, workflow: str) -> bool:
        """Tell whether it may run a workflow."""
        return self.workflows is None or workflow in self.workflows


class _StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    """sha256 of the token as hex digits; a token is random, so that no salt is needed."""

    created: datetime
    principal: Principal


class _TokenTable(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    tokens: tuple[_StoredToken, ...] = ()


_decoder = msgspec.json.Decoder(_TokenTable)


class TokenFile:
    """The tokens of a server, in a file that holds their digests and only its user can read.

    Args:
        path: The file; by default `serve/tokens.json` in the user's home of rath.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path: Path = own_config_dir() / "serve" / "tokens.json" if path is None else Path(path)
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, ...] | None, _TokenTable] = (None, _TokenTable())

    def add(self, principal: Principal) -> str:
        """Make a token for a new principal and return it; it cannot be read again later.

        Raises:
            ValueError: The name is taken or cannot be one, or a limit is below zero.
        """
        if NAME.fullmatch(principal.name) is None:
            raise ValueError(
                f"{principal.name!r} cannot be the name of a principal; give 1 to 64 letters, "
                "digits, '.', '_' or '-', the first a letter or digit"
            )
        limits = (principal.requests_per_minute, principal.usd_per_day, principal.max_runs)
        if any(limit is not None and not limit > 0 for limit in limits):
            raise ValueError("a limit must be above zero; leave it out for none")
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        stored = _StoredToken(digest=_digest(token), created=datetime.now(UTC), principal=principal)

        def with_token(table: _TokenTable) -> tuple[_StoredToken, ...]:
            if any(each.principal.name == principal.name for each in table.tokens):
                raise ValueError(
                    f"there is a token for {principal.name!r} already; remove it first "
                    f"(rath serve token rm {principal.name}), or choose another name"
                )
            return (*table.tokens, stored)

        self._change(with_token)
        return token

    def remove(self, name: str) -> None:
        """Remove the token of a principal; servers refuse it from the next request on.

        Raises:
            KeyError: There is none.
        """

        def without_token(table: _TokenTable) -> tuple[_StoredToken, ...]:
            left = tuple(each for each in table.tokens if each.principal.name != name)
            if len(left) == len(table.tokens):
                raise KeyError(name)
            return left

        self._change(without_token)

    def principals(self) -> list[tuple[Principal, datetime]]:
        """Return who has a token, and since when."""
        return [(each.principal, each.created) for each in self._table().tokens]

    def find(self, token: str) -> Principal | None:
        """Return whose token it is, None for nobody's; the time tells nothing about the tokens."""
        digest, found = _digest(token), None
        for each in self._table().tokens:
            if hmac.compare_digest(each.digest, digest):
                found = each.principal
        return found

    def _change(self, change: Callable[[_TokenTable], tuple[_StoredToken, ...]]) -> None:
        make_private_directory(self.path.parent)
        lock = FileLock(self.path.with_suffix(".lock"))
        if not lock.acquire(timeout=LOCK_SECONDS):
            raise TimeoutError(f"{self.path} is being changed by another process; try again")
        try:
            tokens = change(self._table())
            data = msgspec.json.format(msgspec.json.encode(_TokenTable(tokens=tokens)))
            atomic_write_bytes(self.path, data, mode=0o600)
        finally:
            lock.release()

    def _table(self) -> _TokenTable:
        """Return what the file holds; it is read again when it was changed."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return _TokenTable()
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        with self._lock:
            if self._read[0] == version:
                return self._read[1]
        data = read_small_file(self.path, max_bytes=MAX_FILE_BYTES)
        try:
            table = _decoder.decode(data)
        except msgspec.MsgspecError as exc:
            raise ValueError(
                f"{self.path} is no table of tokens ({exc}); restore it, or remove it and add the "
                "tokens again"
            ) from exc
        with self._lock:
            self._read = (version, table)
        return table


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class LimitReached(Exception):
    """A principal has used up one of its limits.

    Args:
        problem: What was used up and what to do, for the client.
        retry_after: Seconds after which it may try again, None where that is not known.
    """

    def __init__(self, problem: str, retry_after: float | None = None) -> None:
        super().__init__(problem)
        self.retry_after = retry_after


@dataclass(slots=True)
class _Use:
    """Use by one principal in this process."""

    requests: float = 0.0
    """Requests that count at `at`; they leak away at the rate that is allowed."""

    at: float = 0.0
    n_runs: int = 0
    nano_usd: int = 0
    """Not yet written."""

    unpriced: str | None = None
    """The model of a call whose cost is not known."""


class Limits:
    """Rate, money and runs of each principal; money is kept in a file, over all its servers.

    Args:
        path: The file of the money, an SQLite database.
        clock: Seconds that only grow.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)

    def take_request(self, principal: Principal) -> None:
        """Count a request.

        Raises:
            LimitReached: There were too many in the last minute.
        """
        allowed = principal.requests_per_minute
        if allowed is None:
            return
        with self._lock:
            use, now = self._uses[principal.name], self._clock()
            use.requests = max(0.0, use.requests - (now - use.at) * allowed / MINUTE)
            use.at = now
            if use.requests + 1 > allowed:
                wait = (use.requests + 1 - allowed) * MINUTE / allowed
                raise LimitReached(
                    f"{principal.name!r} may make {allowed} requests a minute; try again in "
                    f"{wait:.0f} s",
                    wait,
                )
            use.requests += 1

    def begin_run(self, principal: Principal) -> None:
        """Count a run that begins; blocks a moment where money is limited.

        Raises:
            LimitReached: Its runs in flight are as many as it may have, or its money is spent.
        """
        if principal.usd_per_day is not None:
            self._check_money(principal, principal.usd_per_day)
        with self._lock:
            use = self._uses[principal.name]
            if principal.max_runs is not None and use.n_runs >= principal.max_runs:
                raise LimitReached(
                    f"{principal.name!r} may have {principal.max_runs} runs in flight; wait until "
                    "one has ended",
                    1.0,
                )
            use.n_runs += 1

    def end_run(self, name: str) -> None:
        """Count a run of a principal that has ended."""
        with self._lock:
            self._uses[name].n_runs -= 1

    def note_entry(self, principal: Principal, entry: Entry) -> None:
        """Count what a model call of a run cost."""
        if isinstance(entry, ModelCall):
            self.note_call(principal, entry.evidence)

    def note_call(self, principal: Principal, evidence: CallEvidence) -> None:
        """Count what a model call cost."""
        if principal.usd_per_day is None:
            return
        cost = cost_of(evidence)
        with self._lock:
            use = self._uses[principal.name]
            if cost is not None:
                use.nano_usd += int(cost.usd * NANO)
            elif evidence.status == "done":
                use.unpriced = evidence.requested_model or "the model"

    def note_usd(self, principal: Principal, usd: Decimal) -> None:
        """Count money that was spent elsewhere."""
        with self._lock:
            self._uses[principal.name].nano_usd += int(usd * NANO)

    def write_spending(self, principal: Principal) -> int:
        """Write what was spent, and return what is written of today; blocks a moment."""
        day = datetime.now(UTC).date().isoformat()
        with self._lock:
            use = self._uses[principal.name]
            spent, use.nano_usd = use.nano_usd, 0
        if spent == 0 and not self._path.exists():
            return 0
        try:
            return self._add_spending(principal.name, day, spent)
        except BaseException:
            with self._lock:
                use.nano_usd += spent
            raise

    def _add_spending(self, name: str, day: str, spent: int) -> int:
        make_private_directory(self._path.parent)
        with closing(sqlite3.connect(self._path, timeout=LOCK_SECONDS)) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS spending "
                "(principal TEXT, day TEXT, nano_usd INTEGER, PRIMARY KEY (principal, day))"
            )
            database.execute(
                "INSERT INTO spending VALUES (?, ?, ?) ON CONFLICT DO UPDATE "
                "SET nano_usd = nano_usd + excluded.nano_usd",
                (name, day, spent),
            )
            rows = database.execute(
                "SELECT nano_usd FROM spending WHERE principal = ? AND day = ?", (name, day)
            ).fetchall()
        return sum(int(row[0]) for row in rows)

    def _check_money(self, principal: Principal, allowed: Decimal) -> None:
        unpriced = self._uses[principal.name].unpriced
        if unpriced is not None:
            raise LimitReached(
                f"{principal.name!r} has a limit in money, and what {unpriced!r} answered has no "
                "known cost; give the model a price (rath cost --help), or lift the limit"
            )
        spent = self.write_spending(principal) / NANO
        if spent >= allowed:
            raise LimitReached(
                f"{principal.name!r} has spent {spent:.4f} of {allowed} US dollars today; it may "
                "go on after midnight UTC"
            )
