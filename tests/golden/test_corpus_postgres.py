"""Sessions that a PostgreSQL server stored once are told by one as they were then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.corpus import POSTGRES, postgres_outputs, read_expected, unpack
from tests.golden.outputs import differences
from tests.support.postgres_server import PostgresServer


@pytest.mark.full
@pytest.mark.timeout(300)
def test_outputs_of_a_server_are_as_they_were(tmp_path: Path, postgres: PostgresServer) -> None:
    found = postgres_outputs(unpack(POSTGRES, tmp_path), postgres.url)
    problems = differences(read_expected(POSTGRES), found)
    assert not problems, "\n\n".join(problems)
