"""A server for tests with a model of plain rules behind it, in the protocols of two vendors.

`model` is the model, `openai` and `anthropic` read requests and write answers, `server` puts them
on a loopback port. `python -m tests.support.served_model COMMAND` runs a command with it.
"""

from __future__ import annotations

from tests.support.served_model.model import MODEL
from tests.support.served_model.server import provider_variables, serve_model

__all__ = ["MODEL", "provider_variables", "serve_model"]
