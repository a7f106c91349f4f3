"""Targets of requests that are never sent: who was asked, for the words of errors."""

from __future__ import annotations

from rath.llm.credentials import RequestTarget


def request_target(
    endpoint: str = "http://h/v1",
    model: str = "m",
    *,
    secret: str = "",
    password: str = "",
    model_from: str = "call",
    key_from: str = "call",
    path: str = "",
    timeout: float = 300.0,
) -> RequestTarget:
    """The target of a request to `endpoint`, with the origins of model and key."""
    return RequestTarget(
        kind="test",
        endpoint=endpoint,
        model=model,
        path=path,
        origins=(("model", model_from), ("api_key", key_from)),
        timeout=timeout,
        secret=secret,
        password=password,
    )
