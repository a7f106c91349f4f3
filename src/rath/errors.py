"""The whole error tree of rath.

    RathError
      SelfWaitError (RuntimeError)            a run would wait for itself
      MissingExtra (ImportError)              an optional package is not installed
      ConfigError (RuntimeError)              a config file cannot be used
        ConfigConflict                        it was changed by somebody else meanwhile
        UntrustedConfig                       a project's names what the user has not trusted
      ManifestVersionError (RuntimeError)     the home was written by a newer version
      PersistenceError (RuntimeError)         a session file cannot be written or believed
        SessionDamaged                        a line of it was changed or lost
        SessionBusy                           somebody else writes it
        SessionChanged                        somebody else has written it meanwhile
        StoreNotFound (LookupError)           no session store of that name
        ReplayDifference                      a replay is not what the record says
        ResumeMismatch                        a program that goes on is not the one that began
      OfflineError (RuntimeError)             a live call was forbidden by rath.offline()
      LineageConsistencyError (ValueError)    a lineage graph has a hole or a cycle
      ToolNameConflictError (ValueError)      two tools of a run bear one name
      BudgetExceededError (RuntimeError)      a caller's budget callback ends the run
      OutputError (ValueError)                a typed output was asked for and did not come
      BackendError (RuntimeError)
        UnsupportedBackendTool                the backend has no such operation
        BackendSandboxClosed                  the sandbox was closed
        WorkspaceLost                         the files of a stored session are not there
          RebuildError                        nor can they be rebuilt from its record
        BackendNotFound (LookupError)         no backend of that name
      EngineError (RuntimeError)              an engine cannot carry out the items of a job
        EngineNotFound (LookupError)          no engine of that scheme
      JobError (RuntimeError)                 a job was given up
      JobBudgetExceeded (RuntimeError)        the budget of a job is used up; its runs can go on
      MemoryBackendError (RuntimeError)
        UnsupportedMemoryOp                   the store has no such operation
        MemoryStoreClosed                     the store was closed
        MemoryBackendNotFound (LookupError)   no memory backend of that name
        MemoryNotFound                        no note at that URI
        MemoryConflict                        two writers met at one URI
      ProviderError (RuntimeError)            a model call failed; it carries status and endpoint
        ProviderConnectionError (ConnectionError)   no connection, or it broke before an answer
        ProviderTimeout (TimeoutError)        no answer within the time that was given
        ProviderProtocolError                 the answer is not what the protocol promises
          StreamInterrupted                   a stream ended without its end marker
        ProviderStatusError                   the endpoint answered with an error status
          AuthenticationError                 401, 403: the key is missing, wrong or not allowed
          ModelNotFoundError                  404: the endpoint knows no such model or path
          InvalidRequestError                 400, 409, 413, 422: the endpoint refused the request
          RateLimitError                      429: too many requests
            QuotaExceededError                402, 429: the account has nothing left to spend
          ProviderServerError                 5xx: the endpoint failed
      MCPServerError (RuntimeError)           a tool server; `server` names it
        MCPConnectionError                    no connection to it, or it broke
          MCPAuthenticationError              401, 403: it refused the credential, or wants one
          MCPProtocolError                    what answers there does not speak the protocol
        MCPTimeout (TimeoutError)             no answer within the time that was given
        MCPRequestError                       it refused a request; it carries the error's code
        UntrustedServer (UntrustedConfig)     a project names it, and the user has not trusted it

Who failed decides the form: what the caller did wrong is TypeError or ValueError, what the world
did is in this tree, and what a model should read is a value (`ToolExecutionFailure`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal
    from uuid import UUID


class RathError(Exception):
    """Base of every error that rath raises for what the world did."""

    def __reduce__(self) -> tuple[object, ...]:
        # Not by `__init__`, as exceptions do by default: many take other arguments than a message.
        return _made, (type(self), self.args, self.__dict__)


def _made(kind: type[RathError], args: tuple[object, ...], state: dict[str, object]) -> RathError:
    bases = [each for each in (OSError, ImportError) if each in kind.__mro__]
    error: RathError = (*bases, Exception)[0].__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class _NotRegistered(RathError, LookupError):
    """Nothing of that name is registered; `available` lists what is."""

    _what: str
    _group: str

    def __init__(self, name: str, available: list[str], hint: str = "") -> None:
        self.name = name
        self.available = available
        self.hint = hint
        super().__init__(
            f"no {self._what} named {name!r}.{hint} Known: {', '.join(available) or 'none'}. "
            f"Plug-ins register under {self._group!r}."
        )


class SelfWaitError(RathError, RuntimeError):
    """A read that could never end: the code that reads runs inside what it waits for."""


class MissingExtra(RathError, ImportError):
    """An optional package is needed and not installed; `extra` names what to install.

    Args:
        extra: The extra of rath that has it.
        needed_for: What needs it, such as "the engine 'ray'".
        packages: Those of the extra that it needs; all of them by default.
    """

    def __init__(self, extra: str, needed_for: str, *, packages: Sequence[str] = ()) -> None:
        # On first use: it reads the metadata of what is installed.
        from rath._installation import install_advice  # noqa: PLC0415

        self.extra = extra
        self.needed_for = needed_for
        super().__init__(f"{needed_for} needs {install_advice(extra, packages)}")


class ConfigError(RathError, RuntimeError):
    """A config file cannot be read, parsed or validated."""


class ConfigConflict(ConfigError):
    """A config file was changed by somebody else since it was read."""


class UntrustedConfig(ConfigError):
    """A project's config names an endpoint, a command, a store or a sandbox that is not trusted.

    Nothing was sent or started. `file` is the config, and `key` the entry in it, as in
    `llm.providers.main`.
    """

    def __init__(self, message: str, *, file: str = "", key: str = "") -> None:
        self.file = file
        self.key = key
        super().__init__(message)


class ManifestVersionError(RathError, RuntimeError):
    """The home directory has a layout that is newer than this version understands."""


class PersistenceError(RathError, RuntimeError):
    """A session file is missing, locked, damaged or newer than this version."""


class SessionDamaged(PersistenceError):
    """A session file, or what it names, is not what was written; `where` and `line` say where."""

    def __init__(self, problem: str, *, where: str, line: int | None = None) -> None:
        self.problem = problem
        self.where = where
        self.line = line
        place = where if line is None else f"{where}:{line}"
        super().__init__(f"{place}: {problem}")


class SessionBusy(PersistenceError):
    """The log of a session has another writer; nothing was changed.

    Its run goes on elsewhere: wait for it to end, or attach to it with `Session.follow`.
    """

    def __init__(
        self,
        session: UUID,
        *,
        where: str,
        holder: str = "",
        advice: str = "wait for its run to end, or read it as it comes with Session.follow",
    ) -> None:
        self.session = session
        self.where = where
        """The log, or its store."""

        self.holder = holder
        """The writer, such as "process 123 on host"; "" where the store cannot tell."""
        super().__init__(
            f"the log of session {session} in {where} is being written by "
            f"{holder or 'another process or writer'}; {advice}"
        )


class SessionChanged(PersistenceError):
    """The log of a session is not as it was when it was read; nothing was changed.

    Load the session again; a run by key goes on, or serves what the other writer has made.
    """

    def __init__(self, session: UUID, problem: str) -> None:
        self.session = session
        super().__init__(problem)


class StoreNotFound(_NotRegistered, PersistenceError, LookupError):
    """No session store has this name; `available` lists those that are known."""

    _what = "session store"
    _group = "rath.stores"


class ReplayDifference(PersistenceError):
    """A replay that differs from the record.

    Args:
        problem: What differs, in words.
        where: The session, and the row or the call in it.
        expected: What the record says, in short.
        found: What the replay came to, in short.
    """

    def __init__(
        self, problem: str, *, where: str, expected: str | None = None, found: str | None = None
    ) -> None:
        self.problem = problem
        self.where = where
        self.expected = expected
        self.found = found
        parts = {"expected": expected, "found": found}
        said = "".join(f"; {name} {it}" for name, it in parts.items() if it is not None)
        super().__init__(f"{where}: {problem}{said}")


class ResumeMismatch(PersistenceError):
    """A program that goes on does something else than what is recorded of the same place."""

    def __init__(self, problem: str, *, where: str, expected: str, found: str) -> None:
        self.problem = problem
        self.where = where
        """The place: path of the workflow, and the count of operations there."""

        self.expected = expected
        """The value in the record."""

        self.found = found
        """The value in the program of now."""
        super().__init__(
            f"at {where} {problem}: the record says {expected}, now it is {found}. Go on with the "
            "program that made the session, or call the workflow on the session to run it anew"
        )


class OfflineError(RathError, RuntimeError):
    """A live call was about to be made where `rath.offline()` forbids it; nothing was sent."""

    def __init__(self, endpoint: str, model: str | None) -> None:
        self.endpoint = endpoint
        self.model = model
        asked = "a model" if model is None else f"model {model!r}"
        super().__init__(
            f"{asked} at {endpoint} would be called, and rath.offline() forbids live calls; "
            "replay a session or a cassette, use rath.testing.ScriptedClient, or end the switch"
        )


class LineageConsistencyError(RathError, ValueError):
    """A lineage graph names a parent that is not there, or turns back into itself."""


class ToolNameConflictError(RathError, ValueError):
    """Two tools offered to one run have the same name."""


class BudgetExceededError(RathError, RuntimeError):
    """Raise it in `Provider.on_budget_exceeded` to end a run that went over its budget."""


class OutputError(RathError, ValueError):
    """No output of the type that was asked for; the text says what came instead."""


class BackendError(RathError, RuntimeError):
    """Base of the errors of the sandbox plane."""


class UnsupportedBackendTool(BackendError):
    """The backend does not support this operation."""

    def __init__(self, call_type: type, backend_name: str) -> None:
        self.call_type = call_type
        self.backend_name = backend_name
        super().__init__(f"backend {backend_name!r} does not support {call_type.__name__}")


class BackendSandboxClosed(BackendError):
    """The sandbox was closed; open a new one or place the session again."""

    def __init__(self, handle: str) -> None:
        self.handle = handle
        super().__init__(f"sandbox {handle!r} is closed; place the session again with .to(...)")


class WorkspaceLost(BackendError):
    """The workspace of a stored session is not there, so nothing goes on in it.

    Rows and record can be read all the same.
    """

    def __init__(self, workspace: str, backend: str, expected: str, found: str) -> None:
        self.workspace = workspace
        """The directory, or the handle of its sandbox."""
        self.backend = backend
        self.expected = expected
        self.found = found
        super().__init__(
            f"the {backend} workspace {workspace!r} of a stored session cannot be reattached: "
            f"expected {expected}, found {found}. Put its files back, or place the session where "
            f"they are, for example session.to({backend!r}, spec='./work'), and go on with that"
        )


class RebuildError(WorkspaceLost):
    """The files of a stored session are not there, and its record does not hold all of them."""

    def __init__(
        self, workspace: str, backend: str, expected: str, found: str, missing: Mapping[str, str]
    ) -> None:
        super().__init__(workspace, backend, expected, found)
        self.missing = missing
        """Reasons against rebuilding it, by path. `.` stands for the whole tree; a call whose
        effects are not all known stands under its tool and id."""
        why = "; ".join(f"{path}: {reason}" for path, reason in missing.items())
        self.args: tuple[Any, ...] = (
            f"{self.args[0]}. It cannot be rebuilt from the record: {why}",
        )


class BackendNotFound(_NotRegistered, BackendError, LookupError):
    """No sandbox backend has this name; `available` lists those that are known."""

    _what = "sandbox backend"
    _group = "rath.backends"


class EngineError(RathError, RuntimeError):
    """An engine has no workers, or cannot give them the items of a job."""


class EngineNotFound(_NotRegistered, EngineError, LookupError):
    """No engine has this scheme; `available` lists those that are known."""

    _what = "engine"
    _group = "rath.engines"


class JobError(RathError, RuntimeError):
    """A job was given up: an item failed and `on_error="raise"`, or too many did."""


class JobBudgetExceeded(JobError):
    """The model calls of a job have used up its budget; no further one was made.

    Its runs can go on: start the job again with a larger budget.
    """

    def __init__(self, message: str, *, budget_usd: Decimal, used_usd: Decimal) -> None:
        super().__init__(message)
        self.budget_usd = budget_usd
        self.used_usd = used_usd
        """US dollars that are known to be used, at least."""


class MemoryBackendError(RathError, RuntimeError):
    """Base of the errors of the memory plane."""


class UnsupportedMemoryOp(MemoryBackendError):
    """The memory backend does not support this operation."""

    def __init__(self, op_type: type, backend_name: str) -> None:
        self.op_type = op_type
        self.backend_name = backend_name
        super().__init__(f"memory backend {backend_name!r} does not support {op_type.__name__}")


class MemoryStoreClosed(MemoryBackendError):
    """The memory store was closed; open it again."""

    def __init__(self, handle: str) -> None:
        self.handle = handle
        super().__init__(f"memory store {handle!r} is closed; open it again")


class MemoryBackendNotFound(_NotRegistered, MemoryBackendError, LookupError):
    """No memory backend has this name; `available` lists those that are known."""

    _what = "memory backend"
    _group = "rath.memories"


class MemoryNotFound(MemoryBackendError):
    """No note stands at this URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        super().__init__(f"no note at {uri!r}")


