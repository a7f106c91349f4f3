"""A PgBouncer before the PostgreSQL server of the tests, on a socket, ended by its id."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from tests.support.postgres_server import PostgresServer, command_prefix
from tests.support.waiting import wait_until

_CONFIG = """
[databases]
postgres = host={server} dbname=postgres user=rath
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = {directory}
auth_type = any
pool_mode = {mode}
pidfile = {directory}/pid
"""
_SECONDS = 30.0


@contextlib.contextmanager
def running_pgbouncer(
    server: PostgresServer, mode: Literal["session", "transaction", "statement"]
) -> Generator[str]:
    """Start a pooler, and give the URL of a schema of its own behind it."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed; on Debian: apt-get install pgbouncer")
    # Not below tmp_path: a socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="rath-pgb-"))
    try:
        config = directory / "config.ini"
        config.write_text(_CONFIG.format(server=server.directory, directory=directory, mode=mode))
        # Its own directory may be written to, and that of the server holds its socket.
        begin = command_prefix(directory)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen([*begin, program, config], stdout=log, stderr=log)
        try:
            url = server.url(host=str(directory))
            wait_until(lambda: _answers(directory), "PgBouncer answers")
            yield url
        finally:
            with contextlib.suppress(FileNotFoundError):
                # Not the process that was started: bwrap passes no signals on.
                os.kill(int((directory / "pid").read_text()), signal.SIGTERM)
            process.wait(_SECONDS)
    finally:
        shutil.rmtree(directory)


def _answers(directory: Path) -> bool:
    try:
        psycopg.connect(host=str(directory), user="rath", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True
