"""Run a command in an environment whose providers are the pretended model.

Usage: python -m tests.support.served_model COMMAND...
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.served_model import provider_variables, serve_model

if __name__ == "__main__":
    with serve_model() as server:
        command = subprocess.run(
            sys.argv[1:], env={**os.environ, **provider_variables(server.base_url)}, check=False
        )
    sys.exit(command.returncode)
