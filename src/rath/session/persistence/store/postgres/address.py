"""Where a database is, and how that is told without its secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from rath.errors import PersistenceError

DEFAULT_SCHEMA = "openrath"

_DEFAULTS = {
    "application_name": "openrath",
    "connect_timeout": "10",
    # Milliseconds until a server that says nothing counts as gone; a guess.
    "tcp_user_timeout": "30000",
}
_USUAL_PORT = "5432"
_SECRETS = ("password", "sslpassword")
_MIN_SECRET = 4


@dataclass(frozen=True, slots=True)
class Address:
    """A database and a schema in it."""

    parameters: dict[str, str] = field(repr=False)
    """What libpq connects with; may hold a password."""

    schema: str
    where: str
    """The URL without user, password and options, for messages."""

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Return the address that a URL tells.

        Raises:
            ValueError: libpq takes no such URL; the text does not repeat it.
        """
        try:
            parts = urlsplit(url)
            asked = [each for each in parts.query.split("&") if each]
            schemas = [unquote(each[7:]) for each in asked if each.startswith("schema=")]
            query = "&".join(each for each in asked if not each.startswith("schema="))
            told = conninfo_to_dict(f"postgresql://{parts.netloc}{parts.path}?{query}")
        except (psycopg.ProgrammingError, ValueError):
            # Without its cause: libpq repeats the part that it did not understand.
            raise ValueError(
                "the URL of the Postgres store cannot be understood; write it as in "
                "postgres://user@host:5432/database, with special characters as %XX"
            ) from None
        parameters = {**_DEFAULTS, **{name: str(value) for name, value in told.items()}}
        schema = next(filter(None, schemas), DEFAULT_SCHEMA)
        return cls(parameters, schema, _where(parameters, schema))

    def connect(self) -> psycopg.Connection:
        """Return a new connection in which each statement is a transaction of its own.

        Raises:
            psycopg.Error: The server cannot be reached, or refuses.
        """
        return psycopg.connect("", autocommit=True, **self.parameters)  # type: ignore[arg-type]  # any parameter of libpq

    def error(self, what: str, exc: psycopg.Error) -> PersistenceError:
        """Return the error of something that did not work, without the secrets of the address."""
        said = next(iter(str(exc).strip().splitlines()), type(exc).__name__)
        for name in _SECRETS:
            secret = self.parameters.get(name, "")
            if len(secret) >= _MIN_SECRET:
                said = said.replace(secret, "***")
        return PersistenceError(f"{self.where}: {what}: {said}")


def _where(parameters: dict[str, str], schema: str) -> str:
    # What libpq takes from the environment and from a service.
    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }

    def told(name: str) -> str:
        return parameters.get(name) or defaults.get(name, "")

    host = told("host") or told("hostaddr") or "localhost"
    # Nothing else: whoever mistypes a URL may have a secret in the place of the port.
    port = "".join(each for each in told("port") if each in "0123456789,")
    port = "" if port == _USUAL_PORT else port
    # A directory is that of a socket.
    shown = quote(host, safe="") if host.startswith("/") else host
    service = told("service")
    database = told("dbname") or (f"service={service}" if service else "")
    place = f"postgres://{shown}{f':{port}' if port else ''}/{quote(database, safe='=')}"
    return place if schema == DEFAULT_SCHEMA else f"{place}?schema={quote(schema, safe='')}"
