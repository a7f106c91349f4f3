"""What a sandbox of OpenSandbox is like unless somebody says otherwise."""

from __future__ import annotations

from datetime import timedelta

IMAGE = "opensandbox/code-interpreter:v1.1.0"
"""Image with the interpreters of all languages that `run_code` offers."""

ENTRYPOINT = ("/opt/code-interpreter/code-interpreter.sh",)
"""What starts the interpreters of `IMAGE`."""

LIFETIME = timedelta(minutes=10)
"""How long the server lets a sandbox live."""

ROOT = "/workspace"
"""The workspace inside."""

DOMAIN = "localhost:8080"
"""Where a server listens that was set up on this host."""

REQUEST_SECONDS = 120.0
"""How long one request may take; the first one for an image may have to fetch it."""

READY_SECONDS = 120.0
"""How long a new sandbox may take until it answers."""

INTERPRETER_SECONDS = 30.0
"""How long the interpreters of a sandbox may take until they listen, before the first code."""

RETRIES = 2
"""How often a request is sent again that did not reach the server, or that changes nothing."""

RETRY_SECONDS = 1.0
"""Wait before the first retry; it doubles."""

COMMAND_SECONDS = 120.0
"""How long a command may run unless its caller said otherwise; the same as on this host."""

CODE_SECONDS = 90.0
"""How long a piece of code may run unless its caller said otherwise."""

LONGEST_SECONDS = 7 * 86400.0
"""What an endless deadline comes to."""

BUSY_WAITS = (0.5, 1.0)
"""Waits before code is sent again that an interpreter refused because it was busy, in seconds."""

GRACE_SECONDS = 10.0
"""How much later than its deadline a command may be said to have ended; a guess for slow nets."""

CLEANUP_SECONDS = 10.0
"""How long ending what was cancelled may take."""

SNAPSHOT_SECONDS = 300.0
"""How long a snapshot may take until it can be opened; a guess for large images."""

SNAPSHOT_WAITS = (0.1, 0.2, 0.5, 1.0)
"""Waits between questions whether a snapshot is ready, in seconds; the last one repeats."""

LANGUAGES = frozenset({"bash", "go", "java", "javascript", "python", "typescript"})

MAX_OUTPUT_BYTES = 1 << 20
"""How much of each of stdout and stderr is kept: the first and the last half of this."""

MAX_WHOLE_BYTES = 16 << 20
"""How much of an output that is longer is kept whole beside it; of more than this, nothing."""
