"""`python -m rath` is the `rath` command."""

from __future__ import annotations

from rath.cli import main

if __name__ == "__main__":
    main()
