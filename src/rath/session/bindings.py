"""What is bound to a session and no part of its value: where tools run, which model answers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rath.backend.abc import BackendSandbox, BackendSandboxSpec
from rath.llm.provider import Provider
from rath.session.placement import Placement


class _Unsaid(str):
    """A default that can be told from the same word said by the caller."""

    __slots__ = ()


_LOCAL = _Unsaid("local")


class Bindings:
    """Placement and provider of a session; `to` and its kin move them and return the session."""

    __slots__ = ("_depth", "_placement", "_provider", "_was_placed")

    def __init__(self, placement: Placement, provider: Provider | None) -> None:
        self._placement = placement
        self._provider = provider
        self._depth = 0
        self._was_placed = False

    @property
    def sandbox(self) -> BackendSandbox | None:
        """The sandbox once it was opened, else None."""
        return self._placement.sandbox

    @property
    def sandbox_backend(self) -> str | None:
        """Name of the backend on which tools run, or None."""
        return self._placement.backend

    @property
    def sandbox_spec(self) -> BackendSandboxSpec | None:
        """What the sandbox shall be, or None for the backend's default."""
        return self._placement.spec

    @property
    def placement(self) -> Placement:
        """Backend, spec and lease together."""
        return self._placement

    @property
    def was_placed(self) -> bool:
        """Whether somebody has placed it since it was made or loaded."""
        return self._was_placed

    @property
    def provider(self) -> Provider | None:
        """Model to use where an operation is given none."""
        return self._provider

    def to(
        self,
        backend: str | Provider = _LOCAL,
        *,
        spec: BackendSandboxSpec | str | None = None,
        provider: str | Provider | None = None,
    ) -> Self:
        """Place the session on a sandbox backend, or bind it to a provider, or both.

        Args:
            backend: Name of a registered backend, or a Provider to bind only that.
            spec: What the sandbox shall be; a string is its working directory.
            provider: A Provider, or the name of one in the config; given alone it leaves the
                placement as it is.

        Returns:
            This session: placement is a binding, so the result need not be kept.

        Raises:
            BackendNotFound: No backend has that name.
            ValueError: A Provider was given twice.
        """
        if isinstance(backend, Provider):
            if provider is not None:
                raise ValueError(
                    "two providers were given, as first argument and as provider=; give one"
                )
            self._provider = backend
            return self
        if provider is not None:
            self._provider = (
                provider if isinstance(provider, Provider) else Provider.from_config(provider)
            )
            if isinstance(backend, _Unsaid) and spec is None:
                return self
        wanted = BackendSandboxSpec(working_dir=spec) if isinstance(spec, str) else spec
        placement = Placement(str(backend), wanted)
        placement.held()
        self._place(placement)
        return self

    def place_like(self, other: Bindings) -> Self:
        """Work where another session works from now on; returns this session."""
        self._place(other.placement.share())
        return self

    def bind_sandbox(self, sandbox: BackendSandbox) -> Self:
        """Hold `sandbox` from now on and give back what was held; returns this session."""
        if self._placement.sandbox is not sandbox:
            self._place(Placement(sandbox=sandbox))
        return self

    def _place(self, placement: Placement) -> None:
        self._placement.drop()
        self._placement = placement
        self._was_placed = True

    def close_sandbox(self) -> Self:
        """Give the sandbox back; backend and spec stay. Returns this session."""
        self._placement.drop()
        return self

    def require_sandbox(self) -> BackendSandbox:
        """Return the open sandbox, opening it on first use; waits for the opening.

        Raises:
            RuntimeError: The session has no backend, or its sandbox was closed.
        """
        return self._placement.held().ensure_open()

    def __enter__(self) -> Self:
        if self._depth == 0:
            self._placement.drop_if_closed()
            self.require_sandbox()
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.close_sandbox()
