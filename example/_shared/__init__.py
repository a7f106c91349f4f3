"""What the examples share: which model or server answers, and where files go."""

from __future__ import annotations

from _shared.home import own_home, say_next
from _shared.openviking import memory_server_from_env
from _shared.provider import provider_from_env, providers_of_two_vendors

__all__ = [
    "memory_server_from_env",
    "own_home",
    "provider_from_env",
    "providers_of_two_vendors",
    "say_next",
]
