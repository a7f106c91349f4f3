"""A loopback server that answers as the pretended model in the protocol of each request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support import anthropic_rules, chat_replies, openai_rules
from tests.support.asking import KEY
from tests.support.chat_replies import Reply
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.served_model import anthropic, openai
from tests.support.served_model.model import MODEL, Prompt, Said, answer


@dataclass(frozen=True, slots=True)
class Form:
    """How requests of one protocol are read and answered."""

    read: Callable[[Mapping[str, Any]], Prompt]
    whole: Callable[[Prompt, Said], Reply]
    streamed: Callable[[Prompt, Said], Reply]
    refused: Callable[[int, str, str | None], Reply]
    check: Callable[[bytes], object]
    """Raises AssertionError for a request that the vendor would refuse."""


_FORMS: Mapping[str, Form] = {
    "/chat/completions": Form(
        openai.read, openai.whole, openai.streamed, openai.refused, openai_rules.check_body
    ),
    "/messages": Form(
        anthropic.read,
        anthropic.whole,
        anthropic.streamed,
        anthropic.refused,
        anthropic_rules.check_body,
    ),
}


def serve_model(*, check: Callable[[bytes], object] | None = None) -> ChatServer:
    """Start the server; it takes the key of the tests, and knows one model.

    Args:
        check: What raises AssertionError for a request that is refused; the rules of its vendor
            by default, which a library that writes bodies of its own may break.
    """

    def answer_to(request: CapturedRequest) -> Reply:
        form = form_of(request.path)
        if form is None:
            return chat_replies.status_error(404, f"no such path: {request.path}")
        if _key(request) != KEY:
            return form.refused(401, "invalid key", None)
        try:
            (check or form.check)(request.body)
        except AssertionError as exc:
            return form.refused(400, str(exc) or "the request breaks a rule", None)
        return _answered(form, request)

    return ChatServer(answer_to, models=[MODEL])


def form_of(path: str) -> Form | None:
    """Return the protocol that is spoken at a path, None where it is neither."""
    bare = path.partition("?")[0]
    return next((form for end, form in _FORMS.items() if bare.endswith(end)), None)


def _answered(form: Form, request: CapturedRequest) -> Reply:
    prompt = form.read(json.loads(request.body))
    if prompt.model != MODEL:
        code = "model_not_found"
        return form.refused(404, f"The model `{prompt.model}` does not exist", code)
    return (form.streamed if prompt.streaming else form.whole)(prompt, answer(prompt))


def _key(request: CapturedRequest) -> str:
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return request.headers.get("x-api-key") or bearer


def provider_variables(base_url: str) -> dict[str, str]:
    """The variables that lead both kinds of providers to a server."""
    return {
        f"{vendor}_{name}": value
        for vendor in ("OPENAI", "ANTHROPIC")
        for name, value in (("API_KEY", KEY), ("BASE_URL", base_url), ("DEFAULT_MODEL", MODEL))
    }
