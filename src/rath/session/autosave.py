"""Whether every run is recorded, also those that nobody asked to persist."""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from types import TracebackType

from rath import config
from rath.config.env import env_flag, env_value
from rath.config.paths import OPENRATH_HOME_ENV, cache_dir, config_layer_paths

__all__ = ["Autosave", "autosave", "is_autosaving", "is_autosaving_lately", "look_again"]

_PERSIST_ENV = "OPENRATH_PERSIST"

HOW_TO_RECORD = (
    "rath.autosave() in the program, or OPENRATH_PERSIST=1, records runs, so that `rath ls` lists "
    "them and `rath explain` says what happened"
)
"""For those whose runs are not recorded."""

_LOOK_SECONDS = 1.0
"""How long what was found is believed: forks ask, and looking takes longer than a fork."""

_override: bool | None = None
"""What the program said last, None where it said nothing."""

_is_noted = False
"""Whether the end of this program was asked to say that runs were not recorded."""

_known: tuple[str | None, float, bool | None] | None = None
"""For which `OPENRATH_HOME`, until when, and what the configs say."""

_lately: tuple[float, bool] | None = None
"""Until when, and what environment and configs say together."""


class Autosave:
    """A change made by `autosave`; as a context manager it is undone when the block ends."""

    __slots__ = ("_before",)

    def __init__(self, before: bool | None) -> None:
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _set_override(self._before)

    def __repr__(self) -> str:
        return f"Autosave({'on' if is_autosaving() else 'off'})"


def autosave(on: bool = True) -> Autosave:  # no two functions: `rath.autosave(False)` is promised
    """Record every run of this process from now on in the default store, or no more.

    So do `OPENRATH_PERSIST=1` and `sessions.persist` of a config, unless the program says
    otherwise here. Forks, detached, merged, undone and compressed sessions are stored too as soon
    as their content is there. Runs that were submitted before are as they were.

    Args:
        on: Whether runs are recorded.

    Returns:
        A context manager: `with rath.autosave():` is as before when the block ends.

    Example:
        with rath.autosave():
            agent(Session.from_user_message("hello")).synchronize()
    """
    return Autosave(_set_override(on))


def is_autosaving() -> bool:
    """Tell whether runs that are submitted now are recorded; 5 us.

    A config is looked at again once a second.
    """
    global _lately
    if _override is not None:
        return _override
    now = time.monotonic()
    answer = env_flag(_PERSIST_ENV) if env_value(_PERSIST_ENV) else bool(_configured(now))
    _lately = (now + _LOOK_SECONDS, answer)
    return answer


def is_autosaving_lately() -> bool:
    """Tell the same as it was within the last second, for what is made very often; 0.3 us."""
    if _override is not None:
        return _override
    cached = _lately
    return cached[1] if cached is not None and time.monotonic() < cached[0] else is_autosaving()


def note_unrecorded_run() -> None:
    """Have a program on a terminal say at its end how runs are recorded, once for each user."""
    global _is_noted  # of the whole process
    if _is_noted or _override is not None:
        return
    _is_noted = True
    if sys.stderr is not None and sys.stderr.isatty():
        atexit.register(_say_how_to_record)


def _say_how_to_record() -> None:
    if _override is not None or env_value(_PERSIST_ENV):
        return  # the program has decided since, or the user, with OPENRATH_PERSIST=0
    if _configured(time.monotonic()) is not None:
        return  # so has the user, with `sessions.persist` of a config
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no home, or a closed stderr
        marker = cache_dir() / "noted-autosave"
        if marker.exists():
            return
        sys.stderr.write(f"rath: nothing was recorded. {HOW_TO_RECORD}\n")
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def look_again() -> None:
    """Forget what environment and configs said, for a program that has just changed them."""
    global _known, _lately  # as above: they are those of the whole process
    _known = _lately = None


def _set_override(on: bool | None) -> bool | None:
    """Set what the program says, and return what it said before."""
    global _override  # the whole process is recorded, or is not
    before, _override = _override, on
    return before


def _configured(now: float) -> bool | None:
    """Return the setting of the configs, at most one second old; None where none has it."""
    global _known
    home, cached = env_value(OPENRATH_HOME_ENV), _known
    if cached is None or cached[0] != home or now >= cached[1]:
        cached = _known = (home, now + _LOOK_SECONDS, _says_config())
    return cached[2]


def _says_config() -> bool | None:
    """Return the setting of the first config that has one, None where none has."""
    # Most homes have no config, and reading one takes longer than all of this.
    if not any(path.exists() for path in config_layer_paths()):
        return None
    says = (layer.config.sessions.persist for layer in config.config_layers())
    return next((each for each in says if each is not None), None)
