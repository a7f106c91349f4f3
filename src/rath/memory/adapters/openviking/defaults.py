"""What the adapter does unless somebody says otherwise."""

from __future__ import annotations

REQUEST_SECONDS = 60.0
"""How long an operation may take that waits for no processing."""

WAIT_SECONDS = 300.0
"""How long an operation may take that waits for processing; a guess: learning from a transcript
takes ten seconds and what its model needs."""

START_SECONDS = 180.0
"""How long a server may take to answer: 12 to 24 s were seen, and 94 s for the very first time,
when Python compiles its packages."""

END_SECONDS = 15.0
"""How long a server may take to end by itself; 5 s were seen."""

ACCOUNT = "default"
USER = "default"
SERVER = "openviking-server"
SERVER_VARIABLE = "OPENRATH_OPENVIKING_SERVER"

DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}
"""Lengths of the vectors of models that people name without one (OpenAI's documentation)."""
