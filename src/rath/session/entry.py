"""What every operation with a model does first, in the caller's thread."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import rath
from rath._async.runtime import runtime
from rath.errors import SelfWaitError
from rath.llm.provider import Provider
from rath.session.manager import session_registry
from rath.session.replay.stage import current_stage, gathered
from rath.session.session import Session

# With the separator, or a caller in `rathskeller/` beside the package would be taken for it.
_PACKAGE = str(Path(rath.__file__).parent) + os.sep


def provider_for(
    operation: str, user_session: Session, agent_session: Session, given: Provider | None
) -> Provider:
    """Return the provider of an operation: the given one, or the user session's.

    Raises:
        TypeError: An argument is no Session or no Provider.
        ValueError: There is no provider.
    """
    for name, session in (("user_session", user_session), ("agent_session", agent_session)):
        if not isinstance(session, Session):
            raise TypeError(f"{operation}: {name} must be a Session, not {type(session).__name__}")
    provider = given or user_session.provider
    if provider is None:
        raise ValueError(
            f"no provider for {operation}: pass agent_provider=Provider(model=...), or bind one "
            "to the session with session.to(provider)"
        )
    if not isinstance(provider, Provider):
        raise TypeError(
            f"{operation}: the provider must be a Provider, not {type(provider).__name__}"
        )
    return provider


def check_may_wait(caller: str) -> None:
    """Check that the caller may block here, before anything is submitted.

    Raises:
        SelfWaitError: It runs on an event loop of rath, as an `async def` tool does.
    """
    if runtime().is_own_thread():
        raise SelfWaitError(
            f"{caller} waits for its run, and that would stop everything on this event loop of "
            "rath; pass lazy=True and `await` what it returns, or call it from a plain `def`"
        )


def check_callable(operation: str, name: str, given: object) -> None:
    """Refuse an argument that shall be called and cannot be; None stands for no such argument.

    Raises:
        TypeError: It is not callable.
    """
    if given is not None and not callable(given):
        raise TypeError(
            f"{operation}: {name} must be a function, not {type(given).__name__}: {given!r:.80}"
        )


def check_executor(operation: str, executor: object) -> None:
    """Refuse an executor that lacks a method; None stands for no executor.

    Raises:
        TypeError: A method is missing, or a class was given where an object is needed.
    """
    if executor is None:
        return
    if isinstance(executor, type):
        raise TypeError(
            f"{operation}: executor was given as the class {executor.__name__}; give an object"
        )
    methods = ("complete", "dispatch_tool", "tool_schemas")
    missing = [name for name in methods if not callable(getattr(executor, name, None))]
    if missing:
        raise TypeError(
            f"{operation}: executor {executor!r:.80} lacks {', '.join(missing)}; expected an "
            f"object with {', '.join(methods)}"
        )


def register_run(user_session: Session, agent_session: Session, out: Session) -> None:
    """Make the sessions of a run findable by id, and the new one the active one."""
    registry = session_registry()
    gathered(out)
    if current_stage() is not None:
        return  # what stands in a record must not take the place of the session that was made
    for session in (user_session, agent_session, out):
        registry.register(session)
    registry.set_active(out)


def call_site() -> str:
    """Return file, line and function of the nearest caller outside of rath."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
