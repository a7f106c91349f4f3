"""Environments of other frameworks, below the user's cache; made once for each set of versions."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

_INSTALL_SECONDS = 900


def python_of(name: str, requirements: Sequence[str], *, cache: Path) -> str:
    """Return the interpreter of an environment with the requirements, which is made if need be.

    Raises:
        subprocess.CalledProcessError: They could not be installed; stderr says why.
    """
    key = hashlib.sha256(repr((sys.version, sorted(requirements))).encode()).hexdigest()[:12]
    folder = cache / f"{name}-{key}"
    python = str(folder / "bin" / "python")
    if not (folder / "complete").exists():
        print(f"installing {name} into {folder} ...", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        uv = shutil.which("uv")
        venv.create(folder, with_pip=uv is None)
        install = (
            [uv, "pip", "install", "--quiet", "--python", python]
            if uv
            else [python, "-m", "pip", "install", "--quiet"]
        )
        subprocess.run([*install, *requirements], check=True, timeout=_INSTALL_SECONDS)
        (folder / "complete").touch()
    return python
