"""Code: `/code` and its contexts."""

from __future__ import annotations

import threading

from tests.support.opensandbox_server.execd.contexts import Context, now_ms
from tests.support.opensandbox_server.execd.wire import Answering, RefusedError, Request, frame

RUNS = ("python", "bash")
"""Languages that are really run here."""
KNOWN = (*RUNS, "java", "javascript", "typescript", "go")
"""Languages that the daemon knows; for those that do not run there is no kernel."""


class Codes:
    """All code contexts of one sandbox.

    Args:
        has_runtime: Whether the image has the language runtime; without it no code runs.
    """

    def __init__(self, *, has_runtime: bool) -> None:
        self._has_runtime = has_runtime
        self._contexts: dict[str, Context] = {}
        self._defaults: dict[str, str] = {}
        self._lock = threading.Lock()

    def run(self, request: Request, answering: Answering) -> None:
        """Run code in the named context, or in the one that its language has by default."""
        body = request.json()
        wanted: dict[str, str] = body.get("context") or {}
        if not body.get("code"):
            text = (
                "invalid request, validation error Key: 'RunCodeRequest.Code' "
                "Error:Field validation for 'Code' failed on the 'required' tag"
            )
            raise RefusedError(400, "INVALID_REQUEST_BODY", text)
        context = self._wanted(wanted.get("id"), wanted.get("language", ""))
        answering.send_frames(frame("init", text=context.id), frame("ping", text="pong"))
        if not context.busy.acquire(blocking=False):
            raise _failure("error running codes session is busy")
        started = now_ms()
        try:
            _run(context, body["code"], answering)
        finally:
            context.busy.release()
        # Only now: whoever reads that it is over may run code at once.
        took = max(1, now_ms() - started)
        answering.send_frames(frame("execution_complete", execution_time=took))
        answering.end_stream()

    def interrupt(self, request: Request, answering: Answering) -> None:
        """Interrupt what runs in a context."""
        context = self._contexts.get(request.first("id"))
        if context is None:
            raise _failure("error interruptting code context. no such session")
        context.interrupt()
        answering.send()

    def create(self, request: Request, answering: Answering) -> None:
        """Make a context."""
        body = request.json()
        language = body.get("language", "")
        problem = self._problem(language)
        if problem:
            raise _failure(f"error creating code context. {problem}")
        context = self._add(language, body.get("cwd") or "/")
        told = {"id": context.id, "language": language}
        answering.send_json({**told, "cwd": body["cwd"]} if body.get("cwd") else told)

    def get(self, request: Request, answering: Answering) -> None:
        """Describe a context."""
        answering.send_json(_told(self._known(request.names[0])))

    def list(self, request: Request, answering: Answering) -> None:
        """Describe all contexts, or those of a language."""
        languages = request.all("language")
        with self._lock:
            contexts = [*self._contexts.values()]
        answering.send_json(
            [_told(each) for each in contexts if not languages or each.language in languages]
        )

    def delete(self, request: Request, answering: Answering) -> None:
        """End a context."""
        self._remove(self._known(request.names[0]))
        answering.send()

    def delete_language(self, request: Request, answering: Answering) -> None:
        """End all contexts of a language."""
        language = request.first("language")
        for context in [each for each in self._contexts.values() if each.language == language]:
            self._remove(context)
        answering.send()

    def _wanted(self, context_id: str | None, language: str) -> Context:
        problem = self._problem(language)
        if problem:
            raise _failure(f"error running codes {problem}")
        with self._lock:
            wanted = context_id or self._defaults.get(language, "")
            context = self._contexts.get(wanted)
        if context is not None:
            return context
        if context_id:
            raise _failure("error running codes context not found")
        context = self._add(language, "/")
        self._defaults[language] = context.id
        return context

    def _problem(self, language: str) -> str:
        """What keeps code of a language from running; empty if nothing does."""
        if language not in KNOWN:
            return f"unknown language: {language}"
        if not self._has_runtime:
            return "language runtime server not configured, please check your image runtime"
        return "" if language in RUNS else "no kernel specs found"

    def _add(self, language: str, cwd: str) -> Context:
        context = Context(language, cwd)
        with self._lock:
            self._contexts[context.id] = context
        return context

    def _remove(self, context: Context) -> None:
        with self._lock:
            self._contexts.pop(context.id, None)
            if self._defaults.get(context.language) == context.id:
                del self._defaults[context.language]
        context.close()

    def _known(self, context_id: str) -> Context:
        context = self._contexts.get(context_id)
        if context is None:
            raise RefusedError(404, "CONTEXT_NOT_FOUND", f"context {context_id} not found")
        return context


def _run(context: Context, code: str, answering: Answering) -> None:
    """Run code, and tell what it writes, its value or its error."""
    outcome = context.run(code, lambda name, text: answering.send_frames(frame(name, text=text)))
    if outcome["result"] is not None:
        answering.send_frames(
            frame("execution_count", execution_count=outcome["count"]),
            frame("result", results={"text": outcome["result"]}),
        )
    if outcome["error"] is not None:
        answering.send_frames(frame("error", error=outcome["error"]))


def _told(context: Context) -> dict[str, str]:
    return {"id": context.id, "language": context.language}


def _failure(text: str) -> RefusedError:
    return RefusedError(500, "RUNTIME_ERROR", text)
