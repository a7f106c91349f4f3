"""The OpenAI API over served workflows: models, Chat Completions, Responses and Embeddings."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

import anyio
import msgspec
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rath._async.runtime import runtime
from rath.errors import ProviderError, ToolNameConflictError
from rath.flow.serving.calls import MAX_ERROR_CHARS, last_turn, last_turn_text
from rath.llm.evidence import CallEvidence
from rath.serving import openai_wire as wire
from rath.serving.background import BackgroundRuns
from rath.serving.principals import LimitReached, Principal
from rath.serving.runs import (
    Conflict,
    MessageTooLong,
    RunFailed,
    RunRequest,
    Runs,
    ServedRun,
    SessionInUse,
    StoredRun,
    UnknownSession,
    client_calls,
    in_worker,
    require_no_failure,
    stream_text,
    text_of,
)
from rath.session import Session
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    RoundLimit,
)
from rath.session.output import plain_answer

if TYPE_CHECKING:
    from rath.llm.embedding import EmbeddingClient
    from rath.serving.app import ServerOptions

PING_SECONDS = 15
"""Between two comments in a stream that says nothing else, so that proxies keep it."""

FAREWELL_SECONDS = 3.0
"""How long a stream may take to end, with its run, once the server is told to stop."""

SEND_SECONDS = 60.0
"""How long a client may take to read one event; a slower one has gone."""

FIRST_SEQUENCE = 4
"""Number of the event before the first character of a streamed response: four events open it."""

T = TypeVar("T")

_log = logging.getLogger("rath.serving")

Handler = Callable[[Request], Awaitable[Response]]


class RunAnswer(NamedTuple):
    """The answer of a run that has ended or waits."""

    text: str
    finish_reason: str
    status: str
    """Of a response."""

    problem: str | None
    """Why there is no whole answer."""

    is_typed: bool = False
    """Whether it is the JSON of a typed answer."""

    is_in_call: bool = False
    """Whether a call gave it, and no text of a model."""

    def after(self, n_chars: int) -> str:
        """Return what follows the texts of the models, which have so many characters."""
        if n_chars == 0:
            return self.text
        rest = self.text if self.is_in_call else self.problem
        return f"\n\n{rest}" if rest else ""


class OpenAIRoutes:
    """The routes of the API.

    Args:
        runs: The runs of the server.
        background: Those in the background.
        options: Of the server.
    """

    def __init__(self, runs: Runs, background: BackgroundRuns, options: ServerOptions) -> None:
        self._runs = runs
        self._background = background
        self._options = options
        self._started = int(time.time())
        self._embedder: EmbeddingClient | None = None

    def routes(self) -> list[Route]:
        """Return the routes, below `/v1`."""
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/models/{model:path}", self._model),
            ("POST", "/v1/chat/completions", self._chat),
            ("GET", "/v1/chat/completions/{id}", self._stored_chat),
            ("POST", "/v1/responses", self._respond),
            ("GET", "/v1/responses/{id}", self._stored_response),
            ("POST", "/v1/responses/{id}/cancel", self._cancel_response),
            ("POST", "/v1/embeddings", self._embed),
        ]
        return [
            Route(path, partial(answer_errors, handler), methods=[method])
            for method, path, handler in table
        ]

    async def _models(self, request: Request) -> Response:
        principal = principal_of(request)
        models = [self._model_entry(name) for name in self._runs.names(principal)]
        if self._may_embed(principal):
            models.append(self._model_entry(self._embedding_name()))
        return JSONResponse({"object": "list", "data": models})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        self._check_model(principal_of(request), name)
        return JSONResponse(self._model_entry(name))

    def _model_entry(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "rath"}

    def _check_model(self, principal: Principal, name: str) -> None:
        known = self._runs.names(principal)
        if name not in known:
            raise wire.WireError(
                f"there is no model {name!r:.80} here; known: {', '.join(known) or 'none'}",
                status=404,
                code="model_not_found",
                param="model",
            )

    # Chat Completions

    async def _chat(self, request: Request) -> Response:
        asked = wire.decode_request(wire.ChatRequest, await request.body())
        wire.check_chat(asked)
        principal = principal_of(request)
        self._check_model(principal, asked.model)
        said = wire.chat_content(asked)
        run = await self._start(
            request,
            RunRequest(
                principal=principal,
                workflow=asked.model,
                rows=said.rows,
                session_id=said.session_id,
                results=said.results,
                tools=wire.chat_tools(asked),
                streaming=bool(asked.stream),
            ),
        )
        if asked.stream:
            has_usage = asked.stream_options is not None and asked.stream_options.include_usage
            return self._event_stream(run, self._chat_events(run, 0, has_usage=has_usage))
        return await self._whole_chat(request, run)

    async def _stored_chat(self, request: Request) -> Response:
        name = str(request.path_params["id"]).removeprefix("chatcmpl-")
        session_id, _ = wire.read_response_id(name)
        principal = principal_of(request)
        after = _last_event(request)
        run = self._runs.find_running(principal, session_id)
        if run is None:
            workflow, session = await self._runs.find(principal, session_id)
            followed = await in_worker(partial(self._runs.follow, session))
            run = StoredRun(principal, workflow, followed)
        if after is not None:
            return self._event_stream(run, self._chat_events(run, after, has_usage=False))
        return await self._whole_chat(request, run)

    async def _whole_chat(self, request: Request, run: ServedRun) -> Response:
        await self._wait(request, run)
        return JSONResponse(await in_worker(partial(self._completion, run)))

    def _completion(self, run: ServedRun) -> dict[str, Any]:
        """Return a whole answer; blocks."""
        session, answer = run.session, answer_of(run.session)
        if answer.status == "cancelled":
            raise _cancelled()
        return wire.chat_completion(
            _chat_head(run.request.workflow, session),
            {
                "content": answer.text or None,
                "tool_calls": wire.chat_calls(session.id, client_calls(session)),
                "finish_reason": answer.finish_reason,
                "usage": wire.usage_of_chat(run.usage),
            },
        )

    async def _chat_events(
        self, run: ServedRun, after: int, *, has_usage: bool
    ) -> AsyncGenerator[ServerSentEvent]:
        session = run.session
        head = _chat_head(run.request.workflow, session)
        n_chars = 0
        if after == 0:
            yield _event(wire.chat_chunk(head, {"role": "assistant", "content": ""}), "0")
        try:
            async for text in stream_text(run):
                new, n_chars = text[max(0, after - n_chars) :], n_chars + len(text)
                if new:
                    yield _event(wire.chat_chunk(head, {"content": new}), str(n_chars))
            answer = await in_worker(partial(answer_of, session))
        except (Conflict, RunFailed) as exc:
            yield _event(_run_error(exc).body(), str(n_chars))
            return
        if answer.status == "cancelled":
            yield _event(_cancelled().body(), str(n_chars))
            return
        rest = answer.after(n_chars)
        new, n_chars = rest[max(0, after - n_chars) :], n_chars + len(rest)
        if new:
            yield _event(wire.chat_chunk(head, {"content": new}), str(n_chars))
        if answer.finish_reason == "tool_calls":
            calls = await in_worker(partial(client_calls, session))
            called = wire.chat_calls(session.id, calls)
            numbered = [{"index": number, **call} for number, call in enumerate(called)]
            yield _event(wire.chat_chunk(head, {"tool_calls": numbered}), str(n_chars))
        yield _event(wire.chat_chunk(head, {}, answer.finish_reason), str(n_chars))
        if has_usage:
            last = wire.chat_chunk(head, {})
            last |= {"choices": [], "usage": wire.usage_of_chat(run.usage)}
            yield _event(last, str(n_chars))
        yield ServerSentEvent("[DONE]")

    # Responses

    async def _respond(self, request: Request) -> Response:
        asked = wire.decode_request(wire.ResponseRequest, await request.body())
        wire.check_response(asked)
        principal = principal_of(request)
        self._check_model(principal, asked.model)
        said = wire.response_content(asked)
        session_id = said.session_id
        previous = asked.previous_response_id
        if previous is not None:
            before = await self._previous(principal, previous)
            if session_id not in (None, before):
                raise wire.WireError(
                    "the results are of calls of another response than `previous_response_id`",
                    param="previous_response_id",
                )
            session_id = before
        if session_id is None and not said.rows:
            raise wire.WireError("`input` is empty; say something", param="input")
        wanted = RunRequest(
            principal=principal,
            workflow=asked.model,
            rows=said.rows,
            session_id=session_id,
            results=said.results,
            tools=wire.response_tools(asked),
            streaming=bool(asked.stream),
        )
        if asked.background:
            number = await self._background.start(wanted)
            return JSONResponse(
                _response_head(asked.model, wire.background_id(number), "in_progress", previous)
            )
        run = await self._start(request, wanted)
        if asked.stream:
            return self._event_stream(run, self._response_events(run, 0, previous))
        await self._wait(request, run)
        return JSONResponse(await in_worker(partial(_whole_response, run, previous)))

    async def _previous(self, principal: Principal, name: str) -> UUID:
        if not wire.is_background(name):
            return wire.read_response_id(name)[0]
        number, _ = wire.read_response_id(name)
        _, state, session = await self._background.find(principal, number)
        if session is None:
            raise Conflict(f"response {name!r} is {state}; it has no session to go on from")
        return session.id

    async def _stored_response(self, request: Request) -> Response:
        name = request.path_params["id"]
        principal = principal_of(request)
        number, first_row = wire.read_response_id(name)
        if wire.is_background(name):
            workflow, state, session = await self._background.find(principal, number)
            if session is None:
                return JSONResponse(_response_head(workflow, name, state, None))
            ended = StoredRun(principal, workflow, session)
            body = await in_worker(partial(_stored_body, ended, name))
            return JSONResponse({**body, "id": name, "status": state, "background": True})
        run = self._runs.find_running(principal, number)
        workflow, session = await self._runs.find(principal, number)
        after = _last_event(request)
        if after is not None:
            followed = session if run else await in_worker(partial(self._runs.follow, session))
            shown = run or StoredRun(principal, workflow, followed, first_row, streaming=True)
            return self._event_stream(shown, self._response_events(shown, after, None))
        if run is not None or await in_worker(partial(self._runs.runs_elsewhere, session)):
            return JSONResponse(_response_head(workflow, name, "in_progress", None))
        ended = StoredRun(principal, workflow, session, first_row)
        return JSONResponse(await in_worker(partial(_stored_body, ended, name)))

    async def _cancel_response(self, request: Request) -> Response:
        name = request.path_params["id"]
        principal = principal_of(request)
        number, _ = wire.read_response_id(name)
        if wire.is_background(name):
            await self._background.cancel(principal, number)
        else:
            _, session = await self._runs.find(principal, number)
            run = self._runs.find_running(principal, number)
            if run is not None:
                await run.end_now()
            elif await in_worker(partial(self._runs.runs_elsewhere, session)):
                raise SessionInUse(
                    f"session {number} runs in another process of this server; wait for its end"
                )
        return await self._stored_response(request)

    async def _response_events(
        self, run: ServedRun, after: int, previous: str | None
    ) -> AsyncGenerator[ServerSentEvent]:
        """Yield the events of a response.

        The number of an event tells how much text is before it, so that a client that comes back,
        to whatever server, is told the rest.
        """
        session = run.session
        name = wire.response_id(session.id, run.first_row)
        item, n_chars = f"msg_{session.id.hex}", 0
        head = _response_head(run.request.workflow, name, "in_progress", previous)
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
        place = {"item_id": item, "output_index": 0, "content_index": 0}
        opening: list[dict[str, Any]] = [
            {"type": "response.created", "response": head},
            {"type": "response.in_progress", "response": head},
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": wire.text_item(item, "", "in_progress"),
            },
            {"type": "response.content_part.added", **place, "part": part},
        ]
        for number, opened in enumerate(opening):
            if number >= after:
                yield _numbered(opened, number)
        told = max(0, after - FIRST_SEQUENCE + 1)
        try:
            async for text in stream_text(run):
                new, n_chars = text[max(0, told - n_chars) :], n_chars + len(text)
                if new:
                    delta = {"type": "response.output_text.delta", **place, "delta": new}
                    yield _numbered({**delta, "logprobs": []}, FIRST_SEQUENCE - 1 + n_chars)
            answer = await in_worker(partial(answer_of, session))
            rest = answer.after(n_chars)
            new, n_chars = rest[max(0, told - n_chars) :], n_chars + len(rest)
            if new:
                delta = {"type": "response.output_text.delta", **place, "delta": new}
                yield _numbered({**delta, "logprobs": []}, FIRST_SEQUENCE - 1 + n_chars)
            body = await in_worker(partial(_response_of, run, answer, previous))
        except (Conflict, RunFailed) as exc:
            failed = {"type": "response.failed", "response": _failed_body(head, exc)}
            yield _numbered(failed, FIRST_SEQUENCE + n_chars)
            return
        for number, closed in enumerate(_closing(body, place)):
            yield _numbered(closed, FIRST_SEQUENCE + n_chars + number)

    # Embeddings

    async def _embed(self, request: Request) -> Response:
        asked = wire.decode_request(wire.EmbeddingRequest, await request.body())
        principal = principal_of(request)
        if not self._may_embed(principal):
            raise wire.WireError(
                "this server gives no embeddings; start it with a model for them",
                status=404,
                code="model_not_found",
                param="model",
            )
        if asked.model != self._embedding_name():
            raise wire.WireError(
                f"there is no model {asked.model!r:.80} for embeddings; known: "
                f"{self._embedding_name()}",
                status=404,
                code="model_not_found",
                param="model",
            )
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        if not texts or not all(texts):
            raise wire.WireError("`input` has an empty text; give some", param="input")
        self._runs.check_chars(sum(map(len, texts)))
        vectors, n_tokens = await in_worker(partial(self._vectors, principal, texts))
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": wire.embedding_vector(vector, asked.encoding_format),
            }
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return JSONResponse({"object": "list", "data": data, "model": asked.model, "usage": usage})

    def _embedding_name(self) -> str:
        provider = self._options.embeddings
        return (provider.model if provider is not None else None) or "embeddings"

    def _may_embed(self, principal: Principal) -> bool:
        return self._options.embeddings is not None and principal.may_run(self._embedding_name())

    def _vectors(self, principal: Principal, texts: list[str]) -> tuple[list[list[float]], int]:
        """Return vectors, and how many tokens the texts had; blocks.

        They count as a run of the principal, and what they cost as its money.
        """
        from rath.llm.embedding import embedding_client_for  # noqa: PLC0415  # few servers do

        assert self._options.embeddings is not None
        if self._embedder is None:
            self._embedder = embedding_client_for(self._options.embeddings)
        embedder, limits, calls = self._embedder, self._runs.limits, list[CallEvidence]()
        limits.begin_run(principal)
        try:
            embed = partial(embedder.aembed, texts, on_call=calls.append)
            vectors = runtime().run(embed, label="embedding texts of a client")
        except ValueError as exc:  # such as a text of blanks
            raise wire.WireError(str(exc), param="input") from exc
        except ProviderError as exc:
            raise wire.WireError(
                f"the model of the embeddings failed: {exc}"[:MAX_ERROR_CHARS],
                status=502,
                kind="server_error",
                code="provider_failed",
            ) from exc
        finally:
            limits.end_run(principal.name)
            for call in calls:
                limits.note_call(principal, call)
            if principal.usd_per_day is not None:
                limits.write_spending(principal)
        n_tokens = sum(call.usage.prompt_tokens for call in calls if call.usage is not None)
        return [list(vector) for vector in vectors], n_tokens

    # Runs

    async def _start(self, request: Request, wanted: RunRequest) -> ServedRun:
        return await _until_disconnect(request, self._runs.start(wanted))

    def _event_stream(
        self, run: ServedRun, events: AsyncGenerator[ServerSentEvent]
    ) -> EventSourceResponse:
        return event_stream(run, events, self._options.disconnect_grace)

    async def _wait(self, request: Request, run: ServedRun) -> None:
        """Wait for the end of a run; a client that goes away leaves it."""
        try:
            with run.reading(self._options.disconnect_grace):
                await _until_disconnect(request, run.wait())
        except RunFailed as exc:
            raise _run_error(exc) from exc


def event_stream(
    run: ServedRun, events: AsyncGenerator[ServerSentEvent], grace: float | None
) -> EventSourceResponse:
    """Return the stream of a run; the run is cancelled when the server ends.

    Args:
        run: The run, which is read as long as the client is there.
        events: What is said of it.
        grace: As in `ServedRun.reading`.
    """
    stop = anyio.Event()

    async def cancel_at_stop() -> None:
        await stop.wait()
        run.cancel()

    async def read() -> AsyncGenerator[ServerSentEvent]:
        stopping = asyncio.ensure_future(cancel_at_stop())
        try:
            with run.reading(grace):
                async for event in events:
                    yield event
        finally:
            stopping.cancel()

    return EventSourceResponse(
        read(),
        ping=PING_SECONDS,
        send_timeout=SEND_SECONDS,
        sep="\n",
        shutdown_event=stop,
        shutdown_grace_period=FAREWELL_SECONDS,
    )


def principal_of(request: Request) -> Principal:
    """Return who sends a request; the guard of the server has found out."""
    principal: Principal = request.scope["rath.principal"]
    return principal


async def answer_errors(handler: Handler, request: Request) -> Response:
    """Answer what is wrong in the form of the API."""
    try:
        return await handler(request)
    except wire.WireError as exc:
        error = exc
    except UnknownSession:
        error = wire.not_found(str(request.path_params.get("id", "of that id")))
    except LimitReached as exc:
        error = limit_error(exc)
    except (Conflict, RunFailed) as exc:
        error = _run_error(exc)
    except ClientDisconnect:
        return Response(status_code=499)  # nobody reads it
    except Exception:  # noqa: BLE001  # the border of the server: the client reads it in its form
        _log.exception("a request to %s failed", request.url.path)
        error = wire.WireError(
            "the server failed; its log says why", status=500, kind="server_error", code="failed"
        )
    return JSONResponse(error.body(), error.status, headers=error.headers)


def limit_error(error: LimitReached) -> wire.WireError:
    """Return the error of a principal that has used up a limit."""
    after = error.retry_after
    is_rate = after is not None
    return wire.WireError(
        str(error),
        status=429,
        kind="rate_limit_error" if is_rate else "insufficient_quota",
        code="rate_limit_exceeded" if is_rate else "insufficient_quota",
        headers={} if after is None else {"Retry-After": str(max(1, round(after)))},
    )


def _run_error(error: Conflict | RunFailed) -> wire.WireError:
    if isinstance(error, MessageTooLong):
        return wire.WireError(str(error), status=413, code="context_length_exceeded")
    if isinstance(error, Conflict):
        status = 409 if isinstance(error, SessionInUse) else 400
        return wire.WireError(str(error), status=status, code="conflict")
    if isinstance(error.__cause__, ToolNameConflictError):
        return wire.WireError(str(error.__cause__), code="tool_name_conflict", param="tools")
    return wire.WireError(str(error), status=500, kind="server_error", code="run_failed")


def _cancelled() -> wire.WireError:
    return wire.WireError(
        "the run was cancelled; /v1/responses goes on with it, given its id as "
        "`previous_response_id` and an empty input",
        status=503,
        kind="server_error",
        code="run_cancelled",
    )


async def _until_disconnect(request: Request, waiting: Coroutine[Any, Any, T]) -> T:
    """Return what is awaited, unless the client goes away first.

    Raises:
        ClientDisconnect: It has gone.
    """
    task = asyncio.ensure_future(waiting)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait((task, gone))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def answer_of(session: Session) -> RunAnswer:
    """Return the answer of a run that has ended or waits; blocks.

    Raises:
        RunFailed: It is stored as one that failed.
    """
    require_no_failure(session)
    outcome = session.outcome
    answer = plain_answer(session)
    is_typed = answer is not None and not isinstance(answer, str)
    if isinstance(outcome, NeedsInput | NeedsApproval | NeedsDecision):
        text = last_turn_text(session)
    elif is_typed:
        text = msgspec.json.encode(answer).decode()
    else:
        text = answer or session.text()
    match outcome:
        case Cancelled() | NeedsDecision(calls=()):  # the latter was cut off with its process
            return RunAnswer("", "stop", "cancelled", None)
        case NeedsInput():
            if client_calls(session):
                return RunAnswer(text, "tool_calls", "completed", None)
            problem = outcome.question
        case NeedsApproval(calls=()):
            problem = (
                "(The run can go on: give its id as `previous_response_id`, and an empty input.)"
            )
        case NeedsApproval() | NeedsDecision():
            problem = (
                "(The run waits until somebody allows or decides about these tool calls where the "
                f"server runs: {', '.join(outcome.calls)}.)"
            )
        case RoundLimit() | BudgetExceeded() | DeadlineExceeded():
            problem = f"(The run was stopped: {outcome})"
            whole = "\n\n".join(filter(None, (text, problem)))
            return RunAnswer(whole, "length", "incomplete", problem)
        case _:
            turn = last_turn(session)
            is_said = not is_typed and text == session.text()
            is_in_call = turn is not None and bool(turn.calls) and not is_said
            return RunAnswer(text, "stop", "completed", None, is_typed, is_in_call)
    whole = "\n\n".join(filter(None, (text, problem)))
    return RunAnswer(whole, "stop", "completed", problem)


def _whole_response(run: ServedRun, previous: str | None) -> dict[str, Any]:
    """Return the response of a run that has ended or waits; blocks.

    Raises:
        RunFailed: It is stored as one that failed.
    """
    return _response_of(run, answer_of(run.session), previous)


def _response_of(run: ServedRun, answer: RunAnswer, previous: str | None) -> dict[str, Any]:
    """Return a whole response; blocks."""
    session = run.session
    name = wire.response_id(session.id, run.first_row)
    head = _response_head(run.request.workflow, name, answer.status, previous)
    output: list[dict[str, Any]] = []
    # The JSON of a typed answer stands alone, for a client that reads it whole.
    is_alone = answer.is_typed and not run.request.streaming
    text = "" if is_alone else text_of(session, run.first_row)
    text += answer.after(len(text))
    if text or run.request.streaming:
        output.append(wire.text_item(f"msg_{session.id.hex}", text))
    output += wire.response_calls(session.id, client_calls(session))
    details = {"reason": "max_output_tokens"} if answer.status == "incomplete" else None
    usage = wire.usage_of_response(run.usage)
    return {**head, "output": output, "incomplete_details": details, "usage": usage}


def _stored_body(run: ServedRun, name: str) -> dict[str, Any]:
    """Return a stored response, also of a run that failed; blocks."""
    try:
        return _whole_response(run, None)
    except RunFailed as exc:
        return _failed_body(_response_head(run.request.workflow, name, "failed", None), exc)


def _failed_body(head: Mapping[str, Any], error: Exception) -> dict[str, Any]:
    problem = {"code": "server_error", "message": str(error)}
    return {**head, "status": "failed", "error": problem}


def _closing(body: Mapping[str, Any], place: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events that end a streamed response."""
    message, *calls = body["output"]
    text = message["content"][0]
    events: list[dict[str, Any]] = [
        {"type": "response.output_text.done", **place, "text": text["text"], "logprobs": []},
        {"type": "response.content_part.done", **place, "part": text},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
    ]
    for index, call in enumerate(calls, start=1):
        at = {"output_index": index, "item_id": call["id"]}
        begun = {**call, "arguments": "", "status": "in_progress"}
        whole = {"arguments": call["arguments"]}
        events += [
            {"type": "response.output_item.added", "output_index": index, "item": begun},
            {"type": "response.function_call_arguments.delta", **at, "delta": call["arguments"]},
            {
                "type": "response.function_call_arguments.done",
                **at,
                **whole,
                "name": call["name"],
            },
            {"type": "response.output_item.done", "output_index": index, "item": call},
        ]
    kind = "completed" if body["status"] == "completed" else "incomplete"
    return [*events, {"type": f"response.{kind}", "response": dict(body)}]


def _chat_head(workflow: str, session: Session) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{session.id.hex}",
        "created": int(time.time()),
        "model": workflow,
    }


def _response_head(workflow: str, name: str, status: str, previous: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "background": wire.is_background(name),
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": workflow,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": previous,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def _last_event(request: Request) -> int | None:
    """Return after which event a client wants a stream to go on, None where it wants none."""
    text = request.headers.get("last-event-id") or request.query_params.get("starting_after")
    if text is None:
        return 0 if request.query_params.get("stream") == "true" else None
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise wire.WireError(
            f"{text!r:.40} is no number of an event; give the last `id` that came", param="stream"
        )
    return int(text)


def _event(data: Mapping[str, Any], name: str) -> ServerSentEvent:
    return ServerSentEvent(msgspec.json.encode(data).decode(), id=name)


def _numbered(data: Mapping[str, Any], number: int) -> ServerSentEvent:
    numbered = {**data, "sequence_number": number}
    return ServerSentEvent(
        msgspec.json.encode(numbered).decode(), event=str(data["type"]), id=str(number)
    )
