"""Plane and handle, written once for sandboxes and memories: open on first use, count, close."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from uuid import uuid4

from rath._async.runtime import runtime
from rath._core.lazy_imports import lazy_modules
from rath._core.references import Reduction, Referenced

if TYPE_CHECKING:
    import asyncio
else:
    (asyncio,) = lazy_modules(__name__, "asyncio")


Spec = TypeVar("Spec")
Native = TypeVar("Native")
Op = TypeVar("Op")
Result = TypeVar("Result")


class Plane(ABC, Generic[Spec, Native, Op, Result]):
    """What a driver of a plane implements: three coroutines on natives of its own.

    The coroutines run on the runtime's event loop and must not block it; blocking work goes
    through `runtime().call_in_worker`. They never count, lock or touch a loop: `Handle` does.
    """

    name: str = ""
    """Name under which the driver is registered."""

    async def aopen(self, spec: Spec | None) -> Native:
        """Open what `spec` describes and return the driver's own object for it."""
        raise NotImplementedError(f"{type(self).__name__} implements no aopen(spec)")

    async def aclose(self, native: Native) -> None:
        """Close `native`; called once per opened native."""
        raise NotImplementedError(f"{type(self).__name__} implements no aclose(native)")

    async def adispatch(self, native: Native, op: Op) -> Result:
        """Run one operation; what fails inside it is a result that says so, not an exception."""
        raise NotImplementedError(f"{type(self).__name__} implements no adispatch(native, op)")

    def identify(self, native: Native) -> str:
        """Return the name by which people know `native`: a path, a remote id."""
        return str(getattr(native, "handle", "")) or uuid4().hex


class Handle(Referenced, Generic[Spec, Native, Op, Result]):
    """A counted handle on something a plane opens: on first use, once, also under parallel use.

    Each holder acquires once and releases once; the last release submits the closing and never
    blocks. What is still open at interpreter exit is closed by the runtime.
    """

    def __init__(
        self,
        plane: Plane[Spec, Native, Op, Result],
        spec: Spec | None = None,
        *,
        native: Native | None = None,
    ) -> None:
        self.spec = spec
        self._plane = plane
        self._native = native
        self._name = "" if native is None else plane.identify(native)
        self._refcount = 0
        self._closed = False
        self._pid = os.getpid()
        self._in_use = 0
        # A finalizer of a holder may run inside any of these methods, on the same thread.
        self._count_lock = threading.RLock()
        self._opening: asyncio.Lock | None = None
        self._unused: asyncio.Event | None = None
        if native is not None:
            runtime().keep_open(self)

    @property
    def handle(self) -> str:
        """Name of what is open, "" before the first use."""
        return self._name

    @property
    def refcount(self) -> int:
        """How many holders there are."""
        return self._refcount

    @property
    def closed(self) -> bool:
        """Whether it was closed; a closed handle never opens again."""
        return self._closed

    @property
    def is_open(self) -> bool:
        """Whether it is open right now."""
        return self._native is not None and not self._closed

    def acquire(self) -> Self:
        """Count one more holder and return this handle; a closed handle raises."""
        with self._count_lock:
            self._check_open()
            self._refcount += 1
        return self

    def release(self) -> None:
        """Count one holder less; the last one submits the closing. Never blocks.

        In a forked child it does nothing: what is open belongs to the parent.
        """
        if self._pid != os.getpid():
            return
        with self._count_lock:
            if self._closed:
                return
            # A release without a holder closes as well, as in 1.3, but there is no holder less.
            self._refcount = max(0, self._refcount - 1)
            if self._refcount > 0:
                return
            self._closed = True
        if self._native is not None or self._opening is not None:
            self.submit_close()

    def submit_close(self) -> None:
        """Start the closing after the last release; must not block."""
        runtime().close_soon(self)

    def dispatch(self, op: Op, /) -> Result:
        """Run one operation and wait for its result; a closed handle raises."""
        self._check_open()
        return runtime().run(lambda: self.adispatch(op), label=f"{type(op).__name__}")

    def ensure_open(self) -> Self:
        """Open now if that has not happened yet, wait for it, and return this handle."""
        self._check_open()
        if self._native is None:
            runtime().run(self.aopened, label=f"opening {self._plane.name}")
        return self

    async def aopened(self) -> Native:
        """Return the opened native, opening it if nobody has; runs on the runtime loop."""
        if self._native is None:
            self._opening = self._opening or asyncio.Lock()
            async with self._opening:
                self._check_open()
                if self._native is None:
                    native = await self.aopen_native()
                    self._native = native
                    self._name = self._plane.identify(native)
                    runtime().keep_open(self)
        self._check_open()
        return self._native

    async def aopen_native(self) -> Native:
        """Open and return the driver's own object; called once."""
        return await self._plane.aopen(self.spec)

    async def adispatch(self, op: Op) -> Result:
        """Run one operation on the runtime loop."""
        native = await self.aopened()
        self._in_use += 1
        try:
            return await self._plane.adispatch(native, op)
        finally:
            self._in_use -= 1
            if self._in_use == 0 and self._unused is not None:
                self._unused.set()

    async def aclose(self) -> None:
        """Close once all operations in flight have ended; safe to call again."""
        with self._count_lock:
            self._closed = True
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            native = self._native
            if native is None:
                return
            if self._in_use:
                self._unused = asyncio.Event()
                await self._unused.wait()
            self._native = None
            try:
                await self._plane.aclose(native)
            finally:
                runtime().forget(self)

    def closed_error(self) -> Exception:
        """Return the error of a use after closing; planes give their own."""
        return RuntimeError(f"{self._name or 'the handle'} is closed")

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _check_open(self) -> None:
        if self._closed:
            raise self.closed_error()


class HandleLease(Referenced):
    """One holder's count on a handle: taken at construction, dropped once, at the latest by gc."""

    __slots__ = ("__weakref__", "_drop", "handle")

    def __init__(self, handle: Handle[Any, Any, Any, Any]) -> None:
        self.handle: Handle[Any, Any, Any, Any] = handle.acquire()
        self._drop = weakref.finalize(self, handle.release)
        # At exit the runtime closes what is open; a finalizer there would only race with it.
        self._drop.atexit = False

    def _pickle_reference(self) -> Reduction:
        """Return the handle: whoever unpickles it is one more holder."""
        return HandleLease, (self.handle,)

    def drop(self) -> None:
        """Give the count back; safe to call again."""
        self._drop()
