"""A PostgreSQL server of the tests: in a directory of its own, on a socket, ended by its id."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

_SECONDS = 50.0
PASSWORD = "swordfish-of-the-tests"
"""That of the role `guarded`, which has to give one."""

_ACCESS = "local all guarded scram-sha-256\nlocal all all trust\n"
_NEW = ("-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
_QUIET = ("-c", "fsync=off", "-c", "listen_addresses=", "-c", "shared_buffers=16MB")


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A server that runs."""

    directory: Path
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """End it, whoever is connected."""
        with contextlib.suppress(FileNotFoundError):
            # Not the process that was started: bwrap passes no signals on.
            pid = int((self.directory / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGINT)
        self.process.wait(_SECONDS)

    def url(self, **options: str) -> str:
        """Return the URL of a schema of its own in the database."""
        told = {"host": str(self.directory), "user": "rath", "schema": f"s{uuid4().hex}", **options}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in told.items())
        return f"postgres:///postgres?{query}"

    def connect(self) -> Any:
        """Return a connection of the superuser."""
        return psycopg.connect(
            host=str(self.directory), user="rath", dbname="postgres", autocommit=True
        )

    def cut_connections(self) -> None:
        """Let every connection but the one that asks break."""
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )


def _program(name: str) -> str | None:
    """Return a program of the server: Debian has them outside of PATH, by version."""
    found = shutil.which(name)
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found or (str(versions[-1]) if versions else None)


def command_prefix(directory: Path) -> list[str]:
    """Return what a command of the server begins with: nothing, but where we are root.

    The server refuses root, so there it runs in a user namespace, as somebody of its own, and can
    write only in its directory.
    """
    if os.getuid() != 0:
        return []
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("PostgreSQL does not run as root, and bwrap is not installed")
    passwd = directory / "passwd"
    passwd.write_text("rath:x:1000:1000::/:/bin/sh\n")
    return [
        *(bwrap, "--die-with-parent", "--unshare-user", "--uid", "1000", "--gid", "1000"),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/etc"),
        *("--ro-bind", str(passwd), "/etc/passwd"),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--bind", str(directory), str(directory), "--chdir", str(directory)),
    ]


@contextlib.contextmanager
def running_postgres() -> Generator[PostgresServer]:
    """Start a server with an empty database, and end it."""
    initdb, postgres = _program("initdb"), _program("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    # Not below tmp_path: a socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="rath-pg-"))
    try:
        begin = command_prefix(directory)
        data = directory / "data"
        made = subprocess.run(
            [*begin, initdb, "-D", data, "-U", "rath", *_NEW], capture_output=True, check=False
        )
        assert made.returncode == 0, made.stderr.decode()
        (data / "pg_hba.conf").write_text(_ACCESS)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [*begin, postgres, "-D", data, "-k", directory, *_QUIET],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        server = PostgresServer(directory, process)
        try:
            _wait_until_ready(server)
            with server.connect() as connection:
                connection.execute(f"CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)


def _wait_until_ready(server: PostgresServer) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            server.connect().close()
        except psycopg.OperationalError:
            assert server.process.poll() is None, (server.directory / "log").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests of this process; each takes a schema of its own."""
    with running_postgres() as server:
        yield server
