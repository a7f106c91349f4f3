"""LiteLLM itself, imported so that it neither calls home nor writes to the terminal."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import sys
from typing import Any

__all__ = ["litellm", "version"]

_ENVIRONMENT = {
    # Else it fetches a table of prices, and one of header names, from the network.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    # Else it reads a `.env` file of the project into the environment.
    "LITELLM_MODE": "PRODUCTION",
}
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


def _import_quietly() -> Any:
    """Import LiteLLM; where the program has done so before, it is left as the program set it up."""
    if "litellm" in sys.modules:
        return sys.modules["litellm"]
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    library: Any = importlib.import_module("litellm")
    library.telemetry = False
    # Else a stream that breaks off ends like any other, and a cancelled one is not hung up.
    library.disable_aiohttp_transport = True
    # Else it prints advice about each error on stdout.
    library.suppress_debug_info = True
    # Else it may fetch a tokenizer from a hub, to estimate tokens that a vendor did not count.
    library.disable_hf_tokenizer_download = True
    # Else it refuses histories that vendors refuse, such as tool calls where no tools are offered.
    library.modify_params = True
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        # Its own handlers write to stderr. Records still reach the handlers of the program.
        logger.handlers[:] = [logging.NullHandler()]
    return library


litellm: Any = _import_quietly()
version = importlib.metadata.version("litellm")