class MemoryConflict(MemoryBackendError):
    """Another writer changed the note at this URI in between."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        super().__init__(f"the note at {uri!r} was changed by another writer; read it again")


class StateMismatch(RathError, RuntimeError):
    """A state does not fit the workflow that it is loaded into; nothing was written."""


class StateFileError(RathError, ValueError):
    """A file is no saved state, or was changed since it was saved."""


class ProviderError(RathError, RuntimeError):
    """A model call failed.

    Args:
        message: What happened, what was expected and what to do; never holds a credential.
        endpoint: Scheme, host and path that was asked, or None when nothing was sent.
        status: HTTP status of the answer, or None when there was none.
        code: The vendor's own error code or type, if it gave one.
        retry_after: Seconds the endpoint asked to wait, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        endpoint: str | None = None,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.evidence: object = None
        """Evidence of the call (`rath.llm.evidence.evidence_of` gives it typed), or None."""
        super().__init__(message)


class ProviderConnectionError(ProviderError, ConnectionError):
    """The endpoint could not be reached, or the connection broke before an answer began."""


class ProviderTimeout(ProviderError, TimeoutError):
    """The endpoint gave no complete answer within the time that was given."""


class ProviderProtocolError(ProviderError):
    """The endpoint answered with something that its protocol does not allow."""


