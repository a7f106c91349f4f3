"""How carefully a run is written."""

from __future__ import annotations

from typing import Literal, cast, get_args

from rath import config
from rath.config.env import env_value
from rath.config.paths import config_layer_paths
from rath.errors import ConfigError

Durability = Literal["turn", "row", "none"]
"""What survives a loss of power; whatever the choice, a process that is killed loses nothing that
was written.

`turn`: what stands before a tool call that is not idempotent, and all that came before a turn.
`row`: every row and entry, as soon as it is there. `none`: what the system has written by then.
"""

_ENV = "OPENRATH_DURABILITY"


def default_durability() -> Durability:
    """Return what the environment says, else the first config that says something, else `turn`.

    Raises:
        ConfigError: That is no durability.
    """
    said, origin = env_value(_ENV), f"env {_ENV}"
    if said is None and any(path.exists() for path in config_layer_paths()):
        for layer in config.config_layers():
            said, origin = layer.config.sessions.durability, str(layer.path)
            if said is not None:
                break
    if said is None:
        return "turn"
    if said not in get_args(Durability):
        known = ", ".join(map(repr, get_args(Durability)))
        raise ConfigError(f"unknown durability {said!r} in {origin}; expected one of {known}")
    return cast("Durability", said)  # one of its words
