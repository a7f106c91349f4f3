"""What can go wrong between this process and a sandbox of a server, in our own words."""

from __future__ import annotations

import re

from rath.backend.results import ToolExecutionFailure

_BIND_WORDS = re.compile(r"allowed.{0,40}(prefix|path)|host.?path|bind mount", re.IGNORECASE)


class RemoteFault(Exception):
    """Base of what the client raises; its text says what happened."""


class NotReached(RemoteFault):
    """The request was not sent, so it did nothing."""


class NotReady(RemoteFault):
    """A sandbox, or the interpreters in it, did not begin to answer in time."""


class AnswerLost(RemoteFault):
    """The request was sent and no whole answer came: whether it took effect is not known."""


class Refused(RemoteFault):
    """The server answered that it cannot or will not do it."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def is_missing_file(self) -> bool:
        """Whether a path is not there."""
        return self.code == "FILE_NOT_FOUND" or (
            self.status == 404 and "no such file" in str(self).lower()
        )

    @property
    def is_missing_sandbox(self) -> bool:
        """Whether the server knows no such sandbox."""
        return self.status == 404 and self.code.endswith("SANDBOX_NOT_FOUND")

    @property
    def is_about_the_bind(self) -> bool:
        """Whether a directory of the host may not be mounted."""
        return self.status == 422 or (
            400 <= self.status < 500 and _BIND_WORDS.search(f"{self.code} {self}") is not None
        )

    @property
    def is_busy(self) -> bool:
        """Whether an interpreter did not take the code because it runs other code."""
        return "session is busy" in str(self).lower()


class Broken(RemoteFault):
    """The SDK could not make sense of a request or an answer."""


def failure_of(fault: RemoteFault, what: str) -> ToolExecutionFailure:
    """Return what is said of a fault of an operation.

    Args:
        fault: What went wrong.
        what: What was asked for, as the subject of a sentence: "the command".
    """
    match fault:
        case NotReached():
            message = f"{what} was not sent, since the sandbox cannot be reached: {fault}"
            return ToolExecutionFailure("dispatch_error", message, "not reached")
        case NotReady():
            message = f"{what} was not sent, since the sandbox is not ready for it: {fault}"
            return ToolExecutionFailure("dispatch_error", message, "not ready")
        case AnswerLost():
            message = (
                f"the connection was lost before the sandbox said what became of {what}: it may "
                f"have taken effect or not ({fault})"
            )
            return ToolExecutionFailure("sandbox_sdk_error", message, "connection lost")
        case Refused():
            return ToolExecutionFailure("dispatch_error", str(fault), fault.code)
        case _:
            return ToolExecutionFailure("sandbox_sdk_error", str(fault), type(fault).__name__)