class StreamInterrupted(ProviderProtocolError):
    """A stream ended without its end marker; `partial_text` is what had arrived."""

    def __init__(
        self, message: str, *, endpoint: str | None = None, partial_text: str = ""
    ) -> None:
        self.partial_text = partial_text
        super().__init__(message, endpoint=endpoint)


class ProviderStatusError(ProviderError):
    """The endpoint answered with an error status."""

    model: str | None = None
    """The model that was asked for, where the answer speaks of the model; otherwise None."""


class AuthenticationError(ProviderStatusError):
    """The key is missing, wrong or not allowed to do this (401, 403)."""


class ModelNotFoundError(ProviderStatusError):
    """The endpoint knows no such model, here `model`, or no such path."""

    offered: tuple[str, ...] = ()
    """The models that the endpoint said it offers, where it told."""


class InvalidRequestError(ProviderStatusError):
    """The endpoint refused the request as it stands (400, 409, 413, 422)."""


class RateLimitError(ProviderStatusError):
    """Too many requests, or no quota left (429)."""


class QuotaExceededError(RateLimitError):
    """The account has nothing left to spend; waiting does not help (402, and some 429)."""


class ProviderServerError(ProviderStatusError):
    """The endpoint itself failed (5xx)."""


class MCPServerError(RathError, RuntimeError):
    """A tool server, which `server` names: its program, its address or its name in the config."""

    def __init__(self, message: str, *, server: str = "") -> None:
        self.server = server
        super().__init__(message)


class MCPConnectionError(MCPServerError):
    """A tool server could not be started or reached, or the connection broke.

    Whether a call that was under way took effect is not known.
    """


class MCPAuthenticationError(MCPConnectionError):
    """A tool server wants a credential, or refused the one it got; `status` is 401 or 403."""

    status: int | None = None


class MCPProtocolError(MCPConnectionError):
    """A tool server that does not speak the Model Context Protocol."""


class MCPTimeout(MCPServerError, TimeoutError):
    """A tool server gave no answer in time; it was told to stop."""


class MCPRequestError(MCPServerError):
    """A tool server refused a request; `code` is that of JSON-RPC, -32602 for wrong parameters."""

    code: int = 0


class UntrustedServer(MCPServerError, UntrustedConfig):
    """A project's config names a tool server that the user has not trusted; nothing was started."""

    def __init__(self, message: str, *, server: str = "", file: str = "", key: str = "") -> None:
        super().__init__(message, server=server)
        self.file = file
        self.key = key
